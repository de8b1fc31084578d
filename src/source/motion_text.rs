//! Wheel odometry and gyro in text files.

use super::motion::{GyroSource, ImuReading, MotionOptions, Series};
use super::{SourceError, data_lines, read_text};
use crate::time::Stamp;
use nalgebra::{Isometry3, Quaternion, Translation3, UnitQuaternion};
use std::path::Path;

/// A camera that looks along the base's x axis, at its origin (REP-103).
fn looking_ahead() -> Isometry3<f64> {
    let rotation = UnitQuaternion::from_quaternion(Quaternion::new(0.5, -0.5, 0.5, -0.5));
    Isometry3::from_parts(Translation3::identity(), rotation)
}

/// Rows of a time and `N` numbers, separated by spaces or commas; `time` reads the first field, `expected` describes a
/// row. Further fields are ignored.
///
/// # Errors
/// A file that cannot be read, a row that is not as described, a time that does not ascend, or no row.
pub(super) fn rows<const N: usize>(
    path: &Path,
    expected: &str,
    time: impl Fn(&str) -> Option<Stamp>,
) -> Result<Vec<(Stamp, [f64; N])>, SourceError> {
    let text = read_text(path)?;
    let mut rows: Vec<(Stamp, [f64; N])> = Vec::new();
    for (number, line) in data_lines(&text) {
        let separated = line.split(|c: char| c == ',' || c.is_whitespace());
        let mut fields = separated.filter(|f| !f.is_empty());
        let stamp = fields.next().and_then(&time);
        let mut values = [0.0; N];
        let mut complete = true;
        for value in &mut values {
            let read = fields.next().and_then(|f| f.parse().ok());
            let read = read.filter(|v: &f64| v.is_finite());
            complete &= read.is_some();
            *value = read.unwrap_or_default();
        }
        let fail =
            |expected: &str| SourceError::at_line(path, number, expected, format!("{line:?}"));
        let stamp = stamp.filter(|_| complete).ok_or_else(|| fail(expected))?;
        if rows.last().is_some_and(|(last, _)| stamp <= *last) {
            return Err(fail("times that ascend"));
        }
        rows.push((stamp, values));
    }
    match rows.is_empty() {
        true => Err(SourceError::content(path, expected, "no row")),
        false => Ok(rows),
    }
}

/// `odometry.txt`, with the camera at the base and looking ahead unless the options say otherwise.
pub(super) fn wheels(
    folder: &Path,
    options: &MotionOptions,
) -> Result<(Isometry3<f64>, Series<Isometry3<f64>>), SourceError> {
    let path = folder.join("odometry.txt");
    let expected = "a time in seconds, a position and a quaternion x y z w";
    let rows = rows::<7>(&path, expected, |t| t.parse().ok())?;
    let mut poses = Vec::with_capacity(rows.len());
    for (stamp, [x, y, z, qx, qy, qz, qw]) in rows {
        let rotation = UnitQuaternion::try_new(Quaternion::new(qw, qx, qy, qz), 1e-6);
        let rotation = rotation.ok_or_else(|| {
            SourceError::content(&path, expected, format!("a quaternion of zeros at {stamp}"))
        })?;
        poses.push((
            stamp,
            Isometry3::from_parts(Translation3::new(x, y, z), rotation),
        ));
    }
    let mount = options.base_from_camera.unwrap_or_else(looking_ahead);
    Ok((mount, Box::new(poses.into_iter())))
}

/// `gyro.txt`, about the camera's axes unless the options say otherwise; with an accelerometer if each row has three more
/// numbers.
pub(super) fn gyro(folder: &Path, options: &MotionOptions) -> Result<GyroSource, SourceError> {
    let path = folder.join("gyro.txt");
    let expected = "a time in seconds and three rates in rad/s";
    let time = |t: &str| t.parse().ok();
    let readings: Series<ImuReading> = match rows::<6>(&path, expected, time) {
        Ok(rows) => Box::new(rows.into_iter().map(|(t, row)| (t, ImuReading::of(row)))),
        Err(_) => {
            let rows = rows::<3>(&path, expected, time)?;
            Box::new(
                rows.into_iter()
                    .map(|(t, row)| (t, ImuReading::of_rate(row))),
            )
        }
    };
    Ok(GyroSource {
        camera_from_imu: options.camera_from_imu.unwrap_or_default(),
        noise: None,
        readings,
    })
}
