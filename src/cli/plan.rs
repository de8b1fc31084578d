//! `mast3r-slam plan`: the memory plan of a run on a GPU. Pure arithmetic: needs neither a GPU nor
//! a driver.

use super::settings::ConfigArgs;
use super::sizes::{bytes, pixels, size};
use super::{CliError, Finished};
use clap::{Args, ValueEnum};

/// Options of `plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Size of the network's input in pixels [default: from the configuration, 4:3].
    #[arg(long, value_name = "WIDTHxHEIGHT", value_parser = size)]
    size: Option<(usize, usize)>,
    /// Size of the camera's images in pixels.
    #[arg(long, value_name = "WIDTHxHEIGHT", default_value = "640x480", value_parser = pixels)]
    camera: (usize, usize),
    /// The network [default: that of the weights].
    #[arg(long, value_enum)]
    model: Option<Model>,
    /// Number of words in the codebook [default: the model's; 65536 for other weights].
    #[arg(long, value_name = "N")]
    words: Option<usize>,
    /// Target GPU.
    #[arg(long, value_enum, default_value_t = Gpu::H200)]
    gpu: Gpu,
    /// Available device memory, such as 8GB or 500MB: prints how many keyframes fit, and what to
    /// lower.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    budget: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Networks with known sizes.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Model {
    /// The official model.
    Vitl,
    /// The bundled model.
    Mini,
}

/// GPU properties that the plan depends on.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Gpu {
    /// H100, H200.
    H200,
    /// Jetson AGX Orin.
    Orin,
    /// Jetson Thor.
    Thor,
    /// GeForce RTX 5090.
    Rtx5090,
}

/// Runs the command.
pub fn run(args: &PlanArgs) -> Result<Finished, CliError> {
    #[cfg(feature = "cuda")]
    {
        with_cuda::run(args)
    }
    #[cfg(not(feature = "cuda"))]
    {
        let _ = args;
        Err(CliError::Usage(
            "this program was built without CUDA, so there is no GPU memory to plan; build it with --features cuda \
             (needs nvcc, but neither a GPU nor a driver)"
                .into(),
        ))
    }
}

#[cfg(feature = "cuda")]
mod with_cuda {
    use super::{Gpu, Model, PlanArgs};
    use crate::cli::{CliError, Finished, say};
    use crate::compute::cuda::device::{CameraFormat, PlanInputs, lower};
    use crate::compute::cuda::preprocess::PreprocessError;
    use crate::compute::cuda::slots::SlotPlan;
    use crate::compute::cuda::splat::{CudaSplat, SplatSizes};
    use crate::config::{BackendChoice, Config, DeviceConfig};
    use crate::gpu::DeviceInfo;
    use crate::gpu::plan::{Group, MemoryPlan, Place, Request, Saving, human};
    use crate::image::encoding::Encoding;
    use crate::image::{PreprocessOptions, Preprocessor};
    use crate::inference::native::Outline;
    use crate::inference::{InferenceError, NetworkShape};
    use crate::network::{Architecture, Network, load_network};
    use crate::slam_builder::{MINI_WEIGHTS, find_asset, precision_of};
    use serde::Serialize;
    use std::path::Path;

    /// The maximum allowed by the configuration.
    const MAX_SLOTS: usize = 65_535;

    /// Properties of a network and its codebook that the plan depends on.
    struct Sizes {
        channels: usize,
        descriptor: usize,
        /// Side of a patch in pixels.
        patch: usize,
        words: usize,
    }

    impl Model {
        fn sizes(self) -> Sizes {
            let (channels, words) = match self {
                Self::Vitl => (1024, 1 << 16),
                Self::Mini => (192, 1 << 10),
            };
            Sizes {
                channels,
                descriptor: 24,
                patch: 16,
                words,
            }
        }
    }

    fn load(weights: &Path) -> Result<Network, CliError> {
        Ok(load_network(weights).map_err(InferenceError::from)?)
    }

