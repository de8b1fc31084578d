//! ONNX Runtime backend: the emitted ONNX model on an NVIDIA GPU, in the memory that SLAM uses, or
//! on the CPU.
//!
//! The library is loaded at run time rather than linked; see [`OnnxRuntimeOptions::library`].
//!
//! Each part of the network is a session with its own stream, so a part runs once at a time. If two
//! threads need the same part (tracking and mapping both decode), each gets its own session with
//! its own memory for activations; the weights are stored on the GPU once.

#[cfg(feature = "cuda")]
mod binding;
mod error;
#[cfg(feature = "cuda")]
mod gpu;
#[cfg(feature = "cuda")]
mod lane;
mod library;
mod session;
#[cfg(feature = "cuda")]
mod shared;

use super::{
    Backend, InferenceError, NetworkShape, PairOutput, ViewOutput, expect, input_size, self_test,
};
#[cfg(feature = "cuda")]
use crate::gpu::Priority;
use crate::image::RgbImage;
use crate::network::InputSize;
use crate::network::onnx::{
    AttentionForm, Branches, EmitOptions, Maps, Precision, Upsampling, names,
};
use crate::network::{Network, load_network};
use error::{RUNTIME, failure};
use library::Library;
pub use library::describe_library;
use ort::session::RunOptions;
use ort::value::TensorRef;
use session::{Built, Part, Place};
use std::path::{Path, PathBuf};
#[cfg(feature = "cuda")]
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The fastest graph options for each execution provider.
fn quickest(provider: Provider) -> EmitOptions {
    let anywhere = EmitOptions {
        precision: Precision::F32,
        attention: AttentionForm::Fused,
        branches: Branches::Together,
        upsampling: Upsampling::Operator,
        maps: Maps::Nchw,
    };
    match provider {
        Provider::Cpu => anywhere,
        Provider::Cuda => EmitOptions {
            precision: Precision::F16,
            upsampling: Upsampling::Products,
            maps: Maps::NhwcOperator,
            ..anywhere
        },
    }
}

