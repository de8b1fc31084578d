//! Errors of building and finishing SLAM.

use crate::slam::SlamError;
use crate::source::SourceError;
use std::path::PathBuf;
use std::sync::Arc;

/// Error from building SLAM.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    /// A file given explicitly cannot be read.
    #[error("cannot read {what} {path}: {cause}")]
    Unreadable {
        /// Its purpose, such as `the weights`.
        what: &'static str,
        /// The path as given.
        path: PathBuf,
        /// The system's reason.
        cause: std::io::Error,
    },
    /// A bundled file is missing.
    #[error(
        "cannot find the bundled {name}; looked in {looked}; set MAST3R_SLAM_SHARE to the folder that contains it"
    )]
    Asset {
        /// The path below the share folder.
        name: &'static str,
        /// Every place that was looked in.
        looked: String,
    },
    /// Weights with a name that are not here.
    #[error(transparent)]
    Weights(#[from] crate::weights::WeightsError),
    /// The network or its runtime.
    #[error(transparent)]
    Inference(#[from] crate::inference::InferenceError),
    /// Place recognition's codebook.
    #[error(transparent)]
    Retrieval(#[from] crate::compute::retrieval::RetrievalError),
    /// The images' format or the calibration.
    #[error(transparent)]
    Image(#[from] crate::image::ImageError),
    /// The device.
    #[error(transparent)]
    Device(#[from] crate::compute::device::DeviceError),
    /// A mask that does not fit the camera's images.
    #[error("cannot use the mask {path}: {cause}", path = path.display())]
    Mask {
        /// The path as given.
        path: PathBuf,
        /// The reason.
        cause: crate::compute::device::DeviceError,
    },
    /// The source's first image.
    #[error(transparent)]
    Source(Arc<SourceError>),
    /// The source has no frames in the requested range.
    #[error("{origin} has no frames in the requested range; check start, end and stride")]
    NoImages {
        /// The source.
        origin: String,
    },
    /// Neither a source nor a format was given.
    #[error("the image format is unknown; pass a source or a format to the builder")]
    NoFormat,
    /// Calibrated operation without a calibration.
    #[error(
        "use_calib is set, but {origin} has no calibration; pass one with --calib, or use --no-calib"
    )]
    NoCalibration {
        /// The source.
        origin: String,
    },
    /// The map to go on with.
    #[error(transparent)]
    Map(#[from] crate::slam::SavedMapError),
    /// SLAM itself.
    #[error(transparent)]
    Slam(#[from] SlamError),
}
