//! Runtimes of the network, and ROS.

use super::Finding;
use crate::config::Config;

/// Installs TensorRT-RTX from PyPI, for this shell.
#[cfg(feature = "tensorrt")]
const TENSORRT: &str = if cfg!(feature = "tensorrt-enterprise") {
    "sudo apt-get install tensorrt-libs"
} else if cfg!(windows) {
    "pip install tensorrt-rtx-cu13-libs; $env:MAST3R_TENSORRT_DIR = \
     python -c \"import sysconfig; print(sysconfig.get_path('purelib') + '/tensorrt_rtx_libs')\""
} else {
    "pip install tensorrt-rtx-cu13-libs && export MAST3R_TENSORRT_DIR=\
     $(python3 -c \"import sysconfig; print(sysconfig.get_path('purelib') + '/tensorrt_rtx_libs')\")"
};

#[cfg(feature = "tensorrt")]
pub fn tensorrt() -> Finding {
    use crate::inference::tensorrt::{Flavour, load};
    match load() {
        Ok(version) => Finding::ok("TensorRT", format!("{} {version}", Flavour::HERE.name())),
        Err(error) => Finding::optional("TensorRT", error, TENSORRT),
    }
}

#[cfg(not(feature = "tensorrt"))]
pub fn tensorrt() -> Finding {
    without("TensorRT", "cuda,tensorrt")
}

/// Installs ONNX Runtime from PyPI, for this shell.
#[cfg(feature = "onnxruntime")]
const ONNXRUNTIME: &str = if cfg!(windows) {
    "pip install onnxruntime-gpu; $env:ORT_DYLIB_PATH = \
     python -c \"import sysconfig; print(sysconfig.get_path('purelib') + '/onnxruntime/capi')\""
} else {
    "pip install onnxruntime-gpu && export ORT_DYLIB_PATH=\
     $(python3 -c \"import sysconfig; print(sysconfig.get_path('purelib') + '/onnxruntime/capi')\")"
};

#[cfg(feature = "onnxruntime")]
pub fn onnxruntime(config: Option<&Config>) -> Finding {
    use crate::inference::onnxruntime::describe_library;
    let named = config.map(|config| config.network.onnxruntime.as_str());
    match describe_library(named.filter(|path| !path.is_empty()).map(str::as_ref)) {
        Ok(library) => Finding::ok("ONNX Runtime", library),
        Err(error) => Finding::optional("ONNX Runtime", error, ONNXRUNTIME),
    }
}

#[cfg(not(feature = "onnxruntime"))]
pub fn onnxruntime(_: Option<&Config>) -> Finding {
    without("ONNX Runtime", "cuda,onnxruntime")
}

#[cfg(not(all(feature = "tensorrt", feature = "onnxruntime")))]
fn without(runtime: &'static str, features: &str) -> Finding {
    // The error of a run that asks for it.
    let feature = features.rsplit(',').next().unwrap_or(features);
    let error = crate::slam_builder::not_built(runtime, feature);
    Finding::optional(runtime, error, super::build_with(features))
}

/// How the node speaks to ROS.
pub fn ros() -> Finding {
    let sourced = std::env::var("ROS_DISTRO")
        .ok()
        .filter(|name| !name.is_empty());
    let beside = match &sourced {
        Some(distribution) => format!("ROS 2 {distribution} is sourced"),
        None => "no ROS 2 is sourced, and none is needed".to_owned(),
    };
    if cfg!(feature = "r2r") {
        let distribution = sourced.as_deref().unwrap_or("of the loader's path");
        Finding::ok("ROS", format!("the node runs on ROS 2 {distribution}"))
    } else if cfg!(feature = "dds") {
        Finding::ok("ROS", format!("the node speaks DDS itself; {beside}"))
    } else {
        let error = "this program was built without the node; build it with `--features dds`";
        Finding::optional("ROS", error, super::build_with("dds"))
    }
}
