//! REP-105: where the map, the odometry's origin and the robot are to each other.
//!
//! SLAM says where the camera is in its world. The world is put into the map frame once, so that the robot
//! starts at the map's origin. `odom -> base` adds up the camera's own steps and so never jumps; whatever
//! SLAM corrects (loops, scale, relocalisation) goes into `map -> odom = T_map_base * inv(T_odom_base)`.
//! With an odometry from elsewhere its `odom -> base` takes the place of ours.

use crate::geometry::Sim3;
use nalgebra::{Isometry3, Quaternion, Translation3, UnitQuaternion};

/// Axes of a robot (x forward, y left, z up) from those of a camera (z forward, x right, y down): REP-103.
pub fn body_from_optical() -> Isometry3<f64> {
    let rotation = UnitQuaternion::from_quaternion(Quaternion::new(0.5, -0.5, 0.5, -0.5));
    Isometry3::from_parts(Translation3::identity(), rotation)
}

/// A pose without its scale. SLAM's world is metric; a keyframe's scale is that of its own points.
pub fn rigid(pose: &Sim3) -> Isometry3<f64> {
    Isometry3::from_parts(pose.translation.into(), pose.rotation)
}

/// A frame's transforms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Located {
    /// Robot in the map.
    pub map_from_base: Isometry3<f64>,
    /// Robot in the odometry's frame.
    pub odom_from_base: Isometry3<f64>,
    /// The correction.
    pub map_from_odom: Isometry3<f64>,
}

/// The state of the tree.
#[derive(Debug, Clone, PartialEq)]
pub struct Frames {
    base_from_camera: Isometry3<f64>,
    /// `None` before the first pose of a map.
    map_from_world: Option<Isometry3<f64>>,
    /// The robot at the map's last pose, in SLAM's world; `None` before its first.
    world_from_base: Option<Isometry3<f64>>,
    /// Our own odometry; `None` before the first pose.
    odom_from_base: Option<Isometry3<f64>>,
    map_from_odom: Isometry3<f64>,
    /// Where the robot is in the map at a map's first pose.
    start: Isometry3<f64>,
}

impl Frames {
    /// For a camera that sits at `base_from_camera` on the robot.
    pub fn new(base_from_camera: Isometry3<f64>) -> Self {
        Self {
            base_from_camera,
            map_from_world: None,
            world_from_base: None,
            odom_from_base: None,
            map_from_odom: Isometry3::identity(),
            start: Isometry3::identity(),
        }
    }

    /// For a robot of which nothing but the camera is known: its base is the optical frame.
    pub fn of_camera_alone() -> Self {
        Self {
            start: body_from_optical(),
            ..Self::new(Isometry3::identity())
        }
    }

    /// Puts SLAM's world into the map; `None` before the first pose.
    pub fn map_from_world(&self) -> Option<&Isometry3<f64>> {
        self.map_from_world.as_ref()
    }

    /// The correction as last known.
    pub fn map_from_odom(&self) -> &Isometry3<f64> {
        &self.map_from_odom
    }

    /// Our own odometry as last known.
    pub fn odom_from_base(&self) -> Option<&Isometry3<f64>> {
        self.odom_from_base.as_ref()
    }

    /// Takes a tracked frame. `step` is this frame's camera in that of the frame before, in metres, as
    /// tracking saw it; without one (first frame, found again) the odometry stands still. `external` is
    /// `odom -> base` at the frame's time where somebody else provides it.
    pub fn tracked(
        &mut self,
        world_from_camera: &Sim3,
        step: Option<&Isometry3<f64>>,
        external: Option<&Isometry3<f64>>,
    ) -> Located {
        let camera_from_base = self.base_from_camera.inverse();
        let world_from_base = rigid(world_from_camera) * camera_from_base;
        self.world_from_base = Some(world_from_base);
        let start = *external.unwrap_or(&self.start);
        let map_from_world = *self
            .map_from_world
            .get_or_insert_with(|| start * world_from_base.inverse());
        let map_from_base = normalised(map_from_world * world_from_base);
        let odom_from_base = match (external, self.odom_from_base) {
            (Some(external), _) => *external,
            (None, None) => map_from_base,
            (None, Some(before)) => match step {
                Some(step) => normalised(before * self.base_from_camera * step * camera_from_base),
                None => before,
            },
        };
        self.odom_from_base = Some(odom_from_base);
        self.map_from_odom = normalised(map_from_base * odom_from_base.inverse());
        Located {
            map_from_base,
            odom_from_base,
            map_from_odom: self.map_from_odom,
        }
    }

    /// Somebody says where the robot was at the last pose: the map is put there. `false` before the first.
    pub fn set_pose(&mut self, map_from_base: &Isometry3<f64>) -> bool {
        let Some(world_from_base) = &self.world_from_base else {
            return false;
        };
        self.map_from_world = Some(normalised(map_from_base * world_from_base.inverse()));
        true
    }

    /// The camera sits elsewhere now, as in `new`. The odometry goes on; a new map begins.
    pub fn remount(&mut self, new: Self) {
        *self = Self {
            odom_from_base: self.odom_from_base,
            map_from_odom: self.map_from_odom,
            ..new
        };
    }

