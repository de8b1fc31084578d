//! Where the robot is, as messages: what a processed frame says to the outside world. Shared by the node and by
//! recordings, so that both say the same.

use super::frames::{Frames, Located};
use super::publish;
use super::settings::Settings;
use super::shared::{LoadedPlace, Mount};
use super::uncertainty;
use crate::map::{FrameRecord, TrackingState};
use crate::ros::messages::geometry::{PoseWithCovarianceStamped, TransformStamped};
use crate::ros::messages::nav::{Odometry, Path};
use crate::slam::{Covariance6, PoseTable};
use crate::time::Stamp;
use nalgebra::{Isometry3, Vector3};
use std::sync::Arc;

/// The robot in the tree of frames.
pub struct Robot {
    frames: Frames,
    mount: Mount,
    camera_frame: Arc<str>,
    /// The submap that the last pose belongs to.
    submap: u32,
    last_stamp: Option<Stamp>,
    tracked: Option<Stamp>,
    /// Of the last tracked pose in the odometry's frame.
    covariance: Covariance6,
}

/// A processed frame.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// What became of it.
    pub record: &'a FrameRecord,
    /// The camera's step since the frame before, metres.
    pub step: Option<&'a Isometry3<f64>>,
    /// How far the camera may be off, about the world's axes.
    pub covariance: Option<&'a Covariance6>,
    /// `odom -> base` at the frame's time where that is somebody else's.
    pub external: Option<&'a Isometry3<f64>>,
}

/// What is to be said of a frame. Transforms that are somebody else's are not in it.
#[derive(Debug, Default)]
pub struct Said {
    /// `odom -> base`
    pub odom_from_base: Option<TransformStamped>,
    /// `map -> odom`
    pub map_from_odom: Option<TransformStamped>,
    /// `~/odometry`
    pub odometry: Option<Odometry>,
    /// `~/pose`
    pub pose: Option<PoseWithCovarianceStamped>,
    /// Whether the map has got its place in the map frame, or another submap's map is meant now.
    pub placed: bool,
}

impl Default for Robot {
    fn default() -> Self {
        Self {
            frames: Frames::of_camera_alone(),
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
    /// A new map begins with the next frame. The odometry goes on.
    pub fn new_map(&mut self, mount: Mount, camera_frame: Arc<str>) {
        self.frames.new_map();
        if mount != self.mount {
            self.frames.remount(match mount {
                Mount::On(base_from_camera) => Frames::new(base_from_camera),
                Mount::CameraAlone => Frames::of_camera_alone(),
            });
            self.mount = mount;
        }
        self.camera_frame = camera_frame;
        self.submap = 0;
        (self.last_stamp, self.tracked) = (None, None);
    }

    /// The new map was loaded and lies where `loaded` says.
    pub fn load(&mut self, loaded: &LoadedPlace) {
        self.frames
            .load(loaded.map_from_world.as_ref(), &loaded.first);
    }

    /// The camera's optical frame.
    pub fn camera_frame(&self) -> &Arc<str> {
        &self.camera_frame
    }

    /// The submap that the last pose belongs to.
    pub fn submap(&self) -> u32 {
        self.submap
    }

    /// Puts SLAM's world into the map; `None` before the first pose.
    pub fn map_from_world(&self) -> Option<&Isometry3<f64>> {
        self.frames.map_from_world()
    }

    /// Somebody says where the robot was at the last pose: the map is put there. `false` before the first.
    pub fn set_pose(&mut self, map_from_base: &Isometry3<f64>) -> bool {
        self.frames.set_pose(map_from_base)
    }

    /// The robot's own frame.
    pub fn base_frame(&self, settings: &Settings) -> Arc<str> {
        match self.mount {
            Mount::CameraAlone => Arc::clone(&self.camera_frame),
            Mount::On(_) => settings.base_frame.as_str().into(),
        }
    }

    /// Takes a processed frame.
    pub fn frame(&mut self, seen: &Seen<'_>, settings: &Settings) -> Said {
        let record = seen.record;
        let said = if record.state == TrackingState::Lost {
            self.lost(record, settings)
        } else {
            let placed = self.frames.map_from_world().is_some();
            let located = self
                .frames
                .tracked(&record.world_from_camera, seen.step, seen.external);
            let placed = !placed || self.submap != record.submap;
            self.submap = record.submap;
            self.tracked = Some(record.stamp);
            Said {
                placed,
                ..self.located(seen, &located, settings)
            }
        };
        self.last_stamp = Some(record.stamp);
        said
    }

    fn located(&mut self, seen: &Seen<'_>, located: &Located, settings: &Settings) -> Said {
        let stamp = seen.record.stamp;
        let [in_map, in_odom, of_twist] = self.covariances(seen, located);
        let seconds = Self::seconds_since(self.last_stamp, stamp);
        let step = seen.step.map(|step| match &self.mount {
            Mount::On(mount) => mount * step * mount.inverse(),
            Mount::CameraAlone => *step,
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
        Said {
            odometry: Some(odometry),
            pose: Some(pose),
            ..self.transforms(stamp, &located.odom_from_base, settings)
        }
    }

    /// 0 where there is no time before.
    fn seconds_since(before: Option<Stamp>, stamp: Stamp) -> f64 {
        before.map_or(0.0, |before| {
            stamp.nanos.saturating_sub(before.nanos) as f64 * 1e-9
        })
    }

    /// Of the robot's pose in the map and in the odometry's frame, and about the robot's own axes.
    fn covariances(&mut self, seen: &Seen<'_>, located: &Located) -> [Covariance6; 3] {
        let world_from_camera = &seen.record.world_from_camera.rotation;
        let lever = match &self.mount {
            Mount::On(base_from_camera) => base_from_camera.inverse().translation.vector,
            Mount::CameraAlone => Vector3::zeros(),
        };
        let of_camera = seen
            .covariance
            .copied()
            .unwrap_or_else(uncertainty::unknown);
        let of_base = uncertainty::carried(&of_camera, &(world_from_camera * lever));
        let map_from_world = self.frames.map_from_world().map(|t| t.rotation);
        let in_map = uncertainty::turned(&of_base, &map_from_world.unwrap_or_default());
        let to_odom = located.map_from_odom.rotation.inverse();
        let in_odom = uncertainty::turned(&in_map, &to_odom);
        let to_base = located.odom_from_base.rotation.inverse();
        self.covariance = in_odom;
        [in_map, in_odom, uncertainty::turned(&in_odom, &to_base)]
    }

    fn lost(&self, record: &FrameRecord, settings: &Settings) -> Said {
        let (true, Some(odom_from_base), Some(_)) = (
            settings.publish_when_lost && settings.publish_odom_to_base_tf,
            self.frames.odom_from_base(),
            self.tracked,
        ) else {
            return Said::default();
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
        Said {
            odometry: Some(odometry),
            ..self.transforms(record.stamp, odom_from_base, settings)
        }
    }

    /// The transforms that are ours.
    fn transforms(
        &self,
        stamp: Stamp,
        odom_from_base: &Isometry3<f64>,
        settings: &Settings,
    ) -> Said {
        let (map, odom) = (&settings.map_frame, &settings.odom_frame);
        let base = self.base_frame(settings);
        let ours = settings.publish_odom_to_base_tf;
        let corrected = settings.publish_map_to_odom_tf;
        let correction = self.frames.map_from_odom();
        Said {
            odom_from_base: ours.then(|| publish::transform(stamp, odom, &base, odom_from_base)),
            map_from_odom: corrected.then(|| publish::transform(stamp, map, odom, correction)),
            ..Said::default()
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
