//! Command-line options that select the configuration.

use crate::config::{BackendChoice, DeviceChoice, Loops, Threads};
use crate::slam::Slam;
use crate::slam_builder::SlamBuilder;
use clap::Args;
use std::path::PathBuf;

/// Options that select the configuration.
#[derive(Debug, Clone, Default, Args)]
pub struct ConfigArgs {
    /// YAML file, or name of a built-in configuration: base, calib, eval_calib, eval_no_calib,
    /// eth3d, mini, mini_512, mini_512_calib.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Set one key, such as tracking.Q_conf=0.5; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Network weights, .pth or .safetensors, or a name of `mast3r-slam weights list` [default: the bundled mini model].
    #[arg(long, value_name = "FILE|NAME")]
    pub weights: Option<PathBuf>,
}

/// Options of a run that correspond to configuration keys.
#[derive(Debug, Clone, Default, Args)]
pub struct RunOptions {
    /// Codebook for place recognition [default: the one for the weights].
    #[arg(long, value_name = "FILE")]
    pub codebook: Option<PathBuf>,
    /// Camera calibration; makes the run calibrated.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["no_calib", "calibrated"])]
    pub calib: Option<PathBuf>,
    /// Use the dataset's own calibration.
    #[arg(long, conflicts_with = "no_calib")]
    pub calibrated: bool,
    /// Run uncalibrated, regardless of the configuration.
    #[arg(long)]
    pub no_calib: bool,
    /// Use the depth images of the frames, which make the map metric: those of depth.txt (TUM RGB-D, ETH3D-SLAM), of
    /// 7-Scenes, or of a topic of a bag. `depth.*` in the configuration says which measurements are used.
    #[arg(long)]
    pub depth: bool,
    /// Long side of the network's input in pixels, a multiple of 16 (DUNE-MASt3R: 14).
    #[arg(long, value_name = "PIXELS")]
    pub size: Option<usize>,
    /// Keep every N-th frame.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub stride: Option<usize>,
    /// Device for everything except the network.
    #[arg(long, value_enum)]
    pub device: Option<DeviceChoice>,
    /// Backend of the network.
    #[arg(long, value_enum)]
    pub backend: Option<BackendChoice>,
    /// Scheduling of stages.
    #[arg(long, value_enum)]
    pub threads: Option<Threads>,
    /// Whether to close loops.
    #[arg(long, value_enum)]
    pub loops: Option<Loops>,
}

impl ConfigArgs {
    /// A builder with these options.
    pub fn builder(&self) -> SlamBuilder {
        let mut builder = Slam::builder().set(self.set.iter().cloned());
        if let Some(path) = &self.config {
            builder = builder.config_file(path);
        }
        if let Some(path) = &self.weights {
            builder = builder.weights(path);
        }
        builder
    }
}

impl RunOptions {
    /// Applies these options to `builder`.
    pub fn apply(&self, mut builder: SlamBuilder) -> SlamBuilder {
        let on = self.calib.is_some() || self.calibrated;
        if on || self.no_calib {
            builder = builder.calibrated(!self.no_calib);
        }
        if let Some(path) = &self.codebook {
            builder = builder.codebook(path);
        }
        if self.depth {
            builder = builder.depth();
        }
        if let Some(size) = self.size {
            builder = builder.size(size);
        }
        if let Some(stride) = self.stride {
            builder = builder.stride(stride);
        }
        if let Some(device) = self.device {
            builder = builder.device(device);
        }
        if let Some(backend) = self.backend {
            builder = builder.backend(backend);
        }
        if let Some(threads) = self.threads {
            builder = builder.threads(threads);
        }
        match self.loops {
            Some(loops) => builder.loops(loops),
            None => builder,
        }
    }
}

/// Parses an integer of at least 1.
pub fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err("expected a whole number of 1 or more".into()),
    }
}

/// Parses a plausible number of threads.
pub fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 1..=MAX_THREADS) => Ok(n),
        _ => Err(format!("expected a whole number from 1 to {MAX_THREADS}")),
    }
}

/// More than the cores of any machine; tens of thousands would take minutes to start.
const MAX_THREADS: usize = 1024;
