//! REP-105 transforms between map, odometry origin and robot.
//!
//! SLAM provides the camera pose in its world frame. The world is placed in the map frame once,
//! such that the robot starts at the map's origin. `odom -> base` accumulates the camera's motion
//! and never jumps; SLAM's corrections (loop closure, scale, relocalisation) go into `map -> odom =
//! T_map_base * inv(T_odom_base)`. If an external odometry provides `odom -> base`, it replaces
//! ours.

use crate::geometry::Sim3;
use nalgebra::{Isometry3, Quaternion, Translation3, UnitQuaternion, Vector3};

/// Rotation from camera axes (z forward, x right, y down) to robot axes (x forward, y left, z up),
/// as in REP-103.
pub fn body_from_optical() -> Isometry3<f64> {
    let rotation = UnitQuaternion::from_quaternion(Quaternion::new(0.5, -0.5, 0.5, -0.5));
    Isometry3::from_parts(Translation3::identity(), rotation)
}

/// A pose without scale. SLAM's world is metric; a keyframe's scale only applies to its points.
pub fn rigid(pose: &Sim3) -> Isometry3<f64> {
    Isometry3::from_parts(pose.translation.into(), pose.rotation)
}

/// What the transforms may move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Freedom {
    /// Everything.
    #[default]
    Space,
    /// `map -> odom` and our own odometry keep roll, pitch and z zero.
    Plane,
    /// Only `map -> odom` keeps them zero: the base is no upright frame.
    PlaneCorrection,
}

/// A frame's transforms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Located {
    /// Robot pose in the map frame.
    pub map_from_base: Isometry3<f64>,
    /// Robot pose in the odometry frame.
    pub odom_from_base: Isometry3<f64>,
    /// The correction.
    pub map_from_odom: Isometry3<f64>,
}

/// State of the transforms.
#[derive(Debug, Clone, PartialEq)]
pub struct Rep105 {
    base_from_camera: Isometry3<f64>,
    /// `None` before the first pose of a map.
    map_from_world: Option<Isometry3<f64>>,
    /// Robot pose at the map's last frame, in SLAM's world; `None` before its first.
    world_from_base: Option<Isometry3<f64>>,
    /// Our own odometry; `None` before the first pose.
    odom_from_base: Option<Isometry3<f64>>,
    map_from_odom: Isometry3<f64>,
    /// Robot pose in the map frame at the first frame of a map.
    start: Isometry3<f64>,
    freedom: Freedom,
}

impl Rep105 {
    /// For a camera mounted at `base_from_camera` on the robot.
    pub fn new(base_from_camera: Isometry3<f64>) -> Self {
        Self {
            base_from_camera,
            map_from_world: None,
            world_from_base: None,
            odom_from_base: None,
            map_from_odom: Isometry3::identity(),
            start: Isometry3::identity(),
            freedom: Freedom::Space,
        }
    }

    /// For a robot whose base is the camera's optical frame.
    pub fn of_camera_alone() -> Self {
        Self {
            start: body_from_optical(),
            ..Self::new(Isometry3::identity())
        }
    }

    /// Sets what the transforms may move from the next frame on.
    pub fn set_freedom(&mut self, freedom: Freedom) {
        self.freedom = freedom;
    }

    /// Transform from SLAM's world to the map frame; `None` before the first pose.
    pub fn map_from_world(&self) -> Option<&Isometry3<f64>> {
        self.map_from_world.as_ref()
    }

    /// The last known correction.
    pub fn map_from_odom(&self) -> &Isometry3<f64> {
        &self.map_from_odom
    }

    /// The last known pose of our own odometry.
    pub fn odom_from_base(&self) -> Option<&Isometry3<f64>> {
        self.odom_from_base.as_ref()
    }

