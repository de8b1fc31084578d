//! Keyframes as policy knows them: ids and poses.

use crate::geometry::Sim3;
use crate::map::MapEdge;
use crate::time::Stamp;

/// A keyframe's place relative to an older one, valid whatever happens to the older one's pose.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Anchor {
    /// The older keyframe.
    pub keyframe: u32,
    /// This camera to the older keyframe's camera.
    pub keyframe_from_camera: Sim3,
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
    /// Time of the image by keyframe id.
    pub stamps: Vec<Stamp>,
    /// What connects them.
    pub edges: Vec<MapEdge>,
}
