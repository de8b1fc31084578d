//! `mast3r-slam engine`: engines of TensorRT, built ahead of time.

#[cfg(feature = "tensorrt")]
mod build;
#[cfg(feature = "tensorrt")]
mod inspect;
#[cfg(feature = "tensorrt")]
mod progress;
#[cfg(all(feature = "tensorrt", feature = "cuda"))]
mod verify;

#[cfg(all(feature = "tensorrt", feature = "cuda"))]
pub use progress::BuildProgress;

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
    /// Run an engine beside the CPU on images and print how far its outputs are off. Needs its GPU.
    Verify(VerifyArgs),
    /// Print what a recipe builds and how long calls are expected to take.
    Recipe(RecipeArgs),
}

/// Options of `engine verify`.
#[derive(Debug, Clone, Args)]
pub struct VerifyArgs {
    /// Two images or more: each is a pair with the next.
    #[arg(required = true, num_args = 2.., value_name = "IMAGE")]
    pub images: Vec<PathBuf>,
    /// Network weights, .pth or .safetensors [default: the bundled mini model].
    #[arg(long, value_name = "FILE")]
    pub weights: Option<PathBuf>,
    /// Of the engine: fp32, fp16, bf16, fp8 [default: the fastest there is].
    #[arg(long, value_name = "TYPE")]
    pub precision: Option<String>,
    /// Size of the engine's images.
    #[arg(long, value_name = "WxH", default_value = "512x384", value_parser = size)]
    pub size: (usize, usize),
    #[command(flatten)]
    pub store: StoreArgs,
    /// Most that half of the points may be off, as a part of their distance.
    #[arg(long, value_name = "FRACTION", default_value_t = 5e-3)]
    pub points: f64,
    /// Least cosine between half of the descriptors and the CPU's.
    #[arg(long, value_name = "COSINE", default_value_t = 0.999)]
    pub cosine: f64,
}

/// Options of `engine recipe`.
#[derive(Debug, Clone, Args)]
pub struct RecipeArgs {
    /// A recipe, such as those of engines/.
    pub recipe: PathBuf,
    /// Network weights, .pth or .safetensors [default: the bundled mini model].
    #[arg(long, value_name = "FILE")]
    pub weights: Option<PathBuf>,
}

/// Where engines are.
#[derive(Debug, Clone, Default, Args)]
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
    /// Size of the images, both sides a multiple of 16, of 14 for DUNE-MASt3R [default: 512x384].
    #[arg(long, value_name = "WxH", value_parser = size)]
    pub size: Option<(usize, usize)>,
    /// Images or pairs in a call [default: 1].
    #[arg(long, value_name = "N", value_parser = positive)]
    pub batch: Option<usize>,
    /// Engines beside encoder and decoder, with commas: mono (one image with itself), edge and two_edges (pairs both
    /// ways). Without one the decoder does its work, only longer; each takes the decoder's memory [default:
    /// mono,edge].
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    pub parts: Option<Vec<String>>,
    /// Most device memory that one kernel may take for itself, such as 512MB [default: no limit].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub workspace: Option<u64>,
    /// Take targets, precision, size, batch, parts and workspace from a recipe; what is given beside it wins.
    #[arg(long, value_name = "FILE")]
    pub recipe: Option<PathBuf>,
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
        EngineCommand::Recipe(args) => build::recipe(args),
        #[cfg(feature = "cuda")]
        EngineCommand::Verify(args) => verify::run(args),
        #[cfg(not(feature = "cuda"))]
        EngineCommand::Verify(_) => Err(CliError::Usage(
            "this program was built without CUDA, so it can build engines but not run them; build it with --features \
             tensorrt,cuda"
                .into(),
        )),
    }
}

/// `--precision`.
#[cfg(feature = "tensorrt")]
fn precision(text: Option<&str>) -> Result<Option<crate::network::onnx::Precision>, CliError> {
    let parsed = text.map(|text| {
        let parsed = text.parse();
        parsed.map_err(|error: String| CliError::Usage(format!("--precision {text}: {error}")))
    });
    parsed.transpose()
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
