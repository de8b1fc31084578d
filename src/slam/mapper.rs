//! The mapping side: keyframes, edges, loop closure, relocalisation and global optimisation
//! (spec 6 and 7). Runs inline or in its own thread; it is the same code and the same order.

use super::keyframe::{Anchor, PoseTable};
use super::window::{Limits, Window};
use crate::compute::device::{
    DeviceError, EdgeId, GraphEdge, MappingDevice, NewEdge, PoseGraph, Ticket, TwoWay,
};
use crate::compute::global::PosePrior;
use crate::compute::retrieval::Hit;
use crate::compute::stop::Stop;
use crate::config::{Config, LocalOptConfig, Loops};
use crate::geometry::{Sim3, Tangent};
use crate::map::{EdgeKind, MapEdge};
use crate::time::Stamp;
use arc_swap::ArcSwap;
use std::sync::Arc;

/// What never changes about a keyframe.
#[derive(Debug, Clone, Copy)]
pub struct KeyframeInfo {
    /// Its number: keyframes are counted from 0 in order of creation.
    pub id: u32,
    /// Index in the source.
    pub frame_index: usize,
    /// The image's time.
    pub stamp: Stamp,
}

/// A keyframe that tracking left, with its final pointmap.
pub type Finished = (u32, Ticket);

/// A keyframe that the tracker hands over.
pub struct KeyframeEvent {
    /// Which.
    pub info: KeyframeInfo,
    /// Its image, features and first pointmap.
    pub ticket: Ticket,
    /// Where it is; `None` starts a new submap at `start`.
    pub anchor: Option<Anchor>,
    /// Pose of the first keyframe of a submap.
    pub start: Sim3,
    /// The keyframe before it.
    pub finished: Option<Finished>,
}

/// A lost frame that asks where it is.
pub struct RelocaliseRequest {
    /// The frame as the keyframe that it becomes if it is found.
    pub info: KeyframeInfo,
    /// Its image, features and mono pointmap.
    pub ticket: Ticket,
    /// The keyframe before it.
    pub finished: Option<Finished>,
    /// Whether it becomes a keyframe where it is found. If not, the map stays as it is.
    pub grows: bool,
}

/// What became of a relocalisation, or a keyframe that was asked for.
pub struct RelocaliseReply {
    /// The frame.
    pub info: KeyframeInfo,
    /// Whether it was found, and how tracking goes on.
    pub found: Option<Found>,
}

/// Where a lost frame was found.
pub enum Found {
    /// It is a keyframe now; this is what the request held.
    Keyframe(Ticket),
    /// At this place; the ticket stands for the keyframe that it is relative to.
    At(Anchor, Ticket),
}

/// Counters for status and reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MappingCounts {
    /// Edges to keyframes that place recognition proposed.
    pub loop_edges: usize,
    /// Edges of relocalised frames.
    pub relocalisation_edges: usize,
    /// Edges to keyframes shortly before that are not the last one (`local_opt.neighbours`).
    pub neighbour_edges: usize,
    /// Candidates, of either kind, that matching refused.
    pub refused_edges: usize,
    /// Frames found again.
    pub relocalised: usize,
    /// Submaps joined to an older one.
    pub merged_submaps: usize,
    /// Global solves that failed and changed nothing.
    pub failed_solves: usize,
}

pub(super) struct MapKeyframe {
    pub(super) info: KeyframeInfo,
    pub(super) submap: u32,
    /// The keyframe before it and its pose then, for a prior when their edge is too weak (B44).
    pub(super) chain: Option<Anchor>,
}

/// An edge as the graph knows it.
pub(super) struct Link {
    pub(super) id: EdgeId,
    pub(super) i: u32,
    pub(super) j: u32,
    pub(super) kind: EdgeKind,
    pub(super) match_fraction: f32,
    /// Both directions' relative poses, once somebody has asked.
    pub(super) poses: Option<TwoWay>,
}

/// The map as it is built.
pub struct Mapper {
    pub(super) device: Box<dyn MappingDevice>,
    config: Arc<Config>,
    pub(super) keyframes: Vec<MapKeyframe>,
    pub(super) poses: Vec<Sim3>,
    pub(super) edges: Vec<Link>,
    /// How many of `edges` the last solve knew.
    pub(super) solved_edges: usize,
    hits: Vec<Hit>,
    table: Arc<ArcSwap<PoseTable>>,
    counts: MappingCounts,
    stop: Stop,
}

