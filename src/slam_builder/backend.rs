//! Loads the network with the selected runtime, or with the fastest one that works.

use super::order::{Included, Measured, Way, order, reason};
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

/// Loads and tests the network. If the choice is open, notes say which backend was chosen and why, and why others
/// cannot be used.
pub fn load(wanted: &Wanted<'_>, notes: &mut Vec<Note>) -> Loaded {
    let (_, loaded) = load_named(wanted, notes)?;
    Ok(loaded)
}

/// Like [`load`], with the choice that asks for the backend that was taken.
pub fn load_named(
    wanted: &Wanted<'_>,
    notes: &mut Vec<Note>,
) -> Result<(BackendChoice, Box<dyn Backend>), InferenceError> {
    let choice = match wanted.config.network.backend {
        BackendChoice::Auto if wanted.config.device == DeviceChoice::Cpu => BackendChoice::Cpu,
        BackendChoice::Auto => return auto(wanted, notes),
        choice => choice,
    };
    let loaded = match choice {
        BackendChoice::Auto | BackendChoice::Cpu => cpu(wanted),
        BackendChoice::Native => native(wanted, notes),
        BackendChoice::Onnxruntime => onnxruntime(wanted, false),
        BackendChoice::Tensorrt => tensorrt(wanted, wanted.config.network.build_engine),
    };
    Ok((choice, loaded?))
}

/// The first working backend among those included in the program.
fn auto(
    wanted: &Wanted<'_>,
    notes: &mut Vec<Note>,
) -> Result<(BackendChoice, Box<dyn Backend>), InferenceError> {
    let included = Included {
        tensorrt: cfg!(feature = "tensorrt"),
        native: cfg!(feature = "cuda"),
        onnxruntime: cfg!(feature = "onnxruntime"),
        may_build: wanted.config.network.build_engine,
    };
    let measured = measured(wanted, notes);
    let mut no_engine = false;
    for way in order(included, measured) {
        let (choice, loaded) = match way {
            Way::Engine => (BackendChoice::Tensorrt, tensorrt(wanted, false)),
            Way::Native => (BackendChoice::Native, native_here(wanted, notes)),
            // What failed for another reason would fail again.
            Way::BuiltEngine if !no_engine => continue,
            Way::BuiltEngine => (BackendChoice::Tensorrt, tensorrt(wanted, true)),
            Way::Onnxruntime => (BackendChoice::Onnxruntime, onnxruntime(wanted, true)),
            Way::Cpu => break,
        };
        match loaded {
            Ok(loaded) => {
                let reason = reason(way, measured);
                notes.push(Note::choice(format!(
                    "the network runs on {}: {reason}",
                    loaded.name()
                )));
                return Ok((choice, loaded));
            }
            // Unusable weights are unusable with every backend.
            Err(error @ InferenceError::Weights(_)) => return Err(error),
            Err(error) => {
                no_engine |= is_no_engine(&error);
                notes.push(Note::choice(format!(
                    "next backend for the network, as {error}"
                )));
            }
        }
    }
    Ok((BackendChoice::Cpu, cpu(wanted)?))
}

#[cfg(feature = "tensorrt")]
fn is_no_engine(error: &InferenceError) -> bool {
    use crate::inference::tensorrt::TensorRtError;
    matches!(
        error,
        InferenceError::TensorRt(TensorRtError::NoEngine { .. })
    )
}

#[cfg(not(feature = "tensorrt"))]
fn is_no_engine(_: &InferenceError) -> bool {
    false
}

/// What `bench` measured on this GPU, where that decides anything.
#[cfg(all(feature = "tensorrt", feature = "cuda"))]
fn measured(wanted: &Wanted<'_>, notes: &mut Vec<Note>) -> Measured {
    use super::times::{Key, TimesFile};
    use crate::gpu::{Context, KernelImages};
    let file = match TimesFile::read(&TimesFile::path()) {
        Ok(file) => file,
        Err(error) => {
            notes.push(Note::choice(error.to_string()));
            return Measured::default();
        }
    };
    if file.is_empty() {
        return Measured::default();
    }
    // Without a GPU or weights, loading the network says so.
    let Ok(context) = Context::open(0, &KernelImages::NONE) else {
        return Measured::default();
    };
    let precision = wanted.config.network.precision;
    match Key::new(context.info(), wanted.weights, wanted.size, precision) {
        Ok(key) => {
            let of = |backend: BackendChoice| Some(file.get(&key, backend)?.sum());
            Measured {
                tensorrt: of(BackendChoice::Tensorrt),
                native: of(BackendChoice::Native),
            }
        }
        Err(_) => Measured::default(),
    }
}

#[cfg(not(all(feature = "tensorrt", feature = "cuda")))]
fn measured(_: &Wanted<'_>, _: &mut Vec<Note>) -> Measured {
    Measured::default()
}

fn cpu(wanted: &Wanted<'_>) -> Loaded {
    let (width, height) = wanted.size;
    let loaded = CpuBackend::load(wanted.weights, width, height, wanted.jobs)?;
    Ok(Box::new(loaded))
}

/// [`native`], unless there is no GPU, as weights of gigabytes need not be read to find out.
#[cfg(feature = "cuda")]
fn native_here(wanted: &Wanted<'_>, notes: &mut Vec<Note>) -> Loaded {
    crate::inference::native::check_gpu()?;
    native(wanted, notes)
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

#[cfg(not(feature = "cuda"))]
fn native_here(wanted: &Wanted<'_>, notes: &mut Vec<Note>) -> Loaded {
    native(wanted, notes)
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
                    reason: "it supports fp32 and fp16; bf16 and fp8 need --backend native or tensorrt; choose another \
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

/// Finds the engine, or has it built if it `may_build`.
#[cfg(all(feature = "tensorrt", feature = "cuda"))]
fn tensorrt(wanted: &Wanted<'_>, may_build: bool) -> Loaded {
    use crate::inference::tensorrt::{LoadOptions, Store, TensorRtBackend};
    use std::sync::Arc;
    let network = &wanted.config.network;
    let options = LoadOptions {
        store: match network.engines.as_str() {
            "" => Store::new(Store::default_folder()),
            folder => Store::new(folder),
        },
        precision: precision_of(network.precision),
        may_build,
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
fn tensorrt(_: &Wanted<'_>, _: bool) -> Loaded {
    Err(InferenceError::Unavailable {
        runtime: "TensorRT",
        reason: "this program was built without CUDA, so it can build engines but not run them; build it with \
                 `--features tensorrt,cuda`"
            .into(),
    })
}

#[cfg(not(feature = "tensorrt"))]
fn tensorrt(_: &Wanted<'_>, _: bool) -> Loaded {
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
