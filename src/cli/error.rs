//! Why a command failed.

use crate::config::ConfigError;
use crate::inference::InferenceError;
use crate::source::SourceError;
use std::path::{Path, PathBuf};

/// Why a command failed. The layers' own errors pass through unchanged.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// Of the configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Of the frames.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// Of the network's runtime.
    #[error(transparent)]
    Inference(#[from] InferenceError),
    /// Of the GPU.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(#[from] crate::compute::cuda::CudaError),
    /// Of an image.
    #[error(transparent)]
    Image(#[from] crate::image::ImageError),
    /// Of the system.
    #[error(transparent)]
    Slam(#[from] crate::slam::SlamError),
    /// Of the device that everything but the network runs on.
    #[error(transparent)]
    Device(#[from] crate::compute::device::DeviceError),
    /// Of a map that is saved or loaded.
    #[error(transparent)]
    SavedMap(#[from] crate::slam::SavedMapError),
    /// Of an output file.
    #[error(transparent)]
    Export(#[from] crate::map::ExportError),
    /// Of the comparison with a ground truth.
    #[error(transparent)]
    Evaluation(#[from] crate::eval::EvalError),
    /// Options that do not go together; ends with exit code 2.
    #[error("{0}")]
    Usage(String),
    /// A file given on the command line that cannot be read.
    #[error("cannot read {what} {path}: {cause}")]
    Unreadable {
        /// What it is for.
        what: &'static str,
        /// As given.
        path: PathBuf,
        /// The system's reason.
        cause: std::io::Error,
    },
    /// An output folder that cannot be made or written to.
    #[error(
        "cannot write to the output folder {path}: {cause}; choose another with --out or allow writing to it"
    )]
    OutputFolder {
        /// The folder.
        path: PathBuf,
        /// The system's reason.
        cause: std::io::Error,
    },
    /// An output folder that holds an earlier run.
    #[error(
        "{path} holds the results of an earlier run; choose another folder with --out or replace them with --force"
    )]
    OutputExists {
        /// The folder.
        path: PathBuf,
    },
    /// A file that belongs to the program is nowhere.
    #[error(
        "cannot find {name}, which belongs to the program; looked in {looked}; set MAST3R_SLAM_SHARE to the folder that holds it"
    )]
    Asset {
        /// Path below the share folder.
        name: &'static str,
        /// Every place that was looked in.
        looked: String,
    },
    /// Ground truth of which some rows could not be used; the comparison was printed.
    #[error(
        "{}: {} not finite and took no part in the comparison above; remove or mend such rows",
        path.display(),
        counted(*rows, "row is", "rows are")
    )]
    FlawedTruth {
        /// The file.
        path: PathBuf,
        /// How many rows.
        rows: usize,
    },
    /// A source without a single frame in the range asked for.
    #[error("{what} has no frames in the range asked for; check --start, --end and --stride")]
    NoFrames {
        /// The source.
        what: String,
    },
    /// Calibrated operation without a calibration.
    #[error(
        "use_calib is set, but {what} comes with no calibration; give one with --calib or run without it by --no-calib"
    )]
    NoCalibration {
        /// The source.
        what: String,
    },
    /// Ctrl-C cannot be caught.
    #[error("cannot catch Ctrl-C: {0}")]
    Interrupt(#[from] ctrlc::Error),
    /// The thread pool cannot be made.
    #[error("cannot start {jobs} threads: {cause}")]
    Threads {
        /// As asked.
        jobs: usize,
        /// The pool's reason.
        cause: rayon::ThreadPoolBuildError,
    },
    /// Of place recognition.
    #[error(transparent)]
    Retrieval(#[from] crate::compute::retrieval::RetrievalError),
    /// Of the ROS node.
    #[cfg(any(feature = "dds", feature = "r2r"))]
    #[error(transparent)]
    Node(#[from] crate::ros::node::NodeError),
    /// The run failed, and then its results could not be saved.
    #[error("{run}; then what was computed could not be saved: {saving}")]
    RunAndSaving {
        /// Why the run ended.
        run: Box<CliError>,
        /// Why saving failed.
        saving: Box<CliError>,
    },
}

/// `1 row is`, `2 rows are`.
fn counted(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

impl CliError {
    /// [`CliError::FlawedTruth`] where the comparison with the file at `path` left rows out.
    pub fn flawed_truth(path: &Path, evaluation: &crate::eval::Evaluation) -> Option<Self> {
        let rows = evaluation.skipped_truth_rows;
        (rows > 0).then(|| Self::FlawedTruth {
            path: path.to_owned(),
            rows,
        })
    }

    /// The exit code: 2 for a usage error, else 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            _ => 1,
        }
    }
}
