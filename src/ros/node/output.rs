//! The output thread: publishes transforms, odometry and poses of processed frames, the map's
//! graph, and diagnostics.

use super::correction;
use super::inbox::Order;
use super::localization::{self, Localization};
use super::moment::Moment;
use super::pose_messages::Robot;
use super::publish::{self, send};
use super::settings::Settings;
use super::shared::{Event, Placement, Shared};
use super::supervisor::Flow;
use super::topics::Topics;
use crate::map::{EdgeKind, TrackingState};
use crate::ros::middleware::Publish;
use crate::ros::priority::RaisedPriority;
use crate::slam::TrackedFrame;
use crate::wire::messages::Header;
use crate::wire::messages::geometry::TransformStamped;
use heapless::Deque;
use nalgebra::Isometry3;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Polling interval without events.
const TICK: Duration = Duration::from_millis(20);
/// Maximum time to wait for another node's odometry at the time of a frame.
const ODOMETRY_PATIENCE: Duration = Duration::from_millis(500);
/// Maximum number of frames waiting for it: two seconds of a camera, four times as long as each
/// waits.
const WAITING: usize = 64;
/// With wheel odometry, a lost camera may be without a pose for this long before `map -> odom` stops: a message of the
/// wheels may be late, or lost.
const BRIDGE_PATIENCE: Duration = Duration::from_millis(500);
/// Minimum interval between two paths or graphs.
const GRAPH_PERIOD: Duration = Duration::from_millis(500);
/// Interval between two diagnostics.
const DIAGNOSTICS_PERIOD: Duration = Duration::from_secs(1);

/// The last state shown on a latched topic.
#[derive(Default)]
struct LastShown {
    version: Option<u64>,
    subscribers: usize,
}

/// Everything that this thread publishes on.
pub struct Publishers {
    pub topics: Topics,
    /// `~/localization_status`
    pub localization: Box<dyn Publish>,
}

struct Output {
    shared: Arc<Shared>,
    topics: Topics,
    localization_topic: Box<dyn Publish>,
    localization: Localization,
    located: Instant,
    /// Whether the map was loaded.
    loaded: bool,
    node: String,
    same_name_nodes: Box<dyn Fn() -> usize + Send>,
    robot: Robot,
    /// Number of changes of the map's pose in the map frame.
    placements: u64,
    waiting: Deque<(TrackedFrame, Moment), WAITING>,
    path: LastShown,
    graph: LastShown,
    looked: Instant,
    reported: Instant,
    frames_then: u64,
}

/// Runs until the node closes. `same_name_nodes` counts other nodes with this name.
pub fn run(
    shared: Arc<Shared>,
    publishers: Publishers,
    node: String,
    same_name_nodes: Box<dyn Fn() -> usize + Send>,
    events: &Receiver<Event>,
) {
    let _priority = RaisedPriority::new();
    let now = Instant::now();
    let mut output = Output {
        shared,
        topics: publishers.topics,
        localization_topic: publishers.localization,
        localization: Localization::default(),
        located: now,
        loaded: false,
        node,
        same_name_nodes,
        robot: Robot::default(),
        placements: 0,
        waiting: Deque::new(),
        path: LastShown::default(),
        graph: LastShown::default(),
        looked: now,
        reported: now,
        frames_then: 0,
    };
    let shared = Arc::clone(&output.shared);
    shared.supervisor.run("output", || {
        if output.shared.closing.load(Ordering::Acquire) {
            return Flow::Stop;
        }
        let event = match events.recv_timeout(TICK) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return Flow::Stop,
        };
        let shared = Arc::clone(&output.shared);
        let _working = shared.pulses.output.work();
        let flow = match event {
            Some(event) => {
                output.event(event);
                Flow::Continue
            }
            None => Flow::Idle,
        };
        output.look_around();
        flow
    });
}

