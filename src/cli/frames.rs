//! Opening what the frames come from.

use super::CliError;
use crate::source::{self, Source, SourceOptions};
use std::path::Path;

/// Which frames of a source to take.
#[derive(Debug, Clone, Copy)]
pub struct FrameRange {
    /// The first one.
    pub start: usize,
    /// The one to stop before.
    pub end: Option<usize>,
    /// Every so many.
    pub stride: usize,
}

/// Opens a dataset, folder or video, with the calibration of `calib` in place of its own.
pub fn open(
    path: &Path,
    range: &FrameRange,
    calib: Option<&Path>,
) -> Result<Box<dyn Source>, CliError> {
    let options = SourceOptions {
        stride: range.stride,
        start: range.start,
        end: range.end,
        calibration: calib.map(source::read_calibration).transpose()?,
    };
    Ok(source::open(path, options)?)
}
