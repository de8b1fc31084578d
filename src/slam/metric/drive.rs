//! A robot that drives a curve, with the odometry that its wheels would publish: for tests.

use crate::time::Stamp;
use nalgebra::{Isometry3, Matrix3, Rotation3, UnitQuaternion, Vector3};
use testkit::random::Random;

/// Odometry messages per second.
pub const RATE: f64 = 50.0;

pub fn stamp(seconds: f64) -> Stamp {
    Stamp::from_seconds(1000.0 + seconds)
}

/// A camera that looks ahead: z of the camera is x of the base, x is −y, y is −z.
pub fn mount() -> Isometry3<f64> {
    let r = Matrix3::new(0.0, 0.0, 1.0, -1.0, 0.0, 0.0, 0.0, -1.0, 0.0);
    let rotation = UnitQuaternion::from_rotation_matrix(&Rotation3::from_matrix_unchecked(r));
    Isometry3::from_parts(Vector3::new(0.2, 0.05, 0.3).into(), rotation)
}

/// Errors of odometry.
#[derive(Debug, Clone, Copy, Default)]
pub struct Errors {
    /// Relative error of all distances.
    pub bias: f64,
    /// Random error of distances along the path and across it, and of the heading, each after a metre.
    pub along: f64,
    pub across: f64,
    pub yaw: f64,
    /// Seconds during which the distance is multiplied by `factor`.
    pub slip: Option<(f64, f64, f64)>,
}

/// 1 % and 1 degree per metre, with wheels that are 2 % too large.
pub const NOISE: Errors = Errors {
    bias: 0.02,
    along: 0.01,
    across: 0.005,
    yaw: 0.017_453,
    slip: None,
};

/// True poses of the base and odometry, both at the times `k / RATE`.
pub struct Drive {
    pub truth: Vec<Isometry3<f64>>,
    pub odometry: Vec<Isometry3<f64>>,
}

fn planar(x: f64, y: f64, yaw: f64) -> Isometry3<f64> {
    let turn = UnitQuaternion::from_axis_angle(&Vector3::z_axis(), yaw);
    Isometry3::from_parts(Vector3::new(x, y, 0.0).into(), turn)
}

impl Drive {
    /// Half a metre per second for `seconds`, in curves to both sides, on a floor that tilts the robot by half a degree
    /// and lifts it by a centimetre.
    pub fn new(seconds: f64, errors: &Errors, seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(2).wrapping_add(1));
        let phases = [random.uniform(), random.uniform(), random.uniform()];
        let (mut truth, mut odometry) = (Vec::new(), Vec::new());
        let (mut at, mut by_wheels) = (Isometry3::identity(), planar(3.0, -1.0, 0.7));
        for k in 0..=(seconds * RATE) as usize {
            let t = k as f64 / RATE;
            let wave =
                |n: usize, period: f64| (std::f64::consts::TAU * (t / period + phases[n])).sin();
            let tilt = 8.727e-3;
            let uneven = Isometry3::from_parts(
                Vector3::new(0.0, 0.0, 0.01 * wave(0, 3.1)).into(),
                UnitQuaternion::from_euler_angles(tilt * wave(1, 2.3), tilt * wave(2, 2.9), 0.0),
            );
            truth.push(at * uneven);
            odometry.push(by_wheels);
            let (step, turn) = (0.5 / RATE, 0.6 * (0.4 * t).sin() / RATE);
            at *= planar(step, 0.0, turn);
            let factor = match errors.slip {
                Some((from, to, factor)) if (from..to).contains(&t) => factor,
                _ => 1.0,
            };
            let per_step = step.sqrt();
            by_wheels *= planar(
                step * factor * (1.0 + errors.bias) + errors.along * per_step * random.normal(),
                errors.across * per_step * random.normal(),
                turn + errors.yaw * per_step * random.normal(),
            );
        }
        Self { truth, odometry }
    }

    /// The camera's true motion between two times that are multiples of the period.
    pub fn camera_motion(&self, from: f64, to: f64) -> Isometry3<f64> {
        let at = |t: f64| self.truth[(t * RATE).round() as usize] * mount();
        at(from).inverse() * at(to)
    }
}
