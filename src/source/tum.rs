//! TUM RGB-D and ETH3D-SLAM sequences: a folder with `rgb.txt`.

use super::calibration::{depth_factor, read_calibration, validated};
use super::depth::{DepthFiles, DepthOptions, units};
use super::entry::Entry;
use super::list::{Camera, Listing};
use super::names::path_components;
use super::stream::GroundTruth;
use super::{Layout, SourceError, data_lines, read_text};
use crate::geometry::{Calibration, Distortion, Intrinsics};
use crate::image::depth::DepthCamera;
use crate::time::Stamp;
use std::path::Path;

pub(super) fn list(folder: &Path, eth3d: bool) -> Result<Listing, SourceError> {
    let truth = folder.join("groundtruth.txt");
    Ok(Listing {
        kind: if eth3d { Layout::Eth3d } else { Layout::Tum }.name(),
        entries: entries(folder, &folder.join("rgb.txt"))?,
        camera: camera(folder)?,
        depth: None,
        always_undistort: false,
        ground_truth: truth.is_file().then_some(GroundTruth::File(truth)),
    })
}

/// Steps per metre of both datasets.
const UNITS: f64 = 5000.0;

/// The files of `depth.txt`, registered to the colour images.
pub(super) fn depth(folder: &Path, options: &DepthOptions) -> Result<DepthFiles, SourceError> {
    let yaml = folder.join("camera.yaml");
    let factor = match yaml.is_file() {
        true => depth_factor(&yaml)?,
        false => None,
    };
    Ok(DepthFiles {
        entries: entries(folder, &folder.join("depth.txt"))?,
        units: units(options, factor.unwrap_or(UNITS)),
        camera: DepthCamera::Registered,
    })
}

/// Parses lines of `time file`, with files relative to the folder.
fn entries(folder: &Path, list: &Path) -> Result<Vec<Entry>, SourceError> {
    let text = read_text(list)?;
    let mut entries: Vec<Entry> = Vec::new();
    for (number, line) in data_lines(&text) {
        let fail =
            |expected: &str, found: &str| SourceError::at_line(list, number, expected, found);
        let Some((time, name)) = line.split_once(char::is_whitespace) else {
            return Err(fail("a time and a file name", &format!("{line:?}")));
        };
        let stamp: Stamp = time
            .parse()
            .map_err(|_| fail("a time in seconds", &format!("{time:?}")))?;
        if let Some(last) = entries.last()
            && stamp <= last.stamp
        {
            let expected = format!("a time after {}, the image before it", last.stamp);
            return Err(fail(&expected, time));
        }
        let path = folder.join(name.trim());
        if !path.is_file() {
            return Err(fail(
                "the name of an image file",
                &format!("{:?}, which does not exist", name.trim()),
            ));
        }
        entries.push(Entry { stamp, path });
    }
    if entries.is_empty() {
        let expected = "lines with a time and a file name";
        return Err(SourceError::content(list, expected, "none"));
    }
    Ok(entries)
}

/// Calibration from `camera.yaml`, else from ETH3D's `calibration.txt`, else from the name
/// `freiburg1`, `2` or `3` in the path.
fn camera(folder: &Path) -> Result<Camera, SourceError> {
    let yaml = folder.join("camera.yaml");
    if yaml.is_file() {
        return Ok(Camera::Known(read_calibration(&yaml)?));
    }
    let text = folder.join("calibration.txt");
    if text.is_file() {
        return eth3d_camera(&text);
    }
    Ok(Camera::or_unknown(freiburg(folder)))
}

/// Reads `fx fy cx cy`, valid for the images as stored.
fn eth3d_camera(path: &Path) -> Result<Camera, SourceError> {
    let text = read_text(path)?;
    let numbers: Option<Vec<f64>> = text.split_whitespace().map(|t| t.parse().ok()).collect();
    let Some(&[fx, fy, cx, cy]) = numbers.as_deref() else {
        return Err(SourceError::content(
            path,
            "four numbers, fx fy cx cy",
            format!("{:?}", text.trim().chars().take(60).collect::<String>()),
        ));
    };
    let calibration = validated(
        path,
        Calibration {
            width: 1,
            height: 1,
            intrinsics: Intrinsics { fx, fy, cx, cy },
            distortion: Distortion::None,
        },
    )?;
    Ok(Camera::OfImages(calibration))
}

/// The TUM RGB-D cameras, identified by the path as given or as resolved on disk (for `.` and
/// links).
fn freiburg(folder: &Path) -> Option<Calibration> {
    let on_disk = std::fs::canonicalize(folder).ok();
    let number =
        freiburg_number(folder).or_else(|| on_disk.as_deref().and_then(freiburg_number))?;
    let (k, d) = match number {
        1 => (
            [517.3, 516.5, 318.6, 255.3],
            Some([0.2624, -0.9531, -0.0054, 0.0026, 1.1633]),
        ),
        2 => (
            [520.9, 521.0, 325.1, 249.7],
            Some([0.2312, -0.7849, -0.0033, -0.0001, 0.9172]),
        ),
        _ => ([535.4, 539.2, 320.1, 247.6], None),
    };
    let [fx, fy, cx, cy] = k;
    Some(Calibration {
        width: 640,
        height: 480,
        intrinsics: Intrinsics { fx, fy, cx, cy },
        distortion: d.map_or(Distortion::None, Distortion::PlumbBob),
    })
}

/// 1, 2 or 3, from the last component that contains `freiburg<k>`.
fn freiburg_number(path: &Path) -> Option<u8> {
    path_components(path).iter().rev().find_map(|part| {
        let (_, rest) = part.split_once("freiburg")?;
        match rest.as_bytes() {
            [b'1', ..] => Some(1),
            [b'2', ..] => Some(2),
            [b'3', ..] => Some(3),
            _ => None,
        }
    })
}
