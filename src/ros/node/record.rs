//! Records what the node would publish for a run over files, as a bag.

use super::cloud::{self, Point};
use super::clouds::CloudTopics;
use super::map_cloud::{self, MapCloud};
use super::parameters::Table;
use super::pose_messages::Robot;
use super::publish::{self, send};
use super::rep105::body_from_optical;
use super::settings::{self, Settings};
use super::shared::Mount;
use super::status::Status;
use super::topics::Topics;
use crate::files::export::ExportError;
use crate::map::MapSnapshot;
use crate::ros::middleware::{MiddlewareError, Publish};
use crate::ros::recording::Recording;
use crate::slam::{PoseTable, TrackedFrame};
use crate::time::Stamp;
use crate::wire::Qos;
use crate::wire::messages::geometry::TfMessage;
use crate::wire::messages::{Header, Message};
use std::path::{Path, PathBuf};

/// Minimum interval between two paths, by the stamps of frames.
const PATH_PERIOD_NANOS: i64 = 500_000_000;

/// Publishes the node's topics to a bag while frames are processed: `/tf`, `/tf_static`, odometry,
/// pose, path, the cloud of each keyframe, and finally the whole map. The camera is the robot:
/// `base_link` is at the camera with the axes of a robot, as published on `/tf_static`. Messages
/// are recorded with the stamps of the frames they refer to.
pub struct RunRecorder {
    bag: Recording,
    topics: Topics,
    clouds: CloudTopics,
    status: Status,
    settings: Settings,
    /// Points with a higher confidence than this are written.
    min_confidence: f32,
    robot: Robot,
    /// Version of the poses in the last path, and the time it was written.
    path: Option<(u64, Stamp)>,
    /// Stamp of the newest frame.
    now: Stamp,
    revision: u32,
}

impl RunRecorder {
    /// Starts a bag at `path`. `camera_frame` is the camera's optical frame, `start` the stamp of
    /// the first frame; cloud points with a confidence above `min_confidence` are written.
    ///
    /// # Errors
    /// The folder is missing or not writable.
    pub fn create(
        path: &Path,
        camera_frame: &str,
        start: Stamp,
        min_confidence: f32,
    ) -> Result<Self, MiddlewareError> {
        let mut settings = Settings::of(&Table::new(settings::definitions()));
        // In a file, clouds need not be split.
        settings.cloud_chunk_bytes = 0;
        let bag = Recording::alone(path, start)?;
        let client = bag.client();
        let tf_static = client.advertise("/tf_static", TfMessage::TYPE, Qos::latched(1))?;
        let topics = Topics::new(client.as_ref())?;
        let clouds = CloudTopics::new(client.as_ref())?;
        let status = Status::default();
        let mut robot = Robot::default();
        if camera_frame == settings.base_frame {
            robot.new_map(Mount::CameraAlone, camera_frame.into());
        } else {
            let base_from_camera = body_from_optical();
            robot.new_map(Mount::On(base_from_camera), camera_frame.into());
            let fixed =
                publish::transform(start, &settings.base_frame, camera_frame, &base_from_camera);
            let transforms = vec![fixed];
            send(tf_static.as_ref(), &TfMessage { transforms }, &status);
        }
        Ok(Self {
            bag,
            topics,
            clouds,
            status,
            settings,
            min_confidence,
            robot,
            path: None,
            now: start,
            revision: 0,
        })
    }

    /// Adds a processed frame; `table` holds the current poses.
    pub fn frame(&mut self, tracked: &TrackedFrame, table: &PoseTable) {
        self.now = tracked.stamp;
        self.bag.set_time(self.now);
        let messages = self.robot.messages(tracked, None, &self.settings);
        self.topics.send(messages, &self.status);
        let due = self.path.is_none_or(|(version, at)| {
            version != table.version && self.now.nanos.saturating_sub(at.nanos) >= PATH_PERIOD_NANOS
        });
        if due {
            self.path(table);
        }
    }

    fn path(&mut self, table: &PoseTable) {
        if table.poses.is_empty() || self.path.is_some_and(|(v, _)| v == table.version) {
            return;
        }
        if let Some(path) = self.robot.path(table, &self.settings) {
            self.path = Some((table.version, self.now));
            send(self.topics.path.as_ref(), &path, &self.status);
        }
    }

    /// Adds the clouds of keyframes that were read from the map.
    pub fn keyframes(&mut self, map: &MapSnapshot) {
        let Some(map_from_world) = self.robot.map_from_world().copied() else {
            return;
        };
        let voxel = self.settings.map_voxel_size;
        for keyframe in &map.keyframes {
            let intrinsics = map.intrinsics.as_ref();
            let points = map_cloud::of_keyframe(
                keyframe,
                intrinsics,
                &map_from_world,
                voxel,
                self.min_confidence,
            );
            self.revision += 1;
            self.cloud(self.clouds.points(), keyframe.stamp, &points);
        }
    }

    fn cloud(&self, topic: &dyn Publish, stamp: Stamp, points: &[Point]) {
        let header = Header::new(stamp, &self.settings.map_frame);
        let bytes = self.settings.cloud_chunk_bytes;
        for message in cloud::chunks(&header, points, self.revision, bytes) {
            send(topic, &message, &self.status);
        }
    }

    /// Writes the last path and the complete submap of the last pose, and completes the file;
    /// returns its path.
    ///
    /// # Errors
    /// An error from writing a message or from completing the file.
    pub fn finish(
        mut self,
        map: MapSnapshot,
        table: &PoseTable,
    ) -> Result<Option<PathBuf>, ExportError> {
        self.path(table);
        if let (Some(place), false) = (self.robot.map_from_world().copied(), table.poses.is_empty())
        {
            let voxel = self.settings.map_voxel_size;
            let mut all = MapCloud::default();
            all.take(map, u32::MAX, voxel, self.min_confidence);
            let points = all.points(table, self.robot.submap(), &place, voxel);
            self.revision += 1;
            self.cloud(self.clouds.map_points(), self.now, &points);
        }
        self.bag.finish()
    }
}
