//! Map results: trajectories, keyframes, point clouds, and their files.
//!
//! Each unconnected submap has its own coordinate frame, so files with poses or points are written
//! per submap: `trajectory.txt` is submap 0, `trajectory_submap1.txt` the next (see
//! [`submap_path`]).

pub mod cloud;
pub mod colmap;
pub mod content;
pub mod csv;
pub mod grid;
pub mod keyframes;
pub mod ply;
pub mod saved;
pub mod splat;
pub mod store;
pub mod trajectories;

pub use cloud::{CloudOptions, CloudPoint};
pub use content::{Content, KeyframeView, ReadKeyframe};

use crate::geometry::{Intrinsics, Sim3};
use crate::time::{StageTimes, Stamp};
use std::fmt;
use std::path::{Path, PathBuf};

/// Tracking state when a frame's pose was determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TrackingState {
    /// First frame of a (sub)map; the pointmap comes from the network's prediction for a single
    /// image.
    Initialising,
    /// Tracked against a keyframe.
    Tracking,
    /// Tracking failed; the pose is the last known one.
    Lost,
    /// Relocalised in this frame.
    Relocalised,
}

impl TrackingState {
    /// Lower-case name used in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Initialising => "initialising",
            Self::Tracking => "tracking",
            Self::Lost => "lost",
            Self::Relocalised => "relocalised",
        }
    }
}

impl fmt::Display for TrackingState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Record of one processed frame.
#[derive(Debug, Clone, PartialEq)]
pub struct FrameRecord {
    /// Index in the source.
    pub index: usize,
    /// The image's time.
    pub stamp: Stamp,
    /// How the pose was found.
    pub state: TrackingState,
    /// Camera to world; after the run, relative to the optimised keyframe that it was tracked
    /// against.
    pub world_from_camera: Sim3,
    /// Id of the keyframe that this frame became, if any.
    pub keyframe: Option<u32>,
    /// Unconnected submap of the pose: 0, plus one for each time tracking was lost permanently.
    pub submap: u32,
    /// Fraction of pixels with an accepted match.
    pub match_fraction: f32,
    /// Fraction of distinct keyframe pixels matched.
    pub unique_fraction: f32,
    /// Gauss-Newton iterations.
    pub iterations: u32,
    /// Time by stage.
    pub times: StageTimes,
}

impl FrameRecord {
    /// Record of a frame without information other than the last known camera pose.
    pub fn lost(index: usize, stamp: Stamp, world_from_camera: Sim3) -> Self {
        Self {
            index,
            stamp,
            state: TrackingState::Lost,
            world_from_camera,
            keyframe: None,
            submap: 0,
            match_fraction: 0.0,
            unique_fraction: 0.0,
            iterations: 0,
            times: StageTimes::default(),
        }
    }
}

/// A keyframe of the finished map.
#[derive(Debug, Clone)]
pub struct KeyframeRecord {
    /// Number of the keyframe, from 0.
    pub id: u32,
    /// Index of the frame in the source.
    pub frame_index: usize,
    /// The image's time.
    pub stamp: Stamp,
    /// Unconnected submap of the keyframe.
    pub submap: u32,
    /// Camera to world, with the keyframe's scale.
    pub world_from_camera: Sim3,
    /// Where its image and points are: [`KeyframeRecord::view`].
    pub content: Content,
}

/// An edge of the factor graph between two keyframes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapEdge {
    /// One keyframe.
    pub i: u32,
    /// The other keyframe.
    pub j: u32,
    /// Origin of the edge.
    pub kind: EdgeKind,
}

/// The mechanism that proposed an edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EdgeKind {
    /// Tracking: a new keyframe and the one it was tracked against.
    Consecutive,
    /// Keyframe order: a keyframe shortly before (`local_opt.neighbours`).
    Neighbour,
    /// Place recognition: a revisited place.
    Loop,
    /// Relocalisation of a lost frame.
    Relocalisation,
}

/// All results of a run.
#[derive(Debug, Clone, Default)]
pub struct MapSnapshot {
    /// Intrinsics of the network's input images, if calibrated.
    pub intrinsics: Option<Intrinsics>,
    /// Keyframes in order of creation.
    pub keyframes: Vec<KeyframeRecord>,
    /// Edges of the factor graph.
    pub edges: Vec<MapEdge>,
    /// All processed frames in order.
    pub frames: Vec<FrameRecord>,
}

impl MapSnapshot {
    /// Loop edges: to keyframes found by appearance.
    pub fn loop_edges(&self) -> impl Iterator<Item = &MapEdge> {
        let found = |e: &&MapEdge| matches!(e.kind, EdgeKind::Loop | EdgeKind::Relocalisation);
        self.edges.iter().filter(found)
    }

    /// Ids of submaps with a frame or a keyframe, ascending. Empty for an empty map.
    pub fn submaps(&self) -> Vec<u32> {
        let frames = self.frames.iter().map(|f| f.submap);
        let mut all: Vec<u32> = frames
            .chain(self.keyframes.iter().map(|k| k.submap))
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The submap with the most tracked frames; ties are broken by keyframes, then by order.
    pub fn largest_submap(&self) -> u32 {
        let size = |s: u32| {
            let tracked = |f: &&FrameRecord| f.submap == s && f.state != TrackingState::Lost;
            (
                self.frames.iter().filter(tracked).count(),
                self.keyframes.iter().filter(|k| k.submap == s).count(),
                std::cmp::Reverse(s),
            )
        };
        self.submaps()
            .into_iter()
            .max_by_key(|&s| size(s))
            .unwrap_or(0)
    }
}

/// The file for a submap: `path` itself for submap 0, otherwise `stem_submapN.ext`.
pub fn submap_path(path: &Path, submap: u32) -> PathBuf {
    if submap == 0 {
        return path.to_owned();
    }
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("_submap{submap}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// `submaps` with 0 included, so that the main file is always written.
fn with_first(mut submaps: Vec<u32>) -> Vec<u32> {
    if submaps.first() != Some(&0) {
        submaps.insert(0, 0);
    }
    submaps
}
