//! Device errors.

use crate::image::ImageError;
use crate::inference::InferenceError;

/// The underlying error of the device.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// A device error. Each of these ends the run; results so far are saved.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the text of an error names its fields")]
pub enum DeviceError {
    /// The network failed.
    #[error(transparent)]
    Inference(#[from] InferenceError),
    /// A camera image cannot be used.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// An operation of the device failed.
    #[error("{device}: {cause}")]
    Failed { device: &'static str, cause: Cause },
    /// The device is gone, together with everything stored on it.
    #[error(
        "{device} was lost: {cause}; images and points of keyframes stored on it are lost, poses are kept"
    )]
    Lost { device: &'static str, cause: Cause },
    /// Imported content does not match the network.
    #[error(
        "{device} cannot import {what} of {found} values, expected {expected}: the content belongs to another network or image size"
    )]
    Content {
        device: &'static str,
        what: &'static str,
        /// Number of values required by the network's shape.
        expected: usize,
        found: usize,
    },
    /// A mask for a device that was made without.
    #[error("pixels cannot be hidden: set tracking.masks to true before the start")]
    NoMasks,
    /// Depth for a device that was made without.
    #[error("depth cannot be used: set depth.use to true before the start")]
    NoDepth,
    /// The device does not hold this keyframe, edge or handle; indicates a defect in the caller.
    #[error("{device} does not hold {what} {id}")]
    Unknown {
        device: &'static str,
        what: &'static str,
        id: u32,
    },
}
