//! Writing what a run computed.

use super::CliError;
use super::settings::Settings;
use crate::config::Config;
use crate::eval::{self, Evaluation};
use crate::map::report::{self, ReportInput, RunSummary};
use crate::map::trajectory::{self, BadRows};
use crate::map::{
    CloudOptions, ExportError, MapSnapshot, StampedPose, colmap, csv, keyframes, ply,
};
use std::path::{Path, PathBuf};

/// What a report says about a run besides its map.
#[derive(Debug, Clone)]
pub struct RunInfo<'a> {
    /// The source.
    pub title: String,
    /// What runs the network.
    pub backend: String,
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
    /// [`CliError::FlawedTruth`] where that comparison had to leave rows out.
    pub flawed_truth: Option<CliError>,
}

/// Writes trajectories, table, keyframes, cloud, COLMAP model and report. A file that fails does not
/// keep the others from being written; the first failure is the error.
pub fn write(
    folder: &Path,
    snapshot: &MapSnapshot,
    settings: &Settings,
    info: &RunInfo<'_>,
) -> Result<Results, CliError> {
    let mut files = Vec::new();
    let mut failure: Option<ExportError> = None;
    let mut keep = |written: Result<Vec<PathBuf>, ExportError>| match written {
        Ok(written) => files.extend(written),
        Err(error) => {
            failure.get_or_insert(error);
        }
    };
    let cloud = CloudOptions {
        min_confidence: settings.config.output.c_conf,
        voxel_size: settings.config.output.voxel_size,
    };
    let at = |name: &str| folder.join(name);
    keep(trajectory::write_frames(&at("trajectory.txt"), snapshot));
    keep(trajectory::write_keyframes(&at("keyframes.txt"), snapshot));
    keep(csv::write(&at("frames.csv"), snapshot).map(|()| vec![at("frames.csv")]));
    keep(keyframes::write(folder, snapshot).map(|table| vec![table, at("keyframes")]));
    keep(ply::write(&at("cloud.ply"), snapshot, &cloud).map(|_| vec![at("cloud.ply")]));
    let sparse = CloudOptions {
        voxel_size: cloud.voxel_size.max(COLMAP_VOXEL),
        ..cloud
    };
    keep(colmap::write(&at("colmap"), snapshot, &sparse).map(|_| vec![at("colmap")]));

    let compared = info.ground_truth.map(|truth| compare(snapshot, truth));
    let (evaluation, truth, accuracy) = match compared {
        Some(Ok((evaluation, truth))) => {
            let text = evaluation.to_string();
            (Some(evaluation), Some(truth), Some(Ok(text)))
        }
        Some(Err(error)) => (None, None, Some(Err(error))),
        None => (None, None, None),
    };
    let flawed_truth = evaluation.as_ref().zip(info.ground_truth);
    let flawed_truth = flawed_truth.and_then(|(e, path)| CliError::flawed_truth(path, e));
    let run = RunSummary {
        fps: (info.seconds > 0.0).then(|| snapshot.frames.len() as f64 / info.seconds),
        peak_memory: peak_memory(),
        backend: info.backend.clone(),
    };
    let page = ReportInput {
        snapshot,
        title: &info.title,
        settings: &worth_showing(settings),
        evaluation: evaluation.as_ref(),
        ground_truth: truth.as_deref(),
        cloud,
        run: &run,
    };
    keep(report::write(&at("report.html"), &page).map(|()| vec![at("report.html")]));
    match failure {
        Some(error) => Err(error.into()),
        None => Ok(Results {
            files,
            accuracy,
            flawed_truth,
        }),
    }
}

/// COLMAP's text model is read by people and slow tools: it gets at most a point every centimetre.
const COLMAP_VOXEL: f32 = 0.01;

/// The every-frame trajectory of the largest submap against the truth, after a similarity.
fn compare(
    snapshot: &MapSnapshot,
    truth: &Path,
) -> Result<(Evaluation, Vec<StampedPose>), CliError> {
    let truth = trajectory::read(truth, BadRows::Skip).map_err(eval::EvalError::from)?;
    let estimate = trajectory::of_frames(snapshot, snapshot.largest_submap());
    let mut evaluation = eval::evaluate(&estimate, &truth.poses, &eval::Options::default())?;
    evaluation.skipped_truth_rows = truth.skipped.len();
    Ok((evaluation, truth.poses))
}

fn worth_showing(settings: &Settings) -> Vec<(String, String)> {
    let Config {
        use_calib,
        threads,
        loops,
        device,
        network,
        dataset,
        tracking,
        ..
    } = &settings.config;
    let on = |value: bool| if value { "on" } else { "off" }.to_owned();
    [
        ("weights", settings.weights_name()),
        ("network size", network.size.to_string()),
        ("calibration", on(*use_calib)),
        ("loop closures", format!("{loops:?}").to_lowercase()),
        ("device", format!("{device:?}").to_lowercase()),
        ("threads", format!("{threads:?}").to_lowercase()),
        ("every n-th frame", dataset.subsample.to_string()),
        ("Q_conf", tracking.q_conf.to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec()
}

/// Most memory that this process held, in bytes, where the system tells.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kilobytes * 1024)
}
