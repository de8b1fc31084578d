//! Depth of a sensor, for the frames.

use super::Slam;
use crate::compute::device::DeviceError;
use crate::image::NetworkView;
use crate::image::depth::{DepthLimits, DepthReader};

impl Slam {
    /// Gives the next processed frame its depth.
    ///
    /// # Errors
    /// None yet.
    pub fn set_depth(&mut self, _metres: Option<&[f32]>) -> Result<(), DeviceError> {
        Ok(())
    }

    /// A converter of depth images to what [`Slam::set_depth`] takes; `None` without `depth.use`.
    pub fn depth_reader(&self) -> Option<DepthReader> {
        let config = &self.config.depth;
        if !config.enabled {
            return None;
        }
        let limits = DepthLimits {
            min: config.min,
            max: config.max,
            max_jump: config.max_jump,
        };
        let view = self.view.unwrap_or_else(|| {
            let (size, _) = self.network_image();
            NetworkView::same(size)
        });
        Some(DepthReader::new(view, limits))
    }

    /// Sets how the network's images show the camera's, which otherwise have the same size.
    #[must_use]
    pub(crate) fn with_view(mut self, view: NetworkView) -> Self {
        self.view = Some(view);
        self
    }
}
