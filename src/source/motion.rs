//! Wheel odometry and gyro beside the images of a sequence.

use crate::time::Stamp;
use nalgebra::{Isometry3, UnitQuaternion, Vector3};

/// Which motion sensors to read, and where they are.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MotionOptions {
    /// Read wheel odometry.
    pub wheels: bool,
    /// Read a gyro.
    pub gyro: bool,
    /// `nav_msgs/Odometry` topic of a bag; `None`: the only one.
    pub odom_topic: Option<String>,
    /// `sensor_msgs/Imu` topic of a bag; `None`: the only one.
    pub imu_topic: Option<String>,
    /// Pose of the camera (z forward, x right, y down) on the robot's base (x forward, z up), in metres, in place of
    /// the sequence's own.
    pub base_from_camera: Option<Isometry3<f64>>,
    /// Rotation from the axes of the IMU to those of the camera, likewise.
    pub camera_from_imu: Option<UnitQuaternion<f64>>,
}

/// Measurements in order of recording.
pub type Series<T> = Box<dyn Iterator<Item = (Stamp, T)>>;

/// The motion sensors of a sequence, on the clock of its images.
#[derive(Default)]
pub struct MotionSource {
    /// Pose of the camera on the base in metres, and poses of the base in the odometry frame.
    pub wheels: Option<(Isometry3<f64>, Series<Isometry3<f64>>)>,
    /// The gyro.
    pub gyro: Option<GyroSource>,
}

/// The gyro of a sequence.
pub struct GyroSource {
    /// Rotation from the axes of the sensor to those of the camera.
    pub camera_from_imu: UnitQuaternion<f64>,
    /// White noise in rad/s/√Hz and random walk in rad/s²/√Hz, if the sequence says so.
    pub noise: Option<(f64, f64)>,
    /// Readings in order.
    pub readings: Series<ImuReading>,
}

/// A reading of an IMU, in its axes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ImuReading {
    /// Angular rates in rad/s.
    pub rate: Vector3<f64>,
    /// Acceleration less gravity in m/s², if there is an accelerometer.
    pub acceleration: Option<Vector3<f64>>,
}

impl ImuReading {
    /// A row of three rates and three accelerations.
    pub(super) fn of([x, y, z, a, b, c]: [f64; 6]) -> Self {
        Self {
            rate: Vector3::new(x, y, z),
            acceleration: Some(Vector3::new(a, b, c)),
        }
    }

    /// Rates alone.
    pub(super) fn of_rate(rate: [f64; 3]) -> Self {
        Self {
            rate: rate.into(),
            acceleration: None,
        }
    }
}
