//! Judges wheel odometry by what the camera sees between keyframes: wheels that slip, or stand still while the robot
//! moves.

use super::motion::CameraMotion;
use crate::compute::depth::SIGMA_OVER_MAD;
use crate::newest;
use nalgebra::{Isometry3, Matrix3, Matrix6, Vector6};

/// 99 % quantile of χ² with six degrees of freedom.
const CHI2_LIMIT: f64 = 16.81;
/// Consecutive keyframes beyond the limit that mean slip.
const SLIPS: usize = 2;
/// Number of ratios of metres by wheels to metres by the camera that are kept.
const RATIOS: usize = 20;
/// Motions shorter than this say nothing about the ratio, in metres.
const SHORT: f64 = 0.05;
/// Standard deviation of the log ratio: before anything is known, and at least.
const UNKNOWN_RATIO: f64 = 0.5;
const MIN_RATIO: f64 = 0.02;
/// Standard deviations of the camera's motion between keyframes: 5 mm and 1 % of the way, 0.3 degrees.
const VISUAL_METRES: (f64, f64) = (5e-3, 0.01);
const VISUAL_TURN: f64 = 5.2e-3;

/// Standard deviations of a map between two places, in metres and radians (2 degrees).
const BENT_METRES: f64 = 0.05;
const BENT_TURN: f64 = 0.035;

/// The verdict on a motion between two keyframes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It agrees with the camera.
    Fits,
    /// It does not agree, and is not to be used.
    Outlier,
    /// The second or a later outlier in a row: the wheels slip, or stand still while the robot moves.
    Slips,
}

/// Compares wheel odometry with the camera's motion. The camera's scale may be off; the wheels are compared at the
/// ratio of the newest motions, so that a constant one is no slip.
#[derive(Debug, Default)]
pub struct SlipTest {
    /// Log ratios of the newest motions that fit.
    ratios: heapless::Deque<f64, RATIOS>,
    in_a_row: usize,
    outliers: usize,
}

impl SlipTest {
    /// Number of motions that did not fit.
    pub fn outliers(&self) -> usize {
        self.outliers
    }

    /// Whether the wheels slip.
    pub fn is_slipping(&self) -> bool {
        self.in_a_row >= SLIPS
    }

    /// Judges the wheels' motion between two keyframes against the camera's, in the map's metres.
    pub fn judge(&mut self, wheels: &CameraMotion, visual: &Isometry3<f64>) -> Verdict {
        let (ratio, sigma) = self.ratio();
        let mut scaled = *visual;
        scaled.translation.vector *= ratio.exp();
        let chi2 = wheels.chi2(&scaled, &visual_covariance(&scaled, sigma));
        if chi2.is_none_or(|chi2| chi2 > CHI2_LIMIT) {
            self.in_a_row += 1;
            self.outliers += 1;
            tracing::debug!(?chi2, driven = wheels.driven, "wheel odometry does not fit");
            return match self.is_slipping() {
                true => Verdict::Slips,
                false => Verdict::Outlier,
            };
        }
        self.in_a_row = 0;
        let (by_wheels, by_camera) = (
            wheels.i_from_j.translation.vector.norm(),
            visual.translation.vector.norm(),
        );
        if by_wheels > SHORT && by_camera > SHORT {
            newest::push(&mut self.ratios, (by_wheels / by_camera).ln());
        }
        Verdict::Fits
    }

    /// Median of the log ratios and its standard deviation.
    fn ratio(&self) -> (f64, f64) {
        let mut sorted: heapless::Vec<f64, RATIOS> = self.ratios.iter().copied().collect();
        let Some(median) = median(&mut sorted) else {
            return (0.0, UNKNOWN_RATIO);
        };
        let mut apart: heapless::Vec<f64, RATIOS> =
            self.ratios.iter().map(|r| (r - median).abs()).collect();
        let spread = SIGMA_OVER_MAD * self::median(&mut apart).unwrap_or(0.0);
        let few = UNKNOWN_RATIO / (1 + self.ratios.len()).pow(2) as f64;
        (median, spread.max(few).max(MIN_RATIO))
    }
}

/// Covariance of the camera's motion, with the standard deviation `scale_sigma` of its log scale.
fn visual_covariance(motion: &Isometry3<f64>, scale_sigma: f64) -> Matrix6<f64> {
    let p = motion.translation.vector;
    let metres = VISUAL_METRES.0.hypot(VISUAL_METRES.1 * p.norm());
    let position = Matrix3::identity() * metres.powi(2) + p * p.transpose() * scale_sigma.powi(2);
    let mut covariance = Matrix6::identity() * VISUAL_TURN.powi(2);
    covariance.fixed_view_mut::<3, 3>(0, 0).copy_from(&position);
    covariance
}

/// Whether the wheels' motion across a gap fits the place where the camera was found again, in the map's metres: the map
/// may have bent in between, and its scale may be off.
pub fn fits_roughly(wheels: &CameraMotion, visual: &Isometry3<f64>) -> bool {
    let bent = Matrix6::from_diagonal(&Vector6::from_fn(|k, _| match k < 3 {
        true => BENT_METRES.powi(2),
        false => BENT_TURN.powi(2),
    }));
    let chi2 = wheels.chi2(visual, &(visual_covariance(visual, UNKNOWN_RATIO) + bent));
    chi2.is_some_and(|chi2| chi2 <= CHI2_LIMIT)
}

fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests;
