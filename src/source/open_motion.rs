//! Opens the motion sensors of a sequence, whatever its layout.

#[cfg(feature = "bags")]
use super::bag;
use super::motion::{MotionOptions, MotionSource};
use super::{Layout, SourceError, detect, euroc, motion_text};
use std::path::Path;

/// Opens the motion sensors of the sequence at `path`, whose images are those of `camera_frame`: topics of a ROS 2 bag,
/// whose `/tf_static` has the mounts; `imu0` of EuRoC; or, in any folder, `odometry.txt` (`time x y z qx qy qz qw`, the
/// base in the odometry frame) and `gyro.txt` (`time x y z` in rad/s).
///
/// # Errors
/// A sensor that is asked for and is not there or is not unique, a mount that is not known, or a file that is damaged.
pub fn open_motion(
    path: &Path,
    options: &MotionOptions,
    camera_frame: Option<&str>,
) -> Result<MotionSource, SourceError> {
    let layout = detect(path)?;
    #[cfg(feature = "bags")]
    if layout == Layout::Bag {
        return bag::open_motion(path, options, camera_frame);
    }
    let _ = camera_frame;
    if options.odom_topic.is_some() || options.imu_topic.is_some() {
        let expected = "a ROS 2 bag, for --odom-topic and --imu-topic";
        return Err(SourceError::content(path, expected, layout.name()));
    }
    let wheels = options.wheels.then(|| motion_text::wheels(path, options));
    let gyro = options.gyro.then(|| match layout {
        Layout::Euroc => euroc::gyro(path, options),
        _ => motion_text::gyro(path, options),
    });
    Ok(MotionSource {
        wheels: wheels.transpose()?,
        gyro: gyro.transpose()?,
    })
}
