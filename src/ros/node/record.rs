//! What the node would publish of a run over files, as a bag.

use super::cloud::{self, Point};
use super::frames::body_from_optical;
use super::map_cloud::{self, MapCloud};
use super::parameters::Table;
use super::publish;
use super::robot::{Robot, Seen};
use super::settings::{self, Settings};
use super::shared::Mount;
use crate::bag::{BagWriter, Channel};
use crate::map::{ExportError, MapSnapshot};
use crate::ros::messages::Header;
use crate::ros::messages::geometry::{PoseWithCovarianceStamped, TfMessage};
use crate::ros::messages::nav::{Odometry, Path as PathMessage};
use crate::ros::messages::sensor::PointCloud2;
use crate::ros::middleware::Qos;
use crate::slam::PoseTable;
use crate::time::Stamp;
use std::path::{Path, PathBuf};

/// Least time between two paths, by the frames' stamps.
const PATH_PERIOD_NANOS: i64 = 500_000_000;
/// The node's topics, under the name that it has unless it is remapped.
const NAME: &str = "/mast3r_slam";

/// Writes the node's topics into a bag while frames are processed: `/tf`, `/tf_static`, odometry, pose, path, each
/// keyframe's cloud, and at the end the whole map. The robot is the camera: `base_link` lies in the camera with the
/// axes of a robot, which `/tf_static` says. Messages are recorded as of the stamps of the frames that they are about.
pub struct Recorder {
    bag: BagWriter,
    topics: Topics,
    settings: Settings,
    /// Points of more than this confidence are written.
    min_confidence: f32,
    robot: Robot,
    /// Version of the poses that the last path shows, and when it was written.
    path: Option<(u64, Stamp)>,
    /// Time of the newest frame.
    now: Stamp,
    revision: u32,
}

struct Topics {
    tf: Channel,
    odometry: Channel,
    pose: Channel,
    path: Channel,
    points: Channel,
    map_points: Channel,
    tf_static: Channel,
}

impl Topics {
    fn new(bag: &mut BagWriter) -> Result<Self, ExportError> {
        let private = |name: &str| format!("{NAME}/{name}");
        Ok(Self {
            tf_static: bag.topic::<TfMessage>("/tf_static", Qos::latched(1))?,
            tf: bag.topic::<TfMessage>("/tf", Qos::reliable(100))?,
            odometry: bag.topic::<Odometry>(&private("odometry"), Qos::reliable(10))?,
            pose: bag.topic::<PoseWithCovarianceStamped>(&private("pose"), Qos::reliable(10))?,
            path: bag.topic::<PathMessage>(&private("path"), Qos::latched(1))?,
            points: bag.topic::<PointCloud2>(&private("points"), Qos::reliable(5))?,
            map_points: bag.topic::<PointCloud2>(&private("map_points"), Qos::latched(1))?,
        })
    }
}

impl Recorder {
    /// Begins a bag that will be at `path`. `camera_frame` is the camera's optical frame; `start` the first frame's
    /// stamp; of clouds, points of more than `min_confidence` are written.
    ///
    /// # Errors
    /// A folder that is missing or cannot be written to.
    pub fn create(
        path: &Path,
        camera_frame: &str,
        start: Stamp,
        min_confidence: f32,
    ) -> Result<Self, ExportError> {
        let mut settings = Settings::of(&Table::new(settings::definitions()));
        // A file takes clouds whole.
        settings.cloud_chunk_bytes = 0;
        let mut bag = BagWriter::create(path)?;
        let topics = Topics::new(&mut bag)?;
        let mut robot = Robot::default();
        if camera_frame == settings.base_frame {
            robot.new_map(Mount::CameraAlone, camera_frame.into());
        } else {
            let base_from_camera = body_from_optical();
            robot.new_map(Mount::On(base_from_camera), camera_frame.into());
            let fixed =
                publish::transform(start, &settings.base_frame, camera_frame, &base_from_camera);
            let transforms = vec![fixed];
            bag.write(topics.tf_static, start, &TfMessage { transforms })?;
        }
        Ok(Self {
            bag,
            topics,
            settings,
            min_confidence,
            robot,
            path: None,
            now: start,
            revision: 0,
        })
    }

    /// Takes a processed frame; `table` are the present poses.
    ///
    /// # Errors
    /// Those of writing.
    pub fn frame(&mut self, seen: &Seen<'_>, table: &PoseTable) -> Result<(), ExportError> {
        self.now = seen.record.stamp;
        let said = self.robot.frame(seen, &self.settings);
        let both = [said.odom_from_base, said.map_from_odom];
        let transforms: Vec<_> = both.into_iter().flatten().collect();
        let (bag, topics, now) = (&mut self.bag, &self.topics, self.now);
        if !transforms.is_empty() {
            bag.write(topics.tf, now, &TfMessage { transforms })?;
        }
        if let Some(odometry) = &said.odometry {
            bag.write(topics.odometry, now, odometry)?;
        }
        if let Some(pose) = &said.pose {
            bag.write(topics.pose, now, pose)?;
        }
        let due = self.path.is_none_or(|(version, at)| {
            version != table.version && now.nanos.saturating_sub(at.nanos) >= PATH_PERIOD_NANOS
        });
        match due {
            true => self.path(table),
            false => Ok(()),
        }
    }

    fn path(&mut self, table: &PoseTable) -> Result<(), ExportError> {
        if table.poses.is_empty() || self.path.is_some_and(|(v, _)| v == table.version) {
            return Ok(());
        }
        let Some(path) = self.robot.path(table, &self.settings) else {
            return Ok(());
        };
        self.path = Some((table.version, self.now));
        self.bag.write(self.topics.path, self.now, &path)
    }

    /// Takes keyframes that were read from the map: each one's cloud.
    ///
    /// # Errors
    /// Those of writing.
    pub fn keyframes(&mut self, map: &MapSnapshot) -> Result<(), ExportError> {
        let Some(map_from_world) = self.robot.map_from_world().copied() else {
            return Ok(());
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
            self.cloud(self.topics.points, keyframe.stamp, &points)?;
        }
        Ok(())
    }

    fn cloud(&mut self, to: Channel, stamp: Stamp, points: &[Point]) -> Result<(), ExportError> {
        let header = Header::new(stamp, &self.settings.map_frame);
        let bytes = self.settings.cloud_chunk_bytes;
        for message in cloud::chunks(&header, points, self.revision, bytes) {
            self.bag.write(to, self.now, &message)?;
        }
        Ok(())
    }

    /// Writes the last path and the whole map of the submap that the last pose belongs to, and completes the file;
    /// gives its path.
    ///
    /// # Errors
    /// Those of writing.
    pub fn finish(mut self, map: MapSnapshot, table: &PoseTable) -> Result<PathBuf, ExportError> {
        self.path(table)?;
        if let (Some(place), false) = (self.robot.map_from_world().copied(), table.poses.is_empty())
        {
            let voxel = self.settings.map_voxel_size;
            let mut all = MapCloud::default();
            all.take(map, u32::MAX, voxel, self.min_confidence);
            let points = all.points(table, self.robot.submap(), &place, voxel);
            self.revision += 1;
            self.cloud(self.topics.map_points, self.now, &points)?;
        }
        self.bag.finish()
    }
}
