//! Why TensorRT or an engine cannot be used.

use super::library::Version;
use super::target::{Flavour, Target, list};
use crate::network::onnx::Precision;
use std::path::PathBuf;

/// Why TensorRT or an engine cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TensorRtError {
    /// A library is nowhere.
    #[error(
        "{library} is not installed: looked for {names} in {looked}; {}",
        how_to_install(*flavour)
    )]
    Missing {
        /// Which TensorRT.
        flavour: Flavour,
        /// What it is for.
        library: &'static str,
        /// File names that were tried.
        names: String,
        /// Where.
        looked: String,
    },
    /// A library of another version.
    #[error(
        "{} is {} {found}; this program needs {}.{} or a newer {}.x; {}",
        path.display(),
        flavour.name(),
        needed.major,
        needed.minor,
        needed.major,
        how_to_install(*flavour)
    )]
    Version {
        /// Which TensorRT.
        flavour: Flavour,
        /// The library.
        path: PathBuf,
        /// Its version.
        found: Version,
        /// The program's.
        needed: Version,
    },
    /// A GPU that engines cannot be built for.
    #[error("{}", unsupported(*flavour, *asked, *here))]
    Target {
        /// Which TensorRT.
        flavour: Flavour,
        /// As asked.
        asked: Target,
        /// The GPU of this machine.
        here: Option<Target>,
    },
    /// A GPU without the numbers that are asked for.
    #[error(
        "{target} has no tensor cores for {precision}, which came with {since}; build for it with --precision fp16"
    )]
    Numbers {
        /// As asked.
        target: Target,
        /// As asked.
        precision: Precision,
        /// The first with them.
        since: Target,
    },
    /// An engine is missing and may not be built.
    #[error("no engine in {} fits: {reason}; {}", folder.display(), what_to_do(*may_build))]
    NoEngine {
        /// The engines' folder.
        folder: PathBuf,
        /// Why none of what is there does.
        reason: String,
        /// Whether the configuration lets the program build one.
        may_build: bool,
    },
    /// A file that is not what it should be.
    #[error("{}: expected {expected}, found {found}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The operating system refused.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// TensorRT refused.
    #[error("{} failed while {doing}: {message}", Flavour::HERE.name())]
    Failed {
        /// What was asked of it.
        doing: String,
        /// Its own words.
        message: String,
    },
    /// The engines do not fit into the GPU's memory.
    #[error(
        "the engines need {} of GPU memory and {} are free, {} too little; free some, or build them in a lower \
         precision or for smaller images",
        human(*needed),
        human(*free),
        human(needed.saturating_sub(*free))
    )]
    GpuMemory {
        /// Bytes.
        needed: u64,
        /// Bytes.
        free: u64,
    },
    /// The user ended a build.
    #[error("the build was cancelled; no engine was written")]
    Cancelled,
}

impl TensorRtError {
    /// Whether another engine may do where this one fails.
    pub(super) fn may_be_the_engine(&self) -> bool {
        matches!(
            self,
            Self::Failed { .. } | Self::Content { .. } | Self::Io { .. }
        )
    }

    pub(super) fn io(
        doing: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io {
            doing,
            path,
            source,
        }
    }
}

/// Megabytes, for a message.
fn human(bytes: u64) -> String {
    format!("{:.0} MB", bytes as f64 / 1e6)
}

fn how_to_install(flavour: Flavour) -> &'static str {
    match flavour {
        Flavour::Rtx => {
            "install TensorRT-RTX 1.7 (pip install tensorrt-rtx-cu13-libs==1.7.*, or NVIDIA's archive) and set \
             MAST3R_TENSORRT_DIR to the folder that holds its libraries"
        }
        Flavour::Enterprise => {
            "install TensorRT 11 (on a Jetson it comes with JetPack: apt-get install tensorrt) and, if it is not on \
             the loader's path, set MAST3R_TENSORRT_DIR to the folder that holds its libraries"
        }
    }
}

fn unsupported(flavour: Flavour, asked: Target, here: Option<Target>) -> String {
    match flavour {
        Flavour::Rtx => format!(
            "TensorRT-RTX builds no engines for {asked}, only for {}; for Jetson and data-centre GPUs build this \
             program with --features tensorrt-enterprise, or use --backend onnxruntime",
            list(flavour.targets())
        ),
        Flavour::Enterprise => {
            let here = match here {
                None => "this machine has no GPU".to_owned(),
                Some(here) => format!("this machine has {here}"),
            };
            format!(
                "TensorRT builds engines only for the GPU that it runs on, and {here}; build the engine for {asked} there"
            )
        }
    }
}

fn what_to_do(may_build: bool) -> &'static str {
    if may_build {
        "build one with `mast3r-slam engine build`"
    } else {
        "build one with `mast3r-slam engine build`, or let the program do it with network.build_engine: true"
    }
}
