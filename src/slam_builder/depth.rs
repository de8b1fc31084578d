//! Gives SLAM the depth of a source's frames.

use crate::compute::device::DeviceError;
use crate::image::depth::{DepthCamera, DepthImage, DepthReader};
use crate::slam::Slam;

/// Gives SLAM the depth of a source's frames, and counts it. A depth image that cannot be used is reported once and
/// left out.
#[derive(Debug)]
pub struct DepthFeed {
    reader: DepthReader,
    camera: DepthCamera,
    frames: usize,
    with_depth: usize,
    unusable: usize,
    /// Sum of the measured parts of the network's images.
    filled: f64,
}

impl DepthFeed {
    /// For depth images of `camera`; `None` without `depth.use`.
    pub fn new(slam: &Slam, camera: &DepthCamera) -> Option<Self> {
        Some(Self {
            reader: slam.depth_reader()?,
            camera: *camera,
            frames: 0,
            with_depth: 0,
            unusable: 0,
            filled: 0.0,
        })
    }

    /// Gives the frame that is processed next its depth, if it has any.
    ///
    /// # Errors
    /// If the device fails.
    pub fn give(&mut self, slam: &mut Slam, image: Option<&DepthImage>) -> Result<(), DeviceError> {
        self.frames += 1;
        let Some(image) = image else {
            return Ok(());
        };
        match self.reader.read(image, &self.camera) {
            Ok(depth) => {
                self.with_depth += 1;
                self.filled += depth.measured as f64 / depth.metres.len().max(1) as f64;
                slam.set_depth(Some(depth.metres))
            }
            Err(error) => {
                if self.unusable == 0 {
                    tracing::warn!("{error}; frames without depth are tracked without it");
                }
                self.unusable += 1;
                Ok(())
            }
        }
    }

    /// For people: how many frames had depth.
    pub fn summary(&self) -> String {
        let mut text = format!("depth: {} of {} frames", self.with_depth, self.frames);
        if self.with_depth > 0 {
            let filled = 100.0 * self.filled / self.with_depth as f64;
            text += &format!(", on average {filled:.0} % of their pixels");
        }
        if self.unusable > 0 {
            text += &format!("; {} depth images could not be used", self.unusable);
        }
        text
    }
}
