//! The cloud thread: keyframes into clouds, while somebody is subscribed to them.

use super::cloud::{self, Point};
use super::inbox::Order;
use super::publish::send;
use super::settings::Settings;
use super::shared::{Placement, Poses, Shared};
use crate::geometry::Sim3;
use crate::map::cloud::{CloudOptions, keyframe_points, voxel_filter};
use crate::map::{CloudPoint, MapSnapshot};
use crate::ros::messages::sensor::PointCloud2;
use crate::ros::messages::{Header, Message};
use crate::ros::middleware::{Middleware, MiddlewareError, Publish, Qos};
use crate::slam::PoseTable;
use crate::time::Stamp;
use nalgebra::{Isometry3, Point3};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

/// How often the thread looks whether there is something to do.
const TICK: Duration = Duration::from_millis(50);
/// Time between two chunks: 64 kB a hundred times a second arrive at every peer (measured).
const CHUNK_PERIOD: Duration = Duration::from_millis(10);
/// Keyframes that are read at once: each is several megabytes.
const BATCH: usize = 4;
/// Longest wait for the mapping side.
const PATIENCE: Duration = Duration::from_secs(10);
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

/// A keyframe's part of the map.
struct Cached {
    /// Voxel-filtered, in the keyframe's camera, before its scale.
    points: Vec<CloudPoint>,
    /// The voxels' edge in metres.
    voxel: f64,
    /// Whether tracking still changes the keyframe.
    open: bool,
}

struct Clouds {
    shared: Arc<Shared>,
    topics: CloudTopics,
    /// The map that the rest is of.
    poses: Option<Arc<Poses>>,
    cached: HashMap<u32, Cached>,
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
        cached: HashMap::new(),
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
            self.cached.clear();
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
        let confident = CloudOptions::default().min_confidence;
        let all = keyframe_points(keyframe, map.intrinsics.as_ref(), confident);
        let kept = filtered(all, settings.map_voxel_size);
        let placed: Vec<Point> = kept
            .into_iter()
            .map(|point| Point {
                point: moved(&point, &placement.map_from_world),
                keyframe: id,
            })
            .collect();
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
        let own = |id: u32| table.submaps.get(id as usize) == Some(&placement.submap);
        let mut points = Vec::new();
        for id in (0..table.poses.len() as u32).filter(|id| own(*id)) {
            let (Some(pose), Some(cached)) = (table.poses.get(id as usize), self.cached.get(&id))
            else {
                continue;
            };
            points.extend(cached.points.iter().map(|p| (in_world(p, pose), id)));
        }
        let points = merged(points, settings.map_voxel_size);
        let placed: Vec<Point> = points
            .into_iter()
            .map(|(point, keyframe)| Point {
                point: moved(&point, &placement.map_from_world),
                keyframe,
            })
            .collect();
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
        let lacking = |id: &u32| {
            table.submaps.get(*id as usize) == Some(&submap)
                && self
                    .cached
                    .get(id)
                    .is_none_or(|c| c.open || c.voxel != voxel)
        };
        let missing: Vec<u32> = (0..=newest).filter(lacking).collect();
        for ids in missing.chunks(BATCH) {
            if self.closing() {
                return false;
            }
            let Some(map) = self.read(ids.to_vec()) else {
                return false;
            };
            for mut keyframe in map.keyframes {
                let scale = keyframe.world_from_camera.scale;
                keyframe.world_from_camera = Sim3::identity();
                let confident = CloudOptions::default().min_confidence;
                let all = keyframe_points(&keyframe, map.intrinsics.as_ref(), confident);
                let cached = Cached {
                    points: filtered(all, voxel / scale),
                    voxel,
                    open: keyframe.id >= newest,
                };
                self.cached.insert(keyframe.id, cached);
            }
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
        receiver.recv_timeout(PATIENCE).ok()
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

fn filtered(points: impl Iterator<Item = CloudPoint>, voxel: f64) -> Vec<CloudPoint> {
    match voxel > 0.0 && voxel.is_finite() {
        true => voxel_filter(points, voxel as f32),
        false => points.collect(),
    }
}

fn in_world(point: &CloudPoint, world_from_camera: &Sim3) -> CloudPoint {
    let p = nalgebra::Vector3::from(point.position.map(f64::from));
    let p = world_from_camera.transform(&p);
    CloudPoint {
        position: [p.x as f32, p.y as f32, p.z as f32],
        ..*point
    }
}

fn moved(point: &CloudPoint, by: &Isometry3<f64>) -> CloudPoint {
    let p = by * Point3::from(point.position.map(f64::from));
    CloudPoint {
        position: [p.x as f32, p.y as f32, p.z as f32],
        ..*point
    }
}

/// The voxel filter over points of several keyframes: each voxel keeps its most confident point.
fn merged(points: Vec<(CloudPoint, u32)>, voxel: f64) -> Vec<(CloudPoint, u32)> {
    if voxel <= 0.0 || voxel.is_nan() {
        return points;
    }
    let mut kept: HashMap<[i64; 3], (CloudPoint, u32), rustc_hash::FxBuildHasher> =
        HashMap::default();
    for (point, id) in points {
        let key = point
            .position
            .map(|v| (f64::from(v) / voxel).floor() as i64);
        let entry = kept.entry(key).or_insert((point, id));
        if point.confidence > entry.0.confidence {
            *entry = (point, id);
        }
    }
    let mut kept: Vec<_> = kept.into_values().collect();
    // Keyframe after keyframe, so that the same map gives the same messages.
    kept.sort_by(|a, b| {
        (a.1, a.0.position)
            .partial_cmp(&(b.1, b.0.position))
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(x: f32, confidence: f32) -> CloudPoint {
        CloudPoint {
            position: [x, 0.0, 0.0],
            color: [0; 3],
            confidence,
        }
    }

    #[test]
    fn a_voxel_seen_by_two_keyframes_keeps_the_better_point() {
        let all = vec![
            (point(0.01, 2.0), 0),
            (point(0.02, 3.0), 1),
            (point(0.2, 1.0), 0),
        ];
        let kept = merged(all.clone(), 0.1);
        assert_eq!(kept, [(point(0.2, 1.0), 0), (point(0.02, 3.0), 1)]);
        assert_eq!(merged(all.clone(), 0.0), all);
    }

    #[test]
    fn points_follow_their_keyframe_s_pose_and_scale() {
        let pose = Sim3 {
            translation: nalgebra::Vector3::new(1.0, 2.0, 3.0),
            scale: 2.0,
            ..Sim3::identity()
        };
        assert_eq!(in_world(&point(0.5, 1.0), &pose).position, [2.0, 2.0, 3.0]);
        let by = Isometry3::translation(0.0, 0.0, 1.0);
        assert_eq!(moved(&point(0.5, 1.0), &by).position, [0.5, 0.0, 1.0]);
    }
}
