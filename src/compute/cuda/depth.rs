//! The scale of a pointmap by measured depth on the device, as [`crate::compute::depth::DepthMeter`] measures it.

pub mod field;
pub mod moved;

use super::small;
use crate::compute::depth::{self, DepthScale, NoScale, Ratios, Trust};
use crate::gpu::{
    Carver, Context, CudaError, DeviceBuffer, DevicePointer, DeviceSlice, Element, Grid, Kernel,
    KernelArgument, Stream,
};

/// Threads per block; must match `depth.cu`.
const THREADS: u32 = 256;
/// Bins of a histogram of digits; must match `depth.cu`.
const BINS: usize = 2048;
/// Pixels of a thread: a block's histogram costs as much as some pixels.
const PIXELS: usize = 4;
/// Maximum number of blocks.
const MAX_BLOCKS: usize = 256;
/// Words of `Selection` in `depth.cu`.
const SELECTION: usize = 4;
/// Digits of a key.
const LEVELS: u32 = 3;

/// What the ratios show, and the newest scale that could be used; `Found` of `depth.cu`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct Found {
    sum: f64,
    patches: f64,
    max_mad: f64,
    count: u32,
    inliers: u32,
    median: f32,
    mad: f32,
    factor: f32,
    accepted: u32,
    /// The number in [`Trust`].
    agreed: u32,
    reserved: u32,
}

// SAFETY: plain numbers without padding, the same fields in the same order as in the `.cu` file.
unsafe impl Element for Found {}

impl Found {
    /// Before the first measurement: points keep their scale.
    pub fn unscaled() -> Self {
        Self {
            factor: 1.0,
            ..Self::default()
        }
    }

    /// A measurement that was accepted, with this factor.
    pub fn scaled(factor: f32) -> Self {
        Self {
            factor,
            accepted: 1,
            ..Self::default()
        }
    }

    /// Whether the newest frame's measurement was accepted.
    pub fn is_accepted(&self) -> bool {
        self.accepted != 0
    }

    /// The trust in the sensor by this measurement and those before.
    pub fn trust(&self) -> Trust {
        Trust::after(self.agreed)
    }

    /// The same with another trust in the sensor.
    pub fn trusted(self, trust: Trust) -> Self {
        Self {
            agreed: trust.agreed(),
            ..self
        }
    }

    /// What points are multiplied with: the newest scale that could be used.
    pub fn factor(&self) -> f32 {
        self.factor
    }

    /// The scale of a pointmap of `pixels` pixels.
    ///
    /// # Errors
    /// As [`Ratios::scale`].
    pub fn scale(&self, pixels: usize) -> Result<DepthScale, NoScale> {
        let ratios = Ratios {
            pixels,
            count: self.count as usize,
            median: f64::from(self.median),
            mad: f64::from(self.mad),
            sum: self.sum,
            inliers: self.inliers as usize,
            patches: self.patches,
            max_mad: self.max_mad,
        };
        ratios.scale()
    }
}

/// `Limits` of `depth.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Limits {
    min_fraction: f64,
    max_mad: f64,
    max_trusted_mad: f64,
    max_log_scale: f64,
    inliers: f64,
    sigma_over_mad: f64,
    min_sigma: f64,
    full_patch: f64,
    trusted: u32,
    max_agreed: u32,
}

const LIMITS: Limits = Limits {
    min_fraction: depth::MIN_FRACTION,
    max_mad: depth::MAX_MAD,
    max_trusted_mad: depth::MAX_TRUSTED_MAD,
    max_log_scale: depth::MAX_LOG_SCALE,
    inliers: depth::INLIERS,
    sigma_over_mad: depth::SIGMA_OVER_MAD,
    min_sigma: depth::MIN_SIGMA,
    full_patch: depth::FULL_PATCH,
    trusted: depth::TRUSTED,
    max_agreed: depth::MAX_AGREED,
};

/// `Arguments` of `depth.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Arguments {
    points: DevicePointer<f32>,
    confidence: DevicePointer<f32>,
    metres: DevicePointer<f32>,
    used: DevicePointer<u32>,
    keys: DevicePointer<u32>,
    histogram: DevicePointer<u32>,
    patches: DevicePointer<u32>,
    selection: DevicePointer<u32>,
    partials: DevicePointer<f64>,
    found: DevicePointer<Found>,
    pixels: u32,
    width: u32,
    columns: u32,
    patch_count: u32,
    limits: Limits,
}

// SAFETY: the same fields in the same order as in the `.cu` file.
unsafe impl KernelArgument for Arguments {}

/// Memory of a [`DepthMeter`].
pub struct DepthMeterBuffers {
    keys: DeviceBuffer<u32>,
    histogram: DeviceBuffer<u32>,
    patches: DeviceBuffer<u32>,
    selection: DeviceBuffer<u32>,
    partials: DeviceBuffer<f64>,
}

impl DepthMeterBuffers {
    /// Buffers for images of this size.
    pub fn carve(c: &mut Carver<'_, '_>, width: usize, height: usize) -> Result<Self, CudaError> {
        let [columns, rows] = patches(width, height);
        Ok(Self {
            keys: c.device("log ratios", &[height, width])?,
            histogram: c.device("histogram", &[BINS])?,
            patches: c.device("patches", &[rows, columns])?,
            selection: c.device("selection", &[SELECTION])?,
            partials: c.device("partial sums", &[blocks(width * height), 2])?,
        })
    }
}

