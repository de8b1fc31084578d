//! Running the network for the GPU: in its memory where the backend can, else on the host, with
//! everything staged through pinned memory.

use crate::compute::cuda::sanitise::{DeviceView, ViewBuffers};
use crate::compute::cuda::{
    Context, CudaError, DeviceBuffer, DeviceSlice, Element, Event, PinnedBuffer, Stream,
};
use crate::compute::device::DeviceError;
use crate::image::RgbImage;
use crate::inference::{
    Backend, DeviceSpan, DeviceViewOutput, InferenceError, NetworkShape, PairOutput, ViewOutput,
    self_test,
};

/// Runs after which a backend has all that it needs.
const WARM_UP: usize = 4;

/// One view's outputs in pinned memory.
pub(super) struct PinnedView {
    pub(super) points: PinnedBuffer<f32>,
    pub(super) confidence: PinnedBuffer<f32>,
    pub(super) descriptors: PinnedBuffer<f32>,
    pub(super) descriptor_confidence: PinnedBuffer<f32>,
}

/// What a network on the host needs.
pub(super) struct Staging {
    /// Tokens of two images, `T × C` each.
    pub(super) features: [PinnedBuffer<f32>; 2],
    pub(super) views: [PinnedView; 2],
}

/// What is decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decoding {
    /// Image 0 with itself; only view 1 is wanted.
    Mono,
    /// Images 0 and 1.
    Pair,
    /// Images 0 and 1, then 1 and 0; images 2 and 3 likewise, and so on: so many pairs.
    Edges(usize),
}

impl Decoding {
    /// The images of each way.
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

/// How many of `left` edges are decoded together where at most `most` can be: a power of two, so that a
/// network with a model for each number needs few of them.
pub(super) fn at_once(left: usize, most: usize) -> usize {
    match left.min(most) {
        0 => 0,
        n => 1 << n.ilog2(),
    }
}

/// The network of one thread. Tokens of two images, or of two for each edge that is decoded together with
/// others, are held on the device; for a network on the host two there as well.
pub(super) struct Network {
    backend: Box<dyn Backend>,
    shape: NetworkShape,
    /// Of all images, and of each.
    all_features: DeviceBuffer<f32>,
    features: Vec<DeviceBuffer<f32>>,
    /// Of all ways together, and of each.
    all_views: [ViewBuffers; 2],
    views: Vec<[ViewBuffers; 2]>,
    /// What the backend's runs need besides; it has the address.
    _workspace: Option<DeviceBuffer<u8>>,
    /// None: the backend computes on the device.
    host: Option<Host>,
}

struct Host {
    staging: Staging,
    image: RgbImage,
    output: PairOutput,
    /// What was staged last has been sent.
    sent: Event,
}

impl Network {
    /// `features` is of the images, `views` of one way or of each image's. `workspace` is what the backend
    /// asked for; `staging` is for a network on the host.
    pub(super) fn new(
        context: &Context,
        mut backend: Box<dyn Backend>,
        features: DeviceBuffer<f32>,
        views: [ViewBuffers; 2],
        workspace: Option<DeviceBuffer<u8>>,
        staging: Option<Staging>,
    ) -> Result<Self, DeviceError> {
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
        if let Some(workspace) = &workspace {
            // SAFETY: this half's own, and dropped after the backend.
            unsafe { in_place(backend.as_mut())?.use_workspace(span(workspace.all())) }?;
        }
        Ok(Self {
            backend,
            shape,
            all_features: features,
            features: of_images,
            all_views: views,
            views: of_ways,
            _workspace: workspace,
            host,
        })
    }

    pub(super) fn name(&self) -> String {
        self.backend.name()
    }

    pub(super) fn shape(&self) -> &NetworkShape {
        &self.shape
    }

    /// Whether the network runs on the host.
    pub(super) fn is_on_host(&self) -> bool {
        self.host.is_some()
    }

    /// Most edges that are decoded together.
    pub(super) fn most_edges(&self) -> usize {
        self.views.len() / 2
    }

    /// Tokens of image `which`, as they were encoded or put there last.
    pub(super) fn features(&self, which: usize) -> DeviceSlice<'_, f32> {
        let image = self.features.get(which);
        image.map_or_else(|| self.all_features.all(), DeviceBuffer::all)
    }

