//! Builds engines: emits the network as ONNX in memory and compiles it with TensorRT into a store.

use super::error::TensorRtError;
use super::library;
use super::log::{self, BuildLog};
use super::manifest::{Builder, EngineFile, FORMAT, Manifest, NetworkSummary, Part, Weights};
use super::store::{Found, Lock, Store, write_engine};
use super::target::{Flavour, Target};
use crate::network::InputSize;
use crate::network::onnx::{
    AttentionForm, Branches, EmitOptions, Maps, OnnxModel, Precision, Views,
};
use crate::network::{Network, load_network};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use trtx::builder::MemoryPoolType;
use trtx::interfaces::MonitorProgress;
use trtx::{OnnxParser, ProfilingVerbosity};

#[derive(Debug, Clone)]
pub struct Order<'a> {
    pub weights: &'a Path,
    /// Image width and height, multiples of the patch side.
    pub size: [usize; 2],
    /// Images or pairs per call.
    pub batch: usize,
    /// Precision of matrix products.
    pub precision: Precision,
    /// Target GPUs; not empty.
    pub targets: Vec<Target>,
    /// Engines to build in addition to encoder and decoder.
    pub parts: &'a [Part],
    /// Maximum device memory, in bytes, that a kernel may use while it runs; `None` for no limit.
    pub workspace: Option<u64>,
    /// Whether to rebuild existing engines.
    pub force: bool,
}

/// Observes a build. Called from TensorRT's threads.
pub trait Observer: Send + Sync {
    /// The build of an engine starts.
    fn part(&self, part: Part);
    /// A phase of `steps` starts, nested in the previous one.
    fn phase(&self, name: &str, steps: usize);
    /// Step `step` of a phase is done. `Break` cancels the build.
    fn step(&self, phase: &str, step: usize) -> ControlFlow<()>;
    /// A phase ends.
    fn end(&self, phase: &str);
    /// Name of the layer being parsed or compiled.
    fn layer(&self, name: &str);
    /// An engine has been written.
    fn done(&self, engine: &EngineFile);
}

/// Ignores all events.
pub struct Silent;

impl Observer for Silent {
    fn part(&self, _: Part) {}
    fn phase(&self, _: &str, _: usize) {}
    fn step(&self, _: &str, _: usize) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
    fn end(&self, _: &str) {}
    fn layer(&self, _: &str) {}
    fn done(&self, _: &EngineFile) {}
}

/// Builds the engines of an order in their folder in the store.
///
/// # Errors
/// [`TensorRtError`] for problems with the library, the weights, a target or the disk. No partial
/// engine is left behind.
pub fn build(
    store: &Store,
    lock: &Lock,
    order: &Order<'_>,
    here: Option<Target>,
    observer: &Arc<dyn Observer>,
) -> Result<Manifest, TensorRtError> {
    let flavour = Flavour::HERE;
    flavour.check_targets(&order.targets, here)?;
    for target in &order.targets {
        target.check(order.precision)?;
    }
    let [width, height] = order.size;
    let version = library::load()?;
    let network = load_network(order.weights).map_err(|error| TensorRtError::Content {
        path: order.weights.to_owned(),
        expected: "weights of a MASt3R network".into(),
        found: error.to_string(),
    })?;
    let architecture = &network.architecture;
    let size = architecture.input_size(order.batch, width, height);
    let size = size.ok_or_else(|| TensorRtError::Failed {
        doing: "laying the network out".into(),
        message: format!(
            "{width}x{height}, batch {}: both sides must be positive multiples of {}",
            order.batch,
            architecture.patch()
        ),
    })?;
    let mut manifest = Manifest {
        format: FORMAT,
        program: env!("CARGO_PKG_VERSION").into(),
        weights: Weights::of(order.weights)?,
        network: NetworkSummary::of(&network),
        size: order.size,
        batch: order.batch,
        precision: order.precision,
        tensorrt: Builder { flavour, version },
        targets: order.targets.clone(),
        engines: Vec::new(),
    };
    let folder = store.folder_of(&manifest);
    let parts = Part::to_build(order.parts, order.precision);
    if !order.force
        && let Some(there) = existing(&folder, &manifest)
        && parts.iter().all(|part| there.engine(*part).is_some())
    {
        return Ok(there);
    }
    library::load_parser()?;
    store.begin(lock, &folder)?;
    for part in parts {
        observer.part(part);
        let start = Instant::now();
        let model = emit(&network, size, order.precision, part);
        let model = model.ok_or_else(|| TensorRtError::Failed {
            doing: format!("writing the {} down", part.name()),
            message: "a batch of nothing".into(),
        })?;
        let (engine, log) = compile(model, order, part, observer)?;
        let (bytes, crc32) = write_engine(&folder, part, &engine, &log.layers)?;
        let file = EngineFile {
            part,
            bytes,
            crc32,
            activation_bytes: log.activation_bytes,
            weight_bytes: log.weight_bytes,
            layers: log.layer_count(),
            build_seconds: start.elapsed().as_secs_f64(),
        };
        observer.done(&file);
        manifest.engines.push(file);
    }
    manifest.write(&folder)?;
    Ok(manifest)
}

/// The manifest in `folder`, if it is complete and equal to the result of building `manifest`.
fn existing(folder: &Path, manifest: &Manifest) -> Option<Manifest> {
    let there = Manifest::read(folder).ok()?;
    let same = Manifest {
        engines: Vec::new(),
        program: manifest.program.clone(),
        weights: Weights {
            sha256: there.weights.sha256.clone(),
            ..manifest.weights.clone()
        },
        tensorrt: there.tensorrt,
        ..there.clone()
    } == *manifest;
    let found = Found {
        folder: folder.to_owned(),
        manifest: there,
    };
    let mut engines = found.manifest.engines.iter();
    let complete = engines.all(|engine| found.read(engine.part).is_ok());
    (same && complete).then_some(found.manifest)
}

