//! Measured scales of keyframes, and what they say about the map (docs/algorithm.md, Metric scale).

use super::robust::Mean;
use crate::compute::global::ScalePrior;
use crate::geometry::Sim3;
use rustc_hash::FxHashMap;
use std::fmt;

/// Number of the newest keyframes whose scales make the estimate.
pub(super) const ESTIMATED: usize = 50;
/// Standard deviation of log scale that no number of keyframes lowers: a sensor errs alike in all.
const COMMON_SIGMA: f64 = 0.003;

/// Standard deviation of the part by which matches make motions too short, before it is measured.
const SHORT: f64 = 0.005;

/// A sensor that measures scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScaleSource {
    /// Depth images.
    Depth,
    /// Wheel odometry.
    Wheels,
}

impl ScaleSource {
    /// A word for it: `depth` or `wheels`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Depth => "depth",
            Self::Wheels => "wheels",
        }
    }
}

/// The scale of the map by what sensors measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleEstimate {
    /// Metres per unit of the map: 1 if the map's keyframes have the scales that were measured.
    pub factor: f64,
    /// Relative standard deviation of `factor`.
    pub sigma: f64,
    /// The sensor.
    pub source: ScaleSource,
    /// Number of keyframes, of the newest 50, with a measured scale, or of measured motions between them.
    pub keyframes: usize,
}

impl fmt::Display for ScaleEstimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.source {
            ScaleSource::Depth => "keyframes",
            ScaleSource::Wheels => "motions",
        };
        write!(
            f,
            "by {}, a metre of the map is {:.3} m ± {:.1} % ({} {what})",
            self.source.name(),
            self.factor,
            100.0 * self.sigma,
            self.keyframes
        )
    }
}

impl ScaleEstimate {
    /// The more certain one of two estimates.
    pub(crate) fn better(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        match (one, other) {
            (Some(one), Some(other)) if other.sigma < one.sigma => Some(other),
            (one, other) => one.or(other),
        }
    }
}

/// A measured scale of a keyframe: metres per unit of its pointmap.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeyframeScale {
    /// Natural logarithm of the scale.
    pub log_scale: f64,
    /// Its standard deviation.
    pub sigma: f64,
    /// The sensor.
    pub source: ScaleSource,
}

/// The measured scales of a graph's keyframes, by id: at most one for each.
///
/// Matches of a network err along the parallax, so that the motions between pointmaps of the measured scales are too
/// short, all by about the same part. Where depth measures motions as well, the keyframes get scales that are larger by
/// that part.
#[derive(Debug, Default)]
pub struct Scales {
    measured: FxHashMap<u32, KeyframeScale>,
    /// Added to the logarithm of each.
    longer: f64,
}

impl Scales {
    /// Stores the scale of a keyframe, in place of an older one. One that is not a measurement is ignored.
    pub fn set(&mut self, id: u32, scale: KeyframeScale) {
        if scale.log_scale.is_finite() && scale.sigma.is_finite() && scale.sigma > 0.0 {
            self.measured.insert(id, scale);
        }
    }

    /// Forgets a keyframe.
    pub fn remove(&mut self, id: u32) {
        self.measured.remove(&id);
    }

    /// The scale of a keyframe, larger than it was measured by [`Scales::longer`].
    fn get(&self, id: u32) -> Option<KeyframeScale> {
        let measured = self.measured.get(&id)?;
        Some(KeyframeScale {
            log_scale: measured.log_scale + self.longer,
            ..*measured
        })
    }

    /// By which part the scales are larger than they were measured.
    pub fn longer(&self) -> f64 {
        self.longer
    }

    /// Makes the scales larger by the part by which motions were measured to be too short, as far as its deviation and
    /// [`SHORT`] admit.
    pub fn lengthen(&mut self, excess: Mean) {
        let (measured, expected) = (excess.sigma.powi(2), SHORT.powi(2));
        self.longer = excess.value * expected / (expected + measured);
        tracing::debug!(?excess, self.longer, "lengthened");
    }

    /// The priors of keyframes `ids`, whose places in that list they name, with their information multiplied
    /// by `units`.
    pub fn priors(&self, ids: impl Iterator<Item = u32>, units: f64) -> Vec<ScalePrior> {
        if self.measured.is_empty() {
            return Vec::new();
        }
        let known = ids.enumerate().filter_map(|(k, id)| {
            let scale = self.get(id)?;
            Some(ScalePrior {
                k,
                log_scale: scale.log_scale,
                information: units / (scale.sigma * scale.sigma),
            })
        });
        known.collect()
    }

