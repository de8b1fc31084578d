//! Engines on the GPU: found or built, deserialised once, and shared by all handles.

use super::build::{Observer, Order, build};
use super::error::TensorRtError;
use super::execution::{Execution, Tensors};
use super::gpu::target_here;
#[cfg(not(feature = "tensorrt-enterprise"))]
use super::kernels::Kernels;
use super::manifest::{Builder, Manifest, Part, Wanted, WeightsFile};
use super::store::{Found, Store};
use super::target::Flavour;
use super::{library, log};
use crate::gpu::{Context, KernelImages};
use crate::inference::NetworkShape;
use crate::network::onnx::{Precision, names};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use trtx::{CudaEngine, DataType, Runtime};

/// Options for loading a network.
pub struct LoadOptions<'a> {
    pub store: Store,
    /// `None`: any matching engine, preferring fp16; fp16 if one has to be built.
    pub precision: Option<Precision>,
    /// Whether an engine may be built if none matches, which takes minutes.
    pub may_build: bool,
    /// Called when this process waits for another one that builds.
    pub wait: &'a dyn Fn(),
    /// Observes the build.
    pub observer: Arc<dyn Observer>,
}

/// The engines of a network on the GPU.
pub struct Loaded {
    shape: NetworkShape,
    manifest: Manifest,
    // Dropped in this order: contexts (held by the handles), engines, runtime.
    engines: Mutex<Engines>,
    _runtime: Mutex<Runtime<'static>>,
    gpu: Context,
}

struct Engines {
    engines: Vec<(Part, CudaEngine<'static>)>,
    #[cfg(not(feature = "tensorrt-enterprise"))]
    kernels: Option<Kernels>,
}

// SAFETY: TensorRT's engines may be used from any thread; methods that modify one are called under
// the mutex of `Loaded`, by one thread at a time.
unsafe impl Send for Engines {}

impl Loaded {
    /// Finds or builds the engines of `weights` for images of `width × height` and loads them onto
    /// the first GPU.
    ///
    /// # Errors
    /// Missing library, driver, matching engine or memory.
    pub fn load(
        weights: &Path,
        (width, height): (usize, usize),
        options: &LoadOptions<'_>,
    ) -> Result<Self, TensorRtError> {
        let version = library::load()?;
        let target = target_here().ok_or_else(|| TensorRtError::Failed {
            doing: "looking for the GPU".into(),
            message: "no NVIDIA GPU found, or its driver is not installed".into(),
        })?;
        // Report an unsupported GPU before searching for engines.
        Flavour::HERE.check_targets(&[target], Some(target))?;
        let gpu = Context::open(0, &KernelImages::NONE)?;
        let file = WeightsFile::new(weights)?;
        let wanted = Wanted {
            weights: &file,
            size: [width, height],
            batch: 1,
            precision: options.precision,
            tensorrt: Builder {
                flavour: Flavour::HERE,
                version,
            },
            target,
        };
        let order = Order {
            weights,
            size: [width, height],
            batch: 1,
            parts: &Part::USUAL,
            precision: options.precision.unwrap_or(Precision::F16),
            targets: vec![target],
            workspace: None,
            force: false,
        };
        let (found, (runtime, engines)) = options.store.open(
            &wanted,
            options.may_build,
            options.wait,
            |lock, missing| {
                tracing::info!("{missing}");
                build(
                    &options.store,
                    lock,
                    &order,
                    Some(target),
                    &options.observer,
                )
            },
            |found| deserialise(found, &gpu),
        )?;
        Self::new(found, runtime, engines, gpu)
    }

    fn new(
        found: Found,
        runtime: Runtime<'static>,
        engines: Engines,
        gpu: Context,
    ) -> Result<Self, TensorRtError> {
        let manifest = found.manifest;
        let ([width, height], patch) = (manifest.size, manifest.network.patch);
        let shape = NetworkShape {
            width,
            height,
            tokens: width * height / (patch * patch).max(1),
            feature_dim: manifest.network.encoder[0],
            descriptor_dim: manifest.network.descriptor,
        };
        let loaded = Self {
            shape,
            manifest,
            engines: Mutex::new(engines),
            _runtime: Mutex::new(runtime),
            gpu,
        };
        loaded.check(&found.folder)?;
        Ok(loaded)
    }

    /// Input and output shapes of the network.
    pub fn shape(&self) -> &NetworkShape {
        &self.shape
    }

    /// Manifest of the loaded engines.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The GPU.
    pub(super) fn gpu(&self) -> &Context {
        &self.gpu
    }

    /// The engines' inputs and outputs must be what the callers' buffers are: binary32 of known sizes.
    fn check(&self, folder: &Path) -> Result<(), TensorRtError> {
        let engines = self.engines.lock().unwrap_or_else(PoisonError::into_inner);
        for (part, engine) in &engines.engines {
            for (name, values) in tensors(*part, &self.shape) {
                let (kind, shape) = log::during("asking for its tensors", || {
                    Ok((engine.tensor_data_type(name)?, engine.tensor_shape(name)?))
                })?;
                let found: i64 = shape.iter().product();
                if kind != DataType::kFLOAT || usize::try_from(found) != Ok(values) {
                    return Err(TensorRtError::Content {
                        path: folder.join(part.file()),
                        expected: format!("{name} of {values} binary32 values"),
                        found: format!("{shape:?} of type {kind:?}"),
                    });
                }
            }
        }
        Ok(())
    }

