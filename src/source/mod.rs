//! Frame sources: datasets, image folders, video files, ROS 2 bags.

#[cfg(feature = "bags")]
mod bag;
mod calibration;
#[cfg(feature = "wire")]
pub mod camera_info;
mod depth;
#[cfg(feature = "wire")]
pub mod depth_message;
mod detect;
mod entry;
mod euroc;
mod folder;
#[cfg(feature = "wire")]
pub mod image_message;
mod layout;
mod list;
mod motion;
#[cfg(feature = "wire")]
pub(crate) mod motion_message;
mod motion_text;
mod names;
mod open_motion;
mod seven_scenes;
mod stream;
mod tum;
mod video;

#[cfg(feature = "bags")]
pub use bag::BagTopics;
pub use calibration::{fit_calibration, read_calibration};
pub use depth::DepthOptions;
pub use detect::detect;
pub use layout::Layout;
pub use motion::{GyroSource, ImuReading, MotionOptions, MotionSource, Series};
pub use names::path_components;
pub use open_motion::open_motion;

use crate::geometry::Calibration;
use crate::image::depth::{DepthCamera, DepthImage};
use crate::image::{ImageError, RgbImage};
use crate::time::Stamp;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

/// A decoded image with its stamp.
#[derive(Debug, Clone, PartialEq)]
pub struct SourceFrame {
    /// Index in the source's full list, before start, end and stride are applied.
    pub index: usize,
    /// The image's time.
    pub stamp: Stamp,
    /// Origin of the image, used in messages.
    pub origin: PathBuf,
    /// The stored image: not resized, not undistorted.
    pub image: RgbImage,
    /// The depth image nearest in time, as the sensor made it; `None` if there is none within 20 ms, or it was not asked
    /// for.
    pub depth: Option<SourceDepth>,
}

/// A depth image with its stamp.
#[derive(Debug, Clone, PartialEq)]
pub struct SourceDepth {
    /// Its own time, not that of the frame.
    pub stamp: Stamp,
    /// The stored image: not registered to the frame's.
    pub image: DepthImage,
}

/// A sequence of frames.
pub trait Source: Send {
    /// A description such as `TUM RGB-D, 300 frames`.
    fn describe(&self) -> String;
    /// Number of frames left, if known.
    fn remaining(&self) -> Option<usize>;
    /// Calibration of the raw camera, if the source provides one.
    fn calibration(&self) -> Option<&Calibration>;
    /// Whether images should be undistorted even in an uncalibrated run (EuRoC, whose lens is too
    /// far from a pinhole for the network).
    fn always_undistort(&self) -> bool {
        false
    }
    /// The camera of the frames' depth images; `None` without depth.
    fn depth_camera(&self) -> Option<&DepthCamera> {
        None
    }
    /// The ground-truth trajectory in TUM format, if available. It may be a temporary file that
    /// lives as long as the source.
    fn ground_truth(&self) -> Option<&Path>;
    /// Name of the camera's optical frame, if the source provides one (bags).
    fn camera_frame(&self) -> Option<&str> {
        None
    }
    /// The next frame; `None` at the end. After an error the source can be read further: the failed
    /// frame is skipped.
    fn next_frame(&mut self) -> Result<Option<SourceFrame>, SourceError>;
    /// The frame that [`Source::next_frame`] gives next, read ahead.
    ///
    /// # Errors
    /// As [`Source::next_frame`]; the frame that failed is then skipped.
    fn peek(&mut self) -> Result<Option<&SourceFrame>, SourceError>;
}

impl Iterator for dyn Source + '_ {
    type Item = Result<SourceFrame, SourceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_frame().transpose()
    }
}

/// The selection of frames, and the calibration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SourceOptions {
    /// Take every `stride`-th frame; 1 takes all.
    pub stride: usize,
    /// Index of the first frame, from 0.
    pub start: usize,
    /// Index after the last frame; `None`, or a value beyond the end, takes all.
    pub end: Option<usize>,
    /// Overrides the calibration provided by the source. If it was made for another image size with
    /// the same aspect ratio, it is scaled.
    pub calibration: Option<Calibration>,
    /// Read depth images too; `None` reads none.
    pub depth: Option<DepthOptions>,
}

