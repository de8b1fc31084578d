//! Hidden pixels of the frames.

use super::Slam;
use crate::compute::device::DeviceError;
use crate::image::Preprocessor;
use crate::image::encoding::RawImage;

impl Slam {
    /// Hides pixels of the next frames and all that follow: what `mask`, of the camera images' size, shows in black (0).
    /// Hidden pixels match nothing and enter no pointmap, no cloud and no grid: the robot's own body, people. `None`
    /// shows everything but what [`SlamBuilder::mask`](crate::SlamBuilder::mask) hides. Keyframes keep what was hidden in
    /// them.
    ///
    /// # Errors
    /// Without `tracking.masks`, or if the mask has another size. The previous mask remains.
    pub fn set_mask(&mut self, mask: Option<&RawImage<'_>>) -> Result<(), DeviceError> {
        let Some(masks) = &mut self.masks else {
            return match mask {
                Some(_) => Err(DeviceError::NoMasks),
                None => Ok(()),
            };
        };
        self.tracker.device_mut().set_mask(masks.read(mask)?)
    }

    /// Like [`Slam::set_mask`], and hides these pixels under every later mask too.
    pub(crate) fn keep_mask(&mut self, mask: &RawImage<'_>) -> Result<(), DeviceError> {
        let masks = self.masks.as_mut().ok_or(DeviceError::NoMasks)?;
        self.tracker.device_mut().set_mask(masks.keep(mask)?)
    }

    /// Sets what makes masks of the network's images of those of the camera's, which otherwise have the same size.
    #[must_use]
    pub(crate) fn with_preprocessor(mut self, preprocessor: Option<Preprocessor>) -> Self {
        if let Some(masks) = &mut self.masks {
            masks.preprocess(preprocessor);
        }
        self
    }
}
