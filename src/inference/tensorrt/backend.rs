//! The TensorRT backend: for SLAM in GPU memory, and for callers on the host by copying.

use super::error::TensorRtError;
use super::execution::Execution;
use super::loaded::{LoadOptions, Loaded};
use super::manifest::Part;
use super::target::Flavour;
use crate::gpu::plan::ALIGNMENT;
use crate::gpu::{DeviceBuffer, DeviceSlice, Floats, Stream};
use crate::image::RgbImage;
use crate::inference::device::{check_len, part_of_tokens, single_precision as single};
use crate::inference::expect;
use crate::inference::host::HostPath;
use crate::inference::{
    Backend, DeviceBackend, DeviceView, Holding, InferenceError, NetworkShape, PairOutput,
    self_test,
};
use crate::network::onnx::Precision;
use std::path::Path;
use std::sync::Arc;

/// The network on TensorRT, for one input size.
pub struct TensorRtBackend {
    // Dropped before the resources they use.
    executions: Executions,
    host: Option<HostPath>,
    loaded: Arc<Loaded>,
}

/// Executions of a handle: each handle has its own contexts, so that threads do not wait for each
/// other. Contexts are created on first use and share their memory, because runs of a handle are
/// sequential.
#[derive(Default)]
struct Executions {
    made: Vec<(Part, Execution)>,
    workspace: Option<Arc<DeviceBuffer<u8>>>,
}

