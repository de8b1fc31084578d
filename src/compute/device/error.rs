//! Why a device cannot go on.

use crate::inference::InferenceError;

/// Why a device cannot go on. Each of these ends a run; what was computed before is saved.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The network could not be run.
    #[error(transparent)]
    Inference(#[from] InferenceError),
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
