//! Mapping half of the CPU device: keyframes and edges in host memory.

use super::edges::{Edge, EdgeMaker, End};
use super::hand_off::{HandOff, HandOffItem, Pointmap};
use super::places::Places;
use super::{NAME, unknown};
use crate::compute::cancel::CancelToken;
use crate::compute::coverage::{self, Coverage, coverage};
use crate::compute::depth::pointmap::PointmapMover;
use crate::compute::device::{
    ContentFormats, DeviceError, EdgeContent, EdgeId, Floats, GraphEdge, Handle, KeyframeBulk,
    KeyframeContent, MappingDevice, MatchContent, NeighbourView, NewEdge, PoseGraph, TwoWay,
};
use crate::compute::global::{
    self, EdgeEquations, GlobalReport, GlobalResidual, GlobalSolver, Keyframe,
};
use crate::compute::pose_solver::{Correspondences, PoseSolver, Residual, constrain_to_rays};
use crate::compute::residual::SolveError;
use crate::compute::retrieval::{Hit, RetrievalModel};
use crate::compute::store::FloatFormat;
use crate::config::DeviceConfig;
use crate::geometry::{Intrinsics, Sim3};
use crate::image::RgbImage;
use crate::inference::{Backend, NetworkShape};
use rustc_hash::FxHashMap;
use std::sync::Arc;

struct Stored {
    image: Arc<RgbImage>,
    features: Arc<Vec<f32>>,
    points: Arc<Vec<f32>>,
    confidence: Arc<Vec<f32>>,
}

pub struct Mapping {
    backend: Box<dyn Backend>,
    config: Arc<DeviceConfig>,
    shape: NetworkShape,
    intrinsics: Option<Intrinsics>,
    hand_off: Arc<HandOff>,
    places: Option<Places>,
    keyframes: FxHashMap<u32, Stored>,
    edges: FxHashMap<EdgeId, Edge>,
    next_edge: u32,
    maker: EdgeMaker,
    global: GlobalSolver,
    pair: PoseSolver,
    /// Qualities that passed the gate, for the relative pose being solved.
    gated: Vec<f32>,
    /// Scratch memory of coverages.
    counts: Vec<u8>,
    /// `None` without `depth.use` or a calibration.
    mover: Option<PointmapMover>,
    cancel: CancelToken,
}

impl Mapping {
    /// A mapping half without keyframes.
    pub fn new(
        backend: Box<dyn Backend>,
        config: Arc<DeviceConfig>,
        intrinsics: Option<Intrinsics>,
        model: Option<Arc<RetrievalModel>>,
        hand_off: Arc<HandOff>,
    ) -> Self {
        let shape = backend.shape().clone();
        Self {
            places: model.map(Places::new),
            maker: EdgeMaker::new(&shape),
            global: GlobalSolver::new(),
            pair: PoseSolver::new(shape.pixels()),
            gated: vec![0.0; shape.pixels()],
            counts: Vec::new(),
            mover: intrinsics
                .filter(|_| config.depth)
                .map(|camera| PointmapMover::new(shape.width, shape.height, camera)),
            cancel: CancelToken::default(),
            backend,
            config,
            shape,
            intrinsics,
            hand_off,
            keyframes: FxHashMap::default(),
            edges: FxHashMap::default(),
            next_edge: 0,
        }
    }

    /// With calibration, only the depths of a pointmap are used: points are moved onto their
    /// pixels' rays.
    fn constrained(&self, pointmap: &Pointmap) -> Arc<Vec<f32>> {
        let Some(k) = self.intrinsics else {
            return Arc::clone(&pointmap.points);
        };
        let (w, h) = (self.shape.width, self.shape.height);
        let mut on_rays = vec![0.0; pointmap.points.len()];
        match constrain_to_rays(&pointmap.points, k, w, h, &mut on_rays) {
            Ok(()) => Arc::new(on_rays),
            Err(error) => {
                tracing::error!("cannot constrain the pointmap to its rays: {error}");
                Arc::clone(&pointmap.points)
            }
        }
    }

