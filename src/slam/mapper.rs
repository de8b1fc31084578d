//! The mapping side: keyframes, edges, loop closure, relocalisation and global optimisation
//! (spec 6 and 7). Runs inline or in its own thread; it is the same code and the same order.

use super::graph::{EdgeMaker, GraphEdge};
use super::keyframe::{Anchor, KeyframeData, Pointmap, PoseTable};
use super::places::Places;
use super::retrieval::RetrievalModel;
use crate::compute::global::{Edge, GlobalResidual, GlobalSolver, Keyframe, PosePrior};
use crate::compute::tracking::{Correspondences, PoseSolver, Residual, constrain_to_rays};
use crate::config::{Config, Loops};
use crate::geometry::{Intrinsics, Sim3, Tangent};
use crate::inference::{Backend, InferenceError, NetworkShape};
use arc_swap::ArcSwap;
use std::sync::Arc;

/// A keyframe that the tracker hands over.
pub struct KeyframeEvent {
    /// Fixed part.
    pub data: Arc<KeyframeData>,
    /// Its first pointmap.
    pub pointmap: Pointmap,
    /// Where it is; `None` starts a new submap at `start`.
    pub anchor: Option<Anchor>,
    /// Pose of the first keyframe of a submap.
    pub start: Sim3,
    /// The final pointmap of the keyframe before it.
    pub finished: Option<(u32, Pointmap)>,
}

/// A lost frame that asks where it is.
pub struct RelocaliseRequest {
    /// The frame as the keyframe that it becomes if it is found.
    pub data: Arc<KeyframeData>,
    /// Its mono pointmap.
    pub pointmap: Pointmap,
    /// The final pointmap of the keyframe before it.
    pub finished: Option<(u32, Pointmap)>,
}

/// What became of a relocalisation.
pub struct RelocaliseReply {
    /// The frame.
    pub data: Arc<KeyframeData>,
    /// Its mono pointmap, given back.
    pub pointmap: Pointmap,
    /// Whether it was found; then it is a keyframe now.
    pub found: bool,
}

/// Counters for status and reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MappingCounts {
    /// Edges between keyframes that do not follow each other.
    pub loop_edges: usize,
    /// Candidates that retrieval proposed and matching refused.
    pub refused_edges: usize,
    /// Frames found again.
    pub relocalised: usize,
    /// Submaps joined to an older one.
    pub merged_submaps: usize,
    /// Global solves that failed and changed nothing.
    pub failed_solves: usize,
}

struct MapKeyframe {
    data: Arc<KeyframeData>,
    pointmap: Arc<Pointmap>,
    submap: u32,
    /// The keyframe before it and its pose then, for a prior when their edge is too weak (B44).
    chain: Option<Anchor>,
}

/// The map as it is built.
pub struct Mapper {
    backend: Box<dyn Backend>,
    config: Arc<Config>,
    shape: NetworkShape,
    intrinsics: Option<Intrinsics>,
    places: Option<Places>,
    keyframes: Vec<MapKeyframe>,
    poses: Vec<Sim3>,
    edges: Vec<GraphEdge>,
    maker: EdgeMaker,
    global: GlobalSolver,
    pair: PoseSolver,
    table: Arc<ArcSwap<PoseTable>>,
    counts: MappingCounts,
}

impl Mapper {
    /// An empty map. Without a retrieval model only consecutive keyframes are connected and a lost
    /// frame is looked for among the newest keyframes.
    pub fn new(
        backend: Box<dyn Backend>,
        config: Arc<Config>,
        intrinsics: Option<Intrinsics>,
        model: Option<Arc<RetrievalModel>>,
        table: Arc<ArcSwap<PoseTable>>,
    ) -> Self {
        let shape = backend.shape().clone();
        Self {
            places: model.map(Places::new),
            maker: EdgeMaker::new(&shape),
            global: GlobalSolver::new(),
            pair: PoseSolver::new(shape.pixels()),
            backend,
            config,
            shape,
            intrinsics,
            keyframes: Vec::new(),
            poses: Vec::new(),
            edges: Vec::new(),
            table,
            counts: MappingCounts::default(),
        }
    }
}

impl Mapper {
    /// Counters so far.
    pub fn counts(&self) -> MappingCounts {
        self.counts
    }

    /// Forgets everything (a map of which nothing was ever tracked).
    pub fn reset(&mut self) {
        self.keyframes.clear();
        self.poses.clear();
        self.edges.clear();
        if let Some(places) = &mut self.places {
            places.clear();
        }
        self.publish();
    }

    /// Takes a keyframe's last pointmap over.
    pub fn finish_keyframe(&mut self, (id, mut pointmap): (u32, Pointmap)) {
        self.constrain(&mut pointmap);
        if let Some(keyframe) = self.keyframes.get_mut(id as usize) {
            keyframe.pointmap = Arc::new(pointmap);
        }
    }

