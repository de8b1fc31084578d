//! The scale of the active keyframe by depth.

use super::depth_clock::DepthClock;
use super::depth_timer::DepthTimer;
use super::scale::KeyframeScale;
use super::tracked_scale::TrackedScale;
use crate::compute::depth::DepthScale;

/// What the tracker knows about depth beside what the device measures.
#[derive(Debug, Default)]
pub struct KeyframeDepth {
    /// `None` without `depth.use` or a calibration.
    timer: Option<DepthTimer>,
    /// The offset of depth as the active keyframe was made, in seconds.
    offset: f64,
    /// Whether the active keyframe was made from a frame without depth that can be used.
    lacks_scale: bool,
}

impl KeyframeDepth {
    /// With the timer of a calibrated camera.
    pub fn new(timer: Option<DepthTimer>) -> Self {
        Self {
            timer,
            ..Self::default()
        }
    }

    /// The timer; `None` without `depth.use` or a calibration.
    pub fn timer(&self) -> Option<&DepthTimer> {
        self.timer.as_ref()
    }

    /// See [`KeyframeDepth::timer`].
    pub fn timer_mut(&mut self) -> Option<&mut DepthTimer> {
        self.timer.as_mut()
    }

    /// The current frame became the active keyframe, whose depth shows this scale.
    pub fn start_keyframe(&mut self, found: Option<DepthScale>) -> Option<KeyframeScale> {
        self.join_keyframe();
        self.lacks_scale = found.is_none();
        if let Some(timer) = &mut self.timer
            && !self.lacks_scale
        {
            timer.want_rate();
        }
        found.map(|found| KeyframeScale::by_depth(&found, self.clock(0.0)))
    }

    /// A keyframe of the map became the active one.
    pub fn join_keyframe(&mut self) {
        self.lacks_scale = false;
        if let Some(timer) = &mut self.timer {
            timer.forget_rate();
            self.offset = timer.offset();
        }
    }

    /// The scale of the active keyframe as it is left: by its own depth, or by that of the frames that were tracked
    /// against it.
    pub fn of_left(&self, own: Option<DepthScale>, frames: &TrackedScale) -> Option<KeyframeScale> {
        let rate = self.timer().map_or(0.0, DepthTimer::rate);
        let by_frames = || Some(KeyframeScale::by_depth(&frames.scale()?, self.clock(0.0)));
        match own {
            Some(found) => Some(KeyframeScale::by_depth(&found, self.clock(rate))),
            None => by_frames(),
        }
    }

    fn clock(&self, rate: f64) -> DepthClock {
        DepthClock {
            offset: self.offset,
            rate,
        }
    }

    /// Whether the active keyframe was made without depth that can be used.
    pub fn lacks_scale(&self) -> bool {
        self.lacks_scale
    }
}
