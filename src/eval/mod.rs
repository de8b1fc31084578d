//! Trajectory evaluation: association, ATE and RPE with the definitions of `evo`.
//!
//! ```no_run
//! use mast3r_slam::eval::{self, Options};
//! let e = eval::evaluate_files("run/trajectory.txt".as_ref(), "groundtruth.txt".as_ref(), &Options::default())?;
//! println!("{e}");
//! # Ok::<(), eval::EvalError>(())
//! ```

mod align;
mod associate;
mod show;

pub use crate::trajectory::{StampedPose, TrajectoryError};
pub use align::align;

use crate::geometry::Sim3;
use crate::time::Stamp;
use crate::trajectory::{self, BadRows};
use nalgebra::Vector3;
use std::path::{Path, PathBuf};

/// The transform that may be applied to the estimate before comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Alignment {
    /// No transform: both trajectories are in the same frame.
    None,
    Se3,
    #[default]
    Sim3,
}

impl Alignment {
    /// `none`, `se3` or `sim3`.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Se3 => "se3",
            Self::Sim3 => "sim3",
        }
    }
}

impl std::str::FromStr for Alignment {
    type Err = String;

    /// Inverse of [`Alignment::name`].
    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::None, Self::Se3, Self::Sim3];
        let found = all.into_iter().find(|a| a.name() == text);
        found.ok_or_else(|| format!("expected sim3, se3 or none, found {text:?}"))
    }
}

/// Spacing of the two poses of a relative error. Pairs are consecutive: the end of one is the start
/// of the next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Delta {
    /// A number of associated poses.
    Frames(usize),
    /// A path length along the aligned estimate, in metres.
    Metres(f64),
}

/// Evaluation options.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Alignment of the estimate.
    pub alignment: Alignment,
    /// Maximum difference between associated stamps, in seconds.
    pub tolerance: f64,
    /// Offset added to the estimate's stamps, in seconds.
    pub offset: f64,
    pub delta: Delta,
}

impl Default for Options {
    /// Sim(3), 0.01 s, consecutive poses: same as `evo_ape tum GT EST -as`.
    fn default() -> Self {
        Self {
            alignment: Alignment::Sim3,
            tolerance: 0.01,
            offset: 0.0,
            delta: Delta::Frames(1),
        }
    }
}

/// Error statistics.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Statistics {
    /// Root mean square.
    pub rmse: f64,
    pub mean: f64,
    /// Median; for an even count, the mean of the middle two.
    pub median: f64,
    /// Population standard deviation.
    pub std: f64,
    pub min: f64,
    pub max: f64,
}

impl Statistics {
    /// `None` if `errors` is empty.
    pub fn of(errors: &[f64]) -> Option<Self> {
        let mut sorted = errors.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let n = sorted.len();
        let mean_of = |f: &dyn Fn(f64) -> f64| errors.iter().map(|&e| f(e)).sum::<f64>() / n as f64;
        let mean = mean_of(&|e| e);
        Some(Self {
            rmse: mean_of(&|e| e * e).sqrt(),
            mean,
            median: (sorted[(n - 1) / 2] + sorted[n / 2]) * 0.5,
            std: mean_of(&|e| (e - mean) * (e - mean)).sqrt(),
            min,
            max,
        })
    }
}

/// The error of one associated pose.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PoseError {
    /// Stamp of the estimate.
    pub stamp: Stamp,
    /// Distance in metres between the aligned estimate and the ground truth.
    pub error: f64,
    /// Position of the aligned estimate in the ground truth frame, in metres.
    pub estimate: Vector3<f64>,
    /// Position of the ground truth, in metres.
    pub truth: Vector3<f64>,
}

/// The comparison of a trajectory with the ground truth.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation {
    /// The options of the comparison.
    pub options: Options,
    /// Number of poses in the estimate.
    pub estimate_poses: usize,
    /// Number of poses in the ground truth.
    pub truth_poses: usize,
    /// Number of ground-truth rows skipped because they are not finite.
    pub skipped_truth_rows: usize,
    /// Whether the stamps of the estimate or the ground truth are out of order or repeated. Poses
    /// are used in the given order, as in evo.
    pub unordered: bool,
    /// Transform from the estimate to the ground truth frame; its scale is the factor by which the
    /// estimate was too small.
    pub alignment: Sim3,
    /// Path length of the ground truth between the first and last associated pose, in metres.
    pub path_length: f64,
    /// Absolute trajectory error (translation), in metres.
    pub ate: Statistics,
    /// 100 · ATE RMSE / path length; `None` if the path length is zero.
    pub ate_percent: Option<f64>,
    /// Relative pose error, translation, in metres; `None` with fewer than two associated poses.
    pub rpe_translation: Option<Statistics>,
    /// Relative pose error, rotation, in degrees.
    pub rpe_rotation: Option<Statistics>,
    /// Errors of all associated poses, in order.
    pub errors: Vec<PoseError>,
}

