//! Redundant keyframes: those whose view others have as well (docs/algorithm.md, Map economy).

use super::graph::{Edge, Graph};
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

/// Number of keyframes after which an edge that closed a loop counts as settled: until then it may prove wrong, and
/// its keyframes are the evidence.
const SETTLED: u32 = 10;

/// Keyframes that more edges than this separate were not known to be near each other: an edge between them closes a
/// loop.
const NEAR: usize = 3;

/// Minimum ratio of a point's distance from a keyframe to its distance from another one for that one to replace the
/// keyframe's view: a pixel then covers at most 1.25 times the length on the surface.
const MIN_RATIO: f32 = 0.8;

/// Maximum number of keyframes that wait until they are old enough to be examined; the oldest is left out.
const WAITING: usize = 64;

/// Rules for removing keyframes.
pub struct Redundancy {
    on: bool,
    /// Minimum overlap of neighbouring keyframes that stay.
    overlap: f32,
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
    /// Keyframes that were too young, or in use, when they were examined.
    waiting: VecDeque<u32>,
    /// Keyframes that show what removed ones did.
    standing: FxHashSet<u32>,
}

impl Redundancy {
    /// The rules of `config`.
    pub fn new(config: &Config) -> Self {
        Self {
            on: config.economy.remove,
            overlap: config.tracking.match_frac_thresh * config.economy.overlap,
            min_covered: f64::from(config.economy.covered),
            min_covered_when_full: f64::from(config.economy.covered_when_full),
            max_keyframes: config.local_opt.max_keyframes,
            pinned: config.local_opt.pin,
            covered: FxHashMap::default(),
            closed: Vec::new(),
            waiting: VecDeque::new(),
            standing: FxHashSet::default(),
        }
    }

    /// Forgets the map.
    pub fn clear(&mut self) {
        self.covered.clear();
        self.closed.clear();
        self.waiting.clear();
        self.standing.clear();
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
    ) -> Result<Option<u32>, DeviceError> {
        if !self.on {
            return Ok(None);
        }
        self.settle(graph);
        if self.waiting.len() >= WAITING {
            self.waiting.pop_front();
        }
        self.waiting.push_back(id);
        let mut near = strongest_neighbours(graph, id);
        let old = |k: &u32| !self.is_in_use(graph, *k) && !lent(*k);
        near.extend(self.waiting.iter().copied().filter(old));
        near.sort_unstable_by(|a, b| b.cmp(a));
        near.dedup();
        // Whatever is examined now and stays is examined again when a keyframe is added beside it.
        let examined = |k: &u32| near.contains(k);
        self.waiting.retain(|k| !examined(k));
        let overlaps = graph.overlaps(self.overlap);
        // In order of their cost.
        let goes = |k: &u32| {
            !self.standing.contains(k)
                && !lent(*k)
                && graph.overlaps_without(*k, &overlaps, NEAR)
                && self.may_go(graph, *k)
        };
        let overlapped = near.iter().copied().find(goes);
        if overlapped.is_none() || self.max_keyframes > 0 {
            self.measure(device, graph, &near)?;
        }
        Ok(overlapped.or_else(|| self.most_covered(graph, &near, lent)))
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
    fn most_covered(&self, graph: &Graph, near: &[u32], lent: impl Fn(u32) -> bool) -> Option<u32> {
        let covered = |k: &u32| self.covered.get(k).copied().unwrap_or(0.0);
        let removable = |k: &u32| self.may_go(graph, *k) && !lent(*k);
        let redundant = |k: &&u32| covered(k) >= self.min_covered && removable(k);
        if let Some(&keyframe) = near.iter().find(redundant) {
            return Some(keyframe);
        }
        // A place is kept free, so that the map is not full for the next keyframe.
        if self.max_keyframes == 0 || graph.keyframes().len() < self.max_keyframes {
            return None;
        }
        let ids = graph.keyframes().iter().map(|k| k.info.id);
        let mut candidates: Vec<u32> = ids
            .filter(|k| covered(k) >= self.min_covered_when_full)
            .collect();
        candidates.sort_by(|a, b| covered(b).total_cmp(&covered(a)).then(b.cmp(a)));
        candidates.into_iter().find(removable)
    }

    /// Forgets keyframe `id`, which was removed; `beside` shows most of what it did.
    pub fn removed(&mut self, id: u32, beside: u32) {
        self.covered.remove(&id);
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
    fn may_go(&self, graph: &Graph, id: u32) -> bool {
        let keyframes = graph.keyframes();
        let Some(index) = graph.index_of(id) else {
            return false;
        };
        let submap = graph.submap_of(id);
        let of_submap =
            |before: usize| keyframes[..before].iter().any(|k| Some(k.submap) == submap);
        let pinned = index < self.pinned;
        let first = !of_submap(index);
        !pinned && !first && !self.is_in_use(graph, id) && graph.holds_together_without(id)
    }

    /// Whether a keyframe must stay for now: it is one of the newest, or the end of an edge that closed a loop and is
    /// not settled.
    fn is_in_use(&self, graph: &Graph, id: u32) -> bool {
        let count = graph.keyframes().len();
        let newest = graph.index_of(id).is_some_and(|k| k + NEWEST >= count);
        newest || self.closed.iter().any(|ends| ends.contains(&id))
    }
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