impl Mapper {
    /// An empty map. If the device knows no places, only keyframes that follow each other are connected
    /// and a lost frame is looked for among the newest keyframes.
    pub fn new(
        mut device: Box<dyn MappingDevice>,
        config: Arc<Config>,
        table: Arc<ArcSwap<PoseTable>>,
    ) -> Self {
        let stop = Stop::default();
        device.heed(&stop);
        Self {
            device,
            config,
            keyframes: Vec::new(),
            poses: Vec::new(),
            edges: Vec::new(),
            solved_edges: 0,
            hits: Vec::new(),
            table,
            counts: MappingCounts::default(),
            stop,
        }
    }

    /// What asks it not to begin another edge and to end a solve as it is: for whoever is about to forget
    /// the map.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Counters so far.
    pub fn counts(&self) -> MappingCounts {
        self.counts
    }

    /// Forgets everything (a map of which nothing was ever tracked).
    pub fn reset(&mut self) {
        self.keyframes.clear();
        self.poses.clear();
        self.edges.clear();
        self.solved_edges = 0;
        self.device.reset();
        self.publish();
    }

    /// Takes a keyframe's last pointmap over.
    pub fn finish_keyframe(&mut self, (id, ticket): Finished) -> Result<(), DeviceError> {
        match self.keyframes.get(id as usize) {
            Some(_) => self.device.accept_pointmap(id, &ticket),
            None => Ok(()),
        }
    }

    /// Spec 6.3: candidates, edges, one global solve.
    pub fn add_keyframe(&mut self, event: KeyframeEvent) -> Result<(), DeviceError> {
        if let Some(finished) = event.finished {
            self.finish_keyframe(finished)?;
        }
        let id = event.info.id;
        let (pose, submap) = match &event.anchor {
            Some(a) => (
                self.pose_of(a.keyframe) * a.keyframe_from_camera,
                self.submap_of(a.keyframe).unwrap_or(0),
            ),
            None => (event.start, self.next_submap()),
        };
        self.device.accept_keyframe(id, &event.ticket)?;
        self.look_up(id)?;
        let candidates = self.candidates(id, submap, event.anchor);
        self.insert(event.info, pose, submap, event.anchor)?;
        let wanted = candidates.iter().map(|&(other, kind)| (other, id, kind));
        for mut link in self.make_edges(wanted)? {
            let kind = link.kind;
            if kind != EdgeKind::Consecutive && !self.holds(&mut link)? {
                self.counts.refused_edges += 1;
                self.device.drop_edge(link.id);
                continue;
            }
            if kind != EdgeKind::Consecutive {
                self.join_submaps(&mut link)?;
            }
            self.add(link);
        }
        self.solve()?;
        self.publish();
        Ok(())
    }

    /// What a new keyframe should be connected with, each once: the keyframe that it was tracked
    /// against, those shortly before it, those that show the same place ([`Mapper::look_up`]).
    fn candidates(&self, id: u32, submap: u32, anchor: Option<Anchor>) -> Vec<(u32, EdgeKind)> {
        let chain = anchor.map(|a| (a.keyframe, EdgeKind::Consecutive));
        let neighbours = (2..=self.config.local_opt.neighbours as u32)
            .filter_map(|back| id.checked_sub(back))
            .filter(|&c| self.submap_of(c) == Some(submap))
            .map(|c| (c, EdgeKind::Neighbour));
        let alike = self.hits.iter().map(|hit| (hit.id, EdgeKind::Loop));
        let alike = alike.filter(|_| self.config.loops == Loops::On);
        let mut candidates: Vec<(u32, EdgeKind)> = Vec::new();
        for (candidate, kind) in chain.into_iter().chain(neighbours).chain(alike) {
            if candidate != id && candidates.iter().all(|(c, _)| *c != candidate) {
                candidates.push((candidate, kind));
            }
        }
        candidates
    }

