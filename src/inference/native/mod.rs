//! The network on an NVIDIA GPU with this program's own kernels: nothing is installed but the driver.
//!
//! The description of the network becomes a static [`plan::Plan`] for one size of images: every launch fixed,
//! activations that share one workspace, weights uploaded once in binary16 or bfloat16, of the transformers' linear
//! layers also in E4M3. Sums, normalisation, the residual stream and the heads' activations are binary32.

pub mod arguments;
mod decoder;
mod device;
mod encoder;
mod enlarged;
mod feed;
pub mod format;
mod heads;
mod launch;
mod layer;
mod layers;
mod layout;
pub mod name;
mod operand;
mod outline;
mod pairs;
mod plan;
pub mod size;
pub mod step;
pub mod tile;
mod weights;

use super::host::HostPath;
use super::{
    Backend, DeviceBackend, InferenceError, NetworkShape, PairOutput, expect, input_size, self_test,
};
use crate::gpu::{Context, DeviceBuffer, KernelImages, compute_capability};
use crate::image::RgbImage;
use crate::network::InputSize;
use crate::network::architecture::Architecture;
use crate::network::onnx::Precision;
use crate::network::{Network, load_network};
use device::{Device, Part};
use format::Format;
pub use launch::KernelSet;
use launch::Kernels;
use layout::Layout;
use operand::Addresses;
pub use outline::{Outline, Workspaces};
use pairs::Pairs;
use plan::Plan;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
pub use weights::Overflow;
use weights::{Collected, Index, Source, Weights};

const RUNTIME: &str = "native";

/// The kernels of `kernels/native`.
// SAFETY: the build wrote each image as a whole fat binary and aligned it to 16 bytes.
pub static KERNELS: KernelImages =
    unsafe { KernelImages::new(embedded::RELEASE, embedded::ARCHITECTURES, embedded::IMAGES) };

/// The fat binaries that the build made of `kernels/native/*.cu`.
mod embedded {
    /// The driver reads a fat binary in place, as 8-byte words.
    #[repr(C, align(16))]
    struct Aligned<T>(T);

    include!(concat!(env!("OUT_DIR"), "/native_kernels.rs"));
}

/// The first compute capability with asynchronous copies, on which all kernels are built.
const OLDEST_CAPABILITY: (u32, u32) = (8, 0);

/// The network on the program's own kernels, for one input size.
pub struct NativeBackend {
    loaded: Arc<Loaded>,
    device: Device,
    /// For the interface through host memory, once it is used.
    host: Option<HostPath>,
}

/// What all handles of one network share.
struct Loaded {
    format: Format,
    /// Why the format is not binary16, if that was preferred.
    overflow: Option<Overflow>,
    kernels: Kernels,
    weights: Weights,
    index: Index,
    architecture: Architecture,
    size: InputSize,
    shape: NetworkShape,
    /// Made when a part is first asked for.
    plans: Mutex<HashMap<Part, Arc<Plan>>>,
}

impl NativeBackend {
    /// Reads the weights (safetensors or `.pth`), uploads them to the first GPU for images of `width × height`,
    /// both multiples of the patch's side, and runs [`self_test`]. Without a `precision` it is fp16, or bf16 where
    /// binary16 cannot hold a weight; see [`NativeBackend::overflow`].
    ///
    /// # Errors
    /// [`InferenceError::Weights`] where the file cannot be used, [`InferenceError::Shape`] for an impossible
    /// size, [`InferenceError::Unavailable`] without a suitable GPU, for a network or a precision that there are no
    /// kernels for, or for weights that the precision cannot hold, [`InferenceError::SelfTest`] for a network that
    /// runs and cannot be right.
    pub fn load(
        weights: &Path,
        width: usize,
        height: usize,
        precision: Option<Precision>,
    ) -> Result<Self, InferenceError> {
        let mut backend = Self::new(&load_network(weights)?, width, height, precision)?;
        self_test(&mut backend)?;
        // SLAM works in place, and the test's memory is free again.
        backend.host = None;
        Ok(backend)
    }

    /// Uploads weights that have been read already, without testing the network.
    ///
    /// # Errors
    /// As [`NativeBackend::load`].
    pub fn new(
        network: &Network,
        width: usize,
        height: usize,
        precision: Option<Precision>,
    ) -> Result<Self, InferenceError> {
        let set = KernelSet::from_environment().map_err(|found| {
            unavailable(format!(
                "{} must be fastest, portable or size-NUMBER, found {found:?}",
                KernelSet::VARIABLE
            ))
        })?;
        Self::with_kernels(network, (width, height), precision, set)
    }