/// The same without operators missing from some builds of the library, except those of attention.
fn standard(emit: EmitOptions) -> EmitOptions {
    EmitOptions {
        upsampling: Upsampling::Operator,
        maps: Maps::Nchw,
        ..emit
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provider {
    /// The CPU.
    Cpu,
    /// The first NVIDIA GPU.
    Cuda,
}

/// Options of the ONNX Runtime backend.
#[derive(Debug, Clone, Default)]
pub struct OnnxRuntimeOptions {
    /// The library, or a folder containing it. If `None`: `ORT_DYLIB_PATH`, else a library next to
    /// the program, in `lib` next to or above it, or on the system's search path. The first library
    /// that a process loads is used throughout.
    pub library: Option<PathBuf>,
    /// `None`: the GPU if the library supports it, else the CPU.
    pub provider: Option<Provider>,
    /// Threads per call on the CPU.
    pub threads: usize,
    /// Arithmetic precision. `None`: half on a GPU, single on the CPU.
    pub precision: Option<Precision>,
    /// Export options. `None`: the fastest for the provider. Attention is decomposed if the library
    /// lacks its operators.
    pub emit: Option<EmitOptions>,
}

pub struct OnnxRuntimeBackend {
    loaded: Arc<Loaded>,
    /// Sessions used by this handle so far.
    held: Vec<Held>,
    /// The encoder's input image, `3 × H × W`.
    normalised: Vec<f32>,
}

/// Data shared by all handles of one network.
struct Loaded {
    library: Arc<Library>,
    provider: Provider,
    threads: usize,
    network: Network,
    size: InputSize,
    shape: NetworkShape,
    emit: EmitOptions,
    /// Options of a run between host buffers.
    options: RunOptions,
    #[cfg(feature = "cuda")]
    gpu: Option<gpu::Gpu>,
    #[cfg(feature = "cuda")]
    weights: Option<Arc<shared::SharedWeights>>,
    /// Total memory for activations, in bytes, of one session per part.
    #[cfg(feature = "cuda")]
    activations: AtomicU64,
    /// Sessions not used by any handle.
    idle: Mutex<Vec<Held>>,
}

/// A session in use by one handle.
struct Held {
    part: Part,
    // Dropped before its stream.
    session: Built,
    #[cfg(feature = "cuda")]
    lane: Option<lane::Lane>,
}

impl OnnxRuntimeBackend {
    /// Reads the weights (safetensors or `.pth`), builds the network for images of `width ×
    /// height`, both multiples of the patch side, and runs [`self_test`].
    ///
    /// # Errors
    /// [`InferenceError::Unavailable`] if the library is missing, or lacks CUDA and that was
    /// requested; [`InferenceError::Weights`], [`InferenceError::Shape`],
    /// [`InferenceError::SelfTest`] as for [`super::cpu::CpuBackend::load`].
    pub fn load(
        weights: &Path,
        width: usize,
        height: usize,
        options: &OnnxRuntimeOptions,
    ) -> Result<Self, InferenceError> {
        // Report a missing library before reading a large file.
        Library::load(options.library.as_deref())?;
        let mut backend = Self::new(load_network(weights)?, width, height, options)?;
        let made = backend.loaded.make_all(&[Part::Encoder, Part::Decoder]);
        if let Err(error) = made.and_then(|()| self_test(&mut backend)) {
            // Operators that a library claims to support may still fail at run time.
            let plain = standard(backend.loaded.emit);
            if plain == backend.loaded.emit {
                return Err(error);
            }
            tracing::warn!(
                "{error}: retrying without ONNX Runtime's contrib operators, which is slower"
            );
            let options = OnnxRuntimeOptions {
                emit: Some(plain),
                ..options.clone()
            };
            let network = backend.loaded.network.clone();
            backend = Self::new(network, width, height, &options)?;
            self_test(&mut backend)?;
        }
        #[cfg(feature = "cuda")]
        backend.note_memory();
        backend.rest();
        Ok(backend)
    }

    /// Builds the network from weights already read, without testing it.
    ///
    /// # Errors
    /// [`InferenceError::Unavailable`] and [`InferenceError::Shape`], as for [`OnnxRuntimeBackend::load`].
    pub fn new(
        network: Network,
        width: usize,
        height: usize,
        options: &OnnxRuntimeOptions,
    ) -> Result<Self, InferenceError> {
        let size = input_size(&network, width, height)?;
        let library = Library::load(options.library.as_deref())?;
        let provider = match options.provider {
            Some(Provider::Cuda) if !library.has_cuda() => return Err(library.without_cuda()),
            Some(provider) => provider,
            None if library.has_cuda() => Provider::Cuda,
            None => Provider::Cpu,
        };
        let shape = NetworkShape::of(&network, &size);
        #[cfg(feature = "cuda")]
        let gpu = match provider {
            Provider::Cpu => None,
            Provider::Cuda => Some(gpu::Gpu::open()?),
        };
        let loaded = Loaded {
            library,
            provider,
            threads: options.threads.max(1),
            network,
            size,
            shape,
            emit: {
                let quickest = quickest(provider);
                EmitOptions {
                    precision: options.precision.unwrap_or(quickest.precision),
                    ..options.emit.unwrap_or(quickest)
                }
            },
            options: session::options(false)?,
            #[cfg(feature = "cuda")]
            weights: gpu.as_ref().map(gpu::Gpu::weights).transpose()?,
            #[cfg(feature = "cuda")]
            gpu,
            #[cfg(feature = "cuda")]
            activations: AtomicU64::new(0),
            idle: Mutex::new(Vec::new()),
        };
        Ok(Self::handle(Arc::new(loaded)))
    }

    fn handle(loaded: Arc<Loaded>) -> Self {
        let normalised = vec![0.0; 3 * loaded.shape.pixels()];
        Self {
            loaded,
            held: Vec::new(),
            normalised,
        }
    }

    /// Records the memory that sessions took in addition to the weights: everything allocated since
    /// the GPU was opened.
    #[cfg(feature = "cuda")]
    fn note_memory(&self) {
        if let (Some(gpu), Some(weights)) = (&self.loaded.gpu, &self.loaded.weights) {
            let taken = gpu.taken().saturating_sub(weights.bytes());
            self.loaded.activations.store(taken, Ordering::Relaxed);
        }
    }

    /// Returns its sessions for reuse.
    fn rest(&mut self) {
        let mut idle = self.loaded.idle();
        idle.extend(self.held.drain(..).map(Held::rest));
    }

    /// Index of a session of `part` with any stream priority.
    fn any(&mut self, part: Part) -> Result<usize, InferenceError> {
        if let Some(at) = self.held.iter().position(|held| held.part == part) {
            return Ok(at);
        }
        let mut idle = self.loaded.idle();
        let held = match idle.iter().position(|held| held.part == part) {
            Some(at) => idle.swap_remove(at),
            None => self.loaded.build(
                part,
                #[cfg(feature = "cuda")]
                Priority::High,
            )?,
        };
        drop(idle);
        self.held.push(held);
        Ok(self.held.len() - 1)
    }

    /// Runs `part` on a pair, for the outputs of the first `outs.len()` views.
    fn run_decoder(
        &mut self,
        part: Part,
        features: [&[f32]; 2],
        outs: &mut [&mut ViewOutput],
    ) -> Result<(), InferenceError> {
        let at = self.any(part)?;
        let shape = self.loaded.shape.clone();
        for features in features {
            expect::features(features, &shape)?;
        }
        let fail = |e: ort::Error| failure(part.running(), e);
        let extents = [1, shape.tokens, shape.feature_dim];
        let [first, second] =
            features.map(|values| TensorRef::from_array_view((extents, values)).map_err(fail));
        let [name1, name2] = names::VIEW_FEATURES;
        let Some(held) = self.held.get_mut(at) else {
            return Err(failure(part.running(), "no session"));
        };
        let outputs = held
            .session
            .session
            .run_with_options(
                ort::inputs![name1 => first?, name2 => second?],
                &self.loaded.options,
            )
            .map_err(fail)?;
        for (view, out) in outs.iter_mut().enumerate() {
            for (name, what, into) in [
                (names::POINTS, "points", &mut out.points),
                (names::CONFIDENCE, "confidence", &mut out.confidence),
                (names::DESCRIPTORS, "descriptors", &mut out.descriptors),
                (
                    names::DESCRIPTOR_CONFIDENCE,
                    "descriptor confidence",
                    &mut out.descriptor_confidence,
                ),
            ] {
                let value = outputs
                    .get(name[view])
                    .ok_or_else(|| failure(part.running(), format!("no output {}", name[view])))?;
                let (_, values) = value.try_extract_tensor::<f32>().map_err(fail)?;
                expect::values(what, values.len(), into.len())?;
                into.copy_from_slice(values);
            }
        }
        Ok(())
    }
}

impl Loaded {
    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Held>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates idle sessions; on a GPU, with streams of the highest priority.
    fn make_all(&self, parts: &[Part]) -> Result<(), InferenceError> {
        let build = |part| {
            self.build(
                part,
                #[cfg(feature = "cuda")]
                Priority::High,
            )
        };
        let builds: Vec<_> = parts.iter().map(|&part| move || build(part)).collect();
        self.at_once(builds)
    }

    /// Adds the sessions created by `builds` to the idle ones. Creating a session is mostly
    /// single-threaded, so several are created in parallel if there are enough cores; each
    /// temporarily takes three times the size of its weights in host memory.
    fn at_once<B>(&self, builds: Vec<B>) -> Result<(), InferenceError>
    where
        B: FnOnce() -> Result<Held, InferenceError> + Send,
    {
        const MOST: usize = 3;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let together = (cores / 2).clamp(1, MOST);
        let mut left = builds.into_iter();
        loop {
            let now: Vec<B> = left.by_ref().take(together).collect();
            if now.is_empty() {
                return Ok(());
            }
            let made = std::thread::scope(|scope| {
                let threads: Vec<_> = now.into_iter().map(|build| scope.spawn(build)).collect();
                let results = threads.into_iter().map(|thread| thread.join());
                results.collect::<Vec<_>>()
            });
            for held in made {
                let held = held.map_err(|_| failure("making a session", "a thread panicked"))?;
                self.idle().push(held?);
            }
        }
    }

    /// A new session of `part`, on the GPU on a stream of `priority`.
    fn build(
        &self,
        part: Part,
        #[cfg(feature = "cuda")] priority: Priority,
    ) -> Result<Held, InferenceError> {
        #[cfg(feature = "cuda")]
        let lane = match &self.gpu {
            Some(gpu) => Some(gpu.lane(priority)?),
            None => None,
        };
        let start = Instant::now();
        let build = |emit, shared: bool| {
            let place = Place {
                library: &self.library,
                provider: self.provider,
                threads: self.threads,
                emit,
                #[cfg(feature = "cuda")]
                stream: lane.as_ref().map(lane::Lane::raw),
                #[cfg(feature = "cuda")]
                weights: self.weights.as_ref().filter(|_| shared),
            };
            #[cfg(not(feature = "cuda"))]
            let _ = shared;
            let model = part.emit(&self.network, self.size, emit);
            let model = model.ok_or_else(|| failure(part.loading(), "no edges"))?;
            tracing::debug!(?part, after = ?start.elapsed(), "written down");
            session::build(model, &place, part.loading())
        };
        // Libraries before 1.23 lack the attention operators, and some later ones lack them on
        // CUDA.
        let decomposed = EmitOptions {
            attention: AttentionForm::Decomposed,
            ..self.emit
        };
        let others = [
            (decomposed, true),
            (standard(self.emit), true),
            (standard(decomposed), true),
            (self.emit, false),
            (decomposed, false),
            (standard(decomposed), false),
        ];
        let mut session = build(self.emit, true);
        for (emit, shared) in others {
            let Err(error) = &session else { break };
            tracing::info!("{error}: retrying with other options, which takes more time or memory");
            session = build(emit, shared);
        }
        let session = session?;
        tracing::debug!(?part, after = ?start.elapsed(), "session made");
        Ok(Held {
            part,
            session,
            #[cfg(feature = "cuda")]
            lane,
        })
    }
}

impl Held {
    /// Discards what was prepared for the buffers of its last user.
    #[cfg(feature = "cuda")]
    fn rest(mut self) -> Self {
        if let Some(lane) = &mut self.lane {
            lane.forget();
        }
        self
    }

    #[cfg(not(feature = "cuda"))]
    fn rest(self) -> Self {
        self
    }
}

impl Drop for OnnxRuntimeBackend {
    fn drop(&mut self) {
        self.rest();
    }
}

impl Backend for OnnxRuntimeBackend {
    fn shape(&self) -> &NetworkShape {
        &self.loaded.shape
    }

    fn name(&self) -> String {
        let place = match self.loaded.provider {
            Provider::Cpu => format!("CPU, {} threads", self.loaded.threads),
            Provider::Cuda => "CUDA".into(),
        };
        let file = self.loaded.library.path().file_name().unwrap_or_default();
        format!("{RUNTIME} ({}, {place})", file.to_string_lossy())
    }

    fn precision(&self) -> Precision {
        self.loaded.emit.precision
    }

    fn share(&self) -> Box<dyn Backend> {
        Box::new(Self::handle(Arc::clone(&self.loaded)))
    }

    fn encode(&mut self, image: &RgbImage, features: &mut [f32]) -> Result<(), InferenceError> {
        const PART: Part = Part::Encoder;
        expect::image(image, &self.loaded.shape)?;
        let shape = &self.loaded.shape;
        expect::features(features, shape)?;
        let extents = [1, 3, shape.height, shape.width];
        let at = self.any(PART)?;
        super::normalise(image, &mut self.normalised);
        let fail = |e: ort::Error| failure(PART.running(), e);
        let input = TensorRef::from_array_view((extents, &self.normalised[..])).map_err(fail)?;
        let Some(held) = self.held.get_mut(at) else {
            return Err(failure(PART.running(), "no session"));
        };
        let outputs = held
            .session
            .session
            .run_with_options(ort::inputs![names::IMAGE => input], &self.loaded.options)
            .map_err(fail)?;
        let value = outputs
            .get(names::FEATURES)
            .ok_or_else(|| failure(PART.running(), "no features"))?;
        let (_, values) = value.try_extract_tensor::<f32>().map_err(fail)?;
        expect::values("encoder output", features.len(), values.len())?;
        features.copy_from_slice(values);
        Ok(())
    }

    fn decode(
        &mut self,
        features1: &[f32],
        features2: &[f32],
        out: &mut PairOutput,
    ) -> Result<(), InferenceError> {
        self.run_decoder(
            Part::Decoder,
            [features1, features2],
            &mut [&mut out.view1, &mut out.view2],
        )
    }

    fn decode_view1(
        &mut self,
        features1: &[f32],
        features2: &[f32],
        out: &mut PairOutput,
    ) -> Result<(), InferenceError> {
        self.run_decoder(Part::View1, [features1, features2], &mut [&mut out.view1])
    }

    #[cfg(feature = "cuda")]
    fn device(&mut self) -> Option<&mut dyn super::DeviceBackend> {
        match self.loaded.gpu {
            Some(_) => Some(self),
            None => None,
        }
    }
}
