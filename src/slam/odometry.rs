//! Frame-to-frame camera motion.

use super::pose_table::Anchor;
use nalgebra::Isometry3;

/// Place of the last frame, from which the next step is measured.
#[derive(Debug, Clone, Copy, Default)]
pub struct Odometry {
    last: Option<Anchor>,
}

impl Odometry {
    /// Sets the place of the newest frame; `None` if it was lost.
    pub fn move_to(&mut self, anchor: Option<Anchor>) {
        self.last = anchor;
    }

    /// The motion from the last frame to one at `anchor`, in metres: both were tracked against one
    /// keyframe with scale `scale` in the world. `None` if the last frame was lost or tracked
    /// against another keyframe.
    pub fn step(&self, anchor: &Anchor, scale: f64) -> Option<Isometry3<f64>> {
        let before = self.last.filter(|b| b.keyframe == anchor.keyframe)?;
        let (from, to) = (&before.keyframe_from_camera, &anchor.keyframe_from_camera);
        let back = from.rotation.inverse();
        let moved = back * (to.translation - from.translation) * scale;
        Some(Isometry3::from_parts(moved.into(), back * to.rotation))
    }

    /// Re-expresses the last frame relative to another keyframe, given that an earlier frame at
    /// `then` is at `there` relative to it, so that the next step can start from it.
    pub fn change_keyframe(&mut self, then: &Anchor, there: &Anchor) {
        if let Some(now) = self.last.filter(|now| now.keyframe == then.keyframe) {
            let since = then.keyframe_from_camera.inverse() * now.keyframe_from_camera;
            self.last = Some(Anchor {
                keyframe: there.keyframe,
                keyframe_from_camera: there.keyframe_from_camera * since,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Sim3;
    use nalgebra::{UnitQuaternion, Vector3};

    fn anchor(keyframe: u32, x: f64, yaw: f64) -> Anchor {
        Anchor {
            keyframe,
            keyframe_from_camera: Sim3 {
                translation: Vector3::new(x, 0.0, 1.0),
                rotation: UnitQuaternion::from_axis_angle(&Vector3::y_axis(), yaw),
                scale: 1.0,
            },
        }
    }

    #[test]
    fn a_step_needs_one_keyframe_and_has_its_scale() {
        let mut odometry = Odometry::default();
        assert!(odometry.step(&anchor(3, 0.0, 0.0), 1.0).is_none());
        odometry.move_to(Some(anchor(3, 1.0, 0.0)));
        let step = odometry.step(&anchor(3, 1.5, 0.2), 2.0).expect("a step");
        assert!((step.translation.x - 1.0).abs() < 1e-12, "{step}");
        assert!((step.rotation.angle() - 0.2).abs() < 1e-12, "{step}");
        assert!(odometry.step(&anchor(4, 1.5, 0.2), 2.0).is_none());
        odometry.move_to(None);
        assert!(odometry.step(&anchor(3, 1.5, 0.2), 2.0).is_none());
    }

    #[test]
    fn a_change_of_keyframes_keeps_the_motion() {
        let mut odometry = Odometry::default();
        let (then, now) = (anchor(3, 1.0, 0.1), anchor(3, 1.2, 0.15));
        let next = anchor(3, 1.3, 0.2);
        odometry.move_to(Some(now));
        let expected = odometry.step(&next, 1.0).expect("a step");
        // The same cameras, relative to keyframe 7.
        let seven_from_three = anchor(7, -2.0, 0.7).keyframe_from_camera;
        let there = |a: &Anchor| Anchor {
            keyframe: 7,
            keyframe_from_camera: seven_from_three * a.keyframe_from_camera,
        };
        odometry.change_keyframe(&then, &there(&then));
        let found = odometry.step(&there(&next), 1.0).expect("a step");
        assert!((found.translation.vector - expected.translation.vector).norm() < 1e-12);
        assert!(found.rotation.angle_to(&expected.rotation) < 1e-7);
    }
}
