//! Maps of Gaussian splats, made from keyframes: offline from a map's file, or beside SLAM.

mod hand_over;
mod live;
mod map_file;
mod rows;
pub mod state;
mod views;

pub use hand_over::{HandOver, HandedOver};
pub use live::{Asker, Live, LiveSource, LiveSplat};
pub use map_file::MapFile;
pub use rows::DeviceRows;
pub use views::{OFFLINE_VIEWS, Views, pointmap};

use crate::compute::splat::device::SplatDevice;
use crate::compute::splat::{CpuSplat, SplatError};
use crate::config::{DeviceChoice, SplatConfig};
use crate::slam::Note;

/// The device for a Gaussian map. If the choice is open and no GPU can be used, a note explains why and the CPU is used.
///
/// # Errors
/// If the capacity does not fit, or the GPU that was asked for cannot be used.
pub fn make_device(
    choice: DeviceChoice,
    config: &SplatConfig,
    size: (usize, usize),
    notes: &mut Vec<Note>,
) -> Result<Box<dyn SplatDevice>, SplatError> {
    let on_cpu = || -> Result<Box<dyn SplatDevice>, SplatError> {
        let device = CpuSplat::new(config.capacity as u64, config.degree as u8)?;
        Ok(Box::new(device))
    };
    match choice {
        DeviceChoice::Cpu => on_cpu(),
        DeviceChoice::Auto if cfg!(not(feature = "cuda")) => on_cpu(),
        DeviceChoice::Auto => match on_gpu(config, size) {
            Err(error @ SplatError::Device { .. }) => {
                notes.push(Note::choice(format!(
                    "the Gaussian map is made on the CPU because no GPU can be used: {error}"
                )));
                on_cpu()
            }
            made => made,
        },
        DeviceChoice::Cuda => on_gpu(config, size),
    }
}

fn on_gpu(_: &SplatConfig, _: (usize, usize)) -> Result<Box<dyn SplatDevice>, SplatError> {
    Err(SplatError::Device {
        device: "the GPU",
        cause: "this program makes Gaussian maps on the CPU only".into(),
    })
}
