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

/// The directions in which the transforms may move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Freedom {
    /// Everything.
    #[default]
    Space,
    /// `map -> odom` and our own odometry keep roll, pitch and z zero.
    Plane,
    /// Only `map -> odom` keeps them zero: the base is not an upright frame.
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
    /// Up in SLAM's world, once measured.
    up: Option<Vector3<f64>>,
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
            up: None,
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

    /// Sets up in SLAM's world, if an accelerometer measured it: a map that begins is placed such that its z axis is up,
    /// unless it begins at a pose by other odometry.
    pub fn set_up(&mut self, up: Option<Vector3<f64>>) {
        self.up = up;
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
        let world_from_base = world_from_camera.rigid() * camera_from_base;
        self.world_from_base = Some(world_from_base);
        let start = match (external, &self.up) {
            (Some(external), _) => *external,
            (None, Some(up)) => levelled(&self.start, &(world_from_base.inverse() * up)),
            (None, None) => self.start,
        };
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
        self.world_from_base = Some(world_from_camera.rigid() * self.base_from_camera.inverse());
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
        let world_from_base = first.rigid() * self.base_from_camera.inverse();
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

/// A pose in the map, turned the shortest way about its own position such that `up`, in its axes, is the map's z.
fn levelled(pose: &Isometry3<f64>, up: &Vector3<f64>) -> Isometry3<f64> {
    let turn = UnitQuaternion::rotation_between(&(pose.rotation * up), &Vector3::z());
    let rotation = turn.unwrap_or_default() * pose.rotation;
    Isometry3::from_parts(pose.translation, rotation)
}

#[cfg(test)]
mod tests;