impl Default for SourceOptions {
    fn default() -> Self {
        Self {
            stride: 1,
            start: 0,
            end: None,
            calibration: None,
            depth: None,
        }
    }
}

/// Error from opening or reading a source.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the text of an error names its fields")]
pub enum SourceError {
    /// A file or folder cannot be read.
    #[error("cannot read {path}: {cause}")]
    Io {
        path: PathBuf,
        cause: std::io::Error,
    },
    /// A file does not have the expected content.
    #[error("{path}: expected {expected}, found {found}")]
    Content {
        /// The file, with a line number where useful.
        path: PathBuf,
        expected: String,
        found: String,
    },
    /// The options select no frames.
    #[error("{option}: expected {expected}, found {found}")]
    Selection {
        /// `stride`, `start` or `end`.
        option: &'static str,
        expected: String,
        found: usize,
    },
    /// An external program is missing or failed.
    #[error("{program}: {message}")]
    Program {
        program: &'static str,
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

    /// A content error at line `line`, counted from 1.
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

/// Opens the dataset, image folder, video file or bag at `path` (see [`detect`]).
///
/// A separate thread decodes images, some frames ahead.
///
/// # Errors
/// A path that is missing or has no readable content; damaged lists (with the line); listed images
/// that are missing; times that do not increase; an empty selection; a calibration that does not
/// match the images; for videos, a missing `ffmpeg` or `ffprobe`.
pub fn open(path: &Path, options: SourceOptions) -> Result<Box<dyn Source>, SourceError> {
    check(&options)?;
    let layout = detect(path)?;
    let mut listing = match layout {
        Layout::Tum => tum::list(path, false)?,
        Layout::Eth3d => tum::list(path, true)?,
        Layout::Euroc => euroc::list(path)?,
        Layout::SevenScenes => seven_scenes::list(path)?,
        Layout::Images => folder::list(path)?,
        Layout::Video => {
            if options.depth.is_some() {
                return Err(no_depth(path, layout));
            }
            let programs = video::Programs::default();
            return Ok(Box::new(video::open(path, &programs, &options)?));
        }
        #[cfg(feature = "bags")]
        Layout::Bag => return open_bag(path, options, &BagTopics::default()),
    };
    if let Some(depth) = &options.depth {
        listing.depth = Some(match layout {
            Layout::Tum | Layout::Eth3d => tum::depth(path, depth)?,
            Layout::SevenScenes => seven_scenes::depth(&listing.entries, depth),
            _ => return Err(no_depth(path, layout)),
        });
    }
    Ok(Box::new(listing.open(&options)?))
}

/// Opens a ROS 2 bag: a folder with `metadata.yaml`, `.mcap` or `.db3` files, or one such file.
/// Without a topic name, image topics with names that indicate depth, disparity or masks are
/// excluded, a raw topic takes precedence over its compressed version, and the single remaining
/// topic is used; if several remain, the one with a `camera_info` topic in its namespace.
///
/// # Errors
/// See [`open`]. In addition: no suitable topic or several; damage, when it is reached.
#[cfg(feature = "bags")]
pub fn open_bag(
    path: &Path,
    options: SourceOptions,
    topics: &BagTopics,
) -> Result<Box<dyn Source>, SourceError> {
    check(&options)?;
    Ok(Box::new(bag::open(path, &options, topics)?))
}

/// The error for a source that cannot have depth.
fn no_depth(path: &Path, layout: Layout) -> SourceError {
    let expected = "depth images: TUM RGB-D or ETH3D-SLAM with depth.txt, 7-Scenes, or a ROS 2 bag";
    SourceError::content(path, expected, layout.name())
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

/// Reads a YAML file. Numbers may be `.nan` and `.inf`, so that the caller can name the offending
/// value.
fn read_yaml<T: DeserializeOwned>(path: &Path, expected: &str) -> Result<T, SourceError> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        non_finite_float_policy: serde_saphyr::options::NonFiniteFloatPolicy::PassThrough,
    };
    serde_saphyr::from_str_with_options(&read_text(path)?, options)
        .map_err(|e| SourceError::content(path, expected, e.without_snippet().to_string()))
}

/// Lines that are neither empty nor comments, with line numbers from 1.
fn data_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(i, line)| (i + 1, line.trim_start_matches('\u{feff}').trim()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}
