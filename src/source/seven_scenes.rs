//! 7-Scenes sequences: `seq-01/frame-000000.color.png`, with poses in `frame-000000.pose.txt`
//! alongside.

use super::depth::{DepthFiles, DepthOptions, units};
use super::entry::Entry;
use super::euroc::{isometry, push_pose, temporary};
use super::folder::sort_naturally;
use super::list::{Camera, Listing};
use super::names::names;
use super::stream::GroundTruth;
use super::{Layout, SourceError, read_text};
use crate::geometry::{Calibration, Distortion, Intrinsics};
use crate::image::depth::{DepthCamera, OwnCamera};
use crate::time::Stamp;
use nalgebra::Isometry3;
use std::path::{Path, PathBuf};

const COLOUR: &str = ".color.png";
const DEPTH: &str = ".depth.png";
/// Steps per metre of the depth files.
const UNITS: f64 = 1000.0;
/// Focal length of the colour images in pixels, which the dataset does not give: its one calibration is that of the
/// depth camera. Nominal for this sensor, the first Kinect.
const COLOUR_FOCAL: f64 = 525.0;
/// x of the depth camera in the colour camera, metres: nominal for this sensor.
const BASELINE: f64 = -0.025;

/// The nominal calibration of the dataset.
const CAMERA: Calibration = Calibration {
    width: 640,
    height: 480,
    intrinsics: Intrinsics {
        fx: 585.0,
        fy: 585.0,
        cx: 320.0,
        cy: 240.0,
    },
    distortion: Distortion::None,
};

/// The folder with the frames: `path` itself, or the first of its `seq-…` folders.
pub(super) fn sequence(path: &Path) -> Result<Option<PathBuf>, SourceError> {
    if !frames(path)?.is_empty() {
        return Ok(Some(path.to_owned()));
    }
    let mut inside = names(path)?;
    inside.retain(|name| name.to_string_lossy().starts_with("seq-"));
    sort_naturally(&mut inside);
    for name in inside {
        let folder = path.join(name);
        if folder.is_dir() && !frames(&folder)?.is_empty() {
            return Ok(Some(folder));
        }
    }
    Ok(None)
}

fn frames(folder: &Path) -> Result<Vec<PathBuf>, SourceError> {
    let mut files = names(folder)?;
    files.retain(|name| name.to_string_lossy().ends_with(COLOUR));
    sort_naturally(&mut files);
    Ok(files)
}

/// Stamps are frame indices in seconds, 0, 1, 2, …, as in the trajectories published for this
/// dataset.
pub(super) fn list(path: &Path) -> Result<Listing, SourceError> {
    let folder = sequence(path)?
        .ok_or_else(|| SourceError::content(path, "7-Scenes frames (*.color.png)", "none"))?;
    if folder != path {
        tracing::info!("7-Scenes: reading {}", folder.display());
    }
    let entries: Vec<Entry> = frames(&folder)?
        .iter()
        .enumerate()
        .map(|(i, name)| Entry {
            stamp: Stamp {
                nanos: i as i64 * 1_000_000_000,
            },
            path: folder.join(name),
        })
        .collect();
    Ok(Listing {
        kind: Layout::SevenScenes.name(),
        ground_truth: truth(&entries)?.map(GroundTruth::Converted),
        entries,
        camera: Camera::Known(CAMERA),
        depth: None,
        always_undistort: false,
    })
}

/// The depth files, which the dataset does not register to the colour images.
pub(super) fn depth(frames: &[Entry], options: &DepthOptions) -> DepthFiles {
    let depth = |entry: &Entry| {
        let name = entry.path.to_str()?.strip_suffix(COLOUR)?;
        let path = PathBuf::from(format!("{name}{DEPTH}"));
        let stamp = entry.stamp;
        path.is_file().then_some(Entry { stamp, path })
    };
    DepthFiles {
        entries: frames.iter().filter_map(depth).collect(),
        units: units(options, UNITS),
        camera: DepthCamera::Own(OwnCamera {
            calibration: CAMERA,
            colour_from_depth: Isometry3::translation(BASELINE, 0.0, 0.0),
            colour: Some(Calibration {
                intrinsics: Intrinsics {
                    fx: COLOUR_FOCAL,
                    fy: COLOUR_FOCAL,
                    ..CAMERA.intrinsics
                },
                ..CAMERA
            }),
        }),
    }
}

/// Poses (4×4, camera to world) of the frames that have one; frames that the dataset marks as lost
/// (non-finite pose) are skipped.
fn truth(entries: &[Entry]) -> Result<Option<tempfile::TempPath>, SourceError> {
    let mut out = String::from("# timestamp tx ty tz qx qy qz qw (camera to world)\n");
    let mut any = false;
    for entry in entries {
        let Some(name) = entry.path.to_str().and_then(|p| p.strip_suffix(COLOUR)) else {
            continue;
        };
        let file = PathBuf::from(format!("{name}.pose.txt"));
        if !file.is_file() {
            continue;
        }
        let text = read_text(&file)?;
        let numbers: Vec<f64> = text
            .split_whitespace()
            .map(|t| t.parse().unwrap_or(f64::NAN))
            .collect();
        if numbers.len() == 16 && numbers.iter().any(|v| !v.is_finite()) {
            continue;
        }
        let pose = isometry(&numbers).ok_or_else(|| {
            SourceError::content(
                &file,
                "16 numbers of a rigid transformation",
                format!("{:?}", text.trim().chars().take(60).collect::<String>()),
            )
        })?;
        push_pose(&mut out, entry.stamp, &pose);
        any = true;
    }
    any.then(|| temporary(&out)).transpose()
}
