//! Where frames come from: datasets, folders of images, video files, ROS 2 bags.

#[cfg(feature = "bags")]
mod bag;
mod calibration;
mod detect;
mod euroc;
mod folder;
mod list;
mod seven_scenes;
mod stream;
mod tum;
mod video;

#[cfg(feature = "bags")]
pub use bag::BagTopics;
pub use calibration::{fit_calibration, read_calibration};
pub use detect::{Layout, detect, path_components};

use crate::geometry::Calibration;
use crate::image::{ImageError, RgbImage};
use crate::time::Stamp;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

/// One decoded image with its time.
#[derive(Debug, Clone, PartialEq)]
pub struct SourceFrame {
    /// Position in the source's own list, before start, end and stride.
    pub index: usize,
    /// The image's time.
    pub stamp: Stamp,
    /// Where it came from, for messages.
    pub origin: PathBuf,
    /// As stored: not resized, not undistorted.
    pub image: RgbImage,
}

/// A finite or endless sequence of frames.
pub trait Source: Send {
    /// What it is, such as `TUM RGB-D, 300 frames`.
    fn describe(&self) -> String;
    /// Frames that are still to come, when known.
    fn remaining(&self) -> Option<usize>;
    /// The raw camera's calibration, when the source knows it.
    fn calibration(&self) -> Option<&Calibration>;
    /// Whether images should be undistorted even when the run is otherwise uncalibrated (EuRoC,
    /// whose lens is too far from a pinhole for the network).
    fn always_undistort(&self) -> bool {
        false
    }
    /// A ground-truth trajectory in TUM format, when the source has one. It may be a temporary file
    /// that lives as long as the source.
    fn ground_truth(&self) -> Option<&Path>;
    /// The name of the camera's optical frame, when the source names one (bags).
    fn camera_frame(&self) -> Option<&str> {
        None
    }
    /// The next frame, `None` at the end. After an error the source may be asked again: the frame
    /// that failed is skipped.
    fn next_frame(&mut self) -> Result<Option<SourceFrame>, SourceError>;
}

/// Which frames of a source are wanted, and what is known of its camera.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SourceOptions {
    /// Every how many frames; 1 takes all.
    pub stride: usize,
    /// The first frame, counted from 0.
    pub start: usize,
    /// One past the last frame; `None`, or past the source's end, takes all.
    pub end: Option<usize>,
    /// Takes the place of what the source says of its camera. When it was made for images of another
    /// size but the same shape, it is scaled.
    pub calibration: Option<Calibration>,
}

impl Default for SourceOptions {
    fn default() -> Self {
        Self {
            stride: 1,
            start: 0,
            end: None,
            calibration: None,
        }
    }
}

/// Why a source could not be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// A file or folder that could not be read.
    #[error("cannot read {path}: {cause}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        cause: std::io::Error,
    },
    /// A file whose content is not what it should be.
    #[error("{path}: expected {expected}, found {found}")]
    Content {
        /// The file (with a line number where that helps).
        path: PathBuf,
        /// What should be there.
        expected: String,
        /// What is.
        found: String,
    },
    /// A choice of frames that selects nothing.
    #[error("{option}: expected {expected}, found {found}")]
    Selection {
        /// `stride`, `start` or `end`.
        option: &'static str,
        /// What it could be.
        expected: String,
        /// What it is.
        found: usize,
    },
    /// An external program is missing or failed.
    #[error("{program}: {message}")]
    Program {
        /// Its name.
        program: &'static str,
        /// What happened and what to do.
        message: String,
    },
}

impl SourceError {
    fn content(path: &Path, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self::Content {
            path: path.to_owned(),
            expected: expected.into(),
            found: found.into(),
        }
    }

    /// Of line `line`, counted from 1.
    fn at_line(
        path: &Path,
        line: usize,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        let mut place = path.as_os_str().to_owned();
        place.push(format!(":{line}"));
        Self::content(Path::new(&place), expected, found)
    }

