//! The cloud thread: publishes keyframes as clouds while there are subscribers.

use super::cloud::{self, Point};
use super::map_cloud::{self, MapCloud};
use super::publish::send;
use super::reading::{self, BATCH};
use super::settings::Settings;
use super::shared::{Placement, Poses, Shared};
use super::supervisor::Flow;
use crate::map::MapSnapshot;
use crate::ros::middleware::{Middleware, MiddlewareError, Publish};
use crate::slam::PoseTable;
use crate::time::Stamp;
use crate::wire::Qos;
use crate::wire::messages::sensor::PointCloud2;
use crate::wire::messages::{Header, Message};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Polling interval.
const TICK: Duration = Duration::from_millis(50);
/// Interval between chunks: in measurements, 64 kB a hundred times per second reached every peer.
const CHUNK_PERIOD: Duration = Duration::from_millis(10);
/// The map is published again after this many periods without changes, because viewers let the
/// parts of a cloud fade.
const REFRESH: u32 = 5;
/// Number of chunks kept for late joiners.
const CHUNKS_KEPT: usize = 400;

pub struct CloudTopics {
    points: Box<dyn Publish>,
    map_points: Box<dyn Publish>,
}

impl CloudTopics {
    /// Advertises the topics.
    pub fn new(middleware: &dyn Middleware) -> Result<Self, MiddlewareError> {
        Ok(Self {
            points: middleware.advertise(
                "~/points",
                PointCloud2::TYPE,
                Qos::reliable(CHUNKS_KEPT),
            )?,
            map_points: middleware.advertise(
                "~/map_points",
                PointCloud2::TYPE,
                Qos::latched(CHUNKS_KEPT),
            )?,
        })
    }
}

impl CloudTopics {
    /// `~/points`
    pub fn points(&self) -> &dyn Publish {
        self.points.as_ref()
    }

    /// `~/map_points`
    pub fn map_points(&self) -> &dyn Publish {
        self.map_points.as_ref()
    }
}

struct Clouds {
    shared: Arc<Shared>,
    topics: CloudTopics,
    /// The map to which the other fields belong.
    poses: Option<Arc<Poses>>,
    map: MapCloud,
    /// The newest keyframe published individually.
    newest: Option<u32>,
    /// The state shown on `~/map_points`: version of the poses, and placement of the map.
    shown: Option<(u64, Arc<Placement>)>,
    published: Option<Instant>,
    revision: u32,
}

/// Runs until the node closes.
pub fn run(shared: Arc<Shared>, topics: CloudTopics) {
    let mut clouds = Clouds {
        shared,
        topics,
        poses: None,
        map: MapCloud::default(),
        newest: None,
        shown: None,
        published: None,
        revision: 0,
    };
    let shared = Arc::clone(&clouds.shared);
    shared.supervisor.run("clouds", || {
        if clouds.closing() {
            return Flow::Stop;
        }
        let shared = Arc::clone(&clouds.shared);
        let working = shared.pulses.clouds.work();
        let flow = clouds.look();
        drop(working);
        std::thread::sleep(TICK);
        flow
    });
}

impl Clouds {
    fn closing(&self) -> bool {
        self.shared.closing.load(Ordering::Acquire)
    }

    /// Publishes what is new.
    fn look(&mut self) -> Flow {
        let (Some(poses), Some(placement)) = (
            self.shared.poses.load_full(),
            self.shared.placement.load_full(),
        ) else {
            return Flow::Idle;
        };
        let table = poses.load_full();
        let same = self.poses.as_ref().is_some_and(|p| Arc::ptr_eq(p, &poses));
        if !same {
            self.map.clear();
            (self.newest, self.shown) = (None, None);
            self.poses = Some(poses);
        }
        let settings = self.shared.settings.load_full();
        let newest = self.newest_keyframe(&table, &placement, &settings);
        let map = self.map(&table, &placement, &settings);
        match newest || map {
            true => Flow::Continue,
            false => Flow::Idle,
        }
    }

    /// `~/points`; returns whether they were published.
    fn newest_keyframe(
        &mut self,
        table: &PoseTable,
        placement: &Placement,
        settings: &Settings,
    ) -> bool {
        let points = self.topics.points.subscribers() > 0;
        let newest = table.newest();
        let (true, Some(id)) = (points, newest) else {
            return false;
        };
        if self.newest == newest {
            return false;
        }
        let Some(map) = self.read(vec![id]) else {
            return false;
        };
        let Some(keyframe) = map.keyframes.first() else {
            return false;
        };
        self.newest = newest;
        let (place, voxel) = (&placement.map_from_world, settings.map_voxel_size);
        let confident = self.shared.min_confidence;
        let intrinsics = map.intrinsics.as_ref();
        let placed = map_cloud::of_keyframe(keyframe, intrinsics, place, voxel, confident);
        let header = Header::new(keyframe.stamp, &settings.map_frame);
        let topic = self.topics.points.as_ref();
        self.send_chunks(topic, &header, &placed, table.version as u32, settings);
        true
    }

    /// `~/map_points`; returns whether they were published.
    fn map(&mut self, table: &PoseTable, placement: &Arc<Placement>, settings: &Settings) -> bool {
        let subscribers = self.topics.map_points.subscribers();
        let period = Duration::try_from_secs_f64(settings.map_publish_period).unwrap_or(TICK);
        let within = |time: Duration| self.published.is_some_and(|at| at.elapsed() < time);
        let early = within(period);
        let shown = self.shown.as_ref();
        let same = shown.is_some_and(|(v, p)| *v == table.version && p == placement);
        let fresh = same && within(period.saturating_mul(REFRESH));
        if subscribers == 0 || early || fresh || table.poses.is_empty() {
            return false;
        }
        if !self.fetch(table, placement.submap, settings.map_voxel_size) {
            return false;
        }
        let (place, submap) = (&placement.map_from_world, placement.submap);
        let placed = self
            .map
            .points(table, submap, place, settings.map_voxel_size);
        let newest = table.stamps.last().copied().unwrap_or_else(Stamp::default);
        let header = Header::new(newest, &settings.map_frame);
        self.revision += 1;
        let topic = self.topics.map_points.as_ref();
        self.send_chunks(topic, &header, &placed, self.revision, settings);
        self.shown = Some((table.version, Arc::clone(placement)));
        self.published = Some(Instant::now());
        true
    }

    /// Reads the keyframes missing from the cache; returns `false` on failure.
    fn fetch(&mut self, table: &PoseTable, submap: u32, voxel: f64) -> bool {
        let Some(newest) = table.newest() else {
            return false;
        };
        self.map.forget_removed(table);
        let missing = self.map.missing(table, submap, voxel);
        for ids in missing.chunks(BATCH) {
            if self.closing() {
                return false;
            }
            let Some(map) = self.read(ids.to_vec()) else {
                return false;
            };
            let confident = self.shared.min_confidence;
            self.map.take(map, newest, voxel, confident);
        }
        true
    }

    /// Reads keyframes from the mapping side; `None` if it is too busy.
    fn read(&self, ids: Vec<u32>) -> Option<MapSnapshot> {
        reading::keyframes(&self.shared, &self.shared.pulses.clouds, ids)
    }

    fn send_chunks(
        &self,
        topic: &dyn Publish,
        header: &Header,
        points: &[Point],
        revision: u32,
        settings: &Settings,
    ) {
        for message in cloud::chunks(header, points, revision, settings.cloud_chunk_bytes) {
            if self.closing() {
                return;
            }
            self.shared.pulses.clouds.begin();
            send(topic, &message, &self.shared.status);
            std::thread::sleep(CHUNK_PERIOD);
        }
    }
}