    /// Spec 6.3: candidates, edges, one global solve.
    pub fn add_keyframe(&mut self, event: KeyframeEvent) -> Result<(), InferenceError> {
        if let Some(finished) = event.finished {
            self.finish_keyframe(finished);
        }
        let id = event.data.id;
        let (pose, submap) = match &event.anchor {
            Some(a) => (
                self.pose_of(a.keyframe) * a.keyframe_from_camera,
                self.keyframes
                    .get(a.keyframe as usize)
                    .map_or(0, |k| k.submap),
            ),
            None => (event.start, self.next_submap()),
        };
        let mut pointmap = event.pointmap;
        self.constrain(&mut pointmap);
        let mut candidates: Vec<u32> = event.anchor.iter().map(|a| a.keyframe).collect();
        for back in 2..=self.config.local_opt.neighbours as u32 {
            let same = |c: &u32| {
                let of = |k: u32| self.keyframes.get(k as usize).map(|k| k.submap);
                of(*c) == Some(submap)
            };
            candidates.extend(id.checked_sub(back).filter(same));
        }
        let alike = self.look_up(&event.data.features);
        if self.config.loops == Loops::On {
            candidates.extend(alike);
        }
        candidates.retain(|&c| c != id);
        let mut seen = Vec::with_capacity(candidates.len());
        candidates.retain(|c| {
            !seen.contains(c) && {
                seen.push(*c);
                true
            }
        });
        self.insert(event.data, pointmap, pose, submap, event.anchor);

        let chain = event.anchor.map(|a| a.keyframe);
        for candidate in candidates {
            let edge = self.make_edge(candidate, id)?;
            let consecutive = chain == Some(candidate);
            if !consecutive && !self.holds(&edge) {
                self.counts.refused_edges += 1;
                continue;
            }
            if !consecutive {
                self.counts.loop_edges += 1;
                self.join_submaps(&edge);
            }
            self.edges.push(edge);
        }
        self.solve();
        self.publish();
        Ok(())
    }

    /// Spec 7.5, with the rules of B31, B32, B33, B38 and B43.
    pub fn relocalise(
        &mut self,
        request: RelocaliseRequest,
    ) -> Result<RelocaliseReply, InferenceError> {
        if let Some(finished) = request.finished {
            self.finish_keyframe(finished);
        }
        let id = request.data.id;
        let reply = |data, pointmap, found| RelocaliseReply {
            data,
            pointmap,
            found,
        };
        let candidates = match self.places {
            Some(_) => self.look_up(&request.data.features),
            None => self.newest(self.config.retrieval.k),
        };
        let mut edges = Vec::with_capacity(candidates.len());
        for &candidate in &candidates {
            let from = self.keyframes[candidate as usize].data.clone();
            edges.push(self.maker.make(
                self.backend.as_mut(),
                (id, &request.data.features),
                (candidate, &from.features),
                self.config.local_opt.q_conf,
                &self.config.matching,
            )?);
        }
        let mut pointmap = request.pointmap.clone();
        self.constrain(&mut pointmap);
        let map = |mapper: &Self, id: u32| Arc::clone(&mapper.keyframes[id as usize].pointmap);
        let proposed = edges.len();
        edges.retain(|edge| {
            let known = map(self, edge.j);
            edge.match_fraction >= self.config.reloc.min_match_frac
                && self.agrees_both_ways(edge, &pointmap.points, &known.points)
        });
        let enough = !self.config.reloc.strict || edges.len() == proposed;
        // The best accepted edge places the frame (B43).
        let best = edges
            .iter()
            .max_by(|a, b| a.match_fraction.total_cmp(&b.match_fraction));
        let (Some(best), true) = (best, enough) else {
            return Ok(reply(request.data, request.pointmap, false));
        };
        let target = best.j;
        let known = map(self, target);
        let target_from_frame = self.relative_pose(
            &best.index_i_from_j,
            &best.quality_j,
            &known.points,
            &pointmap.points,
        );
        let pose = self.pose_of(target) * target_from_frame.unwrap_or_default();
        let submap = self.keyframes[target as usize].submap;
        self.insert(Arc::clone(&request.data), pointmap, pose, submap, None);
        self.counts.relocalised += 1;
        self.edges.append(&mut edges);
        self.solve();
        self.publish();
        Ok(reply(request.data, request.pointmap, true))
    }

    /// Keyframe records of the map as it stands.
    pub fn records(&self) -> Vec<crate::map::KeyframeRecord> {
        self.keyframes
            .iter()
            .zip(&self.poses)
            .map(|(k, pose)| crate::map::KeyframeRecord {
                id: k.data.id,
                frame_index: k.data.frame_index,
                stamp: k.data.stamp,
                submap: k.submap,
                world_from_camera: *pose,
                image: Arc::clone(&k.data.image),
                points: Arc::new(k.pointmap.points.clone()),
                confidence: Arc::new(k.pointmap.confidence.clone()),
            })
            .collect()
    }

