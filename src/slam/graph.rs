//! The factor graph: keyframes, edges and priors.

use super::factors::Factors;
use super::metric::depth_offset::DepthOffset;
use super::metric::keyframe_depth::{KeyframeDepth, KeyframeDepths};
use super::metric::motion::{CameraMotion, visual_motion};
use super::metric::motions::{MeasuredMotion, Motions};
use super::metric::scale::{ScaleEstimate, Scales};
use super::overlaps::Overlaps;
use super::pose_table::{Anchor, PoseTable, index_of};
use super::removed::Removed;
use crate::compute::device::{EdgeId, TwoWay};
use crate::compute::global::{Matrix7, PoseFactor, ScalePrior};
use crate::geometry::Sim3;
use crate::map::{EdgeKind, MapEdge};
use crate::time::Stamp;
use nalgebra::Isometry3;
use std::sync::Arc;

/// Standard deviation of the place of a removed keyframe, as a part of the way and of the turn to the keyframe that has
/// its place.
const OF_PLACE: f64 = 0.02;
/// Information of a chain prior: weak compared with any real edge (a thousand matches at one sigma
/// contribute 1e3 or more), but sufficient to keep the normal matrix regular.
const CHAIN_INFORMATION: f64 = 1.0;

/// Keyframes with poses and submaps, the edges between them, and the priors from tracking.
///
/// Invariants:
/// * Ids ascend with the index, and there is one pose for each keyframe. Removed keyframes leave gaps.
/// * An edge connects two different keyframes of the graph.
/// * A chain refers to another keyframe of the graph.
/// * A factor connects two different keyframes of the graph, and there is at most one for each pair.
/// * Every submap number is used by at least one keyframe.
#[derive(Default)]
pub struct Graph {
    ids: Vec<u32>,
    keyframes: Vec<GraphKeyframe>,
    poses: Vec<Sim3>,
    edges: Vec<Edge>,
    /// Number of leading edges included in the last successful solve.
    solved_edges: usize,
    factors: Factors,
    /// By wheel odometry, between keyframes of the graph.
    motions: Motions,
    /// Motions between keyframes by their depth images.
    depth_motions: Motions,
    depths: KeyframeDepths,
    scales: Scales,
    /// Those of removed edges.
    overlaps: Overlaps,
    /// Shared with published tables.
    removed: Arc<Removed>,
}

/// The constant part of a keyframe.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeyframeInfo {
    /// Keyframes are numbered from 0 in order of creation.
    pub id: u32,
    /// Index in the source.
    pub frame_index: usize,
    /// Time of the image.
    pub stamp: Stamp,
}

/// A keyframe of the graph; its image, points and features are stored on the device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GraphKeyframe {
    pub info: KeyframeInfo,
    pub submap: u32,
    /// Its pose relative to the keyframe it was tracked against: a prior if their edge is weak.
    pub chain: Option<Anchor>,
    /// How often its points were replaced.
    pub revision: u32,
}

/// An edge; its matches are stored on the device.
#[derive(Debug, Clone, Copy)]
pub struct Edge {
    pub id: EdgeId,
    pub i: u32,
    pub j: u32,
    pub kind: EdgeKind,
    pub match_fraction: f32,
    /// Relative poses from both directions, once solved.
    pub poses: Option<TwoWay>,
}

/// Result of merging two submaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Merged {
    /// The older submap, which keeps its number and poses.
    pub kept: u32,
    /// The newer submap, whose keyframes were moved.
    pub moved: u32,
}

impl Edge {
    /// The other keyframe, if `id` is one of both.
    pub fn other_end(&self, id: u32) -> Option<u32> {
        match id {
            i if i == self.i => Some(self.j),
            j if j == self.j => Some(self.i),
            _ => None,
        }
    }
}

impl Graph {
    /// Appends keyframe `info.id`, which must be higher than all others.
    pub fn insert(&mut self, info: KeyframeInfo, pose: Sim3, submap: u32, chain: Option<Anchor>) {
        debug_assert!(self.ids.last().is_none_or(|last| *last < info.id));
        let chain = chain.filter(|anchor| self.index_of(anchor.keyframe).is_some());
        self.ids.push(info.id);
        self.keyframes.push(GraphKeyframe {
            info,
            submap,
            chain,
            revision: 0,
        });
        self.poses.push(pose);
    }

