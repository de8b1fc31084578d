//! Gyroscope: the newest angular rates, and the camera's rotation between two times (docs/algorithm.md, Wheel odometry
//! and gyro).

use crate::geometry::rotation_log;
use crate::time::Stamp;
use nalgebra::{Matrix3, UnitQuaternion, Vector3};
use std::collections::VecDeque;

/// Rates older than this are dropped, in seconds.
const KEPT: f64 = 10.0;
/// Maximum number of rates: 10 s at 1 kHz.
const MAX_RATES: usize = 10_000;
/// Longest time between two rates across which they are integrated, in seconds.
const MAX_GAP: f64 = 0.1;
/// Longest time after the newest rate for which it holds, in seconds.
const MAX_AHEAD: f64 = 0.02;
/// A stamp that is earlier than the newest one by more than this is a restart of the source, in seconds.
const RESTART: f64 = 1.0;
/// Fastest rate that a gyroscope measures, in rad/s (2000 degrees per second).
const MAX_RATE: f64 = 35.0;

/// A rate that the buffer refuses.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum GyroError {
    /// A number is not finite, or larger than any gyroscope's.
    #[error(
        "expected an angular rate below {MAX_RATE} rad/s, found {0:?}: check its source and unit (rad/s)"
    )]
    Rate([f64; 3]),
    /// The stamps do not ascend.
    #[error(
        "expected a gyro stamp after {newest}, found {found}: check that one source publishes, in order"
    )]
    Old {
        /// Stamp of the newest rate.
        newest: Stamp,
        /// Stamp of the refused one.
        found: Stamp,
    },
}

/// White noise and random walk of a gyroscope, as Allan deviations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GyroNoise {
    /// rad/s/√Hz
    pub density: f64,
    /// rad/s²/√Hz
    pub walk: f64,
}

impl Default for GyroNoise {
    /// That of an ADIS16448, the sensor of EuRoC.
    fn default() -> Self {
        Self {
            density: 1.7e-4,
            walk: 2e-5,
        }
    }
}

/// A rotation between two times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GyroRotation {
    /// Rotation from the sensor's frame at `j` to that at `i`.
    pub i_from_j: UnitQuaternion<f64>,
    /// `J` of `R(b + δ) ≈ R(b)·Exp(J δ)` for a change `δ` of the bias, in seconds.
    pub by_bias: Matrix3<f64>,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    stamp: Stamp,
    rate: Vector3<f64>,
    /// ∫ rate dt from the first rate to this one.
    sum: Vector3<f64>,
}

/// The newest angular rates, at most 10 s and [`MAX_RATES`] of them, as measured.
#[derive(Debug)]
pub struct Rates {
    samples: VecDeque<Sample>,
}

impl Default for Rates {
    fn default() -> Self {
        Self {
            samples: VecDeque::with_capacity(MAX_RATES),
        }
    }
}

/// Right Jacobian of SO(3): `Exp(φ + δ) ≈ Exp(φ)·Exp(J_r(φ) δ)` (Forster et al., On-Manifold Preintegration, eq. 8),
/// to the second order of its series, for the small angles of one sample.
fn right_jacobian(phi: &Vector3<f64>) -> Matrix3<f64> {
    let hat = phi.cross_matrix();
    Matrix3::identity() - hat * 0.5 + hat * hat / 6.0
}

impl Rates {
    /// Appends an angular rate in rad/s, about the sensor's axes.
    ///
    /// # Errors
    /// A rate that is not finite or too large, or a stamp that is not after the newest one. The buffer is then
    /// unchanged.
    pub fn add(&mut self, stamp: Stamp, rate: &Vector3<f64>) -> Result<(), GyroError> {
        let fits = rate.norm() < MAX_RATE;
        if !fits {
            return Err(GyroError::Rate((*rate).into()));
        }
        let mut sum = Vector3::zeros();
        if let Some(newest) = self.samples.back().copied() {
            let dt = newest.stamp.seconds_to(stamp);
            if (-RESTART..=0.0).contains(&dt) {
                return Err(GyroError::Old {
                    newest: newest.stamp,
                    found: stamp,
                });
            }
            match dt < 0.0 {
                true => self.samples.clear(),
                false => sum = newest.sum + (newest.rate + rate) * (0.5 * dt),
            }
        }
        let old = |oldest: &Sample| oldest.stamp.seconds_to(stamp) > KEPT;
        while self.samples.front().is_some_and(old) || self.samples.len() >= MAX_RATES {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample {
            stamp,
            rate: *rate,
            sum,
        });
        Ok(())
    }