impl TensorRtBackend {
    /// Finds or builds the engines of `weights` for images of `width × height`, loads them onto the
    /// first GPU and runs [`self_test`].
    ///
    /// # Errors
    /// [`InferenceError::TensorRt`] says what is missing; [`InferenceError::SelfTest`] if the
    /// engines run but their outputs are wrong.
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
        // The test used host buffers, which SLAM on the GPU does not need.
        backend.executions = Executions::default();
        backend.host = None;
        Ok(backend)
    }

    /// The execution of a part, with the handle's workspace.
    fn part(&mut self, part: Part) -> Result<&mut Execution, TensorRtError> {
        let at = match self.executions.place(part) {
            Some(at) => at,
            None => {
                let mut execution = self.loaded.execution(part)?;
                if let Some(workspace) = &self.executions.workspace {
                    execution.use_workspace(workspace)?;
                }
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

    /// Runs `call` with the buffers for host callers, in whose workspace the handle then runs.
    fn on_host(
        &mut self,
        call: impl FnOnce(&mut Self, &mut HostPath) -> Result<(), InferenceError>,
    ) -> Result<(), InferenceError> {
        let mut host = match self.host.take() {
            Some(host) => host,
            None => {
                let bytes = self.workspace_for(&Part::NEEDED)?;
                HostPath::new(self.loaded.gpu(), self.loaded.shape(), bytes)?
            }
        };
        let same = (self.executions.workspace.as_ref())
            .is_some_and(|workspace| Arc::ptr_eq(workspace, &host.workspace));
        let given = match same {
            true => Ok(()),
            false => self.executions.use_workspace(Arc::clone(&host.workspace)),
        };
        let done = given
            .map_err(Into::into)
            .and_then(|()| call(self, &mut host));
        self.host = Some(host);
        done
    }

    /// Enqueues a decoder run for `images` images (or pairs) at once, after checking all sizes.
    fn enqueue_decoder(
        &mut self,
        part: Part,
        images: usize,
        stream: &Stream,
        features: &[Floats<'_>],
        views: &[DeviceView<'_>],
    ) -> Result<(), InferenceError> {
        let shape = self.shape();
        let tokens = images * shape.tokens * shape.feature_dim;
        let features = features.iter().map(|&features| single(features));
        let mut slices = features.collect::<Result<Vec<_>, _>>()?;
        for slice in &slices {
            check_len("features on the device", tokens, slice.len())?;
        }
        for view in views {
            view.check_exactly(images, shape)?;
        }
        // In the order of the decoders' tensors.
        slices.extend(views.iter().flat_map(|view| view.slices()));
        Ok(self.part(part)?.enqueue(stream, &slices)?)
    }

    /// Device memory needed by runs of those of these parts that have an engine.
    fn workspace_for(&mut self, parts: &[Part]) -> Result<usize, TensorRtError> {
        let mut max = 0;
        for &part in parts {
            if !self.loaded.has(part) {
                continue;
            }
            let bytes = match self.executions.place(part) {
                Some(_) => self.part(part)?.workspace_bytes(),
                // Not kept: the caller that asks is not always the one that runs it.
                None => self.loaded.execution(part)?.workspace_bytes(),
            };
            max = max.max(bytes);
        }
        Ok(max)
    }
}

impl Executions {
    fn place(&self, part: Part) -> Option<usize> {
        self.made.iter().position(|(p, _)| *p == part)
    }

    fn use_workspace(&mut self, workspace: Arc<DeviceBuffer<u8>>) -> Result<(), TensorRtError> {
        for (_, execution) in &mut self.made {
            execution.use_workspace(&workspace)?;
        }
        self.workspace = Some(workspace);
        Ok(())
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

    fn precision(&self) -> Precision {
        self.loaded.manifest().precision
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
        self.on_host(|handle, host| {
            host.send_image(image)?;
            let (stream, planes, tokens) = (&host.stream, host.planes.all(), &host.features[0]);
            handle.enqueue_encode(stream, planes, tokens.all().into())?;
            Ok(stream.read(tokens.all(), features)?)
        })
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
        self.on_host(|handle, host| {
            for (features, on_device) in [features1, features2].iter().zip(&host.features) {
                host.stream.write(features, on_device.all())?;
            }
            let features = [0, 1].map(|k| host.features[k].all().into());
            let views = [0, 1].map(|k| host.view(k));
            handle.enqueue_decode(&host.stream, features, views)?;
            host.read_view(0, &mut out.view1)?;
            Ok(host.read_view(1, &mut out.view2)?)
        })
    }

    fn device(&mut self) -> Option<&mut dyn DeviceBackend> {
        Some(self)
    }
}

// Engines are built without auxiliary streams, so all their work is on the caller's.
impl DeviceBackend for TensorRtBackend {
    fn workspace_bytes(&mut self, edges: usize) -> Result<usize, InferenceError> {
        let mut parts = match edges {
            0 => vec![Part::Encoder, Part::Decoder, Part::Mono],
            _ => vec![Part::Encoder, Part::Decoder],
        };
        let of_edges = |part: &Part| part.edges().is_some_and(|n| n <= edges);
        parts.extend(Part::ALL.into_iter().filter(of_edges));
        Ok(self.workspace_for(&parts)?)
    }

    fn use_workspace(&mut self, workspace: DeviceBuffer<u8>) -> Result<(), InferenceError> {
        Ok(self.executions.use_workspace(Arc::new(workspace))?)
    }

    fn holds(&self) -> Vec<Holding> {
        let engines = self.loaded.manifest().engines.iter();
        let bytes = engines.map(|engine| engine.weight_bytes).sum();
        vec![Holding {
            name: "weights of the engines",
            bytes,
        }]
    }

    fn enqueue_encode(
        &mut self,
        stream: &Stream,
        planes: DeviceSlice<'_, f32>,
        features: Floats<'_>,
    ) -> Result<(), InferenceError> {
        let shape = self.shape();
        let tokens = shape.tokens * shape.feature_dim;
        let features = single(features)?;
        check_len("the image on the device", 3 * shape.pixels(), planes.len())?;
        check_len("features on the device", tokens, features.len())?;
        let encoder = self.part(Part::Encoder)?;
        Ok(encoder.enqueue(stream, &[planes, features])?)
    }

    fn enqueue_decode(
        &mut self,
        stream: &Stream,
        features: [Floats<'_>; 2],
        views: [DeviceView<'_>; 2],
    ) -> Result<(), InferenceError> {
        self.enqueue_decoder(Part::Decoder, 1, stream, &features, &views)
    }

    fn enqueue_decode_view1(
        &mut self,
        stream: &Stream,
        features: [Floats<'_>; 2],
        views: [DeviceView<'_>; 2],
    ) -> Result<(), InferenceError> {
        match self.loaded.has(Part::Mono) {
            true => self.enqueue_decoder(Part::Mono, 1, stream, &features, &views[..1]),
            false => self.enqueue_decode(stream, features, views),
        }
    }

    fn enqueue_decode_edges(
        &mut self,
        stream: &Stream,
        edges: usize,
        features: Floats<'_>,
        views: [DeviceView<'_>; 2],
    ) -> Result<(), InferenceError> {
        let mut parts = Part::ALL.into_iter();
        let one = parts.find(|part| part.edges() == Some(edges) && self.loaded.has(*part));
        if let Some(part) = one {
            return self.enqueue_decoder(part, 2 * edges, stream, &[features], &views);
        }
        if edges == 0 {
            return Ok(());
        }
        // Fewer edges at a time, and finally one direction at a time.
        let pieces = match edges {
            1 => 2,
            even if even.is_multiple_of(2) => 2,
            odd => odd,
        };
        // TensorRT requires this alignment of addresses.
        let each = (4 * 2 * edges / pieces * self.shape().pixels()) as u64;
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
            let [first, second] = views.map(|view| view.part(piece, pieces));
            let views = [first?, second?];
            let own = part_of_tokens(features, piece, pieces)?;
            match edges {
                1 => self.enqueue_decode(
                    stream,
                    [own, part_of_tokens(features, piece ^ 1, 2)?],
                    views,
                )?,
                _ => self.enqueue_decode_edges(stream, edges / pieces, own, views)?,
            }
        }
        Ok(())
    }
}
