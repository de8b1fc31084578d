//! Upload and preprocessing of camera images.

use super::repeated::Repeated;
use crate::compute::cuda::preprocess::{
    DevicePreprocessor, NetworkImage, PreprocessError, PreprocessorBuffers,
};
use crate::gpu::{Carver, Context, CudaError, DeviceBuffer, Event, PinnedBuffer, Stream};
use crate::image::encoding::{Encoding, RawImage};
use crate::image::{ImageError, Preprocessor};
use crate::inference::NetworkShape;

/// How the camera's images hold their pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CameraFormat {
    /// The meaning of their bytes.
    pub encoding: Encoding,
    /// Bytes from row to row.
    pub stride: usize,
}

/// Memory of a [`Camera`].
pub(super) struct CameraBuffers {
    host_raw: PinnedBuffer<u8>,
    raw: DeviceBuffer<u8>,
    preprocessor: PreprocessorBuffers,
    image: DeviceBuffer<u8>,
    host_image: PinnedBuffer<u8>,
    planes: DeviceBuffer<f32>,
}

impl CameraBuffers {
    /// For images in `format` that `preprocessor` takes.
    pub(super) fn carve(
        c: &mut Carver<'_, '_>,
        preprocessor: &Preprocessor,
        format: CameraFormat,
        shape: &NetworkShape,
    ) -> Result<Self, PreprocessError> {
        let (width, height) = preprocessor.input_size();
        let raw = format.encoding.bytes(width, height, format.stride)?;
        let (width, height) = (shape.width, shape.height);
        let image = [height, width, 3];
        Ok(Self {
            host_raw: c.pinned("raw image", &[raw])?,
            raw: c.device("raw image", &[raw])?,
            preprocessor: PreprocessorBuffers::carve(c, preprocessor)?,
            image: c.device("image", &image)?,
            host_image: c.pinned("image", &image)?,
            planes: c.device("network input", &[3, height, width])?,
        })
    }
}

/// Uploads camera images and preprocesses them for the network.
pub(super) struct Camera {
    preprocessor: DevicePreprocessor,
    encoding: Encoding,
    /// Width and height of the camera images, and the row stride in bytes.
    size: (usize, usize),
    stride: usize,
    host_raw: PinnedBuffer<u8>,
    raw: DeviceBuffer<u8>,
    /// The current frame, `H × W × 3`.
    pub(super) image: DeviceBuffer<u8>,
    pub(super) host_image: PinnedBuffer<u8>,
    pub(super) planes: DeviceBuffer<f32>,
    /// Upload and preprocessing.
    work: Repeated,
}

impl Camera {
    /// Sends the preprocessor's tables, clears the network's input, and waits.
    pub(super) fn new(
        context: &Context,
        stream: &Stream,
        buffers: CameraBuffers,
        preprocessor: &Preprocessor,
        format: CameraFormat,
    ) -> Result<Self, PreprocessError> {
        let CameraFormat { encoding, stride } = format;
        let tables = buffers.preprocessor;
        let made =
            DevicePreprocessor::new(context, stream, tables, preprocessor, encoding, stride)?;
        stream.fill(buffers.planes.all(), 0)?;
        Ok(Self {
            preprocessor: made,
            encoding,
            size: preprocessor.input_size(),
            stride,
            host_raw: buffers.host_raw,
            raw: buffers.raw,
            image: buffers.image,
            host_image: buffers.host_image,
            planes: buffers.planes,
            work: Repeated::new("a camera image's way to the network"),
        })
    }

    /// Rejects an image that does not match the preprocessor.
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
            true => (
                "a total number of bytes of at least",
                bytes,
                image.data.len(),
            ),
            false => (
                "the encoding of the first image, and a row stride in bytes of",
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

    /// Enqueues upload and preprocessing of the last image, between the two marks.
    ///
    /// # Safety
    /// No other image may be taken before the second mark has been waited for.
    pub(super) unsafe fn enqueue(
        &mut self,
        stream: &Stream,
        [start, end]: &[Event; 2],
    ) -> Result<(), CudaError> {
        let mut work = std::mem::take(&mut self.work);
        let enqueue = || {
            stream.mark(start)?;
            // SAFETY: guaranteed by the caller.
            unsafe { stream.upload(&self.host_raw, self.raw.all())? };
            let out = NetworkImage {
                image: Some(self.image.all()),
                planes: Some(self.planes.all()),
                half_planes: None,
            };
            self.preprocessor.enqueue(stream, self.raw.all(), &out)?;
            stream.mark(end)
        };
        // SAFETY: all buffers belong to this camera, and the caller guarantees the pinned one.
        let enqueued = unsafe { work.enqueue(stream, enqueue) };
        self.work = work;
        enqueued
    }
}