/// Error from comparing two trajectories.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the text of an error names its fields")]
pub enum EvalError {
    /// A trajectory file cannot be read.
    #[error(transparent)]
    Read(#[from] TrajectoryError),
    /// A trajectory has no poses.
    #[error("the {0} contains no poses: nothing to compare")]
    Empty(&'static str),
    /// An option is out of range.
    #[error("{name} is {value}, expected {expected}")]
    Option {
        name: &'static str,
        value: f64,
        expected: &'static str,
    },
    /// A pose is not finite.
    #[error("pose {index} of the {which} (stamp {stamp}) is not finite: it cannot be compared")]
    NotFinite {
        /// `estimate` or `ground truth`.
        which: &'static str,
        /// Index in the trajectory, from 0.
        index: usize,
        stamp: Stamp,
    },
    /// No two stamps are close enough.
    #[error(
        "no stamp of the estimate ({} to {}) lies within {tolerance} s of one of the ground truth ({} to {}): \
         check that both trajectories belong to the same sequence and use the same clock, or raise the tolerance",
        estimate.0, estimate.1, truth.0, truth.1
    )]
    NoMatch {
        estimate: (Stamp, Stamp),
        truth: (Stamp, Stamp),
        tolerance: f64,
    },
    /// The two files cannot be compared.
    #[error("{} and {}: {cause}", estimate.display(), truth.display())]
    Files {
        estimate: PathBuf,
        truth: PathBuf,
        cause: Box<EvalError>,
    },
    /// The alignment is not determined.
    #[error(
        "the {pairs} associated poses lie in one place or on one line, so the rotation between the two \
         trajectories is not determined: compare without alignment, or use a longer section"
    )]
    Degenerate { pairs: usize },
}

/// Reads and compares two trajectory files. Non-finite ground-truth rows are skipped and counted;
/// in the estimate, they are an error that names the line.
pub fn evaluate_files(
    estimate_path: &Path,
    ground_truth: &Path,
    options: &Options,
) -> Result<Evaluation, EvalError> {
    let truth = trajectory::read(ground_truth, BadRows::Skip)?;
    let estimate = trajectory::read(estimate_path, BadRows::Refuse)?;
    let evaluation = evaluate(&estimate.poses, &truth.poses, options);
    let mut evaluation = evaluation.map_err(|cause| EvalError::Files {
        estimate: estimate_path.to_owned(),
        truth: ground_truth.to_owned(),
        cause: Box::new(cause),
    })?;
    evaluation.skipped_truth_rows = truth.skipped.len();
    Ok(evaluation)
}

/// Associates, aligns and compares two trajectories.
pub fn evaluate(
    estimate: &[StampedPose],
    ground_truth: &[StampedPose],
    options: &Options,
) -> Result<Evaluation, EvalError> {
    check_options(options)?;
    let estimate_range = check_poses(estimate, "estimate")?;
    let truth_range = check_poses(ground_truth, "ground truth")?;
    let seconds = |poses: &[StampedPose]| -> Vec<f64> {
        poses.iter().map(|p| associate::seconds(p.stamp)).collect()
    };
    let (times, truth_times) = (seconds(estimate), seconds(ground_truth));
    let pairs = associate::associate(&times, &truth_times, options.tolerance, options.offset);
    if pairs.is_empty() {
        return Err(EvalError::NoMatch {
            estimate: estimate_range,
            truth: truth_range,
            tolerance: options.tolerance,
        });
    }
    let truth: Vec<Sim3> = pairs
        .iter()
        .map(|&(_, g)| rigid(&ground_truth[g]))
        .collect();
    let raw: Vec<Sim3> = pairs.iter().map(|&(e, _)| rigid(&estimate[e])).collect();
    let alignment = match options.alignment {
        Alignment::None => Sim3::identity(),
        with => {
            let positions = |p: &[Sim3]| -> Vec<_> { p.iter().map(|p| p.translation).collect() };
            align(
                &positions(&raw),
                &positions(&truth),
                with == Alignment::Sim3,
            )
            .ok_or(EvalError::Degenerate { pairs: pairs.len() })?
        }
    };
    let aligned: Vec<Sim3> = raw.iter().map(|p| moved(&alignment, p)).collect();
    let errors: Vec<PoseError> = pairs
        .iter()
        .zip(aligned.iter().zip(&truth))
        .map(|(&(e, _), (a, t))| PoseError {
            stamp: estimate[e].stamp,
            error: (a.translation - t.translation).norm(),
            estimate: a.translation,
            truth: t.translation,
        })
        .collect();
    let distances: Vec<f64> = errors.iter().map(|e| e.error).collect();
    let ate = Statistics::of(&distances).ok_or(EvalError::Empty("association"))?;
    let (translation, rotation): (Vec<f64>, Vec<f64>) = spans(&aligned, options.delta)
        .map(|(i, j)| relative_error([&aligned[i], &aligned[j]], [&truth[i], &truth[j]]))
        .unzip();
    let path_length = path_between(ground_truth, &pairs);
    let in_order = |p: &[StampedPose]| p.is_sorted_by(|a, b| a.stamp < b.stamp);
    Ok(Evaluation {
        options: *options,
        estimate_poses: estimate.len(),
        truth_poses: ground_truth.len(),
        skipped_truth_rows: 0,
        unordered: !in_order(estimate) || !in_order(ground_truth),
        alignment,
        path_length,
        ate,
        ate_percent: (path_length > 0.0).then(|| 100.0 * ate.rmse / path_length),
        rpe_translation: Statistics::of(&translation),
        rpe_rotation: Statistics::of(&rotation),
        errors,
    })
}

