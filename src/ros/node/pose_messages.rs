//! The robot's pose as messages: `TrackedFrame -> PoseMessages`, for the node and for recordings.

use super::publish;
use super::rep105::{Freedom, Located, Rep105};
use super::settings::Settings;
use super::shared::{LoadedPlace, Mount};
use super::uncertainty;
use crate::geometry::Sim3;
use crate::map::{FrameRecord, TrackingState};
use crate::slam::{Covariance6, PoseTable, TrackedFrame};
use crate::time::Stamp;
use crate::wire::messages::geometry::{PoseWithCovarianceStamped, TransformStamped};
use crate::wire::messages::nav::{Odometry, Path};
use nalgebra::{Isometry3, Vector3};
use std::sync::Arc;

/// The robot in the tree of frames.
pub struct Robot {
    rep105: Rep105,
    mount: Mount,
    camera_frame: Arc<str>,
    /// Submap of the last pose.
    submap: u32,
    last_stamp: Option<Stamp>,
    tracked: Option<Stamp>,
    /// Covariance of the last tracked pose in the odometry frame.
    covariance: Covariance6,
}

/// Messages for one frame; omits transforms that another node owns.
#[derive(Debug, Default)]
pub struct PoseMessages {
    /// `odom -> base`
    pub odom_from_base: Option<TransformStamped>,
    /// `map -> odom`
    pub map_from_odom: Option<TransformStamped>,
    /// `~/odometry`
    pub odometry: Option<Odometry>,
    /// `~/pose`
    pub pose: Option<PoseWithCovarianceStamped>,
    /// Whether the map was just placed in the map frame, or the submap of the poses changed.
    pub placed: bool,
}

impl Default for Robot {
    fn default() -> Self {
        Self {
            rep105: Rep105::of_camera_alone(),
            mount: Mount::CameraAlone,
            camera_frame: "".into(),
            submap: 0,
            last_stamp: None,
            tracked: None,
            covariance: uncertainty::unknown(),
        }
    }
}

impl Robot {
    /// Starts a new map with the next frame. Odometry continues.
    pub fn new_map(&mut self, mount: Mount, camera_frame: Arc<str>) {
        self.rep105.new_map();
        if mount != self.mount {
            self.rep105.remount(match mount {
                Mount::On(base_from_camera) => Rep105::new(base_from_camera),
                Mount::CameraAlone => Rep105::of_camera_alone(),
            });
            self.mount = mount;
        }
        self.camera_frame = camera_frame;
        self.submap = 0;
        (self.last_stamp, self.tracked) = (None, None);
    }

    /// Places a loaded map according to `loaded`.
    pub fn load(&mut self, loaded: &LoadedPlace) {
        self.rep105
            .load(loaded.map_from_world.as_ref(), &loaded.first);
    }

    /// The camera's optical frame.
    pub fn camera_frame(&self) -> &Arc<str> {
        &self.camera_frame
    }

    /// The camera's pose on the robot.
    pub fn mount(&self) -> &Mount {
        &self.mount
    }

    /// Submap of the last pose.
    pub fn submap(&self) -> u32 {
        self.submap
    }

    /// Transform from SLAM's world to the map frame; `None` before the first pose.
    pub fn map_from_world(&self) -> Option<&Isometry3<f64>> {
        self.rep105.map_from_world()
    }

    /// The last known correction.
    pub fn map_from_odom(&self) -> &Isometry3<f64> {
        self.rep105.map_from_odom()
    }

    /// The camera's pose in SLAM's world if the robot is here; `None` before the map has a place.
    pub fn world_from_camera(&self, map_from_base: &Isometry3<f64>) -> Option<Sim3> {
        let map_from_camera = match &self.mount {
            Mount::On(base_from_camera) => map_from_base * base_from_camera,
            Mount::CameraAlone => *map_from_base,
        };
        let world_from_camera = self.map_from_world()?.inverse() * map_from_camera;
        Some(Sim3::from(&world_from_camera))
    }

    /// Moves the map such that the robot was at this pose in the last frame. Returns `false` before
    /// the first pose.
    pub fn set_pose(&mut self, map_from_base: &Isometry3<f64>) -> bool {
        self.rep105.set_pose(map_from_base)
    }

    /// The robot's own frame.
    pub fn base_frame(&self, settings: &Settings) -> Arc<str> {
        match self.mount {
            Mount::CameraAlone => Arc::clone(&self.camera_frame),
            Mount::On(_) => settings.base_frame.as_str().into(),
        }
    }

    /// The messages for a processed frame. `external` is `odom -> base` at the time of the frame,
    /// in metres, if another node provides it.
    pub fn messages(
        &mut self,
        tracked: &TrackedFrame,
        external: Option<&Isometry3<f64>>,
        settings: &Settings,
    ) -> PoseMessages {
        let record = &tracked.record;
        let messages = if record.state == TrackingState::Lost {
            let bridged = self.bridged(tracked, external, settings);
            bridged.unwrap_or_else(|| self.lost(record, settings))
        } else {
            let placed = self.rep105.map_from_world().is_some();
            self.rep105.set_freedom(self.freedom(settings));
            self.rep105.set_up(tracked.up.map(|up| *up.direction));
            let located =
                self.rep105
                    .tracked(&record.world_from_camera, tracked.step.as_ref(), external);
            let placed = !placed || self.submap != record.submap;
            self.submap = record.submap;
            self.tracked = Some(record.stamp);
            PoseMessages {
                placed,
                ..self.located(tracked, &located, settings)
            }
        };
        self.last_stamp = Some(record.stamp);
        messages
    }