    /// Updates with a tracked frame. `step` is this frame's camera pose in the previous camera
    /// frame, in metres, as measured by tracking; without it (first frame, relocalised) the
    /// odometry stands still. `external` is `odom -> base` at the time of the frame, if another
    /// node provides it.
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
        let before = self.odom_from_base;
        let own = before.map_or(map_from_base, |before| self.stepped(&before, step));
        let odom_from_base = self.odometry(own, external);
        let (map_from_odom, map_from_base) = match self.freedom {
            Freedom::Space => (
                normalised(map_from_base * odom_from_base.inverse()),
                map_from_base,
            ),
            Freedom::Plane | Freedom::PlaneCorrection => {
                let correction = plane_correction(&map_from_base, &odom_from_base);
                (correction, normalised(correction * odom_from_base))
            }
        };
        self.map_from_odom = map_from_odom;
        Located {
            map_from_base,
            odom_from_base,
            map_from_odom,
        }
    }

    /// Updates with a frame whose pose is known by wheels only: the odometry goes on by `step` or `external`, as in
    /// [`Rep105::tracked`], and the correction stays as it was. `None` before the first pose of a map.
    pub fn bridged(
        &mut self,
        world_from_camera: &Sim3,
        step: Option<&Isometry3<f64>>,
        external: Option<&Isometry3<f64>>,
    ) -> Option<Located> {
        self.map_from_world?;
        let before = self.odom_from_base?;
        self.world_from_base = Some(rigid(world_from_camera) * self.base_from_camera.inverse());
        let own = self.stepped(&before, step);
        let odom_from_base = self.odometry(own, external);
        let map_from_odom = self.map_from_odom;
        Some(Located {
            map_from_base: normalised(map_from_odom * odom_from_base),
            odom_from_base,
            map_from_odom,
        })
    }

    /// The base after a step of the camera.
    fn stepped(&self, before: &Isometry3<f64>, step: Option<&Isometry3<f64>>) -> Isometry3<f64> {
        step.map_or(*before, |step| {
            normalised(before * self.base_from_camera * step * self.base_from_camera.inverse())
        })
    }

    /// Sets `odom -> base` to that of another node, or to ours where it may move.
    fn odometry(
        &mut self,
        own: Isometry3<f64>,
        external: Option<&Isometry3<f64>>,
    ) -> Isometry3<f64> {
        let odom_from_base = match (external, self.freedom) {
            (Some(external), _) => *external,
            (None, Freedom::Plane) => on_plane(&own),
            (None, Freedom::Space | Freedom::PlaneCorrection) => own,
        };
        self.odom_from_base = Some(odom_from_base);
        odom_from_base
    }

    /// Moves the map such that the robot was at this pose in the last frame. Returns `false` before
    /// the first pose.
    pub fn set_pose(&mut self, map_from_base: &Isometry3<f64>) -> bool {
        let Some(world_from_base) = &self.world_from_base else {
            return false;
        };
        self.map_from_world = Some(normalised(map_from_base * world_from_base.inverse()));
        true
    }

    /// Changes the camera's mount to that of `new`. Odometry continues; a new map starts.
    pub fn remount(&mut self, new: Self) {
        *self = Self {
            odom_from_base: self.odom_from_base,
            map_from_odom: self.map_from_odom,
            freedom: self.freedom,
            ..new
        };
    }

    /// Starts a new map with the next pose. Odometry continues.
    pub fn new_map(&mut self) {
        (self.map_from_world, self.world_from_base) = (None, None);
    }

    /// Places a loaded map: its world has the same pose in the map frame as when it was saved. If
    /// that is unknown, the robot was at the map's origin at the `first` keyframe.
    pub fn load(&mut self, map_from_world: Option<&Isometry3<f64>>, first: &Sim3) {
        let world_from_base = rigid(first) * self.base_from_camera.inverse();
        let placed = match map_from_world {
            Some(placed) => *placed,
            None => self.start * world_from_base.inverse(),
        };
        self.map_from_world = Some(normalised(placed));
    }
}

