//! The network's outputs on the device, and making them safe to compute with: as
//! [`crate::inference::sanitise`], bit for bit.

use super::{
    Context, CudaError, DeviceArena, DeviceBuffer, DevicePointer, DeviceSlice, Grid, Kernel,
    KernelArgument, Stream,
};
use crate::compute::plan::Spec;
use std::ops::Range;

const POINTS: &str = "points";
const CONFIDENCE: &str = "confidence";
const DESCRIPTORS: &str = "descriptors";
const DESCRIPTOR_CONFIDENCE: &str = "descriptor confidence";
const SCRATCH: &str = "sums and tickets";

/// Threads of a block, two a pixel, as in `sanitise.cu`.
const THREADS: u32 = 256;

/// One view's dense outputs on the device, as [`crate::inference::ViewOutput`] holds them on the host.
#[derive(Debug, Clone, Copy)]
pub struct DeviceView<'a> {
    /// `N × 3` points in the camera frame of view 1.
    pub points: DeviceSlice<'a, f32>,
    /// `N` confidences of the points.
    pub confidence: DeviceSlice<'a, f32>,
    /// `N × D` descriptors, 16-byte aligned.
    pub descriptors: DeviceSlice<'a, f32>,
    /// `N` confidences of the descriptors.
    pub descriptor_confidence: DeviceSlice<'a, f32>,
}

impl DeviceView<'_> {
    /// Says so if a part is too short for `pixels` of `channels`, or the descriptors are misaligned.
    pub(super) fn check(&self, pixels: usize, channels: usize) -> Result<(), CudaError> {
        self.points.at_least("points", pixels * 3)?;
        self.confidence.at_least("confidences", pixels)?;
        self.descriptors
            .at_least("descriptors", pixels * channels)?;
        self.descriptor_confidence
            .at_least("descriptor confidences", pixels)?;
        self.descriptors.aligned("descriptors", 16)?;
        Ok(())
    }
}

/// Memory for one view's outputs.
pub struct ViewBuffers {
    /// `N × 3` points.
    pub points: DeviceBuffer<f32>,
    /// `N` confidences of the points.
    pub confidence: DeviceBuffer<f32>,
    /// `N × D` descriptors.
    pub descriptors: DeviceBuffer<f32>,
    /// `N` confidences of the descriptors.
    pub descriptor_confidence: DeviceBuffer<f32>,
}

impl ViewBuffers {
    /// What [`ViewBuffers::carve`] takes, in order.
    pub fn buffers(pixels: usize, channels: usize) -> Vec<Spec> {
        vec![
            Spec::of::<f32>(POINTS, &[pixels, 3]),
            Spec::of::<f32>(CONFIDENCE, &[pixels]),
            Spec::of::<f32>(DESCRIPTORS, &[pixels, channels]),
            Spec::of::<f32>(DESCRIPTOR_CONFIDENCE, &[pixels]),
        ]
    }

    /// Takes them from `arena`.
    pub fn carve(
        arena: &mut DeviceArena,
        pixels: usize,
        channels: usize,
    ) -> Result<Self, CudaError> {
        Ok(Self {
            points: arena.carve(POINTS, pixels * 3)?,
            confidence: arena.carve(CONFIDENCE, pixels)?,
            descriptors: arena.carve(DESCRIPTORS, pixels * channels)?,
            descriptor_confidence: arena.carve(DESCRIPTOR_CONFIDENCE, pixels)?,
        })
    }

    /// Of memory for the outputs of several pairs of `pixels` each, those of pair `which`.
    pub fn of_pair(&self, which: usize, pixels: usize) -> Result<Self, CudaError> {
        self.of_pairs(which..which + 1, pixels)
    }