    /// Like [`NativeBackend::new`], with kernels of this set.
    ///
    /// # Errors
    /// As [`NativeBackend::load`].
    pub fn with_kernels(
        network: &Network,
        (width, height): (usize, usize),
        precision: Option<Precision>,
        set: KernelSet,
    ) -> Result<Self, InferenceError> {
        let mut format = Format::of(precision.unwrap_or(Precision::F16))?;
        let size = input_size(network, width, height)?;
        layout::check(&network.architecture)?;
        // Weights are arranged while the driver starts.
        let (kernels, planned) = std::thread::scope(|scope| {
            let kernels =
                scope.spawn(|| Ok::<_, InferenceError>(Kernels::new(&open()?, set, format.half)?));
            let planned = make_plans(network, size, Collected::new(format));
            (kernels.join(), planned)
        });
        let mut kernels = kernels.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let (mut plans, mut collected) = planned?;
        let overflow = collected
            .overflow()
            .filter(|_| precision.is_none())
            .cloned();
        if let Some(Overflow { name, value }) = &overflow {
            tracing::debug!("native: bf16, as {name} has the value {value:e}");
            format = Format::of(Precision::Bf16)?;
            kernels = Kernels::new(kernels.context(), set, format.half)?;
            (plans, collected) = make_plans(network, size, Collected::new(format))?;
        }
        let (weights, index) = collected.upload(kernels.context())?;
        tracing::debug!("native: {} bytes of weights", weights.bytes());
        let loaded = Loaded {
            format,
            overflow,
            shape: NetworkShape::of(network, &size),
            architecture: network.architecture.clone(),
            size,
            kernels,
            weights,
            index,
            plans: Mutex::new(plans),
        };
        Ok(Self {
            loaded: Arc::new(loaded),
            device: Device::default(),
            host: None,
        })
    }

    /// The weight for which the network is kept in bf16, where no precision was asked for.
    pub fn overflow(&self) -> Option<&Overflow> {
        self.loaded.overflow.as_ref()
    }

    /// Calls `call` with memory for calls from the host, which is made at the first one.
    fn on_host(
        &mut self,
        call: impl FnOnce(&Loaded, &mut HostPath) -> Result<(), InferenceError>,
    ) -> Result<(), InferenceError> {
        let host = match &mut self.host {
            Some(host) => host,
            none => {
                let bytes = self.loaded.workspace_for(&Part::SINGLE)?;
                let context = self.loaded.kernels.context();
                none.insert(HostPath::new(context, &self.loaded.shape, bytes)?)
            }
        };
        call(&self.loaded, host)
    }

    fn decode_on_host(
        &mut self,
        pairs: Pairs,
        features: [&[f32]; 2],
        out: &mut PairOutput,
    ) -> Result<(), InferenceError> {
        let outputs = [&mut out.view1, &mut out.view2];
        for features in features {
            expect::features(features, &self.loaded.shape)?;
        }
        for view in &outputs[..pairs.views()] {
            expect::view(view, &self.loaded.shape)?;
        }
        self.on_host(|loaded, host| {
            for (features, on_device) in features.iter().zip(&host.features) {
                host.stream.write(features, on_device.all())?;
            }
            loaded.run(Part::Pairs(pairs), host)?;
            for (which, view) in outputs.into_iter().enumerate().take(pairs.views()) {
                host.read_view(which, view)?;
            }
            Ok(())
        })
    }
}

impl Loaded {
    /// The plan of a part, made at the first call for it.
    fn plan(&self, part: Part) -> Result<Arc<Plan>, InferenceError> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = plans.get(&part) {
            return Ok(Arc::clone(plan));
        }
        let source = Source::Known(&self.index);
        let plan = Arc::new(make_plan(&self.architecture, self.size, source, part)?);
        plans.insert(part, Arc::clone(&plan));
        Ok(plan)
    }

    /// Enqueues a part on the host's buffers.
    fn run(&self, part: Part, host: &HostPath) -> Result<(), InferenceError> {
        let at = |buffer: &DeviceBuffer<f32>| buffer.all().address();
        let outputs = |view| host.view(view).slices().map(|slice| slice.address());
        let addresses = Addresses {
            workspace: host.workspace.all().address(),
            planes: at(&host.planes),
            features: at(&host.features[0]),
            views: host.features.each_ref().map(at),
            outputs: [outputs(0), outputs(1)],
            ..Addresses::new(self.weights.address())
        };
        let plan = self.plan(part)?;
        // SAFETY: the buffers are of the sizes of this network's inputs and outputs and of its largest workspace,
        // and only this stream uses them.
        Ok(unsafe { plan.enqueue(&self.kernels, &host.stream, &addresses, None) }?)
    }
}