    fn make_edge(&mut self, i: u32, j: u32) -> Result<NewEdge, DeviceError> {
        let masks = self.config.tracking.masks;
        let end = |id| {
            let of = keyframe(&self.keyframes, id)?;
            Ok::<_, DeviceError>(End {
                id,
                tokens: &of.features,
                hides: masks.then_some(of.confidence.as_slice()),
            })
        };
        let (edge, match_fraction) = self.maker.make(
            self.backend.as_mut(),
            end(i)?,
            end(j)?,
            self.config.local_opt.q_conf,
            &self.config.matching,
        )?;
        let id = EdgeId(self.next_edge);
        self.next_edge += 1;
        self.edges.insert(id, edge);
        Ok(NewEdge { id, match_fraction })
    }

    /// Solves `i_from_j` from `matches` (of j's pixels in i) between both pointmaps.
    fn relative_pose(
        &mut self,
        id: EdgeId,
        direction: impl Fn(&Edge) -> (u32, u32, &MatchContent),
    ) -> Result<Option<Sim3>, DeviceError> {
        let (i, j, matches) = direction(edge(&self.edges, id)?);
        let q_conf = self.config.local_opt.q_conf;
        for (gated, &q) in self.gated.iter_mut().zip(&matches.quality) {
            *gated = if q > q_conf { q } else { 0.0 };
        }
        let problem = Correspondences {
            frame_points: &keyframe(&self.keyframes, j)?.points,
            keyframe_points: &keyframe(&self.keyframes, i)?.points,
            index: &matches.index,
            quality: &self.gated,
            width: self.shape.width,
            height: self.shape.height,
            measured: None,
            min_fit: 0.0,
        };
        let residual = self.intrinsics.map_or(Residual::Rays, Residual::Calibrated);
        let start = Sim3::identity();
        let solved = self
            .pair
            .solve(&problem, residual, &start, &self.config.tracking);
        Ok(solved.ok().map(|s| s.keyframe_from_frame))
    }
}

fn keyframe(keyframes: &FxHashMap<u32, Stored>, id: u32) -> Result<&Stored, DeviceError> {
    keyframes.get(&id).ok_or(unknown("keyframe", id))
}

fn edge(edges: &FxHashMap<EdgeId, Edge>, id: EdgeId) -> Result<&Edge, DeviceError> {
    edges.get(&id).ok_or(unknown("edge", id.0))
}

/// The keyframes and edges of a graph, as the solver takes them.
fn views<'a>(
    keyframes: &'a FxHashMap<u32, Stored>,
    edges: &'a FxHashMap<EdgeId, Edge>,
    graph: &PoseGraph<'_>,
) -> Result<(Vec<Keyframe<'a>>, Vec<global::Edge<'a>>), DeviceError> {
    let of_keyframe = |(&id, &world_from_camera)| {
        let stored = keyframe(keyframes, id)?;
        Ok(Keyframe {
            points: &stored.points,
            confidence: &stored.confidence,
            world_from_camera,
        })
    };
    let of_edge = |e: &GraphEdge| {
        let stored = edge(edges, e.id)?;
        Ok(global::Edge {
            i: e.i,
            j: e.j,
            index_i_from_j: &stored.i_from_j.index,
            quality_j: &stored.i_from_j.quality,
            index_j_from_i: &stored.j_from_i.index,
            quality_i: &stored.j_from_i.quality,
        })
    };
    let of_keyframes = graph.keyframes.iter().zip(graph.start).map(of_keyframe);
    let of_edges = graph.edges.iter().map(of_edge);
    Ok((
        of_keyframes.collect::<Result<_, DeviceError>>()?,
        of_edges.collect::<Result<_, DeviceError>>()?,
    ))
}

impl MappingDevice for Mapping {
    fn shape(&self) -> &NetworkShape {
        &self.shape
    }

    fn accept_keyframe(&mut self, id: u32, handle: &Handle) -> Result<(), DeviceError> {
        let item = self.hand_off.get(handle)?;
        let frame = item.frame;
        let (image, features) = frame.ok_or(unknown("frame under handle", handle.number()))?;
        let stored = Stored {
            image,
            features,
            points: self.constrained(&item.pointmap),
            confidence: Arc::clone(&item.pointmap.confidence),
        };
        self.keyframes.insert(id, stored);
        Ok(())
    }