/// Columns and rows of patches.
fn patches(width: usize, height: usize) -> [usize; 2] {
    let columns = width.div_ceil(depth::PATCH).clamp(1, depth::MAX_COLUMNS);
    [columns, height.div_ceil(depth::PATCH)]
}

fn blocks(pixels: usize) -> usize {
    pixels
        .div_ceil(THREADS as usize * PIXELS)
        .clamp(1, MAX_BLOCKS)
}

/// A pointmap with depth to compare: `N` pixels.
#[derive(Clone, Copy)]
pub struct MeasureTask<'a> {
    /// `N × 3` points in the camera's frame.
    pub points: DeviceSlice<'a, f32>,
    /// `N` confidences; a point counts if its own is positive.
    pub confidence: DeviceSlice<'a, f32>,
    /// `N` depths along z in metres; 0: not measured.
    pub metres: DeviceSlice<'a, f32>,
    /// If given, a single number: 0 if there is no depth, so that `found` stays as it is.
    pub used: Option<DeviceSlice<'a, u32>>,
    /// A single result, which starts as [`Found::unscaled`] and gathers [`Trust`].
    pub found: DeviceSlice<'a, Found>,
}

/// Measures pointmaps of one size, one at a time on one stream.
pub struct DepthMeter {
    ratios: Kernel,
    digit: Kernel,
    mean: Kernel,
    rescale: Kernel,
    buffers: DepthMeterBuffers,
    pixels: usize,
    width: u32,
    patches: [u32; 2],
}

impl DepthMeter {
    /// For images of this size, for which `buffers` were carved; clears them on `stream`.
    pub fn new(
        context: &Context,
        stream: &Stream,
        buffers: DepthMeterBuffers,
        width: usize,
        height: usize,
    ) -> Result<Self, CudaError> {
        let pixels = width * height;
        // Indices of numbers of points fit 32 bits.
        small("numbers of a pointmap", 3 * pixels)?;
        let [columns, rows] = patches(width, height);
        let b = &buffers;
        b.keys.all().at_least("log ratios", pixels)?;
        b.partials
            .all()
            .at_least("partial sums", 2 * blocks(pixels))?;
        stream.fill(b.histogram.all().at_least("histogram", BINS)?, 0)?;
        stream.fill(b.patches.all().at_least("patches", columns * rows)?, 0)?;
        stream.fill(b.selection.all().at_least("selection", SELECTION)?, 0)?;
        Ok(Self {
            ratios: context.kernel("ms_depth_ratios")?,
            digit: context.kernel("ms_depth_digit")?,
            mean: context.kernel("ms_depth_mean")?,
            rescale: context.kernel("ms_depth_rescale")?,
            buffers,
            pixels,
            width: small("columns of an image", width)?,
            patches: [
                small("columns of patches", columns)?,
                small("patches", columns * rows)?,
            ],
        })
    }

    /// Enqueues a measurement: seven launches.
    pub fn measure(&self, stream: &Stream, task: &MeasureTask<'_>) -> Result<(), CudaError> {
        let n = self.pixels;
        if n == 0 {
            return Ok(());
        }
        let used = task.used.map(|u| u.at_least("use of depth", 1));
        let b = &self.buffers;
        let arguments = Arguments {
            points: task.points.at_least("points", 3 * n)?.pointer(),
            confidence: task.confidence.at_least("confidences", n)?.pointer(),
            metres: task.metres.at_least("depths", n)?.pointer(),
            used: used
                .transpose()?
                .map_or(DevicePointer::NULL, |u| u.pointer()),
            keys: b.keys.pointer(),
            histogram: b.histogram.pointer(),
            patches: b.patches.pointer(),
            selection: b.selection.pointer(),
            partials: b.partials.pointer(),
            found: task.found.at_least("scale by depth", 1)?.pointer(),
            pixels: small("pixels of an image", n)?,
            width: self.width,
            columns: self.patches[0],
            patch_count: self.patches[1],
            limits: LIMITS,
        };
        let grid = Grid::blocks(small("blocks", blocks(n))?, THREADS);
        // SAFETY: all buffers have the lengths that the kernels access: the task's were checked above, the others on
        // creation.
        unsafe {
            self.ratios.launch(stream, grid, (arguments,))?;
            for distances in [0_u32, 1] {
                // The first digit of the log ratios is counted as they are made.
                for level in 1 - distances..LEVELS {
                    self.digit
                        .launch(stream, grid, (arguments, distances, level))?;
                }
            }
            self.mean.launch(stream, grid, (arguments,))
        }
    }

    /// Enqueues multiplying the points (`N × 3`) of one or two views by the factor of `found`.
    pub fn rescale(
        &self,
        stream: &Stream,
        points: DeviceSlice<'_, f32>,
        other: Option<DeviceSlice<'_, f32>>,
        found: DeviceSlice<'_, Found>,
    ) -> Result<(), CudaError> {
        let numbers = 3 * self.pixels;
        let first = points.at_least("points", numbers)?.pointer();
        let second = other.map(|o| o.at_least("points", numbers)).transpose()?;
        let mut grid = Grid::over(numbers, THREADS);
        grid.blocks.1 = 1 + u32::from(second.is_some());
        let arguments = (
            first,
            second.map_or(first, |s| s.pointer()),
            found.at_least("scale by depth", 1)?.pointer(),
            small("numbers of a pointmap", numbers)?,
        );
        // SAFETY: the lengths were checked above; with one view the grid has one row of blocks.
        unsafe { self.rescale.launch(stream, grid, arguments) }
    }
}