/// The plans of single pairs, and all weights.
fn make_plans(
    network: &Network,
    size: InputSize,
    mut collected: Collected,
) -> Result<(HashMap<Part, Arc<Plan>>, Collected), InferenceError> {
    let mut plans = HashMap::new();
    for part in Part::SINGLE {
        let source = Source::Network(network, &mut collected);
        let plan = make_plan(&network.architecture, size, source, part)?;
        plans.insert(part, Arc::new(plan));
    }
    Ok((plans, collected))
}

fn make_plan(
    architecture: &Architecture,
    size: InputSize,
    source: Source<'_>,
    part: Part,
) -> Result<Plan, InferenceError> {
    let mut layout = Layout::new(architecture, size, source);
    match part {
        Part::Encoder => layout.encoder()?,
        Part::Pairs(pairs) => layout.decoder(pairs)?,
    }
    layout.draft.finish()
}

fn unavailable(reason: String) -> InferenceError {
    InferenceError::Unavailable {
        runtime: RUNTIME,
        reason,
    }
}

/// Whether the kernels run on the first GPU, which is not opened for that.
///
/// # Errors
/// [`InferenceError::Unavailable`]: there is no driver, no GPU, or the GPU is too old.
pub fn check_gpu() -> Result<(), InferenceError> {
    let capability = compute_capability(0).map_err(|error| unavailable(error.to_string()))?;
    check_capability("the GPU", capability)
}

fn check_capability(name: &str, (major, minor): (u32, u32)) -> Result<(), InferenceError> {
    if (major, minor) >= OLDEST_CAPABILITY {
        return Ok(());
    }
    Err(unavailable(format!(
        "{name} has compute capability {major}.{minor}, and the kernels need {}.{}; choose another backend",
        OLDEST_CAPABILITY.0, OLDEST_CAPABILITY.1
    )))
}

/// The first GPU, if the kernels run on it.
fn open() -> Result<Context, InferenceError> {
    let context = Context::open(0, &KERNELS).map_err(|error| unavailable(error.to_string()))?;
    let info = context.info();
    check_capability(&info.name, info.capability)?;
    // No kernel of this program has a stack, and no library's runs beside it.
    context.release_stacks()?;
    Ok(context)
}

impl Backend for NativeBackend {
    fn shape(&self) -> &NetworkShape {
        &self.loaded.shape
    }

    fn name(&self) -> String {
        format!(
            "{RUNTIME} ({}, {})",
            self.precision(),
            self.loaded.kernels.context().info().name
        )
    }

    fn precision(&self) -> Precision {
        self.loaded.format.precision()
    }

    fn share(&self) -> Box<dyn Backend> {
        Box::new(Self {
            loaded: Arc::clone(&self.loaded),
            device: Device::default(),
            host: None,
        })
    }

    fn encode(&mut self, image: &RgbImage, features: &mut [f32]) -> Result<(), InferenceError> {
        expect::image(image, &self.loaded.shape)?;
        expect::features(features, &self.loaded.shape)?;
        self.on_host(|loaded, host| {
            host.send_image(image)?;
            loaded.run(Part::Encoder, host)?;
            Ok(host.stream.read(host.features[0].all(), features)?)
        })
    }

    fn decode(
        &mut self,
        features1: &[f32],
        features2: &[f32],
        out: &mut PairOutput,
    ) -> Result<(), InferenceError> {
        self.decode_on_host(Pairs::Both, [features1, features2], out)
    }

    fn decode_view1(
        &mut self,
        features1: &[f32],
        features2: &[f32],
        out: &mut PairOutput,
    ) -> Result<(), InferenceError> {
        self.decode_on_host(Pairs::First, [features1, features2], out)
    }

    fn device(&mut self) -> Option<&mut dyn DeviceBackend> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::check_capability;

    #[test]
    fn gpus_older_than_ampere_are_refused_with_the_reason() {
        for capability in [(8, 0), (8, 7), (9, 0), (11, 0), (12, 0)] {
            check_capability("the GPU", capability).expect("there are kernels");
        }
        for capability in [(5, 2), (7, 5)] {
            let refused = check_capability("Quadro RTX 4000", capability);
            let error = refused.expect_err("there are none").to_string();
            let found = format!("{}.{}", capability.0, capability.1);
            for said in ["Quadro RTX 4000", &found, "8.0", "another backend"] {
                assert!(error.contains(said), "{error}");
            }
        }
    }
}
