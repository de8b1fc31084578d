//! Options of `run` for motion sensors.

use super::CliError;
use crate::source::{self, MotionOptions, MotionSource};
use clap::Args;
use nalgebra::{Isometry3, Quaternion, Translation3, UnitQuaternion};
use std::path::Path;

/// Wheel odometry and gyro beside the images.
#[derive(Debug, Clone, Default, Args)]
pub struct MotionArgs {
    /// Use wheel odometry, which makes the map metric and bridges what the camera does not see: a topic of a bag, or
    /// odometry.txt in a folder (time x y z qx qy qz qw, the base in the odometry frame).
    #[arg(long)]
    pub wheels: bool,
    /// Use a gyro, which tells how the camera turns: a topic of a bag, imu0 of EuRoC, or gyro.txt in a folder (time x y z
    /// in rad/s).
    #[arg(long)]
    pub gyro: bool,
    /// Topic of the bag's wheel odometry, with --wheels implied [default: the only nav_msgs/Odometry].
    #[arg(long, value_name = "TOPIC")]
    pub odom_topic: Option<String>,
    /// Topic of the bag's IMU, with --gyro implied [default: the only sensor_msgs/Imu].
    #[arg(long, value_name = "TOPIC")]
    pub imu_topic: Option<String>,
    /// Pose of the camera's optical frame on the base, "x y z qx qy qz qw" in metres [default: /tf_static of a bag; a
    /// camera at the base that looks ahead].
    #[arg(long, value_name = "POSE", value_parser = pose, allow_hyphen_values = true)]
    pub base_from_camera: Option<Isometry3<f64>>,
    /// Pose of the IMU in the camera's optical frame, whose rotation counts, likewise [default: /tf_static of a bag,
    /// EuRoC's files; the camera's axes].
    #[arg(long, value_name = "POSE", value_parser = pose, allow_hyphen_values = true)]
    pub camera_from_imu: Option<Isometry3<f64>>,
}

fn pose(text: &str) -> Result<Isometry3<f64>, String> {
    let expected = || "expected seven numbers: x y z qx qy qz qw".to_owned();
    let fields = text.split(|c: char| c == ',' || c.is_whitespace());
    let numbers: Option<Vec<f64>> = fields
        .filter(|f| !f.is_empty())
        .map(|f| f.parse().ok().filter(|v: &f64| v.is_finite()))
        .collect();
    let Some(&[x, y, z, qx, qy, qz, qw]) = numbers.as_deref() else {
        return Err(expected());
    };
    let rotation = UnitQuaternion::try_new(Quaternion::new(qw, qx, qy, qz), 1e-6);
    let rotation = rotation.ok_or_else(|| "expected a quaternion that is not zero".to_owned())?;
    Ok(Isometry3::from_parts(Translation3::new(x, y, z), rotation))
}

impl MotionArgs {
    /// Opens the motion sensors of the sequence, if any are asked for.
    pub fn open(&self, path: &Path, camera_frame: Option<&str>) -> Result<MotionSource, CliError> {
        let options = MotionOptions {
            wheels: self.wheels || self.odom_topic.is_some(),
            gyro: self.gyro || self.imu_topic.is_some(),
            odom_topic: self.odom_topic.clone(),
            imu_topic: self.imu_topic.clone(),
            base_from_camera: self.base_from_camera,
            camera_from_imu: self.camera_from_imu.map(|place| place.rotation),
        };
        if !options.wheels && !options.gyro {
            return Ok(MotionSource::default());
        }
        Ok(source::open_motion(path, &options, camera_frame)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pose_is_seven_numbers() {
        let read = pose("0.2, 0 0.5  -0.5 0.5 -0.5 0.5").expect("a pose");
        assert_eq!(read.translation.vector.as_slice(), [0.2, 0.0, 0.5]);
        // The optical axis is ahead of the robot.
        let ahead = read.rotation * nalgebra::Vector3::z();
        assert!((ahead - nalgebra::Vector3::x()).norm() < 1e-12, "{ahead}");
        for wrong in [
            "",
            "1 2 3",
            "0 0 0 0 0 0 0",
            "0 0 0 0 0 0 x",
            "NaN 0 0 0 0 0 1",
        ] {
            assert!(pose(wrong).is_err(), "{wrong}");
        }
    }
}
