//! EuRoC MAV sequences (ASL layout): `mav0/cam0`.

use super::calibration::read_calibration;
use super::entry::Entry;
use super::list::{Camera, Listing};
use super::motion::{GyroSource, ImuReading, MotionOptions};
use super::motion_text::rows;
use super::stream::GroundTruth;
use super::{Layout, SourceError, data_lines, read_text, read_yaml};
use crate::time::Stamp;
use nalgebra::{Isometry3, Matrix3, Quaternion, Rotation3, Translation3, UnitQuaternion, Vector3};
use serde::Deserialize;
use std::io::Write;
use std::path::{Path, PathBuf};

pub(super) fn list(path: &Path) -> Result<Listing, SourceError> {
    let camera = camera_folder(path).ok_or_else(|| {
        SourceError::content(path, "an EuRoC sequence with mav0/cam0/data.csv", "none")
    })?;
    let sensor = camera.join("sensor.yaml");
    let calibration = sensor
        .is_file()
        .then(|| read_calibration(&sensor))
        .transpose()?;
    let truth = camera
        .parent()
        .map(|mav| mav.join("state_groundtruth_estimate0").join("data.csv"))
        .filter(|csv| csv.is_file() && sensor.is_file());
    Ok(Listing {
        kind: Layout::Euroc.name(),
        entries: entries(&camera)?,
        camera: Camera::or_unknown(calibration),
        depth: None,
        always_undistort: true,
        ground_truth: truth
            .map(|csv| convert_truth(&csv, &sensor))
            .transpose()?
            .map(GroundTruth::Converted),
    })
}

/// Parses lines of `nanoseconds,file`; files are in `data`.
fn entries(camera: &Path) -> Result<Vec<Entry>, SourceError> {
    let list = camera.join("data.csv");
    let text = read_text(&list)?;
    let mut entries: Vec<Entry> = Vec::new();
    for (number, line) in data_lines(&text) {
        let fail =
            |expected: &str, found: &str| SourceError::at_line(&list, number, expected, found);
        let Some((time, name)) = line.split_once(',') else {
            return Err(fail(
                "a time in nanoseconds, a comma, a file name",
                &format!("{line:?}"),
            ));
        };
        let nanos: i64 = time
            .trim()
            .parse()
            .map_err(|_| fail("a time in nanoseconds", &format!("{time:?}")))?;
        let stamp = Stamp { nanos };
        if let Some(last) = entries.last()
            && stamp <= last.stamp
        {
            let expected = format!("a time after {}, the image before it", last.stamp.nanos);
            return Err(fail(&expected, time));
        }
        let path = camera.join("data").join(name.trim());
        if !path.is_file() {
            let found = format!("{:?}, which does not exist", name.trim());
            return Err(fail("the name of an image file in data", &found));
        }
        entries.push(Entry { stamp, path });
    }
    if entries.is_empty() {
        return Err(SourceError::content(
            &list,
            "lines with a time and a file name",
            "none",
        ));
    }
    Ok(entries)
}

#[derive(Debug, Deserialize)]
struct Sensor {
    #[serde(rename = "T_BS")]
    body_from_sensor: Pose,
}

#[derive(Debug, Deserialize)]
struct Pose {
    data: Vec<f64>,
}

/// Converts body poses to camera poses, `T_WC = T_WB · T_BC`, in a temporary file in TUM format.
fn convert_truth(csv: &Path, sensor: &Path) -> Result<tempfile::TempPath, SourceError> {
    let sensor_yaml: Sensor = read_yaml(sensor, "T_BS, the camera's pose in the body")?;
    let m = sensor_yaml.body_from_sensor.data;
    let body_from_camera = isometry(&m).ok_or_else(|| {
        SourceError::content(
            sensor,
            "T_BS: 16 numbers of a rigid transformation",
            format!("{m:?}"),
        )
    })?;
    let text = read_text(csv)?;
    let mut out = String::from("# timestamp tx ty tz qx qy qz qw (camera to world)\n");
    for (number, line) in data_lines(&text) {
        let mut fields = line.split(',').map(str::trim);
        let nanos: Option<i64> = fields.next().and_then(|t| t.parse().ok());
        let values: Option<Vec<f64>> = fields.take(7).map(|t| t.parse().ok()).collect();
        let (Some(nanos), Some(&[x, y, z, qw, qx, qy, qz])) = (nanos, values.as_deref()) else {
            let expected = "a time in nanoseconds, a position and a quaternion w x y z";
            return Err(SourceError::at_line(
                csv,
                number,
                expected,
                format!("{line:?}"),
            ));
        };
        let rotation = UnitQuaternion::try_new(Quaternion::new(qw, qx, qy, qz), 1e-6);
        let world_from_body = match rotation {
            Some(rotation) if [x, y, z].iter().all(|v| v.is_finite()) => {
                Isometry3::from_parts(Translation3::new(x, y, z), rotation)
            }
            _ => {
                return Err(SourceError::at_line(
                    csv,
                    number,
                    "a finite pose",
                    format!("{line:?}"),
                ));
            }
        };
        push_pose(
            &mut out,
            Stamp { nanos },
            &(world_from_body * body_from_camera),
        );
    }
    temporary(&out)
}

