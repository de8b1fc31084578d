//! The loss of a view, its gradients, and the optimiser's step.

use super::arguments::{DeviceCamera, Pool, Step};
use super::buffers::{GRADIENTS, SplatBuffers};
use super::view::Frame;
use crate::compute::cuda::small;
use crate::compute::splat::SplatError;
use crate::compute::splat::constants::TILE;
use crate::compute::splat::device::{AdamStep, Loss, LossWeights, RowGradients};
use crate::gpu::{Context, CudaError, DevicePointer, Grid, Kernel, Stream};

/// Threads of a block of an image's kernels; must match `splat_loss.cu`.
const THREADS: u32 = 256;
/// Threads of a block of the rows' kernels; must match `splat_rows.cu`.
const ROW_THREADS: u32 = 128;
/// Sums of the loss: absolute and squared differences of colours, SSIM, differences of depths. Then the pose's gradient.
const SUMS: usize = 4;
/// Colour channels.
const CHANNELS: u32 = 3;

/// The kernels of training.
pub(super) struct Trainer {
    ssim: Kernel,
    colour: Kernel,
    depth: Kernel,
    rows: Kernel,
    step: Kernel,
    write: Kernel,
}

impl Trainer {
    pub(super) fn new(context: &Context) -> Result<Self, CudaError> {
        Ok(Self {
            ssim: context.kernel("ms_splat_ssim")?,
            colour: context.kernel("ms_splat_colour_gradient")?,
            depth: context.kernel("ms_splat_depth_gradient")?,
            rows: context.kernel("ms_splat_row_gradients")?,
            step: context.kernel("ms_splat_step")?,
            write: context.kernel("ms_splat_write_gradients")?,
        })
    }

    /// The gradients of the loss by the image that was drawn, against the view in the image buffers. Clears the sums.
    /// Enqueues.
    pub(super) fn by_image(
        &self,
        stream: &Stream,
        b: &SplatBuffers,
        camera: &DeviceCamera,
        weights: &LossWeights,
        depth: bool,
    ) -> Result<(), CudaError> {
        let images = &b.images;
        stream.fill(b.sums.all(), 0)?;
        let pixels = camera.pixels();
        let values = (CHANNELS as usize * pixels) as f32;
        let grid = Grid {
            blocks: (camera.width.div_ceil(TILE), camera.height.div_ceil(TILE), 1),
            ..Grid::blocks(1, THREADS)
        };
        for channel in 0..CHANNELS {
            let (width, height) = (camera.width, camera.height);
            let of = (images.colour.pointer(), images.image.pointer());
            let maps = images.maps.pointer();
            let sums = b.sums.pointer();
            let arguments = (of.0, of.1, width, height, channel, maps, sums);
            // SAFETY: the images and maps have at least the camera's pixels, as the projection checked.
            unsafe {
                self.ssim.launch(stream, grid, arguments)?;
                let absolute = (1.0 - weights.ssim) / values;
                let similarity = weights.ssim / values;
                let to = images.by_colour.pointer();
                let arguments = (
                    of.0, of.1, width, height, channel, maps, absolute, similarity, to,
                );
                self.colour.launch(stream, grid, arguments)?;
            }
        }
        if depth {
            let arguments = (
                images.depth.pointer(),
                images.left.pointer(),
                images.measured.pointer(),
                small("pixels of an image", pixels)?,
                weights.depth / pixels as f32,
                images.by_depth.pointer(),
                images.by_silhouette.pointer(),
                b.sums.pointer(),
            );
            // SAFETY: as above.
            unsafe { (self.depth).launch(stream, Grid::over(pixels, THREADS), arguments)? };
        }
        Ok(())
    }

