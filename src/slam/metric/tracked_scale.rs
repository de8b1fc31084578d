//! The scale of a keyframe by the depth of the frames that were tracked against it: for keyframes whose own image came
//! without depth, as of a sensor that is slower than the camera.

use super::scale::{KeyframeScale, ScaleSource};
use crate::compute::depth::DepthScale;
use crate::geometry::Sim3;

/// Standard deviation of the ratio of two pointmaps' scales, which tracking finds: what the network gets wrong about a
/// keyframe is common to all frames that are tracked against it. On hololens_office, whose keyframes all have depth, the
/// two measurements differ by 0.046 (0.030 by their median).
const PAIR_SIGMA: f64 = 0.04;

/// The information-weighted mean of measurements, from which a keyframe's scale is read when it is left.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TrackedScale {
    information: f64,
    /// Sum of information times log scale.
    weighted: f64,
}

impl TrackedScale {
    /// With a tracked frame whose pointmap was multiplied by the scale that its depth `found`: it is metric, so
    /// `keyframe_from_frame` maps metres to the keyframe's units.
    #[must_use]
    pub fn with(self, found: &DepthScale, keyframe_from_frame: &Sim3) -> Self {
        let log_scale = -keyframe_from_frame.scale.ln();
        let information = found.sigma.powi(-2);
        if !(log_scale.is_finite() && information.is_finite()) {
            return self;
        }
        Self {
            information: self.information + information,
            weighted: self.weighted + information * log_scale,
        }
    }

    /// Metres per unit of the keyframe; `None` without a measurement.
    pub fn scale(&self) -> Option<KeyframeScale> {
        (self.information > 0.0).then(|| KeyframeScale {
            log_scale: self.weighted / self.information,
            sigma: (1.0 / self.information + PAIR_SIGMA * PAIR_SIGMA).sqrt(),
            source: ScaleSource::Depth,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pose(scale: f64) -> Sim3 {
        Sim3 {
            scale,
            ..Sim3::identity()
        }
    }

    #[test]
    fn it_is_the_weighted_mean_and_no_more_certain_than_a_pair() {
        let found = |sigma| DepthScale {
            log_scale: 0.7,
            sigma,
        };
        let none = TrackedScale::default();
        assert_eq!(none.scale(), None);
        // A metre is half a unit of the keyframe: a unit is two metres.
        let one = none.with(&found(0.01), &pose(0.5)).scale().expect("one");
        assert!((one.log_scale - 2.0_f64.ln()).abs() < 1e-12);
        assert!((one.sigma - 0.01_f64.hypot(PAIR_SIGMA)).abs() < 1e-12);
        let two = none
            .with(&found(0.01), &pose(0.5))
            .with(&found(0.02), &pose(0.25))
            .scale()
            .expect("two");
        let mean = (4.0 * 2.0_f64.ln() + 4.0_f64.ln()) / 5.0;
        assert!((two.log_scale - mean).abs() < 1e-12, "{two:?}");
        assert!(two.sigma < one.sigma && two.sigma > PAIR_SIGMA);
        for wrong in [0.0, f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(none.with(&found(0.01), &pose(wrong)), none);
            assert_eq!(none.with(&found(0.0), &pose(1.0)), none);
        }
    }
}
