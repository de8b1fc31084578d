//! Creates the device for a run.

use crate::compute::cpu;
use crate::compute::device::{Device, DeviceError, Setup};
use crate::config::DeviceChoice;
use crate::image::encoding::ImageFormat;
use crate::inference::Backend;
use crate::slam::Note;

/// The configured device, for images of the given format. If the choice is open and no GPU can be
/// used, a note explains why and the CPU is used.
pub fn make(
    choice: DeviceChoice,
    backend: Box<dyn Backend>,
    setup: Setup,
    images: &ImageFormat,
    notes: &mut Vec<Note>,
) -> Result<Device, DeviceError> {
    let gpu = match choice {
        DeviceChoice::Cpu => return Ok(cpu::device(backend, setup)),
        // No note: this program never uses a GPU.
        DeviceChoice::Auto if cfg!(not(feature = "cuda")) => {
            return Ok(cpu::device(backend, setup));
        }
        DeviceChoice::Auto | DeviceChoice::Cuda => on_gpu(backend.share(), setup.clone(), images),
    };
    match gpu {
        Ok(device) => Ok(device),
        Err(error) if choice == DeviceChoice::Auto => {
            notes.push(Note::choice(format!(
                "running on the CPU because no GPU can be used: {error}"
            )));
            Ok(cpu::device(backend, setup))
        }
        Err(error) => Err(error),
    }
}

#[cfg(feature = "cuda")]
fn on_gpu(
    backend: Box<dyn Backend>,
    setup: Setup,
    images: &ImageFormat,
) -> Result<Device, DeviceError> {
    use crate::compute::cuda::KERNELS;
    use crate::compute::cuda::device::{CameraFormat, CudaSetup, device};
    use crate::gpu::Context;

    let context = Context::open(0, &KERNELS)?;
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
fn on_gpu(_: Box<dyn Backend>, _: Setup, _: &ImageFormat) -> Result<Device, DeviceError> {
    Err(DeviceError::Failed {
        device: "the GPU",
        cause:
            "this program was built without CUDA; build it with `--features cuda` (which needs nvcc) or run with --device cpu"
                .into(),
    })
}