    /// Turns the gradients by what rows are in the image into those by their parameters and the camera. Enqueues.
    pub(super) fn by_rows(
        &self,
        stream: &Stream,
        b: &SplatBuffers,
        (pool, rest): (Pool, u32),
        frame: &Frame,
        statistics: bool,
    ) -> Result<(), CudaError> {
        if frame.visible == 0 {
            return Ok(());
        }
        let arguments = (
            pool,
            rest,
            frame.camera,
            b.visible.row.pointer(),
            b.visible.colour.pointer(),
            small("visible rows", frame.visible)?,
            u32::from(statistics),
            b.visible.gradients.pointer(),
            b.sums.slice(SUMS..SUMS + 6)?.pointer(),
        );
        let grid = Grid::over(frame.visible, ROW_THREADS);
        // SAFETY: the visible rows are rows of the pool, each with a record of gradients.
        unsafe { self.rows.launch(stream, grid, arguments) }
    }

    /// The loss of the gradients enqueued before. Waits.
    pub(super) fn loss(
        &self,
        stream: &Stream,
        b: &SplatBuffers,
        frame: &Frame,
        weights: &LossWeights,
    ) -> Result<Loss, CudaError> {
        let mut sums = [0.0_f64; SUMS + 6];
        stream.read(b.sums.all(), &mut sums)?;
        let pixels = frame.camera.pixels() as f64;
        let values = f64::from(CHANNELS) * pixels;
        let [l1, mse, ssim, depth] = [
            sums[0] / values,
            sums[1] / values,
            sums[2] / values,
            sums[3] / pixels,
        ];
        let lambda = f64::from(weights.ssim);
        let total = (1.0 - lambda) * l1 + lambda * (1.0 - ssim) + f64::from(weights.depth) * depth;
        Ok(Loss {
            total,
            l1,
            ssim,
            depth,
            mse,
            visible: frame.visible as u64,
            pose: std::array::from_fn(|k| sums[SUMS + k]),
        })
    }

    /// Changes the visible rows by their gradients. Enqueues.
    pub(super) fn step(
        &self,
        stream: &Stream,
        b: &SplatBuffers,
        (pool, rest): (Pool, u32),
        frame: &Frame,
        (step, rows): (&AdamStep, u64),
    ) -> Result<(), CudaError> {
        if frame.visible == 0 {
            return Ok(());
        }
        let arguments = (
            pool,
            rest,
            frame.camera,
            b.visible.row.pointer(),
            small("visible rows", frame.visible)?,
            b.visible.gradients.pointer(),
            Step::new(step, rows),
        );
        let grid = Grid::over(frame.visible, ROW_THREADS);
        // SAFETY: as for the gradients.
        unsafe { self.step.launch(stream, grid, arguments) }
    }

    /// Copies the gradients by all parameters, through the images' memory. Waits.
    pub(super) fn read(
        &self,
        stream: &Stream,
        b: &SplatBuffers,
        (pool, rest): (Pool, u32),
        frame: &Frame,
        dst: &mut RowGradients,
    ) -> Result<(), SplatError> {
        let floats = (GRADIENTS - 2) + rest as usize;
        dst.rows.resize(frame.visible, 0);
        dst.values.resize(frame.visible * floats, 0.0);
        if frame.visible > 0 {
            stream.read(b.visible.row.slice(0..frame.visible)?, &mut dst.rows)?;
        }
        // The maps of SSIM are not needed any more.
        let scratch = b.images.maps.all();
        let at_once = scratch.len() / floats;
        if at_once == 0 {
            return Err(SplatError::Crowded {
                what: "floats of a row's gradients",
                found: floats as u64,
                limit: scratch.len() as u64,
            });
        }
        let mut first = 0;
        while first < frame.visible {
            let count = at_once.min(frame.visible - first);
            let part = scratch.slice(0..count * floats)?;
            let gradients: DevicePointer<f32> = b.visible.gradients.pointer();
            let arguments = (
                pool,
                rest,
                frame.camera,
                b.visible.row.pointer(),
                small("visible rows", first)?,
                small("visible rows", count)?,
                gradients,
                part.pointer(),
            );
            let grid = Grid::over(count, ROW_THREADS);
            // SAFETY: the rows from `first` on are visible, and there is room for `count` of them.
            unsafe { self.write.launch(stream, grid, arguments)? };
            let to = first * floats..(first + count) * floats;
            stream.read(part, &mut dst.values[to])?;
            first += count;
        }
        Ok(())
    }
}