    fn image(path: &Path, error: ImageError) -> Self {
        match error {
            ImageError::Io { path, cause } => Self::Io { path, cause },
            ImageError::Content {
                origin,
                expected,
                found,
            } => Self::Content {
                path: origin,
                expected,
                found,
            },
            other => Self::content(path, "an image", other.to_string()),
        }
    }
}

/// Opens a dataset, a folder of images, a video file or a bag, whichever `path` is (see [`detect`]).
///
/// Images are decoded on a thread of their own, two frames ahead.
///
/// # Errors
/// A path that is missing or holds nothing to read; damaged lists (with the line); images named in a
/// list that are missing; times that do not grow; a selection without frames; a calibration that does
/// not fit the images; for videos, a missing `ffmpeg` or `ffprobe`.
pub fn open(path: &Path, options: SourceOptions) -> Result<Box<dyn Source>, SourceError> {
    check(&options)?;
    let listing = match detect(path)? {
        Layout::Tum => tum::list(path, false)?,
        Layout::Eth3d => tum::list(path, true)?,
        Layout::Euroc => euroc::list(path)?,
        Layout::SevenScenes => seven_scenes::list(path)?,
        Layout::Images => folder::list(path)?,
        Layout::Video => {
            let programs = video::Programs::default();
            return Ok(Box::new(video::open(path, &programs, &options)?));
        }
        #[cfg(feature = "bags")]
        Layout::Bag => return open_bag(path, options, &BagTopics::default()),
    };
    Ok(Box::new(listing.open(&options)?))
}

/// Opens a ROS 2 bag: a folder with `metadata.yaml`, `.mcap` or `.db3` files, or one such file. Without a name the
/// camera is the one topic with images that is left of those whose name does not speak of depth, disparity or
/// masks, where a raw topic goes before its compressed twin; of several, the one with `camera_info` beside it.
///
/// # Errors
/// As [`open`], and: no such topic or several; damage, where it is reached.
#[cfg(feature = "bags")]
pub fn open_bag(
    path: &Path,
    options: SourceOptions,
    topics: &BagTopics,
) -> Result<Box<dyn Source>, SourceError> {
    check(&options)?;
    Ok(Box::new(bag::open(path, &options, topics)?))
}

fn check(options: &SourceOptions) -> Result<(), SourceError> {
    if options.stride == 0 {
        return Err(SourceError::Selection {
            option: "stride",
            expected: "at least 1".to_owned(),
            found: 0,
        });
    }
    if let Some(end) = options.end
        && end <= options.start
    {
        return Err(SourceError::Selection {
            option: "end",
            expected: format!("more than the start, {}", options.start),
            found: end,
        });
    }
    Ok(())
}

fn frames(count: usize) -> String {
    format!("{count} frame{}", if count == 1 { "" } else { "s" })
}

fn read_text(path: &Path) -> Result<String, SourceError> {
    let bytes = std::fs::read(path).map_err(|cause| SourceError::Io {
        path: path.to_owned(),
        cause,
    })?;
    String::from_utf8(bytes)
        .map_err(|_| SourceError::content(path, "a text file in UTF-8", "other bytes"))
}

/// A YAML file. Numbers may be `.nan` and `.inf`: whoever reads them says which one and why not.
fn read_yaml<T: DeserializeOwned>(path: &Path, expected: &str) -> Result<T, SourceError> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        non_finite_float_policy: serde_saphyr::options::NonFiniteFloatPolicy::PassThrough,
    };
    serde_saphyr::from_str_with_options(&read_text(path)?, options)
        .map_err(|e| SourceError::content(path, expected, e.without_snippet().to_string()))
}

/// The lines that are neither empty nor comments, with their numbers from 1.
fn data_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(i, line)| (i + 1, line.trim_start_matches('\u{feff}').trim()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}
