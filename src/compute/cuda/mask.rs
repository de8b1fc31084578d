//! Hidden pixels on the device, with the same values as [`crate::compute::mask`].

use super::slots::Floats;
use super::small;
use crate::gpu::{Context, CudaError, DevicePointer, DeviceSlice, Grid, Kernel, Stream};
use crate::inference::DeviceView;

/// Threads per block, one per pixel; must match `mask.cu`.
const THREADS: u32 = 256;

/// Hides pixels of views.
pub struct Masker {
    used: Kernel,
    f32: Kernel,
    f16: Kernel,
    pixels: u32,
}

impl Masker {
    /// For views of `pixels` pixels.
    pub fn new(context: &Context, pixels: usize) -> Result<Self, CudaError> {
        Ok(Self {
            used: context.kernel("ms_mask_used")?,
            f32: context.kernel("ms_mask_f32")?,
            f16: context.kernel("ms_mask_f16")?,
            pixels: small("pixels", pixels)?,
        })
    }

    /// Takes the confidences of the pixels away that are 0 in `used`.
    pub fn hide(
        &self,
        stream: &Stream,
        view: DeviceView<'_>,
        used: DeviceSlice<'_, u8>,
    ) -> Result<(), CudaError> {
        let used = used.at_least("mask", self.pixels as usize)?.pointer();
        let (confidence, descriptor_confidence) = self.confidences(&view)?;
        let arguments = (used, confidence, descriptor_confidence, self.pixels);
        // SAFETY: each array has `pixels` elements, checked above.
        unsafe { self.used.launch(stream, self.grid(), arguments) }
    }

    /// Takes the confidences of the pixels away that have none in a keyframe.
    pub fn hide_as_in(
        &self,
        stream: &Stream,
        view: DeviceView<'_>,
        keyframe_confidence: Floats<'_>,
    ) -> Result<(), CudaError> {
        let n = self.pixels as usize;
        let (confidence, descriptor_confidence) = self.confidences(&view)?;
        match keyframe_confidence {
            Floats::F32(of) => {
                let of = of.at_least("confidences of a keyframe", n)?.pointer();
                let arguments = (of, confidence, descriptor_confidence, self.pixels);
                // SAFETY: each array has `pixels` elements, checked above.
                unsafe { self.f32.launch(stream, self.grid(), arguments) }
            }
            Floats::F16(of) => {
                let of = of.at_least("confidences of a keyframe", n)?.pointer();
                let arguments = (of, confidence, descriptor_confidence, self.pixels);
                // SAFETY: as above; `f16` and `__half` are the same 16 bits.
                unsafe { self.f16.launch(stream, self.grid(), arguments) }
            }
        }
    }

    fn confidences(
        &self,
        view: &DeviceView<'_>,
    ) -> Result<(DevicePointer<f32>, DevicePointer<f32>), CudaError> {
        let n = self.pixels as usize;
        let confidence = view.confidence.at_least("confidence", n)?;
        let descriptors = view
            .descriptor_confidence
            .at_least("descriptor confidence", n)?;
        Ok((confidence.pointer(), descriptors.pointer()))
    }

    fn grid(&self) -> Grid {
        Grid::over(self.pixels as usize, THREADS)
    }
}
