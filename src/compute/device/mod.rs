//! The seam between SLAM policy and the machine that does the work.
//!
//! A device owns everything that is large: images, features, pointmaps, index maps, the matches of
//! edges. Policy (`slam`) holds ids, poses and fractions. A [`Device`] comes in two halves for two
//! threads: [`TrackingDevice`] follows the camera, [`MappingDevice`] keeps the map's keyframes and
//! edges. What goes from one half to the other travels as a [`Ticket`], so that the order of events
//! is policy's alone: the map changes when the mapping half is given a ticket and never before.

mod error;
mod mapping;
mod ticket;
mod tracking;

pub use error::DeviceError;
pub use mapping::{EdgeId, GraphEdge, KeyframeBulk, MappingDevice, NewEdge, PoseGraph, TwoWay};
pub use ticket::{Exchange, Ticket};
pub use tracking::{Fractions, FrameTimes, LostReason, Outcome, Tracked, TrackingDevice};

/// The two halves of one machine.
pub struct Device {
    /// Follows the camera.
    pub tracking: Box<dyn TrackingDevice>,
    /// Keeps the map's keyframes and edges.
    pub mapping: Box<dyn MappingDevice>,
}
