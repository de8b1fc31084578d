//! A node between the test's own middleware and its own SLAM.

use super::memory::Memory;
use super::{FastFactory, wait};
use bytes::Bytes;
use mast3r_slam::ros::args::RosArgs;
use mast3r_slam::ros::messages::diagnostic::DiagnosticArray;
use mast3r_slam::ros::messages::geometry::{TfMessage, Transform, TransformStamped};
use mast3r_slam::ros::messages::sensor::{CameraInfo, Image};
use mast3r_slam::ros::messages::{Header, TriggerResponse};
use mast3r_slam::ros::node::Node;
use mast3r_slam::time::Stamp;
use nalgebra::{Isometry3, Quaternion, Translation3, UnitQuaternion};
use std::sync::Arc;

/// A node with its world.
pub struct Stage {
    pub graph: Memory,
    pub factory: FastFactory,
    pub node: Option<Node>,
    /// Stamp of the next image.
    pub next: i64,
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
        Self::with(parameters, FastFactory::default())
    }

    pub fn with(parameters: &str, factory: FastFactory) -> Self {
        let words: Vec<String> = parameters
            .split_whitespace()
            .flat_map(|p| ["-p".to_owned(), p.to_owned()])
            .collect();
        let graph = Memory::new();
        let args = RosArgs::parse(&words).unwrap();
        let node = Node::start(Arc::new(graph.clone()), Arc::new(factory.clone()), &args).unwrap();
        Self {
            graph,
            factory,
            node: Some(node),
            next: START,
        }
    }

    /// Uncalibrated, with the camera's place on the robot known.
    pub fn ready(parameters: &str) -> Self {
        let stage = Self::new(&format!("use_calibration:=false {parameters}"));
        stage
            .graph
            .send("/tf_static", &tf("base_link", "camera", 0, &mount()));
        stage
    }

    /// Sends an image that begins with `first`, stamped as given.
    pub fn image_at(&self, nanos: i64, first: u8) {
        let mut pixels = vec![0u8; 8 * 6 * 3];
        pixels[0] = first;
        self.raw(nanos, "rgb8", (8, 6, 24), &pixels);
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

    /// Sends the next image and waits until the engine has taken it and everything is published.
    pub fn frame(&mut self, first: u8) -> i64 {
        let nanos = self.next;
        self.next += PERIOD;
        let before = self.factory.log().frames.len();
        self.image_at(nanos, first);
        wait("a frame", || self.factory.log().frames.len() > before);
        nanos
    }

    /// Frames that are tracked, each published before the next is sent.
    pub fn track(&mut self, count: usize) -> Vec<i64> {
        let mut stamps = Vec::new();
        for _ in 0..count {
            let before = self.graph.count("/slam/pose");
            stamps.push(self.frame(0));
            wait("a pose", || self.graph.count("/slam/pose") > before);
        }
        stamps
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

    /// `map -> odom` and `odom -> base`, of one time.
    pub fn chain(&self) -> (Isometry3<f64>, Isometry3<f64>) {
        let (at, map_from_odom) = self.transform("map", "odom").expect("map -> odom");
        let (when, odom_from_base) = self.transform("odom", "base_link").expect("odom -> base");
        assert_eq!(at, when, "the chain is of two times");
        (map_from_odom, odom_from_base)
    }
}

pub fn near(a: &Isometry3<f64>, b: &Isometry3<f64>) -> bool {
    let d = a.inverse() * b;
    d.translation.vector.norm() < 1e-9 && d.rotation.angle() < 1e-9
}

pub fn info(fx: f64) -> CameraInfo {
    CameraInfo {
        width: 8,
        height: 6,
        distortion_model: "plumb_bob".into(),
        d: vec![0.1, 0.0, 0.0, 0.0, 0.0],
        k: [fx, 0.0, 4.0, 0.0, fx, 3.0, 0.0, 0.0, 1.0],
        ..Default::default()
    }
}