/// The rotation about z that is nearest to `rotation`.
fn about_z(rotation: &UnitQuaternion<f64>) -> UnitQuaternion<f64> {
    let r = rotation.to_rotation_matrix();
    let yaw = (r[(1, 0)] - r[(0, 1)]).atan2(r[(0, 0)] + r[(1, 1)]);
    UnitQuaternion::from_axis_angle(&Vector3::z_axis(), yaw)
}

/// The pose without roll, pitch and z.
fn on_plane(pose: &Isometry3<f64>) -> Isometry3<f64> {
    let at = &pose.translation;
    Isometry3::from_parts(Translation3::new(at.x, at.y, 0.0), about_z(&pose.rotation))
}

/// The planar `map_from_odom` that puts the robot at the x, y and yaw of `map_from_base`.
fn plane_correction(
    map_from_base: &Isometry3<f64>,
    odom_from_base: &Isometry3<f64>,
) -> Isometry3<f64> {
    let turn = about_z(&(map_from_base.rotation * odom_from_base.rotation.inverse()));
    let moved = map_from_base.translation.vector - turn * odom_from_base.translation.vector;
    Isometry3::from_parts(Translation3::new(moved.x, moved.y, 0.0), turn)
}

/// Renormalises a product of many rotations.
fn normalised(t: Isometry3<f64>) -> Isometry3<f64> {
    let rotation = UnitQuaternion::new_normalize(t.rotation.into_inner());
    Isometry3::from_parts(t.translation, rotation)
}

#[cfg(test)]
mod tests {
    use super::*;
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

    /// A camera 0.2 m in front of the base and 0.5 m above it, looking forward.
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
        let mut frames = Rep105::new(mount());
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