/// Emits a part of the network with explicit types, which the engine adopts.
pub(super) fn emit(
    network: &Network,
    size: InputSize,
    precision: Precision,
    part: Part,
) -> Option<OnnxModel> {
    // What TensorRT fuses best, by the number of kernels: the operators of attention and rotation cost it three kernels
    // a block more than their products do.
    let options = EmitOptions {
        precision,
        attention: AttentionForm::Decomposed,
        branches: Branches::Together,
        maps: Maps::NchwInside,
        ..EmitOptions::default()
    };
    if let Some(edges) = part.edges() {
        return network.decoder_both_ways(size.with_batch(2 * edges)?, options);
    }
    Some(match part {
        Part::Encoder => network.encoder_as(size, options),
        Part::Mono => network.decoder_as(size, Views::First, options),
        _ => network.decoder_as(size, Views::Both, options),
    })
}

/// Compiles one engine from one model.
fn compile(
    model: OnnxModel,
    order: &Order<'_>,
    part: Part,
    observer: &Arc<dyn Observer>,
) -> Result<(trtx::host_memory::HostMemory<'static>, BuildLog), TensorRtError> {
    let doing = |what: &str| format!("{what} the {}", part.name());
    let logger = log::logger()?;
    let cancelled = Arc::new(AtomicBool::new(false));
    let mut builder = log::during(doing("starting to build"), || trtx::Builder::new(logger))?;
    let mut config = log::during(doing("configuring"), || builder.create_config())?;
    log::during(doing("configuring"), || configure(&mut config, order))?;
    let monitor = Monitor {
        observer: Arc::clone(observer),
        cancelled: Arc::clone(&cancelled),
    };
    log::during(doing("configuring"), || {
        config.set_progress_monitor(Box::new(monitor))
    })?;
    // Networks are always strongly typed in TensorRT 11 and TensorRT-RTX: the engine adopts the
    // model's types.
    let network = log::during(doing("starting to build"), || builder.create_network(0))?;
    let mut parser = log::during(doing("reading"), || OnnxParser::new(network, logger))?;
    let bytes = model.to_bytes().ok_or_else(|| TensorRtError::Failed {
        doing: doing("reading"),
        message: format!(
            "its {} MB of weights exceed what an ONNX model can hold; build in fp16",
            model.weight_bytes() >> 20
        ),
    })?;
    drop(model);
    let layers = Arc::clone(observer);
    let on_layer = Box::new(move |name: &str| layers.layer(name));
    let (built, log) = log::recording(on_layer, || {
        log::during(doing("reading"), || parser.parse(&bytes))?;
        // The parser has copied the data.
        drop(bytes);
        log::during(doing("building"), || {
            builder.build_serialized_network(parser.network_mut(), &mut config)
        })
    });
    match built {
        Err(_) if cancelled.load(Ordering::SeqCst) => Err(TensorRtError::Cancelled),
        Err(error) => Err(error),
        Ok(engine) => Ok((engine, log)),
    }
}

fn configure(config: &mut trtx::BuilderConfig<'_>, order: &Order<'_>) -> Result<(), trtx::Error> {
    config.set_profiling_verbosity(ProfilingVerbosity::kDETAILED);
    // Run everything on the caller's stream, as required for graph capture.
    config.set_max_aux_streams(0);
    if let Some(bytes) = order.workspace {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        config.set_memory_pool_limit(MemoryPoolType::kWORKSPACE, bytes);
    }
    #[cfg(not(feature = "tensorrt-enterprise"))]
    {
        config
            .set_nb_compute_capabilities(i32::try_from(order.targets.len()).unwrap_or(i32::MAX))?;
        for (index, target) in (0..).zip(&order.targets) {
            config.set_compute_capability(capability(*target)?, index)?;
        }
    }
    Ok(())
}

/// TensorRT's identifier of an architecture.
#[cfg(not(feature = "tensorrt-enterprise"))]
fn capability(target: Target) -> Result<trtx::ComputeCapability, trtx::Error> {
    use trtx::ComputeCapability as C;
    Ok(match target.number() {
        75 => C::kSM75,
        80 => C::kSM80,
        86 => C::kSM86,
        89 => C::kSM89,
        120 => C::kSM120,
        121 => C::kSM121,
        _ => {
            return Err(trtx::Error::InvalidArgument(format!(
                "no engines for {target}"
            )));
        }
    })
}

/// Forwards TensorRT's progress.
struct Monitor {
    observer: Arc<dyn Observer>,
    cancelled: Arc<AtomicBool>,
}

impl MonitorProgress for Monitor {
    fn phase_start(&self, phase: &str, _parent: Option<&str>, steps: i32) {
        let steps = usize::try_from(steps).unwrap_or(0);
        self.observer.phase(phase, steps);
    }

    fn step_complete(&self, phase: &str, step: i32) -> ControlFlow<()> {
        let step = usize::try_from(step).unwrap_or(0);
        let flow = self.observer.step(phase, step);
        if flow.is_break() {
            self.cancelled.store(true, Ordering::SeqCst);
        }
        flow
    }

    fn phase_finish(&self, phase: &str) {
        self.observer.end(phase);
    }
}
