//! Runs the network in GPU memory if the backend supports it, otherwise on the host with everything
//! staged through pinned memory.

use super::content;
use crate::compute::cuda::sanitise::{Sanitiser, SanitiserBuffers, ViewBuffers, counted};
use crate::compute::device::{DeviceError, Floats};
use crate::gpu::{
    self, Carver, Context, CudaError, DeviceBuffer, DeviceSlice, Event, FloatBuffer, PinnedBuffer,
    Stream,
};
use crate::image::RgbImage;
use crate::inference::{
    Backend, DeviceBackend, InferenceError, NetworkShape, PairOutput, ViewOutput, normalise,
    self_test,
};
use crate::inference::{DeviceView, single_precision as single};

/// Number of runs after which a backend has allocated everything it needs.
const WARM_UP: usize = 4;

/// The buffer of tokens behind those of a pair.
const AHEAD: usize = 2;

/// Outputs of one view in pinned memory.
struct PinnedView {
    points: PinnedBuffer<f32>,
    confidence: PinnedBuffer<f32>,
    descriptors: PinnedBuffer<f32>,
    descriptor_confidence: PinnedBuffer<f32>,
}

/// Pinned buffers for a network on the host.
struct Staging {
    /// Tokens of two images, `T × C` each.
    features: [PinnedBuffer<f32>; 2],
    views: [PinnedView; 2],
}

/// Memory of a [`Network`].
pub(super) struct NetworkBuffers {
    /// `2 × T × C` encoder tokens of each pair of images, and of the image that is encoded ahead.
    features: FloatBuffer,
    /// Outputs, of one pair for tracking, of all pairs both ways for mapping.
    views: [ViewBuffers; 2],
    /// Number of unusable pixels of each output, those of view 1 first.
    unusable: DeviceBuffer<u32>,
    sanitiser: SanitiserBuffers,
    /// Memory that the backend's runs need besides, if it asks for any.
    workspace: Option<DeviceBuffer<u8>>,
    /// The same for an encoder that runs beside.
    encoder_workspace: Option<DeviceBuffer<u8>>,
    /// Inputs and outputs on the host, if the network runs there.
    staging: Option<Staging>,
}

/// Sizes of [`NetworkBuffers`].
pub(super) struct NetworkSizes<'a> {
    /// The network's.
    pub(super) shape: &'a NetworkShape,
    /// Ways in which a pair is decoded: one, or both.
    pub(super) ways: usize,
    /// Pairs that are decoded together.
    pub(super) batch: usize,
    /// Bytes that the backend asks for.
    pub(super) workspace: usize,
    /// Bytes that it asks for to encode beside; `None`: it does not.
    pub(super) encoder_workspace: Option<usize>,
    /// Whether tokens are in half precision.
    pub(super) half_tokens: bool,
    /// Whether the network runs on the host.
    pub(super) on_host: bool,
}

impl NetworkBuffers {
    pub(super) fn carve(
        c: &mut Carver<'_, '_>,
        sizes: &NetworkSizes<'_>,
    ) -> Result<Self, CudaError> {
        let shape = sizes.shape;
        let (n, dim) = (shape.pixels(), shape.descriptor_dim);
        let tokens = [shape.tokens, shape.feature_dim];
        let names = ["view 1", "view 2"];
        let images = 2 * sizes.batch + usize::from(sizes.encoder_workspace.is_some());
        let extents = [images, tokens[0], tokens[1]];
        let features = FloatBuffer::carve(c, "tokens", &extents, sizes.half_tokens)?;
        let outputs = sizes.batch * sizes.ways;
        let pixels = outputs * n;
        let [first, second] = names.map(|name| ViewBuffers::carve(&mut c.part(name), pixels, dim));
        let views = [first?, second?];
        let unusable = c.device("unusable pixels", &[2, outputs])?;
        let sanitiser = SanitiserBuffers::carve(&mut c.part("sanitiser"))?;
        let workspace = match sizes.workspace {
            0 => None,
            bytes => Some(c.device("network workspace", &[bytes])?),
        };
        let encoder_workspace = (sizes.encoder_workspace)
            .map(|bytes| c.device("encoder's workspace", &[bytes]))
            .transpose()?;
        let staging = match sizes.on_host {
            false => None,
            true => {
                let [a, b] = names.map(|name| c.part(name).pinned("tokens", &tokens));
                let features = [a?, b?];
                let [a, b] = names.map(|name| {
                    let mut c = c.part(name);
                    Ok::<_, CudaError>(PinnedView {
                        points: c.pinned("points", &[n, 3])?,
                        confidence: c.pinned("confidences", &[n])?,
                        descriptors: c.pinned("descriptors", &[n, dim])?,
                        descriptor_confidence: c.pinned("descriptor confidences", &[n])?,
                    })
                });
                let views = [a?, b?];
                Some(Staging { features, views })
            }
        };
        Ok(Self {
            features,
            views,
            unusable,
            sanitiser,
            workspace,
            encoder_workspace,
            staging,
        })
    }
}

