//! Camera images on their way to tokens: the current frame's, and where the network encodes beside other work the one
//! that is expected next, on a stream of its own. An image that was not expected is encoded on the tracking stream.

use super::camera::{Camera, CameraBuffers, CameraFormat};
use super::frame::events;
use super::network::Network;
use crate::compute::device::DeviceError;
use crate::gpu::{DeviceSlice, Event, Priority, Stream};
use crate::image::Preprocessor;
use crate::image::encoding::RawImage;

/// An image and the marks of its way.
pub(super) struct Passage {
    pub(super) camera: Camera,
    /// Start, preprocessed.
    pub(super) preprocessing: [Event; 2],
    /// Encoded from, to; for a network on the GPU.
    pub(super) encoding: [Event; 2],
}

/// The stream that encodes ahead.
struct Ahead {
    stream: Stream,
    /// The tracking stream has no more use for what encoding the next image overwrites.
    free: Event,
    /// Where the bytes of the image lie that was encoded ahead, and how many they are.
    expected: Option<(*const u8, usize)>,
}

// SAFETY: the pointer is compared with others and never followed.
unsafe impl Send for Ahead {}

/// The images. The other one than the current is where the next one comes.
pub(super) struct Images {
    passages: Vec<Passage>,
    current: usize,
    /// `None` with a single passage.
    ahead: Option<Ahead>,
}

impl Images {
    /// Sends tables; waits.
    pub(super) fn new(
        stream: &Stream,
        buffers: Vec<CameraBuffers>,
        preprocessor: &Preprocessor,
        format: CameraFormat,
    ) -> Result<Self, DeviceError> {
        let context = stream.context();
        let passage = |buffers| {
            Ok::<_, DeviceError>(Passage {
                camera: Camera::new(context, stream, buffers, preprocessor, format)?,
                preprocessing: events(context)?,
                encoding: events(context)?,
            })
        };
        let passages: Vec<_> = buffers.into_iter().map(passage).collect::<Result<_, _>>()?;
        let ahead = match passages.len() {
            0 | 1 => None,
            _ => Some(Ahead {
                // The next image is needed a frame later: what this frame waits for comes first.
                stream: context.stream(Priority::Low)?,
                free: context.event(false)?,
                expected: None,
            }),
        };
        Ok(Self {
            // The first image comes to the first passage, as in the network's warm-up.
            current: passages.len() - 1,
            passages,
            ahead,
        })
    }

    /// The network's inputs, and the streams that they are encoded on: `stream` and, if there is one, the one that
    /// encodes ahead.
    pub(super) fn inputs<'a>(
        &'a self,
        stream: &'a Stream,
    ) -> (Vec<&'a Stream>, Vec<DeviceSlice<'a, f32>>) {
        let ahead = self.ahead.as_ref().map(|ahead| &ahead.stream);
        let planes = (self.passages.iter()).map(|passage| passage.camera.planes.all());
        (
            [stream].into_iter().chain(ahead).collect(),
            planes.collect(),
        )
    }

    /// The current image.
    pub(super) fn current(&self) -> &Passage {
        &self.passages[self.current]
    }

    /// Makes `image` the current one and enqueues what is left to do until its tokens are there.
    pub(super) fn take(
        &mut self,
        stream: &Stream,
        network: &mut Network,
        image: &RawImage<'_>,
    ) -> Result<(), DeviceError> {
        self.current().camera.check(image)?;
        let Some(ahead) = &mut self.ahead else {
            return self.encode_only(stream, network, image);
        };
        let expected = ahead.expected.take();
        let other = self.other();
        // Also an image that was expected in vain is on its way there.
        stream.wait(&self.passages[other].encoding[1])?;
        if expected != Some((image.data.as_ptr(), image.data.len())) {
            self.passages[other].encode(stream, network, image)?;
        }
        if let Some(ahead) = &self.ahead {
            // The next image overwrites what the frame before used and what the encoder works in.
            stream.record(&ahead.free)?;
        }
        self.current = other;
        network.turn();
        Ok(())
    }

    /// Begins to encode the image that [`Images::take`] gets next.
    pub(super) fn expect(
        &mut self,
        network: &mut Network,
        image: &RawImage<'_>,
    ) -> Result<(), DeviceError> {
        // A wrong image is reported when it is taken.
        if self.ahead.is_none() || self.current().camera.check(image).is_err() {
            return Ok(());
        }
        let other = self.other();
        if let (Some(ahead), Some(passage)) = (&mut self.ahead, self.passages.get_mut(other)) {
            ahead.stream.wait(&ahead.free)?;
            passage.encode(&ahead.stream, network, image)?;
            ahead.expected = Some((image.data.as_ptr(), image.data.len()));
        }
        Ok(())
    }

    fn other(&self) -> usize {
        (self.current + 1) % self.passages.len()
    }

    /// Encodes the only image.
    fn encode_only(
        &mut self,
        stream: &Stream,
        network: &mut Network,
        image: &RawImage<'_>,
    ) -> Result<(), DeviceError> {
        let passage = &mut self.passages[self.current];
        passage.start(stream, image)?;
        stream.record(&passage.encoding[0])?;
        let Camera {
            image,
            planes,
            host_image,
            ..
        } = &mut passage.camera;
        network.encode(stream, image.all(), planes.all(), host_image)?;
        Ok(stream.record(&passage.encoding[1])?)
    }
}

impl Passage {
    /// Enqueues upload and preprocessing of a checked image.
    fn start(&mut self, stream: &Stream, image: &RawImage<'_>) -> Result<(), DeviceError> {
        // The previous image has been preprocessed, unless its frame failed.
        self.preprocessing[1].synchronize()?;
        self.camera.take(image);
        // SAFETY: the image is overwritten only after the preprocessing has been waited for, above.
        Ok(unsafe { self.camera.enqueue(stream, &self.preprocessing) }?)
    }

    /// Enqueues encoding a checked image, which does not become the current one yet.
    fn encode(
        &mut self,
        stream: &Stream,
        network: &mut Network,
        image: &RawImage<'_>,
    ) -> Result<(), DeviceError> {
        self.start(stream, image)?;
        stream.record(&self.encoding[0])?;
        network.encode_ahead(stream, self.camera.planes.all())?;
        Ok(stream.record(&self.encoding[1])?)
    }
}
