//! The map's keyframes and edges in ordinary memory.

use super::edges::{Edge, EdgeMaker, Matches};
use super::exchange::{Exchange, Pointmap, Thing};
use super::places::Places;
use super::{NAME, unknown};
use crate::compute::device::{
    ContentFormats, DeviceError, EdgeContent, EdgeId, Floats, GraphEdge, KeyframeBulk,
    KeyframeContent, MappingDevice, MatchContent, NewEdge, PoseGraph, Ticket, TwoWay,
};
use crate::compute::global::{self, GlobalReport, GlobalResidual, GlobalSolver, Keyframe};
use crate::compute::residual::SolveError;
use crate::compute::retrieval::{Hit, RetrievalModel};
use crate::compute::stop::Stop;
use crate::compute::store::FloatFormat;
use crate::compute::tracking::{Correspondences, PoseSolver, Residual, constrain_to_rays};
use crate::config::Config;
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

/// The mapping half.
pub struct Mapping {
    backend: Box<dyn Backend>,
    config: Arc<Config>,
    shape: NetworkShape,
    intrinsics: Option<Intrinsics>,
    exchange: Arc<Exchange>,
    places: Option<Places>,
    keyframes: FxHashMap<u32, Stored>,
    edges: FxHashMap<EdgeId, Edge>,
    next_edge: u32,
    maker: EdgeMaker,
    global: GlobalSolver,
    pair: PoseSolver,
    /// Qualities that passed the gate, of the relative pose in work.
    gated: Vec<f32>,
    stop: Stop,
}

impl Mapping {
    /// Without keyframes.
    pub fn new(
        backend: Box<dyn Backend>,
        config: Arc<Config>,
        intrinsics: Option<Intrinsics>,
        model: Option<Arc<RetrievalModel>>,
        exchange: Arc<Exchange>,
    ) -> Self {
        let shape = backend.shape().clone();
        Self {
            places: model.map(Places::new),
            maker: EdgeMaker::new(&shape),
            global: GlobalSolver::new(),
            pair: PoseSolver::new(shape.pixels()),
            gated: vec![0.0; shape.pixels()],
            stop: Stop::default(),
            backend,
            config,
            shape,
            intrinsics,
            exchange,
            keyframes: FxHashMap::default(),
            edges: FxHashMap::default(),
            next_edge: 0,
        }
    }

    /// Calibrated, only a pointmap's depths count: its points go onto their pixels' rays.
    fn constrained(&self, pointmap: &Pointmap) -> Arc<Vec<f32>> {
        let Some(k) = self.intrinsics else {
            return Arc::clone(&pointmap.points);
        };
        let (w, h) = (self.shape.width, self.shape.height);
        let mut on_rays = vec![0.0; pointmap.points.len()];
        match constrain_to_rays(&pointmap.points, k, w, h, &mut on_rays) {
            Ok(()) => Arc::new(on_rays),
            Err(error) => {
                tracing::error!("pointmap left as it is: {error}");
                Arc::clone(&pointmap.points)
            }
        }
    }

    fn make_edge(&mut self, i: u32, j: u32) -> Result<NewEdge, DeviceError> {
        let features =
            |id| Ok::<_, DeviceError>(Arc::clone(&keyframe(&self.keyframes, id)?.features));
        let (a, b) = (features(i)?, features(j)?);
        let (edge, match_fraction) = self.maker.make(
            self.backend.as_mut(),
            (i, &a),
            (j, &b),
            self.config.local_opt.q_conf,
            &self.config.matching,
        )?;
        let id = EdgeId(self.next_edge);
        self.next_edge += 1;
        self.edges.insert(id, edge);
        Ok(NewEdge { id, match_fraction })
    }

