//! Camera rays on the device.

use crate::compute::cuda::small;
use crate::geometry::Intrinsics;
use crate::gpu::{Carver, CudaError, DeviceBuffer, DevicePointer, KernelArgument, Stream};

/// Memory of [`CameraRays`].
pub struct CameraRaysBuffers {
    slopes: DeviceBuffer<f32>,
}

impl CameraRaysBuffers {
    /// Buffers for images of `width × height`.
    pub fn carve(c: &mut Carver<'_, '_>, width: usize, height: usize) -> Result<Self, CudaError> {
        Ok(Self {
            slopes: c.device("camera rays", &[width + height])?,
        })
    }
}

/// Ray slopes of an image's columns and rows on the device.
pub struct CameraRays {
    buffers: CameraRaysBuffers,
    pub(in crate::compute::cuda) intrinsics: Intrinsics,
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
    /// The rays of `intrinsics` for images of `width × height`; waits for the upload.
    pub fn new(
        stream: &Stream,
        buffers: CameraRaysBuffers,
        intrinsics: Intrinsics,
        width: usize,
        height: usize,
    ) -> Result<Self, CudaError> {
        small("the image's width", width)?;
        small("the image's height", height)?;
        let columns = (0..width).map(|u| intrinsics.ray(u as f64, 0.0).x as f32);
        let rows = (0..height).map(|v| intrinsics.ray(0.0, v as f64).y as f32);
        let host: Vec<f32> = columns.chain(rows).collect();
        stream.write(&host, buffers.slopes.all())?;
        Ok(Self {
            buffers,
            intrinsics,
            width,
            height,
        })
    }

    pub fn pixels(&self) -> usize {
        self.width * self.height
    }

    pub(in crate::compute::cuda) fn argument(&self) -> RaysArgument {
        RaysArgument {
            slopes: self.buffers.slopes.pointer(),
            // Checked on creation.
            width: self.width as u32,
            height: self.height as u32,
        }
    }
}
