//! Redundant keyframes: those whose view others have as well (docs/algorithm.md, Map economy).

use super::graph::{Edge, Graph};
use super::metric::robust::median;
use super::reach::Links;
use super::revisits::Revisits;
use crate::compute::coverage::Coverage;
use crate::compute::device::{DeviceError, MappingDevice, NeighbourView};
use crate::config::Config;
use crate::map::EdgeKind;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;

/// Maximum number of neighbours that are examined when a keyframe was added: the changes that it makes are beside
/// it, and their cost must not grow with the map.
const EXAMINED: usize = 8;

/// Number of newest keyframes that are never removed: the active keyframe, the one whose final points are on their
/// way, and the one before, from which tracking may still take its pose.
const NEWEST: usize = 3;

/// The same when no frame follows: the last keyframe shows where the camera is.
const NEWEST_AT_END: usize = 1;

/// Number of keyframes after which an edge that closed a loop counts as settled: until then it may prove wrong, and
/// its keyframes are the evidence.
const SETTLED: u32 = 10;

/// Keyframes that more edges than this separate were not known to be near each other: an edge between them closes a
/// loop.
const NEAR: usize = 3;

/// Minimum ratio of a point's distance from a keyframe to its distance from another one for that one to replace the
/// keyframe's view: a pixel then covers at most 1.25 times the length on the surface.
const MIN_RATIO: f32 = 0.8;

/// Fraction of a typical step between neighbouring keyframes within which another keyframe shows the same: where images
/// have little to match, the same view matches itself no better than others.
const SAME_PLACE: f64 = 0.25;

/// Maximum number of keyframes that wait until they are old enough to be examined; the oldest is left out.
const WAITING: usize = 64;

/// When keyframes are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// After a keyframe was added.
    Amid,
    /// When no later keyframe could use one, or show that a loop was wrong.
    AtEnd,
}

/// Rules for removing keyframes.
pub struct Redundancy {
    on: bool,
    /// Minimum overlap of neighbouring keyframes that stay.
    overlap: f32,
    /// Minimum overlap at which one of two keyframes is enough: a frame like the one would not have become a keyframe
    /// beside the other, nor soon after.
    same_view: f32,
    /// Fraction of a keyframe's pixels that others must cover.
    min_covered: f64,
    /// The same in a full map.
    min_covered_when_full: f64,
    /// Maximum number of keyframes; 0 for no limit.
    max_keyframes: usize,
    /// Number of first keyframes that are fixed.
    pinned: usize,
    /// Fraction covered of each keyframe when it was examined last.
    covered: FxHashMap<u32, f64>,
    /// Keyframes of edges that closed a loop and are not settled.
    closed: Vec<[u32; 2]>,
    /// Keyframes to examine next time: those that were too young, in use or not the first to be removed, and those that
    /// got an edge since.
    waiting: VecDeque<u32>,
    /// Keyframes that show what removed ones showed.
    standing: FxHashSet<u32>,
    revisits: Revisits,
    /// The keyframe that was examined last because it was its turn.
    turn: u32,
}

impl Redundancy {
    /// The rules of `config`.
    pub fn new(config: &Config) -> Self {
        Self {
            on: config.economy.remove,
            overlap: config.tracking.match_frac_thresh * config.economy.overlap,
            same_view: config.tracking.match_frac_thresh + config.economy.reuse_margin,
            min_covered: f64::from(config.economy.covered),
            min_covered_when_full: f64::from(config.economy.covered_when_full),
            max_keyframes: config.local_opt.max_keyframes,
            pinned: config.local_opt.pin,
            covered: FxHashMap::default(),
            closed: Vec::new(),
            waiting: VecDeque::new(),
            standing: FxHashSet::default(),
            revisits: Revisits::new(config),
            turn: 0,
        }
    }

    /// Forgets the map.
    pub fn clear(&mut self) {
        self.covered.clear();
        self.closed.clear();
        self.waiting.clear();
        self.standing.clear();
        self.revisits.clear();
        self.turn = 0;
    }

    /// Notes an edge that is about to enter the graph.
    pub fn note_edge(&mut self, graph: &Graph, edge: &Edge) {
        let found = matches!(edge.kind, EdgeKind::Loop | EdgeKind::Relocalisation);
        if self.on && found && !graph.are_near(edge.i, edge.j, NEAR) {
            self.closed.push([edge.i, edge.j]);
        }
    }

