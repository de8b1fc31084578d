//! Trajectories in TUM format: `timestamp tx ty tz qx qy qz qw`, camera to world.

use super::{ExportError, MapSnapshot, TrackingState, atomic, submap_path};
use crate::geometry::Sim3;
use crate::time::Stamp;
use nalgebra::{Quaternion, UnitQuaternion, Vector3};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

/// A camera's pose at a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StampedPose {
    /// The image's time.
    pub stamp: Stamp,
    /// Camera to world. A scale other than 1 is ignored: a trajectory's poses are rigid.
    pub world_from_camera: Sim3,
}

/// The every-frame trajectory of one submap: the frames in order that have a pose of their own.
/// Frames that were [`TrackingState::Lost`] (they only repeat the last pose) and poses that are
/// not finite are left out. Scale is dropped.
pub fn of_frames(snapshot: &MapSnapshot, submap: u32) -> Vec<StampedPose> {
    let posed = snapshot
        .frames
        .iter()
        .filter(|f| f.submap == submap && f.state != TrackingState::Lost);
    rigid(posed.map(|f| (f.stamp, f.world_from_camera)))
}

/// The keyframes of one submap in order of creation, scale dropped.
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

/// Writes one trajectory. Nine decimals: a nanometre, and 1e-9 of a turn.
pub fn write(path: &Path, poses: &[StampedPose]) -> Result<(), ExportError> {
    atomic::write(path, |out| {
        writeln!(out, "# timestamp tx ty tz qx qy qz qw (camera to world)")?;
        for p in poses {
            let [x, y, z, qx, qy, qz, qw, _] = p.world_from_camera.to_array();
            let n = (qx * qx + qy * qy + qz * qz + qw * qw).sqrt();
            writeln!(
                out,
                "{} {x:.9} {y:.9} {z:.9} {:.9} {:.9} {:.9} {:.9}",
                p.stamp,
                qx / n,
                qy / n,
                qz / n,
                qw / n
            )?;
        }
        Ok(())
    })
}

/// Writes every frame's pose: submap 0 to `path`, others beside it (see [`submap_path`]). `path`
/// is written even when it has no poses. Returns the files.
pub fn write_frames(path: &Path, snapshot: &MapSnapshot) -> Result<Vec<PathBuf>, ExportError> {
    write_submaps(path, snapshot, of_frames)
}

/// As [`write_frames`], for the keyframes.
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

/// What to do with a row whose numbers are not finite or whose quaternion is zero (motion-capture
/// systems write such rows when they lose the target).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadRows {
    /// The file is refused.
    Refuse,
    /// They are left out and their line numbers kept.
    Skip,
}

/// A trajectory that was read.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TrajectoryFile {
    /// In the file's order.
    pub poses: Vec<StampedPose>,
    /// Lines that were skipped (see [`BadRows::Skip`]), from 1.
    pub skipped: Vec<usize>,
}

/// Why a trajectory could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TrajectoryError {
    /// The system refused.
    #[error("cannot read the trajectory {path}: {cause}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        cause: std::io::Error,
    },
    /// A line that is no pose.
    #[error("{path}:{line}: expected {expected}, found {found}", path = path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Line number from 1.
        line: usize,
        /// What should be there.
        expected: &'static str,
        /// What is.
        found: String,
    },
    /// No pose at all.
    #[error(
        "{path} holds no usable pose (rows that are not finite and were skipped: {skipped}): expected lines `timestamp tx ty tz qx qy qz qw`",
        path = path.display()
    )]
    Empty {
        /// The file.
        path: PathBuf,
        /// How many rows were skipped.
        skipped: usize,
    },
}

const ROW: &str = "`timestamp tx ty tz qx qy qz qw`";

/// Reads a TUM trajectory. Columns are separated by spaces, tabs or commas; blank lines and lines
/// that start with `#` are passed over; a stamp that is a whole number of at least 10^15 is in
/// nanoseconds. A row of 17 columns is EuRoC's `stamp p(3) qw qx qy qz v(3) b(6)`. Order and
/// repetitions are kept.
pub fn read(path: &Path, bad_rows: BadRows) -> Result<TrajectoryFile, TrajectoryError> {
    let io = |cause| TrajectoryError::Io {
        path: path.to_owned(),
        cause,
    };
    let mut reader = BufReader::new(File::open(path).map_err(io)?);
    let mut out = TrajectoryFile::default();
    let (mut bytes, mut line) = (Vec::new(), 0);
    loop {
        bytes.clear();
        if reader.read_until(b'\n', &mut bytes).map_err(io)? == 0 {
            break;
        }
        line += 1;
        // Bytes that are not UTF-8 become a character that no number has, and are refused below.
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_start_matches('\u{feff}').trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let bad = |expected, found: String| TrajectoryError::Line {
            path: path.to_owned(),
            line,
            expected,
            found,
        };
        match parse_row(text).map_err(|(expected, found)| bad(expected, found))? {
            Some(pose) => out.poses.push(pose),
            None if bad_rows == BadRows::Skip => out.skipped.push(line),
            None => {
                return Err(bad(
                    "finite numbers and a quaternion that is not zero",
                    shorten(text),
                ));
            }
        }
    }
    if out.poses.is_empty() {
        return Err(TrajectoryError::Empty {
            path: path.to_owned(),
            skipped: out.skipped.len(),
        });
    }
    Ok(out)
}

/// A pose, or `None` for one that is not finite, or what was expected and found.
fn parse_row(text: &str) -> Result<Option<StampedPose>, (&'static str, String)> {
    let fields: Vec<&str> = text
        .split(|c: char| c == ',' || c.is_whitespace())
        .filter(|f| !f.is_empty())
        .collect();
    if fields.len() != 8 && fields.len() != 17 {
        let found = format!("{} columns: {}", fields.len(), shorten(text));
        return Err((ROW, found));
    }
    let mut v = [0.0f64; 8];
    for (value, field) in v.iter_mut().zip(&fields) {
        *value = field
            .parse()
            .map_err(|_| ("a number", format!("{:?}", shorten(field))))?;
    }
    let [_, x, y, z, a, b, c, d] = v;
    // EuRoC puts qw first.
    let q = if fields.len() == 17 {
        Quaternion::new(a, b, c, d)
    } else {
        Quaternion::new(d, a, b, c)
    };
    let norm = q.norm();
    if v.iter().any(|value| !value.is_finite()) || !norm.is_finite() || norm < 1e-8 {
        return Ok(None);
    }
    Ok(Some(StampedPose {
        stamp: parse_stamp(fields[0])?,
        world_from_camera: Sim3 {
            translation: Vector3::new(x, y, z),
            rotation: UnitQuaternion::from_quaternion(q),
            scale: 1.0,
        },
    }))
}

fn parse_stamp(text: &str) -> Result<Stamp, (&'static str, String)> {
    match text.parse::<i64>() {
        Ok(nanos) if nanos >= 1_000_000_000_000_000 => Ok(Stamp { nanos }),
        _ => text
            .parse()
            .map_err(|_| ("a time in seconds", format!("{:?}", shorten(text)))),
    }
}

/// Enough of a line for a message.
fn shorten(text: &str) -> String {
    let mut short: String = text.chars().take(60).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
