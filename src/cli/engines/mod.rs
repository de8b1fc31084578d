//! `mast3r-slam engine`: builds TensorRT engines ahead of time.

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

/// Build and inspect TensorRT engines.
#[derive(Debug, Clone, Subcommand)]
pub enum EngineCommand {
    /// Build the engines of a network, unless they exist already.
    Build(BuildArgs),
    /// List engines and their targets.
    List(StoreArgs),
    /// Check an engine's files and print its contents.
    Inspect(InspectArgs),
    /// Compare an engine's outputs on images with those of the CPU. Requires the engine's GPU.
    Verify(VerifyArgs),
    /// Print what a recipe builds and the predicted duration of calls.
    Recipe(RecipeArgs),
}

/// Options of `engine verify`.
#[derive(Debug, Clone, Args)]
pub struct VerifyArgs {
    /// Two or more images; each forms a pair with the next.
    #[arg(required = true, num_args = 2.., value_name = "IMAGE")]
    pub images: Vec<PathBuf>,
    /// Network weights, .pth or .safetensors [default: the bundled mini model].
    #[arg(long, value_name = "FILE")]
    pub weights: Option<PathBuf>,
    /// Precision of the engine: fp32, fp16, bf16 or fp8 [default: the fastest available].
    #[arg(long, value_name = "TYPE")]
    pub precision: Option<String>,
    /// Input size of the engine.
    #[arg(long, value_name = "WxH", default_value = "512x384", value_parser = size)]
    pub size: (usize, usize),
    #[command(flatten)]
    pub store: StoreArgs,
    /// Maximum median error of the points, relative to their distance.
    #[arg(long, value_name = "FRACTION", default_value_t = 5e-3)]
    pub points: f64,
    /// Minimum median cosine between descriptors and those of the CPU.
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

/// Location of engines.
#[derive(Debug, Clone, Default, Args)]
pub struct StoreArgs {
    /// Folder of the engines [default: network.engines].
    #[arg(long = "out", visible_alias = "engines", value_name = "DIR")]
    pub folder: Option<PathBuf>,
}

/// Options of `engine build`.
#[derive(Debug, Clone, Args)]
pub struct BuildArgs {
    /// Network weights, .pth or .safetensors [default: the bundled mini model].
    #[arg(long, value_name = "FILE")]
    pub weights: Option<PathBuf>,
    /// Target GPUs, such as sm_120; several separated by commas [default: this machine's].
    #[arg(long, value_name = "SM", value_delimiter = ',')]
    pub target: Vec<String>,
    /// Precision of matrix products: fp32, fp16, bf16, fp8 [default: fp16].
    #[arg(long, value_name = "TYPE")]
    pub precision: Option<String>,
    /// Image size, both sides a multiple of 16 (DUNE-MASt3R: 14) [default: 512x384].
    #[arg(long, value_name = "WxH", value_parser = size)]
    pub size: Option<(usize, usize)>,
    /// Images or pairs per call [default: 1].
    #[arg(long, value_name = "N", value_parser = positive)]
    pub batch: Option<usize>,
    /// Engines in addition to encoder and decoder, separated by commas: mono (one image with
    /// itself), edge and two_edges (pairs in both directions). Without them the decoder is used,
    /// which is slower; each needs as much memory as the decoder [default: mono,edge].
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    pub parts: Option<Vec<String>>,
    /// Maximum device memory per kernel, such as 512MB [default: no limit].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub workspace: Option<u64>,
    /// Take targets, precision, size, batch, parts and workspace from a recipe; explicit options
    /// take precedence.
    #[arg(long, value_name = "FILE")]
    pub recipe: Option<PathBuf>,
    #[command(flatten)]
    pub store: StoreArgs,
    /// Rebuild existing engines.
    #[arg(long)]
    pub force: bool,
    /// No progress bar (a pipe never shows one).
    #[arg(long)]
    pub no_progress: bool,
}

/// Options of `engine inspect`.
#[derive(Debug, Clone, Args)]
pub struct InspectArgs {
    /// The engine's folder, or its name in the engines folder.
    pub engine: PathBuf,
    #[command(flatten)]
    pub store: StoreArgs,
    /// Print all kernels.
    #[arg(long)]
    pub layers: bool,
    /// Print kernels by kind, with their operations and bytes.
    #[arg(long)]
    pub kinds: bool,
    /// Predict what each kind takes on the GPU of a recipe, such as those of engines/.
    #[arg(long, value_name = "FILE", requires = "kinds")]
    pub recipe: Option<PathBuf>,
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

/// Parses `--precision`.
#[cfg(feature = "tensorrt")]
fn precision(text: Option<&str>) -> Result<Option<crate::network::onnx::Precision>, CliError> {
    let parsed = text.map(|text| {
        let parsed = text.parse();
        parsed.map_err(|error: String| CliError::Usage(format!("--precision {text}: {error}")))
    });
    parsed.transpose()
}

/// Reports the missing feature.
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
