//! Trajectories in TUM format: `timestamp tx ty tz qx qy qz qw`, camera to world.

use crate::files::export::{self, ExportError};
use crate::geometry::Sim3;
use crate::time::Stamp;
use nalgebra::{Quaternion, UnitQuaternion, Vector3};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

/// Camera pose with a time stamp.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StampedPose {
    /// Time stamp of the image.
    pub stamp: Stamp,
    /// Camera to world. A scale other than 1 is ignored: a trajectory's poses are rigid.
    pub world_from_camera: Sim3,
}

/// Writes one trajectory. Nine decimals: a nanometre, and 1e-9 of a turn.
pub fn write(path: &Path, poses: &[StampedPose]) -> Result<(), ExportError> {
    export::write(path, |out| {
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

/// Handling of rows whose numbers are not finite or whose quaternion is zero (motion-capture
/// systems write such rows when they lose the target).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadRows {
    /// Reject the file.
    Refuse,
    /// Skip the rows and keep their line numbers.
    Skip,
}

/// A trajectory read from a file.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TrajectoryFile {
    /// Poses in the order of the file.
    pub poses: Vec<StampedPose>,
    /// Numbers of the skipped lines, from 1 (see [`BadRows::Skip`]).
    pub skipped: Vec<usize>,
}

/// Errors of reading a trajectory.
#[derive(Debug, thiserror::Error)]
pub enum TrajectoryError {
    /// The file cannot be read.
    #[error("cannot read the trajectory {path}: {cause}", path = path.display())]
    Io {
        path: PathBuf,
        cause: std::io::Error,
    },
    /// A line is not a pose.
    #[error("{path}:{line}: expected {expected}, found {found}", path = path.display())]
    Line {
        path: PathBuf,
        /// Line number from 1.
        line: usize,
        expected: &'static str,
        found: String,
    },
    /// The file contains no usable pose.
    #[error(
        "{path} contains no usable pose (skipped rows with non-finite numbers: {skipped}): expected lines `timestamp tx ty tz qx qy qz qw`",
        path = path.display()
    )]
    Empty {
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
        // Invalid UTF-8 becomes a replacement character, which fails to parse as a number below.
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

/// A pose, or `None` if it is not finite. The error is what was expected and what was found.
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

/// The beginning of a line, for error messages.
fn shorten(text: &str) -> String {
    let mut short: String = text.chars().take(60).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
