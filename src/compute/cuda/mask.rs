//! Hidden pixels on the device, with the same values as [`crate::compute::mask`].

use super::small;
use crate::gpu::{
    Context, CudaError, DevicePointer, DeviceSlice, Floats, Grid, Kernel, KernelArgument, Stream,
};
use crate::inference::DeviceView;

/// Threads per block, one per pixel; must match `mask.cu`.
const THREADS: u32 = 256;

/// `View` of `mask.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct View {
    points: DevicePointer<f32>,
    confidence: DevicePointer<f32>,
    descriptors: DevicePointer<f32>,
    descriptor_confidence: DevicePointer<f32>,
    pixels: u32,
    channels: u32,
}

// SAFETY: the same fields in the same order as in the `.cu` file.
unsafe impl KernelArgument for View {}

/// Hides pixels of views.
pub struct Masker {
    used: Kernel,
    f32: Kernel,
    f16: Kernel,
    pixels: u32,
    channels: u32,
}

impl Masker {
    /// For views of `pixels` pixels with descriptors of `channels` numbers.
    pub fn new(context: &Context, pixels: usize, channels: usize) -> Result<Self, CudaError> {
        Ok(Self {
            used: context.kernel("ms_mask_used")?,
            f32: context.kernel("ms_mask_f32")?,
            f16: context.kernel("ms_mask_f16")?,
            pixels: small("pixels", pixels)?,
            channels: small("channels", channels)?,
        })
    }

    /// Makes the pixels unusable that are 0 in `used`.
    pub fn hide(
        &self,
        stream: &Stream,
        view: DeviceView<'_>,
        used: DeviceSlice<'_, u8>,
    ) -> Result<(), CudaError> {
        let used = used.at_least("mask", self.pixels as usize)?.pointer();
        let arguments = (used, self.argument(&view)?);
        // SAFETY: each array has `pixels` elements, checked above and by `argument`.
        unsafe { self.used.launch(stream, self.grid(), arguments) }
    }

    /// Makes the pixels unusable that have no confidence in a keyframe.
    pub fn hide_as_in(
        &self,
        stream: &Stream,
        view: DeviceView<'_>,
        keyframe_confidence: Floats<'_>,
    ) -> Result<(), CudaError> {
        let n = self.pixels as usize;
        let view = self.argument(&view)?;
        match keyframe_confidence {
            Floats::F32(of) => {
                let of = of.at_least("confidences of a keyframe", n)?.pointer();
                // SAFETY: each array has `pixels` elements, checked above and by `argument`.
                unsafe { self.f32.launch(stream, self.grid(), (of, view)) }
            }
            Floats::F16(of) => {
                let of = of.at_least("confidences of a keyframe", n)?.pointer();
                // SAFETY: as above; `f16` and `__half` are the same 16 bits.
                unsafe { self.f16.launch(stream, self.grid(), (of, view)) }
            }
        }
    }

    fn argument(&self, view: &DeviceView<'_>) -> Result<View, CudaError> {
        let (n, d) = (self.pixels as usize, self.channels as usize);
        let [points, confidence, descriptors, descriptor_confidence] = view.slices();
        Ok(View {
            points: points.at_least("points", 3 * n)?.pointer(),
            confidence: confidence.at_least("confidence", n)?.pointer(),
            descriptors: descriptors.at_least("descriptors", d * n)?.pointer(),
            descriptor_confidence: descriptor_confidence
                .at_least("descriptor confidence", n)?
                .pointer(),
            pixels: self.pixels,
            channels: self.channels,
        })
    }

    fn grid(&self) -> Grid {
        Grid::over(self.pixels as usize, THREADS)
    }
}
