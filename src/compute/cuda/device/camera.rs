//! From the camera's bytes to the network's input.

use super::repeated::Repeated;
use crate::compute::cuda::preprocess::{DevicePreprocessor, NetworkImage};
use crate::compute::cuda::{CudaError, DeviceBuffer, Event, PinnedBuffer, Stream};
use crate::image::ImageError;
use crate::image::encoding::{Encoding, RawImage};

/// From the camera's bytes to the network's input.
pub(super) struct Camera {
    pub(super) preprocessor: DevicePreprocessor,
    pub(super) encoding: Encoding,
    /// Width and height of the camera's images, and bytes from row to row.
    pub(super) size: (usize, usize),
    pub(super) stride: usize,
    pub(super) host_raw: PinnedBuffer<u8>,
    pub(super) raw: DeviceBuffer<u8>,
    /// `H × W × 3`, the current frame.
    pub(super) image: DeviceBuffer<u8>,
    pub(super) host_image: PinnedBuffer<u8>,
    pub(super) planes: DeviceBuffer<f32>,
    /// Upload and preprocessing.
    pub(super) work: Repeated,
}

impl Camera {
    /// Refuses an image that is not as the preprocessor was made for.
    pub(super) fn check(&self, image: &RawImage<'_>) -> Result<(), ImageError> {
        let found = (image.width, image.height);
        let expected = self.size;
        if found != expected {
            return Err(ImageError::Size { expected, found });
        }
        let same = image.encoding == self.encoding && image.stride == self.stride;
        let bytes = self.host_raw.len();
        if same && image.data.len() >= bytes {
            return Ok(());
        }
        let (what, expected, found) = match same {
            true => ("bytes in all, at least", bytes, image.data.len()),
            false => (
                "the first image's encoding, and bytes from row to row of",
                self.stride,
                image.stride,
            ),
        };
        Err(ImageError::Raw {
            encoding: image.encoding,
            size: self.size,
            what,
            expected,
            found,
        })
    }

    /// Copies a checked image to pinned memory.
    pub(super) fn take(&mut self, image: &RawImage<'_>) {
        let bytes = self.host_raw.len();
        self.host_raw.copy_from_slice(&image.data[..bytes]);
    }

    /// Enqueues upload and preprocessing of the image taken last, between the two marks.
    ///
    /// # Safety
    /// No other image is taken until the second mark was waited for.
    pub(super) unsafe fn enqueue(
        &mut self,
        stream: &Stream,
        [start, end]: &[Event; 2],
    ) -> Result<(), CudaError> {
        let mut work = std::mem::take(&mut self.work);
        let enqueue = || {
            stream.mark(start)?;
            // SAFETY: the caller's promise.
            unsafe { stream.upload(&self.host_raw, self.raw.all())? };
            let out = NetworkImage {
                image: Some(self.image.all()),
                planes: Some(self.planes.all()),
                half_planes: None,
            };
            self.preprocessor.enqueue(stream, self.raw.all(), &out)?;
            stream.mark(end)
        };
        // SAFETY: all buffers are this camera's, and the pinned one is as promised.
        let enqueued = unsafe { work.enqueue(stream, enqueue) };
        self.work = work;
        enqueued
    }
}
