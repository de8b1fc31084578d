//! Frames of the sequence that a map was made of, between its keyframes, as further views to train on.

use super::views::OFFLINE_VIEWS;
use crate::geometry::{Intrinsics, Sim3};
use crate::image::{ImageError, PreprocessOptions, Preprocessor, RgbImage};
use crate::source::{Source, SourceError};
use crate::time::Stamp;
use crate::trajectory::{self, BadRows, TrajectoryError};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Largest difference between the map's camera and that of the frames, pixels.
const SAME_CAMERA: f64 = 0.01;

/// A frame in the geometry of the map's images.
#[derive(Debug)]
pub struct Frame {
    pub world_from_camera: Sim3,
    pub image: RgbImage,
}

/// What the frames of a map must be like.
#[derive(Debug, Clone, Copy)]
pub struct FrameRules<'a> {
    /// Size of the map's images.
    pub size: (usize, usize),
    /// The camera of a calibrated map.
    pub intrinsics: Option<Intrinsics>,
    /// Whether the principal point was moved to the middle of the image, `dataset.center_principle_point`.
    pub center: bool,
    /// Poses of the frames, in TUM format.
    pub trajectory: &'a Path,
}

/// Why frames cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the text of an error names its fields")]
pub enum FramesError {
    #[error(transparent)]
    Trajectory(#[from] TrajectoryError),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The frames are of another camera.
    #[error(
        "the frames are {found}, those of the map are {expected}: give the sequence and the --calib that the map was made with"
    )]
    Camera { found: String, expected: String },
    /// No frame has a pose.
    #[error(
        "no frame has the stamp of a pose in {trajectory} without being a keyframe: give the trajectory.txt of the run that made the map",
        trajectory = trajectory.display()
    )]
    None { trajectory: PathBuf },
}

fn described(size: (usize, usize), k: Option<Intrinsics>) -> String {
    let camera = match k {
        Some(k) => format!(
            "calibrated with f = {:.2} × {:.2}, c = ({:.2}, {:.2})",
            k.fx, k.fy, k.cx, k.cy
        ),
        None => "uncalibrated".to_owned(),
    };
    format!("{}×{} pixels, {camera}", size.0, size.1)
}

/// Reads the frames of a sequence whose stamps have a pose and are not those of `keyframes`, by stamp. If they are more
/// than can be trained on beside the keyframes, every second, third, … is read. A frame that cannot be decoded is left
/// out. There may be none, if all frames with a pose are keyframes.
///
/// # Errors
/// If the trajectory or the sequence cannot be read, no frame has a pose, or the camera is not that of the map.
pub fn read(
    source: &mut dyn Source,
    keyframes: &BTreeSet<Stamp>,
    rules: &FrameRules<'_>,
) -> Result<BTreeMap<Stamp, Frame>, FramesError> {
    let poses = trajectory::read(rules.trajectory, BadRows::Skip)?.poses;
    let mut poses = Vec::from_iter(poses.iter().filter(|p| !keyframes.contains(&p.stamp)));
    let room = OFFLINE_VIEWS.saturating_sub(keyframes.len()).max(1);
    let stride = poses.len().div_ceil(room).max(1);
    poses.sort_by_key(|p| p.stamp);
    let wanted: BTreeMap<Stamp, Sim3> = (poses.iter().step_by(stride))
        .map(|p| (p.stamp, p.world_from_camera))
        .collect();
    let calibration = source
        .calibration()
        .filter(|_| rules.intrinsics.is_some() || source.always_undistort())
        .copied();
    let options = PreprocessOptions {
        center_principal_point: rules.center,
        ..PreprocessOptions::default()
    };
    let mut preprocessor: Option<Preprocessor> = None;
    let mut frames = BTreeMap::new();
    while frames.len() < wanted.len() {
        let frame = match source.next_frame() {
            Ok(Some(frame)) => frame,
            Ok(None) => break,
            Err(error @ SourceError::Content { .. }) => {
                tracing::warn!("a frame is left out: {error}");
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let Some(pose) = wanted.get(&frame.stamp) else {
            continue;
        };
        let raw = &frame.image;
        let preprocessor = match &mut preprocessor {
            Some(made) if made.input_size() == (raw.width, raw.height) => made,
            slot => {
                let long = rules.size.0.max(rules.size.1);
                let made =
                    Preprocessor::new(raw.width, raw.height, long, calibration.as_ref(), options)?;
                same_camera(&made, rules)?;
                slot.insert(made)
            }
        };
        let mut image = RgbImage::default();
        preprocessor.run(raw, &mut image)?;
        let world_from_camera = *pose;
        frames.insert(
            frame.stamp,
            Frame {
                world_from_camera,
                image,
            },
        );
    }
    if frames.is_empty() && !wanted.is_empty() {
        return Err(FramesError::None {
            trajectory: rules.trajectory.to_owned(),
        });
    }
    Ok(frames)
}

fn same_camera(made: &Preprocessor, rules: &FrameRules<'_>) -> Result<(), FramesError> {
    let found = made.intrinsics().filter(|_| rules.intrinsics.is_some());
    let same = match (found, rules.intrinsics) {
        (Some(a), Some(b)) => {
            let pairs = [(a.fx, b.fx), (a.fy, b.fy), (a.cx, b.cx), (a.cy, b.cy)];
            pairs.iter().all(|(a, b)| (a - b).abs() < SAME_CAMERA)
        }
        (a, b) => a.is_none() && b.is_none(),
    };
    if same && made.output_size() == rules.size {
        return Ok(());
    }
    Err(FramesError::Camera {
        found: described(made.output_size(), found),
        expected: described(rules.size, rules.intrinsics),
    })
}