    /// Spec 7.5, with the rules of B31, B32, B33, B38 and B43.
    pub fn relocalise(
        &mut self,
        request: RelocaliseRequest,
    ) -> Result<RelocaliseReply, DeviceError> {
        if let Some(finished) = request.finished {
            self.finish_keyframe(finished)?;
        }
        let RelocaliseRequest {
            info,
            ticket,
            grows,
            ..
        } = request;
        self.device.accept_keyframe(info.id, &ticket)?;
        let mut accepted = self.find(info)?;
        // The best accepted edge places the frame (B43).
        let best = accepted
            .iter_mut()
            .max_by(|a, b| a.match_fraction.total_cmp(&b.match_fraction));
        let Some(best) = best else {
            self.device.drop_keyframe(info.id);
            let found = None;
            return Ok(RelocaliseReply { info, found });
        };
        let target_from_frame = relative_poses(self.device.as_mut(), best)?.j_from_i;
        let anchor = Anchor {
            keyframe: best.j,
            keyframe_from_camera: target_from_frame.unwrap_or_default(),
        };
        self.counts.relocalised += 1;
        let found = if grows {
            self.connect(info, &anchor, accepted)?;
            Found::Keyframe(ticket)
        } else {
            for link in accepted {
                self.device.drop_edge(link.id);
            }
            self.device.drop_keyframe(info.id);
            Found::At(anchor, self.device.lend_keyframe(anchor.keyframe)?)
        };
        let found = Some(found);
        Ok(RelocaliseReply { info, found })
    }

    /// Lends the keyframe that `anchor` names, for a frame that is there.
    pub fn lend(
        &mut self,
        info: KeyframeInfo,
        anchor: Anchor,
    ) -> Result<RelocaliseReply, DeviceError> {
        let ticket = self.device.lend_keyframe(anchor.keyframe)?;
        let found = Some(Found::At(anchor, ticket));
        Ok(RelocaliseReply { info, found })
    }

    /// A lost frame that was found becomes a keyframe.
    fn connect(
        &mut self,
        info: KeyframeInfo,
        anchor: &Anchor,
        links: Vec<Link>,
    ) -> Result<(), DeviceError> {
        let target = anchor.keyframe;
        let pose = self.pose_of(target) * anchor.keyframe_from_camera;
        let submap = self.submap_of(target).unwrap_or(0);
        self.insert(info, pose, submap, None)?;
        for link in links {
            self.add(link);
        }
        self.solve()?;
        self.publish();
        Ok(())
    }

    /// Edges from a lost frame, which the device has as a keyframe already, to where it is in the map, all of
    /// them as that frame's `i`. None: it is nowhere in it.
    fn find(&mut self, info: KeyframeInfo) -> Result<Vec<Link>, DeviceError> {
        let candidates = self.whereabouts(info.id)?;
        let wanted = candidates
            .iter()
            .map(|&other| (info.id, other, EdgeKind::Relocalisation));
        let links = self.make_edges(wanted)?;
        let mut accepted = Vec::with_capacity(links.len());
        let mut refused = Vec::new();
        for mut link in links {
            let enough = link.match_fraction >= self.config.reloc.min_match_frac;
            if enough && self.agrees_both_ways(&mut link)? {
                accepted.push(link);
            } else {
                refused.push(link);
            }
        }
        let enough = !self.config.reloc.strict || refused.is_empty();
        if !enough {
            refused.append(&mut accepted);
        }
        for link in refused {
            self.device.drop_edge(link.id);
        }
        Ok(accepted)
    }

    /// Keyframes that a lost frame may be near.
    fn whereabouts(&mut self, id: u32) -> Result<Vec<u32>, DeviceError> {
        if self.device.knows_places() {
            self.look_up(id)?;
            return Ok(self.hits.iter().map(|hit| hit.id).collect());
        }
        let newest = self.keyframes.iter().rev().take(self.config.retrieval.k);
        Ok(newest.map(|k| k.info.id).collect())
    }

    fn pose_of(&self, id: u32) -> Sim3 {
        self.poses.get(id as usize).copied().unwrap_or_default()
    }

    fn submap_of(&self, id: u32) -> Option<u32> {
        self.keyframes.get(id as usize).map(|k| k.submap)
    }

    fn next_submap(&self) -> u32 {
        self.keyframes
            .iter()
            .map(|k| k.submap + 1)
            .max()
            .unwrap_or(0)
    }

    fn insert(
        &mut self,
        info: KeyframeInfo,
        pose: Sim3,
        submap: u32,
        chain: Option<Anchor>,
    ) -> Result<(), DeviceError> {
        self.device.remember(info.id)?;
        self.keyframes.push(MapKeyframe {
            info,
            submap,
            chain,
        });
        self.poses.push(pose);
        Ok(())
    }

