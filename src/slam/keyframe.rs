//! Keyframes as the tracker and the mapper hold them.

use crate::compute::fusion::FusedPointmap;
use crate::geometry::Sim3;
use crate::image::RgbImage;
use crate::time::Stamp;
use std::sync::Arc;

/// What never changes about a keyframe; shared by both threads.
#[derive(Debug)]
pub struct KeyframeData {
    /// Its number: keyframes are counted from 0 in order of creation.
    pub id: u32,
    /// Index in the source.
    pub frame_index: usize,
    /// The image's time.
    pub stamp: Stamp,
    /// The network's input.
    pub image: Arc<RgbImage>,
    /// `T × C` encoder tokens.
    pub features: Vec<f32>,
}

/// A keyframe's place relative to an older one, valid whatever happens to the older one's pose.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Anchor {
    /// The older keyframe.
    pub keyframe: u32,
    /// This camera to the older keyframe's camera.
    pub keyframe_from_camera: Sim3,
}

/// The keyframe that frames are tracked against. Its pointmap grows with every tracked frame.
pub struct ActiveKeyframe {
    /// Fixed part.
    pub data: Arc<KeyframeData>,
    /// Fused points, in the keyframe's camera.
    pub pointmap: FusedPointmap,
    /// The last frame's index map onto this keyframe, the next search's start (B37: it lives and
    /// dies with its keyframe).
    pub index: Vec<u32>,
    /// Whether `index` holds anything.
    pub has_index: bool,
    /// The last tracked frame's camera to this keyframe's, the next frame's prior.
    pub keyframe_from_frame: Sim3,
    /// Frames tracked against it.
    pub tracked: usize,
}

impl ActiveKeyframe {
    /// A keyframe whose first estimate is `pointmap`; its own frame is the prior for the next.
    pub fn new(data: Arc<KeyframeData>, pointmap: FusedPointmap, pixels: usize) -> Self {
        Self {
            data,
            pointmap,
            index: vec![0; pixels],
            has_index: false,
            keyframe_from_frame: Sim3::identity(),
            tracked: 0,
        }
    }
}

/// Points and average confidences of a keyframe at one moment.
#[derive(Debug, Clone)]
pub struct Pointmap {
    /// `N × 3`.
    pub points: Vec<f32>,
    /// `N`.
    pub confidence: Vec<f32>,
}

/// A published state of the graph's poses: what the tracker and readers see. Immutable; a solve
/// publishes the next one (B28).
#[derive(Debug, Clone, Default)]
pub struct PoseTable {
    /// Counts publications.
    pub version: u64,
    /// `world_from_camera` by keyframe id.
    pub poses: Vec<Sim3>,
    /// Submap by keyframe id.
    pub submaps: Vec<u32>,
    /// Pairs of keyframes that an edge connects.
    pub edges: Vec<(u32, u32)>,
}