    /// What [`Network::decode`] writes of view `which` in its first way.
    pub(super) fn view(&self, which: usize) -> DeviceView<'_> {
        self.view_of(0, which)
    }

    /// The same of a way; there are two of each edge for mapping.
    pub(super) fn view_of(&self, way: usize, which: usize) -> DeviceView<'_> {
        let views = self.views.get(way).map_or(&self.all_views, |views| views);
        views[which % 2].view()
    }

    /// Encodes the image that lies in `image` as bytes and in `planes` as the network's input; the
    /// tokens are those of image 0. `bytes` is pinned memory for the image.
    pub(super) fn encode(
        &mut self,
        stream: &Stream,
        image: DeviceSlice<'_, u8>,
        planes: DeviceSlice<'_, f32>,
        bytes: &mut PinnedBuffer<u8>,
    ) -> Result<(), DeviceError> {
        let Some(host) = &mut self.host else {
            let (planes, features) = (span(planes), span(self.features[0].all()));
            let backend = in_place(self.backend.as_mut())?;
            // SAFETY: the stream lives; both spans are buffers of this half, used on this stream alone.
            return Ok(unsafe { backend.enqueue_encode(stream.raw(), planes, features) }?);
        };
        // SAFETY: waited for before anybody looks.
        unsafe { stream.download(image, bytes)? };
        stream.synchronize()?;
        host.image.data.copy_from_slice(bytes);
        let tokens = &mut host.staging.features[0];
        self.backend.encode(&host.image, tokens)?;
        // SAFETY: the tokens are next written after the stream was waited for (above).
        unsafe { stream.upload(tokens, self.features[0].all())? };
        Ok(())
    }

    /// Image 1 becomes what image 0 is.
    pub(super) fn keep(&mut self, stream: &Stream) -> Result<(), DeviceError> {
        if let Some(host) = &mut self.host {
            let [from, to] = &mut host.staging.features;
            to.copy_from_slice(from);
        }
        stream.copy(self.features[0].all(), self.features[1].all())?;
        Ok(())
    }

    /// After image `which`'s tokens were changed on the device: the host, if the network is there, gets
    /// them. Waits for it.
    pub(super) fn fetch(&mut self, stream: &Stream, which: usize) -> Result<(), DeviceError> {
        if let Some(host) = &mut self.host {
            let which = which % 2;
            let (from, to) = (&self.features[which], &mut host.staging.features[which]);
            // SAFETY: waited for before anybody looks.
            unsafe { stream.download(from.all(), to)? };
            stream.synchronize()?;
        }
        Ok(())
    }

    /// Decodes; the outputs are on their way to the views.
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
        let pair = [0, 1].map(|k| span(self.features[k].all()));
        let views = [0, 1].map(|k| outputs(self.view(k)));
        let stream = stream.raw();
        if let Decoding::Edges(edges) = decoding {
            let each = self.shape.tokens * self.shape.feature_dim;
            let tokens = span(self.all_features.slice(0..2 * edges * each)?);
            let pixels = self.shape.pixels();
            let [first, second] = self.all_views.each_ref();
            let ways = 0..2 * edges;
            let views = [
                first.of_pairs(ways.clone(), pixels)?,
                second.of_pairs(ways, pixels)?,
            ];
            let views = views.each_ref().map(|view| outputs(view.view()));
            let backend = in_place(self.backend.as_mut())?;
            // SAFETY: the stream lives; all spans are buffers of this half, used on this stream alone.
            return Ok(unsafe { backend.enqueue_decode_edges(stream, edges, tokens, views) }?);
        }
        let backend = in_place(self.backend.as_mut())?;
        // SAFETY: as above.
        unsafe {
            match decoding {
                Decoding::Mono => backend.enqueue_decode_view1(stream, [pair[0]; 2], views),
                _ => backend.enqueue_decode(stream, pair, views),
            }?;
        }
        Ok(())
    }

    /// Decodes images `first` and `second` on the host and sends what is wanted.
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
        // What was staged last may still be on its way.
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

    /// A network on the device takes its memory and prepares its work in the first runs on each set of
    /// buffers: has them done now, for encoding `planes`, if this half encodes, and for `decodings`.
    pub(super) fn warm_up(
        &mut self,
        stream: &Stream,
        planes: Option<DeviceSlice<'_, f32>>,
        decodings: &[Decoding],
    ) -> Result<(), DeviceError> {
        if self.is_on_host() {
            return Ok(());
        }
        for _ in 0..WARM_UP {
            if let Some(planes) = planes {
                let (planes, features) = (span(planes), span(self.features[0].all()));
                let backend = in_place(self.backend.as_mut())?;
                // SAFETY: the stream lives; both spans are buffers of this half, used on this stream alone.
                unsafe { backend.enqueue_encode(stream.raw(), planes, features) }?;
            }
            for &decoding in decodings {
                self.decode(stream, decoding)?;
            }
        }
        stream.fill(self.all_features.all(), 0)?;
        Ok(stream.synchronize()?)
    }

    /// See [`self_test`]; a network on the device is tested when it is loaded, and here through its
    /// host interface.
    pub(super) fn self_test(&mut self) -> Result<(), InferenceError> {
        self_test(self.backend.as_mut())
    }
}

/// The backend's interface in place, which it had when this half was made.
fn in_place(
    backend: &mut dyn Backend,
) -> Result<&mut dyn crate::inference::DeviceBackend, InferenceError> {
    backend.device().ok_or(InferenceError::Runtime {
        runtime: "the network",
        doing: "starting on the GPU",
        message: "it gave its place there up".into(),
    })
}

/// Stages one view's outputs and sends them.
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
        // SAFETY: what is staged is next written after `sent`, which is recorded behind this, was
        // waited for.
        unsafe { stream.upload(staged, to.all())? };
    }
    Ok(())
}

fn span<T: Element>(slice: DeviceSlice<'_, T>) -> DeviceSpan {
    DeviceSpan {
        address: slice.address(),
        bytes: slice.bytes(),
    }
}

fn outputs(view: DeviceView<'_>) -> DeviceViewOutput {
    DeviceViewOutput {
        points: span(view.points),
        confidence: span(view.confidence),
        descriptors: span(view.descriptors),
        descriptor_confidence: span(view.descriptor_confidence),
    }
}
