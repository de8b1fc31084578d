//! SLAM's inputs beside the camera: wheel odometry and gyroscope.

use super::Slam;
use super::frame::{FrameOutcome, Place};
use super::metric::gravity::Up;
use super::metric::gyro::{GyroError, GyroNoise};
use super::metric::wheels::OdometryError;
use super::pose_table::Anchor;
use super::sensors::{Bridge, MotionStatus};
use crate::time::Stamp;
use nalgebra::{Isometry3, UnitQuaternion, Vector3};

/// Data of the sensors about a frame.
pub(super) struct Sensed {
    /// Where odometry says that it is, if it was lost.
    pub bridge: Option<(Anchor, Bridge)>,
    /// Its motion by wheels since the frame before, if they bridged either.
    pub step: Option<Isometry3<f64>>,
}

impl Slam {
    /// Sets where the camera (z forward, x right, y down) is mounted on the robot's base (x forward, z up), in metres:
    /// from now on [`Slam::add_odometry`] is used. Poses added before are dropped.
    pub fn set_odometry_mount(&mut self, base_from_camera: Isometry3<f64>) {
        self.tracker
            .sensors_mut()
            .set_odometry_mount(base_from_camera);
    }

    /// Adds a pose of the robot's base in its odometry frame, in metres, on the clock of the frames' stamps. Add poses
    /// as they come, before the frame with their stamp if that is possible; the newest 30 s are kept. Wheel odometry
    /// predicts where the camera is, gives the map its scale in metres, and tells where the camera is while it sees
    /// nothing ([`TrackedFrame::bridge`](super::TrackedFrame::bridge)). Ignored before [`Slam::set_odometry_mount`].
    ///
    /// # Errors
    /// A pose that is not finite, or a stamp that is not after that of the newest pose: the pose is ignored.
    pub fn add_odometry(
        &mut self,
        stamp: Stamp,
        odom_from_base: &Isometry3<f64>,
    ) -> Result<(), OdometryError> {
        self.tracker
            .sensors_mut()
            .add_odometry(stamp, odom_from_base)
    }

    /// Sets how the axes of a gyroscope are turned against the camera's, and its noise: from now on [`Slam::add_gyro`]
    /// is used. Rates added before are dropped.
    pub fn set_gyro_mount(&mut self, camera_from_imu: UnitQuaternion<f64>, noise: GyroNoise) {
        self.tracker
            .sensors_mut()
            .set_gyro_mount(camera_from_imu, noise);
    }

    /// Adds an angular rate in rad/s about the gyroscope's axes, on the clock of the frames' stamps. Add rates as they
    /// come; the newest 10 s are kept. The gyro predicts the camera's rotation; its bias and the offset of its clock are
    /// found from what the camera sees. Ignored before [`Slam::set_gyro_mount`].
    ///
    /// # Errors
    /// A rate that no gyroscope measures, or a stamp that is not after that of the newest rate: the rate is ignored.
    pub fn add_gyro(&mut self, stamp: Stamp, rate: &Vector3<f64>) -> Result<(), GyroError> {
        self.tracker.sensors_mut().add_gyro(stamp, rate)
    }

    /// Adds a reading of the gyroscope's accelerometer in m/s² along its axes: about 9.81 upwards at rest (REP-145). It
    /// shows which way is up ([`TrackedFrame::up`](super::TrackedFrame::up)). A reading that no robot feels, or that is
    /// not newer than the last, is ignored, as are all before [`Slam::set_gyro_mount`].
    pub fn add_acceleration(&mut self, stamp: Stamp, reading: &Vector3<f64>) {
        self.tracker.sensors_mut().add_acceleration(stamp, reading);
    }

    /// Up in the world of the map by an accelerometer, once known to 3.5 degrees.
    pub fn up(&self) -> Option<Up> {
        self.tracker.sensors().up(self.map.poses())
    }

    /// What wheel odometry and gyroscope have contributed so far.
    pub fn motion_status(&self) -> MotionStatus {
        self.tracker.sensors().status()
    }

    /// Tells the sensors what became of a frame.
    pub(super) fn sense(&mut self, stamp: Stamp, outcome: &FrameOutcome) -> Sensed {
        let sensors = self.tracker.sensors_mut();
        if let Some(id) = outcome.keyframe {
            sensors.start_keyframe(id, stamp);
        }
        let bridge = match outcome.anchor {
            Some(anchor) => {
                let step = outcome.step.as_ref();
                sensors.locate(stamp, anchor, step, outcome.covariance);
                None
            }
            None => sensors.bridge(stamp, self.map.poses()),
        };
        let step = sensors.note_frame(stamp, bridge.is_some());
        Sensed { bridge, step }
    }

    /// Tells the sensors where the earlier frame with this stamp was found.
    pub(super) fn locate_earlier(&mut self, stamp: Stamp, place: &Place) {
        let sensors = self.tracker.sensors_mut();
        sensors.locate(stamp, place.anchor, None, None);
        if let Some(id) = place.keyframe {
            sensors.start_keyframe(id, stamp);
        }
    }
}
