//! The network on an NVIDIA GPU with this program's own kernels: nothing is installed but the driver.
//!
//! The description of the network becomes a static [`plan::Plan`] for one size of images: every launch fixed,
//! activations that share one workspace, weights uploaded once in binary16. Sums, normalisation, the residual
//! stream and the heads' activations are binary32.

mod arguments;
mod decoder;
mod device;
mod encoder;
mod enlarged;
mod feed;
mod heads;
mod launch;
mod layer;
mod layers;
mod layout;
mod operand;
mod pairs;
mod plan;
mod size;
mod step;
mod tile;
mod weights;

use super::host::HostPath;
use super::{
    Backend, DeviceBackend, InferenceError, NetworkShape, PairOutput, expect, input_size, self_test,
};
use crate::gpu::{Context, DeviceBuffer, KernelImages};
use crate::image::RgbImage;
use crate::network::InputSize;
use crate::network::architecture::Architecture;
use crate::network::onnx::Precision;
use crate::network::{Network, load_network};
use device::{Device, Part};
pub use launch::KernelSet;
use launch::Kernels;
use layout::Layout;
use operand::Addresses;
use pairs::Pairs;
use plan::Plan;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
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
    /// both multiples of the patch's side, and runs [`self_test`].
    ///
    /// # Errors
    /// [`InferenceError::Weights`] where the file cannot be used, [`InferenceError::Shape`] for an impossible
    /// size, [`InferenceError::Unavailable`] without a suitable GPU or for a network that there are no kernels
    /// for, [`InferenceError::SelfTest`] for a network that runs and cannot be right.
    pub fn load(weights: &Path, width: usize, height: usize) -> Result<Self, InferenceError> {
        let mut backend = Self::new(&load_network(weights)?, width, height)?;
        self_test(&mut backend)?;
        // SLAM works in place, and the test's memory is free again.
        backend.host = None;
        Ok(backend)
    }

    /// Uploads weights that have been read already, without testing the network.
    ///
    /// # Errors
    /// As [`NativeBackend::load`].
    pub fn new(network: &Network, width: usize, height: usize) -> Result<Self, InferenceError> {
        let set = KernelSet::from_environment().map_err(|found| InferenceError::Unavailable {
            runtime: RUNTIME,
            reason: format!(
                "{} must be fastest, portable or size-NUMBER, found {found:?}",
                KernelSet::VARIABLE
            ),
        })?;
        Self::with_kernels(network, (width, height), set)
    }

    /// Like [`NativeBackend::new`], with kernels of this set.
    ///
    /// # Errors
    /// As [`NativeBackend::load`].
    pub fn with_kernels(
        network: &Network,
        (width, height): (usize, usize),
        set: KernelSet,
    ) -> Result<Self, InferenceError> {
        let size = input_size(network, width, height)?;
        layout::check(&network.architecture)?;
        // Weights are arranged while the driver starts.
        let (kernels, planned) = std::thread::scope(|scope| {
            let kernels = scope.spawn(|| Ok::<_, InferenceError>(Kernels::new(&open()?, set)?));
            let planned = make_plans(network, size);
            (kernels.join(), planned)
        });
        let kernels = kernels.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let (plans, collected) = planned?;
        let (weights, index) = collected.upload(kernels.context())?;
        tracing::debug!("native: {} bytes of weights", weights.bytes());
        let loaded = Loaded {
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
) -> Result<(HashMap<Part, Arc<Plan>>, Collected), InferenceError> {
    let mut collected = Collected::default();
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

/// The first GPU, if the kernels run on it.
fn open() -> Result<Context, InferenceError> {
    let unavailable = |reason: String| InferenceError::Unavailable {
        runtime: RUNTIME,
        reason,
    };
    let context = Context::open(0, &KERNELS).map_err(|error| unavailable(error.to_string()))?;
    let info = context.info();
    if info.capability < OLDEST_CAPABILITY {
        return Err(unavailable(format!(
            "{} has compute capability {}.{}, and the kernels need {}.{}; choose another backend",
            info.name,
            info.capability.0,
            info.capability.1,
            OLDEST_CAPABILITY.0,
            OLDEST_CAPABILITY.1
        )));
    }
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
            "{RUNTIME} (fp16, {})",
            self.loaded.kernels.context().info().name
        )
    }

    fn precision(&self) -> Precision {
        Precision::F16
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
