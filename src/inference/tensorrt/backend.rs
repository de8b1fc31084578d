//! TensorRT as a backend: in the GPU's memory for SLAM there, and through it for callers on the host.

use super::error::TensorRtError;
use super::execution::Execution;
use super::loaded::{LoadOptions, Loaded, driver};
use super::manifest::Part;
use super::target::Flavour;
use crate::image::RgbImage;
use crate::inference::expect;
use crate::inference::{
    Backend, DeviceBackend, DeviceSpan, DeviceViewOutput, InferenceError, NetworkShape, PairOutput,
    normalise, self_test,
};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use std::ffi::c_void;
use std::path::Path;
use std::sync::Arc;

/// Addresses of inputs and outputs are multiples of this.
const ALIGNMENT: usize = 256;

/// The network on TensorRT, for one input size.
pub struct TensorRtBackend {
    // Dropped before what they execute on.
    executions: Executions,
    host: Option<HostPath>,
    loaded: Arc<Loaded>,
}

/// What a handle runs: contexts of its own, so that threads do not wait for each other. They are made when they
/// are first asked for, and share their memory, as runs of a handle follow each other.
#[derive(Default)]
struct Executions {
    made: Vec<(Part, Execution)>,
    workspace: Option<DeviceSpan>,
}

/// Device memory for callers on the host.
struct HostPath {
    stream: Arc<CudaStream>,
    workspace: CudaSlice<u8>,
    planes: CudaSlice<f32>,
    features: [CudaSlice<f32>; 2],
    /// Points, confidence, descriptors, their confidence of either view.
    views: [[CudaSlice<f32>; 4]; 2],
    /// The image as the encoder takes it, `3 × H × W`.
    normalised: Vec<f32>,
}

impl TensorRtBackend {
    /// Finds, or builds, the engines of `weights` for images of `width × height`, loads them onto the first GPU
    /// and runs [`self_test`] on them.
    ///
    /// # Errors
    /// [`InferenceError::TensorRt`] says what is missing; [`InferenceError::SelfTest`] where the engines run and
    /// cannot be right.
    pub fn load(
        weights: &Path,
        width: usize,
        height: usize,
        options: &LoadOptions<'_>,
    ) -> Result<Self, InferenceError> {
        let mut backend = Self {
            executions: Executions::default(),
            host: None,
            loaded: Arc::new(Loaded::load(weights, (width, height), options)?),
        };
        self_test(&mut backend)?;
        backend.loaded.save_kernels();
        // The test's buffers are the host's, which SLAM on the GPU does not need.
        backend.executions = Executions::default();
        backend.host = None;
        Ok(backend)
    }

    /// The execution of a part, with the handle's memory to run in.
    fn part(&mut self, part: Part) -> Result<&mut Execution, TensorRtError> {
        let span = self.executions.workspace;
        let at = match self.executions.place(part) {
            Some(at) => at,
            None => {
                let mut execution = self.loaded.execution(part)?;
                give(&mut execution, span)?;
                self.executions.made.push((part, execution));
                self.executions.made.len() - 1
            }
        };
        let made = self.executions.made.get_mut(at);
        let (_, execution) = made.ok_or_else(|| TensorRtError::Failed {
            doing: "preparing the network".into(),
            message: "no execution context".into(),
        })?;
        Ok(execution)
    }

    /// As [`TensorRtBackend::part`], for a caller on the host, whose buffers are then those of [`HostPath`].
    fn on_host(&mut self) -> Result<(), TensorRtError> {
        if self.host.is_none() {
            let bytes = self.workspace_for(&Part::NEEDED)?;
            let made = HostPath::new(&self.loaded, bytes);
            self.host = Some(made.map_err(driver("taking memory for the host's calls"))?);
        }
        let Some(host) = &self.host else {
            return Ok(());
        };
        let span = span(&host.workspace, &host.stream);
        if self.executions.workspace != Some(span) {
            // SAFETY: the memory is this handle's and goes after its executions; the host's calls wait for
            // their runs.
            unsafe { self.executions.use_workspace(span) }?;
        }
        Ok(())
    }

