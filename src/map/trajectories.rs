//! Trajectories of a map: all frames and all keyframes, one file per submap.

use super::{MapSnapshot, TrackingState, submap_path};
use crate::files::export::ExportError;
use crate::geometry::Sim3;
use crate::time::Stamp;
use crate::trajectory::{StampedPose, write};
use nalgebra::UnitQuaternion;
use std::path::{Path, PathBuf};

/// The full trajectory of one submap: all frames with a pose of their own, in order. Frames in
/// state [`TrackingState::Lost`] (they repeat the last pose) and non-finite poses are skipped.
/// Scale is dropped.
pub fn of_frames(snapshot: &MapSnapshot, submap: u32) -> Vec<StampedPose> {
    let posed = snapshot
        .frames
        .iter()
        .filter(|f| f.submap == submap && f.state != TrackingState::Lost);
    rigid(posed.map(|f| (f.stamp, f.world_from_camera)))
}

/// The keyframes of one submap in order of creation; scale is dropped.
pub fn of_keyframes(snapshot: &MapSnapshot, submap: u32) -> Vec<StampedPose> {
    let keyframes = snapshot.keyframes.iter().filter(|k| k.submap == submap);
    rigid(keyframes.map(|k| (k.stamp, k.world_from_camera)))
}

fn rigid(poses: impl Iterator<Item = (Stamp, Sim3)>) -> Vec<StampedPose> {
    poses
        .filter(|(_, pose)| pose.is_finite())
        .map(|(stamp, pose)| StampedPose {
            stamp,
            world_from_camera: Sim3 {
                rotation: UnitQuaternion::new_normalize(pose.rotation.into_inner()),
                scale: 1.0,
                ..pose
            },
        })
        .collect()
}

/// Writes the pose of every frame: submap 0 to `path`, others next to it (see [`submap_path`]).
/// `path` is written even if it has no poses. Returns the files.
pub fn write_frames(path: &Path, snapshot: &MapSnapshot) -> Result<Vec<PathBuf>, ExportError> {
    write_submaps(path, snapshot, of_frames)
}

/// Like [`write_frames`], for keyframes.
pub fn write_keyframes(path: &Path, snapshot: &MapSnapshot) -> Result<Vec<PathBuf>, ExportError> {
    write_submaps(path, snapshot, of_keyframes)
}

fn write_submaps(
    path: &Path,
    snapshot: &MapSnapshot,
    poses_of: fn(&MapSnapshot, u32) -> Vec<StampedPose>,
) -> Result<Vec<PathBuf>, ExportError> {
    let mut files = Vec::new();
    for submap in super::with_first(snapshot.submaps()) {
        let (file, poses) = (submap_path(path, submap), poses_of(snapshot, submap));
        if submap == 0 || !poses.is_empty() {
            write(&file, &poses)?;
            files.push(file);
        }
    }
    Ok(files)
}
