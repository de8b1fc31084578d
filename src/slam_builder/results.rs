//! Output files of a run.

use crate::config::Config;
use crate::eval::{self, EvalError, Evaluation};
use crate::files::export::ExportError;
use crate::files::memory;
use crate::map::grid::OccupancyMap;
use crate::map::trajectories;
use crate::map::{CloudOptions, MapSnapshot, colmap, csv, keyframes, ply};
use crate::report::{self, ReportInput, RunSummary};
use crate::slam::{MappingCounts, ScaleEstimate};
use crate::trajectory::StampedPose;
use crate::trajectory::{self, BadRows};
use std::path::{Path, PathBuf};

/// Information about a run besides its map, for the output files.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    /// Configuration of the run.
    pub config: &'a Config,
    /// Name of the weights, for messages.
    pub weights_name: &'a str,
    /// Title of the report, such as the source's description.
    pub title: &'a str,
    /// Weights, size, device and runtime.
    pub backend: &'a str,
    /// Ground-truth trajectory in TUM format.
    pub ground_truth: Option<&'a Path>,
    /// Duration of the whole run in seconds; 0 if unknown.
    pub seconds: f64,
    /// Counters of mapping.
    pub counts: MappingCounts,
    /// The scale of the map by what sensors measured.
    pub scale: Option<ScaleEstimate>,
    /// The map's occupancy grid, if there is one, for the report.
    pub grid: Option<&'a OccupancyMap>,
    /// The map's splats for the report, as [`ReportInput::splats`].
    pub splats: &'a [u8],
}

/// The written files.
#[derive(Debug)]
pub struct Written {
    /// Files and folders in the output folder.
    pub files: Vec<PathBuf>,
    /// Comparison with the ground truth, if there is one.
    pub accuracy: Option<Result<Evaluation, EvalError>>,
}

/// Writes trajectories, table, keyframes, cloud, COLMAP model and report. If a file fails, the others are
/// still written; returns the first failure.
pub fn write(
    folder: &Path,
    snapshot: &MapSnapshot,
    facts: &Facts<'_>,
) -> Result<Written, ExportError> {
    let mut files = Vec::new();
    let mut failure: Option<ExportError> = None;
    let mut keep = |written: Result<Vec<PathBuf>, ExportError>| match written {
        Ok(written) => files.extend(written),
        Err(error) => {
            failure.get_or_insert(error);
        }
    };
    let cloud = CloudOptions {
        min_confidence: facts.config.output.c_conf,
        voxel_size: facts.config.output.voxel_size,
    };
    let at = |name: &str| folder.join(name);
    keep(trajectories::write_frames(&at("trajectory.txt"), snapshot));
    keep(trajectories::write_keyframes(
        &at("keyframes.txt"),
        snapshot,
    ));
    keep(csv::write(&at("frames.csv"), snapshot).map(|()| vec![at("frames.csv")]));
    keep(keyframes::write(folder, snapshot).map(|table| vec![table, at("keyframes")]));
    keep(ply::write(&at("cloud.ply"), snapshot, &cloud).map(|_| vec![at("cloud.ply")]));
    let sparse = CloudOptions {
        voxel_size: cloud.voxel_size.max(COLMAP_VOXEL),
        ..cloud
    };
    keep(colmap::write(&at("colmap"), snapshot, &sparse).map(|_| vec![at("colmap")]));

    let compared = facts.ground_truth.map(|truth| compare(snapshot, truth));
    let (evaluation, truth, accuracy) = match compared {
        Some(Ok((evaluation, truth))) => {
            (Some(evaluation.clone()), Some(truth), Some(Ok(evaluation)))
        }
        Some(Err(error)) => (None, None, Some(Err(error))),
        None => (None, None, None),
    };
    let run = RunSummary {
        fps: (facts.seconds > 0.0).then(|| snapshot.frames.len() as f64 / facts.seconds),
        peak_memory: memory::peak(),
        backend: facts.backend.to_owned(),
        scale: facts.scale.map(|scale| scale.to_string()),
        mapping: mapping(&facts.counts),
    };
    let page = ReportInput {
        snapshot,
        title: facts.title,
        settings: &worth_showing(facts),
        evaluation: evaluation.as_ref(),
        ground_truth: truth.as_deref(),
        cloud,
        grid: facts.grid,
        splats: facts.splats,
        run: &run,
    };
    keep(report::write(&at("report.html"), &page).map(|()| vec![at("report.html")]));
    match failure {
        Some(error) => Err(error),
        None => Ok(Written { files, accuracy }),
    }
}

/// COLMAP's text model is read by people and slow tools, so it is limited to one point per cubic centimetre.
const COLMAP_VOXEL: f32 = 0.01;

/// Compares the poses of all frames of the largest submap with the ground truth, after similarity alignment.
pub fn compare(
    snapshot: &MapSnapshot,
    truth: &Path,
) -> Result<(Evaluation, Vec<StampedPose>), EvalError> {
    let truth = trajectory::read(truth, BadRows::Skip)?;
    let estimate = trajectories::of_frames(snapshot, snapshot.largest_submap());
    let mut evaluation = eval::evaluate(&estimate, &truth.poses, &eval::Options::default())?;
    evaluation.skipped_truth_rows = truth.skipped.len();
    Ok((evaluation, truth.poses))
}

fn worth_showing(facts: &Facts<'_>) -> Vec<(String, String)> {
    let Config {
        use_calib,
        threads,
        loops,
        device,
        network,
        dataset,
        tracking,
        ..
    } = facts.config;
    let on = |value: bool| if value { "on" } else { "off" }.to_owned();
    [
        ("weights", facts.weights_name.to_owned()),
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

/// Counters of mapping as table rows.
fn mapping(counts: &MappingCounts) -> Vec<(String, String)> {
    let rows = counts.rows();
    rows.map(|(name, count)| (name.to_owned(), count.to_string()))
        .to_vec()
}
