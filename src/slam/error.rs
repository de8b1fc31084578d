//! SLAM errors.

use crate::compute::device::DeviceError;
use crate::image::ImageError;

/// Error from a SLAM call. Results so far remain available through [`Slam::finish`],
/// [`Slam::snapshot`], [`Slam::read_map`] and [`Slam::save_map`].
///
/// [`Slam::finish`]: super::Slam::complete
/// [`Slam::snapshot`]: super::Slam::snapshot
/// [`Slam::read_map`]: super::Slam::read_map
/// [`Slam::save_map`]: super::Slam::save_map
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the text of an error names its fields")]
pub enum SlamError {
    /// The network or the device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The mapping thread failed.
    #[error("the mapping thread failed: {0}")]
    Thread(String),
    /// This image cannot be used; the next one may be usable.
    #[error("frame {index}: {source}")]
    Image { index: usize, source: ImageError },
}
