//! The output thread: processed frames into transforms, odometry and poses; the map's graph; diagnostics.

use super::publish::{self, Topics, send};
use super::robot::{Robot, Seen};
use super::settings::Settings;
use super::shared::{Event, Placement, PoseEvent, Shared};
use crate::map::{EdgeKind, TrackingState};
use crate::ros::messages::Header;
use crate::ros::messages::geometry::{TfMessage, TransformStamped};
use crate::ros::priority::First;
use nalgebra::Isometry3;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How often the thread looks around without events.
const TICK: Duration = Duration::from_millis(20);
/// Longest wait for the odometry of a frame's time where somebody else provides it.
const ODOMETRY_PATIENCE: Duration = Duration::from_millis(500);
/// Frames that may wait for it.
const WAITING: usize = 64;
/// Least time between two paths or graphs.
const GRAPH_PERIOD: Duration = Duration::from_millis(500);
/// Time between two diagnostics.
const DIAGNOSTICS_PERIOD: Duration = Duration::from_secs(1);

/// What a latched topic showed last.
#[derive(Default)]
struct Shown {
    version: Option<u64>,
    subscribers: usize,
}

struct Output {
    shared: Arc<Shared>,
    topics: Topics,
    node: String,
    namesakes: Box<dyn Fn() -> usize + Send>,
    robot: Robot,
    /// Counts what changes the map's place in the map frame.
    placements: u64,
    waiting: VecDeque<Box<PoseEvent>>,
    path: Shown,
    graph: Shown,
    looked: Instant,
    reported: Instant,
    frames_then: u64,
}

/// Runs until the node closes. `namesakes` counts other nodes of this name.
pub fn run(
    shared: Arc<Shared>,
    topics: Topics,
    node: String,
    namesakes: Box<dyn Fn() -> usize + Send>,
    events: &Receiver<Event>,
) {
    let _first = First::new();
    let now = Instant::now();
    let mut output = Output {
        shared,
        topics,
        node,
        namesakes,
        robot: Robot::default(),
        placements: 0,
        waiting: VecDeque::new(),
        path: Shown::default(),
        graph: Shown::default(),
        looked: now,
        reported: now,
        frames_then: 0,
    };
    while !output.shared.closing.load(Ordering::Acquire) {
        match events.recv_timeout(TICK) {
            Ok(event) => output.event(event),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        output.look_around();
    }
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
                self.placements += 1;
                if let Some(loaded) = loaded {
                    self.robot.load(&loaded);
                    self.place();
                }
            }
            Event::Pose(pose) => {
                if self.waiting.len() >= WAITING {
                    self.waiting.pop_front();
                    self.shared.status.unpublished.add();
                }
                self.waiting.push_back(pose);
            }
            Event::InitialPose(map_from_base) => {
                if self.robot.set_pose(&map_from_base) {
                    tracing::info!("the map is put to the pose given on initial_pose");
                    self.place();
                } else {
                    tracing::warn!(
                        "initial_pose came before the first tracked frame; it is ignored"
                    );
                }
            }
        }
    }

    /// Tells the cloud thread where the map lies.
    fn place(&mut self) {
        self.placements += 1;
        let Some(map_from_world) = self.robot.map_from_world() else {
            return;
        };
        self.shared.placement.store(Some(Arc::new(Placement {
            map_from_world: *map_from_world,
            camera_frame: Arc::clone(self.robot.camera_frame()),
            submap: self.robot.submap(),
        })));
    }

    fn look_around(&mut self) {
        let settings = self.shared.settings.load_full();
        while let Some(pose) = self.waiting.front() {
            let external = match self.external(pose, &settings) {
                Ok(external) => external,
                // Its odometry may still be on its way.
                Err(_) if pose.done.elapsed() < ODOMETRY_PATIENCE => break,
                Err(missing) => {
                    let status = &self.shared.status;
                    status.unpublished.add();
                    status.warn("odometry", || format!("a pose is not published: {missing}"));
                    self.waiting.pop_front();
                    continue;
                }
            };
            if let Some(pose) = self.waiting.pop_front() {
                self.pose(&pose, external.as_ref(), &settings);
            }
        }
        let now = Instant::now();
        if now.duration_since(self.looked) >= GRAPH_PERIOD {
            self.looked = now;
            self.show(&settings);
        }
        let since = now.duration_since(self.reported);
        if since >= DIAGNOSTICS_PERIOD {
            self.reported = now;
            self.report(since);
        }
    }

    /// `odom -> base` at the frame's time, where it is somebody else's.
    fn external(
        &self,
        pose: &PoseEvent,
        settings: &Settings,
    ) -> Result<Option<Isometry3<f64>>, String> {
        let lost = pose.record.state == TrackingState::Lost;
        if settings.publish_odom_to_base_tf || lost {
            return Ok(None);
        }
        let base = self.robot.base_frame(settings);
        let found = self
            .shared
            .tf()
            .lookup(&settings.odom_frame, &base, pose.record.stamp);
        found.map(Some).map_err(|e| e.to_string())
    }

    fn pose(&mut self, pose: &PoseEvent, external: Option<&Isometry3<f64>>, settings: &Settings) {
        let seen = Seen {
            record: &pose.record,
            step: pose.step.as_ref(),
            covariance: pose.covariance.as_ref(),
            external,
        };
        let said = self.robot.frame(&seen, settings);
        if said.placed {
            self.place();
        }
        let own = said.odom_from_base.filter(|t| self.has_no_other_parent(t));
        let transforms: Vec<TransformStamped> = own.into_iter().chain(said.map_from_odom).collect();
        let status = &self.shared.status;
        if !transforms.is_empty() {
            send(self.topics.tf.as_ref(), &TfMessage { transforms }, status);
        }
        if let Some(odometry) = &said.odometry {
            send(self.topics.odometry.as_ref(), odometry, status);
        }
        if let Some(pose) = &said.pose {
            send(self.topics.pose.as_ref(), pose, status);
        }
        status.output.add(pose.done.elapsed());
    }

    /// A frame has one parent: says so if the base already has another.
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
                "{odom} -> {base} is not broadcast: {base} already has the parent {parent}; set base_frame to the \
                 root of the robot's frames"
            )
        });
        false
    }

    /// Path and graph, where somebody listens and something is new to them.
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
        // Both count up and are far below 2^32.
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

    fn report(&mut self, since: Duration) {
        let shared = &self.shared;
        shared.status.dropped.set(shared.inbox.dropped());
        let frames = shared.status.frames.get();
        let rate = frames.saturating_sub(self.frames_then) as f64 / since.as_secs_f64();
        self.frames_then = frames;
        let namesakes = (self.namesakes)();
        if namesakes > 0 {
            shared.status.warn("namesake", || {
                format!(
                    "another node is called {} too; rename one with -r __node:=NAME",
                    self.node
                )
            });
        }
        let extra = [("other nodes of this name", namesakes.to_string())];
        let header = Header::new(shared.now(), "");
        let message = shared.status.diagnostics(header, &self.node, rate, &extra);
        send(self.topics.diagnostics.as_ref(), &message, &shared.status);
    }
}

impl Shown {
    /// Whether there is something to show: a new state, or somebody new to see it.
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