    fn encode_on(
        &mut self,
        host: &mut HostPath,
        image: &RgbImage,
        features: &mut [f32],
    ) -> Result<(), InferenceError> {
        const DOING: &str = "encoding for the host";
        normalise(image, &mut host.normalised);
        let stream = &host.stream;
        stream
            .memcpy_htod(&host.normalised, &mut host.planes)
            .map_err(driver(DOING))?;
        let spans = [span(&host.planes, stream), span(&host.features[0], stream)];
        let encoder = self.part(Part::Encoder)?;
        // SAFETY: stream and buffers are this handle's, and it waits below.
        unsafe { encoder.enqueue(stream.cu_stream().cast(), &spans) }?;
        stream
            .memcpy_dtoh(&host.features[0], features)
            .map_err(driver(DOING))?;
        Ok(stream.synchronize().map_err(driver(DOING))?)
    }

    fn decode_on(
        &mut self,
        host: &mut HostPath,
        features: [&[f32]; 2],
        out: &mut PairOutput,
    ) -> Result<(), InferenceError> {
        const DOING: &str = "decoding for the host";
        let stream = Arc::clone(&host.stream);
        for (features, on_device) in features.iter().zip(&mut host.features) {
            stream
                .memcpy_htod(*features, on_device)
                .map_err(driver(DOING))?;
        }
        let features = [0, 1].map(|k| span(&host.features[k], &stream));
        let spans = decoder_spans(&features, &[host.outputs(0), host.outputs(1)]);
        let decoder = self.part(Part::Decoder)?;
        // SAFETY: stream and buffers are this handle's, and it waits below.
        unsafe { decoder.enqueue(stream.cu_stream().cast(), &spans) }?;
        for (view, buffers) in [&mut out.view1, &mut out.view2]
            .into_iter()
            .zip(&host.views)
        {
            let parts = [
                &mut view.points,
                &mut view.confidence,
                &mut view.descriptors,
                &mut view.descriptor_confidence,
            ];
            for (part, buffer) in parts.into_iter().zip(buffers) {
                stream.memcpy_dtoh(buffer, part).map_err(driver(DOING))?;
            }
        }
        Ok(stream.synchronize().map_err(driver(DOING))?)
    }

    /// Enqueues a decoder's run for `images` images (or pairs) at once, once all sizes are checked.
    ///
    /// # Safety
    /// As for [`DeviceBackend::enqueue_decode_edges`].
    unsafe fn enqueue_decoder(
        &mut self,
        part: Part,
        images: usize,
        stream: *mut c_void,
        features: &[DeviceSpan],
        views: &[DeviceViewOutput],
    ) -> Result<(), InferenceError> {
        let (n, tokens) = sizes(self.shape());
        let (n, tokens) = (images * n, images * tokens);
        let dim = self.shape().descriptor_dim;
        for span in features {
            bytes("the features' device memory", 4 * tokens, span.bytes)?;
        }
        for view in views {
            for (what, expected, span) in [
                ("the points' device memory", 3 * n, view.points),
                ("the confidences' device memory", n, view.confidence),
                ("the descriptors' device memory", dim * n, view.descriptors),
                (
                    "the descriptor confidences' device memory",
                    n,
                    view.descriptor_confidence,
                ),
            ] {
                bytes(what, 4 * expected, span.bytes)?;
            }
        }
        let decoder = self.part(part)?;
        let spans = decoder_spans(features, views);
        // SAFETY: the caller's promise, and the sizes were checked.
        Ok(unsafe { decoder.enqueue(stream, &spans) }?)
    }

    /// Device memory that runs of these parts take, of those that there is an engine for.
    fn workspace_for(&mut self, parts: &[Part]) -> Result<usize, TensorRtError> {
        let mut most = 0;
        for &part in parts {
            if !self.loaded.has(part) {
                continue;
            }
            let bytes = match self.executions.place(part) {
                Some(_) => self.part(part)?.workspace_bytes(),
                // Not kept: whoever asks is not always who runs it.
                None => self.loaded.execution(part)?.workspace_bytes(),
            };
            most = most.max(bytes);
        }
        Ok(most)
    }
}

impl Executions {
    fn place(&self, part: Part) -> Option<usize> {
        self.made.iter().position(|(p, _)| *p == part)
    }

    /// # Safety
    /// As for [`Execution::use_workspace`].
    unsafe fn use_workspace(&mut self, span: DeviceSpan) -> Result<(), TensorRtError> {
        self.workspace = Some(span);
        for (_, execution) in &mut self.made {
            give(execution, Some(span))?;
        }
        Ok(())
    }
}

