//! Bias and time offset of a gyroscope, from rotations that the camera has seen.

use super::gyro::{GyroRotation, Rates, angle, shifted};
use super::robust::huber_weight;
use crate::geometry::rotation_log;
use crate::newest;
use crate::time::Stamp;
use nalgebra::{Cholesky, Matrix3, UnitQuaternion, Vector3};

/// Number of pairs of keyframes that determine the bias.
const PAIRS: usize = 40;
/// Minimum number of pairs, and of seconds in them, for an estimate.
const MIN_PAIRS: usize = 4;
const MIN_SECONDS: f64 = 2.0;
/// Standard deviation of the camera's rotation between keyframes, in radians (0.3 degrees).
const VISUAL_TURN: f64 = 5.2e-3;
/// Largest bias that is believed, in rad/s: that of a cheap sensor. Beyond it the mount or the unit is wrong.
const MAX_BIAS: f64 = 0.2;
/// Rounds of reweighting.
const ROUNDS: usize = 5;

/// A rotation that both have measured.
#[derive(Debug, Clone, Copy)]
struct Pair {
    /// By the gyro at `bias`, in the sensor's frame.
    gyro: GyroRotation,
    bias: Vector3<f64>,
    /// By the camera, in the sensor's frame.
    seen: UnitQuaternion<f64>,
    seconds: f64,
}

/// The bias of a gyroscope, from the newest pairs of keyframes.
#[derive(Debug, Default)]
pub struct BiasEstimator {
    pairs: heapless::Deque<Pair, PAIRS>,
}

/// A bias with its standard deviation, in rad/s.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bias {
    /// About the sensor's axes.
    pub rate: Vector3<f64>,
    /// Standard deviation of each component.
    pub sigma: f64,
}

impl BiasEstimator {
    /// Adds a rotation between two keyframes: by the gyro, integrated with `bias`, and as seen by the camera, both in the
    /// sensor's frame.
    pub fn add(
        &mut self,
        gyro: GyroRotation,
        bias: &Vector3<f64>,
        seen: &UnitQuaternion<f64>,
        seconds: f64,
    ) {
        newest::push(
            &mut self.pairs,
            Pair {
                gyro,
                bias: *bias,
                seen: *seen,
                seconds,
            },
        );
    }

    /// The bias that minimises `Σ ρ(‖Log(ΔR(b)ᵀ R_ij)‖)`, with `ΔR(b)` linear in the bias: a system of three equations
    /// (Qin et al., VINS-Mono, eq. 15), weighted by Huber's function. `None` if the pairs do not determine it, or if it
    /// is larger than any sensor's.
    pub fn solve(&self) -> Option<Bias> {
        let seconds: f64 = self.pairs.iter().map(|p| p.seconds).sum();
        if self.pairs.len() < MIN_PAIRS || seconds < MIN_SECONDS {
            return None;
        }
        let mut bias = Vector3::zeros();
        let mut information = Matrix3::zeros();
        for _ in 0..ROUNDS {
            let mut gradient = Vector3::zeros();
            information = Matrix3::zeros();
            for pair in &self.pairs {
                let change = bias - pair.bias;
                let by_gyro = pair.gyro.i_from_j
                    * UnitQuaternion::from_scaled_axis(pair.gyro.by_bias * change);
                let e = rotation_log(&(by_gyro.inverse() * pair.seen));
                let off = e.norm() / VISUAL_TURN;
                let weight = huber_weight(off) / VISUAL_TURN.powi(2);
                let j = &pair.gyro.by_bias;
                information += j.transpose() * j * weight;
                gradient += j.transpose() * e * weight;
            }
            bias += Cholesky::new(information)?.solve(&gradient);
        }
        let sigma = Cholesky::new(information)?
            .inverse()
            .diagonal()
            .max()
            .sqrt();
        (bias.norm() <= MAX_BIAS && sigma.is_finite()).then_some(Bias { rate: bias, sigma })
    }
}

/// Number of rotations between frames that the offset is found from: 10 s at 30 Hz.
const INTERVALS: usize = 300;
/// Minimum number of them.
const MIN_INTERVALS: usize = 60;
/// Offsets that are searched for, in seconds, and their spacing.
const REACH: f64 = 0.02;
const SPACING: f64 = 1e-3;
/// The rate of rotation must vary by this standard deviation, in rad/s, and the correlation must reach `MIN_CORRELATION`.
const MIN_VARIATION: f64 = 0.1;
const MIN_CORRELATION: f64 = 0.9;

#[derive(Debug, Clone, Copy)]
struct Interval {
    from: Stamp,
    to: Stamp,
    /// Rate of the camera's rotation, rad/s.
    rate: f64,
}

/// The delay of the camera's stamps against the gyro's, by the correlation of their rates of rotation.
#[derive(Debug, Default)]
pub struct OffsetEstimator {
    intervals: heapless::Deque<Interval, INTERVALS>,
}

impl OffsetEstimator {
    /// Adds the camera's rotation between two consecutive frames.
    pub fn add(&mut self, from: Stamp, to: Stamp, seen: &UnitQuaternion<f64>) {
        let dt = from.seconds_to(to);
        if dt <= 0.0 || dt > 0.5 {
            return;
        }
        newest::push(
            &mut self.intervals,
            Interval {
                from,
                to,
                rate: angle(seen) / dt,
            },
        );
    }

    /// Seconds to add to a frame's stamp for the time on the gyro's clock at which the camera saw it, within ±20 ms.
    /// `None` if too little rotation was seen, if its rate hardly varies, or if no offset fits well.
    pub fn solve(&self, rates: &Rates) -> Option<f64> {
        let steps = (REACH / SPACING).round() as i32;
        let correlation = |step: i32| self.correlation(rates, f64::from(step) * SPACING);
        let (best, peak) = (-steps..=steps)
            .filter_map(|step| Some((step, correlation(step)?)))
            .max_by(|a, b| a.1.total_cmp(&b.1))?;
        if peak < MIN_CORRELATION {
            return None;
        }
        // At the border the offset may be anything beyond.
        let (left, right) = (correlation(best - 1)?, correlation(best + 1)?);
        let bend = left - 2.0 * peak + right;
        let vertex = match best.abs() < steps && bend < 0.0 {
            true => 0.5 * (left - right) / bend,
            false => return None,
        };
        Some((f64::from(best) + vertex) * SPACING)
    }

    /// Pearson's correlation of the two rates at an offset.
    fn correlation(&self, rates: &Rates, offset: f64) -> Option<f64> {
        let (mut n, mut x, mut y, mut xx, mut yy, mut xy) = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0);
        for of in &self.intervals {
            let (from, to) = (shifted(of.from, offset), shifted(of.to, offset));
            let Some(rate) = rates.mean_rate(from, to) else {
                continue;
            };
            n += 1.0;
            x += of.rate;
            y += rate;
            xx += of.rate * of.rate;
            yy += rate * rate;
            xy += of.rate * rate;
        }
        let (var_x, var_y) = ((xx - x * x / n) / n, (yy - y * y / n) / n);
        let enough = n >= MIN_INTERVALS as f64 && var_x.min(var_y) > MIN_VARIATION * MIN_VARIATION;
        enough.then(|| (xy - x * y / n) / n / (var_x * var_y).sqrt())
    }
}

#[cfg(test)]
mod tests;
