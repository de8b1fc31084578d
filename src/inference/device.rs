//! Network inference in the GPU memory used by SLAM.

use super::{InferenceError, NetworkShape};
use crate::gpu::{CudaError, DeviceBuffer, DeviceSlice, Element, Floats, Stream};
use serde::Serialize;

/// Dense outputs of one view on the device; see [`super::ViewOutput`] for the host version.
#[derive(Debug, Clone, Copy)]
pub struct DeviceView<'a> {
    /// `N × 3` points in the camera frame of view 1.
    pub points: DeviceSlice<'a, f32>,
    /// `N` confidences of the points.
    pub confidence: DeviceSlice<'a, f32>,
    /// `N × D` descriptors, 16-byte aligned.
    pub descriptors: DeviceSlice<'a, f32>,
    /// `N` confidences of the descriptors.
    pub descriptor_confidence: DeviceSlice<'a, f32>,
    /// Number of unusable pixels of each image, for a backend that sanitises
    /// ([`DeviceBackend::sanitises`]); `None`: the outputs stay as the network computes them.
    pub unusable: Option<DeviceSlice<'a, u32>>,
}

impl<'a> DeviceView<'a> {
    /// The four outputs in field order, which is the order of a decoder's outputs.
    pub fn slices(self) -> [DeviceSlice<'a, f32>; 4] {
        [
            self.points,
            self.confidence,
            self.descriptors,
            self.descriptor_confidence,
        ]
    }

    /// The same view with counts of unusable pixels, one for each image.
    pub fn counting(self, unusable: DeviceSlice<'a, u32>) -> Self {
        Self {
            unusable: Some(unusable),
            ..self
        }
    }

    /// Rejects slices too short for `pixels` of `channels`, and misaligned descriptors.
    pub fn check(&self, pixels: usize, channels: usize) -> Result<(), CudaError> {
        self.points.at_least("points", pixels * 3)?;
        self.confidence.at_least("confidences", pixels)?;
        self.descriptors
            .at_least("descriptors", pixels * channels)?;
        self.descriptor_confidence
            .at_least("descriptor confidences", pixels)?;
        self.descriptors.aligned("descriptors", 16)?;
        Ok(())
    }

    /// Rejects slices that do not have exactly the size for `images` images of `shape`.
    pub(super) fn check_exactly(
        &self,
        images: usize,
        shape: &NetworkShape,
    ) -> Result<(), InferenceError> {
        let n = images * shape.pixels();
        let expected = [3 * n, n, shape.descriptor_dim * n, n];
        let names = [
            "points on the device",
            "confidences on the device",
            "descriptors on the device",
            "descriptor confidences on the device",
        ];
        for ((what, expected), found) in names.into_iter().zip(expected).zip(self.slices()) {
            check_len(what, expected, found.len())?;
        }
        match self.unusable {
            Some(counts) => check_len("counts of unusable pixels", images, counts.len()),
            None => Ok(()),
        }
    }

    /// Part `which` of `of` equal parts of every slice.
    pub(super) fn part(self, which: usize, of: usize) -> Result<Self, CudaError> {
        Ok(Self {
            points: part(self.points, which, of)?,
            confidence: part(self.confidence, which, of)?,
            descriptors: part(self.descriptors, which, of)?,
            descriptor_confidence: part(self.descriptor_confidence, which, of)?,
            unusable: (self.unusable)
                .map(|counts| part(counts, which, of))
                .transpose()?,
        })
    }
}

/// Part `which` of `of` equal parts.
pub(super) fn part<T: Element>(
    slice: DeviceSlice<'_, T>,
    which: usize,
    of: usize,
) -> Result<DeviceSlice<'_, T>, CudaError> {
    let each = slice.len() / of.max(1);
    slice.slice(which * each..(which + 1) * each)
}

/// Part `which` of `of` equal parts of tokens.
pub(super) fn part_of_tokens(
    tokens: Floats<'_>,
    which: usize,
    of: usize,
) -> Result<Floats<'_>, CudaError> {
    let each = tokens.len() / of.max(1);
    tokens.slice(which * each..(which + 1) * each)
}

/// Tokens for a backend that takes them in single precision only.
pub(crate) fn single_precision(tokens: Floats<'_>) -> Result<DeviceSlice<'_, f32>, InferenceError> {
    match tokens {
        Floats::F32(tokens) => Ok(tokens),
        Floats::F16(_) => Err(InferenceError::Shape {
            what: "tokens on the device",
            expected: "single precision".into(),
            found: "half precision".into(),
        }),
    }
}

/// Rejects a wrong number of values.
pub(super) fn check_len(
    what: &'static str,
    expected: usize,
    found: usize,
) -> Result<(), InferenceError> {
    super::expect::values(what, expected, found)
}

/// Device memory allocated by a backend itself, for the memory plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    pub name: &'static str,
    /// Size in bytes, as far as the runtime reports it.
    pub bytes: u64,
}

/// Equal steps of a part of the network, see [`DeviceBackend::time_layers`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LayerTime {
    /// `encoder` or `pair`.
    pub part: &'static str,
    /// The first one's name, where it has one, and the sizes of each.
    pub layer: String,
    /// Name of the kernel.
    pub kernel: &'static str,
    /// How many there are.
    pub count: usize,
    /// Median duration of one.
    pub milliseconds: f64,
    /// Multiplications and additions of one's products.
    pub operations: u64,
    /// Bytes of one's operands, each counted once.
    pub bytes: u64,
}

