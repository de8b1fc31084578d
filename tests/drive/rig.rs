//! The robot, and the node that says where it is.

use crate::chart::{self, Floor};
use crate::errors::Errors;
use crate::mapping::Mapping;
use crate::memory::Memory;
use mast3r_slam::Slam;
use mast3r_slam::geometry::Intrinsics;
use mast3r_slam::map::saved::{Reader, SavedKeyframe};
use mast3r_slam::ros::args::RosArgs;
use mast3r_slam::ros::node::Node;
use mast3r_slam::time::Stamp;
use mast3r_slam::wire::messages::diagnostic::DiagnosticArray;
use mast3r_slam::wire::messages::geometry::{
    Pose, PoseWithCovarianceStamped, TfMessage, Transform, TransformStamped,
};
use mast3r_slam::wire::messages::nav::{OccupancyGrid, Odometry};
use mast3r_slam::wire::messages::sensor::{CameraInfo, Image};
use mast3r_slam::wire::messages::{Clock, Header, TriggerResponse};
use nalgebra::Isometry3;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use testkit::flat::{
    Command, DepthCamera, Follower, Leg, Limits, Period, Place, STEP, Simulation, View,
    WheelErrors, base_from_camera, camera,
};

pub const SECOND: i64 = 1_000_000_000;
/// Nanoseconds between images.
pub const PERIOD: i64 = SECOND / 10;
/// Stamp of the start.
const START: i64 = 1_700_000_000 * SECOND;
/// Width and height of the camera's images.
const SIZE: (usize, usize) = (256, 192);
/// rad/s.
const TURN_RATE: f64 = 1.0;
/// Images without a pose after which the robot turns in place.
const STANDS: u32 = 20;
const RECOVERY: Command = Command { v: 0.0, w: 0.5 };
/// The node may need this long for anything before the test fails.
const PATIENCE: Duration = Duration::from_secs(120);

/// What can be wrong for some time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    /// Images are black.
    Covered,
    /// There are no images.
    NoImages,
    /// Images have no depth.
    NoDepth,
}

/// The robot in its flat and the node, between which messages go.
pub struct Rig {
    pub world: Simulation,
    pub errors: Errors,
    graph: Memory,
    mapping: Mapping,
    /// Runs until it is dropped, before its folder.
    _node: Node,
    folder: TempDir,
    camera: Intrinsics,
    depth: DepthCamera,
    faults: Vec<(Range<i64>, Fault)>,
    floor: Floor,
    images: u64,
    recoveries: u32,
    /// Times and speeds of the robot at the images.
    speeds: Vec<(i64, f64)>,
    /// The newest place that the node said, if it said one for the newest image.
    place: Option<Place>,
}

