//! The effective configuration of a run: files, options, overrides.

use super::{CliError, assets};
use crate::config::{self, BackendChoice, Base, Config, DeviceChoice, Loops, Threads};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// The configuration for the bundled model.
const MINI: &str = "mini.yaml";

/// The same for sizes above [`MINI_SIZE`].
const MINI_LARGE: &str = "mini_512.yaml";

/// [`MINI_LARGE`] for a calibrated camera.
const MINI_LARGE_CALIBRATED: &str = "mini_512_calib.yaml";

/// The largest long side that [`MINI`] is for, between the sizes that both were chosen at.
const MINI_SIZE: usize = 384;

/// Options that choose the configuration.
#[derive(Debug, Clone, Default, Args)]
pub struct ConfigArgs {
    /// YAML file, or the name of a built-in one: base, calib, eval_calib, eval_no_calib, eth3d, mini,
    /// mini_512, mini_512_calib.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Set one key, such as tracking.Q_conf=0.5; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Network weights, .pth or .safetensors [default: the bundled mini model].
    #[arg(long, value_name = "FILE")]
    pub weights: Option<PathBuf>,
}

/// Options of a run that stand for keys of the configuration.
#[derive(Debug, Clone, Default, Args)]
pub struct RunOptions {
    /// Codebook for place recognition [default: the one that belongs to the weights].
    #[arg(long, value_name = "FILE")]
    pub codebook: Option<PathBuf>,
    /// The camera's calibration; the run then is calibrated.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["no_calib", "calibrated"])]
    pub calib: Option<PathBuf>,
    /// Use the calibration that the dataset comes with.
    #[arg(long, conflicts_with = "no_calib")]
    pub calibrated: bool,
    /// Run without calibration, whatever the configuration says.
    #[arg(long)]
    pub no_calib: bool,
    /// Long side of the network's input in pixels, a multiple of 16 (DUNE-MASt3R: 14).
    #[arg(long, value_name = "PIXELS")]
    pub size: Option<usize>,
    /// Keep every N-th frame.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub stride: Option<usize>,
    /// What everything but the network runs on.
    #[arg(long, value_enum)]
    pub device: Option<DeviceArg>,
    /// What the network runs on.
    #[arg(long, value_enum)]
    pub backend: Option<BackendArg>,
    /// How stages are scheduled.
    #[arg(long, value_enum)]
    pub threads: Option<ThreadsArg>,
    /// Whether places seen before are looked for.
    #[arg(long, value_enum)]
    pub loops: Option<LoopsArg>,
}

/// `--device`.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum DeviceArg {
    /// A GPU if there is one that can be used, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU, or an error.
    Cuda,
}

/// `--backend`.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum BackendArg {
    /// The quickest that works.
    Auto,
    /// The CPU.
    Cpu,
    /// ONNX Runtime, or an error.
    Onnxruntime,
    /// TensorRT, or an error.
    Tensorrt,
}

/// `--threads`.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum ThreadsArg {
    /// Mapping is done before the next frame, bit-for-bit repeatable (each stage still uses --jobs).
    Single,
    /// Mapping in its own thread.
    Pipelined,
}

/// `--loops`.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum LoopsArg {
    /// Loop closures are found and used.
    On,
    /// Only consecutive keyframes are connected.
    Off,
}

/// What a command needs to start.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The effective configuration, validated.
    pub config: Config,
    /// The weights file.
    pub weights: PathBuf,
    /// Whether that is the bundled model.
    pub bundled: bool,
}

impl ConfigArgs {
    /// Reads the configuration. Without `--config` the bundled model brings its own, which depends on
    /// the network's size and on whether the camera is calibrated: `size` and `calibrated`, or else what
    /// the configuration says.
    pub fn config(
        &self,
        size: Option<usize>,
        calibrated: Option<bool>,
    ) -> Result<Config, CliError> {
        let own_weights = self.weights.is_some()
            || (self.set.iter()).any(|s| s.trim_start().starts_with("network.weights="));
        let base = match &self.config {
            Some(path) => Base::Named(path),
            None if own_weights => Base::Defaults,
            None => Base::Builtin(MINI),
        };
        let bundled = matches!(base, Base::Builtin(_));
        let mut config = config::load_with(base, &self.set)?;
        if bundled && size.unwrap_or(config.network.size) > MINI_SIZE {
            let large = match calibrated.unwrap_or(config.use_calib) {
                true => MINI_LARGE_CALIBRATED,
                false => MINI_LARGE,
            };
            config = config::load_with(Base::Builtin(large), &self.set)?;
        }
        if let Some(path) = &self.weights {
            config.network.weights = path.to_string_lossy().into_owned();
        }
        Ok(config)
    }

    /// Configuration and weights, with the options of a run applied.
    pub fn settings(&self, options: &RunOptions) -> Result<Settings, CliError> {
        let mut config = self.config(options.size, options.is_calibrated())?;
        options.apply(&mut config);
        config.validate()?;
        let own = self.weights.clone().or_else(|| {
            let named = &config.network.weights;
            (!named.is_empty()).then(|| named.into())
        });
        let bundled = own.is_none();
        let weights = match own {
            Some(path) => {
                super::readable("the weights", &path)?;
                path
            }
            None => assets::find(assets::MINI_WEIGHTS)?,
        };
        if !config.retrieval.codebook.is_empty() {
            super::readable("the codebook", config.retrieval.codebook.as_ref())?;
        }
        Ok(Settings {
            config,
            weights,
            bundled,
        })
    }
}

