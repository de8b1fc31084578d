//! Pixels: decoded images, Pillow-exact resampling, undistortion, the network's input.

mod decode;
pub mod encoding;
mod preprocess;
pub mod resample;
pub mod undistort;

pub use decode::{MAX_SIDE, decode, decode_bytes, dimensions};
pub use preprocess::{PreprocessOptions, Preprocessor};

use crate::geometry::CalibrationError;
use std::path::PathBuf;

/// An 8-bit RGB image, rows from the top, `data.len() == width * height * 3`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RgbImage {
    /// Columns.
    pub width: usize,
    /// Rows.
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

    /// Gives the image this size; allocates only when it grows. The pixels are then unspecified.
    pub(crate) fn reshape(&mut self, width: usize, height: usize) {
        self.width = width;
        self.height = height;
        self.data.resize(width * height * 3, 0);
    }

    /// Refuses an image of another size, or one whose `data` is not as long as its size says.
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

/// Why an image could not be read or processed.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A file that could not be read.
    #[error("cannot read {path}: {cause}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        cause: std::io::Error,
    },
    /// A file that is not a whole image.
    #[error("{origin}: expected {expected}, found {found}")]
    Content {
        /// The file, or what else the bytes came from.
        origin: PathBuf,
        /// What should be there.
        expected: String,
        /// What is.
        found: String,
    },
    /// An image of another size than was announced.
    #[error(
        "expected an image of {}×{} pixels, found {}×{}: all images of a run must have one size",
        expected.0, expected.1, found.0, found.1
    )]
    Size {
        /// Announced width and height.
        expected: (usize, usize),
        /// This image's width and height.
        found: (usize, usize),
    },
    /// An [`RgbImage`] whose buffer does not fit its size.
    #[error(
        "an RGB image of {}×{} pixels must hold {expected} bytes, found {found}",
        size.0, size.1
    )]
    Bytes {
        /// Width and height.
        size: (usize, usize),
        /// `width * height * 3`.
        expected: usize,
        /// The buffer's length.
        found: usize,
    },
    /// A raw image whose size, stride or data do not fit its encoding.
    #[error(
        "a raw {encoding:?} image of {}×{} pixels needs {what} {expected}, found {found}",
        size.0, size.1
    )]
    Raw {
        /// How its bytes are to be read.
        encoding: encoding::Encoding,
        /// Width and height.
        size: (usize, usize),
        /// What is too little or uneven.
        what: &'static str,
        /// What would do.
        expected: usize,
        /// What it is.
        found: usize,
    },
    /// A size from which no network input can be made.
    #[error(
        "images of {}×{} pixels cannot be brought to a long side of {long_side}: {reason}",
        raw.0, raw.1
    )]
    Shape {
        /// The raw images' width and height.
        raw: (usize, usize),
        /// The network's long side.
        long_side: usize,
        /// What is wrong and what would do.
        reason: &'static str,
    },
    /// A calibration that does not fit, or holds impossible numbers.
    #[error(transparent)]
    Calibration(#[from] CalibrationError),
    /// A lens that cannot be turned into a pinhole.
    #[error("cannot undistort: {0}; check the distortion model and its coefficients")]
    Lens(&'static str),
}
