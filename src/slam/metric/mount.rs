//! Judges the mount of the camera on the base by what the camera sees between keyframes.

use super::directions::Directions;
use super::motion::CameraMotion;
use crate::geometry::rotation_log;
use nalgebra::{Isometry3, Vector3};

/// Metres after which the mount is judged.
const JUDGED: f64 = 2.0;
/// Minimum number of directions, or of axes, for a judgement.
const DIRECTIONS: usize = 3;
/// Motions that turn more than this do not count as directions, in radians: a wrong lever arm changes them.
const STRAIGHT: f64 = 0.5;
/// Motions shorter than this have no clear direction, in metres.
const SHORT: f64 = 0.05;
/// Turns smaller than this have no clear axis, in radians.
const TURNED: f64 = 0.05;
/// A mount is refused if directions or axes are off by more than this on average, in radians (30 degrees).
const WRONG: f64 = 0.524;

/// Sum of angles between what the camera and the wheels say.
#[derive(Debug, Default, Clone, Copy)]
struct Angles {
    sum: f64,
    count: usize,
}

impl Angles {
    fn mean(&self) -> Option<f64> {
        (self.count >= DIRECTIONS).then(|| self.sum / self.count as f64)
    }
}

/// Compares the directions of the camera's motions and its axes of rotation with those by wheels and mount. A wrong
/// mount turns all of them alike: `v = R·p` (hand-eye calibration for rotations). A robot on a floor turns about one
/// axis, which does not show a mount that is turned about it: the directions do.
#[derive(Debug, Default)]
pub struct MountTest {
    /// Directions and axes by the wheels and by the camera.
    compared: Directions,
    directions: Angles,
    axes: Angles,
    driven: f64,
}

/// A mount that contradicts the camera.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error(
    "expected the camera to move as wheel odometry and its mount say, found directions that are {degrees:.0} degrees off \
     over {driven:.1} m (they agree best after a turn of the mount by [{:.0} {:.0} {:.0}] degrees about the camera's \
     axes): check the transform from the base to the camera; wheel odometry is not used", turn.x, turn.y, turn.z
)]
pub struct WrongMount {
    /// Mean angle between directions by camera and by wheels, in degrees.
    pub degrees: f64,
    /// Metres driven.
    pub driven: f64,
    /// Rotation vector of the turn that fits best, in degrees about the camera's axes.
    pub turn: Vector3<f64>,
}

impl MountTest {
    /// Adds a motion between two keyframes, and judges the mount every 2 m (later if the robot only drove in tight curves:
    /// see [`STRAIGHT`]).
    ///
    /// # Errors
    /// The mount does not fit.
    pub fn add(
        &mut self,
        wheels: &CameraMotion,
        visual: &Isometry3<f64>,
    ) -> Result<(), WrongMount> {
        let (turned_p, turned_v) = (
            rotation_log(&wheels.i_from_j.rotation),
            rotation_log(&visual.rotation),
        );
        if turned_p.norm() < STRAIGHT && turned_v.norm() < STRAIGHT {
            let (p, v) = (
                wheels.i_from_j.translation.vector,
                visual.translation.vector,
            );
            let off = self.compared.add(&p, &v, SHORT);
            add(&mut self.directions, off);
        }
        let off = self.compared.add(&turned_p, &turned_v, TURNED);
        add(&mut self.axes, off);
        self.driven += wheels.driven;
        if self.driven < JUDGED {
            return Ok(());
        }
        let means = [self.directions.mean(), self.axes.mean()];
        let worst = means.into_iter().flatten().reduce(f64::max);
        if let Some(worst) = worst.filter(|&worst| worst > WRONG) {
            let judged = std::mem::take(self);
            return Err(WrongMount {
                degrees: worst.to_degrees(),
                driven: judged.driven,
                turn: judged.compared.best_turn().map(f64::to_degrees),
            });
        }
        // Axes alone do not acquit a mount that is turned about the robot's vertical.
        if self.directions.mean().is_some() {
            *self = Self::default();
        }
        Ok(())
    }
}

fn add(angles: &mut Angles, off: Option<f64>) {
    if let Some(off) = off {
        angles.sum += off;
        angles.count += 1;
    }
}

#[cfg(test)]
mod tests;