/// Inputs to decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decoding {
    /// Image 0 paired with itself; only view 1 is needed.
    Mono,
    /// Images 0 and 1.
    Pair,
    /// Images 0 and 1 in both directions, images 2 and 3 likewise, and so on, for this many pairs.
    Edges(usize),
}

impl Decoding {
    /// The image indices of each direction.
    fn orders(self) -> impl Iterator<Item = (usize, usize)> {
        let ways = match self {
            Self::Mono | Self::Pair => 1,
            Self::Edges(edges) => 2 * edges,
        };
        (0..ways).map(move |way| match self {
            Self::Mono => (0, 0),
            _ => (way, way ^ 1),
        })
    }
}

/// Number of the `left` edges to decode together if at most `most` are possible: a power of two unless the network
/// takes `any` number, as one with a model for each number should need few of them.
fn at_once(left: usize, most: usize, any: bool) -> usize {
    match left.min(most) {
        0 => 0,
        n if any => n,
        n => 1 << n.ilog2(),
    }
}

/// The network of one thread. The tokens of two images, or of two images per edge decoded together,
/// are stored on the device; for a network on the host, also two there.
pub(super) struct Network {
    backend: Box<dyn Backend>,
    /// Encodes beside it.
    encoder: Option<Box<dyn Backend>>,
    /// Which buffer has the tokens of image 0, and which those of the image encoded ahead.
    order: [usize; 2],
    shape: NetworkShape,
    /// Tokens of all images, and parts for each.
    all_features: FloatBuffer,
    features: Vec<FloatBuffer>,
    /// Outputs of all directions, and parts for each.
    all_views: [ViewBuffers; 2],
    views: Vec<[ViewBuffers; 2]>,
    /// Number of unusable pixels of each direction, those of view 1 first.
    unusable: DeviceBuffer<u32>,
    /// `None` if the backend sanitises its outputs.
    sanitiser: Option<Sanitiser>,
    /// `None` if the backend computes on the device.
    host: Option<Host>,
}

struct Host {
    staging: Staging,
    image: RgbImage,
    output: PairOutput,
    /// Recorded when the last staged data has been sent.
    sent: Event,
}

impl Network {
    /// Clears the tokens on `stream`.
    pub(super) fn new(
        context: &Context,
        stream: &Stream,
        mut backend: Box<dyn Backend>,
        buffers: NetworkBuffers,
    ) -> Result<Self, DeviceError> {
        let NetworkBuffers {
            features,
            views,
            unusable,
            sanitiser,
            workspace,
            encoder_workspace,
            staging,
        } = buffers;
        features.clear(stream)?;
        let shape = backend.shape().clone();
        let pixels = shape.pixels();
        let ways = views[0].confidence.len() / pixels.max(1);
        let way = |way| {
            let [first, second] = &views;
            Ok([first.of_pair(way, pixels)?, second.of_pair(way, pixels)?])
        };
        let of_ways = (0..ways).map(way).collect::<Result<_, CudaError>>()?;
        let each = (shape.tokens * shape.feature_dim).max(1);
        let image = |k: usize| features.part(k * each..(k + 1) * each);
        let of_images = (0..features.len() / each).map(image);
        let of_images = of_images.collect::<Result<_, CudaError>>()?;
        let host = match staging {
            None => None,
            Some(staging) => Some(Host {
                staging,
                image: RgbImage::new(shape.width, shape.height),
                output: PairOutput::zeros(&shape),
                sent: context.event(false)?,
            }),
        };
        let sanitiser = match backend.device().is_some_and(|device| device.sanitises()) {
            true => None,
            false => Some(Sanitiser::new(
                context,
                stream,
                sanitiser,
                pixels,
                shape.descriptor_dim,
            )?),
        };
        if let Some(workspace) = workspace {
            in_place(backend.as_mut())?.use_workspace(workspace)?;
        }
        let encoder = match encoder_workspace {
            None => None,
            Some(workspace) => {
                let mut encoder = backend.share();
                in_place(encoder.as_mut())?.use_workspace(workspace)?;
                Some(encoder)
            }
        };
        Ok(Self {
            backend,
            encoder,
            order: [0, AHEAD],
            shape,
            all_features: features,
            features: of_images,
            all_views: views,
            views: of_ways,
            unusable,
            sanitiser,
            host,
        })
    }

