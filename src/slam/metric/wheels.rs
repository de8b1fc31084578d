//! Wheel odometry: the newest poses of the robot's base in its odometry frame, and the camera's motion between two
//! times (docs/algorithm.md, Wheel odometry and gyro).

use super::motion::CameraMotion;
use crate::geometry::Sim3;
use crate::time::Stamp;
use nalgebra::{Isometry3, Matrix3, Matrix6, Vector3};
use std::collections::VecDeque;

/// Poses older than this are dropped, in seconds: longer than a camera may be blind and still be bridged.
const KEPT: f64 = 30.0;
/// Maximum number of poses: 30 s at 200 Hz.
const MAX_POSES: usize = 6000;
/// Longest time between two poses across which the motion is interpolated, in seconds.
const MAX_GAP: f64 = 0.5;
/// Longest time after the newest pose for which its velocity is extrapolated, in seconds: a message is about one
/// period late.
const MAX_AHEAD: f64 = 0.05;
/// A stamp that is earlier than the newest one by more than this is a restart of the source, in seconds.
const RESTART: f64 = 1.0;
/// A pose jumps if it moves farther than `JUMP_METRES + MAX_SPEED·dt` or turns by more than `JUMP_TURN + MAX_RATE·dt`.
const JUMP_METRES: f64 = 0.2;
const MAX_SPEED: f64 = 10.0;
const JUMP_TURN: f64 = 0.5;
const MAX_RATE: f64 = 10.0;

/// Standard deviations of a planar robot's odometry. Along the path: 1 % of it and 2 mm.
const ALONG: (f64, f64) = (0.01, 2e-3);
/// Across the displacement: 0.5 % of the path and 2 mm.
const ACROSS: (f64, f64) = (5e-3, 2e-3);
/// Heading: 1 degree per metre, 2 % of what was turned, and 0.1 degree.
const YAW: (f64, f64, f64) = (0.017_453, 0.02, 1.745e-3);
/// Roll and pitch of a base on a floor, in radians (0.5 degrees), and its height in metres.
const TILT: f64 = 8.727e-3;
const HEIGHT: f64 = 0.01;
/// Error of the wheels' radius, relative: that of a robot that is not calibrated.
pub(super) const WHEEL_SCALE: f64 = 0.02;

/// A pose that the buffer refuses.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum OdometryError {
    /// A number of the pose is not finite.
    #[error(
        "expected a finite pose of the base in the odometry frame, found one with NaN or infinity: check its source"
    )]
    NotFinite,
    /// The stamps do not ascend.
    #[error(
        "expected an odometry stamp after {newest}, found {found}: check that one source publishes, in order"
    )]
    Old {
        /// Stamp of the newest pose.
        newest: Stamp,
        /// Stamp of the refused one.
        found: Stamp,
    },
}

/// A pose of the base.
#[derive(Debug, Clone, Copy)]
struct Sample {
    stamp: Stamp,
    odom_from_base: Isometry3<f64>,
    /// Metres driven and radians turned from the first pose to this one.
    driven: f64,
    turned: f64,
}

/// The newest poses of the base, at most 30 s and [`MAX_POSES`] of them.
#[derive(Debug)]
pub struct Wheels {
    samples: VecDeque<Sample>,
    base_from_camera: Isometry3<f64>,
    jumps: usize,
}

/// The point on the screw motion from `a` to `b` at the fraction `u` of it; `u` may exceed 1.
fn interpolated(a: &Isometry3<f64>, b: &Isometry3<f64>, u: f64) -> Isometry3<f64> {
    let step = Sim3::from(&(a.inverse() * b)).log() * u;
    a * Sim3::exp(&step).rigid()
}

impl Sample {
    fn towards(&self, next: &Sample, stamp: Stamp) -> Sample {
        let u = self.stamp.seconds_to(stamp) / self.stamp.seconds_to(next.stamp);
        Sample {
            stamp,
            odom_from_base: interpolated(&self.odom_from_base, &next.odom_from_base, u),
            driven: self.driven + u * (next.driven - self.driven),
            turned: self.turned + u * (next.turned - self.turned),
        }
    }
}

impl Wheels {
    /// An empty buffer for a robot whose camera (z forward, x right, y down) is mounted at `base_from_camera`, in
    /// metres in the base's frame (x forward, z up).
    pub fn new(base_from_camera: Isometry3<f64>) -> Self {
        Self {
            samples: VecDeque::with_capacity(MAX_POSES),
            base_from_camera,
            jumps: 0,
        }
    }