    /// The information-weighted mean over the newest of `ids`, ascending, at these poses; `None` without a
    /// measured scale. Its standard deviation grows with the scatter if that is more than the measurements
    /// say (Birge's ratio).
    pub fn estimate(&self, ids: &[u32], poses: &[Sim3]) -> Option<ScaleEstimate> {
        if self.measured.is_empty() {
            return None;
        }
        let newest = ids.iter().zip(poses).rev().take(ESTIMATED);
        let known = newest.filter_map(|(id, pose)| {
            let scale = self.get(*id)?;
            let weight = 1.0 / (scale.sigma * scale.sigma);
            Some((scale.log_scale - pose.scale.ln(), weight, scale.source))
        });
        let known: Vec<(f64, f64, ScaleSource)> = known.collect();
        let source = known.first()?.2;
        let total: f64 = known.iter().map(|(_, w, _)| w).sum();
        let mean = known.iter().map(|(e, w, _)| w * e).sum::<f64>() / total;
        let chi2: f64 = known
            .iter()
            .map(|(e, w, _)| w * (e - mean) * (e - mean))
            .sum();
        let birge = (chi2 / (known.len() - 1).max(1) as f64).max(1.0);
        let sigma = (birge / total + COMMON_SIGMA * COMMON_SIGMA).sqrt();
        Some(ScaleEstimate {
            factor: mean.exp(),
            sigma,
            source,
            keyframes: known.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale(factor: f64, sigma: f64) -> KeyframeScale {
        KeyframeScale {
            log_scale: factor.ln(),
            sigma,
            source: ScaleSource::Depth,
        }
    }

    fn poses(count: usize, scale: f64) -> Vec<Sim3> {
        let pose = Sim3 {
            scale,
            ..Sim3::identity()
        };
        vec![pose; count]
    }

    #[test]
    fn an_estimate_is_the_weighted_mean_of_the_newest_keyframes() {
        let mut scales = Scales::default();
        let ids: Vec<u32> = (0..120).map(|k| 2 * k).collect();
        assert_eq!(scales.estimate(&ids, &poses(120, 1.0)), None);
        scales.set(10, scale(9.0, 0.01));
        assert_eq!(scales.estimate(&ids, &poses(120, 1.0)), None, "too old");
        scales.set(238, scale(1.2, 0.02));
        let one = scales.estimate(&ids, &poses(120, 1.5)).unwrap();
        assert!((one.factor - 0.8).abs() < 1e-12 && one.keyframes == 1);
        assert_eq!(
            one.to_string(),
            "by depth, a metre of the map is 0.800 m ± 2.0 % (1 keyframes)"
        );
        assert!((one.sigma.powi(2) - 0.02_f64.powi(2) - 0.003_f64.powi(2)).abs() < 1e-12);
        // Four times the information in the first of both.
        scales.set(200, scale(1.2 * 0.03_f64.exp(), 0.04));
        let two = scales.estimate(&ids, &poses(120, 1.5)).unwrap();
        assert!((two.factor.ln() - (0.8_f64.ln() + 0.006)).abs() < 1e-12);
        assert!(two.sigma < one.sigma && two.keyframes == 2);
        // They contradict each other: with 0.03, (0.03 − 0.006)²/0.04² + 0.006²/0.02² = 0.45; with 0.2, 20.
        scales.set(200, scale(1.2 * 0.2_f64.exp(), 0.04));
        let apart = scales.estimate(&ids, &poses(120, 1.5)).unwrap();
        let chi2 = 0.16_f64.powi(2) / 0.04_f64.powi(2) + 0.04_f64.powi(2) / 0.02_f64.powi(2);
        let expected = chi2 / (2500.0 + 625.0) + 0.003_f64.powi(2);
        assert!((apart.sigma.powi(2) - expected).abs() < 1e-12, "{apart:?}");
        scales.remove(238);
        scales.remove(200);
        assert_eq!(scales.estimate(&ids, &poses(120, 1.0)), None);
    }

    #[test]
    fn scales_are_longer_by_what_motions_show_as_far_as_it_is_known() {
        let mut scales = Scales::default();
        scales.set(7, scale(2.0, 0.1));
        scales.lengthen(Mean {
            value: 0.01,
            sigma: SHORT,
        });
        assert!((scales.longer() - 0.005).abs() < 1e-15);
        let [prior] = scales.priors([7].into_iter(), 1.0)[..] else {
            panic!("one prior");
        };
        assert!((prior.log_scale - (2.0_f64.ln() + 0.005)).abs() < 1e-15);
        // The map that is solved with this has the right lengths, so that its metres are metres.
        let solved = poses(1, prior.log_scale.exp());
        let estimate = scales.estimate(&[7], &solved).expect("an estimate");
        assert!((estimate.factor - 1.0).abs() < 1e-12, "{estimate:?}");
        // It is known exactly, then not at all.
        for (sigma, longer) in [(1e-9, 0.01), (1e3, 0.0)] {
            scales.lengthen(Mean { value: 0.01, sigma });
            assert!((scales.longer() - longer).abs() < 1e-9, "{sigma}");
        }
    }

    #[test]
    fn priors_name_places_and_are_in_the_solvers_units() {
        let mut scales = Scales::default();
        scales.set(7, scale(2.0, 0.1));
        scales.set(9, scale(3.0, 0.0));
        scales.set(4, scale(f64::NAN, 0.1));
        let found = scales.priors([4, 9, 7, 8].into_iter(), 256.0);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].k, found[0].log_scale), (2, 2.0_f64.ln()));
        assert!((found[0].information - 25_600.0).abs() < 1e-6);
    }
}
