//! Depth images of a sensor: decoding to metres, and conversion to the network's images.

mod camera;
mod decode;
mod limits;
mod noise;
mod reader;
mod rvl;
mod splat;

pub use camera::{DepthCamera, OwnCamera};
pub use decode::{DepthDecoder, DepthEncoding, MAX_PIXELS, RawDepth};
pub use limits::DepthLimits;
pub use reader::{DepthReader, NetworkDepth};

/// Depth of each pixel along the sensor's optical axis (z, not the range along the ray), top row first, with
/// `metres.len() == width * height`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DepthImage {
    /// Columns, pixels.
    pub width: usize,
    /// Rows, pixels.
    pub height: usize,
    /// Metres; 0 where nothing was measured.
    pub metres: Vec<f32>,
}

impl DepthImage {
    /// Resizes the buffer; allocates only if it grows. Values are unspecified afterwards.
    fn reshape(&mut self, width: usize, height: usize) {
        self.width = width;
        self.height = height;
        self.metres.resize(width * height, 0.0);
    }
}

/// Why a depth image cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the text of an error names its fields")]
pub enum DepthError {
    /// The bytes are not a depth image.
    #[error("a depth image: expected {expected}, found {found}")]
    Content {
        expected: &'static str,
        found: String,
    },
    /// The size promises more than any sensor has, or nothing.
    #[error("a depth image of {}×{} pixels, expected 1×1 to {MAX_PIXELS} pixels in all", size.0, size.1)]
    Pixels { size: (usize, usize) },
    /// The data does not fit the size.
    #[error("a depth image of {}×{} pixels needs {what} {expected}, found {found}", size.0, size.1)]
    Bytes {
        size: (usize, usize),
        what: &'static str,
        expected: usize,
        found: usize,
    },
    /// A registered depth image does not show what the camera's image shows.
    #[error(
        "a depth image of {}×{} pixels is not registered to camera images of {}×{}: their sides have other ratios; \
         register it, or give the depth camera's calibration and position (depth_registered:=false)",
        found.0, found.1, camera.0, camera.1
    )]
    Shape {
        camera: (usize, usize),
        found: (usize, usize),
    },
    /// The depth camera's calibration is for images of another size.
    #[error(
        "the depth camera's calibration is for {}×{} images, these are {}×{}: use the camera_info of this topic",
        expected.0, expected.1, found.0, found.1
    )]
    Size {
        expected: (usize, usize),
        found: (usize, usize),
    },
    /// Points cannot be projected into the camera's images.
    #[error(
        "depth that is not registered needs the camera's calibration: pass one, or register the depth images to the \
         camera's"
    )]
    NoCamera,
    /// The depth camera's calibration or position has impossible values.
    #[error("the depth camera: expected {expected}, found {found}")]
    Camera {
        expected: &'static str,
        found: String,
    },
    /// No pixel was measured.
    #[error("no pixel of the depth image is measured: all are 0 or not finite")]
    Empty,
    /// All measured pixels lie outside the limits.
    #[error(
        "all {measured} measured pixels of the depth image lie between {nearest} m and {farthest} m, expected {min} m \
         to {max} m (depth.min, depth.max): is the unit right? 16UC1 is in millimetres, 32FC1 in metres, files have \
         depth.units steps per metre"
    )]
    Limits {
        measured: usize,
        nearest: f32,
        farthest: f32,
        min: f32,
        max: f32,
    },
}