    /// How often the points of keyframe `id` were replaced.
    pub fn revision_of(&self, id: u32) -> u32 {
        let keyframe = self
            .index_of(id)
            .and_then(|index| self.keyframes.get(index));
        keyframe.map_or(0, |keyframe| keyframe.revision)
    }

    /// The points of keyframe `id` were replaced.
    pub fn note_points(&mut self, id: u32) {
        let index = self.index_of(id);
        if let Some(keyframe) = index.and_then(|index| self.keyframes.get_mut(index)) {
            keyframe.revision = keyframe.revision.wrapping_add(1);
        }
    }

    /// Adds the motion from an earlier keyframe, if there is one in the graph, to keyframe `id`.
    pub fn add_motion(&mut self, id: u32, motion: Option<(u32, CameraMotion)>) {
        if let Some((i, motion)) = motion
            && self.has_both(i, id)
        {
            self.motions.add(MeasuredMotion {
                i,
                j: id,
                motion,
                ends: None,
            });
        }
    }

    /// Adds a motion between two keyframes that their depth images show. If the first one was removed, the motion starts
    /// at the keyframe that has its place. Returns `false` if one of the two is unknown.
    pub fn add_depth_motion(&mut self, measured: MeasuredMotion) -> bool {
        let MeasuredMotion { i, j, motion, ends } = measured;
        let Some(place) = self.resolve(Anchor::at(i)) else {
            return false;
        };
        let is_known = self.has_both(place.keyframe, j);
        if is_known {
            let (motion, ends) = match place.keyframe == i {
                true => (motion, ends),
                false => (self.motion_to(&place).then(&motion), None),
            };
            let i = place.keyframe;
            self.depth_motions
                .add(MeasuredMotion { i, j, motion, ends });
        }
        is_known
    }

    /// Adds the depth of a keyframe of the graph; that of another one is ignored.
    pub fn add_depth(&mut self, depth: KeyframeDepth) {
        if self.index_of(depth.measured.id).is_some() {
            self.depths.add(depth);
        }
    }

    /// Sets the offset of depth, by which the motions that it has measured are computed again.
    pub fn set_depth_offset(&mut self, offset: &DepthOffset) {
        self.depth_motions.set_offset(offset);
    }

    /// The next keyframe with a final pointmap that has to be corrected, and the motion that does it
    /// ([`KeyframeDepths::correct_next`]).
    pub fn next_depth_correction(&mut self, offset: f64) -> Option<(u32, Isometry3<f64>)> {
        let (ids, keyframes) = (&self.ids, &self.keyframes);
        let is_final = |id: u32| {
            let keyframe = index_of(ids, id).and_then(|index| keyframes.get(index));
            keyframe.is_some_and(|keyframe| keyframe.revision > 0)
        };
        self.depths.correct_next(offset, is_final)
    }

    /// The motion from the keyframe of `place` to `place`, as the map has it.
    fn motion_to(&self, place: &Anchor) -> CameraMotion {
        let world_from_i = self.pose_of(place.keyframe);
        let to = visual_motion(&world_from_i, &(world_from_i * place.keyframe_from_camera));
        CameraMotion::known_to(OF_PLACE, to)
    }

    fn has_both(&self, i: u32, j: u32) -> bool {
        self.index_of(i).is_some() && self.index_of(j).is_some()
    }

    /// Motions between keyframes that their depth images show.
    pub fn depth_motions(&self) -> &Motions {
        &self.depth_motions
    }

    /// Motions between keyframes that wheel odometry has measured.
    pub fn motions(&self) -> &Motions {
        &self.motions
    }

    /// Appends an edge; returns `false` unless it connects two different keyframes of the graph.
    pub fn connect(&mut self, edge: Edge) -> bool {
        let valid = edge.i != edge.j && self.has_both(edge.i, edge.j);
        if valid {
            self.edges.push(edge);
        }
        valid
    }