/// A loaded network with inputs and outputs on the GPU.
///
/// Enqueued work accesses only the slices of the call and the backend's own memory, and is complete
/// when the preceding work of the stream is. Slices must be aligned to 256 bytes.
pub trait DeviceBackend: Send {
    /// Device memory in bytes that runs need in addition to their slices, which the caller provides
    /// once with [`DeviceBackend::use_workspace`], for a handle that encodes, and decodes up to `edges`
    /// edges at once; with 0 edges, for one that encodes and decodes single pairs. 0 if the backend
    /// allocates its own.
    fn workspace_bytes(&mut self, edges: usize) -> Result<usize, InferenceError> {
        let _ = edges;
        Ok(0)
    }

    /// Provides the memory that runs of this handle use from now on.
    fn use_workspace(&mut self, workspace: DeviceBuffer<u8>) -> Result<(), InferenceError> {
        let _ = workspace;
        Ok(())
    }

    /// Device memory in bytes for a handle that only encodes, and that may run beside the other handles of this network,
    /// on a stream of its own; `None` where that is not possible.
    fn encoder_workspace_bytes(&mut self) -> Result<Option<usize>, InferenceError> {
        Ok(None)
    }

    /// Whether each number of edges up to the greatest one is decoded at once as fast as it can be; otherwise only
    /// powers of two.
    fn takes_any_batch(&self) -> bool {
        false
    }

    /// Whether tokens may be in half precision, too: the encoder writes them so, and the decoder reads
    /// them as they are.
    fn takes_half_tokens(&self) -> bool {
        false
    }

    /// Whether the decoder's outputs are sanitised as by [`super::sanitise`] where a view has counts of
    /// unusable pixels; otherwise the caller does that.
    fn sanitises(&self) -> bool {
        false
    }

    /// Device memory allocated by all handles of this network together.
    fn holds(&self) -> Vec<Holding> {
        Vec::new()
    }

    /// Approximate device memory in bytes that the backend will allocate itself in the first runs
    /// if up to `edges` edges are decoded at once, and which must be left free. Memory already
    /// allocated is not counted.
    fn still_takes(&self, edges: usize) -> u64 {
        let _ = edges;
        0
    }

    /// Prepares in parallel what the first runs would prepare sequentially: for a handle that
    /// encodes and decodes single pairs on streams of the highest priority, and for one that
    /// decodes up to `edges` edges at once on streams of the lowest. An optimisation of start-up
    /// time.
    fn prepare(&mut self, edges: usize) -> Result<(), InferenceError> {
        let _ = edges;
        Ok(())
    }

    /// What each kind of step of the encoder and of a pair takes by itself; `None` where a part runs as a whole.
    fn time_layers(&mut self) -> Result<Option<Vec<LayerTime>>, InferenceError> {
        Ok(None)
    }

    /// Enqueues encoding an image. `planes`: `3 × H × W`, `byte / 127.5 − 1`; `features`: `T × C`.
    ///
    /// # Errors
    /// [`InferenceError::Shape`] for slices of the wrong length, and for tokens in half precision where they are not
    /// taken; errors of the runtime.
    fn enqueue_encode(
        &mut self,
        stream: &Stream,
        planes: DeviceSlice<'_, f32>,
        features: Floats<'_>,
    ) -> Result<(), InferenceError>;

    /// Enqueues decoding a pair of encoded images, both `T × C` (they may be the same).
    ///
    /// # Errors
    /// See [`DeviceBackend::enqueue_encode`].
    fn enqueue_decode(
        &mut self,
        stream: &Stream,
        features: [Floats<'_>; 2],
        views: [DeviceView<'_>; 2],
    ) -> Result<(), InferenceError>;

    /// Like [`DeviceBackend::enqueue_decode`], if the caller reads only view 1; view 2 may be left
    /// in any state.
    ///
    /// # Errors
    /// See [`DeviceBackend::enqueue_encode`].
    fn enqueue_decode_view1(
        &mut self,
        stream: &Stream,
        features: [Floats<'_>; 2],
        views: [DeviceView<'_>; 2],
    ) -> Result<(), InferenceError> {
        self.enqueue_decode(stream, features, views)
    }

    /// Enqueues decoding of `edges` pairs in both directions. `features`: `2·edges × T × C`, where
    /// every two consecutive images form a pair; each slice of `views` has room for as many: part
    /// `n` has image `n` as view 1 and its partner as view 2. The first call with a given `edges`
    /// may take long.
    ///
    /// # Errors
    /// See [`DeviceBackend::enqueue_encode`].
    fn enqueue_decode_edges(
        &mut self,
        stream: &Stream,
        edges: usize,
        features: Floats<'_>,
        views: [DeviceView<'_>; 2],
    ) -> Result<(), InferenceError> {
        let images = 2 * edges;
        for image in 0..images {
            let [own, partner] = [image, image ^ 1].map(|k| part_of_tokens(features, k, images));
            let [first, second] = views.map(|view| view.part(image, images));
            self.enqueue_decode(stream, [own?, partner?], [first?, second?])?;
        }
        Ok(())
    }
}
