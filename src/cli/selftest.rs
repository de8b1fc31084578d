//! `mast3r-slam selftest`.

use super::jobs::start_threads;
use super::progress::with_build_progress;
use super::settings::{ConfigArgs, threads};
use super::version::Build;
use super::{CliError, Finished, say};
use crate::config::{BackendChoice, DeviceChoice};
use crate::selftest::{self, Golden, Report};
use crate::slam_builder::SlamBuilder;
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;

/// Load weights and engine as a run would, compare the network's outputs with recorded figures and track a bundled
/// sequence.
///
/// Exit code 0 if everything is within the limits of the precision, 1 if not. Run it after a new engine, driver or
/// weights file, before a robot moves.
#[derive(Debug, Clone, Args)]
pub struct SelfTestArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Long side of the network's input in pixels, a multiple of 16 (DUNE-MASt3R: 14).
    #[arg(long, value_name = "PIXELS")]
    pub size: Option<usize>,
    /// Device for everything except the network.
    #[arg(long, value_enum)]
    pub device: Option<DeviceChoice>,
    /// Backend of the network.
    #[arg(long, value_enum)]
    pub backend: Option<BackendChoice>,
    /// Fail if no figures are recorded for these weights at this size.
    #[arg(long)]
    pub golden: bool,
    /// Compare with the figures in this file instead of those that come with the program.
    #[arg(long, value_name = "FILE")]
    pub figures: Option<PathBuf>,
    /// Record figures in this file, of these weights at this size, on the CPU.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["golden", "figures", "device", "backend", "json"])]
    pub record: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Threads for the network and everything else [default: all cores].
    #[arg(long, value_name = "N", value_parser = threads)]
    pub jobs: Option<usize>,
}

/// The JSON form.
#[derive(Debug, Serialize)]
struct Json<'a> {
    program: Build,
    passed: bool,
    #[serde(flatten)]
    report: &'a Report,
}

/// Runs the sub-command.
pub fn run(args: &SelfTestArgs) -> Result<Finished, CliError> {
    let jobs = start_threads(args.jobs)?;
    let mut builder = args.config.builder().jobs(jobs);
    if let Some(size) = args.size {
        builder = builder.size(size);
    }
    if let Some(path) = &args.record {
        let builder = builder
            .device(DeviceChoice::Cpu)
            .backend(BackendChoice::Cpu);
        selftest::record(builder, path)?;
        say(&format!("recorded: {}", path.display()));
        return Ok(Finished::Done);
    }
    let golden = match (&args.figures, args.golden) {
        (Some(path), _) => Golden::File(path.clone()),
        (None, true) => Golden::Required,
        (None, false) => Golden::IfKnown,
    };
    let report = selftest::run(with_build_progress(chosen(builder, args)), &golden)?;
    say(&match args.json {
        true => {
            let json = Json {
                program: Build::here(),
                passed: report.passed(),
                report: &report,
            };
            // Strings and numbers always have a JSON form.
            serde_json::to_string_pretty(&json).unwrap_or_default()
        }
        false => report.to_string(),
    });
    match report.passed() {
        true => Ok(Finished::Done),
        false => Err(selftest::SelfTestError::Failed(report.failures()).into()),
    }
}

fn chosen(mut builder: SlamBuilder, args: &SelfTestArgs) -> SlamBuilder {
    if let Some(device) = args.device {
        builder = builder.device(device);
    }
    if let Some(backend) = args.backend {
        builder = builder.backend(backend);
    }
    builder
}