    /// A new map begins with the next pose. The odometry goes on.
    pub fn new_map(&mut self) {
        (self.map_from_world, self.world_from_base) = (None, None);
    }

    /// The new map was loaded: its world lies in the map frame as it did when it was saved. Without that, the
    /// robot was at the map's origin when the `first` keyframe was made.
    pub fn load(&mut self, map_from_world: Option<&Isometry3<f64>>, first: &Sim3) {
        let world_from_base = rigid(first) * self.base_from_camera.inverse();
        let placed = match map_from_world {
            Some(placed) => *placed,
            None => self.start * world_from_base.inverse(),
        };
        self.map_from_world = Some(normalised(placed));
    }
}

/// Products of many rotations stay rotations.
fn normalised(t: Isometry3<f64>) -> Isometry3<f64> {
    let rotation = UnitQuaternion::new_normalize(t.rotation.into_inner());
    Isometry3::from_parts(t.translation, rotation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nalgebra::Vector3;
    use std::f64::consts::FRAC_PI_2;

    fn pose(x: f64, y: f64, z: f64, about_y: f64) -> Sim3 {
        Sim3 {
            translation: Vector3::new(x, y, z),
            rotation: UnitQuaternion::from_axis_angle(&Vector3::y_axis(), about_y),
            scale: 1.0,
        }
    }

    fn near(a: &Isometry3<f64>, b: &Isometry3<f64>) -> bool {
        let d = a.inverse() * b;
        d.translation.vector.norm() < 1e-9 && d.rotation.angle() < 1e-9
    }

    fn step(from: &Sim3, to: &Sim3) -> Isometry3<f64> {
        rigid(from).inverse() * rigid(to)
    }

    /// A camera 0.2 m ahead of the base and 0.5 m above it, looking forward.
    fn mount() -> Isometry3<f64> {
        Isometry3::translation(0.2, 0.0, 0.5) * body_from_optical()
    }

    #[test]
    fn optical_axes_become_those_of_a_robot() {
        let t = body_from_optical();
        assert!((t * Vector3::z() - Vector3::x()).norm() < 1e-12, "forward");
        assert!((t * Vector3::x() + Vector3::y()).norm() < 1e-12, "right");
        assert!((t * Vector3::y() + Vector3::z()).norm() < 1e-12, "down");
    }

    #[test]
    fn a_robot_that_drives_forward_does_so_in_the_map() {
        let mut frames = Frames::new(mount());
        let first = frames.tracked(&pose(0.0, 0.0, 0.0, 0.0), None, None);
        assert!(near(&first.map_from_base, &Isometry3::identity()));
        assert!(near(&first.map_from_odom, &Isometry3::identity()));
        // Two metres along the optical axis.
        let (a, b) = (pose(0.0, 0.0, 0.0, 0.0), pose(0.0, 0.0, 2.0, 0.0));
        let then = frames.tracked(&b, Some(&step(&a, &b)), None);
        assert!(near(
            &then.map_from_base,
            &Isometry3::translation(2.0, 0.0, 0.0)
        ));
        assert!(near(&then.odom_from_base, &then.map_from_base));
    }

    /// A square walk with drift; then a loop closes, which moves the camera back and changes the scale.
    #[test]
    fn a_loop_closure_with_a_change_of_scale_moves_map_to_odom_and_never_odom_to_base() {
        let mut frames = Frames::new(mount());
        let mut camera = pose(0.0, 0.0, 0.0, 0.0);
        let mut last = frames.tracked(&camera, None, None);
        let turn = pose(0.0, 0.0, 0.1, FRAC_PI_2 / 10.0);
        for _ in 0..40 {
            let next = camera * turn;
            let now = frames.tracked(&next, Some(&step(&camera, &next)), None);
            assert!(near(&now.map_from_odom, &Isometry3::identity()));
            (camera, last) = (next, now);
        }
        // The world is solved anew: everything 10 % smaller and shifted. The camera stands still.
        let shift = Sim3 {
            translation: Vector3::new(0.3, -0.1, 0.2),
            rotation: UnitQuaternion::from_euler_angles(0.02, -0.1, 0.05),
            scale: 0.9,
        };
        let closed = shift * camera;
        let after = frames.tracked(&closed, Some(&Isometry3::identity()), None);
        assert!(
            near(&after.odom_from_base, &last.odom_from_base),
            "odom -> base jumped"
        );
        assert!(
            !near(&after.map_from_odom, &last.map_from_odom),
            "the correction is nowhere"
        );
        // The chain says what SLAM says.
        let expected = *frames.map_from_world().unwrap() * rigid(&closed) * mount().inverse();
        assert!(near(
            &(after.map_from_odom * after.odom_from_base),
            &expected
        ));
        assert!(near(&after.map_from_base, &expected));
        // From here on both move by the same metric step, and the correction rests.
        let ahead = Isometry3::translation(0.0, 0.0, 0.05);
        let moved = Sim3 {
            translation: closed.translation + closed.rotation * ahead.translation.vector,
            ..closed
        };
        let next = frames.tracked(&moved, Some(&ahead), None);
        let gone = after.odom_from_base.inverse() * next.odom_from_base;
        assert!(
            near(&gone, &Isometry3::translation(0.05, 0.0, 0.0)),
            "{gone}"
        );
        assert!(near(&next.map_from_odom, &after.map_from_odom));
    }

    #[test]
    fn found_again_elsewhere_the_odometry_stands_where_it_stood() {
        let mut frames = Frames::new(mount());
        frames.tracked(&pose(0.0, 0.0, 0.0, 0.0), None, None);
        let (a, b) = (pose(0.0, 0.0, 0.0, 0.0), pose(0.0, 0.0, 1.0, 0.0));
        let before = frames.tracked(&b, Some(&step(&a, &b)), None);
        let again = frames.tracked(&pose(3.0, 0.0, 2.0, 1.0), None, None);
        assert!(near(&again.odom_from_base, &before.odom_from_base));
        let chain = again.map_from_odom * again.odom_from_base;
        assert!(near(&chain, &again.map_from_base));
        assert!(!near(&again.map_from_odom, &before.map_from_odom));
    }

    #[test]
    fn an_odometry_from_elsewhere_is_kept_and_the_map_starts_where_it_stands() {
        let mut frames = Frames::new(mount());
        let wheels = Isometry3::translation(5.0, 1.0, 0.0);
        let first = frames.tracked(&pose(0.0, 0.0, 0.0, 0.0), None, Some(&wheels));
        assert!(near(&first.map_from_odom, &Isometry3::identity()));
        assert!(near(&first.map_from_base, &wheels));
        // The wheels slip: they say 1 m, SLAM says 0.8 m.
        let slipped = Isometry3::translation(6.0, 1.0, 0.0);
        let then = frames.tracked(&pose(0.0, 0.0, 0.8, 0.0), None, Some(&slipped));
        assert!(near(&then.odom_from_base, &slipped));
        assert!(near(
            &then.map_from_base,
            &Isometry3::translation(5.8, 1.0, 0.0)
        ));
        assert!(near(
            &then.map_from_odom,
            &Isometry3::translation(-0.2, 0.0, 0.0)
        ));
    }

    #[test]
    fn a_given_pose_moves_the_map_and_a_reset_only_the_map() {
        let mut frames = Frames::new(mount());
        assert!(!frames.set_pose(&Isometry3::translation(1.0, 0.0, 0.0)));
        let (a, b) = (pose(0.0, 0.0, 0.0, 0.0), pose(0.0, 0.0, 1.0, 0.0));
        frames.tracked(&a, None, None);
        let before = frames.tracked(&b, Some(&step(&a, &b)), None);
        let given = Isometry3::translation(7.0, 2.0, 0.0);
        assert!(frames.set_pose(&given));
        let after = frames.tracked(&b, Some(&Isometry3::identity()), None);
        assert!(near(&after.map_from_base, &given));
        assert!(near(&after.odom_from_base, &before.odom_from_base));
        frames.new_map();
        let anew = frames.tracked(&pose(0.0, 0.0, 0.0, 0.0), None, None);
        assert!(near(&anew.map_from_base, &Isometry3::identity()));
        assert!(near(&anew.odom_from_base, &before.odom_from_base));
    }

    #[test]
    fn a_loaded_map_lies_where_it_lay_and_the_odometry_goes_on() {
        let mut frames = Frames::new(mount());
        let (a, b) = (pose(0.0, 0.0, 0.0, 0.0), pose(0.0, 0.0, 1.0, 0.0));
        frames.tracked(&a, None, None);
        let before = frames.tracked(&b, Some(&step(&a, &b)), None);
        let placed = Isometry3::translation(4.0, -2.0, 0.0) * body_from_optical();
        frames.new_map();
        frames.load(Some(&placed), &a);
        assert!(
            !frames.set_pose(&Isometry3::identity()),
            "nobody was seen in it yet"
        );
        assert!(near(frames.map_from_world().unwrap(), &placed));
        let found = pose(0.5, 0.0, 3.0, 0.4);
        let after = frames.tracked(&found, None, None);
        assert!(near(&after.odom_from_base, &before.odom_from_base));
        let expected = placed * rigid(&found) * mount().inverse();
        assert!(near(&after.map_from_base, &expected));
        assert!(near(
            &(after.map_from_odom * after.odom_from_base),
            &expected
        ));
        assert!(frames.set_pose(&Isometry3::identity()));
        // One that no node had placed: the robot stood at the origin when its first keyframe was made.
        let mut fresh = Frames::new(mount());
        fresh.load(None, &found);
        let there = fresh.tracked(&found, None, None);
        assert!(near(&there.map_from_base, &Isometry3::identity()));
    }

    #[test]
    fn with_the_camera_alone_the_map_still_has_z_up() {
        let mut frames = Frames::of_camera_alone();
        let first = frames.tracked(&pose(0.0, 0.0, 0.0, 0.0), None, None);
        assert!(near(&first.map_from_base, &body_from_optical()));
        assert!(near(&first.map_from_odom, &Isometry3::identity()));
    }
}
