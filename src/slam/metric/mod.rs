//! Sensors that measure metres and rotations beside the camera: wheel odometry and gyroscope.

pub mod gyro;
pub mod gyro_calibration;
pub mod gyroscope;
pub mod motion;
pub mod motions;
pub mod mount;
pub mod sensors;
pub mod slip;
pub mod wheels;

#[cfg(test)]
mod drive;
