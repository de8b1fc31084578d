//! A camera's rays on the device.

use crate::compute::cuda::{
    CudaError, DeviceArena, DeviceBuffer, DevicePointer, KernelArgument, Stream, small,
};
use crate::compute::plan::Spec;
use crate::geometry::Intrinsics;

/// The rays of an image's columns and rows on the device.
pub struct CameraRays {
    slopes: DeviceBuffer<f32>,
    pub(super) intrinsics: Intrinsics,
    pub(super) width: usize,
    pub(super) height: usize,
}

/// `Rays` in `residual.cuh`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(in crate::compute::cuda) struct RaysArgument {
    slopes: DevicePointer<f32>,
    width: u32,
    height: u32,
}

// SAFETY: the layout of the struct in `residual.cuh`.
unsafe impl KernelArgument for RaysArgument {}

impl RaysArgument {
    pub(in crate::compute::cuda) const NONE: Self = Self {
        slopes: DevicePointer::NULL,
        width: 1,
        height: 1,
    };
}

impl CameraRays {
    /// What [`CameraRays::new`] carves.
    pub fn buffers(width: usize, height: usize) -> Vec<Spec> {
        vec![Spec::of::<f32>("camera rays", &[width + height])]
    }

    /// Of `intrinsics` for images of `width × height`; waits for the copy.
    pub fn new(
        stream: &Stream,
        arena: &mut DeviceArena,
        intrinsics: Intrinsics,
        width: usize,
        height: usize,
    ) -> Result<Self, CudaError> {
        small("the image's width", width)?;
        small("the image's height", height)?;
        let columns = (0..width).map(|u| intrinsics.ray(u as f64, 0.0).x as f32);
        let rows = (0..height).map(|v| intrinsics.ray(0.0, v as f64).y as f32);
        let host: Vec<f32> = columns.chain(rows).collect();
        let slopes = arena.carve("camera rays", host.len())?;
        stream.write(&host, slopes.all())?;
        Ok(Self {
            slopes,
            intrinsics,
            width,
            height,
        })
    }

    /// Pixels of the image.
    pub fn pixels(&self) -> usize {
        self.width * self.height
    }

    pub(in crate::compute::cuda) fn argument(&self) -> RaysArgument {
        RaysArgument {
            slopes: self.slopes.pointer(),
            // Checked when made.
            width: self.width as u32,
            height: self.height as u32,
        }
    }
}
