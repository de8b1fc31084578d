//! Wheels, a gyro and a depth camera, with their errors.

use super::robot::Place;
use crate::random::Random;
use nalgebra::Vector3;

/// Errors of wheel odometry.
#[derive(Debug, Clone, Copy)]
pub struct WheelErrors {
    /// Standard deviation of the distance after 1 m, in metres; it grows with the square root of the way.
    pub distance: f64,
    /// Standard deviation of the heading after 1 m, in radians; it grows with the square root of the way. A turn by one
    /// radian counts as 0.2 m.
    pub heading: f64,
    /// The wheels' distance divided by the true one: 1.02 is 2 % too long.
    pub scale: f64,
}

impl Default for WheelErrors {
    fn default() -> Self {
        Self {
            distance: 0.01,
            heading: 1f64.to_radians(),
            scale: 1.0,
        }
    }
}

/// A time in which the wheels slip.
#[derive(Debug, Clone, Copy)]
pub struct Slip {
    /// Nanoseconds since the start.
    pub from: i64,
    /// Nanoseconds since the start.
    pub to: i64,
    /// The robot's motion divided by that of its wheels: 0.5 means that it moves half as far as they turn.
    pub grip: f64,
}

/// Wheel odometry: the pose of the base in the odometry frame, which begins at the identity.
pub struct Wheels {
    place: Place,
    errors: WheelErrors,
    random: Random,
}

impl Wheels {
    pub fn new(errors: WheelErrors, seed: u64) -> Self {
        Self {
            place: Place::default(),
            errors,
            random: Random(seed.wrapping_mul(2).wrapping_add(0x5eed)),
        }
    }

    /// Adds what the wheels turned, in metres and radians.
    pub fn add(&mut self, [length, turn]: [f64; 2]) {
        let root = (length.abs() + 0.2 * turn.abs()).sqrt();
        let length =
            self.errors.scale * length + self.errors.distance * root * self.random.normal();
        let turn = turn + self.errors.heading * root * self.random.normal();
        self.place = self.place.after(length, turn);
    }

    pub fn place(&self) -> Place {
        self.place
    }
}

/// A gyro with the noise of EuRoC's ADIS16448, about the camera's axes.
pub struct Gyro {
    bias: Vector3<f64>,
    random: Random,
}

/// rad/s/√Hz.
const NOISE_DENSITY: f64 = 1.7e-4;
/// rad/s²/√Hz.
const BIAS_WALK: f64 = 2e-5;
/// Standard deviation of the bias at the start, rad/s.
const FIRST_BIAS: f64 = 3e-3;

fn normal(random: &mut Random) -> Vector3<f64> {
    Vector3::from_fn(|_, _| random.normal())
}

impl Gyro {
    pub fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(2).wrapping_add(0x6_7960));
        Self {
            bias: FIRST_BIAS * normal(&mut random),
            random,
        }
    }

    /// The rates in rad/s of a robot that turns at `w` rad/s, `seconds` after the last reading.
    pub fn read(&mut self, w: f64, seconds: f64) -> Vector3<f64> {
        self.bias += BIAS_WALK * seconds.sqrt() * normal(&mut self.random);
        // The robot's axis points up, the camera's y axis down.
        let rate = Vector3::new(0.0, -w, 0.0);
        rate + self.bias + NOISE_DENSITY / seconds.sqrt() * normal(&mut self.random)
    }
}

/// A depth camera that shows what the colour camera shows.
pub struct DepthCamera {
    /// Metres; nothing nearer is measured.
    pub min: f32,
    /// Metres; nothing farther is measured.
    pub max: f32,
    /// Standard deviation divided by the depth.
    pub noise: f32,
    random: Random,
}

impl DepthCamera {
    /// 0.2 to 8 m.
    pub fn new(noise: f32, seed: u64) -> Self {
        Self {
            min: 0.2,
            max: 8.0,
            noise,
            random: Random(seed.wrapping_mul(2).wrapping_add(0xdee9)),
        }
    }

    /// Integers of a depth image with so many units per metre; 0 where nothing is measured.
    pub fn measure(&mut self, depth: &[f32], units: f32) -> Vec<u16> {
        let measured = |&z: &f32| {
            if !(self.min..=self.max).contains(&z) {
                return 0;
            }
            let noise = match self.noise > 0.0 {
                true => self.noise * self.random.normal() as f32,
                false => 0.0,
            };
            (z * (1.0 + noise) * units).round().clamp(0.0, 65535.0) as u16
        };
        depth.iter().map(measured).collect()
    }
}
