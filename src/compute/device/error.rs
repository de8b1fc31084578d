//! Why a device cannot go on.

use crate::image::ImageError;
use crate::inference::InferenceError;

/// What went wrong, in the device's own words.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a device cannot go on. Each of these ends a run; what was computed before is saved.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The network could not be run.
    #[error(transparent)]
    Inference(#[from] InferenceError),
    /// A camera image that cannot be used.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The device did not do what was asked.
    #[error("{device}: {cause}")]
    Failed {
        /// The device.
        device: &'static str,
        /// What went wrong.
        cause: Cause,
    },
    /// The device is gone, with all that it held.
    #[error(
        "{device} was lost: {cause}; keyframes' images and points that were on it are lost, the poses are not"
    )]
    Lost {
        /// The device.
        device: &'static str,
        /// What went wrong.
        cause: Cause,
    },
    /// An imported content that does not fit the network.
    #[error(
        "{device} cannot take {what} of {found} values, expected {expected}: they are of another network or image size"
    )]
    Content {
        /// The device.
        device: &'static str,
        /// Which part.
        what: &'static str,
        /// Values that belong to the network's shape.
        expected: usize,
        /// Values that there are.
        found: usize,
    },
    /// A keyframe, edge or ticket that the device does not hold: a defect of the caller.
    #[error("{device} holds no {what} {id}")]
    Unknown {
        /// The device.
        device: &'static str,
        /// `keyframe`, `edge`, `ticket`.
        what: &'static str,
        /// Its number.
        id: u32,
    },
}
