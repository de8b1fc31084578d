//! Depth moved by the camera's motion on the device, with the same bits as [`crate::compute::depth::moved`].

use super::THREADS;
use crate::compute::cuda::small;
use crate::compute::depth::moved::DepthMotion;
use crate::gpu::{Context, CudaError, DeviceSlice, Grid, Kernel, KernelArgument, Stream};

// SAFETY: the same fields in the same order as `Motion` in `depth_move.cu`.
unsafe impl KernelArgument for DepthMotion {}

/// Moves depth images of one size.
pub struct DepthMover {
    move_: Kernel,
    settle: Kernel,
    size: [u32; 2],
    pixels: usize,
}

impl DepthMover {
    /// For images of this size.
    pub fn new(context: &Context, width: usize, height: usize) -> Result<Self, CudaError> {
        Ok(Self {
            move_: context.kernel("ms_depth_move")?,
            settle: context.kernel("ms_depth_settle")?,
            size: [
                small("columns of an image", width)?,
                small("rows of an image", height)?,
            ],
            pixels: width * height,
        })
    }

    /// Enqueues moving `metres` to `moved`, which are different arrays, one number a pixel.
    pub fn run(
        &self,
        stream: &Stream,
        metres: DeviceSlice<'_, f32>,
        motion: &DepthMotion,
        moved: DeviceSlice<'_, f32>,
    ) -> Result<(), CudaError> {
        if self.pixels == 0 {
            return Ok(());
        }
        let from = metres.at_least("depth", self.pixels)?.pointer();
        let to = moved.at_least("moved depth", self.pixels)?;
        // No point has fallen on any pixel.
        stream.fill(to, 0xff)?;
        let [width, height] = self.size;
        let grid = Grid::over(self.pixels, THREADS);
        let arguments = (from, to.pointer(), *motion, width, height);
        // SAFETY: both arrays have `width × height` numbers, checked above; the kernel writes inside the image alone.
        unsafe { self.move_.launch(stream, grid, arguments)? };
        let arguments = (to.pointer(), small("pixels of an image", self.pixels)?);
        // SAFETY: as above.
        unsafe { self.settle.launch(stream, grid, arguments) }
    }
}