    /// An edge that was accepted.
    fn add(&mut self, link: Link) {
        match link.kind {
            EdgeKind::Consecutive => {}
            EdgeKind::Neighbour => self.counts.neighbour_edges += 1,
            EdgeKind::Loop => self.counts.loop_edges += 1,
            EdgeKind::Relocalisation => self.counts.relocalisation_edges += 1,
        }
        self.edges.push(link);
    }

    /// Finds the keyframes that show the place of keyframe `id`, which stays the one in question.
    pub(super) fn look_up(&mut self, id: u32) -> Result<(), DeviceError> {
        self.device.look_up(id, &mut self.hits)?;
        tracing::debug!(hits = ?self.hits, "places");
        Ok(())
    }

    /// Edges from `i` to `j`, each of a kind, all at once: a GPU decodes several sooner than one by one.
    fn make_edges(
        &mut self,
        wanted: impl Iterator<Item = (u32, u32, EdgeKind)> + Clone,
    ) -> Result<Vec<Link>, DeviceError> {
        let pairs: Vec<(u32, u32)> = wanted.clone().map(|(i, j, _)| (i, j)).collect();
        let mut made = Vec::with_capacity(pairs.len());
        self.device.make_edges(&pairs, &mut made)?;
        let link = |(edge, (i, j, kind)): (NewEdge, _)| Link {
            id: edge.id,
            i,
            j,
            kind,
            match_fraction: edge.match_fraction,
            poses: None,
        };
        Ok(made.into_iter().zip(wanted).map(link).collect())
    }

    /// Whether an edge that nothing but its matches speaks for may enter the graph.
    fn holds(&mut self, link: &mut Link) -> Result<bool, DeviceError> {
        if link.match_fraction < self.config.local_opt.min_match_frac {
            return Ok(false);
        }
        self.agrees_both_ways(link)
    }

    /// Whether both directions of an edge, solved apart, tell the same relative pose. Where two views
    /// share nothing the network makes matches up, and it makes up different ones each way.
    fn agrees_both_ways(&mut self, link: &mut Link) -> Result<bool, DeviceError> {
        let limit = self.config.local_opt.two_way_degrees;
        if limit == 0.0 {
            return Ok(true);
        }
        let poses = relative_poses(self.device.as_mut(), link)?;
        let (Some(i_from_j), Some(j_from_i)) = (poses.i_from_j, poses.j_from_i) else {
            return Ok(false);
        };
        let around = i_from_j * j_from_i;
        let degrees = around.rotation.angle().to_degrees();
        tracing::debug!(
            i = link.i,
            j = link.j,
            degrees,
            scale = around.scale,
            "edge both ways"
        );
        Ok(degrees <= limit && around.scale.ln().abs() <= TWO_WAY_LOG_SCALE)
    }

    /// When an edge connects two submaps, the newer one moves as a whole to where the edge says.
    fn join_submaps(&mut self, link: &mut Link) -> Result<(), DeviceError> {
        let (i, j) = (link.i as usize, link.j as usize);
        let (Some(a), Some(b)) = (self.submap_of(link.i), self.submap_of(link.j)) else {
            return Ok(());
        };
        if a == b {
            return Ok(());
        }
        let Some(i_from_j) = relative_poses(self.device.as_mut(), link)?.i_from_j else {
            return Ok(());
        };
        // Where the edge puts j, in i's world; the newer submap follows.
        let (pose_i, pose_j) = (self.pose_of(link.i), self.pose_of(link.j));
        let (moved, kept, correction) = if a < b {
            (b, a, pose_i * i_from_j * pose_j.inverse())
        } else {
            (a, b, pose_j * i_from_j.inverse() * pose_i.inverse())
        };
        for (keyframe, pose) in self.keyframes.iter_mut().zip(&mut self.poses) {
            if keyframe.submap == moved {
                keyframe.submap = kept;
                *pose = correction * *pose;
            }
        }
        self.counts.merged_submaps += 1;
        tracing::info!("submap {moved} joined submap {kept} through keyframes {i} and {j}");
        Ok(())
    }

