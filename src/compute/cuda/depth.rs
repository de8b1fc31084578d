//! The scale of a pointmap by measured depth on the device, as [`crate::compute::depth::DepthMeter`] measures it.

pub mod field;
pub mod moved;
pub mod pointmap;

use self::field::{DepthField, FitArguments};
use super::small;
use crate::compute::depth::pixels::OfPixels;
use crate::compute::depth::smooth::Average;
use crate::compute::depth::{self, DepthScale, NoScale, Ratios, Trust};
use crate::gpu::{
    Carver, Context, CudaError, DeviceBuffer, DevicePointer, DeviceSlice, Element, Grid, Kernel,
    KernelArgument, Stream,
};

/// Threads per block of the measurement; must match `depth.cu`.
const THREADS: u32 = 512;
/// Threads per block of `depth_apply.cu` and `depth_move.cu`.
const APPLY_THREADS: u32 = 256;
/// Bins of all histograms of digits; must match `depth.cu`.
const BINS: usize = 3 * 256;
/// Pixels of a thread: a block's histogram costs as much as some pixels.
const PIXELS: usize = 4;
/// Words of `Partial` in `depth.cu`.
const PARTIAL: usize = 2;

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
    own: f32,
    matched: f32,
    keyframe: f32,
    reach: f32,
    radius: u32,
    bias: f32,
    surfaces: u32,
    confidence: f32,
    spread: i32,
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

    /// The same with other gains of pixels.
    pub fn correcting(self, pixels: OfPixels) -> Self {
        Self {
            own: pixels.own,
            matched: pixels.matched,
            keyframe: pixels.keyframe,
            reach: pixels.reach,
            radius: pixels.average.radius,
            bias: pixels.average.bias,
            spread: pixels.average.spread,
            surfaces: u32::from(pixels.surfaces),
            confidence: pixels.confidence,
            ..self
        }
    }

    /// How far a pixel's own depth corrects its point, by the newest fit of a field.
    pub fn of_pixels(&self) -> OfPixels {
        OfPixels {
            own: self.own,
            matched: self.matched,
            keyframe: self.keyframe,
            reach: self.reach,
            average: Average {
                radius: self.radius,
                bias: self.bias,
                spread: self.spread,
            },
            surfaces: self.surfaces != 0,
            confidence: self.confidence,
        }
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
    keys: DevicePointer<u16>,
    histograms: DevicePointer<u32>,
    patches: DevicePointer<u32>,
    partials: DevicePointer<u64>,
    arrived: DevicePointer<u32>,
    found: DevicePointer<Found>,
    pixels: u32,
    width: u32,
    columns: u32,
    patch_count: u32,
    limits: Limits,
    fit: FitArguments,
}

// SAFETY: the same fields in the same order as in the `.cu` file.
unsafe impl KernelArgument for Arguments {}

/// Memory of a [`DepthMeter`].
pub struct DepthMeterBuffers {
    keys: DeviceBuffer<u16>,
    histograms: DeviceBuffer<u32>,
    patches: DeviceBuffer<u32>,
    partials: DeviceBuffer<u64>,
    arrived: DeviceBuffer<u32>,
}

impl DepthMeterBuffers {
    /// Buffers for images of this size.
    pub fn carve(c: &mut Carver<'_, '_>, width: usize, height: usize) -> Result<Self, CudaError> {
        let [columns, rows] = patches(width, height);
        Ok(Self {
            keys: c.device("log ratios", &[height, width])?,
            histograms: c.device("histograms", &[BINS])?,
            patches: c.device("patches", &[rows, columns])?,
            partials: c.device("partial sums", &[max_blocks(width * height), 2, PARTIAL])?,
            arrived: c.device("barrier", &[1])?,
        })
    }
}

/// Columns and rows of patches.
fn patches(width: usize, height: usize) -> [usize; 2] {
    let columns = width.div_ceil(depth::PATCH).clamp(1, depth::MAX_COLUMNS);
    [columns, height.div_ceil(depth::PATCH)]
}

/// Blocks of a GPU with enough multiprocessors.
fn max_blocks(pixels: usize) -> usize {
    pixels.div_ceil(THREADS as usize * PIXELS).max(1)
}

/// A pointmap with depth to compare: `N` pixels.
#[derive(Clone, Copy)]
pub struct MeasureTask<'a> {
    /// `N × 3` points in the camera's frame.
    pub points: DeviceSlice<'a, f32>,
    /// `N` confidences; a point counts if its own is positive.
    pub confidence: DeviceSlice<'a, f32>,
    /// `N` depths along z in metres; 0: not measured. With a field they become averages as far as the sensor's noise asks
    /// for it.
    pub metres: DeviceSlice<'a, f32>,
    /// If given, a single number: 0 if there is no depth, so that `found` stays as it is.
    pub used: Option<DeviceSlice<'a, u32>>,
    /// A single result, which starts as [`Found::unscaled`] and gathers [`Trust`].
    pub found: DeviceSlice<'a, Found>,
}

/// Measures pointmaps of one size, one at a time on one stream.
pub struct DepthMeter {
    measure: Kernel,
    rescale: Kernel,
    buffers: DepthMeterBuffers,
    pixels: usize,
    width: u32,
    patches: [u32; 2],
    blocks: u32,
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
            .at_least("partial sums", 2 * PARTIAL * max_blocks(pixels))?;
        stream.fill(b.histograms.all().at_least("histograms", BINS)?, 0)?;
        stream.fill(b.patches.all().at_least("patches", columns * rows)?, 0)?;
        stream.fill(b.arrived.all().at_least("barrier", 1)?, 0)?;
        // All blocks are resident: at most one on a multiprocessor.
        let multiprocessors = (context.info().multiprocessors as usize).max(1);
        Ok(Self {
            measure: context.kernel("ms_depth_measure")?,
            rescale: context.kernel("ms_depth_rescale")?,
            pixels,
            width: small("columns of an image", width)?,
            patches: [
                small("columns of patches", columns)?,
                small("patches", columns * rows)?,
            ],
            blocks: small("blocks", max_blocks(pixels).min(multiprocessors))?,
            buffers,
        })
    }

    /// Enqueues a measurement, and if it is accepted the fit of `field`: one launch.
    pub fn measure(
        &self,
        stream: &Stream,
        task: &MeasureTask<'_>,
        field: Option<&DepthField>,
    ) -> Result<(), CudaError> {
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
            histograms: b.histograms.pointer(),
            patches: b.patches.pointer(),
            partials: b.partials.pointer(),
            arrived: b.arrived.pointer(),
            found: task.found.at_least("scale by depth", 1)?.pointer(),
            pixels: small("pixels of an image", n)?,
            width: self.width,
            columns: self.patches[0],
            patch_count: self.patches[1],
            limits: LIMITS,
            fit: match field {
                Some(field) => field.fit_arguments(n)?,
                None => FitArguments::NONE,
            },
        };
        let grid = Grid::blocks(self.blocks, THREADS);
        // SAFETY: all buffers have the lengths that the kernel accesses: the task's and the field's were checked above,
        // the others on creation. The grid is resident: one block fits a multiprocessor by the kernel's launch bounds.
        unsafe { self.measure.launch_cooperative(stream, grid, (arguments,)) }
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
        let mut grid = Grid::over(numbers, APPLY_THREADS);
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