impl Rig {
    /// A robot that stands at `start`, and a node with the parameters of `config/nav2/slam.yaml`, then these.
    pub fn new(parameters: &str, start: Place, seed: u64) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let graph = Memory::forgetful();
        graph.listen(1);
        // The file names the node that the launch files start.
        let file = testkit::repository("config/nav2/slam.yaml");
        let text = std::fs::read_to_string(file).expect("config/nav2/slam.yaml");
        let file = folder.path().join("slam.yaml");
        std::fs::write(&file, text.replace("mast3r_slam:", "/**:")).expect("a file");
        let map = folder.path().join("flat.map");
        let own = format!(
            "device:=cpu slam.network.size:=256 use_sim_time:=true use_depth:=true autosaves:=0 map_path:={}",
            map.display()
        );
        let mut words = vec!["--params-file".to_owned(), file.display().to_string()];
        for word in own.split_whitespace().chain(parameters.split_whitespace()) {
            words.extend(["-p".to_owned(), word.to_owned()]);
        }
        let args = RosArgs::parse(&words).expect("arguments");
        let mapping = Mapping::default();
        let builder = mapping.observe(Slam::builder());
        let node = Node::start(Arc::new(graph.clone()), builder, &args).expect("a node");
        let rig = Self {
            world: Simulation::new(start, Limits::default(), WheelErrors::default(), seed),
            errors: Errors::default(),
            graph,
            mapping,
            _node: node,
            folder,
            camera: camera(SIZE.0, SIZE.1),
            depth: DepthCamera::new(0.005, seed),
            faults: Vec::new(),
            floor: Floor::default(),
            images: 0,
            recoveries: 0,
            speeds: Vec::new(),
            place: None,
        };
        let mount = TransformStamped {
            header: Header::new(Stamp { nanos: 0 }, "base_link"),
            child_frame_id: "camera".into(),
            transform: Transform::from(&base_from_camera()),
        };
        let transforms = vec![mount];
        rig.graph.send("/tf_static", &TfMessage { transforms });
        rig
    }

    /// Something is wrong at these times.
    pub fn fail(&mut self, times: Range<i64>, fault: Fault) {
        self.faults.push((times, fault));
    }

    fn has(&self, fault: Fault, nanos: i64) -> bool {
        let mut all = self.faults.iter();
        all.any(|(times, f)| *f == fault && times.contains(&nanos))
    }

    /// Images that the camera took.
    pub fn images(&self) -> u64 {
        self.images
    }

    /// How often the robot turned in place because it had no pose for long.
    pub fn recoveries(&self) -> u32 {
        self.recoveries
    }

    /// The squares of the floor that the camera saw.
    pub fn floor(&self) -> &Floor {
        &self.floor
    }

    /// The robot's lowest speed at the images of these times, in m/s.
    pub fn slowest(&self, times: Range<i64>) -> f64 {
        let during = self.speeds.iter().filter(|(at, _)| times.contains(at));
        during
            .map(|(_, speed)| *speed)
            .fold(f64::INFINITY, f64::min)
    }

    /// Follows a route by the node's poses for at most so many images; whether its end was reached, by these poses. The
    /// robot stops while there is no pose, and turns in place after a while, as Nav2 lets it.
    pub fn drive(&mut self, legs: &[Leg], speed: f64, max_images: usize) -> bool {
        if self.images == 0 {
            self.image(Period::default());
        }
        let mut follower = Follower::new(legs, speed, TURN_RATE);
        let mut blind = 0;
        for _ in 0..max_images {
            let fails = [Fault::Covered, Fault::NoImages];
            let is_blind =
                self.place.is_none() && !fails.iter().any(|f| self.has(*f, self.world.nanos()));
            blind = if is_blind { blind + 1 } else { 0 };
            let command = match &self.place {
                Some(place) => match follower.command(place) {
                    Some(command) => command,
                    None => return true,
                },
                None if blind > STANDS => {
                    self.recoveries += u32::from(blind == STANDS + 1);
                    RECOVERY
                }
                None => Command::default(),
            };
            let period = self.world.advance(command, PERIOD);
            self.image(period);
        }
        false
    }

    /// Sends what the sensors deliver now, and waits until the node has dealt with the image.
    fn image(&mut self, period: Period) {
        let nanos = self.world.nanos();
        let stamp = Stamp {
            nanos: START + nanos,
        };
        let clock = stamp.into();
        self.graph.send("/clock", &Clock { clock });
        for (nanos, place) in &period.wheels {
            let stamp = Stamp {
                nanos: START + nanos,
            };
            self.wheels(stamp, place);
        }
        self.speeds.push((nanos, self.world.robot.speed().v));
        if self.has(Fault::NoImages, nanos) {
            self.place = None;
            return;
        }
        let view = self.world.view(&self.camera, SIZE);
        let depth = self.depth.measure(&view.depth, 1000.0);
        let depth: Vec<u8> = depth.iter().flat_map(|v| v.to_le_bytes()).collect();
        let has_depth = !self.has(Fault::NoDepth, nanos);
        if has_depth {
            self.pixels("/depth", stamp, "16UC1", 2, &depth);
        }
        self.graph.send("/camera_info", &self.info(stamp));
        match self.has(Fault::Covered, nanos) {
            true => self.pixels("/image", stamp, "rgb8", 3, &vec![0; view.image.data.len()]),
            false => {
                self.see(&view);
                self.pixels("/image", stamp, "rgb8", 3, &view.image.data);
            }
        }
        self.images += 1;
        if !has_depth {
            // An image waits for its depth.
            let nanos = stamp.nanos + PERIOD - STEP;
            let clock = Stamp { nanos }.into();
            self.graph.send("/clock", &Clock { clock });
        }
        let pose = self.answer(stamp);
        self.keep_up();
        let truth = &self.world.robot.place;
        self.place = pose.map(|pose| self.errors.add(nanos, &pose, truth));
    }

    fn see(&mut self, view: &View) {
        let pose = self.world.robot.world_from_camera();
        chart::see(&mut self.floor, view, &self.camera, &pose);
    }

    fn pixels(&self, topic: &str, stamp: Stamp, encoding: &str, bytes: usize, data: &[u8]) {
        let image = Image {
            header: Header::new(stamp, "camera"),
            height: SIZE.1 as u32,
            width: SIZE.0 as u32,
            encoding: encoding.to_owned(),
            is_bigendian: 0,
            step: (SIZE.0 * bytes) as u32,
            data: serde_bytes::Bytes::new(data),
        };
        self.graph.send(topic, &image);
    }

    fn wheels(&self, stamp: Stamp, place: &Place) {
        let mut message = Odometry {
            header: Header::new(stamp, "odom"),
            child_frame_id: "base_link".into(),
            ..Default::default()
        };
        message.pose.pose = Pose::from(&place.isometry());
        self.graph.send("/odom", &message);
    }

    fn info(&self, stamp: Stamp) -> CameraInfo {
        let Intrinsics { fx, fy, cx, cy } = self.camera;
        CameraInfo {
            header: Header::new(stamp, "camera"),
            width: SIZE.0 as u32,
            height: SIZE.1 as u32,
            distortion_model: "plumb_bob".into(),
            d: vec![0.0; 5],
            k: [fx, 0.0, cx, 0.0, fy, cy, 0.0, 0.0, 1.0],
            ..Default::default()
        }
    }

    /// The robot's pose at the newest image; `None` if the camera is lost. The robot's clock stands meanwhile, so that a
    /// slow machine sees the same drive.
    fn answer(&self, stamp: Stamp) -> Option<Isometry3<f64>> {
        let posed = || {
            let last: Option<PoseWithCovarianceStamped> = self.graph.sent("/slam/pose").pop();
            let pose = last.filter(|pose| Stamp::from(&pose.header.stamp) == stamp)?;
            Some(pose.pose.pose.isometry().expect("a pose"))
        };
        let limit = Instant::now() + PATIENCE;
        let reports =
            |topics: &[&str]| -> usize { topics.iter().map(|t| self.graph.count(t)).sum() };
        // The output thread, which also publishes poses, reports a frame that is counted, and then once more.
        for topics in [
            &["/diagnostics"][..],
            &["/diagnostics", "/slam/localization_status"],
        ] {
            let mut before = reports(topics);
            loop {
                if let Some(pose) = posed() {
                    return Some(pose);
                }
                assert!(
                    Instant::now() < limit,
                    "image {} is stuck: {:?}",
                    self.images,
                    self.diagnostics()
                );
                std::thread::sleep(Duration::from_millis(2));
                let now = reports(topics);
                if now > before && self.value("frames processed") >= self.images {
                    break;
                }
                before = now;
            }
        }
        posed()
    }

    /// Waits until mapping is at most one keyframe behind and has searched for a lost camera, as on a machine that is fast
    /// enough: a live camera is tracked without waiting, and is lost where mapping is too far behind.
    fn keep_up(&self) {
        let limit = Instant::now() + PATIENCE;
        while !self.mapping.keeps_up() {
            assert!(
                Instant::now() < limit,
                "mapping is stuck: {:?}",
                self.diagnostics()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        if self.mapping.searches() {
            // The mapping thread answers when it has ended the search.
            self.save();
        }
    }

    /// Saves the map; the file.
    fn save(&self) -> PathBuf {
        let answer: TriggerResponse = self.graph.call("/slam/save_map", Default::default());
        assert!(answer.success, "{}", answer.message);
        self.folder.path().join("flat.map")
    }

    fn diagnostics(&self) -> Option<DiagnosticArray> {
        self.graph.sent("/diagnostics").pop()
    }

    /// A number of the newest diagnostics.
    pub fn value(&self, key: &str) -> u64 {
        let all = self.diagnostics().expect("diagnostics");
        let found = all.status[0].values.iter().find(|v| v.key == key);
        found.expect(key).value.parse().expect("a number")
    }

    /// The grid that a new subscriber gets, which shows all keyframes.
    pub fn grid(&self) -> OccupancyGrid {
        self.graph.listen(0);
        std::thread::sleep(Duration::from_millis(500));
        let before = self.graph.count("/map");
        self.graph.listen(1);
        let limit = Instant::now() + PATIENCE;
        while self.graph.count("/map") == before {
            assert!(Instant::now() < limit, "no grid");
            std::thread::sleep(Duration::from_millis(20));
        }
        self.graph.sent("/map").pop().expect("a grid")
    }

    /// The submaps of the map.
    pub fn submaps(&self) -> Vec<u32> {
        let mut reader = Reader::open(&self.save()).expect("the map");
        let mut keyframe = SavedKeyframe::default();
        let mut all = Vec::new();
        for _ in 0..reader.header().keyframes {
            reader.keyframe(&mut keyframe).expect("a keyframe");
            all.push(keyframe.submap);
        }
        all.sort_unstable();
        all.dedup();
        all
    }
}
