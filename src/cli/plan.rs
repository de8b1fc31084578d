//! `mast3r-slam plan`: what memory a run on a GPU will take. Arithmetic: neither a GPU nor its driver is
//! needed.

use super::settings::ConfigArgs;
use super::sizes::{bytes, pixels, size};
use super::{CliError, Finished};
use clap::{Args, ValueEnum};

/// Options of `plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// The network's input, pixels [default: the configuration's, 4:3].
    #[arg(long, value_name = "WIDTHxHEIGHT", value_parser = size)]
    size: Option<(usize, usize)>,
    /// The camera's images, pixels.
    #[arg(long, value_name = "WIDTHxHEIGHT", default_value = "640x480", value_parser = pixels)]
    camera: (usize, usize),
    /// The network [default: that of the weights].
    #[arg(long, value_enum)]
    model: Option<Model>,
    /// Words of the codebook [default: the model's; 65536 for other weights].
    #[arg(long, value_name = "N")]
    words: Option<usize>,
    /// The GPU.
    #[arg(long, value_enum, default_value_t = Gpu::H200)]
    gpu: Gpu,
    /// Device memory that there is, such as 8GB or 500MB: how many keyframes fit, and what to lower.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    budget: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Networks whose sizes are known without their weights.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Model {
    /// The official model.
    Vitl,
    /// The bundled one.
    Mini,
}

/// GPUs, as far as the plan depends on them.
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
    use crate::compute::cuda::DeviceInfo;
    use crate::compute::cuda::device_plan::{DevicePlan, PlanInputs, lay_out, lower};
    use crate::compute::plan::{Request, Saving, human};
    use crate::config::Config;
    use crate::image::encoding::Encoding;
    use crate::image::{PreprocessOptions, Preprocessor};
    use crate::inference::{InferenceError, NetworkShape};
    use serde::Serialize;

    /// The most that the configuration takes.
    const MOST_SLOTS: usize = 65_535;

    /// What the plan depends on of a network and its codebook.
    struct Sizes {
        /// Channels of a token.
        channels: usize,
        /// Channels of a descriptor.
        descriptor: usize,
        /// Pixels of a patch's side.
        patch: usize,
        /// Words of the codebook.
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

    impl Gpu {
        /// What the plan depends on; the rest is left open.
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
                from_ptx: false,
            }
        }
    }

    /// What `--json` prints.
    #[derive(Serialize)]
    struct Report<'a> {
        gpu: String,
        network: [usize; 2],
        device_bytes: u64,
        pinned_bytes: u64,
        keyframe_bytes: usize,
        keyframe_slots: usize,
        budget: Option<u64>,
        keyframes_that_fit: Option<u64>,
        buffers: &'a [Request],
        lower: Vec<Saving>,
    }

    pub fn run(args: &PlanArgs) -> Result<Finished, CliError> {
        let mut config = args
            .config
            .config(args.size.map(|(width, _)| width), None)?;
        config.validate()?;
        // Of the input: width and height, the width being what `network.size` says here.
        let ratio = args.size.unwrap_or((4, 3));
        if let Some((width, _)) = args.size {
            config.network.size = width;
        }
        let weights = &config.network.weights;
        let mut sizes = match args.model {
            Some(model) => model.sizes(),
            None if weights.is_empty() => Model::Mini.sizes(),
            None => {
                let network = crate::network::load_network(weights.as_ref());
                let architecture = network.map_err(InferenceError::from)?.architecture;
                Sizes {
                    channels: architecture.encoder.width,
                    descriptor: architecture.descriptor_dim,
                    patch: architecture.patch(),
                    words: Model::Vitl.sizes().words,
                }
            }
        };
        sizes.words = args.words.unwrap_or(sizes.words);
        let info = args.gpu.info();
        let make = |config: &Config| -> Result<(DevicePlan, NetworkShape), CliError> {
            let (width, height) = (
                config.network.size,
                (config.network.size * ratio.1 / ratio.0).next_multiple_of(sizes.patch),
            );
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
            let plan = lay_out(&PlanInputs {
                config,
                shape: &shape,
                info: &info,
                preprocessor: &preprocessor,
                encoding: Encoding::Rgb8,
                stride: 3 * raw_width,
                calibrated: config.use_calib,
                network_on_host: false,
                network_workspace: [0; 2],
                words: Some(sizes.words),
            })?;
            Ok((plan, shape))
        };
        let (plan, shape) = make(&config)?;
        let total = plan.memory.device_bytes();
        let of = |config: &Config| make(config).map_or(total, |(p, _)| p.memory.device_bytes());
        let slots = &plan.slots;
        // The most slots with which the plan fits; every slot takes more.
        let fit = |budget: u64| -> Result<u64, CliError> {
            let (mut fits, mut beyond) = (0, MOST_SLOTS + 1);
            while beyond - fits > 1 {
                let middle = fits + (beyond - fits) / 2;
                let mut other = config.clone();
                other.memory.keyframe_slots = middle;
                if make(&other)?.0.memory.device_bytes() <= budget {
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
            pinned_bytes: plan.memory.pinned_bytes(),
            keyframe_bytes: slots.layout.bytes,
            keyframe_slots: slots.device_slots,
            budget: args.budget,
            keyframes_that_fit: args.budget.map(fit).transpose()?,
            buffers: plan.memory.requests(),
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

    fn table(plan: &DevicePlan, report: &Report<'_>) -> String {
        let [width, height] = report.network;
        let mut text = format!(
            "{}, network input {width}x{height}\n\n{}\n\na keyframe: {}, {} slots on the device\n",
            report.gpu,
            plan.memory,
            human(report.keyframe_bytes as u64),
            report.keyframe_slots
        );
        if let (Some(budget), Some(fit)) = (report.budget, report.keyframes_that_fit) {
            let verdict = if report.device_bytes <= budget {
                "fits"
            } else {
                "does not fit"
            };
            let budget = human(budget);
            text +=
                &format!("in {budget} the plan {verdict}; beside the rest, {fit} keyframes do\n");
        }
        text += "to save device memory, lower";
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
