//! Counters of the mapping side, readable from any thread.

use crate::map::EdgeKind;
use std::sync::{Arc, Mutex, PoisonError};

/// Reason for refusing an edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Too few pixels matched.
    Matches,
    /// The two directions, solved apart, disagree.
    Directions,
    /// The matches cover too little of an image.
    Spread,
    /// The matches do not determine the relative pose.
    Undetermined,
    /// The loop contradicts the map.
    Odometry,
    /// A trial solve with the loop failed.
    Trial,
}

/// Reason for making a new keyframe where an existing one might have been reused (`economy.reuse`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unused {
    /// The most similar keyframe is far away in the graph: the new keyframe may close a loop.
    FarAway,
    /// No keyframe is near by its pose or by appearance.
    NoCandidate,
    /// A candidate matched too few pixels.
    Matches,
    /// The two directions of a candidate disagree.
    Directions,
    /// The place relative to a candidate contradicts the map.
    Map,
}

/// Counters since SLAM was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MappingCounts {
    /// Edges to keyframes that place recognition proposed.
    pub loop_edges: usize,
    /// Edges of relocalised frames.
    pub relocalisation_edges: usize,
    /// Edges to keyframes shortly before that are not the last one (`local_opt.neighbours`).
    pub neighbour_edges: usize,
    /// Loop and neighbour candidates rejected after matching, for any of the reasons that follow.
    pub refused_edges: usize,
    /// Too few pixels matched.
    pub refused_matches: usize,
    /// The two directions disagree.
    pub refused_directions: usize,
    /// The matches cover too little of an image.
    pub refused_spread: usize,
    /// The matches do not determine the relative pose.
    pub refused_undetermined: usize,
    /// The loop contradicts the map.
    pub refused_odometry: usize,
    /// No other loop confirmed it.
    pub refused_unconfirmed: usize,
    /// A trial solve with the loop failed.
    pub refused_trials: usize,
    /// Loops that other loops confirmed.
    pub confirmed_loops: usize,
    /// Edges that became factors (`local_opt.max_edges`).
    pub demoted_edges: usize,
    /// Lost frames that were relocalised.
    pub relocalised: usize,
    /// Submaps merged into an older one.
    pub merged_submaps: usize,
    /// Global solves that failed and changed nothing.
    pub failed_solves: usize,
    /// Keyframes of the map that tracking took instead of a new one.
    pub reused_keyframes: usize,
    /// Requests to reuse a keyframe for which the most similar one was far away in the graph.
    pub unused_far: usize,
    /// Requests to reuse a keyframe for which there was no candidate.
    pub unused_no_candidate: usize,
    /// Candidates for reuse that matched too few pixels.
    pub unused_matches: usize,
    /// Candidates for reuse whose two directions disagree.
    pub unused_directions: usize,
    /// Candidates for reuse that contradict the map.
    pub unused_map: usize,
    /// Motions between keyframes by their depth images.
    pub depth_motions: usize,
    /// Keyframes removed because others cover what they show.
    pub removed_keyframes: usize,
    /// Frames that should have become keyframes but did not because mapping was behind.
    pub postponed_keyframes: usize,
}

impl MappingCounts {
    /// Every counter with its name, for people.
    pub fn rows(&self) -> [(&'static str, usize); 25] {
        [
            ("loop edges", self.loop_edges),
            ("relocalisation edges", self.relocalisation_edges),
            ("neighbour edges", self.neighbour_edges),
            ("refused edges", self.refused_edges),
            ("refused: few matches", self.refused_matches),
            ("refused: directions differ", self.refused_directions),
            ("refused: little of the image", self.refused_spread),
            ("refused: pose undetermined", self.refused_undetermined),
            ("refused: contradicts the map", self.refused_odometry),
            ("refused: unconfirmed", self.refused_unconfirmed),
            ("refused: trial solve", self.refused_trials),
            ("confirmed loops", self.confirmed_loops),
            ("edges made factors", self.demoted_edges),
            ("relocalisations", self.relocalised),
            ("merged submaps", self.merged_submaps),
            ("failed solves", self.failed_solves),
            ("reused keyframes", self.reused_keyframes),
            ("not reused: far in the graph", self.unused_far),
            ("not reused: no candidate", self.unused_no_candidate),
            ("not reused: few matches", self.unused_matches),
            ("not reused: directions differ", self.unused_directions),
            ("not reused: contradicts the map", self.unused_map),
            ("motions by depth", self.depth_motions),
            ("removed keyframes", self.removed_keyframes),
            ("postponed keyframes", self.postponed_keyframes),
        ]
    }

    /// Counts a refused edge.
    pub fn refuse(&mut self, refusal: Refusal) {
        self.refused_edges += 1;
        *match refusal {
            Refusal::Matches => &mut self.refused_matches,
            Refusal::Directions => &mut self.refused_directions,
            Refusal::Spread => &mut self.refused_spread,
            Refusal::Undetermined => &mut self.refused_undetermined,
            Refusal::Odometry => &mut self.refused_odometry,
            Refusal::Trial => &mut self.refused_trials,
        } += 1;
    }

    /// Counts a reason for not reusing a keyframe.
    pub fn not_reused(&mut self, reason: Unused) {
        *match reason {
            Unused::FarAway => &mut self.unused_far,
            Unused::NoCandidate => &mut self.unused_no_candidate,
            Unused::Matches => &mut self.unused_matches,
            Unused::Directions => &mut self.unused_directions,
            Unused::Map => &mut self.unused_map,
        } += 1;
    }

    /// Counts an edge that entered the graph.
    pub fn count(&mut self, kind: EdgeKind) {
        match kind {
            EdgeKind::Consecutive => {}
            EdgeKind::Neighbour => self.neighbour_edges += 1,
            EdgeKind::Loop => self.loop_edges += 1,
            EdgeKind::Relocalisation => self.relocalisation_edges += 1,
        }
    }
}

/// The mapper's counters, published after each event.
#[derive(Debug, Clone, Default)]
pub struct SharedCounts(Arc<Mutex<MappingCounts>>);

impl SharedCounts {
    /// Replaces the published counters.
    pub fn publish(&self, counts: MappingCounts) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }

    /// The counters after the last event.
    pub fn read(&self) -> MappingCounts {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
