//! A node between the test's own middleware and its own SLAM.

use super::memory::Memory;
use super::{Fault, Room, wait};
use bytes::Bytes;
use mast3r_slam::ros::args::RosArgs;
use mast3r_slam::ros::node::Node;
use mast3r_slam::time::Stamp;
use mast3r_slam::wire::messages::diagnostic::DiagnosticArray;
use mast3r_slam::wire::messages::geometry::{TfMessage, Transform, TransformStamped};
use mast3r_slam::wire::messages::sensor::{CameraInfo, Image};
use mast3r_slam::wire::messages::{Clock, Header, TriggerResponse};
use nalgebra::{Isometry3, Quaternion, Translation3, UnitQuaternion};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A node with its world.
pub struct Stage {
    pub graph: Memory,
    pub room: Room,
    /// The walk's next frame.
    pub shown: usize,
    pub node: Option<Node>,
    /// Stamp of the next image.
    pub next: i64,
    /// Stamps of the frames that were shown.
    pub stamps: Vec<(i64, usize)>,
}

pub const PERIOD: i64 = 33_000_000;
pub const START: i64 = 1_700_000_000_000_000_000;

/// Axes of a robot from those of a camera, and a place on the robot.
pub fn mount() -> Isometry3<f64> {
    let rotation = UnitQuaternion::from_quaternion(Quaternion::new(0.5, -0.5, 0.5, -0.5));
    Isometry3::from_parts(Translation3::new(0.2, 0.0, 0.5), rotation)
}

pub fn tf(parent: &str, child: &str, nanos: i64, t: &Isometry3<f64>) -> TfMessage {
    TfMessage {
        transforms: vec![TransformStamped {
            header: Header::new(Stamp { nanos }, parent),
            child_frame_id: child.into(),
            transform: Transform::from(t),
        }],
    }
}

impl Stage {
    pub fn new(parameters: &str) -> Self {
        Self::with(parameters, Room::default())
    }

    pub fn with(parameters: &str, room: Room) -> Self {
        let graph = Memory::new();
        let args = arguments(parameters);
        let node = Node::start(Arc::new(graph.clone()), room.builder(), &args).unwrap();
        Self {
            graph,
            room,
            shown: 0,
            node: Some(node),
            next: START,
            stamps: Vec::new(),
        }
    }

    /// Uncalibrated, with the camera's place on the robot known.
    pub fn ready(parameters: &str) -> Self {
        let stage = Self::new(&format!("use_calib:=false {parameters}"));
        stage
            .graph
            .send("/tf_static", &tf("base_link", "camera", 0, &mount()));
        stage
    }

    /// Sends a frame of the walk (`None`: an image that shows nothing), stamped as given.
    pub fn image_at(&self, nanos: i64, index: Option<usize>) {
        let image = self.room.image(index);
        let (width, height) = (image.width as u32, image.height as u32);
        self.raw(nanos, "rgb8", (width, height, 3 * width), &image.data);
    }

    pub fn raw(&self, nanos: i64, encoding: &str, size: (u32, u32, u32), data: &[u8]) {
        let image = Image {
            header: Header::new(Stamp { nanos }, "camera"),
            height: size.1,
            width: size.0,
            encoding: encoding.to_owned(),
            is_bigendian: 0,
            step: size.2,
            data: serde_bytes::Bytes::new(data),
        };
        self.graph.send("/image", &image);
    }

    /// Sends an image of the next stamp and waits until SLAM has looked at it.
    pub fn show(&mut self, index: Option<usize>) -> i64 {
        let nanos = self.next;
        self.next += PERIOD;
        let before = self.room.frames();
        self.stamps.extend(index.map(|index| (nanos, index)));
        self.image_at(nanos, index);
        wait("a frame", || self.room.frames() > before);
        nanos
    }

    /// The walk's next frame.
    pub fn frame(&mut self) -> i64 {
        self.shown += 1;
        self.show(Some(self.shown - 1))
    }

    /// An image that shows nothing.
    pub fn black(&mut self) -> i64 {
        self.show(None)
    }

    /// A frame at which SLAM fails.
    pub fn fault(&mut self, fault: Fault) {
        self.room.next(fault);
        self.frame();
    }

    /// Sends a time on `/clock`.
    pub fn clock(&self, nanos: i64) {
        let clock = Stamp { nanos }.into();
        self.graph.send("/clock", &Clock { clock });
    }

    /// Frames that are tracked, each published before the next is sent. On a busy machine the camera may outrun the
    /// mapping thread and be lost; it then stands still until it is found.
    pub fn track(&mut self, count: usize) -> Vec<i64> {
        let mut stamps = Vec::new();
        for _ in 0..count {
            let before = self.graph.count("/slam/pose");
            let mut stamp = self.frame();
            for _ in 0..20 {
                if self.posed_within(before, Duration::from_secs(3)) {
                    break;
                }
                stamp = self.show(Some(self.shown - 1));
            }
            wait("a pose", || self.graph.count("/slam/pose") > before);
            stamps.push(stamp);
        }
        stamps
    }