fn check_options(options: &Options) -> Result<(), EvalError> {
    let bad = |name, value, expected| {
        Err(EvalError::Option {
            name,
            value,
            expected,
        })
    };
    if !(options.tolerance >= 0.0 && options.tolerance.is_finite()) {
        return bad("the tolerance", options.tolerance, "seconds, at least 0");
    }
    if !options.offset.is_finite() {
        return bad("the offset", options.offset, "a finite number of seconds");
    }
    match options.delta {
        Delta::Frames(0) => bad("the delta", 0.0, "at least one frame"),
        Delta::Metres(m) if !(m > 0.0 && m.is_finite()) => {
            bad("the delta", m, "a positive number of metres")
        }
        _ => Ok(()),
    }
}

/// First and last stamp.
fn check_poses(poses: &[StampedPose], which: &'static str) -> Result<(Stamp, Stamp), EvalError> {
    let stamps = || poses.iter().map(|p| p.stamp);
    let (Some(first), Some(last)) = (stamps().min(), stamps().max()) else {
        return Err(EvalError::Empty(which));
    };
    let broken = |p: &StampedPose| !rigid(p).is_finite();
    match poses.iter().position(broken) {
        Some(index) => Err(EvalError::NotFinite {
            which,
            index,
            stamp: poses[index].stamp,
        }),
        None => Ok((first, last)),
    }
}

fn rigid(pose: &StampedPose) -> Sim3 {
    Sim3 {
        scale: 1.0,
        ..pose.world_from_camera
    }
}

/// Applies a similarity alignment to a rigid pose.
fn moved(alignment: &Sim3, pose: &Sim3) -> Sim3 {
    Sim3 {
        scale: 1.0,
        ..*alignment * *pose
    }
}

/// Index pairs for the relative errors.
fn spans(poses: &[Sim3], delta: Delta) -> impl Iterator<Item = (usize, usize)> {
    let mut ends = Vec::new();
    match delta {
        Delta::Frames(n) => ends.extend((0..poses.len()).step_by(n)),
        Delta::Metres(metres) => {
            let mut travelled = 0.0;
            ends.push(0);
            for (i, step) in poses.windows(2).enumerate() {
                travelled += (step[1].translation - step[0].translation).norm();
                if travelled >= metres {
                    ends.push(i + 1);
                    travelled = 0.0;
                }
            }
        }
    }
    let starts = ends.clone().into_iter();
    starts.zip(ends.into_iter().skip(1))
}

/// Translation in metres and rotation in degrees of `(Qᵢ⁻¹Qⱼ)⁻¹ (Pᵢ⁻¹Pⱼ)`.
fn relative_error(estimate: [&Sim3; 2], truth: [&Sim3; 2]) -> (f64, f64) {
    let step = |[i, j]: [&Sim3; 2]| i.inverse() * *j;
    let e = step(truth).inverse() * step(estimate);
    let angle = 2.0 * e.rotation.imag().norm().atan2(e.rotation.w.abs());
    (e.translation.norm(), angle.to_degrees())
}

/// Path length over all ground-truth poses between the first and last associated index.
fn path_between(ground_truth: &[StampedPose], pairs: &[(usize, usize)]) -> f64 {
    let indices = || pairs.iter().map(|&(_, g)| g);
    let (Some(first), Some(last)) = (indices().min(), indices().max()) else {
        return 0.0;
    };
    let position = |p: &StampedPose| p.world_from_camera.translation;
    let steps = ground_truth[first..=last].windows(2);
    steps
        .map(|w| (position(&w[1]) - position(&w[0])).norm())
        .sum()
}
