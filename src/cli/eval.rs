//! `mast3r-slam eval`: compares a trajectory with the ground truth.

use super::settings::positive;
use super::{CliError, Finished, say};
use crate::eval::{self, Alignment, Delta, Options};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Compare a trajectory with the ground truth: ATE and RPE.
#[derive(Debug, Clone, Args)]
pub struct EvalArgs {
    /// Estimated trajectory, in TUM format.
    pub estimate: PathBuf,
    /// Ground truth, in TUM format.
    pub ground_truth: PathBuf,
    /// Alignment applied to the estimate before the comparison.
    #[arg(long, value_enum, default_value_t = AlignArg::Sim3)]
    pub align: AlignArg,
    /// Maximum difference between associated stamps, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.01, value_parser = seconds)]
    pub tolerance: f64,
    /// Number of poses between the two ends of a relative error.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = positive)]
    pub delta: usize,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `--align`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AlignArg {
    /// Rotation, translation and scale.
    Sim3,
    /// Rotation and translation.
    Se3,
    /// No alignment.
    None,
}

/// Runs the sub-command.
pub fn run(args: &EvalArgs) -> Result<Finished, CliError> {
    super::readable("the estimate", &args.estimate)?;
    super::readable("the ground truth", &args.ground_truth)?;
    let options = Options {
        alignment: match args.align {
            AlignArg::Sim3 => Alignment::Sim3,
            AlignArg::Se3 => Alignment::Se3,
            AlignArg::None => Alignment::None,
        },
        tolerance: args.tolerance,
        delta: Delta::Frames(args.delta),
        ..Options::default()
    };
    let evaluation = eval::evaluate_files(&args.estimate, &args.ground_truth, &options)?;
    match args.json {
        true => say(&format!("{:#}", evaluation.to_json())),
        false => say(&evaluation.to_string()),
    }
    match CliError::flawed_truth(&args.ground_truth, &evaluation) {
        None => Ok(Finished::Done),
        Some(flaw) => Err(flaw),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if s.is_finite() && s >= 0.0 => Ok(s),
        _ => Err("expected seconds, 0 or more".into()),
    }
}