    /// One global solve over the window; on failure every pose stays as it was.
    fn solve(&mut self) -> Result<(), DeviceError> {
        let links: Vec<_> = self
            .edges
            .iter()
            .map(|e| (e.i as usize, e.j as usize))
            .collect();
        let priors = self.priors();
        let held: Vec<_> = priors.iter().map(|p| (p.i, p.j)).collect();
        let config = &self.config.local_opt;
        let count = self.keyframes.len();
        let window = Window::choose(
            count,
            &links,
            self.solved_edges,
            &held,
            config.pin,
            Limits::of(config),
        );
        let places = window.places(count);
        let keyframes: Vec<u32> = window.of(&self.keyframes).map(|k| k.info.id).collect();
        let start: Vec<Sim3> = window.of(&self.poses).copied().collect();
        let edges = window.edges.iter().filter_map(|&e| {
            let (i, j) = (places[links[e].0]?, places[links[e].1]?);
            let id = self.edges[e].id;
            Some(GraphEdge { id, i, j })
        });
        let edges: Vec<GraphEdge> = edges.collect();
        let priors = priors.iter().filter_map(|p| {
            let (i, j) = (places[p.i]?, places[p.j]?);
            Some(PosePrior { i, j, ..*p })
        });
        let graph = PoseGraph {
            keyframes: &keyframes,
            start: &start,
            edges: &edges,
            priors: &priors.collect::<Vec<_>>(),
            params: &LocalOptConfig {
                pin: window.fixed,
                ..config.clone()
            },
        };
        let mut poses = start.clone();
        match self.device.solve(&graph, &mut poses)? {
            Ok(report) => {
                tracing::debug!(
                    ?report,
                    keyframes = keyframes.len(),
                    of = count,
                    edges = edges.len(),
                    "global solve"
                );
                self.solved_edges = links.len();
                for (pose, &k) in poses.iter().zip(&window.keyframes) {
                    self.poses[k] = *pose;
                }
            }
            Err(error) => {
                self.counts.failed_solves += 1;
                tracing::warn!("global optimisation failed, poses stay as they were: {error}");
            }
        }
        Ok(())
    }

    /// What tracking said of keyframes whose edge with the one before is too weak (B44), in order.
    fn priors(&self) -> Vec<PosePrior> {
        let weak = self.config.local_opt.min_match_frac;
        let mut strong = vec![false; self.keyframes.len()];
        for edge in self.edges.iter().filter(|e| e.match_fraction >= weak) {
            let (older, newer) = (edge.i.min(edge.j), edge.i.max(edge.j) as usize);
            let chain = self.keyframes.get(newer).and_then(|k| k.chain.as_ref());
            if chain.is_some_and(|anchor| anchor.keyframe == older) {
                strong[newer] = true;
            }
        }
        let prior = |((j, keyframe), strong): ((usize, &MapKeyframe), bool)| {
            let anchor = keyframe.chain.filter(|_| !strong)?;
            Some(PosePrior {
                i: anchor.keyframe as usize,
                j,
                i_from_j: anchor.keyframe_from_camera,
                information: Tangent::repeat(CHAIN_INFORMATION),
            })
        };
        let keyframes = self.keyframes.iter().enumerate();
        keyframes.zip(strong).filter_map(prior).collect()
    }

    pub(super) fn publish(&self) {
        let version = self.table.load().version + 1;
        let edge = |e: &Link| MapEdge {
            i: e.i,
            j: e.j,
            kind: e.kind,
        };
        self.table.store(Arc::new(PoseTable {
            version,
            poses: self.poses.clone(),
            submaps: self.keyframes.iter().map(|k| k.submap).collect(),
            stamps: self.keyframes.iter().map(|k| k.info.stamp).collect(),
            edges: self.edges.iter().map(edge).collect(),
        }));
    }
}

/// Both relative poses of an edge, solved when first asked for: its keyframes' pointmaps do not change
/// while an event is handled.
fn relative_poses(device: &mut dyn MappingDevice, link: &mut Link) -> Result<TwoWay, DeviceError> {
    match link.poses {
        Some(poses) => Ok(poses),
        None => {
            let poses = device.relative_poses(link.id)?;
            link.poses = Some(poses);
            Ok(poses)
        }
    }
}

/// Most disagreement of scale, as a logarithm, between an edge's two directions: about 15 %. True edges
/// of the mini model stay under 5 %, made-up ones are off by 10 to 40 %.
const TWO_WAY_LOG_SCALE: f64 = 0.15;

/// Information of a chain prior: weak beside any real edge (a thousand matches at one sigma weigh
/// 1e3 or more), strong enough to keep the normal matrix regular.
const CHAIN_INFORMATION: f64 = 1.0;
