//! Maps of Gaussian splats, made from keyframes: offline from a map's file, or beside SLAM.

pub mod frames;
mod hand_over;
mod live;
mod map_file;
mod priority;
mod rows;
pub mod state;
mod views;

pub use hand_over::{HandOver, HandedOver};
pub use live::{Asker, Live, LiveSource, LiveSplat};
pub use map_file::{FileKeyframe, MapFile};
pub use rows::{DeviceRows, packed};
pub use views::{OFFLINE_VIEWS, Views, pointmap};

use crate::compute::splat::camera::Pointmap;
use crate::compute::splat::device::{Seeded, SplatDevice};
use crate::compute::splat::layout::Layout;
use crate::compute::splat::trainer::{Compared, Quality, StepReport, Trainer, ViewSource};
use crate::compute::splat::{CpuSplat, SplatError};
use crate::config::{DeviceChoice, SplatConfig};
use crate::files::memory;
use crate::slam::Note;

/// Trains on one view. A view that shows more than a GPU's buffers hold is skipped. `None` without views or rows.
///
/// # Errors
/// Other errors of the device.
pub fn train(trainer: &mut Trainer, views: &mut Views) -> Result<Option<StepReport>, SplatError> {
    match trainer.train(views) {
        Err(error @ SplatError::Crowded { .. }) => {
            tracing::debug!("a view is not trained on: {error}");
            let step = trainer.step() + 1;
            trainer.resume(step);
            Ok(Some(StepReport {
                step,
                ..StepReport::default()
            }))
        }
        trained => trained,
    }
}

/// How well views are rendered.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Measured {
    /// Whether views are held out; else there are too few, and all were compared.
    pub held_out: bool,
    /// At SLAM's poses.
    pub given: Quality,
    /// Held-out views at poses that were aligned with the splats.
    pub aligned: Option<Quality>,
    /// Views that are trained on, at the poses that they are trained with.
    pub trained: Option<Quality>,
}

/// What is measured besides the quality at SLAM's poses, and on how many views.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measuring {
    /// Maximum number of views of each kind; they are spread evenly.
    pub max: usize,
    /// Steps that align each held-out view with the splats; 0: they are not compared there.
    pub align: usize,
    /// Whether the views that are trained on are compared too.
    pub trained: bool,
}

impl Measuring {
    /// At SLAM's poses only, on all held-out views.
    pub const GIVEN: Self = Self {
        max: usize::MAX,
        align: 0,
        trained: false,
    };
}

/// Quality on held-out views, or on all if there are too few to hold any out.
///
/// # Errors
/// If the device fails.
pub fn quality(
    trainer: &mut Trainer,
    views: &mut Views,
    measuring: Measuring,
) -> Result<Measured, SplatError> {
    let count = views.len();
    let held_out = (0..count).any(|index| trainer.is_held_out(index, count));
    let mut measured = Measured {
        held_out,
        ..Measured::default()
    };
    match measure(trainer, views, measuring, &mut measured) {
        Err(error @ SplatError::Crowded { .. }) => {
            tracing::warn!("the quality is not known: {error}");
        }
        done => done?,
    }
    Ok(measured)
}

fn measure(
    trainer: &mut Trainer,
    views: &mut Views,
    Measuring {
        max,
        align,
        trained,
    }: Measuring,
    measured: &mut Measured,
) -> Result<(), SplatError> {
    let given = match measured.held_out {
        true => Compared::HeldOut,
        false => Compared::All,
    };
    measured.given = trainer.evaluate(views, given, max)?;
    if measured.held_out && align > 0 && trainer.schedule().config().lr_pose > 0.0 {
        trainer.align(views, align, max)?;
        measured.aligned = Some(trainer.evaluate(views, Compared::HeldOutCorrected, max)?);
    }
    if trained {
        measured.trained = Some(trainer.evaluate(views, Compared::Trained, max)?);
    }
    Ok(())
}

/// Adds rows for a keyframe. One that shows more than a GPU's buffers hold is left out.
///
/// # Errors
/// Other errors of the device.
pub fn seed(trainer: &mut Trainer, pointmap: &Pointmap<'_>) -> Result<Seeded, SplatError> {
    match trainer.seed(pointmap) {
        Err(error @ SplatError::Crowded { .. }) => {
            tracing::debug!("keyframe {} adds no splats: {error}", pointmap.anchor);
            Ok(Seeded::default())
        }
        seeded => seeded,
    }
}

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
        let (capacity, degree) = (config.capacity as u64, config.degree as u8);
        // An allocation that fails would end the program.
        let needed = Layout::new(capacity, degree)?.bytes();
        match memory::available() {
            Some(available) if needed > available => Err(SplatError::Memory {
                capacity,
                needed,
                available,
                fits: Layout::rows_in(available, degree),
            }),
            _ => Ok(Box::new(CpuSplat::new(capacity, degree)?)),
        }
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

#[cfg(feature = "cuda")]
fn on_gpu(config: &SplatConfig, size: (usize, usize)) -> Result<Box<dyn SplatDevice>, SplatError> {
    use crate::compute::cuda::KERNELS;
    use crate::compute::cuda::splat::{CudaSplat, SplatSizes};
    use crate::gpu::Context;

    let context = Context::open(0, &KERNELS)?;
    let sizes = SplatSizes::new(config.capacity as u64, config.degree as u8, size);
    Ok(Box::new(CudaSplat::allocate(&context, sizes)?))
}

#[cfg(not(feature = "cuda"))]
fn on_gpu(_: &SplatConfig, _: (usize, usize)) -> Result<Box<dyn SplatDevice>, SplatError> {
    Err(SplatError::Device {
        device: "the GPU",
        cause: super::WITHOUT_CUDA.into(),
    })
}
