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

fn tensorrt(_: &Wanted<'_>) -> Loaded {
    Err(not_built("TensorRT", "tensorrt"))
}

/// The error for a backend that the program was built without.
fn not_built(runtime: &'static str, feature: &str) -> InferenceError {
    InferenceError::Unavailable {
        runtime,
        reason: format!(
            "this program was built without it; build it with `--features {feature}`, or choose \
             another with --backend"
        ),
    }
}