    /// The keyframe to remove after keyframe `id` was added and the graph was solved: the youngest redundant one
    /// among `id`, its neighbours, and those that were too young before, because older ones were solved more often and
    /// more frames refer to them; in a full map the keyframe that others cover most. `lent` says whether the tracker
    /// uses a keyframe.
    pub fn choose(
        &mut self,
        device: &mut dyn MappingDevice,
        graph: &Graph,
        id: u32,
        lent: impl Fn(u32) -> bool,
        when: When,
    ) -> Result<Option<u32>, DeviceError> {
        if !self.on {
            return Ok(None);
        }
        self.settle(graph);
        self.wait_for(id);
        for neighbour in strongest_neighbours(graph, id) {
            self.wait_for(neighbour);
        }
        let old = |k: &u32| !self.is_in_use(graph, *k, when) && !lent(*k);
        let mut near: Vec<u32> = self.waiting.iter().copied().filter(old).collect();
        near.sort_unstable_by(|a, b| b.cmp(a));
        // The younger of two that show the same goes, once it can: until then it does not make the other one redundant.
        // If the older one went instead, every visit would replace the map by a newer one, and what refers to the old one
        // would move with each step from one to the next. At the end, and while the map is full, there is no later.
        let now = when == When::AtEnd || self.is_full(graph);
        let settled: Vec<bool> = (graph.keyframes().iter().map(|k| k.info.id))
            .map(|k| now || (!self.is_in_use(graph, k, when) && !lent(k)))
            .collect();
        let overlaps = graph.overlaps(self.overlap);
        let mut twins = graph.overlaps(self.same_view);
        twins.retain(|&(i, j)| settled[i] && settled[j]);
        let step = Step::typical(graph);
        // In order of their cost.
        let goes = |k: &u32| {
            let shown = is_one_of(graph, *k, &twins)
                || step.is_taken_twice(graph, *k, &settled)
                || (!self.standing.contains(k) && graph.overlaps_without(*k, &overlaps, NEAR));
            shown && !lent(*k) && self.may_go(graph, *k, when)
        };
        let mut named: Vec<u32> = near.iter().copied().filter(goes).collect();
        let turn = self.next_turn(graph);
        for k in near.iter().copied().chain(turn) {
            let may_go = !named.contains(&k) && !lent(k) && self.may_go(graph, k, when);
            if may_go && self.revisits.shows_nothing_new(device, graph, k)? {
                named.push(k);
            }
        }
        named.sort_unstable_by(|a, b| b.cmp(a));
        // The others wait for the next time; what stays is examined again when something changes beside it.
        let examined = |k: &u32| near.contains(k) && !named.contains(k);
        self.waiting.retain(|k| !examined(k));
        named.iter().rev().for_each(|k| self.wait_for(*k));
        let named = named.first().copied();
        if named.is_none() || self.max_keyframes > 0 {
            self.measure(device, graph, &near)?;
        }
        Ok(named.or_else(|| self.most_covered(graph, &near, lent, when)))
    }

    /// The keyframe whose turn it is: what older ones show of it changes when a loop moves them, far from new keyframes
    /// too.
    fn next_turn(&mut self, graph: &Graph) -> Option<u32> {
        let mut ids = graph.keyframes().iter().map(|k| k.info.id);
        let first = ids.clone().next()?;
        self.turn = ids.find(|id| *id > self.turn).unwrap_or(first);
        Some(self.turn)
    }

    /// Has a keyframe examined when one is added next.
    pub fn wait_for(&mut self, id: u32) {
        if !self.on || self.waiting.contains(&id) {
            return;
        }
        if self.waiting.len() >= WAITING {
            self.waiting.pop_front();
        }
        self.waiting.push_back(id);
    }

    /// Measures how much of what these keyframes show two others cover.
    fn measure(
        &mut self,
        device: &mut dyn MappingDevice,
        graph: &Graph,
        keyframes: &[u32],
    ) -> Result<(), DeviceError> {
        for &keyframe in keyframes {
            let views = views_of(graph, keyframe);
            let coverage = device.coverage(keyframe, &views, MIN_RATIO)?;
            tracing::debug!(keyframe, views = views.len(), ?coverage, "coverage");
            self.covered.insert(keyframe, fraction(&coverage));
        }
        Ok(())
    }