    /// Frames until one of them is found again. The camera stays near the walk's next three frames, because a slow
    /// mapping thread answers about a frame that is long gone.
    pub fn find(&mut self) {
        let (before, start) = (self.graph.count("/slam/pose"), self.shown);
        for near in [0, 1, 2, 1].into_iter().cycle().take(60) {
            self.shown = start + near;
            self.frame();
            if self.posed_within(before, Duration::from_millis(300)) {
                return;
            }
        }
        panic!("the camera was not found again");
    }

    /// Whether a pose beyond the first `before` is published within `patience`.
    fn posed_within(&self, before: usize, patience: Duration) -> bool {
        let start = Instant::now();
        while start.elapsed() < patience {
            if self.graph.count("/slam/pose") > before {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// The robot after the walk's frame `to`, seen from where it was at frame `from`.
    pub fn moved(&self, from: usize, to: usize) -> Isometry3<f64> {
        let rigid = |k: usize| {
            let pose = &self.room.poses[k];
            Isometry3::from_parts(pose.translation.into(), pose.rotation)
        };
        mount() * rigid(from).inverse() * rigid(to) * mount().inverse()
    }

    /// Whether the odometry went on from `before` after [`Stage::find`]: it moves by the steps that were measured since
    /// the frame that was found, which is one of those near the newest.
    pub fn went_on_from(&self, before: &Isometry3<f64>) -> bool {
        let (now, newest) = (self.chain().1, self.posed());
        let mut found = newest.saturating_sub(3)..=newest + 3;
        near(&now, before) || found.any(|k| about(&now, &(before * self.moved(k, newest))))
    }

    /// Sends an image with this stamp, which the node must reject, and waits until it has.
    pub fn rejected(&self, nanos: i64) {
        wait("diagnostics", || self.graph.count("/diagnostics") > 0);
        let before = self.value("images rejected");
        self.image_at(nanos, Some(self.shown));
        wait("its rejection", || {
            self.value("images rejected") == before + 1
        });
    }

    pub fn diagnostics(&self) -> (u8, String) {
        let all: Vec<DiagnosticArray> = self.graph.sent("/diagnostics");
        let last = all.last().map(|d| d.status[0].clone()).unwrap_or_default();
        (last.level, last.message)
    }

    pub fn value(&self, key: &str) -> u64 {
        let all: Vec<DiagnosticArray> = self.graph.sent("/diagnostics");
        let Some(last) = all.last() else { return 0 };
        let values = &last.status[0].values;
        let found = values.iter().find(|v| v.key.starts_with(key));
        found
            .unwrap_or_else(|| panic!("no {key}"))
            .value
            .parse()
            .unwrap()
    }

    pub fn trigger(&self, name: &str) -> TriggerResponse {
        self.graph.call(&format!("/slam/{name}"), Bytes::new())
    }

    /// The newest `parent -> child`, with its stamp.
    pub fn transform(&self, parent: &str, child: &str) -> Option<(i64, Isometry3<f64>)> {
        let all: Vec<TfMessage> = self.graph.sent("/tf");
        let all = all.iter().flat_map(|m| &m.transforms);
        let own = |t: &&TransformStamped| t.header.frame_id == parent && t.child_frame_id == child;
        let last = all.rev().find(own)?;
        Some((
            Stamp::from(&last.header.stamp).nanos,
            last.transform.isometry().unwrap(),
        ))
    }

    /// The frame that the newest chain is of: on a busy machine not the one shown last.
    pub fn posed(&self) -> usize {
        let (at, _) = self.transform("odom", "base_link").expect("odom -> base");
        let shown = self.stamps.iter().rfind(|(stamp, _)| *stamp == at);
        shown.expect("the stamp of a frame that was shown").1
    }

    /// `map -> odom` and `odom -> base`, of one time.
    pub fn chain(&self) -> (Isometry3<f64>, Isometry3<f64>) {
        let (at, map_from_odom) = self.transform("map", "odom").expect("map -> odom");
        let (when, odom_from_base) = self.transform("odom", "base_link").expect("odom -> base");
        assert_eq!(at, when, "the chain is of two times");
        (map_from_odom, odom_from_base)
    }
}

/// The same, but for rounding.
pub fn near(a: &Isometry3<f64>, b: &Isometry3<f64>) -> bool {
    let d = a.inverse() * b;
    d.translation.vector.norm() < 1e-9 && d.rotation.angle() < 1e-9
}

/// The same, as far as the room's pixels tell.
pub fn about(a: &Isometry3<f64>, b: &Isometry3<f64>) -> bool {
    let d = a.inverse() * b;
    d.translation.vector.norm() < 0.1 && d.rotation.angle() < 0.03
}

/// The node's arguments: these parameters, and the configuration of the room.
pub fn arguments(parameters: &str) -> RosArgs {
    let room = "transform_publish_rate:=0 autosaves:=0 config:=base slam.network.size:=128 slam.loops:=off slam.reloc.strict:=false";
    let words = room.split_whitespace().chain(parameters.split_whitespace());
    let words: Vec<String> = words
        .flat_map(|p| ["-p".to_owned(), p.to_owned()])
        .collect();
    RosArgs::parse(&words).unwrap()
}

pub fn info(fx: f64) -> CameraInfo {
    CameraInfo {
        width: 128,
        height: 96,
        distortion_model: "plumb_bob".into(),
        d: vec![0.0; 5],
        k: [fx, 0.0, 63.5, 0.0, fx, 47.5, 0.0, 0.0, 1.0],
        ..Default::default()
    }
}
