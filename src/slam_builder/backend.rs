//! Loads the network with the selected runtime, or with the fastest one that works.

#[cfg(any(feature = "cuda", feature = "onnxruntime"))]
use crate::config::PrecisionChoice;
use crate::config::{BackendChoice, Config, DeviceChoice};
use crate::inference::cpu::CpuBackend;
use crate::inference::{Backend, InferenceError};
#[cfg(any(feature = "cuda", feature = "onnxruntime"))]
use crate::network::onnx::Precision;
use crate::slam::Note;
use std::path::Path;

/// Description of the network to load.
pub struct Wanted<'a> {
    /// Selects the backend and its options.
    pub config: &'a Config,
    pub weights: &'a Path,
    /// Input size in pixels.
    pub size: (usize, usize),
    /// Number of threads for the CPU backends.
    pub jobs: usize,
    /// Observes engine builds.
    #[cfg(all(feature = "tensorrt", feature = "cuda"))]
    pub observer: Option<std::sync::Arc<dyn crate::inference::tensorrt::Observer>>,
}

type Loaded = Result<Box<dyn Backend>, InferenceError>;

/// Loads and tests the network. If the choice is open, a note explains why a faster backend
/// included in the program cannot be used.
pub fn load(wanted: &Wanted<'_>, notes: &mut Vec<Note>) -> Loaded {
    match wanted.config.network.backend {
        BackendChoice::Cpu => cpu(wanted),
        BackendChoice::Native => native(wanted, notes),
        BackendChoice::Onnxruntime => onnxruntime(wanted, false),
        BackendChoice::Tensorrt => tensorrt(wanted),
        BackendChoice::Auto if wanted.config.device == DeviceChoice::Cpu => cpu(wanted),
        BackendChoice::Auto => auto(wanted, notes),
    }
}

/// The first working backend among those included in the program.
#[cfg_attr(
    not(any(feature = "tensorrt", feature = "onnxruntime")),
    allow(unused_variables, unused_mut)
)]
fn auto(wanted: &Wanted<'_>, notes: &mut Vec<Note>) -> Loaded {
    // Unusable weights are unusable with every backend.
    let mut skip = |error: InferenceError| match error {
        InferenceError::Weights(_) => Err(error),
        other => {
            notes.push(Note::choice(format!(
                "next backend for the network, as {other}"
            )));
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

#[cfg(feature = "cuda")]
fn native(wanted: &Wanted<'_>, notes: &mut Vec<Note>) -> Loaded {
    use crate::inference::native::{NativeBackend, Overflow};
    let (width, height) = wanted.size;
    let precision = precision_of(wanted.config.network.precision);
    let loaded = NativeBackend::load(wanted.weights, width, height, precision)?;
    if let Some(Overflow { name, value }) = loaded.overflow() {
        notes.push(Note::choice(format!(
            "the network is kept in bf16, as its weight {name} has the value {value:e}, which fp16 cannot hold"
        )));
    }
    Ok(Box::new(loaded))
}

#[cfg(not(feature = "cuda"))]
fn native(_: &Wanted<'_>, _: &mut Vec<Note>) -> Loaded {
    Err(not_built("the native backend", "cuda"))
}

/// The precision that is asked for; `None`: the backend's choice.
#[cfg(feature = "cuda")]
pub fn precision_of(choice: PrecisionChoice) -> Option<Precision> {
    match choice {
        PrecisionChoice::Auto => None,
        PrecisionChoice::Fp32 => Some(Precision::F32),
        PrecisionChoice::Fp16 => Some(Precision::F16),
        PrecisionChoice::Bf16 => Some(Precision::Bf16),
        PrecisionChoice::Fp8 => Some(Precision::Fp8),
    }
}

/// With `gpu_only`, falling back to the CPU is an error.
#[cfg(feature = "onnxruntime")]
fn onnxruntime(wanted: &Wanted<'_>, gpu_only: bool) -> Loaded {
    use crate::inference::onnxruntime::{OnnxRuntimeBackend, OnnxRuntimeOptions, Provider};
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
                    reason:
                        "it supports fp32 and fp16; bf16 and fp8 need --backend native or tensorrt; choose another \
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

/// Finds the engine, or has it built.
#[cfg(all(feature = "tensorrt", feature = "cuda"))]
fn tensorrt(wanted: &Wanted<'_>) -> Loaded {
    use crate::inference::tensorrt::{LoadOptions, Store, TensorRtBackend};
    use std::sync::Arc;
    let network = &wanted.config.network;
    let options = LoadOptions {
        store: match network.engines.as_str() {
            "" => Store::new(Store::default_folder()),
            folder => Store::new(folder),
        },
        precision: precision_of(network.precision),
        may_build: network.build_engine,
        wait: &|| tracing::warn!("waiting for another process that is building the engine"),
        observer: wanted
            .observer
            .clone()
            .unwrap_or_else(|| Arc::new(LoggedBuild)),
    };
    let (width, height) = wanted.size;
    let loaded = TensorRtBackend::load(wanted.weights, width, height, &options)?;
    Ok(Box::new(loaded))
}

/// Logs when the build of an engine starts.
#[cfg(all(feature = "tensorrt", feature = "cuda"))]
struct LoggedBuild;

#[cfg(all(feature = "tensorrt", feature = "cuda"))]
impl crate::inference::tensorrt::Observer for LoggedBuild {
    fn part(&self, part: crate::inference::tensorrt::Part) {
        tracing::info!("TensorRT is building the engine of the {}", part.name());
    }
    fn phase(&self, _: &str, _: usize) {}
    fn step(&self, _: &str, _: usize) -> std::ops::ControlFlow<()> {
        std::ops::ControlFlow::Continue(())
    }
    fn end(&self, _: &str) {}
    fn layer(&self, _: &str) {}
    fn done(&self, _: &crate::inference::tensorrt::EngineFile) {}
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

/// The error for a backend that the program does not include.
#[cfg(not(all(feature = "tensorrt", feature = "onnxruntime", feature = "cuda")))]
pub fn not_built(runtime: &'static str, feature: &str) -> InferenceError {
    InferenceError::Unavailable {
        runtime,
        reason: format!(
            "this program was built without it; build it with `--features {feature}`, or choose \
             another with --backend"
        ),
    }
}
