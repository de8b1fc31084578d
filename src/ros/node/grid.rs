//! The grid thread: publishes the occupancy grid on `map` and its changes on `map_updates` while there
//! are subscribers.

use super::publish::send;
use super::reading::{self, BATCH};
use super::settings::Settings;
use super::shared::{Mount, Placement, Poses, Shared};
use super::supervisor::Flow;
use crate::map::grid::{GlobalGrid, GridOptions, Lack, LocalGrid, Upright, Window};
use crate::ros::middleware::{Middleware, MiddlewareError, Publish};
use crate::slam::PoseTable;
use crate::time::Stamp;
use crate::wire::Qos;
use crate::wire::messages::geometry::Pose;
use crate::wire::messages::nav::{MapMetaData, OccupancyGrid, OccupancyGridUpdate};
use crate::wire::messages::{Header, Message};
use nalgebra::Isometry3;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Polling interval.
const TICK: Duration = Duration::from_millis(50);
/// Minimum interval between two updates.
const UPDATE_PERIOD: Duration = Duration::from_millis(200);
/// A new subscriber gets the grid once it shows all keyframes, or after this time.
const COMPLETE_WITHIN: Duration = Duration::from_secs(5);
/// Cells of one update: peers with default settings receive messages of this size.
const UPDATE_CELLS: usize = 60_000;
/// Updates kept for a subscriber that is slow.
const UPDATES_KEPT: usize = 100;

/// Publishers.
pub struct GridTopics {
    map: Box<dyn Publish>,
    updates: Box<dyn Publish>,
}

impl GridTopics {
    /// Advertises the topics.
    pub fn new(middleware: &dyn Middleware) -> Result<Self, MiddlewareError> {
        let updates = Qos::reliable(UPDATES_KEPT);
        Ok(Self {
            map: middleware.advertise("map", OccupancyGrid::TYPE, Qos::latched(1))?,
            updates: middleware.advertise("map_updates", OccupancyGridUpdate::TYPE, updates)?,
        })
    }
}

/// How the robot stands on the floor; `None` if the camera's mount is not known.
pub fn upright(mount: &Mount, map_from_world: &Isometry3<f64>) -> Option<Upright> {
    match mount {
        Mount::On(base_from_camera) => Some(Upright::Robot {
            base_from_camera: *base_from_camera,
            map_from_world: *map_from_world,
        }),
        Mount::CameraAlone => None,
    }
}

struct Grids {
    shared: Arc<Shared>,
    topics: GridTopics,
    options: GridOptions,
    /// The map and the mount to which the other fields belong.
    poses: Option<Arc<Poses>>,
    mount: Option<Mount>,
    grid: GlobalGrid,
    /// What changed since the last whole grid, and since the last update.
    news: bool,
    changed: Option<Window>,
    /// Whether subscribers know the grid's present extent.
    extent_known: bool,
    subscribers: usize,
    /// Since when a new subscriber waits for the grid.
    awaited: Option<Instant>,
    /// Whether the grid does not show some keyframes yet.
    is_behind: bool,
    published: Option<Instant>,
    updated: Option<Instant>,
}

/// Runs until the node closes.
pub fn run(shared: Arc<Shared>, topics: GridTopics, options: GridOptions) {
    let mut grids = Grids {
        shared,
        topics,
        options,
        poses: None,
        mount: None,
        grid: GlobalGrid::new(&options),
        news: false,
        changed: None,
        extent_known: false,
        subscribers: 0,
        awaited: None,
        is_behind: false,
        published: None,
        updated: None,
    };
    let shared = Arc::clone(&grids.shared);
    shared.supervisor.run("grid", || {
        if shared.closing.load(Ordering::Acquire) {
            return Flow::Stop;
        }
        let working = shared.pulses.grid.work();
        let flow = grids.look();
        drop(working);
        std::thread::sleep(TICK);
        flow
    });
}

impl Grids {
    /// Open live pages are subscribers too.
    fn subscribers_now(&self) -> usize {
        let topics = self.topics.map.subscribers() + self.topics.updates.subscribers();
        topics + usize::from(self.shared.page.watched())
    }

    fn look(&mut self) -> Flow {
        let listening = self.subscribers_now() > 0;
        let (true, Some(poses), Some(placement)) = (
            listening,
            self.shared.poses.load_full(),
            self.shared.placement.load_full(),
        ) else {
            (self.subscribers, self.awaited) = (0, None);
            return Flow::Idle;
        };
        let Some(upright) = upright(&placement.mount, &placement.map_from_world) else {
            self.shared.status.warn("grid mount", || {
                "there is no grid without the camera's place on the robot: set base_frame".into()
            });
            return Flow::Idle;
        };
        let same = self.poses.as_ref().is_some_and(|p| Arc::ptr_eq(p, &poses))
            && self.mount == Some(placement.mount);
        if !same {
            self.grid = GlobalGrid::new(&self.options);
            (self.changed, self.extent_known, self.news) = (None, false, true);
        }
        let table = poses.load_full();
        (self.poses, self.mount) = (Some(poses), Some(placement.mount));
        let traced = self.take_poses(&table, &placement, &upright);
        let settled = self.grid.update();
        if self.grid.is_full() {
            let max = self.options.max_cells;
            self.shared.status.warn("grid size", || {
                format!(
                    "the grid has reached grid.max_cells ({max}), and parts of the map are outside of it: raise \
                     it, or grid.resolution"
                )
            });
        }
        let (changed, resized) = self.grid.take_changes();
        self.news |= resized || changed.is_some();
        self.extent_known &= !resized;
        self.changed = match (self.changed, changed) {
            (Some(a), Some(b)) => Some(a.with(&b)),
            (a, b) => a.or(b),
        };
        let settings = self.shared.settings.load_full();
        let stamp = table.stamps.last().copied().unwrap_or_default();
        let sent = self.publish(&Header::new(stamp, &settings.map_frame), &settings);
        match traced || !settled || sent {
            true => Flow::Continue,
            false => Flow::Idle,
        }
    }

