//! A differential drive.

use nalgebra::{Isometry3, Quaternion, Translation3, UnitQuaternion, Vector3};

/// Radius of the robot in metres.
pub const RADIUS: f64 = 0.2;

/// A place on the floor.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Place {
    /// Metres.
    pub x: f64,
    /// Metres.
    pub y: f64,
    /// Radians from the x axis, counter-clockwise.
    pub heading: f64,
}

impl Place {
    pub fn new(x: f64, y: f64, heading: f64) -> Self {
        Self { x, y, heading }
    }

    /// Position and heading of a base (x ahead, z up), whose pitch and roll are left out.
    pub fn of(world_from_base: &Isometry3<f64>) -> Self {
        let ahead = world_from_base.rotation * Vector3::x();
        let at = &world_from_base.translation;
        Self::new(at.x, at.y, ahead.y.atan2(ahead.x))
    }

    /// The base's pose.
    pub fn isometry(&self) -> Isometry3<f64> {
        let rotation = UnitQuaternion::from_axis_angle(&Vector3::z_axis(), self.heading);
        Isometry3::from_parts(Translation3::new(self.x, self.y, 0.0), rotation)
    }

    /// Metres to another place.
    pub fn distance(&self, other: &Self) -> f64 {
        (self.x - other.x).hypot(self.y - other.y)
    }

    /// After driving an arc of this length (metres) and angle (radians).
    pub fn after(&self, length: f64, turn: f64) -> Self {
        let half = self.heading + turn / 2.0;
        // The chord of the arc.
        let chord = match turn.abs() < 1e-9 {
            true => length,
            false => length * (turn / 2.0).sin() / (turn / 2.0),
        };
        Self::new(
            self.x + chord * half.cos(),
            self.y + chord * half.sin(),
            self.heading + turn,
        )
    }
}

/// An angle between -π and π.
pub fn wrapped(angle: f64) -> f64 {
    let turn = std::f64::consts::TAU;
    angle - turn * (angle / turn).round()
}

/// The camera's pose on the robot: 0.5 m above the floor, 0.1 m before the centre, looking ahead.
pub fn base_from_camera() -> Isometry3<f64> {
    let rotation = UnitQuaternion::from_quaternion(Quaternion::new(0.5, -0.5, 0.5, -0.5));
    Isometry3::from_parts(Translation3::new(0.1, 0.0, 0.5), rotation)
}

/// Speed in m/s and turn rate in rad/s, counter-clockwise.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Command {
    pub v: f64,
    pub w: f64,
}

/// The drive's limits.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// m/s.
    pub v: f64,
    /// rad/s.
    pub w: f64,
    /// m/s².
    pub acceleration: f64,
    /// rad/s².
    pub turn_acceleration: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            v: 0.5,
            w: 1.0,
            acceleration: 1.0,
            turn_acceleration: 4.0,
        }
    }
}

/// The robot: its true place, and what its wheels do.
#[derive(Debug, Clone)]
pub struct Robot {
    pub place: Place,
    pub limits: Limits,
    speed: Command,
}

impl Robot {
    /// A robot that stands.
    pub fn new(place: Place, limits: Limits) -> Self {
        Self {
            place,
            limits,
            speed: Command::default(),
        }
    }

    /// The present speed of the wheels.
    pub fn speed(&self) -> Command {
        self.speed
    }

    /// The camera's true pose, camera to world.
    pub fn world_from_camera(&self) -> Isometry3<f64> {
        self.place.isometry() * base_from_camera()
    }

    /// Follows a command for `seconds`. Returns what the wheels turned, in metres and radians; the robot moves by
    /// `grip` times that.
    pub fn step(&mut self, command: Command, seconds: f64, grip: f64) -> [f64; 2] {
        let limits = &self.limits;
        let towards = |now: f64, wanted: f64, limit: f64, rate: f64| {
            now + (wanted.clamp(-limit, limit) - now).clamp(-rate * seconds, rate * seconds)
        };
        self.speed = Command {
            v: towards(self.speed.v, command.v, limits.v, limits.acceleration),
            w: towards(self.speed.w, command.w, limits.w, limits.turn_acceleration),
        };
        let wheels = [self.speed.v * seconds, self.speed.w * seconds];
        self.place = self.place.after(grip * wheels[0], grip * wheels[1]);
        wheels
    }
}
