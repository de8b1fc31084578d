//! The output thread: processed frames into transforms, odometry and poses; the map's graph; diagnostics.

use super::frames::{Frames, Located};
use super::publish::{self, Topics, send};
use super::settings::Settings;
use super::shared::{Event, LoadedPlace, Mount, Placement, PoseEvent, Shared};
use super::uncertainty;
use crate::map::{EdgeKind, TrackingState};
use crate::ros::messages::Header;
use crate::ros::messages::geometry::TfMessage;
use crate::ros::priority::First;
use crate::slam::Covariance6;
use crate::time::Stamp;
use nalgebra::{Isometry3, Vector3};
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
    frames: Frames,
    mount: Mount,
    camera_frame: Arc<str>,
    /// Counts what changes the map's place in the map frame.
    placements: u64,
    submap: u32,
    last_stamp: Option<Stamp>,
    tracked: Option<Stamp>,
    /// Of the last tracked pose in the odometry's frame.
    covariance: Covariance6,
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
        frames: Frames::of_camera_alone(),
        mount: Mount::CameraAlone,
        camera_frame: "".into(),
        placements: 0,
        submap: 0,
        last_stamp: None,
        tracked: None,
        covariance: uncertainty::unknown(),
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
                self.shared.placement.store(None);
                self.placements += 1;
                if let Some(LoadedPlace {
                    map_from_world,
                    first,
                }) = loaded
                {
                    self.frames.load(map_from_world.as_ref(), &first);
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
                if self.frames.set_pose(&map_from_base) {
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
        let Some(map_from_world) = self.frames.map_from_world() else {
            return;
        };
        self.shared.placement.store(Some(Arc::new(Placement {
            map_from_world: *map_from_world,
            camera_frame: Arc::clone(&self.camera_frame),
            submap: self.submap,
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
        let base = self.base_frame(settings);
        let found = self
            .shared
            .tf()
            .lookup(&settings.odom_frame, &base, pose.record.stamp);
        found.map(Some).map_err(|e| e.to_string())
    }

    fn base_frame(&self, settings: &Settings) -> Arc<str> {
        match self.mount {
            Mount::CameraAlone => Arc::clone(&self.camera_frame),
            Mount::On(_) => settings.base_frame.as_str().into(),
        }
    }

    fn pose(&mut self, pose: &PoseEvent, external: Option<&Isometry3<f64>>, settings: &Settings) {
        let stamp = pose.record.stamp;
        let base = self.base_frame(settings);
        if pose.record.state == TrackingState::Lost {
            self.lost(pose, &base, settings);
        } else {
            let placed = self.frames.map_from_world().is_some();
            let located =
                self.frames
                    .tracked(&pose.record.world_from_camera, pose.step.as_ref(), external);
            if !placed || self.submap != pose.record.submap {
                self.submap = pose.record.submap;
                self.place();
            }
            self.located(pose, &located, &base, settings);
            self.tracked = Some(stamp);
        }
        self.last_stamp = Some(stamp);
        self.shared.status.output.add(pose.done.elapsed());
    }

    fn located(&mut self, pose: &PoseEvent, located: &Located, base: &str, settings: &Settings) {
        let stamp = pose.record.stamp;
        let [in_map, in_odom, of_twist] = self.covariances(pose, located);
        let seconds = self
            .last_stamp
            .map_or(0.0, |last| (stamp.nanos - last.nanos) as f64 * 1e-9);
        let step = pose.step.map(|step| match &self.mount {
            Mount::On(mount) => mount * step * mount.inverse(),
            Mount::CameraAlone => step,
        });
        self.broadcast(stamp, base, &located.odom_from_base, settings);
        let status = &self.shared.status;
        send(
            self.topics.odometry.as_ref(),
            &publish::odometry(
                stamp,
                (&settings.odom_frame, base),
                &located.odom_from_base,
                step.as_ref().map(|step| (step, seconds)),
                [
                    uncertainty::message(&in_odom),
                    uncertainty::message(&uncertainty::of_velocity(&of_twist, seconds)),
                ],
            ),
            status,
        );
        send(
            self.topics.pose.as_ref(),
            &publish::pose(
                stamp,
                &settings.map_frame,
                &located.map_from_base,
                uncertainty::message(&in_map),
            ),
            status,
        );
    }

    /// Of the robot's pose in the map and in the odometry's frame, and about the robot's own axes.
    fn covariances(&mut self, pose: &PoseEvent, located: &Located) -> [Covariance6; 3] {
        let world_from_camera = &pose.record.world_from_camera.rotation;
        let lever = match &self.mount {
            Mount::On(base_from_camera) => base_from_camera.inverse().translation.vector,
            Mount::CameraAlone => Vector3::zeros(),
        };
        let of_camera = pose.covariance.unwrap_or_else(uncertainty::unknown);
        let of_base = uncertainty::carried(&of_camera, &(world_from_camera * lever));
        let map_from_world = self.frames.map_from_world().map(|t| t.rotation);
        let in_map = uncertainty::turned(&of_base, &map_from_world.unwrap_or_default());
        let to_odom = located.map_from_odom.rotation.inverse();
        let in_odom = uncertainty::turned(&in_map, &to_odom);
        let to_base = located.odom_from_base.rotation.inverse();
        self.covariance = in_odom;
        [in_map, in_odom, uncertainty::turned(&in_odom, &to_base)]
    }

    fn lost(&mut self, pose: &PoseEvent, base: &str, settings: &Settings) {
        let stamp = pose.record.stamp;
        let (true, Some(odom_from_base), Some(tracked)) = (
            settings.publish_when_lost && settings.publish_odom_to_base_tf,
            self.frames.odom_from_base().copied(),
            self.tracked,
        ) else {
            return;
        };
        let seconds = (stamp.nanos - tracked.nanos) as f64 * 1e-9;
        let covariance = uncertainty::message(&uncertainty::lost(&self.covariance, seconds));
        self.broadcast(stamp, base, &odom_from_base, settings);
        let message = publish::odometry(
            stamp,
            (&settings.odom_frame, base),
            &odom_from_base,
            None,
            [covariance; 2],
        );
        send(self.topics.odometry.as_ref(), &message, &self.shared.status);
    }

    /// The transforms that are ours.
    fn broadcast(
        &self,
        stamp: Stamp,
        base: &str,
        odom_from_base: &Isometry3<f64>,
        settings: &Settings,
    ) {
        let status = &self.shared.status;
        let mut transforms = Vec::with_capacity(2);
        if settings.publish_odom_to_base_tf {
            // A frame has one parent.
            let other = self.shared.tf().parent(base).map(str::to_owned);
            match other.filter(|parent| *parent != settings.odom_frame) {
                None => transforms.push(publish::transform(
                    stamp,
                    &settings.odom_frame,
                    base,
                    odom_from_base,
                )),
                Some(parent) => status.warn("parent", || {
                    format!(
                        "{} -> {base} is not broadcast: {base} already has the parent {parent}; set base_frame to \
                         the root of the robot's frames",
                        settings.odom_frame
                    )
                }),
            }
        }
        if settings.publish_map_to_odom_tf {
            transforms.push(publish::transform(
                stamp,
                &settings.map_frame,
                &settings.odom_frame,
                self.frames.map_from_odom(),
            ));
        }
        if !transforms.is_empty() {
            send(self.topics.tf.as_ref(), &TfMessage { transforms }, status);
        }
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
        let Some(map_from_world) = self.frames.map_from_world() else {
            return;
        };
        // Both count up and are far below 2^32.
        let version = (self.placements << 32) | table.version;
        if self.path.news(self.topics.path.subscribers(), version) {
            let camera_from_base = match self.mount {
                Mount::On(base_from_camera) => base_from_camera.inverse(),
                Mount::CameraAlone => Isometry3::identity(),
            };
            let path = publish::path(
                &table,
                self.submap,
                settings,
                map_from_world,
                &camera_from_base,
            );
            send(self.topics.path.as_ref(), &path, status);
        }
        if self.graph.news(self.topics.graph.subscribers(), version) {
            let graph = publish::graph(&table, self.submap, &settings.map_frame, map_from_world);
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
