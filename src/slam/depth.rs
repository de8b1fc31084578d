//! Depth of a sensor, for the frames.

use super::metric::depth_timer::{DepthTimer, FrameDepth};
use super::{Frame, ScaleEstimate, Slam, SlamError};
use crate::compute::depth::moved::NextDepth;
use crate::compute::device::DeviceError;
use crate::config::Config;
use crate::image::NetworkView;
use crate::image::depth::{DepthLimits, DepthReader};
use nalgebra::Isometry3;

impl Slam {
    /// Gives the next processed frame its depth, for each pixel of the network's image ([`Slam::network_image`]). `None`,
    /// the default, is a frame without depth. Depth makes the map metric; one that cannot be used is reported and ignored.
    ///
    /// # Errors
    /// Without `depth.use`, or for another number of pixels. The frame then has no depth.
    pub fn set_depth(&mut self, depth: Option<FrameDepth<'_>>) -> Result<(), DeviceError> {
        match (self.config.depth.enabled, depth) {
            (true, _) => {}
            (false, Some(_)) => return Err(DeviceError::NoDepth),
            (false, None) => return Ok(()),
        }
        self.depth_is_set = true;
        let given = match &mut self.depth_timer {
            Some(timer) => timer.give(depth),
            None => depth.map(|depth| (depth.metres, None)),
        };
        let next = given.map(|(metres, motion)| NextDepth::Measured { metres, motion });
        self.tracker.device_mut().set_depth(next)
    }

    /// Encodes a frame. Without depth of its own it has the newest depth, as that of a sensor that is slower than the
    /// camera; returns whether it has.
    pub(super) fn encode(&mut self, frame: &Frame<'_>) -> Result<bool, SlamError> {
        if !self.depth_is_set {
            self.set_depth(None)?;
        }
        self.depth_is_set = false;
        let motion = self.depth_timer.as_mut().and_then(DepthTimer::carried);
        if let Some(motion) = motion {
            let device = self.tracker.device_mut();
            device.set_depth(Some(NextDepth::Carried(motion)))?;
        }
        let encoded = self.tracker.encode(frame);
        if encoded.is_err() {
            if let Some(timer) = &mut self.depth_timer {
                timer.skip();
            }
            // Without `depth.use` there is none to forget.
            let _ = self.tracker.device_mut().set_depth(None);
        }
        encoded.map(|()| motion.is_some())
    }

    /// Notes what a processed frame shows: whether its depth can be used, if that `is_carried` from another frame, its
    /// motion from the frame before, and the keyframe that it became. Depth then measures motions between keyframes.
    pub(super) fn note_depth(
        &mut self,
        frame: &Frame<'_>,
        is_carried: bool,
        (step, keyframe): (Option<&Isometry3<f64>>, Option<u32>),
    ) {
        let found = self.tracker.device().depth_found();
        if !is_carried {
            self.depth.note(frame.index, found);
        }
        if let Some(timer) = &mut self.depth_timer {
            let refused = matches!(found, Some(Err(_)));
            timer.tracked(frame.stamp, step, refused);
            if let Some(id) = keyframe {
                timer.start_keyframe(id);
            }
            timer.measure_motion();
            while let Some(report) = timer.report() {
                self.map.add_depth_report(report);
            }
            self.map.set_depth_offset(timer.offset());
        }
    }

    /// The scale of the map by what sensors measured in the newest 50 keyframes, as published last; `None` if
    /// they measured nothing.
    pub fn scale(&self) -> Option<ScaleEstimate> {
        self.map.poses().shared().load().scale
    }

    /// The offset of depth images that is corrected, in seconds: what is added to a stamp for the time at which the depth
    /// was measured. That of the settings, or another one that was found; 0 without a calibration.
    pub fn depth_offset(&self) -> f64 {
        let timer = self.depth_timer.as_ref();
        timer.map_or(0.0, |timer| timer.offset().seconds)
    }

    /// A converter of depth images to what [`Slam::set_depth`] takes; `None` without `depth.use`.
    pub fn depth_reader(&self) -> Option<DepthReader> {
        let config = &self.config.depth;
        if !config.enabled {
            return None;
        }
        let view = self.view.unwrap_or_else(|| {
            let (size, _) = self.network_image();
            NetworkView::same(size)
        });
        Some(DepthReader::new(view, limits(&self.config)))
    }

    /// Sets how the network's images show the camera's, which otherwise have the same size.
    #[must_use]
    pub(crate) fn with_view(mut self, view: NetworkView) -> Self {
        self.view = Some(view);
        self
    }
}

/// Which measurements of depth the settings admit.
pub(super) fn limits(config: &Config) -> DepthLimits {
    DepthLimits {
        min: config.depth.min,
        max: config.depth.max,
        max_jump: config.depth.max_jump,
    }
}