    /// The messages for a frame that wheel odometry bridges; `None` for another.
    fn bridged(
        &mut self,
        tracked: &TrackedFrame,
        external: Option<&Isometry3<f64>>,
        settings: &Settings,
    ) -> Option<PoseMessages> {
        tracked.bridge.as_ref()?;
        self.rep105.set_freedom(self.freedom(settings));
        let (camera, step) = (&tracked.record.world_from_camera, tracked.step.as_ref());
        let located = self.rep105.bridged(camera, step, external)?;
        self.tracked = Some(tracked.record.stamp);
        Some(self.located(tracked, &located, settings))
    }

    fn freedom(&self, settings: &Settings) -> Freedom {
        match (settings.two_d_mode, &self.mount) {
            (false, _) => Freedom::Space,
            (true, Mount::On(_)) => Freedom::Plane,
            // An optical frame is not upright.
            (true, Mount::CameraAlone) => Freedom::PlaneCorrection,
        }
    }

    fn located(
        &mut self,
        tracked: &TrackedFrame,
        located: &Located,
        settings: &Settings,
    ) -> PoseMessages {
        let stamp = tracked.record.stamp;
        let [in_map, in_odom, of_twist] = self.covariances(tracked, located);
        let seconds = Self::seconds_since(self.last_stamp, stamp);
        let step = tracked.step.map(|step| match &self.mount {
            Mount::On(mount) => mount * step * mount.inverse(),
            Mount::CameraAlone => step,
        });
        let base = self.base_frame(settings);
        let odometry = publish::odometry(
            stamp,
            (&settings.odom_frame, &base),
            &located.odom_from_base,
            step.as_ref().map(|step| (step, seconds)),
            [
                uncertainty::message(&in_odom),
                uncertainty::message(&uncertainty::of_velocity(&of_twist, seconds)),
            ],
        );
        let pose = publish::pose(
            stamp,
            &settings.map_frame,
            &located.map_from_base,
            uncertainty::message(&in_map),
        );
        PoseMessages {
            odometry: Some(odometry),
            pose: Some(pose),
            ..self.transforms(stamp, &located.odom_from_base, settings)
        }
    }

    /// 0 if there is no previous stamp.
    fn seconds_since(before: Option<Stamp>, stamp: Stamp) -> f64 {
        before.map_or(0.0, |before| {
            stamp.nanos.saturating_sub(before.nanos) as f64 * 1e-9
        })
    }

    /// Covariances of the robot's pose in the map and odometry frames, and about the robot's own
    /// axes.
    fn covariances(&mut self, tracked: &TrackedFrame, located: &Located) -> [Covariance6; 3] {
        let world_from_camera = &tracked.record.world_from_camera.rotation;
        let lever = match &self.mount {
            Mount::On(base_from_camera) => base_from_camera.inverse().translation.vector,
            Mount::CameraAlone => Vector3::zeros(),
        };
        let bridged = tracked.bridge.map(|bridge| bridge.covariance);
        let of_camera = tracked.covariance.or(bridged);
        let of_camera = of_camera.unwrap_or_else(uncertainty::unknown);
        let of_base = uncertainty::carried(&of_camera, &(world_from_camera * lever));
        let map_from_world = self.rep105.map_from_world().map(|t| t.rotation);
        let in_map = uncertainty::turned(&of_base, &map_from_world.unwrap_or_default());
        let to_odom = located.map_from_odom.rotation.inverse();
        let in_odom = uncertainty::turned(&in_map, &to_odom);
        let to_base = located.odom_from_base.rotation.inverse();
        self.covariance = in_odom;
        [in_map, in_odom, uncertainty::turned(&in_odom, &to_base)]
    }

    fn lost(&self, record: &FrameRecord, settings: &Settings) -> PoseMessages {
        let (true, Some(odom_from_base), Some(_)) = (
            settings.publish_when_lost && settings.publish_odom_to_base_tf,
            self.rep105.odom_from_base(),
            self.tracked,
        ) else {
            return PoseMessages::default();
        };
        let seconds = Self::seconds_since(self.tracked, record.stamp);
        let covariance = uncertainty::message(&uncertainty::lost(&self.covariance, seconds));
        let odometry = publish::odometry(
            record.stamp,
            (&settings.odom_frame, &self.base_frame(settings)),
            odom_from_base,
            None,
            [covariance; 2],
        );
        PoseMessages {
            odometry: Some(odometry),
            ..self.transforms(record.stamp, odom_from_base, settings)
        }
    }

    /// The transforms owned by this node.
    fn transforms(
        &self,
        stamp: Stamp,
        odom_from_base: &Isometry3<f64>,
        settings: &Settings,
    ) -> PoseMessages {
        let (map, odom) = (&settings.map_frame, &settings.odom_frame);
        let base = self.base_frame(settings);
        let owned = settings.publish_odom_to_base_tf;
        let corrected = settings.publish_map_to_odom_tf;
        let correction = self.rep105.map_from_odom();
        PoseMessages {
            odom_from_base: owned.then(|| publish::transform(stamp, odom, &base, odom_from_base)),
            map_from_odom: corrected.then(|| publish::transform(stamp, map, odom, correction)),
            ..PoseMessages::default()
        }
    }

    /// `~/path`; `None` before the first pose.
    pub fn path(&self, table: &PoseTable, settings: &Settings) -> Option<Path> {
        let camera_from_base = match self.mount {
            Mount::On(base_from_camera) => base_from_camera.inverse(),
            Mount::CameraAlone => Isometry3::identity(),
        };
        let map_from_world = self.map_from_world()?;
        Some(publish::path(
            table,
            self.submap,
            settings,
            map_from_world,
            &camera_from_base,
        ))
    }
}
