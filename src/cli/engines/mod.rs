//! `mast3r-slam engine`: engines of TensorRT, built ahead of time.

#[cfg(feature = "tensorrt")]
mod build;
#[cfg(feature = "tensorrt")]
mod inspect;
#[cfg(feature = "tensorrt")]
mod progress;

use super::settings::positive;
use super::sizes::{bytes, size};
use super::{CliError, Finished};
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Build and look at engines of TensorRT.
#[derive(Debug, Clone, Subcommand)]
pub enum EngineCommand {
    /// Build the engines of a network. Unless they are there already.
    Build(BuildArgs),
    /// Print what engines there are, and for what.
    List(StoreArgs),
    /// Check an engine's files and print what it is made of.
    Inspect(InspectArgs),
}

/// Where engines are.
#[derive(Debug, Clone, Args)]
pub struct StoreArgs {
    /// Folder of the engines [default: where runs look for them, network.engines].
    #[arg(long = "out", visible_alias = "engines", value_name = "DIR")]
    pub folder: Option<PathBuf>,
}

/// Options of `engine build`.
#[derive(Debug, Clone, Args)]
pub struct BuildArgs {
    /// Network weights, .pth or .safetensors [default: the bundled mini model].
    #[arg(long, value_name = "FILE")]
    pub weights: Option<PathBuf>,
    /// GPUs that the engine is to run on, such as sm_120; several with commas [default: this machine's].
    #[arg(long, value_name = "SM", value_delimiter = ',')]
    pub target: Vec<String>,
    /// What large products are computed in: fp32, fp16, bf16, fp8 [default: fp16].
    #[arg(long, value_name = "TYPE")]
    pub precision: Option<String>,
    /// Size of the images, both sides a multiple of 16 [default: 512x384].
    #[arg(long, value_name = "WxH", value_parser = size)]
    pub size: Option<(usize, usize)>,
    /// Images or pairs in a call [default: 1].
    #[arg(long, value_name = "N", value_parser = positive)]
    pub batch: Option<usize>,
    /// Most device memory that one kernel may take for itself, such as 512MB [default: no limit].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub workspace: Option<u64>,
    #[command(flatten)]
    pub store: StoreArgs,
    /// Build even if the engines are there.
    #[arg(long)]
    pub force: bool,
    /// No progress bar (there is none in a pipe either).
    #[arg(long)]
    pub no_progress: bool,
}

/// Options of `engine inspect`.
#[derive(Debug, Clone, Args)]
pub struct InspectArgs {
    /// The engine's folder, or its name in the folder of engines.
    pub engine: PathBuf,
    #[command(flatten)]
    pub store: StoreArgs,
    /// Print every kernel.
    #[arg(long)]
    pub layers: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Runs the sub-command.
#[cfg(feature = "tensorrt")]
pub fn run(command: &EngineCommand) -> Result<Finished, CliError> {
    match command {
        EngineCommand::Build(args) => build::run(args),
        EngineCommand::List(args) => inspect::list(args),
        EngineCommand::Inspect(args) => inspect::run(args),
    }
}

/// Says what is missing.
#[cfg(not(feature = "tensorrt"))]
pub fn run(_: &EngineCommand) -> Result<Finished, CliError> {
    Err(CliError::Usage(
        "this program was built without TensorRT; build it with --features tensorrt (GeForce and RTX) or \
         tensorrt-enterprise (Jetson, data centre); both need libclang, neither a GPU nor TensorRT itself"
            .into(),
    ))
}

#[cfg(feature = "tensorrt")]
impl StoreArgs {
    /// The folder of engines.
    fn store(&self) -> crate::inference::tensorrt::Store {
        use crate::inference::tensorrt::Store;
        match &self.folder {
            Some(folder) => Store::new(folder),
            None => Store::new(Store::default_folder()),
        }
    }
}