impl Output {
    fn event(&mut self, event: Event) {
        match event {
            Event::NewMap {
                why,
                mount,
                camera_frame,
                loaded,
            } => {
                tracing::info!("new map: {why}");
                self.waiting.clear();
                self.robot.new_map(mount, camera_frame);
                self.shared.placement.store(None);
                let settings = self.shared.settings.load_full();
                let name = loaded.as_ref().map(|_| map_name(&settings.map_path));
                self.localization.new_map(name);
                self.placements += 1;
                self.loaded = loaded.is_some();
                if let Some(loaded) = loaded {
                    self.robot.load(&loaded);
                    self.place();
                }
            }
            Event::Frame(tracked, done) => {
                if self.waiting.is_full() {
                    self.waiting.pop_front();
                    self.shared.status.unpublished.add();
                }
                // The queue has room now.
                let _ = self.waiting.push_back((tracked, done));
            }
            Event::InitialPose(map_from_base) => {
                if self.loaded {
                    self.hint(&map_from_base);
                } else if self.robot.set_pose(&map_from_base) {
                    tracing::info!("the map was moved according to initial_pose");
                    self.place();
                } else {
                    tracing::warn!("ignoring initial_pose: no frame has been tracked yet");
                }
            }
            Event::SetOrigin(reply) => {
                let moved = self.robot.set_pose(&Isometry3::identity());
                if moved {
                    tracing::info!("the map was moved: its origin is where the robot is");
                    self.place();
                }
                // The service may have given up.
                let _ = reply.try_send(moved);
            }
        }
    }

    /// Makes the search for a lost camera begin at the given pose of the robot; a loaded map stays
    /// where it is, because goals and zones refer to it.
    fn hint(&self, map_from_base: &Isometry3<f64>) {
        let Some(world_from_camera) = self.robot.world_from_camera(map_from_base) else {
            return;
        };
        tracing::info!("initial_pose: a lost camera is searched for near there first");
        if !self.shared.inbox.order(Order::Hint(world_from_camera)) {
            tracing::warn!("ignoring initial_pose: too many commands are waiting");
        }
    }

    /// Passes the map's pose to the cloud thread.
    fn place(&mut self) {
        self.placements += 1;
        let Some(map_from_world) = self.robot.map_from_world() else {
            return;
        };
        self.shared.placement.store(Some(Arc::new(Placement {
            map_from_world: *map_from_world,
            camera_frame: Arc::clone(self.robot.camera_frame()),
            mount: *self.robot.mount(),
            submap: self.robot.submap(),
        })));
    }

    fn look_around(&mut self) {
        let settings = self.shared.settings.load_full();
        let moment = self.shared.moment();
        while let Some((tracked, done)) = self.waiting.front() {
            let external = match self.external(tracked, &settings) {
                Ok(external) => external,
                // The odometry may still arrive.
                Err(_) if moment.since(done) < ODOMETRY_PATIENCE => break,
                Err(missing) => {
                    let status = &self.shared.status;
                    status.unpublished.add();
                    status.warn("odometry", || format!("cannot publish a pose: {missing}"));
                    self.waiting.pop_front();
                    continue;
                }
            };
            if let Some((tracked, done)) = self.waiting.pop_front() {
                self.frame(&tracked, external.as_ref(), &settings);
                self.shared.status.output.add(done.elapsed());
            }
        }
        let now = Instant::now();
        if now.duration_since(self.looked) >= GRAPH_PERIOD {
            self.looked = now;
            self.show(&settings);
        }
        if now.duration_since(self.located) >= localization::PERIOD {
            self.located = now;
            self.tell_localization(moment);
        }
        let since = now.duration_since(self.reported);
        if since >= DIAGNOSTICS_PERIOD {
            self.reported = now;
            self.report(since);
        }
    }

    /// `odom -> base` at the time of the frame, if another node provides it.
    fn external(
        &self,
        tracked: &TrackedFrame,
        settings: &Settings,
    ) -> Result<Option<Isometry3<f64>>, String> {
        let lost = tracked.state == TrackingState::Lost && tracked.bridge.is_none();
        if settings.publish_odom_to_base_tf || lost {
            return Ok(None);
        }
        let base = self.robot.base_frame(settings);
        let found = self
            .shared
            .tf()
            .lookup(&settings.odom_frame, &base, tracked.stamp);
        found.map(Some).map_err(|e| e.to_string())
    }

    fn frame(
        &mut self,
        tracked: &TrackedFrame,
        external: Option<&Isometry3<f64>>,
        settings: &Settings,
    ) {
        let mut messages = self.robot.messages(tracked, external, settings);
        let now = self.shared.moment();
        self.localization.frame(tracked, &messages, now);
        let before = self.shared.correction.get();
        match messages.pose {
            Some(_) => {
                let map_from_odom = self.robot.map_from_odom();
                let correction = &self.shared.correction;
                correction.tracked(map_from_odom, tracked.stamp, now);
            }
            None => {
                let patience = match settings.use_wheel_odometry {
                    true => BRIDGE_PATIENCE,
                    false => Duration::ZERO,
                };
                self.shared.correction.lost(tracked.stamp, now, patience);
            }
        }
        if messages.placed {
            self.place();
        }
        let is_paused = before.is_none_or(|before| correction::is_paused(&before, settings));
        if !messages.placed && !is_paused && settings.transform_publish_rate > 0.0 {
            // The timer sends it. The first of a map, and the first after the timer paused, is sent at once too, with the
            // image's stamp, so that the chain of transforms begins there.
            messages.map_from_odom = None;
        }
        messages.odom_from_base = messages
            .odom_from_base
            .filter(|transform| self.has_no_other_parent(transform));
        self.topics.send(messages, &self.shared.status);
    }

