//! A room, the depth that a camera sees of it, and walks, for tests.

use super::depth_moment::exp;
use crate::geometry::Intrinsics;
use crate::image::depth::DepthLimits;
use nalgebra::{Isometry3, UnitQuaternion, Vector3, Vector6};

pub const SIZE: (usize, usize) = (256, 192);
pub const FRAME: f64 = 1.0 / 30.0;

/// All depth is within these limits.
pub const LIMITS: DepthLimits = DepthLimits {
    min: 0.1,
    max: 100.0,
    max_jump: 0.05,
};

pub fn camera() -> Intrinsics {
    Intrinsics {
        fx: 200.0,
        fy: 200.0,
        cx: 127.5,
        cy: 95.5,
    }
}

/// The camera in a room of 6 × 3 × 6 m, which it looks about in.
pub fn pose(t: f64) -> Isometry3<f64> {
    let yaw = 0.5 * (1.9 * t).sin() + 0.2 * (5.0 * t).sin();
    let pitch = 0.2 * (2.6 * t).cos();
    let place = Vector3::new(
        0.5 * (1.3 * t).sin(),
        0.1 * (3.1 * t).sin(),
        0.6 * (0.9 * t).cos(),
    );
    Isometry3::from_parts(
        place.into(),
        UnitQuaternion::from_euler_angles(pitch, yaw, 0.0),
    )
}

/// A constant velocity: a turn of 0.4 rad/s with 0.5 m/s ahead.
pub fn steady(t: f64) -> Isometry3<f64> {
    let twist = Vector6::new(0.0, 0.0, 0.5, 0.0, 0.4, 0.0) * t;
    exp(&twist).rigid()
}

/// Depth of the room's walls along z.
pub fn depth(at: &Isometry3<f64>) -> Vec<f32> {
    depth_of(at, SIZE, &camera())
}

/// The same as an image of another camera.
pub fn depth_of(
    at: &Isometry3<f64>,
    (width, height): (usize, usize),
    camera: &Intrinsics,
) -> Vec<f32> {
    let half = Vector3::new(3.0, 1.5, 3.0);
    let pixels = (0..width * height).map(|n| {
        let ray = camera.ray((n % width) as f64, (n / width) as f64);
        let way = at.rotation * ray;
        let from = at.translation.vector;
        let walls = (0..3).map(|k| {
            let wall = f64::copysign(half[k], way[k]);
            (wall - from[k]) / way[k]
        });
        walls.fold(f64::INFINITY, f64::min) as f32
    });
    pixels.collect()
}

/// Uniform in 0..1, the same for the same `n`.
pub fn random(n: usize) -> f64 {
    let hash = (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let hash = (hash ^ (hash >> 31)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (hash >> 11) as f64 / (1_u64 << 53) as f64
}

/// Normally distributed with variance 1.
pub fn normal(n: usize) -> f64 {
    let (a, b) = (random(2 * n), random(2 * n + 1));
    (-2.0 * (1.0 - a).ln()).sqrt() * (std::f64::consts::TAU * b).cos()
}

/// What tracking gets wrong: some millimetres and tenths of a degree, which change within seconds.
pub fn drift(t: f64) -> Isometry3<f64> {
    let shift = Vector3::new((7.0 * t).sin(), (5.0 * t).cos(), (11.0 * t).sin()) * 4e-3;
    let turn = Vector3::new((6.0 * t).cos(), (9.0 * t).sin(), (4.0 * t).cos()) * 2e-3;
    Isometry3::new(shift, turn)
}