    /// What the network takes that the native backend would run, for images of this size. `named` is the network of the
    /// weights that the settings name.
    fn outline(
        model: Option<Model>,
        named: Option<Network>,
        config: &Config,
        size: (usize, usize),
    ) -> Result<Option<Outline>, CliError> {
        if config.network.backend != BackendChoice::Native {
            return Ok(None);
        }
        let network = match (model, named) {
            (Some(Model::Vitl), _) => Network::of_zeros(Architecture::official())
                .ok_or_else(|| CliError::Usage("the model is too large to be planned".into()))?,
            (None, Some(named)) => named,
            (None | Some(Model::Mini), _) => load(&find_asset(MINI_WEIGHTS)?)?,
        };
        let precision = precision_of(config.network.precision);
        Ok(Some(Outline::new(&network, size, precision)?))
    }

    impl Gpu {
        /// Device properties that the plan depends on; others are left at zero.
        fn info(self) -> DeviceInfo {
            let (name, capability, multiprocessors, shared_kib) = match self {
                Self::H200 => ("H200", (9, 0), 132, 227),
                Self::Orin => ("Jetson AGX Orin", (8, 7), 16, 163),
                Self::Thor => ("Jetson Thor", (11, 0), 20, 227),
                Self::Rtx5090 => ("GeForce RTX 5090", (12, 0), 170, 99),
            };
            DeviceInfo {
                ordinal: 0,
                name: name.into(),
                capability,
                multiprocessors,
                clock_khz: 0,
                l2_bytes: 0,
                memory_bytes: 0,
                shared_bytes: shared_kib << 10,
                driver: (0, 0),
            }
        }
    }

