//! Sessions, one per part of the network.

use super::Provider;
use super::error::failure;
use super::library::Library;
#[cfg(feature = "cuda")]
use super::shared::{Borrowed, SharedWeights};
use crate::inference::InferenceError;
use crate::network::InputSize;
use crate::network::Network;
use crate::network::onnx::{EmitOptions, Maps, OnnxModel, Precision, Views};
use ort::ep::ArenaExtendStrategy;
use ort::logging::LogLevel;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use ort::session::{RunOptions, Session};
use std::sync::Arc;

/// Name of the weights passed alongside the graph.
const WEIGHTS: &str = "weights.data";

/// The part of the network that a session computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Image to tokens.
    Encoder,
    /// Tokens of a pair to the outputs of both views.
    Decoder,
    /// Tokens of a pair to the outputs of view 1.
    View1,
    /// Tokens of the images of several pairs to the outputs of both views, in both directions.
    #[cfg(feature = "cuda")]
    Edges(usize),
}

impl Part {
    /// Emits the part as an ONNX model.
    pub(super) fn emit(
        self,
        network: &Network,
        size: InputSize,
        options: EmitOptions,
    ) -> Option<OnnxModel> {
        let model = match self {
            Self::Encoder => network.encoder_as(size, options),
            Self::Decoder => network.decoder_as(size, Views::Both, options),
            Self::View1 => network.decoder_as(size, Views::First, options),
            #[cfg(feature = "cuda")]
            Self::Edges(edges) => {
                return network.decoder_both_ways(size.with_batch(2 * edges)?, options);
            }
        };
        Some(model)
    }

    /// Names of the inputs.
    #[cfg(feature = "cuda")]
    pub(super) fn inputs(self) -> &'static [&'static str] {
        match self {
            Self::Encoder => &[crate::network::onnx::names::IMAGE],
            Self::Decoder | Self::View1 => &crate::network::onnx::names::VIEW_FEATURES,
            Self::Edges(_) => &[crate::network::onnx::names::FEATURES],
        }
    }

    pub(super) fn loading(self) -> &'static str {
        match self {
            Self::Encoder => "loading the encoder",
            _ => "loading the decoder",
        }
    }

    pub(super) fn running(self) -> &'static str {
        match self {
            Self::Encoder => "encoding",
            _ => "decoding",
        }
    }
}

/// Where and how a session runs.
pub(super) struct Place<'a> {
    pub(super) library: &'a Library,
    pub(super) provider: Provider,
    /// Threads per call on the CPU.
    pub(super) threads: usize,
    pub(super) emit: EmitOptions,
    /// The stream for all its work; see [`super::gpu`].
    #[cfg(feature = "cuda")]
    pub(super) stream: Option<*mut std::ffi::c_void>,
    /// Weights already on the GPU.
    #[cfg(feature = "cuda")]
    pub(super) weights: Option<&'a Arc<SharedWeights>>,
}

/// A session, and the resources that must outlive it.
pub(super) struct Built {
    pub(super) session: Session,
    // Dropped after the session.
    #[cfg(feature = "cuda")]
    _weights: Option<Borrowed>,
}

/// Creates a session for a model.
pub(super) fn build(
    model: OnnxModel,
    place: &Place<'_>,
    doing: &'static str,
) -> Result<Built, InferenceError> {
    let fail = |e: ort::Error<SessionBuilder>| failure(doing, e);
    let mut builder = Session::builder(&place.library.environment)
        .map_err(|e| failure(doing, e))?
        .with_log_level(LogLevel::Warning)
        .map_err(fail)?
        .with_optimization_level(GraphOptimizationLevel::All)
        .map_err(fail)?;
    #[cfg(feature = "cuda")]
    let borrowed = match place.weights {
        Some(shared) => Some(shared.lend(&model, &mut builder)?),
        None => None,
    };
    let (graph, weights) = model.into_external(WEIGHTS);
    builder = builder
        .with_external_initializer_file_in_memory(WEIGHTS, Arc::from(weights))
        .map_err(fail)?;
    builder = match place.provider {
        Provider::Cpu => builder.with_intra_threads(place.threads).map_err(fail)?,
        Provider::Cuda => {
            let cuda = cuda(place);
            builder
                // All work is done by the GPU. A pool with a thread per core would busy-wait.
                .with_intra_threads(1)
                .map_err(fail)?
                .with_intra_op_spinning(false)
                .map_err(fail)?
                .with_execution_providers([cuda.build().error_on_failure()])
                .map_err(fail)?
                // Outside the arena, which then holds only activations.
                .with_device_allocated_initializers()
                .map_err(fail)?
        }
    };
    let session = builder.commit_from_memory(&graph);
    Ok(Built {
        session: session.map_err(|e| failure(doing, e))?,
        #[cfg(feature = "cuda")]
        _weights: borrowed,
    })
}

/// Run options that keep the provider from capturing a graph and, if `asynchronous`, from waiting
/// for completion.
pub(super) fn options(asynchronous: bool) -> Result<RunOptions, InferenceError> {
    let fail = |e| failure("preparing a run", e);
    let mut options = RunOptions::new().map_err(fail)?;
    options.set_log_level(LogLevel::Warning).map_err(fail)?;
    options.set("gpu_graph_id", "-1").map_err(fail)?;
    if asynchronous {
        let wait = "disable_synchronize_execution_providers";
        options.set(wait, "1").map_err(fail)?;
    }
    Ok(options)
}

/// Options of the CUDA provider. This program captures graphs around runs itself; the provider's
/// own switch is set because it avoids operations that a capture does not allow, and rejects models
/// that would run partly on the CPU.
fn cuda(place: &Place<'_>) -> ort::ep::CUDA {
    let cuda = ort::ep::CUDA::default()
        .with_device_id(0)
        .with_arena_extend_strategy(ArenaExtendStrategy::SameAsRequested)
        // Otherwise the sums of half-precision norms would be computed in binary16.
        .with_skip_layer_norm_strict_mode(true)
        .with_conv_max_workspace(true)
        .with_tf32(tensor_cores(place.emit));
    #[cfg(feature = "cuda")]
    if let Some(stream) = place.stream {
        // SAFETY: the maker of the session keeps the stream beside it and drops it after.
        return unsafe { cuda.with_compute_stream(stream.cast()) }.with_cuda_graph(true);
    }
    let _ = place;
    cuda
}

/// Whether convolutions may use tensor cores: the provider takes its TF32 switch as permission
/// regardless of the element type. Disabled for channels-first layouts, where it would also fuse
/// convolutions with subsequent operations in a way that reads freed memory in later runs.
fn tensor_cores(emit: EmitOptions) -> bool {
    emit.precision == Precision::F16 && emit.maps != Maps::Nchw
}