    fn accept_pointmap(&mut self, id: u32, handle: &Handle) -> Result<(), DeviceError> {
        let pointmap = self.hand_off.get(handle)?.pointmap;
        let points = self.constrained(&pointmap);
        let stored = self.keyframes.get_mut(&id).ok_or(unknown("keyframe", id))?;
        stored.points = points;
        stored.confidence = Arc::clone(&pointmap.confidence);
        Ok(())
    }

    fn move_points(&mut self, id: u32, motion: &Sim3) -> Result<(), DeviceError> {
        let stored = self.keyframes.get_mut(&id).ok_or(unknown("keyframe", id))?;
        if let Some(mover) = &mut self.mover {
            let points = Arc::make_mut(&mut stored.points);
            mover.run(points, &stored.confidence, motion);
        }
        Ok(())
    }

    fn drop_keyframe(&mut self, id: u32) {
        self.keyframes.remove(&id);
        if let Some(places) = &mut self.places {
            places.remove(id);
        }
    }

    fn has_place_recognition(&self) -> bool {
        self.places.is_some()
    }

    fn query_places(
        &mut self,
        id: u32,
        limit: usize,
        hits: &mut Vec<Hit>,
    ) -> Result<(), DeviceError> {
        hits.clear();
        let features = Arc::clone(&keyframe(&self.keyframes, id)?.features);
        if let Some(places) = &mut self.places {
            let min_score = self.config.retrieval.min_thresh;
            places.query(id, &features, limit, min_score, hits);
        }
        Ok(())
    }

    fn set_cancel(&mut self, cancel: &CancelToken) {
        self.global.set_cancel(cancel);
        self.cancel = cancel.clone();
    }

    fn insert_place(&mut self, id: u32) -> Result<(), DeviceError> {
        if let Some(places) = &mut self.places {
            places.insert(id);
        }
        Ok(())
    }

