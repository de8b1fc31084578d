//! The seam between SLAM policy and the machine that does the work.
//!
//! A device owns everything that is large: images, features, pointmaps, index maps, the matches of
//! edges. Policy (`slam`) holds ids, poses and fractions. A [`Device`] comes in two halves for two
//! threads: [`TrackingDevice`] follows the camera, [`MappingDevice`] keeps the map's keyframes and
//! edges. What goes from one half to the other travels as a [`Ticket`], so that the order of events
//! is policy's alone: the map changes when the mapping half is given a ticket and never before.

mod content;
mod error;
mod mapping;
mod ticket;
mod tracking;

use super::retrieval::RetrievalModel;
use crate::config::Config;
use crate::geometry::Intrinsics;
use crate::image::Preprocessor;
use std::sync::Arc;

pub use content::{ContentFormats, EdgeContent, Floats, KeyframeContent, MatchContent};
pub use error::{Cause, DeviceError};
pub use mapping::{EdgeId, GraphEdge, KeyframeBulk, MappingDevice, NewEdge, PoseGraph, TwoWay};
pub use ticket::{Exchange, Ticket};
pub use tracking::{
    Fit, Fractions, FramePoints, FrameTimes, LostReason, Outcome, Tracked, TrackingDevice,
};

/// Pointmaps and frames that may be on their way between the halves at once. What policy lets wait must
/// be fewer by those that it holds itself: the one being handed over, the last keyframe's and a lost frame's.
pub const HAND_OVERS: usize = 12;

/// What a device is made for.
#[derive(Clone)]
pub struct Setup {
    /// Gates, modes, stop rules.
    pub config: Arc<Config>,
    /// From the camera's images to the network's; none: they are the network's.
    pub preprocessor: Option<Preprocessor>,
    /// Of the network's images; with them the device works calibrated.
    pub intrinsics: Option<Intrinsics>,
    /// For recognising places; without it the device knows none.
    pub places: Option<Arc<RetrievalModel>>,
}

/// The two halves of one machine.
pub struct Device {
    /// Follows the camera.
    pub tracking: Box<dyn TrackingDevice>,
    /// Keeps the map's keyframes and edges.
    pub mapping: Box<dyn MappingDevice>,
}