    /// The first of `near` that two others cover, or in a full map the keyframe that others cover most.
    fn most_covered(
        &self,
        graph: &Graph,
        near: &[u32],
        lent: impl Fn(u32) -> bool,
        when: When,
    ) -> Option<u32> {
        let covered = |k: &u32| self.covered.get(k).copied().unwrap_or(0.0);
        let removable = |k: &u32| self.may_go(graph, *k, when) && !lent(*k);
        let redundant = |k: &&u32| covered(k) >= self.min_covered && removable(k);
        if let Some(&keyframe) = near.iter().find(redundant) {
            return Some(keyframe);
        }
        if !self.is_full(graph) {
            return None;
        }
        let ids = graph.keyframes().iter().map(|k| k.info.id);
        let mut candidates: Vec<u32> = ids
            .filter(|k| covered(k) >= self.min_covered_when_full)
            .collect();
        candidates.sort_by(|a, b| covered(b).total_cmp(&covered(a)).then(b.cmp(a)));
        candidates.into_iter().find(removable)
    }

    /// Whether a keyframe must go, so that there is a place for the next one.
    fn is_full(&self, graph: &Graph) -> bool {
        self.max_keyframes > 0 && graph.keyframes().len() >= self.max_keyframes
    }

    /// Forgets keyframe `id`, which was removed; `beside` shows most of what it showed.
    pub fn removed(&mut self, id: u32, beside: u32) {
        self.covered.remove(&id);
        self.revisits.removed(id);
        self.closed.retain(|ends| !ends.contains(&id));
        self.waiting.retain(|waiting| *waiting != id);
        self.standing.remove(&id);
        self.standing.insert(beside);
    }

    /// Forgets edges that have become settled: both their keyframes were made long enough before the newest one.
    fn settle(&mut self, graph: &Graph) {
        let newest = graph.keyframes().last().map_or(0, |k| k.info.id);
        let young = |end: &u32| end.saturating_add(SETTLED) > newest;
        self.closed.retain(|ends| ends.iter().any(young));
    }

    /// Whether keyframe `id` may be removed at all.
    fn may_go(&self, graph: &Graph, id: u32, when: When) -> bool {
        let keyframes = graph.keyframes();
        let Some(index) = graph.index_of(id) else {
            return false;
        };
        let submap = graph.submap_of(id);
        let of_submap =
            |before: usize| keyframes[..before].iter().any(|k| Some(k.submap) == submap);
        let pinned = index < self.pinned;
        let first = !of_submap(index);
        !pinned && !first && !self.is_in_use(graph, id, when) && graph.holds_together_without(id)
    }

    /// Whether a keyframe must stay for now: it is one of the newest, or the end of an edge that closed a loop and is
    /// not settled.
    fn is_in_use(&self, graph: &Graph, id: u32, when: When) -> bool {
        let (newest, closed) = match when {
            When::Amid => (NEWEST, &self.closed[..]),
            When::AtEnd => (NEWEST_AT_END, &[][..]),
        };
        let count = graph.keyframes().len();
        let is_new = graph.index_of(id).is_some_and(|k| k + newest >= count);
        is_new || closed.iter().any(|ends| ends.contains(&id))
    }
}

/// The distance, in metres, and the angle between neighbouring keyframes.
struct Step {
    length: f64,
    angle: f64,
}

impl Step {
    /// The medians of a map's edges.
    fn typical(graph: &Graph) -> Self {
        let edges = graph.edges().iter();
        let steps = edges.map(|e| graph.pose_of(e.i).apart(&graph.pose_of(e.j)));
        let (mut lengths, mut angles): (Vec<f64>, Vec<f64>) = steps.unzip();
        Self {
            length: median(&mut lengths).unwrap_or(0.0),
            angle: median(&mut angles).unwrap_or(0.0),
        }
    }

    /// Whether another keyframe near `id` in the graph, which is `settled` (by index), is at the same place.
    fn is_taken_twice(&self, graph: &Graph, id: u32, settled: &[bool]) -> bool {
        let own = graph.pose_of(id);
        graph.within(id, NEAR).into_iter().any(|other| {
            let (length, angle) = own.apart(&graph.pose_of(other));
            let near = length < SAME_PLACE * self.length && angle < SAME_PLACE * self.angle;
            near && graph.index_of(other).is_some_and(|k| settled[k])
        })
    }
}

/// Whether one of `links` is that of keyframe `id`.
fn is_one_of(graph: &Graph, id: u32, links: &Links) -> bool {
    let index = graph.index_of(id);
    links
        .iter()
        .any(|(i, j)| Some(*i) == index || Some(*j) == index)
}