    /// Gives edge `old`, which the device has made anew, its new id. Its place among the edges stays.
    pub fn exchange_edge(&mut self, old: EdgeId, new: EdgeId) {
        if let Some(edge) = self.edges.iter_mut().find(|edge| edge.id == old) {
            edge.id = new;
            edge.poses = None;
            self.factors.forget(old);
        }
    }

    /// Removes an edge, with its condensed form.
    pub fn remove_edge(&mut self, id: EdgeId) -> Option<Edge> {
        let at = self.edges.iter().position(|edge| edge.id == id)?;
        self.solved_edges -= usize::from(at < self.solved_edges);
        self.factors.forget(id);
        let edge = self.edges.remove(at);
        self.overlaps.note(edge.i, edge.j, edge.match_fraction);
        Some(edge)
    }

    /// Removes keyframe `id`, which is at `place` relative to another keyframe, with its factors and its edges, which
    /// are returned. Chains to it lead to the keyframe of `place` instead. `None`, without a change, if either keyframe
    /// does not exist.
    pub fn remove(&mut self, id: u32, place: Anchor) -> Option<Vec<Edge>> {
        let index = self.index_of(id)?;
        self.index_of(place.keyframe).filter(|&p| p != index)?;
        let of_it = |edge: &Edge| edge.i == id || edge.j == id;
        let solved = self.edges.iter().take(self.solved_edges);
        self.solved_edges -= solved.filter(|e| of_it(e)).count();
        let edges: Vec<Edge> = self.edges.extract_if(.., |edge| of_it(edge)).collect();
        for edge in &edges {
            self.factors.forget(edge.id);
        }
        self.factors.remove_of(id as usize);
        self.motions.remove(id, None);
        let by_map = (place.keyframe, self.motion_to(&place));
        self.depth_motions.remove(id, Some(by_map));
        self.depths.remove(id);
        self.scales.remove(id);
        let shared = edges.iter();
        let shared = shared.filter_map(|e| Some((e.other_end(id)?, e.match_fraction)));
        self.overlaps.remove(id, shared);
        self.ids.remove(index);
        self.keyframes.remove(index);
        self.poses.remove(index);
        for keyframe in &mut self.keyframes {
            if let Some(chain) = keyframe.chain.filter(|chain| chain.keyframe == id) {
                let chain = chain.moved_to(&place);
                keyframe.chain = Some(chain).filter(|c| c.keyframe != keyframe.info.id);
            }
        }
        let Anchor {
            keyframe,
            keyframe_from_camera,
        } = place;
        let newest = self.ids.last().map_or(id, |newest| id.max(*newest));
        let removed = Arc::make_mut(&mut self.removed);
        removed.insert(id, keyframe, keyframe_from_camera, newest);
        Some(edges)
    }

    /// Forgets the places of removed keyframes that no frame refers to any more, when `made` keyframes had been made at
    /// the oldest frame that is kept.
    pub fn forget_removed(&mut self, made: u32) {
        if self.removed.has_to_forget(made) {
            Arc::make_mut(&mut self.removed).forget(made);
        }
    }

    /// The same place relative to a keyframe that exists, if the anchor's keyframe was removed; `None` if it is
    /// unknown.
    pub fn resolve(&self, anchor: Anchor) -> Option<Anchor> {
        match self.index_of(anchor.keyframe) {
            Some(_) => Some(anchor),
            None => {
                let (keyframe, keyframe_from_camera) = self.removed.place_of(anchor.keyframe)?;
                Some(anchor.moved_to(&Anchor {
                    keyframe,
                    keyframe_from_camera,
                }))
            }
        }
    }

    /// Merges the submaps of keyframes `i` and `j`: the newer one moves as a whole, so that
    /// `i_from_j` holds between the two keyframes. `None` if they are in the same submap already.
    pub fn merge_submaps(&mut self, i: u32, j: u32, i_from_j: &Sim3) -> Option<Merged> {
        let (a, b) = (self.submap_of(i)?, self.submap_of(j)?);
        if a == b {
            return None;
        }
        let (pose_i, pose_j) = (self.pose_of(i), self.pose_of(j));
        let (kept, moved, correction) = if a < b {
            (a, b, pose_i * *i_from_j * pose_j.inverse())
        } else {
            (b, a, pose_j * i_from_j.inverse() * pose_i.inverse())
        };
        for (keyframe, pose) in self.keyframes.iter_mut().zip(&mut self.poses) {
            if keyframe.submap == moved {
                keyframe.submap = kept;
                *pose = correction * *pose;
            }
        }
        Some(Merged { kept, moved })
    }