impl Settings {
    /// The weights for messages.
    pub fn weights_name(&self) -> String {
        match self.bundled {
            true => "bundled mini model".into(),
            false => self.weights.display().to_string(),
        }
    }
}

impl RunOptions {
    /// Whether the run is calibrated, if an option says so.
    fn is_calibrated(&self) -> Option<bool> {
        let on = self.calib.is_some() || self.calibrated;
        (on || self.no_calib).then_some(!self.no_calib)
    }

    fn apply(&self, config: &mut Config) {
        if let Some(calibrated) = self.is_calibrated() {
            config.use_calib = calibrated;
        }
        if let Some(path) = &self.codebook {
            config.retrieval.codebook = path.to_string_lossy().into_owned();
        }
        if let Some(size) = self.size {
            config.network.size = size;
        }
        if let Some(stride) = self.stride {
            config.dataset.subsample = stride;
        }
        if let Some(device) = self.device {
            config.device = match device {
                DeviceArg::Auto => DeviceChoice::Auto,
                DeviceArg::Cpu => DeviceChoice::Cpu,
                DeviceArg::Cuda => DeviceChoice::Cuda,
            };
        }
        if let Some(backend) = self.backend {
            config.network.backend = match backend {
                BackendArg::Auto => BackendChoice::Auto,
                BackendArg::Cpu => BackendChoice::Cpu,
                BackendArg::Onnxruntime => BackendChoice::Onnxruntime,
                BackendArg::Tensorrt => BackendChoice::Tensorrt,
            };
        }
        if let Some(threads) = self.threads {
            config.threads = match threads {
                ThreadsArg::Single => Threads::Single,
                ThreadsArg::Pipelined => Threads::Pipelined,
            };
        }
        if let Some(loops) = self.loops {
            config.loops = match loops {
                LoopsArg::On => Loops::On,
                LoopsArg::Off => Loops::Off,
            };
        }
    }
}

/// A whole number of 1 or more.
pub fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err("expected a whole number of 1 or more".into()),
    }
}

/// A number of threads that a machine can bear.
pub fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 1..=MOST_THREADS) => Ok(n),
        _ => Err(format!("expected a whole number from 1 to {MOST_THREADS}")),
    }
}

/// More than any machine's cores; ten thousands would take minutes to start.
const MOST_THREADS: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bundled_model_brings_its_configuration() {
        let mini = ConfigArgs::default().config(None, None).expect("mini");
        assert_eq!(mini.network.size, 256);

        // At a larger size it brings others, however that size was asked for.
        let large = ConfigArgs::default().config(Some(512), None).expect("mini");
        assert_ne!(
            large.tracking.match_frac_thresh,
            mini.tracking.match_frac_thresh
        );
        let set = ConfigArgs {
            set: vec!["network.size=512".into()],
            ..Default::default()
        };
        assert_eq!(set.config(None, None).expect("mini"), large);
        let calibrated = ConfigArgs::default().config(Some(512), Some(true));
        let set = ConfigArgs {
            set: vec!["network.size=512".into(), "use_calib=true".into()],
            ..Default::default()
        };
        let set = set.config(None, None).expect("mini");
        assert_eq!(set.tracking, calibrated.expect("mini").tracking);
        assert_ne!(set.tracking, large.tracking);

        let own = ConfigArgs {
            weights: Some("big.pth".into()),
            ..Default::default()
        };
        let own = own.config(None, None).expect("base");
        assert_eq!(
            (own.network.size, own.network.weights.as_str()),
            (512, "big.pth")
        );

        let set = ConfigArgs {
            set: vec!["network.weights=big.pth".into()],
            ..Default::default()
        };
        assert_eq!(set.config(None, None).expect("base").network.size, 512);

        let named = ConfigArgs {
            config: Some("calib".into()),
            ..Default::default()
        };
        let named = named.config(None, None).expect("calib");
        assert!(named.use_calib && named.network.size == 512);
    }

    #[test]
    fn options_win_over_the_configuration() {
        let mut config = Config::default();
        let options = RunOptions {
            calibrated: true,
            size: Some(320),
            stride: Some(4),
            device: Some(DeviceArg::Cpu),
            backend: Some(BackendArg::Onnxruntime),
            threads: Some(ThreadsArg::Single),
            loops: Some(LoopsArg::Off),
            codebook: Some("c.bin".into()),
            ..Default::default()
        };
        options.apply(&mut config);
        assert!(config.use_calib);
        assert_eq!(config.network.size, 320);
        assert_eq!(config.dataset.subsample, 4);
        assert_eq!(config.device, DeviceChoice::Cpu);
        assert_eq!(config.network.backend, BackendChoice::Onnxruntime);
        assert_eq!(config.threads, Threads::Single);
        assert_eq!(config.loops, Loops::Off);
        assert_eq!(config.retrieval.codebook, "c.bin");
        let off = RunOptions {
            no_calib: true,
            ..Default::default()
        };
        off.apply(&mut config);
        assert!(!config.use_calib);
    }
}
