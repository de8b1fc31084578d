//! The interface between SLAM policy and the device that computes.
//!
//! A device owns all large data: images, features, pointmaps, index maps, and the matches of edges.
//! Policy (`slam`) holds ids, poses and fractions. A [`Device`] consists of two halves for two
//! threads: [`TrackingDevice`] tracks the camera, [`MappingDevice`] stores the map's keyframes and
//! edges. Items pass from one half to the other as a [`Handle`], so that policy alone determines
//! the order of events: the map changes only when the mapping half is given a handle.

mod content;
mod error;
mod handle;
mod mapping;
mod tracking;

use super::retrieval::RetrievalModel;
use crate::config::DeviceConfig;
use crate::geometry::Intrinsics;
use crate::image::Preprocessor;
use std::sync::Arc;

pub use content::{ContentFormats, EdgeContent, Floats, KeyframeContent, MatchContent};
pub use error::{Cause, DeviceError};
pub use handle::{HandOff, Handle};
pub use mapping::{
    EdgeId, GraphEdge, KeyframeBulk, MappingDevice, NeighbourView, NewEdge, PoseGraph, TwoWay,
};
pub use tracking::{
    Fit, Fractions, FramePoints, LostReason, MemoryPool, Outcome, SeenFrame, Tracked,
    TrackingDevice,
};

/// Maximum number of pointmaps and frames in transit between the halves. The queue of policy must
/// be shorter by the items that policy itself holds: the one being handed over, the last
/// keyframe's, and a lost frame's.
pub const HAND_OVERS: usize = 12;

/// Parameters for creating a device.
#[derive(Clone)]
pub struct Setup {
    pub config: Arc<DeviceConfig>,
    /// Converts camera images to network images; without it, they are identical.
    pub preprocessor: Option<Preprocessor>,
    /// Intrinsics of the network images; if present, the device works calibrated.
    pub intrinsics: Option<Intrinsics>,
    /// Model for place recognition; without it, the device has none.
    pub places: Option<Arc<RetrievalModel>>,
}

/// The two halves of a device.
pub struct Device {
    pub tracking: Box<dyn TrackingDevice>,
    pub mapping: Box<dyn MappingDevice>,
}
