//! Sim(3), cameras, and nothing else: no images, no network.

mod camera;
mod sim3;

pub use camera::{Calibration, CalibrationError, Distortion, Intrinsics};
pub use sim3::{Sim3, Tangent};
