//! The robot in the flat, on a clock of its own.

use super::plan::{Flat, ROBOT_HEIGHTS};
use super::render::View;
use super::robot::{Command, Limits, Place, RADIUS, Robot};
use super::sensors::{Gyro, Slip, WheelErrors, Wheels};
use mast3r_slam::geometry::Intrinsics;
use nalgebra::Vector3;

/// Nanoseconds of a step: the gyro sends 100 readings a second, the wheels half as many.
pub const STEP: i64 = 10_000_000;

/// What the sensors said in a period, with nanoseconds since the start.
#[derive(Debug, Clone, Default)]
pub struct Period {
    /// Places of the base in the odometry frame.
    pub wheels: Vec<(i64, Place)>,
    /// Rates about the camera's axes, rad/s.
    pub gyro: Vec<(i64, Vector3<f64>)>,
}

/// The flat with the robot in it.
pub struct Simulation {
    pub flat: Flat,
    pub robot: Robot,
    pub slip: Option<Slip>,
    wheels: Wheels,
    gyro: Gyro,
    nanos: i64,
    nearest: f64,
    driven: f64,
}

impl Simulation {
    /// A robot that stands at `place`; its clock is at zero. The seed chooses textures and noise.
    pub fn new(place: Place, limits: Limits, errors: WheelErrors, seed: u64) -> Self {
        Self {
            flat: Flat::new(seed),
            robot: Robot::new(place, limits),
            slip: None,
            wheels: Wheels::new(errors, seed),
            gyro: Gyro::new(seed),
            nanos: 0,
            nearest: f64::INFINITY,
            driven: 0.0,
        }
    }

    /// Nanoseconds since the start.
    pub fn nanos(&self) -> i64 {
        self.nanos
    }

    /// The shortest distance between the robot's rim and something solid so far, in metres; negative after a collision.
    pub fn nearest(&self) -> f64 {
        self.nearest
    }

    /// Metres that the robot has driven.
    pub fn driven(&self) -> f64 {
        self.driven
    }

    /// Follows a command for `nanos`, a multiple of [`STEP`].
    pub fn advance(&mut self, command: Command, nanos: i64) -> Period {
        let seconds = STEP as f64 * 1e-9;
        let mut period = Period::default();
        for _ in 0..nanos / STEP {
            self.nanos += STEP;
            let slips = self.slip.filter(|s| (s.from..s.to).contains(&self.nanos));
            let grip = slips.map_or(1.0, |s| s.grip);
            let before = self.robot.place;
            self.wheels.add(self.robot.step(command, seconds, grip));
            let now = self.robot.place;
            self.driven += before.distance(&now);
            let clear = self.flat.distance([now.x, now.y], ROBOT_HEIGHTS) - RADIUS;
            self.nearest = self.nearest.min(clear);
            let rate = (now.heading - before.heading) / seconds;
            period
                .gyro
                .push((self.nanos, self.gyro.read(rate, seconds)));
            if self.nanos % (2 * STEP) == 0 {
                period.wheels.push((self.nanos, self.wheels.place()));
            }
        }
        period
    }

    /// What the camera sees now.
    pub fn view(&self, camera: &Intrinsics, size: (usize, usize)) -> View {
        self.flat
            .view(&self.robot.world_from_camera(), camera, size)
    }
}
