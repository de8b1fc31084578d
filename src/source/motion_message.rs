//! Messages of wheel odometry and of an IMU.

use super::motion::ImuReading;
use crate::time::Stamp;
use crate::wire::Payload;
use crate::wire::cdr::CdrError;
use crate::wire::messages::Message;
use crate::wire::messages::nav::Odometry;
use crate::wire::messages::sensor::Imu;
use nalgebra::{Isometry3, Vector3};

/// Why a message is not used.
#[derive(Debug, thiserror::Error)]
pub enum MotionMessageError {
    /// The message itself is broken.
    #[error(transparent)]
    Cdr(#[from] CdrError),
    /// The stamp is zero.
    #[error(
        "expected a message with a stamp, found 0: set the stamp to the time of the measurement"
    )]
    NoStamp,
    /// The pose is not finite or not a rotation.
    #[error("expected a pose of finite numbers and a unit quaternion, found {0}")]
    Pose(String),
    /// The sensor measures no rates.
    #[error(
        "expected an IMU with a gyro, found angular_velocity_covariance[0] = -1, which means that it has none"
    )]
    NoGyro,
}

/// A measurement and the frames that it is about.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured<T> {
    /// Time of the measurement.
    pub stamp: Stamp,
    /// The frame that the measurement is in; empty for rates.
    pub parent: String,
    /// The frame that moves: the base, or the sensor itself.
    pub frame: String,
    /// `odom_from_base` in metres, or what an IMU reads.
    pub value: T,
}

fn stamped(header: &crate::wire::messages::Header) -> Result<Stamp, MotionMessageError> {
    let stamp = Stamp::from(&header.stamp);
    match stamp.nanos {
        0 => Err(MotionMessageError::NoStamp),
        _ => Ok(stamp),
    }
}

/// Decodes a `nav_msgs/Odometry`.
///
/// # Errors
/// A message that is broken, has no stamp, or no pose.
pub fn odometry(payload: &Payload) -> Result<Measured<Isometry3<f64>>, MotionMessageError> {
    let message = Odometry::decode(payload)?;
    let pose = &message.pose.pose;
    let unusable =
        || MotionMessageError::Pose(format!("{:?} {:?}", pose.position, pose.orientation));
    Ok(Measured {
        stamp: stamped(&message.header)?,
        value: pose.isometry().ok_or_else(unusable)?,
        parent: message.header.frame_id,
        frame: message.child_frame_id,
    })
}

/// Decodes a `sensor_msgs/Imu`; whether its rates are sensible is for SLAM to judge. An IMU without an accelerometer says so
/// by `linear_acceleration_covariance[0] = -1`, and some by zeros.
///
/// # Errors
/// A message that is broken, has no stamp, or no rates.
pub fn imu(payload: &Payload) -> Result<Measured<ImuReading>, MotionMessageError> {
    let message = Imu::decode(payload)?;
    if message.angular_velocity_covariance[0] == -1.0 {
        return Err(MotionMessageError::NoGyro);
    }
    let (rate, felt) = (&message.angular_velocity, &message.linear_acceleration);
    let felt = Vector3::new(felt.x, felt.y, felt.z);
    let has = message.linear_acceleration_covariance[0] != -1.0 && felt != Vector3::zeros();
    Ok(Measured {
        stamp: stamped(&message.header)?,
        value: ImuReading {
            rate: Vector3::new(rate.x, rate.y, rate.z),
            acceleration: has.then_some(felt),
        },
        parent: String::new(),
        frame: message.header.frame_id,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::messages::Header;
    use crate::wire::messages::geometry::{Pose, Vector3 as Rate};

    fn text<T: std::fmt::Debug>(of: Result<T, MotionMessageError>) -> String {
        of.expect_err("a refusal").to_string()
    }

    #[test]
    fn a_pose_of_the_base_has_its_frames() {
        let pose = Isometry3::new(Vector3::new(1.0, 2.0, 0.0), Vector3::new(0.0, 0.0, 0.5));
        let mut message = Odometry {
            header: Header::new(Stamp { nanos: 7 }, "odom"),
            child_frame_id: "base_link".into(),
            ..Default::default()
        };
        message.pose.pose = Pose::from(&pose);
        let send = |message: &Odometry| odometry(&message.encode().expect("bytes").into());
        let read = send(&message).expect("a pose");
        assert_eq!(
            (read.stamp.nanos, read.parent.as_str(), read.frame.as_str()),
            (7, "odom", "base_link")
        );
        assert!((read.value.inverse() * pose).translation.vector.norm() < 1e-12);
        message.pose.pose.position.x = f64::NAN;
        assert!(text(send(&message)).contains("NaN"));
        message.pose.pose = Pose::default();
        message.pose.pose.orientation.w = 0.0;
        assert!(text(send(&message)).contains("unit quaternion"));
        message.pose.pose = Pose::from(&pose);
        message.header.stamp = Default::default();
        assert!(text(send(&message)).contains("stamp"));
        let noise = bytes::Bytes::from_static(&[0, 1, 0, 0, 9, 9]);
        assert!(odometry(&noise.into()).is_err());
    }

    #[test]
    fn an_imu_without_a_gyro_is_refused() {
        let mut message = Imu {
            header: Header::new(Stamp { nanos: 7 }, "imu"),
            angular_velocity: Rate {
                x: 0.1,
                y: -0.2,
                z: 0.3,
            },
            ..Default::default()
        };
        let send = |message: &Imu| imu(&message.encode().expect("bytes").into());
        let read = send(&message).expect("rates");
        let rate = Vector3::new(0.1, -0.2, 0.3);
        assert_eq!((read.frame.as_str(), read.value.rate), ("imu", rate));
        assert_eq!(read.value.acceleration, None, "zeros are no reading");
        message.linear_acceleration.y = 9.81;
        let felt = |message: &Imu| send(message).expect("rates").value.acceleration;
        assert_eq!(felt(&message), Some(Vector3::y() * 9.81));
        message.linear_acceleration_covariance[0] = -1.0;
        assert_eq!(felt(&message), None);
        message.angular_velocity_covariance[0] = -1.0;
        assert!(text(send(&message)).contains("gyro"));
    }
}