/// The neighbours of `id` with the largest match fractions.
fn strongest_neighbours(graph: &Graph, id: u32) -> Vec<u32> {
    let mut edges: Vec<(u32, f32)> = graph
        .edges_of(id)
        .map(|(other, edge)| (other, edge.match_fraction))
        .collect();
    edges.sort_by(|a, b| b.1.total_cmp(&a.1).then(b.0.cmp(&a.0)));
    edges.truncate(EXAMINED);
    edges.into_iter().map(|(other, _)| other).collect()
}

/// The views of keyframe `id`: one edge to each neighbour.
fn views_of(graph: &Graph, id: u32) -> Vec<NeighbourView> {
    let scale = graph.pose_of(id).scale;
    let mut seen: Vec<u32> = Vec::new();
    let mut views = Vec::new();
    for (other, edge) in graph.edges_of(id) {
        if seen.contains(&other) {
            continue;
        }
        seen.push(other);
        views.push(NeighbourView {
            edge: edge.id,
            scale: (scale / graph.pose_of(other).scale) as f32,
        });
    }
    views
}

/// Fraction of usable pixels that are covered. Without a usable pixel, a keyframe shows nothing that could be lost.
fn fraction(coverage: &Coverage) -> f64 {
    match coverage.usable {
        0 => 1.0,
        usable => f64::from(coverage.covered) / f64::from(usable),
    }
}

#[cfg(test)]
mod tests {
    use super::super::graph::KeyframeInfo;
    use super::*;
    use crate::compute::device::EdgeId;
    use crate::geometry::Sim3;
    use nalgebra::{UnitQuaternion, Vector3};

    /// Keyframe `id` at `x` metres, turned by an angle, joined to the one before.
    fn add(graph: &mut Graph, id: u32, x: f64, angle: f64) {
        let pose = Sim3 {
            translation: Vector3::new(x, 0.0, 0.0),
            rotation: UnitQuaternion::from_euler_angles(0.0, angle, 0.0),
            scale: 1.0,
        };
        let info = KeyframeInfo {
            id,
            frame_index: 0,
            stamp: Default::default(),
        };
        graph.insert(info, pose, 0, None);
        graph.connect(Edge {
            id: EdgeId(id),
            i: id.wrapping_sub(1),
            j: id,
            kind: EdgeKind::Consecutive,
            match_fraction: 0.4,
            poses: None,
        });
    }

    /// Steps of a metre and a tenth of a radian.
    fn path(count: u32) -> Graph {
        let mut graph = Graph::default();
        for id in 0..count {
            add(&mut graph, id, f64::from(id), 0.1 * f64::from(id));
        }
        graph
    }

    #[test]
    fn a_place_is_taken_twice_within_a_quarter_of_a_step_in_distance_and_angle() {
        for (x, angle, taken) in [
            (5.0, 0.5, true),
            (5.2, 0.52, true),
            (5.3, 0.5, false),
            (5.0, 0.53, false),
            // Keyframe 0 is farther away in the graph.
            (0.0, 0.0, false),
        ] {
            let mut graph = path(7);
            add(&mut graph, 7, x, angle);
            let step = Step::typical(&graph);
            assert!((step.length - 1.0).abs() < 1e-9 && (step.angle - 0.1).abs() < 1e-9);
            assert_eq!(
                step.is_taken_twice(&graph, 7, &[true; 8]),
                taken,
                "{x} m, {angle}"
            );
        }
        let graph = path(7);
        let step = Step::typical(&graph);
        assert!((0..7).all(|id| !step.is_taken_twice(&graph, id, &[true; 7])));
        assert!(!Step::typical(&Graph::default()).is_taken_twice(&graph, 3, &[true; 7]));
    }

    #[test]
    fn age_and_unsettled_loops_keep_keyframes_until_the_end() {
        let graph = path(7);
        let mut redundancy = Redundancy::new(&Config::default());
        redundancy.closed.push([1, 3]);
        let used = |when| -> Vec<u32> {
            let in_use = |id: &u32| redundancy.is_in_use(&graph, *id, when);
            (0..7).filter(in_use).collect()
        };
        assert_eq!(used(When::Amid), [1, 3, 4, 5, 6]);
        assert_eq!(used(When::AtEnd), [6]);
    }

    #[test]
    fn a_keyframe_waits_once_and_the_oldest_of_too_many_is_left_out() {
        let mut redundancy = Redundancy::new(&Config::default());
        (0..WAITING as u32 + 1).for_each(|id| redundancy.wait_for(id));
        redundancy.wait_for(5);
        assert_eq!(redundancy.waiting.len(), WAITING);
        assert_eq!(redundancy.waiting.front(), Some(&1));
    }
}