/// Gives an execution the memory that its handle was given.
fn give(execution: &mut Execution, span: Option<DeviceSpan>) -> Result<(), TensorRtError> {
    let needed = execution.workspace_bytes();
    match span {
        // SAFETY: whoever gave it to the handle said that it stays, and is the handle's alone.
        Some(span) if span.bytes >= needed => unsafe { execution.use_workspace(span) },
        None if needed == 0 => Ok(()),
        given => Err(TensorRtError::Failed {
            doing: "starting a run".into(),
            message: format!(
                "it takes {needed} bytes of device memory and was given {}",
                given.map_or(0, |span| span.bytes)
            ),
        }),
    }
}

impl HostPath {
    fn new(loaded: &Loaded, workspace: usize) -> Result<Self, cudarc::driver::DriverError> {
        let shape = loaded.shape();
        let stream = loaded.cuda().new_stream()?;
        let (n, tokens) = (shape.pixels(), shape.tokens * shape.feature_dim);
        let zeros = |values| stream.alloc_zeros::<f32>(values);
        let view = || {
            let sizes = [3 * n, n, shape.descriptor_dim * n, n];
            let [a, b, c, d] = sizes.map(zeros);
            Ok([a?, b?, c?, d?])
        };
        Ok(Self {
            // Address 0 would mean none.
            workspace: stream.alloc_zeros(workspace.max(256))?,
            planes: zeros(3 * n)?,
            features: [zeros(tokens)?, zeros(tokens)?],
            views: [view()?, view()?],
            normalised: vec![0.0; 3 * n],
            stream,
        })
    }

    fn outputs(&self, view: usize) -> DeviceViewOutput {
        let [points, confidence, descriptors, descriptor_confidence] =
            [0, 1, 2, 3].map(|k| span(&self.views[view % 2][k], &self.stream));
        DeviceViewOutput {
            points,
            confidence,
            descriptors,
            descriptor_confidence,
        }
    }
}

impl Backend for TensorRtBackend {
    fn shape(&self) -> &NetworkShape {
        self.loaded.shape()
    }

    fn name(&self) -> String {
        let manifest = self.loaded.manifest();
        format!(
            "{} {} ({})",
            Flavour::HERE.name(),
            manifest.tensorrt.version,
            manifest.precision
        )
    }

    fn share(&self) -> Box<dyn Backend> {
        Box::new(Self {
            executions: Executions::default(),
            host: None,
            loaded: Arc::clone(&self.loaded),
        })
    }

    fn encode(&mut self, image: &RgbImage, features: &mut [f32]) -> Result<(), InferenceError> {
        let shape = self.shape().clone();
        expect::image(image, &shape)?;
        expect::features(features, &shape)?;
        self.on_host()?;
        let Some(mut host) = self.host.take() else {
            return Ok(());
        };
        let encoded = self.encode_on(&mut host, image, features);
        self.host = Some(host);
        encoded
    }
    fn decode(
        &mut self,
        features1: &[f32],
        features2: &[f32],
        out: &mut PairOutput,
    ) -> Result<(), InferenceError> {
        let shape = self.shape().clone();
        for features in [features1, features2] {
            expect::features(features, &shape)?;
        }
        for view in [&out.view1, &out.view2] {
            expect::view(view, &shape)?;
        }
        self.on_host()?;
        let Some(mut host) = self.host.take() else {
            return Ok(());
        };
        let decoded = self.decode_on(&mut host, [features1, features2], out);
        self.host = Some(host);
        decoded
    }
    fn device(&mut self) -> Option<&mut dyn DeviceBackend> {
        Some(self)
    }
}

// SAFETY: the engines read their inputs and write their outputs and the workspace, all of which are bound to the
// spans of the call (or given once), on the caller's stream and no other: engines are built without auxiliary
// streams.
unsafe impl DeviceBackend for TensorRtBackend {
    fn workspace_bytes(&mut self, edges: usize) -> Result<usize, InferenceError> {
        let mut parts = match edges {
            0 => vec![Part::Encoder, Part::Decoder, Part::Mono],
            _ => vec![Part::Decoder],
        };
        let of_edges = |part: &Part| part.edges().is_some_and(|n| n <= edges);
        parts.extend(Part::ALL.into_iter().filter(of_edges));
        Ok(self.workspace_for(&parts)?)
    }

    unsafe fn use_workspace(&mut self, span: DeviceSpan) -> Result<(), InferenceError> {
        // SAFETY: the caller's promise.
        Ok(unsafe { self.executions.use_workspace(span) }?)
    }

