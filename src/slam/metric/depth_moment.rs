//! The camera at the moment of a depth image, and the pixels of it that are looked at.

use crate::geometry::{Sim3, rotation_log};
use crate::time::Stamp;
use nalgebra::{Isometry3, Vector6};

/// The camera at a frame with depth.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    pub stamp: Stamp,
    /// Its pose along the path of steps, which no optimisation of the map moves.
    pub path_from_camera: Sim3,
    /// The motion from the frame before; the identity if that is not known.
    pub step: Sim3,
}

/// A camera's mean velocity over the step to a frame, or over the step from it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Velocity {
    /// `ξ` in the camera's frame, per second.
    pub twist: Vector6<f64>,
    /// Length of the step.
    pub seconds: f64,
}

/// How the camera moves about the moment of a frame, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Passage {
    pub before: Option<Velocity>,
    pub after: Option<Velocity>,
}

impl Passage {
    /// The twist from the camera at the frame to the camera `t` seconds later: that of the parabola through the frames
    /// before and after, or of one velocity. Zero if none is known.
    pub fn twist(&self, t: f64) -> Vector6<f64> {
        match (self.before, self.after) {
            (Some(before), Some(after)) => {
                let (h, k) = (before.seconds, after.seconds);
                (before.twist * (t * (k - t)) + after.twist * (t * (t + h))) / (h + k)
            }
            (one, other) => one
                .or(other)
                .map_or(Vector6::zeros(), |velocity| velocity.twist * t),
        }
    }
}

/// A frame to which a depth image counts: one that used it as its own, or the one before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DepthMoment {
    pub stamp: Stamp,
    /// The camera at the frame along the path of tracked steps, in metres.
    pub path_from_camera: Isometry3<f64>,
    /// Its motion about the frame.
    pub passage: Passage,
    /// Seconds from the stamp of the depth image to that of the frame.
    pub shift: f64,
}

impl DepthMoment {
    /// The camera when depth was measured, `offset` seconds after its stamp.
    pub fn path_from_depth(&self, offset: f64) -> Isometry3<f64> {
        let moved = exp(&self.passage.twist(offset - self.shift));
        self.path_from_camera * moved.rigid()
    }
}

/// A keyframe, and the depth that stands for it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeasuredKeyframe {
    pub id: u32,
    pub stamp: Stamp,
    /// The keyframe's camera along the path of tracked steps, in metres.
    pub path_from_camera: Isometry3<f64>,
    pub depth: DepthMoment,
}

impl MeasuredKeyframe {
    /// The frame `here` as keyframe `id`.
    pub fn new(id: u32, here: &Moment, depth: DepthMoment) -> Self {
        Self {
            id,
            stamp: here.stamp,
            path_from_camera: here.path_from_camera.rigid(),
            depth,
        }
    }

    /// From the camera that measured depth, `offset` seconds after its stamp, to the keyframe's.
    pub fn keyframe_from_depth(&self, offset: f64) -> Isometry3<f64> {
        self.path_from_camera.inverse() * self.depth.path_from_depth(offset)
    }
}

/// Columns and rows of the pixels that are looked at: at most `points` along the longer side.
pub fn grid(
    (width, height): (usize, usize),
    points: usize,
) -> impl Iterator<Item = (usize, usize)> {
    let step = width.max(height).div_ceil(points).max(1);
    let rows = (step / 2..height).step_by(step);
    rows.flat_map(move |v| (step / 2..width).step_by(step).map(move |u| (u, v)))
}

/// The motion `Exp([τ, φ])`.
pub fn exp(twist: &Vector6<f64>) -> Sim3 {
    Sim3::exp(&twist.push(0.0))
}

/// The twist of a short motion, `[t, φ]`: for the turn between two frames, `τ` and `t` differ by less than the
/// velocity is known.
pub fn log(motion: &Isometry3<f64>) -> Vector6<f64> {
    let (t, turn) = (motion.translation.vector, rotation_log(&motion.rotation));
    Vector6::new(t.x, t.y, t.z, turn.x, turn.y, turn.z)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn velocity(x: f64, seconds: f64) -> Option<Velocity> {
        let twist = Vector6::new(x, 0.0, 0.0, 0.0, 0.0, 2.0 * x);
        Some(Velocity { twist, seconds })
    }

    #[test]
    fn a_passage_goes_through_its_frames_and_follows_an_acceleration() {
        // x = 0.3 t + 2 t², at frames −0.05 s and 0.03 s away.
        let at = |t: f64| 0.3 * t + 2.0 * t * t;
        let passage = Passage {
            before: velocity(at(-0.05) / -0.05, 0.05),
            after: velocity(at(0.03) / 0.03, 0.03),
        };
        for t in [-0.05, -0.02, 0.0, 0.01, 0.03, 0.1] {
            let twist = passage.twist(t);
            assert!((twist[0] - at(t)).abs() < 1e-12, "{t}: {twist}");
            assert!((twist[5] - 2.0 * at(t)).abs() < 1e-12, "{t}: {twist}");
        }
    }

    #[test]
    fn one_velocity_is_constant_and_none_is_zero() {
        for (before, after) in [(velocity(0.4, 0.05), None), (None, velocity(0.4, 0.03))] {
            let passage = Passage { before, after };
            assert!((passage.twist(-0.1)[0] + 0.04).abs() < 1e-12);
        }
        assert_eq!(Passage::default().twist(0.1), Vector6::zeros());
    }
}