    /// Rate and sum at a time; `None` if the rates do not cover it.
    fn at(&self, stamp: Stamp) -> Option<Sample> {
        let next = self.samples.partition_point(|s| s.stamp < stamp);
        let after = self.samples.get(next);
        if let Some(exact) = after.filter(|s| s.stamp == stamp) {
            return Some(*exact);
        }
        let before = *self.samples.get(next.checked_sub(1)?)?;
        let dt = before.stamp.seconds_to(stamp);
        let rate = match after {
            Some(after) => {
                let gap = before.stamp.seconds_to(after.stamp);
                if gap > MAX_GAP {
                    return None;
                }
                before.rate + (after.rate - before.rate) * (dt / gap)
            }
            None if dt <= MAX_AHEAD => before.rate,
            None => return None,
        };
        let sum = before.sum + (before.rate + rate) * (0.5 * dt);
        Some(Sample { stamp, rate, sum })
    }

    /// The rotation between two times, `∏ Exp((ω − b)·dt)` with the mean rate of each interval and the bias `b` in
    /// rad/s. `None` if the rates do not cover the time in between, or it is negative.
    pub fn between(&self, from: Stamp, to: Stamp, bias: &Vector3<f64>) -> Option<GyroRotation> {
        let (first, last) = (self.at(from)?, self.at(to)?);
        if to < from {
            return None;
        }
        let mut done = GyroRotation {
            i_from_j: UnitQuaternion::identity(),
            by_bias: Matrix3::zeros(),
        };
        let start = self.samples.partition_point(|s| s.stamp <= from);
        let within = self.samples.range(start..).take_while(|s| s.stamp < to);
        let mut before = first;
        for sample in within.copied().chain([last]) {
            let dt = before.stamp.seconds_to(sample.stamp);
            if dt > MAX_GAP {
                return None;
            }
            let step = ((before.rate + sample.rate) * 0.5 - bias) * dt;
            let turn = UnitQuaternion::from_scaled_axis(step);
            let back = turn.inverse().to_rotation_matrix().into_inner();
            done.by_bias = back * done.by_bias - right_jacobian(&step) * dt;
            done.i_from_j *= turn;
            before = sample;
        }
        Some(done)
    }

    /// Length of the mean rate between two times, in rad/s; `None` if the rates do not cover them.
    pub fn mean_rate(&self, from: Stamp, to: Stamp) -> Option<f64> {
        let dt = from.seconds_to(to);
        let turned = self.at(to)?.sum - self.at(from)?.sum;
        (dt > 0.0).then(|| turned.norm() / dt)
    }

    /// Mean rate of the sensor between two times, in rad/s, if it is steady: the bias, if the camera stands still
    /// meanwhile. `steady` is the largest deviation of a rate from the mean.
    pub fn steady_rate(&self, from: Stamp, to: Stamp, steady: f64) -> Option<Vector3<f64>> {
        let dt = from.seconds_to(to);
        if dt <= 0.0 {
            return None;
        }
        let mean = (self.at(to)?.sum - self.at(from)?.sum) / dt;
        let mut within = self
            .samples
            .iter()
            .filter(|s| s.stamp >= from && s.stamp <= to);
        within
            .all(|s| (s.rate - mean).norm() <= steady)
            .then_some(mean)
    }
}

/// Standard deviation of a rotation by the gyro over `seconds`, in radians: white noise, the bias and its random walk,
/// and 0.1 degrees for the synchronisation of the clocks.
pub fn rotation_sigma(seconds: f64, noise: &GyroNoise, bias_sigma: f64) -> f64 {
    const SYNCHRONISATION: f64 = 1.745e-3;
    let white = noise.density * noise.density * seconds;
    let walk = (noise.walk * seconds).powi(2) * seconds / 3.0;
    (white + walk + (bias_sigma * seconds).powi(2) + SYNCHRONISATION.powi(2)).sqrt()
}

/// A stamp moved by seconds.
pub fn shifted(stamp: Stamp, seconds: f64) -> Stamp {
    Stamp {
        nanos: stamp.nanos.saturating_add((seconds * 1e9).round() as i64),
    }
}

/// Angle of a rotation, in radians.
pub fn angle(q: &UnitQuaternion<f64>) -> f64 {
    rotation_log(q).norm()
}

#[cfg(test)]
mod tests;
