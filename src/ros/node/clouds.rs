//! The cloud thread: keyframes into clouds, while somebody is subscribed to them.

use super::cloud::{self, Point};
use super::inbox::Order;
use super::map_cloud::{self, MapCloud};
use super::publish::send;
use super::settings::Settings;
use super::shared::{Placement, Poses, Shared};
use crate::map::{CloudOptions, MapSnapshot};
use crate::ros::messages::sensor::PointCloud2;
use crate::ros::messages::{Header, Message};
use crate::ros::middleware::{Middleware, MiddlewareError, Publish, Qos};
use crate::slam::PoseTable;
use crate::time::Stamp;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// How often the thread looks whether there is something to do.
const TICK: Duration = Duration::from_millis(50);
/// Time between two chunks: 64 kB a hundred times a second arrive at every peer (measured).
const CHUNK_PERIOD: Duration = Duration::from_millis(10);
/// Keyframes that are read at once: each is several megabytes.
const BATCH: usize = 4;
/// Longest wait for the mapping side.
const PATIENCE: Duration = Duration::from_secs(60);
/// After so many periods without change the map is published again: viewers let the pieces of a cloud fade.
const REFRESH: u32 = 5;
/// Chunks that late joiners get.
const CHUNKS_KEPT: usize = 400;

/// Publishers.
pub struct CloudTopics {
    points: Box<dyn Publish>,
    map_points: Box<dyn Publish>,
}

impl CloudTopics {
    /// Advertises them.
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

struct Clouds {
    shared: Arc<Shared>,
    topics: CloudTopics,
    /// The map that the rest is of.
    poses: Option<Arc<Poses>>,
    map: MapCloud,
    /// The newest keyframe that was published alone.
    newest: Option<u32>,
    /// What `~/map_points` shows: version of the poses and place of the map.
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
    while !clouds.closing() {
        clouds.look();
        std::thread::sleep(TICK);
    }
}

impl Clouds {
    fn closing(&self) -> bool {
        self.shared.closing.load(Ordering::Acquire)
    }

    fn look(&mut self) {
        let (Some(poses), Some(placement)) = (
            self.shared.poses.load_full(),
            self.shared.placement.load_full(),
        ) else {
            return;
        };
        let table = poses.load_full();
        let same = self.poses.as_ref().is_some_and(|p| Arc::ptr_eq(p, &poses));
        if !same {
            self.map.clear();
            (self.newest, self.shown) = (None, None);
            self.poses = Some(poses);
        }
        let settings = self.shared.settings.load_full();
        self.newest_keyframe(&table, &placement, &settings);
        self.map(&table, &placement, &settings);
    }

    /// `~/points`
    fn newest_keyframe(&mut self, table: &PoseTable, placement: &Placement, settings: &Settings) {
        let points = self.topics.points.subscribers() > 0;
        let newest = (table.poses.len() as u32).checked_sub(1);
        let (true, Some(id)) = (points, newest) else {
            return;
        };
        if self.newest == newest {
            return;
        }
        let Some(map) = self.read(vec![id]) else {
            return;
        };
        let Some(keyframe) = map.keyframes.first() else {
            return;
        };
        self.newest = newest;
        let (place, voxel) = (&placement.map_from_world, settings.map_voxel_size);
        let confident = CloudOptions::default().min_confidence;
        let intrinsics = map.intrinsics.as_ref();
        let placed = map_cloud::of_keyframe(keyframe, intrinsics, place, voxel, confident);
        let header = Header::new(keyframe.stamp, &settings.map_frame);
        let topic = self.topics.points.as_ref();
        self.send_chunks(topic, &header, &placed, table.version as u32, settings);
    }

    /// `~/map_points`
    fn map(&mut self, table: &PoseTable, placement: &Arc<Placement>, settings: &Settings) {
        let subscribers = self.topics.map_points.subscribers();
        let period = Duration::try_from_secs_f64(settings.map_publish_period).unwrap_or(TICK);
        let within = |time: Duration| self.published.is_some_and(|at| at.elapsed() < time);
        let early = within(period);
        let shown = self.shown.as_ref();
        let same = shown.is_some_and(|(v, p)| *v == table.version && p == placement);
        let fresh = same && within(period.saturating_mul(REFRESH));
        if subscribers == 0 || early || fresh || table.poses.is_empty() {
            return;
        }
        if !self.fetch(table, placement.submap, settings.map_voxel_size) {
            return;
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
    }

    /// Reads what the cache lacks; `false` if that did not work.
    fn fetch(&mut self, table: &PoseTable, submap: u32, voxel: f64) -> bool {
        let newest = table.poses.len() as u32 - 1;
        let missing = self.map.missing(table, submap, voxel);
        for ids in missing.chunks(BATCH) {
            if self.closing() {
                return false;
            }
            let Some(map) = self.read(ids.to_vec()) else {
                return false;
            };
            let confident = CloudOptions::default().min_confidence;
            self.map.take(map, newest, voxel, confident);
        }
        true
    }

    /// Keyframes from the mapping side; `None` if it has no time for it.
    fn read(&self, ids: Vec<u32>) -> Option<MapSnapshot> {
        let (sender, receiver) = sync_channel(1);
        let reply = Box::new(move |map| {
            // Nobody waits any more when the node closes.
            let _ = sender.send(map);
        });
        if !self.shared.inbox.order(Order::Keyframes(ids, reply)) {
            return None;
        }
        // On a CPU the mapping side may need many seconds for one keyframe.
        let deadline = Instant::now() + PATIENCE;
        loop {
            match receiver.recv_timeout(TICK) {
                Ok(map) => return Some(map),
                Err(RecvTimeoutError::Timeout) if !self.closing() && Instant::now() < deadline => {}
                Err(_) => return None,
            }
        }
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
            send(topic, &message, &self.shared.status);
            std::thread::sleep(CHUNK_PERIOD);
        }
    }
}
