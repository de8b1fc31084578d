//! `mast3r-slam codebook`: builds the vocabulary of place recognition.

use super::frames::{self, FrameRange};
use super::output::check_folder_of;
use super::progress::Progress;
use super::settings::{ConfigArgs, RunOptions, positive, threads};
use super::{CliError, Finished, jobs::start_threads, say};
use crate::compute::retrieval::{BuildOptions, RetrievalError, RetrievalModel};
use crate::files::export::ExportError;
use crate::image::{PreprocessOptions, Preprocessor, RgbImage};
use crate::inference::{Backend, InferenceError};
use crate::network;
use crate::slam_builder::{Settings, Wanted, load_backend};
use clap::{Args, Subcommand};
use std::path::PathBuf;
#[cfg(all(feature = "tensorrt", feature = "cuda"))]
use std::sync::Arc;

/// Codebooks for place recognition.
#[derive(Debug, Clone, Subcommand)]
pub enum CodebookCommand {
    /// Build a codebook for a network from images of many places.
    Build(BuildArgs),
}

/// Options of `codebook build`.
#[derive(Debug, Clone, Args)]
pub struct BuildArgs {
    /// Datasets, folders of images, videos.
    #[arg(required = true, value_name = "PATH")]
    pub images: Vec<PathBuf>,
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Use every N-th frame.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub stride: Option<usize>,
    /// Long side of the network's input in pixels, a multiple of 16 (DUNE-MASt3R: 14).
    #[arg(long, value_name = "PIXELS")]
    pub size: Option<usize>,
    /// The file to write.
    #[arg(long, value_name = "FILE", default_value = "codebook.safetensors")]
    pub out: PathBuf,
    /// Words of the codebook.
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = positive)]
    pub clusters: usize,
    /// Threads for the network and everything else [default: all cores].
    #[arg(long, value_name = "N", value_parser = threads)]
    pub jobs: Option<usize>,
}

/// Runs the sub-command.
pub fn run(command: &CodebookCommand) -> Result<Finished, CliError> {
    let CodebookCommand::Build(args) = command;
    let options = RunOptions {
        size: args.size,
        stride: args.stride,
        ..Default::default()
    };
    let settings = options.apply(args.config.builder()).settings()?;
    check_folder_of(&args.out)?;
    let jobs = start_threads(args.jobs)?;
    say(&build(&settings, args, jobs)?);
    Ok(Finished::Done)
}

/// Encodes all images and learns the words; returns the text to print.
fn build(settings: &Settings, args: &BuildArgs, jobs: usize) -> Result<String, CliError> {
    let range = FrameRange {
        start: 0,
        end: None,
        stride: settings.config.dataset.subsample,
        depth: None,
    };
    let mut features: Vec<Vec<f32>> = Vec::new();
    // Folders with images of one shape share a loaded network.
    let mut loaded: Option<Box<dyn Backend>> = None;
    let options = PreprocessOptions {
        patch: network::patch_size(&settings.weights).map_err(InferenceError::from)?,
        ..PreprocessOptions::default()
    };
    for path in &args.images {
        super::readable("the images", path)?;
        let mut source = frames::open(path, &range, None)?;
        let calibration = source.calibration().copied();
        let calibration = calibration.filter(|_| source.always_undistort());
        let progress = Progress::new(source.remaining(), true);
        let mut preprocessor: Option<Preprocessor> = None;
        while let Some(frame) = source.next_frame()? {
            let (w, h) = (frame.image.width, frame.image.height);
            let preprocessor = match &mut preprocessor {
                Some(ready) => ready,
                none => none.insert(Preprocessor::new(
                    w,
                    h,
                    settings.config.network.size,
                    calibration.as_ref(),
                    options,
                )?),
            };
            let (width, height) = preprocessor.output_size();
            let backend = match loaded.take() {
                Some(b) if (b.shape().width, b.shape().height) == (width, height) => {
                    loaded.insert(b)
                }
                _ => {
                    let wanted = Wanted {
                        config: &settings.config,
                        weights: &settings.weights,
                        size: (width, height),
                        jobs,
                        #[cfg(all(feature = "tensorrt", feature = "cuda"))]
                        observer: Some(Arc::new(super::engines::BuildProgress::new(true))),
                    };
                    let mut notes = Vec::new();
                    let network = load_backend(&wanted, &mut notes)?;
                    super::tell(&notes);
                    loaded.insert(network)
                }
            };
            let mut image = RgbImage::new(width, height);
            preprocessor.run(&frame.image, &mut image)?;
            let shape = backend.shape();
            let mut tokens = vec![0.0; shape.tokens * shape.feature_dim];
            backend.encode(&image, &mut tokens)?;
            features.push(tokens);
            progress.image();
        }
        progress.finish();
    }
    let Some(backend) = loaded else {
        return Err(CliError::NoFrames {
            what: "the images".into(),
        });
    };
    let options = BuildOptions {
        clusters: args.clusters,
        weights_hash: network::hash(&settings.weights).map_err(InferenceError::from)?,
        ..BuildOptions::default()
    };
    let model = RetrievalModel::build(&features, backend.shape().feature_dim, &options)?;
    model.save(&args.out).map_err(|error| match error {
        RetrievalError::Write { path, source } => ExportError::io("write", &path, source).into(),
        other => CliError::from(other),
    })?;
    Ok(format!(
        "{}: {} words of {} values from {} images",
        args.out.display(),
        model.words(),
        model.dim(),
        features.len()
    ))
}
