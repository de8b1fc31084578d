//! The NVIDIA driver and its first GPU.

use super::Finding;

/// Installs the driver.
#[cfg(feature = "cuda")]
const INSTALL: &str = if cfg!(windows) {
    "start https://www.nvidia.com/drivers"
} else if cfg!(target_arch = "aarch64") {
    "sudo apt-get install nvidia-jetpack"
} else {
    "sudo ubuntu-drivers install"
};

#[cfg(feature = "cuda")]
pub fn findings() -> Vec<Finding> {
    use crate::compute::cuda::KERNELS;
    use crate::gpu::plan::human;
    use crate::gpu::{Context, CudaError};
    let opened = Context::open(0, &KERNELS);
    let context = match &opened {
        Ok(context) => context,
        Err(error @ (CudaError::NoDriver | CudaError::OldDriver { .. })) => {
            return vec![Finding::optional("driver", error, INSTALL)];
        }
        Err(error @ CudaError::Architecture { capability, .. }) => {
            let (major, minor) = capability;
            let build = super::build_with("cuda,onnxruntime");
            let command = format!("MAST3R_CUDA_ARCHS=sm_{major}{minor} {build}");
            return vec![Finding::optional("GPU", error, command)];
        }
        Err(error) => return vec![Finding::optional("GPU", error, "nvidia-smi")],
    };
    let info = context.info();
    let free = context.memory().map_or(0, |(free, _)| free);
    vec![
        Finding::ok(
            "driver",
            format!("supports CUDA {}.{}", info.driver.0, info.driver.1),
        ),
        Finding::ok(
            "GPU",
            format!(
                "{}, compute capability {}.{}, {} of {} free",
                info.name,
                info.capability.0,
                info.capability.1,
                human(free),
                human(info.memory_bytes)
            ),
        ),
    ]
}

#[cfg(not(feature = "cuda"))]
pub fn findings() -> Vec<Finding> {
    let command = super::build_with("cuda");
    vec![Finding::optional(
        "GPU",
        crate::slam_builder::WITHOUT_CUDA,
        command,
    )]
}