    /// A number for a new submap: one more than the highest, or an unused one if that would
    /// overflow.
    pub fn next_submap(&self) -> u32 {
        let submaps = || self.keyframes.iter().map(|k| k.submap);
        match submaps().max() {
            None => 0,
            Some(max) => max.checked_add(1).unwrap_or_else(|| {
                let free = (0..u32::MAX).find(|n| submaps().all(|s| s != *n));
                free.unwrap_or(u32::MAX)
            }),
        }
    }

    /// The factors of keyframe `id`, each with the keyframe at its other end; their `i` and `j` are ids.
    pub fn factors_of(&self, id: u32) -> impl Iterator<Item = (u32, &PoseFactor)> {
        let own = id as usize;
        self.factors.list().iter().filter_map(move |factor| {
            let other = match own {
                i if i == factor.i => factor.j,
                j if j == factor.j => factor.i,
                _ => return None,
            };
            Some((u32::try_from(other).ok()?, factor))
        })
    }

    /// Ids of the keyframes that an edge or a factor joins.
    pub fn joined(&self) -> impl Iterator<Item = (u32, u32)> {
        let edges = self.edges.iter().map(|e| (e.i, e.j));
        let factors = self.factors.list().iter().filter_map(|f| {
            let (i, j) = (u32::try_from(f.i).ok()?, u32::try_from(f.j).ok()?);
            Some((i, j))
        });
        edges.chain(factors)
    }

    /// Weak priors on relative poses from tracking, in order: one for each keyframe whose edge to
    /// the keyframe it was tracked against is missing or has a match fraction below
    /// `min_match_fraction` (docs/reference-defects.md, B44). Their `i` and `j` are indices.
    pub fn priors(&self, min_match_fraction: f32) -> Vec<PoseFactor> {
        let mut strong = vec![false; self.keyframes.len()];
        let edges = self.edges.iter();
        for edge in edges.filter(|e| e.match_fraction >= min_match_fraction) {
            for (from, to) in [(edge.i, edge.j), (edge.j, edge.i)] {
                let Some(index) = self.index_of(from) else {
                    continue;
                };
                let chain = self.keyframes.get(index).and_then(|k| k.chain.as_ref());
                strong[index] |= chain.is_some_and(|anchor| anchor.keyframe == to);
            }
        }
        let prior = |((j, keyframe), strong): ((usize, &GraphKeyframe), bool)| {
            let anchor = keyframe.chain.filter(|_| !strong)?;
            Some(PoseFactor {
                i: self.index_of(anchor.keyframe)?,
                j,
                i_from_j: anchor.keyframe_from_camera,
                information: Matrix7::identity() * CHAIN_INFORMATION,
            })
        };
        let keyframes = self.keyframes.iter().enumerate();
        keyframes.zip(strong).filter_map(prior).collect()
    }

    /// Stores the poses of a successful solve, as `(index, pose)`.
    pub fn set_solved(&mut self, poses: impl Iterator<Item = (usize, Sim3)>) {
        for (keyframe, pose) in poses {
            if let Some(dst) = self.poses.get_mut(keyframe) {
                *dst = pose;
            }
        }
        self.solved_edges = self.edges.len();
    }

    /// Compares the lengths of measured motions with the map's, after a solve that moved the keyframes with these indices,
    /// ascending: learns from those that depth measures by which part matches make them too short, and finds those of
    /// wheels that slipped.
    pub fn compare_lengths(&mut self, moved: &[usize]) {
        let (ids, motions) = (&self.ids, &mut self.depth_motions);
        let place = |id: u32| index_of(ids, id);
        self.motions.judge(place, &self.poses);
        let is_moved = |id: u32| place(id).is_some_and(|k| moved.binary_search(&k).is_ok());
        motions.note_solved(is_moved, self.scales.longer());
        if let Some(excess) = motions.excess(place, &self.poses) {
            self.scales.lengthen(excess);
        }
    }

