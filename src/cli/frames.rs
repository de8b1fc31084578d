//! Opens the sources of frames.

use super::CliError;
use crate::source::{self, DepthOptions, Source, SourceOptions};
use std::path::Path;

/// Which frames of a source to take.
#[derive(Debug, Clone, Copy)]
pub struct FrameRange {
    /// The first one.
    pub start: usize,
    /// The one to stop before.
    pub end: Option<usize>,
    /// Take every n-th one.
    pub stride: usize,
    /// Their depth images too.
    pub depth: Option<DepthOptions>,
}

impl FrameRange {
    /// The same for a source, with the calibration of `calib` in place of its own.
    pub fn options(&self, calib: Option<&Path>) -> Result<SourceOptions, CliError> {
        Ok(SourceOptions {
            stride: self.stride,
            start: self.start,
            end: self.end,
            depth: self.depth,
            calibration: calib.map(source::read_calibration).transpose()?,
        })
    }
}

/// Opens a dataset, folder, video or bag, with the calibration of `calib` in place of its own.
pub fn open(
    path: &Path,
    range: &FrameRange,
    calib: Option<&Path>,
) -> Result<Box<dyn Source>, CliError> {
    Ok(source::open(path, range.options(calib)?)?)
}