    /// Appends the pose of the base in the odometry frame, in metres. A jump of the pose, or a stamp that goes back by
    /// more than a second, drops all poses before it, so that no motion is measured across it.
    ///
    /// # Errors
    /// A pose that is not finite, or a stamp that is not after the newest one. The buffer is then unchanged.
    pub fn add(
        &mut self,
        stamp: Stamp,
        odom_from_base: &Isometry3<f64>,
    ) -> Result<(), OdometryError> {
        if !Sim3::from(odom_from_base).is_finite() {
            return Err(OdometryError::NotFinite);
        }
        let mut sample = Sample {
            stamp,
            odom_from_base: *odom_from_base,
            driven: 0.0,
            turned: 0.0,
        };
        if let Some(newest) = self.samples.back().copied() {
            let dt = newest.stamp.seconds_to(stamp);
            if (-RESTART..=0.0).contains(&dt) {
                return Err(OdometryError::Old {
                    newest: newest.stamp,
                    found: stamp,
                });
            }
            let step = newest.odom_from_base.inverse() * odom_from_base;
            let (moved, turned) = (step.translation.vector.norm(), step.rotation.angle());
            let jumps = moved > JUMP_METRES + MAX_SPEED * dt || turned > JUMP_TURN + MAX_RATE * dt;
            if dt < 0.0 || jumps {
                self.restart(dt, moved, turned);
            } else {
                sample.driven = newest.driven + moved;
                sample.turned = newest.turned + turned;
            }
        }
        let old = |oldest: &Sample| oldest.stamp.seconds_to(stamp) > KEPT;
        while self.samples.front().is_some_and(old) || self.samples.len() >= MAX_POSES {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
        Ok(())
    }

    fn restart(&mut self, dt: f64, moved: f64, turned: f64) {
        self.samples.clear();
        self.jumps += 1;
        // Not once per message if a source is broken.
        if self.jumps.is_power_of_two() {
            tracing::warn!(
                "wheel odometry jumps by {moved:.2} m and {:.0} degrees in {dt:.3} s ({} times so far): it is used \
                 again from there on",
                turned.to_degrees(),
                self.jumps
            );
        }
    }

    /// Number of times that the poses jumped or their source started again.
    pub fn jumps(&self) -> usize {
        self.jumps
    }

    /// The base at a time; `None` if the poses do not cover it.
    fn at(&self, stamp: Stamp) -> Option<Sample> {
        let next = self.samples.partition_point(|s| s.stamp < stamp);
        let after = self.samples.get(next);
        if let Some(exact) = after.filter(|s| s.stamp == stamp) {
            return Some(*exact);
        }
        let before = self.samples.get(next.checked_sub(1)?)?;
        let Some(after) = after else {
            // After the newest pose: its velocity, for a moment.
            let earlier = self.samples.get(next.checked_sub(2)?)?;
            let fits = before.stamp.seconds_to(stamp) <= MAX_AHEAD
                && earlier.stamp.seconds_to(before.stamp) <= MAX_GAP;
            return fits.then(|| earlier.towards(before, stamp));
        };
        let fits = before.stamp.seconds_to(after.stamp) <= MAX_GAP;
        fits.then(|| before.towards(after, stamp))
    }

    /// The camera's motion between two times, `C⁻¹ O_i⁻¹ O_j C` with `C = base_from_camera` and the interpolated poses
    /// `O` of the base. `None` if the poses do not cover both times without a jump.
    pub fn between(&self, from: Stamp, to: Stamp) -> Option<CameraMotion> {
        let (i, j) = (self.at(from)?, self.at(to)?);
        let mount = &self.base_from_camera;
        let base = i.odom_from_base.inverse() * j.odom_from_base;
        let (driven, turned) = ((j.driven - i.driven).abs(), (j.turned - i.turned).abs());
        let jacobian = camera_jacobian(&base, mount);
        Some(CameraMotion {
            i_from_j: mount.inverse() * base * mount,
            covariance: jacobian * base_covariance(&base, driven, turned) * jacobian.transpose(),
            driven,
            seconds: from.seconds_to(to),
        })
    }
}

/// Covariance of a planar base's motion `i_from_j`: of its position along the axes of the base at `i`, and of its
/// rotation about those at `j`.
///
/// The heading's error grows along the path: with a variance `σ²` at the end of a displacement `p`, a random walk of
/// the heading moves the end across by `z × p` times an error of variance `σ²/3`, whose covariance with the heading is
/// `σ²/2`.
fn base_covariance(i_from_j: &Isometry3<f64>, driven: f64, turned: f64) -> Matrix6<f64> {
    let p = i_from_j.translation.vector;
    let flat = Vector3::new(p.x, p.y, 0.0);
    let along = flat.try_normalize(1e-6).unwrap_or(Vector3::x());
    let across = Vector3::z().cross(&along);
    let spread = |d: &Vector3<f64>, sigma: f64| d * d.transpose() * sigma.powi(2);
    let position: Matrix3<f64> = spread(&along, ALONG.0 * driven + ALONG.1)
        + spread(&across, ACROSS.0 * driven + ACROSS.1)
        + spread(&Vector3::z(), HEIGHT)
        + p * p.transpose() * WHEEL_SCALE.powi(2);
    let yaw = (YAW.0 * driven).hypot(YAW.1 * turned) + YAW.2;
    let swing = Vector3::z().cross(&p);
    let mut covariance = Matrix6::zeros();
    let position = position + swing * swing.transpose() * (yaw * yaw / 3.0);
    covariance.fixed_view_mut::<3, 3>(0, 0).copy_from(&position);
    covariance[(3, 3)] = TILT * TILT;
    covariance[(4, 4)] = TILT * TILT;
    covariance[(5, 5)] = yaw * yaw;
    for k in 0..3 {
        covariance[(k, 5)] = 0.5 * yaw * yaw * swing[k];
        covariance[(5, k)] = covariance[(k, 5)];
    }
    covariance
}

/// Derivative of the residual of the camera's motion by errors `(δp, δθ)` of the base's: with the mount `(t, R)` and
/// the base's rotation `R_b`, `e_p = Rᵀ(δp − R_b [t]× δθ)` and `e_R = Rᵀ δθ`.
fn camera_jacobian(base: &Isometry3<f64>, mount: &Isometry3<f64>) -> Matrix6<f64> {
    let matrix = |q: &nalgebra::UnitQuaternion<f64>| q.to_rotation_matrix().into_inner();
    let back = matrix(&mount.rotation.inverse());
    let lever = back * matrix(&base.rotation) * mount.translation.vector.cross_matrix();
    let mut jacobian = Matrix6::zeros();
    jacobian.fixed_view_mut::<3, 3>(0, 0).copy_from(&back);
    jacobian.fixed_view_mut::<3, 3>(0, 3).copy_from(&-lever);
    jacobian.fixed_view_mut::<3, 3>(3, 3).copy_from(&back);
    jacobian
}

#[cfg(test)]
mod tests;