    /// Makes edges sequentially: a single pair already uses all cores.
    fn make_edges(
        &mut self,
        pairs: &[(u32, u32)],
        made: &mut Vec<NewEdge>,
    ) -> Result<(), DeviceError> {
        let first = made.len();
        for &(i, j) in pairs {
            if self.cancel.is_cancelled() {
                break;
            }
            match self.make_edge(i, j) {
                Ok(edge) => made.push(edge),
                Err(error) => {
                    for edge in made.drain(first..) {
                        self.edges.remove(&edge.id);
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn relative_poses(&mut self, edge: EdgeId) -> Result<TwoWay, DeviceError> {
        Ok(TwoWay {
            i_from_j: self.relative_pose(edge, |e| (e.i, e.j, &e.j_from_i))?,
            j_from_i: self.relative_pose(edge, |e| (e.j, e.i, &e.i_from_j))?,
        })
    }

    fn drop_edge(&mut self, edge: EdgeId) {
        self.edges.remove(&edge);
    }

    fn coverage(
        &mut self,
        id: u32,
        views: &[NeighbourView],
        min_ratio: f32,
    ) -> Result<Coverage, DeviceError> {
        let stored = keyframe(&self.keyframes, id)?;
        let view = |view: &NeighbourView| {
            let edge = edge(&self.edges, view.edge)?;
            let (other, matches) = match id {
                i if i == edge.i => (edge.j, &edge.j_from_i),
                j if j == edge.j => (edge.i, &edge.i_from_j),
                _ => return Err(unknown("edge of this keyframe", view.edge.0)),
            };
            Ok(coverage::View {
                index: &matches.index,
                quality: &matches.quality,
                points: &keyframe(&self.keyframes, other)?.points,
                scale: view.scale,
            })
        };
        let views: Vec<_> = views.iter().map(view).collect::<Result<_, DeviceError>>()?;
        let limits = coverage::Limits {
            c_conf: self.config.local_opt.c_conf,
            q_conf: self.config.local_opt.q_conf,
            min_ratio,
        };
        let (points, confidence) = (&stored.points, &stored.confidence);
        let counts = &mut self.counts;
        Ok(coverage(points, confidence, &views, &limits, counts))
    }

    fn solve(
        &mut self,
        graph: &PoseGraph<'_>,
        poses: &mut [Sim3],
    ) -> Result<Result<GlobalReport, SolveError>, DeviceError> {
        let (keyframes, edges) = views(&self.keyframes, &self.edges, graph)?;
        let residual = GlobalResidual::of(self.config.local_opt.residual, self.intrinsics);
        let (w, h) = (self.shape.width, self.shape.height);
        Ok(self.global.solve(
            &keyframes,
            &edges,
            graph.factors,
            graph.priors,
            residual,
            w,
            h,
            graph.params,
            poses,
        ))
    }

    fn equations(
        &mut self,
        graph: &PoseGraph<'_>,
        dst: &mut Vec<EdgeEquations>,
    ) -> Result<Result<(), SolveError>, DeviceError> {
        let (keyframes, edges) = views(&self.keyframes, &self.edges, graph)?;
        let residual = GlobalResidual::of(self.config.local_opt.residual, self.intrinsics);
        let (w, h) = (self.shape.width, self.shape.height);
        let found = self
            .global
            .equations(&keyframes, &edges, residual, w, h, graph.params);
        Ok(found.map(|found| *dst = found))
    }

    fn read_keyframe(&self, id: u32) -> Result<KeyframeBulk, DeviceError> {
        let stored = keyframe(&self.keyframes, id)?;
        Ok(KeyframeBulk {
            image: Arc::clone(&stored.image),
            points: Arc::clone(&stored.points),
            confidence: Arc::clone(&stored.confidence),
        })
    }

    fn borrow_keyframe(&mut self, id: u32) -> Result<Handle, DeviceError> {
        let stored = keyframe(&self.keyframes, id)?;
        Ok(self.hand_off.put(HandOffItem {
            frame: Some((Arc::clone(&stored.image), Arc::clone(&stored.features))),
            depth: Arc::default(),
            pointmap: Arc::new(Pointmap {
                points: Arc::clone(&stored.points),
                confidence: Arc::clone(&stored.confidence),
            }),
        }))
    }

    fn content_formats(&self) -> ContentFormats {
        ContentFormats {
            confidence: FloatFormat::F32,
            features: FloatFormat::F32,
        }
    }

    fn export_keyframe(&self, id: u32, dst: &mut KeyframeContent) -> Result<(), DeviceError> {
        let stored = keyframe(&self.keyframes, id)?;
        dst.image.clone_from(&stored.image.data);
        dst.points.clone_from(&stored.points);
        dst.confidence = Floats::F32(stored.confidence.to_vec());
        dst.features = Floats::F32(stored.features.to_vec());
        Ok(())
    }

    fn import_keyframe(&mut self, id: u32, content: &KeyframeContent) -> Result<(), DeviceError> {
        content.check(NAME, &self.shape)?;
        let image = content.network_image(NAME, &self.shape)?;
        let stored = Stored {
            image: Arc::new(image),
            features: Arc::new(content.features.to_f32()),
            points: Arc::new(content.points.clone()),
            confidence: Arc::new(content.confidence.to_f32()),
        };
        self.keyframes.insert(id, stored);
        Ok(())
    }

    fn encode_keyframe(&mut self, content: &mut KeyframeContent) -> Result<(), DeviceError> {
        let image = content.network_image(NAME, &self.shape)?;
        let mut features = vec![0.0; self.shape.tokens * self.shape.feature_dim];
        self.backend.encode(&image, &mut features)?;
        content.features = Floats::F32(features);
        Ok(())
    }

    fn export_edge(&self, id: EdgeId, dst: &mut EdgeContent) -> Result<(), DeviceError> {
        let stored = edge(&self.edges, id)?;
        dst.i_from_j.clone_from(&stored.i_from_j);
        dst.j_from_i.clone_from(&stored.j_from_i);
        Ok(())
    }

    fn import_edge(
        &mut self,
        i: u32,
        j: u32,
        content: &EdgeContent,
    ) -> Result<EdgeId, DeviceError> {
        content.check(NAME, self.shape.pixels())?;
        keyframe(&self.keyframes, i)?;
        keyframe(&self.keyframes, j)?;
        let id = EdgeId(self.next_edge);
        self.next_edge += 1;
        let edge = Edge {
            i,
            j,
            i_from_j: content.i_from_j.clone(),
            j_from_i: content.j_from_i.clone(),
        };
        self.edges.insert(id, edge);
        Ok(id)
    }

    fn reset(&mut self) {
        self.keyframes.clear();
        self.edges.clear();
        if let Some(places) = &mut self.places {
            places.clear();
        }
    }
}
