//! What depth says about the scale of frames and keyframes.

use super::scale::{KeyframeScale, ScaleSource};
use crate::compute::depth::{DepthScale, NoScale};

/// Number of consecutive frames whose depth cannot be used after which that is reported.
const REPORTED: usize = 5;

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
