//! Where depth images come from.

use crate::geometry::Calibration;
use nalgebra::Isometry3;

/// The camera that depth images come from.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(
    clippy::large_enum_variant,
    reason = "there is one for a sensor, and it is copied"
)]
pub enum DepthCamera {
    /// The depth images show what the camera's raw images show, at the same or another size.
    Registered,
    /// A camera of its own.
    Own(OwnCamera),
}

/// A depth camera beside the colour camera.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OwnCamera {
    /// Calibration of the depth images.
    pub calibration: Calibration,
    /// Pose of the depth camera in the colour camera; both optical frames (x right, y down, z forward).
    pub colour_from_depth: Isometry3<f64>,
    /// Calibration of the raw colour images; `None` if it is that of the run.
    pub colour: Option<Calibration>,
}
