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

/// The network on TensorRT, for one input size.
pub struct TensorRtBackend {
    // Dropped before what they execute on.
    executions: Option<Executions>,
    host: Option<HostPath>,
    loaded: Arc<Loaded>,
}

/// What a handle runs: contexts of its own, so that threads do not wait for each other.
struct Executions {
    encoder: Execution,
    decoder: Execution,
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
            executions: None,
            host: None,
            loaded: Arc::new(Loaded::load(weights, (width, height), options)?),
        };
        self_test(&mut backend)?;
        backend.loaded.save_kernels();
        // The test's buffers are the host's, which SLAM on the GPU does not need.
        backend.executions = None;
        backend.host = None;
        Ok(backend)
    }

    fn executions(&mut self) -> Result<&mut Executions, TensorRtError> {
        if self.executions.is_none() {
            self.executions = Some(Executions {
                encoder: self.loaded.execution(Part::Encoder)?,
                decoder: self.loaded.execution(Part::Decoder)?,
                workspace: None,
            });
        }
        self.executions
            .as_mut()
            .ok_or_else(|| TensorRtError::Failed {
                doing: "preparing the network".into(),
                message: "no execution context".into(),
            })
    }

    /// Runs a part for a caller on the host, whose buffers are then those of [`HostPath`].
    fn on_host(&mut self) -> Result<(), TensorRtError> {
        let bytes = self.executions()?.workspace_bytes();
        if self.host.is_none() {
            let made = HostPath::new(&self.loaded, bytes);
            self.host = Some(made.map_err(driver("taking memory for the host's calls"))?);
        }
        let (Some(host), Some(executions)) = (&self.host, &mut self.executions) else {
            return Ok(());
        };
        let span = span(&host.workspace, &host.stream);
        if executions.workspace != Some(span) {
            // SAFETY: the memory is this handle's and goes after its executions; the host's calls wait for
            // their runs.
            unsafe { executions.use_workspace(span) }?;
        }
        Ok(())
    }
}

impl Executions {
    /// Runs of a handle follow each other, so they share their memory.
    fn workspace_bytes(&mut self) -> usize {
        self.encoder
            .workspace_bytes()
            .max(self.decoder.workspace_bytes())
    }

    /// # Safety
    /// As for [`Execution::use_workspace`].
    unsafe fn use_workspace(&mut self, span: DeviceSpan) -> Result<(), TensorRtError> {
        // SAFETY: the caller's promise.
        unsafe {
            self.encoder.use_workspace(span)?;
            self.decoder.use_workspace(span)?;
        }
        self.workspace = Some(span);
        Ok(())
    }

    /// Refuses to run without memory to run in.
    fn ready(&mut self) -> Result<(), TensorRtError> {
        if self.workspace.is_none() && self.workspace_bytes() > 0 {
            return Err(TensorRtError::Failed {
                doing: "starting a run".into(),
                message: "its device memory was not given".into(),
            });
        }
        Ok(())
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
            executions: None,
            host: None,
            loaded: Arc::clone(&self.loaded),
        })
    }

    fn encode(&mut self, image: &RgbImage, features: &mut [f32]) -> Result<(), InferenceError> {
        const DOING: &str = "encoding for the host";
        let shape = self.shape().clone();
        expect::image(image, &shape)?;
        expect::features(features, &shape)?;
        self.on_host()?;
        let (Some(host), Some(executions)) = (&mut self.host, &mut self.executions) else {
            return Ok(());
        };
        normalise(image, &mut host.normalised);
        let stream = &host.stream;
        stream
            .memcpy_htod(&host.normalised, &mut host.planes)
            .map_err(driver(DOING))?;
        let spans = [span(&host.planes, stream), span(&host.features[0], stream)];
        // SAFETY: stream and buffers are this handle's, and it waits below.
        unsafe {
            executions
                .encoder
                .enqueue(stream.cu_stream().cast(), &spans)
        }?;
        stream
            .memcpy_dtoh(&host.features[0], features)
            .map_err(driver(DOING))?;
        stream.synchronize().map_err(driver(DOING))?;
        Ok(())
    }

    fn decode(
        &mut self,
        features1: &[f32],
        features2: &[f32],
        out: &mut PairOutput,
    ) -> Result<(), InferenceError> {
        const DOING: &str = "decoding for the host";
        let shape = self.shape().clone();
        for features in [features1, features2] {
            expect::features(features, &shape)?;
        }
        for view in [&out.view1, &out.view2] {
            expect::view(view, &shape)?;
        }
        self.on_host()?;
        let (Some(host), Some(executions)) = (&mut self.host, &mut self.executions) else {
            return Ok(());
        };
        let stream = Arc::clone(&host.stream);
        for (features, on_device) in [features1, features2].iter().zip(&mut host.features) {
            stream
                .memcpy_htod(*features, on_device)
                .map_err(driver(DOING))?;
        }
        let features = [0, 1].map(|k| span(&host.features[k], &stream));
        let spans = decoder_spans(features, [host.outputs(0), host.outputs(1)]);
        // SAFETY: stream and buffers are this handle's, and it waits below.
        unsafe {
            executions
                .decoder
                .enqueue(stream.cu_stream().cast(), &spans)
        }?;
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
        stream.synchronize().map_err(driver(DOING))?;
        Ok(())
    }

    fn device(&mut self) -> Option<&mut dyn DeviceBackend> {
        Some(self)
    }
}