    /// `i_from_j` from `matches` (pixels of i in j) between the pointmaps of both.
    fn relative_pose(
        &mut self,
        id: EdgeId,
        direction: impl Fn(&Edge) -> (u32, u32, &Matches),
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

impl MappingDevice for Mapping {
    fn accept_keyframe(&mut self, id: u32, ticket: &Ticket) -> Result<(), DeviceError> {
        let thing = self.exchange.get(ticket)?;
        let frame = thing.frame;
        let (image, features) = frame.ok_or(unknown("frame under ticket", ticket.number()))?;
        let stored = Stored {
            image,
            features,
            points: self.constrained(&thing.pointmap),
            confidence: Arc::clone(&thing.pointmap.confidence),
        };
        self.keyframes.insert(id, stored);
        Ok(())
    }

    fn accept_pointmap(&mut self, id: u32, ticket: &Ticket) -> Result<(), DeviceError> {
        let pointmap = self.exchange.get(ticket)?.pointmap;
        let points = self.constrained(&pointmap);
        let stored = self.keyframes.get_mut(&id).ok_or(unknown("keyframe", id))?;
        stored.points = points;
        stored.confidence = Arc::clone(&pointmap.confidence);
        Ok(())
    }

    fn drop_keyframe(&mut self, id: u32) {
        self.keyframes.remove(&id);
    }

    fn knows_places(&self) -> bool {
        self.places.is_some()
    }

    fn look_up(&mut self, id: u32, hits: &mut Vec<Hit>) -> Result<(), DeviceError> {
        hits.clear();
        let features = Arc::clone(&keyframe(&self.keyframes, id)?.features);
        if let Some(places) = &mut self.places {
            places.look_up(id, &features, &self.config.retrieval, hits);
        }
        Ok(())
    }

    fn heed(&mut self, stop: &Stop) {
        self.global.heed(stop);
        self.stop = stop.clone();
    }

    fn remember(&mut self, id: u32) -> Result<(), DeviceError> {
        if let Some(places) = &mut self.places {
            places.remember(id);
        }
        Ok(())
    }

    /// One after the other: a processor's cores are busy with one pair already.
    fn make_edges(
        &mut self,
        pairs: &[(u32, u32)],
        made: &mut Vec<NewEdge>,
    ) -> Result<(), DeviceError> {
        let first = made.len();
        for &(i, j) in pairs {
            if self.stop.is_asked() {
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

    fn solve(
        &mut self,
        graph: &PoseGraph<'_>,
        poses: &mut [Sim3],
    ) -> Result<Result<GlobalReport, SolveError>, DeviceError> {
        let of_keyframe = |(&id, &world_from_camera)| {
            let stored = keyframe(&self.keyframes, id)?;
            Ok(Keyframe {
                points: &stored.points,
                confidence: &stored.confidence,
                world_from_camera,
            })
        };
        let keyframes = graph.keyframes.iter().zip(graph.start).map(of_keyframe);
        let keyframes: Vec<Keyframe<'_>> = keyframes.collect::<Result<_, DeviceError>>()?;
        let of_edge = |e: &GraphEdge| {
            let stored = edge(&self.edges, e.id)?;
            Ok(global::Edge {
                i: e.i,
                j: e.j,
                index_i_from_j: &stored.i_from_j.index,
                valid_j: &stored.i_from_j.valid,
                quality_j: &stored.i_from_j.quality,
                index_j_from_i: &stored.j_from_i.index,
                valid_i: &stored.j_from_i.valid,
                quality_i: &stored.j_from_i.quality,
            })
        };
        let edges = graph.edges.iter().map(of_edge);
        let edges: Vec<global::Edge<'_>> = edges.collect::<Result<_, DeviceError>>()?;
        let residual = GlobalResidual::of(self.config.local_opt.residual, self.intrinsics);
        let (w, h) = (self.shape.width, self.shape.height);
        Ok(self.global.solve(
            &keyframes,
            &edges,
            graph.priors,
            residual,
            w,
            h,
            graph.params,
            poses,
        ))
    }

    fn read_keyframe(&self, id: u32) -> Result<KeyframeBulk, DeviceError> {
        let stored = keyframe(&self.keyframes, id)?;
        Ok(KeyframeBulk {
            image: Arc::clone(&stored.image),
            points: Arc::clone(&stored.points),
            confidence: Arc::clone(&stored.confidence),
        })
    }

    fn lend_keyframe(&mut self, id: u32) -> Result<Ticket, DeviceError> {
        let stored = keyframe(&self.keyframes, id)?;
        Ok(self.exchange.put(Thing {
            frame: Some((Arc::clone(&stored.image), Arc::clone(&stored.features))),
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
        let mut image = RgbImage::new(self.shape.width, self.shape.height);
        image.data.clone_from(&content.image);
        let stored = Stored {
            image: Arc::new(image),
            features: Arc::new(content.features.to_f32()),
            points: Arc::new(content.points.clone()),
            confidence: Arc::new(content.confidence.to_f32()),
        };
        self.keyframes.insert(id, stored);
        Ok(())
    }

    fn export_edge(&self, id: EdgeId, dst: &mut EdgeContent) -> Result<(), DeviceError> {
        let stored = edge(&self.edges, id)?;
        let ways = [
            (&stored.i_from_j, &mut dst.i_from_j),
            (&stored.j_from_i, &mut dst.j_from_i),
        ];
        for (from, to) in ways {
            to.index.clone_from(&from.index);
            to.valid.clone_from(&from.valid);
            to.quality.clone_from(&from.quality);
        }
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
        let way = |from: &MatchContent| Matches {
            index: from.index.clone(),
            valid: from.valid.clone(),
            quality: from.quality.clone(),
        };
        let id = EdgeId(self.next_edge);
        self.next_edge += 1;
        let edge = Edge {
            i,
            j,
            i_from_j: way(&content.i_from_j),
            j_from_i: way(&content.j_from_i),
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
