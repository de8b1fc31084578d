//! The network's outputs on the device, and their sanitising, bit-identical to
//! [`crate::inference::sanitise`].

use crate::gpu::{
    Carver, Context, CudaError, DeviceBuffer, DevicePointer, DeviceSlice, Grid, Kernel,
    KernelArgument, Stream,
};
use crate::inference::DeviceView;
use std::ops::Range;

/// A sum and a ticket of either view.
const SCRATCH: usize = 4;

/// Threads per block, two per pixel; must match `sanitise.cu`.
const THREADS: u32 = 256;

/// Buffers for the outputs of one view.
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
    /// Buffers for views of `pixels` pixels with `channels` channels per descriptor.
    pub fn carve(
        c: &mut Carver<'_, '_>,
        pixels: usize,
        channels: usize,
    ) -> Result<Self, CudaError> {
        Ok(Self {
            points: c.device("points", &[pixels, 3])?,
            confidence: c.device("confidence", &[pixels])?,
            descriptors: c.device("descriptors", &[pixels, channels])?,
            descriptor_confidence: c.device("descriptor confidence", &[pixels])?,
        })
    }

    /// The buffers of pair `which`, in memory for several pairs of `pixels` each.
    pub fn of_pair(&self, which: usize, pixels: usize) -> Result<Self, CudaError> {
        self.of_pairs(which..which + 1, pixels)
    }

    /// The buffers of several consecutive pairs.
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

    pub fn view(&self) -> DeviceView<'_> {
        DeviceView {
            points: self.points.all(),
            confidence: self.confidence.all(),
            descriptors: self.descriptors.all(),
            descriptor_confidence: self.descriptor_confidence.all(),
            unusable: None,
        }
    }
}

/// Both views of `images` outputs each, with counts of unusable pixels: the first half of `unusable` is view 1's.
pub fn counted<'a>(
    [first, second]: [&'a ViewBuffers; 2],
    unusable: &'a DeviceBuffer<u32>,
    images: usize,
) -> Result<[DeviceView<'a>; 2], CudaError> {
    let half = unusable.len() / 2;
    let of_second = unusable.slice(half..half + images)?;
    Ok([
        first.view().counting(unusable.slice(0..images)?),
        second.view().counting(of_second),
    ])
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

/// Memory of a [`Sanitiser`].
pub struct SanitiserBuffers {
    /// Zero between launches.
    scratch: DeviceBuffer<u32>,
}

impl SanitiserBuffers {
    /// Buffers for views of any size.
    pub fn carve(c: &mut Carver<'_, '_>) -> Result<Self, CudaError> {
        Ok(Self {
            scratch: c.device("sums and tickets", &[SCRATCH])?,
        })
    }
}

/// Sanitises the outputs of one or two views in a single launch.
pub struct Sanitiser {
    kernel: Kernel,
    pixels: u32,
    channels: u32,
    buffers: SanitiserBuffers,
}

impl Sanitiser {
    /// For views of `pixels` pixels with `channels` channels per descriptor; clears the scratch memory on `stream`.
    pub fn new(
        context: &Context,
        stream: &Stream,
        buffers: SanitiserBuffers,
        pixels: usize,
        channels: usize,
    ) -> Result<Self, CudaError> {
        let scratch = buffers.scratch.all();
        stream.fill(scratch.at_least("scratch of the sanitiser", SCRATCH)?, 0)?;
        Ok(Self {
            kernel: context.kernel("ms_sanitise")?,
            pixels: super::small("pixels", pixels)?,
            channels: super::small("channels of a descriptor", channels)?,
            buffers,
        })
    }

    /// Sanitises `first`, and `second` if given; writes the number of unusable pixels per view to
    /// `unusable`.
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
            // With one view the grid has one row of blocks, and none accesses the second view.
            views: [first, second.unwrap_or(first)].map(pointers),
            unusable: unusable.pointer(),
            scratch: self.buffers.scratch.pointer(),
            pixels: self.pixels,
            channels: self.channels,
        };
        let mut grid = Grid::over(2 * self.pixels as usize, THREADS);
        grid.blocks.1 = views;
        // SAFETY: both views have elements for `pixels` and `channels`, checked above, and aligned
        // descriptors; there is a count for each view, and scratch memory for two.
        unsafe { self.kernel.launch(stream, grid, (arguments,)) }
    }
}