    /// A frame can have only one parent: warns if the base already has another.
    fn has_no_other_parent(&self, odom_from_base: &TransformStamped) -> bool {
        let (odom, base) = (
            &odom_from_base.header.frame_id,
            &odom_from_base.child_frame_id,
        );
        let other = self.shared.tf().parent(base).map(str::to_owned);
        let Some(parent) = other.filter(|parent| parent != odom) else {
            return true;
        };
        self.shared.status.warn("parent", || {
            format!(
                "not broadcasting {odom} -> {base}: {base} already has the parent {parent}; set base_frame to the \
                 root of the robot's frames"
            )
        });
        false
    }

    /// Publishes path and graph if they have subscribers and have changed.
    fn show(&mut self, settings: &Settings) {
        let Some(poses) = self.shared.poses.load_full() else {
            return;
        };
        let table = poses.load();
        let status = &self.shared.status;
        status.keyframes.set(table.poses.len() as u64);
        let closes = |kind| matches!(kind, EdgeKind::Loop | EdgeKind::Relocalisation);
        let loops = table.edges.iter().filter(|e| closes(e.kind)).count();
        status.loops.set(loops as u64);
        let Some(map_from_world) = self.robot.map_from_world() else {
            return;
        };
        // Both are counters far below 2^32.
        let version = (self.placements << 32) | table.version;
        if self.path.news(self.topics.path.subscribers(), version)
            && let Some(path) = self.robot.path(&table, settings)
        {
            send(self.topics.path.as_ref(), &path, status);
        }
        if self.graph.news(self.topics.graph.subscribers(), version) {
            let graph = publish::graph(
                &table,
                self.robot.submap(),
                &settings.map_frame,
                map_from_world,
            );
            send(self.topics.graph.as_ref(), &graph, status);
        }
    }

    fn tell_localization(&self, now: Moment) {
        let shared = &self.shared;
        let settings = shared.settings.load_full();
        let header = Header::new(shared.now(), &settings.map_frame);
        let poses = shared.poses.load();
        let map = poses.as_ref().map(|p| {
            let table = p.load();
            (table.poses.len(), table.scale)
        });
        let (keyframes, scale) = map.unwrap_or_default();
        let state = shared.status.state();
        let message =
            self.localization
                .message((header, &self.node), &state, (keyframes, scale), now);
        send(self.localization_topic.as_ref(), &message, &shared.status);
    }

    fn report(&mut self, since: Duration) {
        let shared = &self.shared;
        shared.status.dropped.set(shared.inbox.dropped());
        let frames = shared.status.frames.get();
        let rate = frames.saturating_sub(self.frames_then) as f64 / since.as_secs_f64();
        self.frames_then = frames;
        let same_name_nodes = (self.same_name_nodes)();
        if same_name_nodes > 0 {
            shared.status.warn("namesake", || {
                format!(
                    "another node is also named {}; rename one with -r __node:=NAME",
                    self.node
                )
            });
        }
        let extra = [("other nodes with this name", same_name_nodes.to_string())];
        let header = Header::new(shared.now(), "");
        let message = shared
            .status
            .diagnostics(header, &self.node, Some(rate), &extra);
        send(self.topics.diagnostics.as_ref(), &message, &shared.status);
    }
}

/// Name of the map in `map_path`.
fn map_name(map_path: &str) -> String {
    let stem = Path::new(map_path).file_stem().unwrap_or_default();
    stem.to_string_lossy().into_owned()
}

impl LastShown {
    /// Whether there is a new state or a new subscriber.
    fn news(&mut self, subscribers: usize, version: u64) -> bool {
        let news =
            subscribers > 0 && (self.version != Some(version) || subscribers > self.subscribers);
        self.subscribers = subscribers;
        if news {
            self.version = Some(version);
        }
        news
    }
}
