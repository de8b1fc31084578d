//! Errors of the TensorRT backend.

use super::target::{Flavour, Target, list};
use super::version::Version;
use crate::network::onnx::Precision;
use std::path::PathBuf;

/// Reasons why TensorRT or an engine cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TensorRtError {
    /// A TensorRT library is not installed.
    #[error(
        "{library} is not installed: looked for {names} in {looked}; {}",
        how_to_install(*flavour)
    )]
    Missing {
        flavour: Flavour,
        library: &'static str,
        names: String,
        looked: String,
    },
    /// The installed library has an unsupported version.
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
        flavour: Flavour,
        path: PathBuf,
        found: Version,
        needed: Version,
    },
    /// TensorRT cannot build engines for the requested GPU.
    #[error("{}", unsupported(*flavour, *asked, *here))]
    Target {
        flavour: Flavour,
        asked: Target,
        here: Option<Target>,
    },
    /// The target GPU has no tensor cores for the requested precision.
    #[error(
        "{target} has no tensor cores for {precision}, which came with {since}; build for it with --precision fp16"
    )]
    Numbers {
        target: Target,
        precision: Precision,
        since: Target,
    },
    /// No stored engine is usable and none may be built.
    #[error("no engine in {} fits: {reason}; {}", folder.display(), what_to_do(*may_build))]
    NoEngine {
        folder: PathBuf,
        reason: String,
        may_build: bool,
    },
    /// A file has unexpected content.
    #[error("{}: expected {expected}, found {found}", path.display())]
    Content {
        path: PathBuf,
        expected: String,
        found: String,
    },
    /// A file operation failed.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        doing: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    /// A TensorRT call failed.
    #[error("{} failed while {doing}: {message}", Flavour::HERE.name())]
    Failed { doing: String, message: String },
    /// A CUDA call failed.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Gpu(#[from] crate::gpu::CudaError),
    /// The engines do not fit in GPU memory.
    #[error(
        "the engines need {} of GPU memory and {} are free, {} too little; free some, or build them in a lower \
         precision or for smaller images",
        human(*needed),
        human(*free),
        human(needed.saturating_sub(*free))
    )]
    GpuMemory { needed: u64, free: u64 },
    /// The user cancelled the build.
    #[error("the build was cancelled; no engine was written")]
    Cancelled,
}

impl TensorRtError {
    /// Whether the failure may be specific to this engine, so that another one is worth trying.
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

/// Formats a size in megabytes.
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
            "TensorRT-RTX cannot build engines for {asked}, only for {}; for Jetson and data-centre GPUs build this \
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
        "build one with `mast3r-slam engine build`, or have it built with --backend tensorrt and network.build_engine: true"
    }
}
