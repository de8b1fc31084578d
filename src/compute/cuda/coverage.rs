//! Coverage of keyframes on the device, with the same counts as [`crate::compute::coverage`].

use super::global::DeviceMatches;
use super::small;
use crate::compute::coverage::{Coverage, Limits};
use crate::gpu::{
    Carver, Context, CudaError, DeviceBuffer, DeviceSlice, Floats, Grid, Kernel, Stream,
};

/// Threads per block, one per pixel; must match `coverage.cu`.
const THREADS: u32 = 256;

/// Usable pixels, those seen by one other keyframe, those seen by two.
const SUMS: usize = 3;

/// Memory of a [`CoverageCounter`].
pub struct CoverageBuffers {
    counts: DeviceBuffer<u8>,
    sums: DeviceBuffer<u32>,
}

impl CoverageBuffers {
    /// Buffers for images of `pixels` pixels.
    pub fn carve(c: &mut Carver<'_, '_>, pixels: usize) -> Result<Self, CudaError> {
        Ok(Self {
            counts: c.device("counts", &[pixels])?,
            sums: c.device("sums", &[SUMS])?,
        })
    }
}

/// Another keyframe's view of a keyframe: `N` pixels.
#[derive(Clone, Copy)]
pub struct DeviceViewOf<'a> {
    /// The keyframe's pixels in the other.
    pub matches: DeviceMatches<'a>,
    /// `N × 3` points of the other keyframe.
    pub points: DeviceSlice<'a, f32>,
    /// Scale of the keyframe's pose over that of the other.
    pub scale: f32,
}

/// Counts one keyframe at a time: [`CoverageCounter::clear`], [`CoverageCounter::add`] for each view, then
/// [`CoverageCounter::count`].
pub struct CoverageCounter {
    add: Kernel,
    sum: Kernel,
    pixels: usize,
    buffers: CoverageBuffers,
}

impl CoverageCounter {
    /// For images of `pixels` pixels.
    pub fn new(
        context: &Context,
        buffers: CoverageBuffers,
        pixels: usize,
    ) -> Result<Self, CudaError> {
        small("pixels of an image", pixels)?;
        buffers.counts.all().at_least("counts of pixels", pixels)?;
        buffers.sums.all().at_least("sums of a coverage", SUMS)?;
        Ok(Self {
            add: context.kernel("ms_coverage_add")?,
            sum: context.kernel("ms_coverage_sum")?,
            pixels,
            buffers,
        })
    }

    /// Starts another keyframe. Enqueues.
    pub fn clear(&self, stream: &Stream) -> Result<(), CudaError> {
        stream.fill(self.buffers.counts.all(), 0)?;
        stream.fill(self.buffers.sums.all(), 0)
    }

    /// Adds a view of the keyframe with `points` (`N × 3`). Enqueues.
    pub fn add(
        &self,
        stream: &Stream,
        points: DeviceSlice<'_, f32>,
        view: &DeviceViewOf<'_>,
        limits: &Limits,
    ) -> Result<(), CudaError> {
        let n = self.pixels;
        let matches = &view.matches;
        let arguments = (
            points.at_least("points", 3 * n)?.pointer(),
            view.points.at_least("other points", 3 * n)?.pointer(),
            matches.index.at_least("matches", n)?.pointer(),
            matches.quality.at_least("match qualities", n)?.pointer(),
            self.buffers.counts.pointer(),
            small("pixels of an image", n)?,
            limits.q_conf,
            view.scale * view.scale,
            limits.min_ratio * limits.min_ratio,
        );
        // SAFETY: the lengths were checked above, that of the counts on creation.
        unsafe { self.add.launch(stream, Grid::over(n, THREADS), arguments) }
    }

    /// Counts the pixels of the keyframe with `points` (`N × 3`) and average `confidence` (`N`). Waits.
    pub fn count(
        &self,
        stream: &Stream,
        points: DeviceSlice<'_, f32>,
        confidence: Floats<'_>,
        limits: &Limits,
    ) -> Result<Coverage, CudaError> {
        let n = self.pixels;
        let (half, single) = confidence.at_least("confidences", n)?.pointers();
        let arguments = (
            points.at_least("points", 3 * n)?.pointer(),
            half,
            single,
            self.buffers.counts.pointer(),
            small("pixels of an image", n)?,
            limits.c_conf,
            self.buffers.sums.pointer(),
        );
        // SAFETY: the lengths were checked above and on creation; one of the confidences is null.
        unsafe {
            self.sum.launch(stream, Grid::over(n, THREADS), arguments)?;
        }
        let mut sums = [0; SUMS];
        stream.read(self.buffers.sums.all(), &mut sums)?;
        let [usable, seen, covered] = sums;
        Ok(Coverage {
            usable,
            seen,
            covered,
        })
    }
}
