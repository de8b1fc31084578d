//! Depth moved by the camera's motion on the device, with the same bits as [`crate::compute::depth::moved`].

use super::APPLY_THREADS as THREADS;
use crate::compute::cuda::small;
use crate::compute::depth::moved::DepthMotion;
use crate::gpu::{
    Carver, Context, CudaError, DeviceBuffer, DeviceSlice, Grid, Kernel, KernelArgument, Stream,
};

// SAFETY: the same fields in the same order as `Motion` in `depth_move.cu`.
unsafe impl KernelArgument for DepthMotion {}

/// Memory of a [`DepthMover`].
pub struct DepthMoverBuffers {
    ranks: DeviceBuffer<u64>,
}

impl DepthMoverBuffers {
    /// Buffers for images of this size.
    pub fn carve(c: &mut Carver<'_, '_>, width: usize, height: usize) -> Result<Self, CudaError> {
        Ok(Self {
            ranks: c.device("ranks of points", &[height, width])?,
        })
    }
}

/// Moves depth images of one size, one at a time on one stream.
pub struct DepthMover {
    rank: Kernel,
    take: Kernel,
    buffers: DepthMoverBuffers,
    size: [u32; 2],
    pixels: usize,
}

impl DepthMover {
    /// For images of this size, for which `buffers` were carved.
    pub fn new(
        context: &Context,
        buffers: DepthMoverBuffers,
        width: usize,
        height: usize,
    ) -> Result<Self, CudaError> {
        buffers.ranks.all().at_least("ranks", width * height)?;
        Ok(Self {
            rank: context.kernel("ms_depth_rank")?,
            take: context.kernel("ms_depth_take")?,
            buffers,
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
        let metres = metres.at_least("depth", self.pixels)?;
        self.run_strided(stream, (metres, 1), motion, moved)
    }

    /// Enqueues moving the depths of `points` (`N × 3`) to `moved`, one number a pixel.
    pub fn run_points(
        &self,
        stream: &Stream,
        points: DeviceSlice<'_, f32>,
        motion: &DepthMotion,
        moved: DeviceSlice<'_, f32>,
    ) -> Result<(), CudaError> {
        if self.pixels == 0 {
            return Ok(());
        }
        let points = points.at_least("points", 3 * self.pixels)?;
        let depths = points.slice(2..3 * self.pixels)?;
        self.run_strided(stream, (depths, 3), motion, moved)
    }

    /// The pixels' depths are every `stride`-th number of `metres`, of which there are enough.
    fn run_strided(
        &self,
        stream: &Stream,
        (metres, stride): (DeviceSlice<'_, f32>, u32),
        motion: &DepthMotion,
        moved: DeviceSlice<'_, f32>,
    ) -> Result<(), CudaError> {
        if self.pixels == 0 {
            return Ok(());
        }
        let from = metres.pointer();
        let to = moved.at_least("moved depth", self.pixels)?.pointer();
        let ranks = self.buffers.ranks.all();
        // No point has fallen on any pixel.
        stream.fill(ranks, 0xff)?;
        let [width, height] = self.size;
        let grid = Grid::over(self.pixels, THREADS);
        let arguments = (from, stride, ranks.pointer(), *motion, width, height);
        // SAFETY: the callers have checked that there is a depth for each of the `width × height` pixels, and the ranks
        // were checked on creation; the kernel writes inside the image alone.
        unsafe { self.rank.launch(stream, grid, arguments)? };
        let pixels = small("pixels of an image", self.pixels)?;
        // SAFETY: as above.
        unsafe {
            self.take
                .launch(stream, grid, (ranks.pointer(), to, pixels))
        }
    }
}
