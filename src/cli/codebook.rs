//! `mast3r-slam codebook`: the vocabulary of place recognition.

use super::output::check_folder_of;
use super::settings::{ConfigArgs, RunOptions, positive};
use super::{CliError, Finished, layers, run::start_threads, say};
use clap::{Args, Subcommand};
use std::path::PathBuf;

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
    /// Long side of the network's input in pixels, a multiple of 16.
    #[arg(long, value_name = "PIXELS")]
    pub size: Option<usize>,
    /// The file to write.
    #[arg(long, value_name = "FILE", default_value = "codebook.safetensors")]
    pub out: PathBuf,
    /// Words of the codebook.
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = positive)]
    pub clusters: usize,
    /// Threads for the network and everything else [default: all cores].
    #[arg(long, value_name = "N", value_parser = positive)]
    pub jobs: Option<usize>,
}

/// Runs the sub-command.
pub fn run(command: &CodebookCommand) -> Result<Finished, CliError> {
    let CodebookCommand::Build(args) = command;
    let settings = args.config.settings(&RunOptions {
        size: args.size,
        stride: args.stride,
        ..Default::default()
    })?;
    check_folder_of(&args.out)?;
    let jobs = start_threads(args.jobs)?;
    say(&layers::build_codebook(&settings, args, jobs)?);
    Ok(Finished::Done)
}