    /// A square path with drift; then a loop closes, which corrects the camera and changes the
    /// scale.
    #[test]
    fn a_loop_closure_with_a_change_of_scale_moves_map_to_odom_and_never_odom_to_base() {
        let mut frames = Rep105::new(mount());
        let mut camera = pose(0.0, 0.0, 0.0, 0.0);
        let mut last = frames.tracked(&camera, None, None);
        let turn = pose(0.0, 0.0, 0.1, FRAC_PI_2 / 10.0);
        for _ in 0..40 {
            let next = camera * turn;
            let now = frames.tracked(&next, Some(&step(&camera, &next)), None);
            assert!(near(&now.map_from_odom, &Isometry3::identity()));
            (camera, last) = (next, now);
        }
        // The world is optimised: everything is 10 % smaller and shifted. The camera stands still.
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
        // The chain of transforms agrees with SLAM.
        let expected = *frames.map_from_world().unwrap() * rigid(&closed) * mount().inverse();
        assert!(near(
            &(after.map_from_odom * after.odom_from_base),
            &expected
        ));
        assert!(near(&after.map_from_base, &expected));
        // From here on both move by the same metric step, and the correction is constant.
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
        let mut frames = Rep105::new(mount());
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
        let mut frames = Rep105::new(mount());
        let wheels = Isometry3::translation(5.0, 1.0, 0.0);
        let first = frames.tracked(&pose(0.0, 0.0, 0.0, 0.0), None, Some(&wheels));
        assert!(near(&first.map_from_odom, &Isometry3::identity()));
        assert!(near(&first.map_from_base, &wheels));
        // The wheels slip: they report 1 m, SLAM 0.8 m.
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

    /// Roll, pitch and z are zero.
    fn is_planar(t: &Isometry3<f64>) -> bool {
        let (roll, pitch, _) = t.rotation.euler_angles();
        roll.abs() < 1e-9 && pitch.abs() < 1e-9 && t.translation.z.abs() < 1e-9
    }

    #[test]
    fn in_a_plane_a_tilting_world_neither_tilts_nor_lifts_the_robot() {
        // The world tilts and sinks while the robot drives 2 m ahead and turns: drift.
        let drifted = |x: f64, yaw: f64| Sim3 {
            translation: Vector3::new(0.01, 0.2, x),
            rotation: UnitQuaternion::from_euler_angles(0.04, 0.0, -0.03)
                * UnitQuaternion::from_axis_angle(&Vector3::y_axis(), -yaw),
            scale: 1.0,
        };
        let start = pose(0.0, 0.0, 0.0, 0.0);
        for wheels in [
            None,
            Some(Isometry3::new(
                Vector3::new(3.0, 1.0, 0.0),
                Vector3::z() * 0.7,
            )),
        ] {
            let mut frames = Rep105::new(mount());
            frames.set_freedom(Freedom::Plane);
            let first = frames.tracked(&start, None, wheels.as_ref());
            let mut before = start;
            for k in 1..=20 {
                let share = f64::from(k) / 20.0;
                let now = drifted(2.0 * share, 0.5 * share);
                let seen = frames.tracked(&now, Some(&step(&before, &now)), wheels.as_ref());
                before = now;
                assert!(is_planar(&seen.map_from_odom), "{}", seen.map_from_odom);
                assert!(is_planar(&seen.odom_from_base), "{}", seen.odom_from_base);
                let chain = seen.map_from_odom * seen.odom_from_base;
                assert!(near(&chain, &seen.map_from_base));
                // Where SLAM sees the robot, but for what leaves the plane.
                let free = frames.map_from_world().unwrap() * rigid(&now) * mount().inverse();
                let gap = (free.translation.vector - seen.map_from_base.translation.vector).xy();
                assert!(gap.norm() < 1e-9, "{gap}");
                let yaw = (first.map_from_base.rotation.inverse() * seen.map_from_base.rotation)
                    .euler_angles()
                    .2;
                assert!((yaw - 0.5 * share).abs() < 0.05, "{yaw}");
            }
        }
    }

    #[test]
    fn a_camera_alone_keeps_its_tilt_and_only_the_correction_is_planar() {
        let mut frames = Rep105::of_camera_alone();
        frames.set_freedom(Freedom::PlaneCorrection);
        let (a, b) = (pose(0.0, 0.0, 0.0, 0.0), pose(0.0, -0.3, 1.0, 0.0));
        frames.tracked(&a, None, None);
        let up = frames.tracked(&b, Some(&step(&a, &b)), None);
        assert!((up.odom_from_base.translation.z - 0.3).abs() < 1e-9);
        let closed = frames.tracked(&a, Some(&Isometry3::identity()), None);
        assert!(is_planar(&closed.map_from_odom));
        assert!((closed.map_from_odom.translation.x + 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_given_pose_moves_the_map_and_a_reset_only_the_map() {
        let mut frames = Rep105::new(mount());
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
        let mut frames = Rep105::new(mount());
        let (a, b) = (pose(0.0, 0.0, 0.0, 0.0), pose(0.0, 0.0, 1.0, 0.0));
        frames.tracked(&a, None, None);
        let before = frames.tracked(&b, Some(&step(&a, &b)), None);
        let placed = Isometry3::translation(4.0, -2.0, 0.0) * body_from_optical();
        frames.new_map();
        frames.load(Some(&placed), &a);
        assert!(
            !frames.set_pose(&Isometry3::identity()),
            "no pose is known in it yet"
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
        // A map that no node had placed: the robot was at the origin when its first keyframe was
        // made.
        let mut fresh = Rep105::new(mount());
        fresh.load(None, &found);
        let there = fresh.tracked(&found, None, None);
        assert!(near(&there.map_from_base, &Isometry3::identity()));
    }

    #[test]
    fn with_the_camera_alone_the_map_still_has_z_up() {
        let mut frames = Rep105::of_camera_alone();
        let first = frames.tracked(&pose(0.0, 0.0, 0.0, 0.0), None, None);
        assert!(near(&first.map_from_base, &body_from_optical()));
        assert!(near(&first.map_from_odom, &Isometry3::identity()));
    }
}