    fn pose_of(&self, id: u32) -> Sim3 {
        self.poses.get(id as usize).copied().unwrap_or_default()
    }

    fn next_submap(&self) -> u32 {
        self.keyframes
            .iter()
            .map(|k| k.submap + 1)
            .max()
            .unwrap_or(0)
    }

    fn newest(&self, k: usize) -> Vec<u32> {
        self.keyframes
            .iter()
            .rev()
            .take(k)
            .map(|k| k.data.id)
            .collect()
    }

    /// Calibrated, only a pointmap's depths count: its points go onto their pixels' rays.
    fn constrain(&self, pointmap: &mut Pointmap) {
        let Some(k) = self.intrinsics else { return };
        let (w, h) = (self.shape.width, self.shape.height);
        let mut on_rays = vec![0.0; pointmap.points.len()];
        match constrain_to_rays(&pointmap.points, k, w, h, &mut on_rays) {
            Ok(()) => pointmap.points = on_rays,
            Err(error) => tracing::error!("pointmap left as it is: {error}"),
        }
    }

    fn insert(
        &mut self,
        data: Arc<KeyframeData>,
        pointmap: Pointmap,
        pose: Sim3,
        submap: u32,
        chain: Option<Anchor>,
    ) {
        if let Some(places) = &mut self.places {
            places.remember(data.id);
        }
        self.keyframes.push(MapKeyframe {
            data,
            pointmap: Arc::new(pointmap),
            submap,
            chain,
        });
        self.poses.push(pose);
    }

    /// Keyframes that show the place of `features`, which stay the frame in question.
    fn look_up(&mut self, features: &[f32]) -> Vec<u32> {
        let Some(places) = &mut self.places else {
            return Vec::new();
        };
        let hits = places.look_up(features, &self.config.retrieval);
        tracing::debug!(?hits, "places");
        hits.iter().map(|hit| hit.id).collect()
    }

    fn make_edge(&mut self, i: u32, j: u32) -> Result<GraphEdge, InferenceError> {
        let (a, b) = (
            &self.keyframes[i as usize].data,
            &self.keyframes[j as usize].data,
        );
        self.maker.make(
            self.backend.as_mut(),
            (i, &a.features),
            (j, &b.features),
            self.config.local_opt.q_conf,
            &self.config.matching,
        )
    }

    /// Whether an edge that nothing but its matches speaks for may enter the graph.
    fn holds(&mut self, edge: &GraphEdge) -> bool {
        if edge.match_fraction < self.config.local_opt.min_match_frac {
            return false;
        }
        let map = |id: u32| Arc::clone(&self.keyframes[id as usize].pointmap);
        let (points_i, points_j) = (map(edge.i), map(edge.j));
        self.agrees_both_ways(edge, &points_i.points, &points_j.points)
    }

    /// Whether both directions of an edge, solved apart, tell the same relative pose. Where two views
    /// share nothing the network makes matches up, and it makes up different ones each way.
    fn agrees_both_ways(&mut self, edge: &GraphEdge, points_i: &[f32], points_j: &[f32]) -> bool {
        let limit = self.config.local_opt.two_way_degrees;
        if limit == 0.0 {
            return true;
        }
        let there = self.relative_pose(&edge.index_j_from_i, &edge.quality_i, points_i, points_j);
        let back = self.relative_pose(&edge.index_i_from_j, &edge.quality_j, points_j, points_i);
        let (Some(i_from_j), Some(j_from_i)) = (there, back) else {
            return false;
        };
        let around = i_from_j * j_from_i;
        let degrees = around.rotation.angle().to_degrees();
        tracing::debug!(
            i = edge.i,
            j = edge.j,
            degrees,
            scale = around.scale,
            "edge both ways"
        );
        degrees <= limit && around.scale.ln().abs() <= TWO_WAY_LOG_SCALE
    }

    /// `i_from_j` from one direction's matches (`index`: pixels of i to pixels of j) between the
    /// pointmaps of both.
    fn relative_pose(
        &mut self,
        index: &[u32],
        quality: &[f32],
        points_i: &[f32],
        points_j: &[f32],
    ) -> Option<Sim3> {
        let q_conf = self.config.local_opt.q_conf;
        let gated = |&q: &f32| if q > q_conf { q } else { 0.0 };
        let quality: Vec<f32> = quality.iter().map(gated).collect();
        let problem = Correspondences {
            frame_points: points_j,
            keyframe_points: points_i,
            index,
            quality: &quality,
            width: self.shape.width,
            height: self.shape.height,
        };
        let residual = self.intrinsics.map_or(Residual::Rays, Residual::Calibrated);
        let start = Sim3::identity();
        let solved = self
            .pair
            .solve(&problem, residual, &start, &self.config.tracking);
        solved.ok().map(|s| s.keyframe_from_frame)
    }

