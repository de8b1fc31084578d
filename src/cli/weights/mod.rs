//! `mast3r-slam weights`: lists known weights and fetches them.

mod get;
mod list;

use super::{CliError, Finished};
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// List known network weights and fetch them; `--weights NAME` then finds them.
#[derive(Debug, Clone, Subcommand)]
pub enum WeightsCommand {
    /// List known weights: licence, files, sizes, SHA-256, addresses, and whether they are here.
    List(ListArgs),
    /// Fetch weights after showing their licence; an interrupted download is continued.
    Get(GetArgs),
}

/// Options of `weights list`.
#[derive(Debug, Clone, Args)]
pub struct ListArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Options of `weights get`.
#[derive(Debug, Clone, Args)]
pub struct GetArgs {
    /// Name of the weights, as `weights list` shows it.
    pub name: String,
    /// Agree to the licence that is shown [default: ask on the terminal].
    #[arg(long)]
    pub accept_licence: bool,
    /// Folder on another server that has the files, such as a mirror of your own.
    #[arg(long, value_name = "URL")]
    pub from: Option<String>,
    /// SHA-256 that the weights must have, where the program knows none.
    #[arg(long, value_name = "HEX", value_parser = sha256)]
    pub sha256: Option<String>,
    /// Folder of fetched weights [default: MAST3R_SLAM_WEIGHTS, or mast3r_slam/weights in the user's cache folder].
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// No progress bar (a pipe never shows one).
    #[arg(long)]
    pub no_progress: bool,
}

/// Runs the sub-command.
pub fn run(command: &WeightsCommand) -> Result<Finished, CliError> {
    match command {
        WeightsCommand::List(args) => list::run(args),
        WeightsCommand::Get(args) => get::run(args),
    }
}

fn sha256(text: &str) -> Result<String, String> {
    match text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit()) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err("expected 64 hexadecimal digits".into()),
    }
}

/// A size for people.
fn size(bytes: Option<u64>) -> String {
    match bytes {
        None => "size unknown".into(),
        Some(bytes) => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}
