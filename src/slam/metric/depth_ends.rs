//! The motion between two keyframes by their depth images, as far as the moments of these images are known.

use super::depth_moment::MeasuredKeyframe;
use super::depth_offset::DepthOffset;
use super::motion::CameraMotion;
use crate::geometry::rotation_log;
use nalgebra::{Isometry3, Vector6};

/// Standard deviation of the tracked motion between a keyframe and the frame whose depth stands for it, as a part of the
/// way and of the turn.
const LEVER: f64 = 0.02;
/// Step of the derivative by the offset, in seconds.
const STEP: f64 = 1e-3;

/// Two keyframes whose depth images fit each other. Their motion depends on the offset of depth, which may be found, and
/// on the camera's motion about the images, which is known a tenth of a second later.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DepthEnds {
    pub i: MeasuredKeyframe,
    pub j: MeasuredKeyframe,
    /// From the camera that measured the depth of `j` to that of `i`, by the images alone.
    pub between: CameraMotion,
}

impl DepthEnds {
    /// The motion from `j` to `i`. With the standard deviation `σ` of the offset, and the derivative `η` of the motion by
    /// it, `σ² η ηᵀ` is a part of the covariance: the change of velocity between the two is then open.
    pub fn motion(&self, offset: &DepthOffset) -> CameraMotion {
        let [from_i, to_j] = [&self.i, &self.j].map(|end| lever(end, offset.seconds));
        let from_i = CameraMotion {
            i_from_j: from_i.i_from_j.inverse(),
            ..from_i
        };
        let mut motion = from_i.then(&self.between).then(&to_j);
        let [before, after] = [-STEP, STEP].map(|step| self.i_from_j(offset.seconds + step));
        let moved = after.translation.vector - before.translation.vector;
        let turned = rotation_log(&(before.rotation.inverse() * after.rotation));
        let change = Vector6::from_iterator(moved.iter().chain(&turned).copied()) / (2.0 * STEP);
        motion.covariance += change * change.transpose() * offset.sigma.powi(2);
        motion
    }

    fn i_from_j(&self, offset: f64) -> Isometry3<f64> {
        let [i, j] = [&self.i, &self.j].map(|end| end.keyframe_from_depth(offset));
        i * self.between.i_from_j * j.inverse()
    }
}

/// From the camera of a keyframe to that of its depth. It is as certain as the tracked motion between the keyframe and the
/// frame with depth.
fn lever(end: &MeasuredKeyframe, offset: f64) -> CameraMotion {
    let tracked = end.depth.path_from_camera.inverse() * end.path_from_camera;
    CameraMotion {
        i_from_j: end.keyframe_from_depth(offset).inverse(),
        ..CameraMotion::known_to(LEVER, tracked)
    }
}
