//! Errors of commands.

use crate::config::ConfigError;
use crate::inference::InferenceError;
use crate::source::SourceError;
use std::path::{Path, PathBuf};

/// Error of a command. Errors of lower layers pass through unchanged.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The frames cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The network's runtime failed.
    #[error(transparent)]
    Inference(#[from] InferenceError),
    /// A GPU error.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(#[from] crate::gpu::CudaError),
    /// An image cannot be used.
    #[error(transparent)]
    Image(#[from] crate::image::ImageError),
    /// SLAM failed.
    #[error(transparent)]
    Slam(#[from] crate::slam::SlamError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] crate::compute::device::DeviceError),
    /// A map cannot be saved or loaded.
    #[error(transparent)]
    SavedMap(#[from] crate::slam::SavedMapError),
    /// The Gaussian map failed.
    #[error(transparent)]
    Splat(#[from] crate::compute::splat::SplatError),
    /// A training cannot be continued.
    #[error(transparent)]
    SplatState(#[from] crate::slam_builder::splat::state::StateError),
    /// A map has nothing to train on.
    #[error(
        "the map {path} has no keyframe whose image and points can be read, so there is nothing to make splats of; record the place again with `run --map`",
        path = path.display()
    )]
    NoViews { path: PathBuf },
    /// A map has no points to start from.
    #[error(
        "no point of the map {path} has a confidence above {confidence}; lower splat.C_conf",
        path = path.display()
    )]
    NoPoints { path: PathBuf, confidence: f32 },
    /// The frames of a training cannot be used.
    #[error(transparent)]
    SplatFrames(#[from] crate::slam_builder::splat::frames::FramesError),
    /// A file of splats cannot be read.
    #[error(transparent)]
    Splats(#[from] crate::map::splat::SplatFileError),
    /// An output file cannot be written.
    #[error(transparent)]
    Export(#[from] crate::files::export::ExportError),
    /// The comparison with the ground truth failed.
    #[error(transparent)]
    Evaluation(#[from] crate::eval::EvalError),
    /// The live page cannot be served.
    #[cfg(feature = "view")]
    #[error(transparent)]
    View(#[from] crate::view::ViewError),
    /// Options that cannot be combined; the exit code is 2.
    #[error("{0}")]
    Usage(String),
    /// A file given on the command line cannot be read.
    #[error("cannot read {what} {path}: {cause}")]
    Unreadable {
        what: &'static str,
        path: PathBuf,
        cause: std::io::Error,
    },
    /// The output folder cannot be created or written to.
    #[error(
        "cannot write to the output folder {path}: {cause}; choose another with --out or change its permissions"
    )]
    OutputFolder {
        path: PathBuf,
        cause: std::io::Error,
    },
    /// The output folder contains an earlier run.
    #[error(
        "{path} contains the results of an earlier run; choose another folder with --out or replace them with --force"
    )]
    OutputExists { path: PathBuf },
    /// Some rows of the ground truth are not usable; the comparison was printed.
    #[error(
        "{}: {} not finite and excluded from the comparison above; remove or fix such rows",
        path.display(),
        counted(*rows, "row is", "rows are")
    )]
    FlawedTruth { path: PathBuf, rows: usize },
    /// The source has no frames in the requested range.
    #[error("{what} has no frames in the requested range; check --start, --end and --stride")]
    NoFrames { what: String },
    /// Ctrl-C cannot be handled.
    #[error("cannot handle Ctrl-C: {0}")]
    Interrupt(#[from] ctrlc::Error),
    /// The thread pool cannot be created.
    #[error("cannot start {jobs} threads: {cause}")]
    Threads {
        jobs: usize,
        cause: rayon::ThreadPoolBuildError,
    },
    /// Place recognition failed.
    #[error(transparent)]
    Retrieval(#[from] crate::compute::retrieval::RetrievalError),
    /// Weights with a name cannot be found or fetched.
    #[error(transparent)]
    Weights(#[from] crate::weights::WeightsError),
    /// The self-test cannot run, or failed; its report was printed.
    #[error(transparent)]
    SelfTest(#[from] crate::selftest::SelfTestError),
    /// SLAM cannot be put together.
    #[error(transparent)]
    Open(#[from] crate::slam_builder::OpenError),
    /// A bag cannot be recorded.
    #[cfg(feature = "ros")]
    #[error(transparent)]
    Middleware(#[from] crate::ros::middleware::MiddlewareError),
    /// The ROS node failed.
    #[cfg(any(feature = "dds", feature = "r2r"))]
    #[error(transparent)]
    Node(#[from] crate::ros::node::NodeError),
    /// `doctor` found something missing; the report was printed.
    #[error("something is missing; see above")]
    Unhealthy,
    /// The run failed, and its results could not be saved.
    #[error("{run}; in addition, the results so far could not be saved: {saving}")]
    RunAndSaving {
        run: Box<CliError>,
        saving: Box<CliError>,
    },
}

/// `1 row is`, `2 rows are`.
fn counted(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

impl CliError {
    /// [`CliError::FlawedTruth`] if the comparison with the file at `path` skipped rows.
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
