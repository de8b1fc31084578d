//! Which machine a run computes on.

use super::{CliError, say};
use crate::compute::cpu;
use crate::compute::device::{Device, DeviceError, Setup};
use crate::config::DeviceChoice;
use crate::image::encoding::{Encoding, RawImage};
use crate::inference::Backend;

/// What a camera's images have in common.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(
    not(feature = "cuda"),
    expect(dead_code, reason = "only a GPU must know how pixels are held")
)]
pub struct CameraImages {
    /// Columns.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// How they hold their pixels.
    pub encoding: Encoding,
    /// Bytes from row to row.
    pub stride: usize,
}

impl From<&RawImage<'_>> for CameraImages {
    fn from(image: &RawImage<'_>) -> Self {
        Self {
            width: image.width,
            height: image.height,
            encoding: image.encoding,
            stride: image.stride,
        }
    }
}

/// The device of the configuration, for images of a camera. Where a GPU is not asked for but welcome
/// and cannot be used, says why and takes the CPU.
pub fn make(
    choice: DeviceChoice,
    backend: Box<dyn Backend>,
    setup: Setup,
    images: CameraImages,
) -> Result<Device, CliError> {
    let gpu = match choice {
        DeviceChoice::Cpu => return Ok(cpu::device(backend, setup)),
        // Nothing to say: this program never uses one.
        DeviceChoice::Auto if cfg!(not(feature = "cuda")) => {
            return Ok(cpu::device(backend, setup));
        }
        DeviceChoice::Auto | DeviceChoice::Cuda => on_gpu(backend.share(), setup.clone(), images),
    };
    match gpu {
        Ok(device) => Ok(device),
        Err(error) if choice == DeviceChoice::Auto => {
            say(&format!(
                "no GPU is used, everything runs on the CPU: {error}"
            ));
            Ok(cpu::device(backend, setup))
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(feature = "cuda")]
fn on_gpu(
    backend: Box<dyn Backend>,
    setup: Setup,
    images: CameraImages,
) -> Result<Device, DeviceError> {
    use crate::compute::cuda::Context;
    use crate::compute::cuda::device::{CameraFormat, CudaSetup, device};

    let context = Context::open(0)?;
    let directory = match setup.config.memory.directory.as_str() {
        "" => std::env::temp_dir(),
        named => named.into(),
    };
    let cuda = CudaSetup {
        camera: CameraFormat {
            encoding: images.encoding,
            stride: images.stride,
        },
        directory: Some(directory),
    };
    device(&context, backend, setup, &cuda)
}

#[cfg(not(feature = "cuda"))]
fn on_gpu(_: Box<dyn Backend>, _: Setup, _: CameraImages) -> Result<Device, DeviceError> {
    Err(DeviceError::Failed {
        device: "the GPU",
        cause:
            "this program was built without CUDA; build it with `--features cuda` (which needs nvcc) or run with --device cpu"
                .into(),
    })
}