/// Noise of a gyro in `imu0/sensor.yaml`.
#[derive(Debug, Deserialize)]
struct Imu {
    #[serde(rename = "T_BS")]
    body_from_sensor: Pose,
    gyroscope_noise_density: f64,
    gyroscope_random_walk: f64,
}

/// The gyro of `imu0` beside `cam0`.
///
/// # Errors
/// Files that are missing or damaged.
pub(super) fn gyro(path: &Path, options: &MotionOptions) -> Result<GyroSource, SourceError> {
    let missing = || SourceError::content(path, "imu0 beside cam0", "no such folder");
    let camera = camera_folder(path).ok_or_else(missing)?;
    let imu = camera.parent().ok_or_else(missing)?.join("imu0");
    let pose = |file: &Path, pose: &Pose| {
        let expected = "T_BS: 16 numbers of a rigid transformation";
        let found = || format!("{:?}", pose.data);
        isometry(&pose.data).ok_or_else(|| SourceError::content(file, expected, found()))
    };
    let sensor = imu.join("sensor.yaml");
    let known: Imu = read_yaml(&sensor, "T_BS and the noise of an IMU")?;
    let body_from_imu = pose(&sensor, &known.body_from_sensor)?;
    let camera_yaml = camera.join("sensor.yaml");
    let of_camera: Sensor = read_yaml(&camera_yaml, "T_BS, the camera's pose in the body")?;
    let body_from_camera = pose(&camera_yaml, &of_camera.body_from_sensor)?;
    let rows = rows::<6>(
        &imu.join("data.csv"),
        "a time in nanoseconds, three rates in rad/s and three accelerations in m/s²",
        |time| {
            Some(Stamp {
                nanos: time.parse().ok()?,
            })
        },
    )?;
    let readings = rows.into_iter().map(|(t, row)| (t, ImuReading::of(row)));
    let by_files = body_from_camera.rotation.inverse() * body_from_imu.rotation;
    Ok(GyroSource {
        camera_from_imu: options.camera_from_imu.unwrap_or(by_files),
        noise: Some((known.gyroscope_noise_density, known.gyroscope_random_walk)),
        readings: Box::new(readings),
    })
}

/// The folder `cam0` of an EuRoC sequence with root or `mav0` folder `path`.
pub(super) fn camera_folder(path: &Path) -> Option<PathBuf> {
    [path.join("mav0").join("cam0"), path.join("cam0")]
        .into_iter()
        .find(|camera| camera.join("data.csv").is_file())
}

/// Converts a row-major 4×4 matrix if it is a rigid transformation (to within 1e-3, to allow for
/// rounding).
pub(super) fn isometry(m: &[f64]) -> Option<Isometry3<f64>> {
    if m.len() != 16 || !m.iter().all(|v| v.is_finite()) {
        return None;
    }
    let r = Matrix3::new(m[0], m[1], m[2], m[4], m[5], m[6], m[8], m[9], m[10]);
    let orthogonal = (r * r.transpose() - Matrix3::identity()).amax() < 1e-3;
    if !orthogonal || r.determinant() < 0.0 {
        return None;
    }
    let rotation = UnitQuaternion::from_rotation_matrix(&Rotation3::from_matrix_unchecked(r));
    let t = Vector3::new(m[3], m[7], m[11]);
    Some(Isometry3::from_parts(t.into(), rotation))
}

/// Appends a line in TUM format.
pub(super) fn push_pose(out: &mut String, stamp: Stamp, pose: &Isometry3<f64>) {
    let (t, q) = (pose.translation.vector, pose.rotation.coords);
    out.push_str(&format!(
        "{stamp} {:.9} {:.9} {:.9} {:.9} {:.9} {:.9} {:.9}\n",
        t.x, t.y, t.z, q.x, q.y, q.z, q.w
    ));
}

/// Creates a file containing `text`, deleted when its path is dropped.
pub(super) fn temporary(text: &str) -> Result<tempfile::TempPath, SourceError> {
    let io = |cause| SourceError::Io {
        path: std::env::temp_dir(),
        cause,
    };
    let mut file = tempfile::Builder::new()
        .prefix("mast3r_slam_groundtruth_")
        .suffix(".txt")
        .tempfile()
        .map_err(io)?;
    file.write_all(text.as_bytes()).map_err(io)?;
    Ok(file.into_temp_path())
}