    pub(super) fn name(&self) -> String {
        self.backend.name()
    }

    pub(super) fn shape(&self) -> &NetworkShape {
        &self.shape
    }

    pub(super) fn is_on_host(&self) -> bool {
        self.host.is_some()
    }

    /// Maximum number of edges decoded together.
    pub(super) fn most_edges(&self) -> usize {
        self.views.len() / 2
    }

    /// Number of the `left` edges to decode together.
    pub(super) fn edges_at_once(&mut self, left: usize) -> usize {
        let most = self.most_edges().max(1);
        let device = self.backend.device();
        at_once(left, most, device.is_some_and(|d| d.takes_any_batch()))
    }

    /// Numbers of edges that are decoded together.
    pub(super) fn batches(&mut self) -> Vec<usize> {
        let most = self.most_edges();
        (1..=most).filter(|&n| self.edges_at_once(n) == n).collect()
    }

    /// Tokens of image `which`.
    pub(super) fn features(&self, which: usize) -> gpu::Floats<'_> {
        let buffer = match which {
            0 => self.order[0],
            other => other,
        };
        let image = self.features.get(buffer);
        image.map_or_else(|| self.all_features.all(), FloatBuffer::all)
    }

    /// Output of [`Network::decode`] for view `which` in the first direction.
    pub(super) fn view(&self, which: usize) -> DeviceView<'_> {
        self.view_of(0, which)
    }

    /// The output for any direction; mapping has two per edge.
    pub(super) fn view_of(&self, way: usize, which: usize) -> DeviceView<'_> {
        let views = self.views.get(way).map_or(&self.all_views, |views| views);
        views[which % 2].view()
    }

    /// Whether images can be encoded beside other work.
    pub(super) fn encodes_beside(&self) -> bool {
        self.encoder.is_some()
    }

    /// Enqueues encoding `planes`, maybe beside the others' work; the result becomes the tokens of image 0 by
    /// [`Network::turn`].
    pub(super) fn encode_ahead(
        &mut self,
        stream: &Stream,
        planes: DeviceSlice<'_, f32>,
    ) -> Result<(), DeviceError> {
        let tokens = self.features.get(self.order[1]);
        if let (Some(encoder), Some(tokens)) = (&mut self.encoder, tokens) {
            let encoder = in_place(encoder.as_mut())?;
            encoder.enqueue_encode(stream, planes, tokens.all())?;
        }
        Ok(())
    }

    /// Makes the image encoded ahead image 0.
    pub(super) fn turn(&mut self) {
        self.order.reverse();
    }

    /// Encodes the image given as bytes in `image` and as network input in `planes`; the result is
    /// the tokens of image 0. `bytes` is pinned memory for the image.
    pub(super) fn encode(
        &mut self,
        stream: &Stream,
        image: DeviceSlice<'_, u8>,
        planes: DeviceSlice<'_, f32>,
        bytes: &mut PinnedBuffer<u8>,
    ) -> Result<(), DeviceError> {
        let Some(host) = &mut self.host else {
            let backend = in_place(self.backend.as_mut())?;
            return Ok(backend.enqueue_encode(stream, planes, self.features[0].all())?);
        };
        // SAFETY: the stream is synchronised before the data is read.
        unsafe { stream.download(image, bytes)? };
        stream.synchronize()?;
        host.image.data.copy_from_slice(bytes);
        let tokens = &mut host.staging.features[0];
        self.backend.encode(&host.image, tokens)?;
        // SAFETY: the stream is synchronised (above) before the tokens are next written.
        unsafe { stream.upload(tokens, single(self.features[0].all())?)? };
        Ok(())
    }

    /// The tokens of an image in host memory; waits for them. Tokens and outputs on the device are overwritten.
    pub(super) fn encode_image(
        &mut self,
        stream: &Stream,
        image: &RgbImage,
    ) -> Result<Floats, DeviceError> {
        if self.host.is_some() {
            let mut tokens = vec![0.0; self.shape.tokens * self.shape.feature_dim];
            self.backend.encode(image, &mut tokens)?;
            return Ok(Floats::F32(tokens));
        }
        let mut normalised = vec![0.0; 3 * self.shape.pixels()];
        normalise(image, &mut normalised);
        // The decoder's points have the size of the encoder's input, and nothing is decoded meanwhile.
        let [view, _] = self.views.first().unwrap_or(&self.all_views);
        let planes = view.view().points;
        stream.write(&normalised, planes)?;
        let tokens = self.features[0].all();
        let backend = in_place(self.backend.as_mut())?;
        backend.enqueue_encode(stream, planes, tokens)?;
        Ok(content::read_floats(stream, tokens)?)
    }

    /// Copies the tokens of image 0 to image 1.
    pub(super) fn keep(&mut self, stream: &Stream) -> Result<(), DeviceError> {
        if let Some(host) = &mut self.host {
            let [from, to] = &mut host.staging.features;
            to.copy_from_slice(from);
        }
        let each = self.shape.tokens * self.shape.feature_dim;
        let [from, to] = [self.order[0], 1].map(|k| k * each..(k + 1) * each);
        Ok(self.all_features.copy_within(stream, from, to)?)
    }

    /// Copies image `which`'s tokens to the host after they were changed on the device, if the
    /// network runs there. Waits for completion.
    pub(super) fn fetch(&mut self, stream: &Stream, which: usize) -> Result<(), DeviceError> {
        if let Some(host) = &mut self.host {
            let which = which % 2;
            let (from, to) = (&self.features[which], &mut host.staging.features[which]);
            // SAFETY: the stream is synchronised before the data is read.
            unsafe { stream.download(single(from.all())?, to)? };
            stream.synchronize()?;
        }
        Ok(())
    }

    /// Makes the first `views` outputs of direction `way` safe to compute with, unless the backend has done so;
    /// see [`crate::inference::sanitise`].
    pub(super) fn sanitise(
        &self,
        stream: &Stream,
        way: usize,
        views: usize,
    ) -> Result<(), CudaError> {
        let Some(sanitiser) = &self.sanitiser else {
            return Ok(());
        };
        let second = (views > 1).then(|| self.view_of(way, 1));
        sanitiser.enqueue(stream, self.view_of(way, 0), second, self.unusable.all())
    }

    /// Number of unusable pixels of both views of a single pair.
    pub(super) fn unusable(&self) -> DeviceSlice<'_, u32> {
        self.unusable.all()
    }

    /// Decodes; the outputs will be in the views, once they are sanitised ([`Network::sanitise`]).
    pub(super) fn decode(
        &mut self,
        stream: &Stream,
        decoding: Decoding,
    ) -> Result<(), DeviceError> {
        if self.host.is_some() {
            for (way, order) in decoding.orders().enumerate() {
                self.decode_on_host(stream, way, order, decoding)?;
            }
            return Ok(());
        }
        let pair = [self.order[0], 1].map(|k| self.features[k].all());
        let backend = in_place(self.backend.as_mut())?;
        let of_first_way = self.views.first().unwrap_or(&self.all_views);
        let views = counted(of_first_way.each_ref(), &self.unusable, 1)?;
        match decoding {
            Decoding::Mono => backend.enqueue_decode_view1(stream, [pair[0]; 2], views)?,
            Decoding::Pair => backend.enqueue_decode(stream, pair, views)?,
            Decoding::Edges(edges) => {
                let each = self.shape.tokens * self.shape.feature_dim;
                let tokens = self.all_features.all().slice(0..2 * edges * each)?;
                let pixels = self.shape.pixels();
                let [first, second] = self.all_views.each_ref();
                let ways = 0..2 * edges;
                let views = [
                    first.of_pairs(ways.clone(), pixels)?,
                    second.of_pairs(ways, pixels)?,
                ];
                let views = counted(views.each_ref(), &self.unusable, 2 * edges)?;
                backend.enqueue_decode_edges(stream, edges, tokens, views)?;
            }
        }
        Ok(())
    }

    /// Decodes images `first` and `second` on the host and uploads the requested views.
    fn decode_on_host(
        &mut self,
        stream: &Stream,
        way: usize,
        (first, second): (usize, usize),
        decoding: Decoding,
    ) -> Result<(), DeviceError> {
        let Some(host) = &mut self.host else {
            return Ok(());
        };
        let Staging { features, views } = &mut host.staging;
        let (a, b) = (&features[first % 2], &features[second % 2]);
        let wanted = match decoding {
            Decoding::Mono => 1,
            Decoding::Pair | Decoding::Edges(_) => 2,
        };
        match wanted {
            1 => self.backend.decode_view1(a, b, &mut host.output)?,
            _ => self.backend.decode(a, b, &mut host.output)?,
        }
        // The last staged data may still be in transit.
        host.sent.synchronize()?;
        let output = [&host.output.view1, &host.output.view2];
        let to = self.views.get(way).unwrap_or(&self.all_views);
        let parts = views.iter_mut().zip(output).zip(to);
        for ((view, output), to) in parts.take(wanted) {
            send(stream, output, view, to)?;
        }
        stream.record(&host.sent)?;
        Ok(())
    }

    /// A network on the device allocates memory and prepares its work in the first runs on each set
    /// of buffers; this performs them in advance, for encoding each of the planes on each of the streams if this half
    /// encodes, and for `decodings`.
    pub(super) fn warm_up(
        &mut self,
        stream: &Stream,
        (streams, planes): (&[&Stream], &[DeviceSlice<'_, f32>]),
        decodings: &[Decoding],
    ) -> Result<(), DeviceError> {
        if self.is_on_host() {
            return Ok(());
        }
        for _ in 0..WARM_UP {
            if self.encodes_beside() {
                for &planes in planes {
                    for on in streams {
                        self.encode_ahead(on, planes)?;
                        on.synchronize()?;
                    }
                    self.turn();
                    for &decoding in decodings {
                        self.decode(stream, decoding)?;
                    }
                }
                continue;
            }
            for &planes in planes {
                let backend = in_place(self.backend.as_mut())?;
                backend.enqueue_encode(stream, planes, self.features[0].all())?;
            }
            for &decoding in decodings {
                self.decode(stream, decoding)?;
            }
        }
        self.all_features.clear(stream)?;
        Ok(stream.synchronize()?)
    }

    /// See [`self_test`]. A network on the device is tested when it is loaded; this tests it
    /// through its host interface.
    pub(super) fn self_test(&mut self) -> Result<(), InferenceError> {
        self_test(self.backend.as_mut())
    }
}

/// The backend's device interface, which it had when this half was created.
fn in_place(backend: &mut dyn Backend) -> Result<&mut dyn DeviceBackend, InferenceError> {
    backend.device().ok_or(InferenceError::Runtime {
        runtime: "the network",
        doing: "starting on the GPU",
        message: "it no longer supports the device".into(),
    })
}

/// Stages the outputs of one view and uploads them.
fn send(
    stream: &Stream,
    output: &ViewOutput,
    staging: &mut PinnedView,
    to: &ViewBuffers,
) -> Result<(), CudaError> {
    let parts = [
        (&output.points, &mut staging.points, &to.points),
        (&output.confidence, &mut staging.confidence, &to.confidence),
        (
            &output.descriptors,
            &mut staging.descriptors,
            &to.descriptors,
        ),
        (
            &output.descriptor_confidence,
            &mut staging.descriptor_confidence,
            &to.descriptor_confidence,
        ),
    ];
    for (from, staged, to) in parts {
        if from.len() != staged.len() {
            return Err(CudaError::Length {
                what: "values of the network's output",
                expected: staged.len(),
                found: from.len(),
            });
        }
        staged.copy_from_slice(from);
        // SAFETY: the staged data is overwritten only after `sent`, recorded after this copy, has
        // been waited for.
        unsafe { stream.upload(staged, to.all())? };
    }
    Ok(())
}
