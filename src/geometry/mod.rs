//! Sim(3) transforms and camera models; independent of images and of the network.

mod camera;
mod line;
mod sim3;

pub use camera::{Calibration, CalibrationError, Distortion, Intrinsics};
pub(crate) use line::LineFit;
pub(crate) use sim3::rotation_log;
pub use sim3::{Sim3, Tangent};