    /// Replaces the pose of every keyframe; `poses` has one for each.
    pub fn set_poses(&mut self, poses: Vec<Sim3>) {
        if poses.len() == self.poses.len() {
            self.poses = poses;
        }
    }

    /// Restores the number of edges that had been solved when the map was saved.
    pub fn restore_solved_edges(&mut self, count: usize) {
        self.solved_edges = count.min(self.edges.len());
    }

    /// Position of keyframe `id` in the lists; `None` if the graph does not hold it.
    pub fn index_of(&self, id: u32) -> Option<usize> {
        index_of(&self.ids, id)
    }

    /// The keyframes, ascending by id.
    pub fn keyframes(&self) -> &[GraphKeyframe] {
        &self.keyframes
    }

    /// `world_from_camera` of each keyframe.
    pub fn poses(&self) -> &[Sim3] {
        &self.poses
    }

    /// The edges in order of creation.
    pub fn edges(&self) -> &[Edge] {
        &self.edges
    }

    /// What remains of removed edges and keyframes.
    pub fn factors(&self) -> &Factors {
        &self.factors
    }

    /// Keyframes that show the same although no edge joins them.
    pub fn known_overlaps(&self) -> &Overlaps {
        &self.overlaps
    }

    /// See [`Graph::factors`].
    pub fn factors_mut(&mut self) -> &mut Factors {
        &mut self.factors
    }

    /// Measured scales of keyframes.
    pub fn scales_mut(&mut self) -> &mut Scales {
        &mut self.scales
    }

    /// The measured scales of all keyframes as priors, which name them by index, with their information multiplied by
    /// `units`.
    pub fn scale_priors(&self, units: f64) -> Vec<ScalePrior> {
        self.scales.priors(self.ids.iter().copied(), units)
    }

    /// The removed keyframes.
    pub fn removed(&self) -> &Arc<Removed> {
        &self.removed
    }

    /// Restores the removed keyframes of a map that was loaded.
    pub fn restore_removed(&mut self, removed: Removed) {
        self.removed = Arc::new(removed);
    }

    /// Number of edges included in the last successful solve.
    pub fn solved_edges(&self) -> usize {
        self.solved_edges
    }

    /// The pose of a keyframe; the identity if it does not exist.
    pub fn pose_of(&self, id: u32) -> Sim3 {
        let index = self.index_of(id);
        let pose = index.and_then(|index| self.poses.get(index));
        pose.copied().unwrap_or_default()
    }

    /// The edges of keyframe `id`, each with the keyframe at its other end.
    pub fn edges_of(&self, id: u32) -> impl Iterator<Item = (u32, &Edge)> {
        let edges = self.edges.iter();
        edges.filter_map(move |edge| Some((edge.other_end(id)?, edge)))
    }

    /// Poses of the keyframes that share an edge with keyframe `id`.
    pub fn neighbour_poses(&self, id: u32) -> impl Iterator<Item = Sim3> {
        self.edges_of(id).map(|(other, _)| self.pose_of(other))
    }

    /// The submap of a keyframe.
    pub fn submap_of(&self, id: u32) -> Option<u32> {
        self.keyframes.get(self.index_of(id)?).map(|k| k.submap)
    }

    /// The table to publish for map number `map`.
    pub fn table(&self, map: u64) -> PoseTable {
        let edge = |e: &Edge| MapEdge {
            i: e.i,
            j: e.j,
            kind: e.kind,
        };
        PoseTable {
            map,
            version: 0,
            ids: self.ids.clone(),
            poses: self.poses.clone(),
            submaps: self.keyframes.iter().map(|k| k.submap).collect(),
            stamps: self.keyframes.iter().map(|k| k.info.stamp).collect(),
            revisions: self.keyframes.iter().map(|k| k.revision).collect(),
            edges: self.edges.iter().map(edge).collect(),
            removed: Arc::clone(&self.removed),
            scale: ScaleEstimate::better(
                self.scales.estimate(&self.ids, &self.poses),
                self.motions.scale(&self.ids, &self.poses),
            ),
        }
    }
}

#[cfg(test)]
mod tests;