    /// Takes the keyframes' poses over, and traces at most a batch of those that are new or have changed since; returns
    /// whether there were any.
    fn take_poses(&mut self, table: &PoseTable, placement: &Placement, upright: &Upright) -> bool {
        let submap = placement.submap;
        let in_submap = |id: u32| {
            let index = table.index_of(id);
            index.is_some_and(|k| table.submaps.get(k) == Some(&submap))
        };
        self.grid.retain(in_submap);
        let (mut missing, mut changed) = (Vec::new(), Vec::new());
        for ((id, pose), revision) in table.ids.iter().zip(&table.poses).zip(&table.revisions) {
            if !pose.is_finite() || !in_submap(*id) {
                continue;
            }
            self.grid.set_place(*id, upright.of(pose).0);
            let list = match self.grid.lack(*id, pose.scale, *revision) {
                Some(Lack::All) => &mut missing,
                Some(Lack::Change) => &mut changed,
                None => continue,
            };
            if list.len() < BATCH {
                list.push(*id);
            }
        }
        // As many as are read at once may not be all.
        self.is_behind = missing.len() >= BATCH;
        // Places that the grid does not show yet come first.
        missing.extend(changed);
        missing.truncate(BATCH);
        if missing.is_empty() {
            return false;
        }
        let pulse = &self.shared.pulses.grid;
        let Some(map) = reading::keyframes(&self.shared, pulse, missing) else {
            self.is_behind = true;
            return false;
        };
        for keyframe in &map.keyframes {
            let pose = &keyframe.world_from_camera;
            if !pose.is_finite() {
                continue;
            }
            let (place, upright_from_camera) = upright.of(pose);
            let intrinsics = map.intrinsics.as_ref();
            let local = LocalGrid::trace(
                (keyframe.view(), pose.scale),
                intrinsics,
                &upright_from_camera,
                &self.options,
            );
            // The points are at least as new as the table.
            let index = table.index_of(keyframe.id);
            let revision = index.and_then(|k| table.revisions.get(k));
            let revision = revision.copied().unwrap_or_default();
            self.grid.insert(keyframe.id, local, revision, place);
        }
        true
    }

    /// Publishes what changed: the whole grid to new subscribers and once a period, its changes in
    /// between. Returns whether it did.
    fn publish(&mut self, header: &Header, settings: &Settings) -> bool {
        let subscribers = self.subscribers_now();
        if subscribers > self.subscribers {
            self.awaited.get_or_insert_with(Instant::now);
        }
        self.subscribers = subscribers;
        let since = |at: Option<Instant>, period| at.is_none_or(|at| at.elapsed() >= period);
        if self.is_behind && !since(self.awaited, COMPLETE_WITHIN) {
            return false;
        }
        let period = Duration::try_from_secs_f64(settings.map_publish_period).unwrap_or(TICK);
        let known = self.grid.size() != [0, 0];
        if known && (self.awaited.is_some() || self.news && since(self.published, period)) {
            self.awaited = None;
            self.whole(header);
            self.published = Some(Instant::now());
            (self.news, self.extent_known, self.changed) = (false, true, None);
            return true;
        }
        let window = self.changed.filter(|_| self.extent_known);
        match window.filter(|_| since(self.updated, UPDATE_PERIOD)) {
            Some(window) if self.topics.updates.subscribers() > 0 => {
                self.update(header, &window);
                self.updated = Some(Instant::now());
                self.changed = None;
                true
            }
            _ => false,
        }
    }

    fn whole(&self, header: &Header) {
        let map = self.grid.map();
        if let Some(placement) = self.shared.placement.load_full() {
            self.shared.page.show_grid(&map, &placement.map_from_world);
        }
        let stamp = Stamp::from(&header.stamp);
        let origin = Isometry3::translation(map.origin[0], map.origin[1], 0.0);
        let message = OccupancyGrid {
            header: header.clone(),
            info: MapMetaData {
                map_load_time: stamp.into(),
                resolution: map.resolution as f32,
                width: map.columns as u32,
                height: map.rows as u32,
                origin: Pose::from(&origin),
            },
            data: map.cells,
        };
        send(self.topics.map.as_ref(), &message, &self.shared.status);
    }

    /// Sends a window of the grid, cut into bands of rows that peers receive.
    fn update(&self, header: &Header, window: &Window) {
        let [columns, rows] = window.size;
        let band = (UPDATE_CELLS / columns.max(1)).max(1);
        for first in (0..rows).step_by(band) {
            let part = Window {
                from: [window.from[0], window.from[1] + first],
                size: [columns, band.min(rows - first)],
            };
            let message = OccupancyGridUpdate {
                header: header.clone(),
                x: part.from[0] as i32,
                y: part.from[1] as i32,
                width: part.size[0] as u32,
                height: part.size[1] as u32,
                data: self.grid.values(&part),
            };
            send(self.topics.updates.as_ref(), &message, &self.shared.status);
        }
    }
}