    /// The same of several pairs that follow each other.
    pub fn of_pairs(&self, which: Range<usize>, pixels: usize) -> Result<Self, CudaError> {
        let part = |buffer: &DeviceBuffer<f32>| {
            let each = buffer.len() / (self.confidence.len() / pixels.max(1)).max(1);
            buffer.part(which.start * each..which.end * each)
        };
        Ok(Self {
            points: part(&self.points)?,
            confidence: part(&self.confidence)?,
            descriptors: part(&self.descriptors)?,
            descriptor_confidence: part(&self.descriptor_confidence)?,
        })
    }

    /// All of them.
    pub fn view(&self) -> DeviceView<'_> {
        DeviceView {
            points: self.points.all(),
            confidence: self.confidence.all(),
            descriptors: self.descriptors.all(),
            descriptor_confidence: self.descriptor_confidence.all(),
        }
    }
}

/// `ViewPointers` of `sanitise.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct ViewPointers {
    points: DevicePointer<f32>,
    confidence: DevicePointer<f32>,
    descriptors: DevicePointer<f32>,
    descriptor_confidence: DevicePointer<f32>,
}

/// `SanitiseArgs` of `sanitise.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct SanitiseArgs {
    views: [ViewPointers; 2],
    unusable: DevicePointer<u32>,
    scratch: DevicePointer<u32>,
    pixels: u32,
    channels: u32,
}

// SAFETY: the same fields in the same order as in the `.cu` file.
unsafe impl KernelArgument for SanitiseArgs {}

/// Sanitises the outputs of one or two views in one launch.
pub struct Sanitiser {
    kernel: Kernel,
    pixels: u32,
    channels: u32,
    /// Of each view a sum and a ticket, zero between launches.
    scratch: DeviceBuffer<u32>,
}

impl Sanitiser {
    /// What [`Sanitiser::new`] carves, in order.
    pub fn buffers() -> Vec<Spec> {
        vec![Spec::of::<u32>(SCRATCH, &[4])]
    }

    /// For views of `pixels` with descriptors of `channels`; clears its scratch on `stream`.
    pub fn new(
        context: &Context,
        arena: &mut DeviceArena,
        stream: &Stream,
        pixels: usize,
        channels: usize,
    ) -> Result<Self, CudaError> {
        let scratch = arena.carve(SCRATCH, 4)?;
        stream.fill(scratch.all(), 0)?;
        Ok(Self {
            kernel: context.kernel("ms_sanitise")?,
            pixels: super::small("pixels", pixels)?,
            channels: super::small("channels of a descriptor", channels)?,
            scratch,
        })
    }

    /// Makes `first`, and `second` if there is one, safe; the numbers of pixels that cannot be used go
    /// to `unusable`, one for each view.
    pub fn enqueue(
        &self,
        stream: &Stream,
        first: DeviceView<'_>,
        second: Option<DeviceView<'_>>,
        unusable: DeviceSlice<'_, u32>,
    ) -> Result<(), CudaError> {
        let views = 1 + u32::from(second.is_some());
        unusable.at_least("counts of unusable pixels", views as usize)?;
        for view in [Some(first), second].into_iter().flatten() {
            view.check(self.pixels as usize, self.channels as usize)?;
        }
        if self.pixels == 0 {
            return stream.fill(unusable, 0);
        }
        let pointers = |view: DeviceView<'_>| ViewPointers {
            points: view.points.pointer(),
            confidence: view.confidence.pointer(),
            descriptors: view.descriptors.pointer(),
            descriptor_confidence: view.descriptor_confidence.pointer(),
        };
        let arguments = SanitiseArgs {
            // With one view the grid has one row of blocks, and none looks at the second.
            views: [first, second.unwrap_or(first)].map(pointers),
            unusable: unusable.pointer(),
            scratch: self.scratch.pointer(),
            pixels: self.pixels,
            channels: self.channels,
        };
        let mut grid = Grid::over(2 * self.pixels as usize, THREADS);
        grid.blocks.1 = views;
        // SAFETY: both views have their elements for `pixels` and `channels`, checked above, and
        // aligned descriptors; there is a count for each view, and scratch for two.
        unsafe { self.kernel.launch(stream, grid, (arguments,)) }
    }
}
