//! What lasts: trajectories, keyframes, the cloud, and their files.
//!
//! Each unconnected submap has a coordinate frame of its own, so files that hold poses or points
//! come once for each: `trajectory.txt` is submap 0, `trajectory_submap1.txt` the next (see
//! [`submap_path`]).

pub mod atomic;
pub mod cloud;
pub mod colmap;
pub mod csv;
pub mod keyframes;
pub mod ply;
pub mod report;
pub mod saved;
pub mod trajectory;

pub use atomic::ExportError;
pub use cloud::{CloudOptions, CloudPoint};
pub use trajectory::StampedPose;

use crate::geometry::{Intrinsics, Sim3};
use crate::image::RgbImage;
use crate::time::Stamp;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the tracker knew when a frame's pose was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TrackingState {
    /// The first frame of a (sub)map, from the network's mono prediction.
    Initialising,
    /// Tracked against a keyframe.
    Tracking,
    /// Not tracked; the pose is the last known one.
    Lost,
    /// Found again in this frame.
    Relocalised,
}

impl TrackingState {
    /// Lower-case name, as written to files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Initialising => "initialising",
            Self::Tracking => "tracking",
            Self::Lost => "lost",
            Self::Relocalised => "relocalised",
        }
    }
}

/// Milliseconds spent on one frame, by stage. Zero where a stage did not run.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StageTimes {
    /// Resize, crop, undistort.
    pub preprocess: f64,
    /// Encoder.
    pub encode: f64,
    /// Decoder and heads.
    pub decode: f64,
    /// Projective search and descriptor refinement.
    pub matching: f64,
    /// Relative pose.
    pub tracking: f64,
    /// Pointmap fusion and the keyframe decision.
    pub fusion: f64,
    /// Retrieval, edges and global optimisation (only what this frame waited for).
    pub mapping: f64,
    /// The whole frame.
    pub total: f64,
}

/// One processed frame.
#[derive(Debug, Clone, PartialEq)]
pub struct FrameRecord {
    /// Index in the source.
    pub index: usize,
    /// The image's time.
    pub stamp: Stamp,
    /// How the pose was found.
    pub state: TrackingState,
    /// Camera to world; after the run, relative to the optimised keyframe that it was tracked against.
    pub world_from_camera: Sim3,
    /// Whether this frame became a keyframe, and which.
    pub keyframe: Option<u32>,
    /// Which unconnected map the pose belongs to: 0, and one more each time tracking was lost for good.
    pub submap: u32,
    /// Fraction of pixels with an accepted match.
    pub match_fraction: f32,
    /// Fraction of distinct pixels matched.
    pub unique_fraction: f32,
    /// Gauss-Newton iterations.
    pub iterations: u32,
    /// Time by stage.
    pub times: StageTimes,
}

impl FrameRecord {
    /// A frame of which nothing is known but its camera's last pose.
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

/// One keyframe of the finished map.
#[derive(Debug, Clone)]
pub struct KeyframeRecord {
    /// Its number.
    pub id: u32,
    /// Index in the source.
    pub frame_index: usize,
    /// The image's time.
    pub stamp: Stamp,
    /// Which unconnected map it belongs to.
    pub submap: u32,
    /// Camera to world, with the keyframe's scale.
    pub world_from_camera: Sim3,
    /// The network's input image; 0×0 with no points if the device that held them was lost.
    pub image: Arc<RgbImage>,
    /// `N × 3` points in the keyframe's camera, before scale.
    pub points: Arc<Vec<f32>>,
    /// `N` average confidences.
    pub confidence: Arc<Vec<f32>>,
}

/// An edge of the factor graph, between two keyframe ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapEdge {
    /// One keyframe.
    pub i: u32,
    /// The other.
    pub j: u32,
    /// What proposed it.
    pub kind: EdgeKind,
}

/// What proposed an edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EdgeKind {
    /// Tracking: the keyframe that a new one was tracked against.
    Consecutive,
    /// The order of keyframes: one shortly before (`local_opt.neighbours`).
    Neighbour,
    /// Place recognition: a place seen before.
    Loop,
    /// Relocalisation: where a lost frame was found.
    Relocalisation,
}

/// Everything that outlasts a run.
#[derive(Debug, Clone, Default)]
pub struct MapSnapshot {
    /// Of the network's input image, when calibrated.
    pub intrinsics: Option<Intrinsics>,
    /// In order of creation.
    pub keyframes: Vec<KeyframeRecord>,
    /// What the factor graph connects keyframes with.
    pub edges: Vec<MapEdge>,
    /// Every processed frame in order.
    pub frames: Vec<FrameRecord>,
}

impl MapSnapshot {
    /// Edges that close a loop: to keyframes that were found by what they show.
    pub fn loop_edges(&self) -> impl Iterator<Item = &MapEdge> {
        let found = |e: &&MapEdge| matches!(e.kind, EdgeKind::Loop | EdgeKind::Relocalisation);
        self.edges.iter().filter(found)
    }

    /// The submaps that hold a frame or a keyframe, ascending. Empty for an empty map.
    pub fn submaps(&self) -> Vec<u32> {
        let frames = self.frames.iter().map(|f| f.submap);
        let mut all: Vec<u32> = frames
            .chain(self.keyframes.iter().map(|k| k.submap))
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The submap with the most tracked frames (then keyframes; then the first): what a picture shows.
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

/// Where a submap's part of `path` goes: `path` itself for submap 0, else `stem_submapN.ext`.
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

/// `submaps` with 0 in it, so that the main file is always written.
fn with_first(mut submaps: Vec<u32>) -> Vec<u32> {
    if submaps.first() != Some(&0) {
        submaps.insert(0, 0);
    }
    submaps
}
