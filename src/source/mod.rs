//! Where frames come from: datasets, folders of images, video files.

use crate::geometry::Calibration;
use crate::image::RgbImage;
use crate::time::Stamp;
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
    /// A ground-truth trajectory in TUM format, when the source has one.
    fn ground_truth(&self) -> Option<&Path>;
    /// The next frame, `None` at the end. After an error the source may be asked again: the frame
    /// that failed is skipped.
    fn next_frame(&mut self) -> Result<Option<SourceFrame>, SourceError>;
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
    /// An external program is missing or failed.
    #[error("{program}: {message}")]
    Program {
        /// Its name.
        program: &'static str,
        /// What happened and what to do.
        message: String,
    },
}