    /// Whether there is an engine for a part.
    pub(super) fn has(&self, part: Part) -> bool {
        self.manifest.engine(part).is_some()
    }

    /// A new execution context for a part; its device memory is the caller's.
    pub(super) fn execution(&self, part: Part) -> Result<Execution, TensorRtError> {
        use trtx::ExecutionContextAllocationStrategy as Allocation;
        self.gpu.bind()?;
        let mut engines = self.engines.lock().unwrap_or_else(PoisonError::into_inner);
        #[cfg(not(feature = "tensorrt-enterprise"))]
        let cache = engines.kernels.as_ref().map(Kernels::cache);
        let missing = || TensorRtError::Failed {
            doing: format!("preparing the {}", part.name()),
            message: "the manifest does not list it".into(),
        };
        let engine = engines.engines.iter_mut().find(|(p, _)| *p == part);
        let (_, engine) = engine.ok_or_else(missing)?;
        let context = log::during(format!("preparing the {}", part.name()), || {
            let mut config = engine.create_runtime_config()?;
            config.set_execution_context_allocation_strategy(Allocation::kUSER_MANAGED);
            #[cfg(not(feature = "tensorrt-enterprise"))]
            if let Some(cache) = cache {
                config.set_runtime_cache(cache)?;
            }
            engine.create_execution_context_with_config(Rc::new(config))
        })?;
        let file = self.manifest.engine(part).ok_or_else(missing)?;
        Ok(Execution::new(
            context,
            tensors(part, &self.shape),
            self.gpu.clone(),
            file,
        ))
    }

    /// Keeps the kernels that were compiled so far for the next start. To be called when everything has run
    /// once.
    pub fn save_kernels(&self) {
        #[cfg(not(feature = "tensorrt-enterprise"))]
        {
            let engines = self.engines.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(kernels) = &engines.kernels {
                kernels.save();
            }
        }
    }
}

/// Inputs, then outputs of a part, with their numbers of values.
fn tensors(part: Part, shape: &NetworkShape) -> Tensors {
    let images = part.edges().map_or(1, |edges| 2 * edges);
    let n = images * shape.pixels();
    let tokens = images * shape.tokens * shape.feature_dim;
    let (mut all, views) = match part {
        Part::Encoder => (vec![(names::IMAGE, 3 * n), (names::FEATURES, tokens)], 0),
        Part::Decoder => (names::VIEW_FEATURES.map(|name| (name, tokens)).to_vec(), 2),
        Part::Mono => (names::VIEW_FEATURES.map(|name| (name, tokens)).to_vec(), 1),
        Part::Edge | Part::TwoEdges => (vec![(names::FEATURES, tokens)], 2),
    };
    for view in 0..views {
        all.extend([
            (names::POINTS[view], 3 * n),
            (names::CONFIDENCE[view], n),
            (names::DESCRIPTORS[view], n * shape.descriptor_dim),
            (names::DESCRIPTOR_CONFIDENCE[view], n),
        ]);
    }
    all.into_iter()
}

/// The engines from their files.
fn deserialise(found: &Found, gpu: &Context) -> Result<(Runtime<'static>, Engines), TensorRtError> {
    gpu.bind()?;
    let needed = found.manifest.engines.iter().map(|e| e.weight_bytes).sum();
    let (free, _) = gpu.memory()?;
    if needed > free {
        return Err(TensorRtError::GpuMemory { needed, free });
    }
    let logger = log::logger()?;
    let mut runtime = log::during("starting its runtime", || Runtime::new(logger))?;
    let mut load = |part: Part| {
        let bytes = found.read(part)?;
        log::during(format!("loading the {}", part.name()), || {
            runtime.deserialize_cuda_engine(&bytes)
        })
    };
    let parts = found.manifest.engines.iter().map(|engine| engine.part);
    let engines = parts.map(|part| Ok::<_, TensorRtError>((part, load(part)?)));
    let engines = engines.collect::<Result<Vec<_>, _>>()?;
    #[cfg(not(feature = "tensorrt-enterprise"))]
    let (engines, kernels) = {
        let mut engines = engines;
        let first = engines.first_mut();
        let kernels = first.and_then(|(_, engine)| Kernels::open(&found.folder, engine));
        (engines, kernels)
    };
    let engines = Engines {
        engines,
        #[cfg(not(feature = "tensorrt-enterprise"))]
        kernels,
    };
    Ok((runtime, engines))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::load_network;

    #[test]
    fn what_is_bound_is_what_the_models_declare() {
        let weights = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/data/network/tiny-random.pth"
        );
        let network = load_network(weights.as_ref()).expect("in the repository");
        let size = network.architecture.input_size(1, 80, 48).expect("a size");
        let shape = NetworkShape {
            width: size.width,
            height: size.height,
            tokens: size.tokens(),
            feature_dim: network.architecture.encoder.width,
            descriptor_dim: network.architecture.descriptor_dim,
        };
        for part in Part::ALL {
            let model = super::super::build::emit(&network, size, Precision::F16, part);
            let model = model.expect("a model");
            let declared: Vec<(&str, usize)> = (model.tensors().into_iter())
                .map(|(name, shape)| (name, shape.iter().product()))
                .collect();
            let mut bound: Vec<(&str, usize)> = tensors(part, &shape).collect();
            assert_eq!(part == Part::Encoder, bound.len() == 2);
            let mut declared = declared;
            bound.sort();
            declared.sort();
            assert_eq!(bound, declared, "{part:?}");
        }
    }
}
