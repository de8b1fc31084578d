//! Judges wheel odometry by what the camera sees between keyframes: wheels that slip, or stand still while the robot
//! moves.

use super::motion::CameraMotion;
use super::robust::median_and_sigma;
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
/// Number of motions in a row whose lengths are judged together. What is too little in one motion to tell from noise
/// stands out in several.
const RUN: usize = 4;
/// Standard deviations of the sum of their excesses that mean slip; there are `RUN` such sums for each motion.
const RUN_LIMIT: f64 = 4.0;
/// Wheels that slipped are used again after a motion whose length fits within so many standard deviations.
const FITS_AGAIN: f64 = 2.0;
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

/// How much longer a motion is by wheels than by the camera.
#[derive(Debug, Clone, Copy)]
struct Excess {
    /// Log ratio beyond that of other motions.
    log: f64,
    variance: f64,
}

/// Compares wheel odometry with the camera's motion. The camera's scale may be off; the wheels are compared at the
/// ratio of the newest motions, so that a constant one is no slip.
#[derive(Debug, Default)]
pub struct SlipTest {
    /// Log ratios of the newest motions that fit.
    ratios: heapless::Deque<f64, RATIOS>,
    /// Excesses of the newest motions that fit.
    run: heapless::Deque<Excess, RUN>,
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
        let of_camera = visual_covariance(&scaled, sigma);
        let chi2 = wheels.chi2(&scaled, &of_camera);
        let excess = excess(wheels, &scaled, &of_camera);
        let is_outlier = chi2.is_none_or(|chi2| chi2 > CHI2_LIMIT);
        let (fits_again, adds_up) = match excess {
            Some(excess) => (
                excess.log.abs() <= FITS_AGAIN * excess.variance.sqrt(),
                !is_outlier && self.adds_up(excess),
            ),
            None => (true, false),
        };
        if is_outlier || adds_up || (self.is_slipping() && !fits_again) {
            self.in_a_row += 1;
            if adds_up {
                self.in_a_row = self.in_a_row.max(SLIPS);
            }
            self.outliers += 1;
            tracing::debug!(
                ?chi2,
                ?excess,
                adds_up,
                driven = wheels.driven,
                "wheel odometry does not fit"
            );
            return match self.is_slipping() {
                true => Verdict::Slips,
                false => Verdict::Outlier,
            };
        }
        self.in_a_row = 0;
        if let Some(excess) = excess {
            newest::push(&mut self.ratios, ratio + excess.log);
        }
        Verdict::Fits
    }

    /// Adds the excess of a motion. Returns whether it and those before are too long or too short together; they are
    /// forgotten then.
    fn adds_up(&mut self, excess: Excess) -> bool {
        newest::push(&mut self.run, excess);
        let (mut log, mut variance) = (0.0, 0.0);
        let is_beyond = self.run.iter().rev().any(|excess| {
            log += excess.log;
            variance += excess.variance;
            f64::abs(log) > RUN_LIMIT * f64::sqrt(variance)
        });
        if is_beyond {
            self.run.clear();
        }
        is_beyond
    }

    /// Median of the log ratios and its standard deviation.
    fn ratio(&self) -> (f64, f64) {
        let mut ratios: heapless::Vec<f64, RATIOS> = self.ratios.iter().copied().collect();
        let Some((median, spread)) = median_and_sigma(&mut ratios) else {
            return (0.0, UNKNOWN_RATIO);
        };
        let few = UNKNOWN_RATIO / (1 + self.ratios.len()).pow(2) as f64;
        (median, spread.max(few).max(MIN_RATIO))
    }
}

/// The excess of a motion by wheels over the camera's, at the wheels' scale and with this covariance; `None` for a short
/// one.
fn excess(
    wheels: &CameraMotion,
    visual: &Isometry3<f64>,
    of_camera: &Matrix6<f64>,
) -> Option<Excess> {
    let lengths = [&wheels.i_from_j, visual].map(|of| of.translation.vector.norm());
    let [by_wheels, by_camera] = lengths;
    if lengths.iter().any(|length| *length <= SHORT) {
        return None;
    }
    let along = visual.translation.vector / by_camera;
    let covariance = wheels.covariance + of_camera;
    let covariance = covariance.fixed_view::<3, 3>(0, 0);
    Some(Excess {
        log: (by_wheels / by_camera).ln(),
        variance: along.dot(&(covariance * along)) / by_camera.powi(2),
    })
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

#[cfg(test)]
mod tests;
