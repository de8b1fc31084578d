//! Depth of a sensor, for the frames.

use super::scale::{KeyframeScale, ScaleEstimate, ScaleSource};
use crate::compute::depth::{DepthScale, NoScale};
use crate::compute::device::DeviceError;
use crate::slam::Slam;

/// Number of consecutive frames whose depth cannot be used after which that is reported.
const REPORTED: usize = 5;

impl Slam {
    /// Gives the next processed frame its depth: metres along the camera's z axis for each pixel of the network's
    /// image ([`Slam::network_image`]), row by row, 0 where there is none. `None`, the default, is a frame without
    /// depth. Depth makes the map metric; one that cannot be used is reported and ignored.
    ///
    /// # Errors
    /// Without `depth.use`, or for another number of pixels. The frame then has no depth.
    pub fn set_depth(&mut self, metres: Option<&[f32]>) -> Result<(), DeviceError> {
        match (self.config.depth.enabled, metres) {
            (true, metres) => self.tracker.device_mut().set_depth(metres),
            (false, None) => Ok(()),
            (false, Some(_)) => Err(DeviceError::NoDepth),
        }
    }

    /// The scale of the map by what sensors measured in the newest 50 keyframes, as published last; `None` if
    /// they measured nothing.
    pub fn scale(&self) -> Option<ScaleEstimate> {
        self.map.poses().shared().load().scale
    }
}

impl From<DepthScale> for KeyframeScale {
    fn from(found: DepthScale) -> Self {
        Self {
            log_scale: found.log_scale,
            sigma: found.sigma,
            source: ScaleSource::Depth,
        }
    }
}

/// Reports depth that cannot be used, once until it can be used again.
#[derive(Debug, Default)]
pub struct DepthWatch {
    /// Consecutive frames with depth that cannot be used.
    unusable: usize,
}

impl DepthWatch {
    /// Notes what the depth of a frame, if it has any, says about its scale.
    pub fn note(&mut self, index: usize, found: Option<Result<DepthScale, NoScale>>) {
        match found {
            None => {}
            Some(Ok(_)) => self.unusable = 0,
            Some(Err(reason)) => {
                self.unusable += 1;
                if self.unusable == REPORTED {
                    tracing::warn!(
                        "frame {index}: {reason}; the last {REPORTED} frames were tracked without depth"
                    );
                }
            }
        }
    }
}
