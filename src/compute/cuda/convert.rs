//! Conversion between f32 and f16 on the device.

use crate::gpu::{Context, CudaError, DeviceSlice, Floats, Grid, Kernel, Stream};
use half::f16;

/// Threads per block and elements per thread; must match `convert.cu`.
const THREADS: u32 = 256;
const WIDTH: usize = 4;

/// The conversion kernels.
pub struct Convert {
    narrow: Kernel,
    widen: Kernel,
}

impl Convert {
    /// Loads the kernels.
    pub fn new(context: &Context) -> Result<Self, CudaError> {
        Ok(Self {
            narrow: context.kernel("ms_convert_f32_to_f16")?,
            widen: context.kernel("ms_convert_f16_to_f32")?,
        })
    }

    /// `dst = src` in the format of `dst`; a plain copy where they have the same.
    pub fn copy(&self, stream: &Stream, src: Floats<'_>, dst: Floats<'_>) -> Result<(), CudaError> {
        match (src, dst) {
            (Floats::F16(src), Floats::F16(dst)) => stream.copy(src, dst),
            (Floats::F32(src), Floats::F32(dst)) => stream.copy(src, dst),
            (Floats::F32(src), Floats::F16(dst)) => self.narrow(stream, src, dst),
            (Floats::F16(src), Floats::F32(dst)) => self.widen(stream, src, dst),
        }
    }

    /// `dst = src` rounded to the nearest f16, ties to even; infinite beyond its range.
    pub fn narrow(
        &self,
        stream: &Stream,
        src: DeviceSlice<'_, f32>,
        dst: DeviceSlice<'_, f16>,
    ) -> Result<(), CudaError> {
        let n = src.len();
        let dst = dst.at_least("f16 values", n)?;
        let grid = Grid::over(n.div_ceil(WIDTH), THREADS);
        // SAFETY: both have at least `n` elements, of the types in the kernel's signature.
        unsafe {
            self.narrow
                .launch(stream, grid, (src.pointer(), dst.pointer(), n as u64))
        }
    }

    /// `dst = src`, exactly.
    pub fn widen(
        &self,
        stream: &Stream,
        src: DeviceSlice<'_, f16>,
        dst: DeviceSlice<'_, f32>,
    ) -> Result<(), CudaError> {
        let n = src.len();
        let dst = dst.at_least("f32 values", n)?;
        let grid = Grid::over(n.div_ceil(WIDTH), THREADS);
        // SAFETY: both have at least `n` elements, of the types in the kernel's signature.
        unsafe {
            self.widen
                .launch(stream, grid, (src.pointer(), dst.pointer(), n as u64))
        }
    }
}