    /// Output of `--json`.
    #[derive(Serialize)]
    struct Report<'a> {
        gpu: String,
        network: [usize; 2],
        device_bytes: u64,
        /// What the network's runtime holds besides.
        elsewhere_bytes: u64,
        pinned_bytes: u64,
        keyframe_bytes: usize,
        keyframe_slots: usize,
        budget: Option<u64>,
        keyframes_that_fit: Option<u64>,
        buffers: &'a [Request],
        lower: Vec<Saving>,
    }

    pub fn run(args: &PlanArgs) -> Result<Finished, CliError> {
        let mut builder = args.config.builder();
        if let Some((width, _)) = args.size {
            builder = builder.size(width);
        }
        let mut config = builder.effective_config()?;
        // Aspect ratio of the input; the width is `network.size`.
        let ratio = args.size.unwrap_or((4, 3));
        if let Some((width, _)) = args.size {
            config.network.size = width;
        }
        let weights = &config.network.weights;
        let is_named = args.model.is_none() && !weights.is_empty();
        let named = is_named.then(|| load(weights.as_ref())).transpose()?;
        let mut sizes = match &named {
            None => args.model.unwrap_or(Model::Mini).sizes(),
            Some(Network { architecture, .. }) => Sizes {
                channels: architecture.encoder.width,
                descriptor: architecture.descriptor_dim,
                patch: architecture.patch(),
                words: Model::Vitl.sizes().words,
            },
        };
        sizes.words = args.words.unwrap_or(sizes.words);
        let info = args.gpu.info();
        let size_of = |width: usize| {
            let height = (width * ratio.1 / ratio.0).next_multiple_of(sizes.patch);
            (width, height)
        };
        let native = outline(args.model, named, &config, size_of(config.network.size))?;
        let splat = config.splat.enable.then(|| config.splat.clone());
        let (use_calib, config) = (config.use_calib, DeviceConfig::from(&config));
        let make =
            |config: &DeviceConfig| -> Result<(MemoryPlan, SlotPlan, NetworkShape), CliError> {
                let (width, height) = size_of(config.network_size);
                let shape = NetworkShape {
                    width,
                    height,
                    tokens: width * height / (sizes.patch * sizes.patch),
                    feature_dim: sizes.channels,
                    descriptor_dim: sizes.descriptor,
                };
                let (raw_width, raw_height) = args.camera;
                let preprocessor = Preprocessor::new(
                    raw_width,
                    raw_height,
                    width.max(height),
                    None,
                    PreprocessOptions {
                        patch: sizes.patch,
                        ..PreprocessOptions::default()
                    },
                )?;
                let edges = config.memory.edge_batch;
                let workspaces = native
                    .as_ref()
                    .map(|native| native.workspaces((width, height), edges))
                    .transpose()?;
                let inputs = PlanInputs {
                    config,
                    shape: &shape,
                    info: &info,
                    preprocessor: &preprocessor,
                    camera: CameraFormat {
                        encoding: Encoding::Rgb8,
                        stride: 3 * raw_width,
                    },
                    calibrated: use_calib,
                    network_on_host: false,
                    network_workspace: workspaces
                        .map_or([0; 2], |bytes| [bytes.single, bytes.edges]),
                    encoder_workspace: workspaces.map(|bytes| bytes.encoder),
                    half_tokens: native.as_ref().is_some_and(Outline::half_tokens),
                    edge_batch: edges,
                    words: Some(sizes.words),
                };
                let mut plan = inputs.plan().map_err(|error| match error {
                    PreprocessError::Image(error) => CliError::from(error),
                    PreprocessError::Cuda(error) => CliError::from(error),
                })?;
                if let Some(native) = &native {
                    let name = "network.weights".into();
                    let bytes = native.weight_bytes();
                    plan.note::<u8>(Group::Network, name, Place::Elsewhere, &[bytes]);
                }
                if let Some(splat) = &splat {
                    let degree = u8::try_from(splat.degree).unwrap_or(u8::MAX);
                    let size = (shape.width, shape.height);
                    let sizes = SplatSizes::new(splat.capacity as u64, degree, size);
                    plan.extend(&CudaSplat::plan(&sizes)?);
                }
                Ok((plan, inputs.slots(), shape))
            };
        let (plan, slots, shape) = make(&config)?;
        let total = plan.device_bytes();
        let takes = |plan: &MemoryPlan| plan.device_bytes() + plan.elsewhere_bytes();
        let of =
            |config: &DeviceConfig| make(config).map_or(total, |(plan, ..)| plan.device_bytes());
        // The maximum number of slots with which the plan fits; every slot needs memory.
        let fit = |budget: u64| -> Result<u64, CliError> {
            let (mut fits, mut beyond) = (0, MAX_SLOTS + 1);
            while beyond - fits > 1 {
                let middle = fits + (beyond - fits) / 2;
                let mut other = config.clone();
                other.memory.keyframe_slots = middle;
                if takes(&make(&other)?.0) <= budget {
                    fits = middle;
                } else {
                    beyond = middle;
                }
            }
            Ok(fits as u64)
        };
        let report = Report {
            gpu: info.name.clone(),
            network: [shape.width, shape.height],
            device_bytes: total,
            elsewhere_bytes: plan.elsewhere_bytes(),
            pinned_bytes: plan.pinned_bytes(),
            keyframe_bytes: slots.layout.bytes,
            keyframe_slots: slots.device_slots,
            budget: args.budget,
            keyframes_that_fit: args.budget.map(fit).transpose()?,
            buffers: plan.requests(),
            lower: lower(&config, of),
        };
        if args.json {
            let text = serde_json::to_string_pretty(&report);
            say(&text.map_err(|e| CliError::Usage(e.to_string()))?);
        } else {
            say(&table(&plan, &report));
        }
        Ok(Finished::Done)
    }

    fn table(plan: &MemoryPlan, report: &Report<'_>) -> String {
        let [width, height] = report.network;
        let mut text = format!(
            "{}, network input {width}x{height}\n\n{}\n\nper keyframe: {}, {} slots on the device\n",
            report.gpu,
            plan,
            human(report.keyframe_bytes as u64),
            report.keyframe_slots
        );
        if let (Some(budget), Some(fit)) = (report.budget, report.keyframes_that_fit) {
            let verdict = if report.device_bytes + report.elsewhere_bytes <= budget {
                "fits"
            } else {
                "does not fit"
            };
            let budget = human(budget);
            text += &format!(
                "with {budget}, the plan {verdict}; {fit} keyframes fit in addition to the other buffers\n"
            );
        }
        text += "to save device memory, lower:";
        for saving in &report.lower {
            let Saving {
                parameter,
                from,
                to,
                saves,
            } = saving;
            text += &format!("\n  {parameter} from {from} to {to}: {}", human(*saves));
        }
        text
    }
}