    unsafe fn enqueue_encode(
        &mut self,
        stream: *mut c_void,
        planes: DeviceSpan,
        features: DeviceSpan,
    ) -> Result<(), InferenceError> {
        let (n, tokens) = sizes(self.shape());
        bytes("the image's device memory", 4 * 3 * n, planes.bytes)?;
        bytes("the features' device memory", 4 * tokens, features.bytes)?;
        let encoder = self.part(Part::Encoder)?;
        // SAFETY: the caller's promise, and the sizes were checked.
        Ok(unsafe { encoder.enqueue(stream, &[planes, features]) }?)
    }

    unsafe fn enqueue_decode(
        &mut self,
        stream: *mut c_void,
        features: [DeviceSpan; 2],
        views: [DeviceViewOutput; 2],
    ) -> Result<(), InferenceError> {
        // SAFETY: the caller's promise.
        unsafe { self.enqueue_decoder(Part::Decoder, 1, stream, &features, &views) }
    }

    unsafe fn enqueue_decode_view1(
        &mut self,
        stream: *mut c_void,
        features: [DeviceSpan; 2],
        views: [DeviceViewOutput; 2],
    ) -> Result<(), InferenceError> {
        if !self.loaded.has(Part::Mono) {
            // SAFETY: the caller's promise.
            return unsafe { self.enqueue_decode(stream, features, views) };
        }
        // SAFETY: the caller's promise.
        unsafe { self.enqueue_decoder(Part::Mono, 1, stream, &features, &views[..1]) }
    }

    unsafe fn enqueue_decode_edges(
        &mut self,
        stream: *mut c_void,
        edges: usize,
        features: DeviceSpan,
        views: [DeviceViewOutput; 2],
    ) -> Result<(), InferenceError> {
        let mut parts = Part::ALL.into_iter();
        let one = parts.find(|part| part.edges() == Some(edges) && self.loaded.has(*part));
        if let Some(part) = one {
            // SAFETY: the caller's promise.
            return unsafe { self.enqueue_decoder(part, 2 * edges, stream, &[features], &views) };
        }
        if edges == 0 {
            return Ok(());
        }
        // Fewer at once, at last way by way.
        let pieces = match edges {
            1 => 2,
            even if even.is_multiple_of(2) => 2,
            odd => odd,
        };
        // TensorRT takes no other addresses.
        let each = 4 * 2 * edges / pieces * self.shape().pixels();
        if !each.is_multiple_of(ALIGNMENT) {
            return Err(InferenceError::Shape {
                what: "images whose edges are decoded one after the other",
                expected: format!(
                    "a number of pixels that is a multiple of {}, or engines built with --parts {}",
                    ALIGNMENT / 4,
                    match edges {
                        1 => "edge",
                        _ => "edge,two_edges, or memory.edge_batch: 1",
                    }
                ),
                found: format!("{}x{}", self.shape().width, self.shape().height),
            });
        }
        for piece in 0..pieces {
            let views = views.map(|view| view.part(piece, pieces));
            let own = features.part(piece, pieces);
            // SAFETY: the caller's promise; these are parts of its spans.
            unsafe {
                match edges {
                    1 => self.enqueue_decode(stream, [own, features.part(piece ^ 1, 2)], views),
                    _ => self.enqueue_decode_edges(stream, edges / pieces, own, views),
                }?;
            }
        }
        Ok(())
    }
}

/// Pixels, and values of an image's tokens.
fn sizes(shape: &NetworkShape) -> (usize, usize) {
    (shape.pixels(), shape.tokens * shape.feature_dim)
}

/// In the order of the decoders' tensors.
fn decoder_spans(features: &[DeviceSpan], views: &[DeviceViewOutput]) -> Vec<DeviceSpan> {
    let mut spans = features.to_vec();
    spans.extend(views.iter().flat_map(|view| view.spans()));
    spans
}

fn span<T>(slice: &CudaSlice<T>, stream: &CudaStream) -> DeviceSpan {
    let (address, _guard) = slice.device_ptr(stream);
    DeviceSpan {
        address,
        bytes: slice.num_bytes(),
    }
}

/// Refuses device memory of another size than expected.
fn bytes(what: &'static str, expected: usize, found: usize) -> Result<(), InferenceError> {
    if expected == found {
        return Ok(());
    }
    Err(InferenceError::Shape {
        what,
        expected: format!("{expected} bytes"),
        found: format!("{found} bytes"),
    })
}
