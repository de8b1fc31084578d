//! Which runtime runs the network.

use super::say;
use crate::config::{BackendChoice, Config, DeviceChoice};
use crate::inference::cpu::CpuBackend;
use crate::inference::{Backend, InferenceError};
use std::path::Path;

/// What a network is loaded for.
pub struct Wanted<'a> {
    /// Which backend, and its options.
    pub config: &'a Config,
    /// The weights file.
    pub weights: &'a Path,
    /// Size of the input in pixels.
    pub size: (usize, usize),
    /// Threads for what runs on the CPU.
    pub jobs: usize,
}

type Loaded = Result<Box<dyn Backend>, InferenceError>;

/// Loads the network, which tests it. Where the choice is the program's, says why a quicker backend that
/// it was built with cannot be used.
pub fn load(wanted: &Wanted<'_>) -> Loaded {
    match wanted.config.network.backend {
        BackendChoice::Cpu => cpu(wanted),
        BackendChoice::Onnxruntime => onnxruntime(wanted, false),
        BackendChoice::Tensorrt => tensorrt(wanted),
        BackendChoice::Auto if wanted.config.device == DeviceChoice::Cpu => cpu(wanted),
        BackendChoice::Auto => auto(wanted),
    }
}

/// The first of those that the program was built with.
fn auto(wanted: &Wanted<'_>) -> Loaded {
    // Weights that one backend cannot use, none can.
    let skip = |error: InferenceError| match error {
        InferenceError::Weights(_) => Err(error),
        other => {
            say(&format!("next backend for the network, as {other}"));
            Ok(())
        }
    };
    if cfg!(feature = "tensorrt") {
        match tensorrt(wanted) {
            Err(error) => skip(error)?,
            loaded => return loaded,
        }
    }
    if cfg!(feature = "onnxruntime") {
        match onnxruntime(wanted, true) {
            Err(error) => skip(error)?,
            loaded => return loaded,
        }
    }
    cpu(wanted)
}

fn cpu(wanted: &Wanted<'_>) -> Loaded {
    let (width, height) = wanted.size;
    let loaded = CpuBackend::load(wanted.weights, width, height, wanted.jobs)?;
    Ok(Box::new(loaded))
}

/// `gpu_only`: or else nothing.
#[cfg(feature = "onnxruntime")]
fn onnxruntime(wanted: &Wanted<'_>, gpu_only: bool) -> Loaded {
    use crate::config::PrecisionChoice;
    use crate::inference::onnxruntime::{OnnxRuntimeBackend, OnnxRuntimeOptions, Provider};
    use crate::network::onnx::Precision;
    let named = &wanted.config.network.onnxruntime;
    let cuda = gpu_only || wanted.config.device == DeviceChoice::Cuda;
    let options = OnnxRuntimeOptions {
        library: (!named.is_empty()).then(|| named.into()),
        provider: cuda.then_some(Provider::Cuda),
        threads: wanted.jobs,
        precision: match wanted.config.network.precision {
            PrecisionChoice::Auto => None,
            PrecisionChoice::Fp32 => Some(Precision::F32),
            PrecisionChoice::Fp16 => Some(Precision::F16),
            PrecisionChoice::Bf16 | PrecisionChoice::Fp8 => {
                return Err(InferenceError::Unavailable {
                    runtime: "ONNX Runtime",
                    reason: "it computes in fp32 or fp16, and bf16 and fp8 are TensorRT's; choose another \
                             network.precision"
                        .into(),
                });
            }
        },
        emit: None,
    };
    let (width, height) = wanted.size;
    let loaded = OnnxRuntimeBackend::load(wanted.weights, width, height, &options)?;
    Ok(Box::new(loaded))
}

#[cfg(not(feature = "onnxruntime"))]
fn onnxruntime(_: &Wanted<'_>, _: bool) -> Loaded {
    Err(not_built("ONNX Runtime", "onnxruntime"))
}

/// Finds the engine or has it built, which is shown.
#[cfg(all(feature = "tensorrt", feature = "cuda"))]
fn tensorrt(wanted: &Wanted<'_>) -> Loaded {
    use super::engines::BuildProgress;
    use crate::config::PrecisionChoice;
    use crate::inference::tensorrt::{LoadOptions, Store, TensorRtBackend};
    use crate::network::onnx::Precision;
    use std::sync::Arc;
    let network = &wanted.config.network;
    let options = LoadOptions {
        store: match network.engines.as_str() {
            "" => Store::new(Store::default_folder()),
            folder => Store::new(folder),
        },
        precision: match network.precision {
            PrecisionChoice::Auto => None,
            PrecisionChoice::Fp32 => Some(Precision::F32),
            PrecisionChoice::Fp16 => Some(Precision::F16),
            PrecisionChoice::Bf16 => Some(Precision::Bf16),
            PrecisionChoice::Fp8 => Some(Precision::Fp8),
        },
        may_build: network.build_engine,
        wait: &|| say("another process is building the engine; waiting for it"),
        observer: Arc::new(BuildProgress::new(true)),
    };
    let (width, height) = wanted.size;
    let loaded = TensorRtBackend::load(wanted.weights, width, height, &options)?;
    Ok(Box::new(loaded))
}

#[cfg(all(feature = "tensorrt", not(feature = "cuda")))]
fn tensorrt(_: &Wanted<'_>) -> Loaded {
    Err(InferenceError::Unavailable {
        runtime: "TensorRT",
        reason: "this program was built without CUDA, so it can build engines but not run them; build it with \
                 `--features tensorrt,cuda`"
            .into(),
    })
}

#[cfg(not(feature = "tensorrt"))]
fn tensorrt(_: &Wanted<'_>) -> Loaded {
    Err(not_built("TensorRT", "tensorrt"))
}

/// The error for a backend that the program was built without.
#[cfg(not(all(feature = "tensorrt", feature = "onnxruntime")))]
fn not_built(runtime: &'static str, feature: &str) -> InferenceError {
    InferenceError::Unavailable {
        runtime,
        reason: format!(
            "this program was built without it; build it with `--features {feature}`, or choose \
             another with --backend"
        ),
    }
}