    /// When an edge connects two submaps, the newer one moves as a whole to where the edge says.
    fn join_submaps(&mut self, edge: &GraphEdge) {
        let (i, j) = (edge.i as usize, edge.j as usize);
        let (a, b) = (self.keyframes[i].submap, self.keyframes[j].submap);
        if a == b {
            return;
        }
        let (pi, pj) = (
            Arc::clone(&self.keyframes[i].pointmap),
            Arc::clone(&self.keyframes[j].pointmap),
        );
        let Some(i_from_j) = self.relative_pose(
            &edge.index_j_from_i,
            &edge.quality_i,
            &pi.points,
            &pj.points,
        ) else {
            return;
        };
        // Where the edge puts j, in i's world; the newer submap follows.
        let (moved, kept, correction) = if a < b {
            (b, a, self.poses[i] * i_from_j * self.poses[j].inverse())
        } else {
            (
                a,
                b,
                self.poses[j] * i_from_j.inverse() * self.poses[i].inverse(),
            )
        };
        for (keyframe, pose) in self.keyframes.iter_mut().zip(&mut self.poses) {
            if keyframe.submap == moved {
                keyframe.submap = kept;
                *pose = correction * *pose;
            }
        }
        self.counts.merged_submaps += 1;
        tracing::info!("submap {moved} joined submap {kept} through keyframes {i} and {j}");
    }

    /// One global solve over all edges; on failure every pose stays as it was.
    fn solve(&mut self) {
        let keyframes: Vec<Keyframe<'_>> = self
            .keyframes
            .iter()
            .zip(&self.poses)
            .map(|(k, pose)| Keyframe {
                points: &k.pointmap.points,
                confidence: &k.pointmap.confidence,
                world_from_camera: *pose,
            })
            .collect();
        let edges: Vec<Edge<'_>> = self
            .edges
            .iter()
            .map(|e| Edge {
                i: e.i as usize,
                j: e.j as usize,
                index_i_from_j: &e.index_i_from_j,
                valid_j: &e.valid_j,
                quality_j: &e.quality_j,
                index_j_from_i: &e.index_j_from_i,
                valid_i: &e.valid_i,
                quality_i: &e.quality_i,
            })
            .collect();
        let weak = self.config.local_opt.min_match_frac;
        let mut priors = Vec::new();
        for (j, keyframe) in self.keyframes.iter().enumerate() {
            let Some(anchor) = &keyframe.chain else {
                continue;
            };
            let strong = self
                .edges
                .iter()
                .any(|e| e.joins(anchor.keyframe, j as u32) && e.match_fraction >= weak);
            if !strong {
                priors.push(PosePrior {
                    i: anchor.keyframe as usize,
                    j,
                    i_from_j: anchor.keyframe_from_camera,
                    information: Tangent::repeat(CHAIN_INFORMATION),
                });
            }
        }
        let residual = match self.intrinsics {
            Some(k) => GlobalResidual::Calibrated(k),
            None => GlobalResidual::Rays,
        };
        let mut poses = self.poses.clone();
        let (w, h) = (self.shape.width, self.shape.height);
        let solved = self.global.solve(
            &keyframes,
            &edges,
            &priors,
            residual,
            w,
            h,
            &self.config.local_opt,
            &mut poses,
        );
        match solved {
            Ok(report) => {
                tracing::debug!(
                    ?report,
                    keyframes = poses.len(),
                    edges = edges.len(),
                    "global solve"
                );
                self.poses = poses;
            }
            Err(error) => {
                self.counts.failed_solves += 1;
                tracing::warn!("global optimisation failed, poses stay as they were: {error}");
            }
        }
    }

    fn publish(&self) {
        let version = self.table.load().version + 1;
        self.table.store(Arc::new(PoseTable {
            version,
            poses: self.poses.clone(),
            submaps: self.keyframes.iter().map(|k| k.submap).collect(),
            edges: self.edges.iter().map(|e| (e.i, e.j)).collect(),
        }));
    }
}

/// Most disagreement of scale, as a logarithm, between an edge's two directions: about 15 %. True edges
/// of the mini model stay under 5 %, made-up ones are off by 10 to 40 %.
const TWO_WAY_LOG_SCALE: f64 = 0.15;

/// Information of a chain prior: weak beside any real edge (a thousand matches at one sigma weigh
/// 1e3 or more), strong enough to keep the normal matrix regular.
const CHAIN_INFORMATION: f64 = 1.0;