// SAFETY: the engines read their inputs and write their outputs and the workspace, all of which are bound to the
// spans of the call (or given once), on the caller's stream and no other: engines are built without auxiliary
// streams.
unsafe impl DeviceBackend for TensorRtBackend {
    fn workspace_bytes(&mut self) -> Result<usize, InferenceError> {
        Ok(self.executions()?.workspace_bytes())
    }

    unsafe fn use_workspace(&mut self, span: DeviceSpan) -> Result<(), InferenceError> {
        let executions = self.executions()?;
        let needed = executions.workspace_bytes();
        if span.bytes < needed {
            return Err(InferenceError::Shape {
                what: "the network's device memory",
                expected: format!("{needed} bytes"),
                found: format!("{} bytes", span.bytes),
            });
        }
        // SAFETY: the caller's promise.
        Ok(unsafe { executions.use_workspace(span) }?)
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
        let executions = self.executions()?;
        executions.ready()?;
        // SAFETY: the caller's promise, and the sizes were checked.
        Ok(unsafe { executions.encoder.enqueue(stream, &[planes, features]) }?)
    }

    unsafe fn enqueue_decode(
        &mut self,
        stream: *mut c_void,
        features: [DeviceSpan; 2],
        views: [DeviceViewOutput; 2],
    ) -> Result<(), InferenceError> {
        let (n, tokens) = sizes(self.shape());
        let dim = self.shape().descriptor_dim;
        for span in features {
            bytes("the features' device memory", 4 * tokens, span.bytes)?;
        }
        for view in &views {
            bytes("the points' device memory", 4 * 3 * n, view.points.bytes)?;
            bytes(
                "the confidences' device memory",
                4 * n,
                view.confidence.bytes,
            )?;
            bytes(
                "the descriptors' device memory",
                4 * dim * n,
                view.descriptors.bytes,
            )?;
            bytes(
                "the descriptor confidences' device memory",
                4 * n,
                view.descriptor_confidence.bytes,
            )?;
        }
        let executions = self.executions()?;
        executions.ready()?;
        let spans = decoder_spans(features, views);
        // SAFETY: the caller's promise, and the sizes were checked.
        Ok(unsafe { executions.decoder.enqueue(stream, &spans) }?)
    }
}

/// Pixels, and values of an image's tokens.
fn sizes(shape: &NetworkShape) -> (usize, usize) {
    (shape.pixels(), shape.tokens * shape.feature_dim)
}

/// In the order of the decoder's tensors.
fn decoder_spans(features: [DeviceSpan; 2], views: [DeviceViewOutput; 2]) -> [DeviceSpan; 10] {
    let [f1, f2] = features;
    let [a, b] = views;
    [
        f1,
        f2,
        a.points,
        a.confidence,
        a.descriptors,
        a.descriptor_confidence,
        b.points,
        b.confidence,
        b.descriptors,
        b.descriptor_confidence,
    ]
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
