//! Creates the device for a run.

use crate::compute::cpu;
use crate::compute::device::{Device, DeviceError, Setup};
use crate::config::DeviceChoice;
use crate::files::folder_of;
use crate::image::encoding::ImageFormat;
use crate::inference::Backend;
use crate::slam::Note;
use std::path::{Path, PathBuf};

/// The folder for keyframes that fit neither on a GPU nor in host memory: the configured one, else that of the map's
/// file, which has room for a map, else the system's for temporary files, which is often memory itself.
pub fn spill_directory(configured: &str, map: Option<&Path>) -> PathBuf {
    match (configured, map) {
        ("", None) => std::env::temp_dir(),
        ("", Some(map)) => folder_of(map).to_owned(),
        (named, _) => PathBuf::from(named),
    }
}

/// The configured device, for images of the given format; `spill` is the folder of [`spill_directory`]. If the choice
/// is open and no GPU can be used, a note explains why and the CPU is used.
pub fn make(
    choice: DeviceChoice,
    backend: Box<dyn Backend>,
    setup: Setup,
    images: &ImageFormat,
    spill: PathBuf,
    notes: &mut Vec<Note>,
) -> Result<Device, DeviceError> {
    let gpu = match choice {
        DeviceChoice::Cpu => return Ok(cpu::device(backend, setup)),
        // No note: this program never uses a GPU.
        DeviceChoice::Auto if cfg!(not(feature = "cuda")) => {
            return Ok(cpu::device(backend, setup));
        }
        DeviceChoice::Auto | DeviceChoice::Cuda => {
            on_gpu(backend.share(), setup.clone(), images, spill)
        }
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
    spill: PathBuf,
) -> Result<Device, DeviceError> {
    use crate::compute::cuda::KERNELS;
    use crate::compute::cuda::device::{CameraFormat, CudaSetup, device};
    use crate::gpu::Context;

    let context = Context::open(0, &KERNELS)?;
    let cuda = CudaSetup {
        camera: CameraFormat {
            encoding: images.encoding,
            stride: images.stride,
        },
        directory: Some(spill),
    };
    device(&context, backend, setup, &cuda)
}

/// Why there is no GPU.
#[cfg(not(feature = "cuda"))]
pub const WITHOUT_CUDA: &str = "this program was built without CUDA; build it with `--features cuda` (which needs nvcc) or run with --device cpu";

#[cfg(not(feature = "cuda"))]
fn on_gpu(
    _: Box<dyn Backend>,
    _: Setup,
    _: &ImageFormat,
    _: PathBuf,
) -> Result<Device, DeviceError> {
    Err(DeviceError::Failed {
        device: "the GPU",
        cause: WITHOUT_CUDA.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keyframes_leave_memory_beside_the_map() {
        let map = |path| Some(Path::new(path));
        assert_eq!(
            spill_directory("", map("/maps/house.map")),
            Path::new("/maps")
        );
        assert_eq!(spill_directory("", map("house.map")), Path::new("."));
        assert_eq!(spill_directory("", None), std::env::temp_dir());
        assert_eq!(
            spill_directory("/big", map("/maps/house.map")),
            Path::new("/big")
        );
    }
}
