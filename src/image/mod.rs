//! Image decoding, Pillow-exact resampling, undistortion and network preprocessing.

mod decode;
pub mod depth;
mod encode;
pub mod encoding;
pub mod exposure;
pub mod mask;
mod preprocess;
pub mod resample;
pub mod undistort;
mod view;

pub use decode::{MAX_SIDE, decode, decode_bytes, dimensions, dimensions_of_bytes};
pub use encode::{jpeg, lossless};
pub use preprocess::{PreprocessOptions, Preprocessor};
pub use view::{NetworkView, Projection};

use crate::geometry::CalibrationError;
use std::path::PathBuf;

/// An 8-bit RGB image, top row first, with `data.len() == width * height * 3`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RgbImage {
    /// Columns, pixels.
    pub width: usize,
    /// Rows, pixels.
    pub height: usize,
    /// Interleaved R, G, B.
    pub data: Vec<u8>,
}

impl RgbImage {
    /// A black image.
    pub fn new(width: usize, height: usize) -> Self {
        Self {
            width,
            height,
            data: vec![0; width * height * 3],
        }
    }

    /// Resizes the buffer; allocates only if it grows. Pixel values are unspecified afterwards.
    pub(crate) fn reshape(&mut self, width: usize, height: usize) {
        self.width = width;
        self.height = height;
        self.data.resize(width * height * 3, 0);
    }

    /// Rejects an image of another size, or one whose `data` length does not match its size.
    pub(crate) fn expect_size(&self, expected: (usize, usize)) -> Result<(), ImageError> {
        let found = (self.width, self.height);
        if found != expected {
            return Err(ImageError::Size { expected, found });
        }
        let bytes = self.width * self.height * 3;
        if self.data.len() != bytes {
            return Err(ImageError::Bytes {
                size: found,
                expected: bytes,
                found: self.data.len(),
            });
        }
        Ok(())
    }
}

/// Error from reading or processing an image.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the text of an error names its fields")]
pub enum ImageError {
    /// The file cannot be read.
    #[error("cannot read {path}: {cause}")]
    Io {
        path: PathBuf,
        cause: std::io::Error,
    },
    /// The file is not a complete image.
    #[error("{origin}: expected {expected}, found {found}")]
    Content {
        /// The file, or a description of where the bytes came from.
        origin: PathBuf,
        expected: String,
        found: String,
    },
    /// The image has a different size from the first image.
    #[error(
        "expected an image of {}×{} pixels, found {}×{}: all images of a run must have one size",
        expected.0, expected.1, found.0, found.1
    )]
    Size {
        expected: (usize, usize),
        found: (usize, usize),
    },
    /// The buffer of an [`RgbImage`] does not match its size.
    #[error(
        "an RGB image of {}×{} pixels must hold {expected} bytes, found {found}",
        size.0, size.1
    )]
    Bytes {
        size: (usize, usize),
        /// `width * height * 3`.
        expected: usize,
        found: usize,
    },
    /// The size, stride or data of a raw image does not match its encoding.
    #[error(
        "a raw {encoding:?} image of {}×{} pixels needs {what} {expected}, found {found}",
        size.0, size.1
    )]
    Raw {
        encoding: encoding::Encoding,
        size: (usize, usize),
        what: &'static str,
        expected: usize,
        found: usize,
    },
    /// No network input can be made from images of this size.
    #[error(
        "images of {}×{} pixels cannot be resized to a long side of {long_side}: {reason}",
        raw.0, raw.1
    )]
    Shape {
        raw: (usize, usize),
        long_side: usize,
        reason: &'static str,
    },
    /// The calibration does not fit the images or has invalid values.
    #[error(transparent)]
    Calibration(#[from] CalibrationError),
    /// The lens model cannot be converted to a pinhole.
    #[error("cannot undistort: {0}; check the distortion model and its coefficients")]
    Lens(&'static str),
}
