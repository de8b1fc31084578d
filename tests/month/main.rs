//! A month in one building: a camera patrols, lap after lap, through the real node and the real system, on a device
//! that is made for this test. Memory, queues, the map and the work for a frame stay as they were after the first day.
//! A program with a single test, because it counts all allocations of the process.

#[path = "../ros/support/memory.rs"]
#[allow(dead_code, reason = "the tests of the node use the rest")]
mod memory;

use mast3r_slam::Slam;
use mast3r_slam::compute::device::{Device, DeviceError, Setup};
use mast3r_slam::image::encoding::ImageFormat;
use mast3r_slam::ros::args::RosArgs;
use mast3r_slam::ros::node::Node;
use mast3r_slam::time::Stamp;
use mast3r_slam::wire::messages::diagnostic::DiagnosticArray;
use mast3r_slam::wire::messages::geometry::{TfMessage, Transform, TransformStamped};
use mast3r_slam::wire::messages::sensor::Image;
use mast3r_slam::wire::messages::{Header, TriggerResponse};
use memory::Memory;
use nalgebra::Isometry3;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use testkit::counting::{self, Counting};
use testkit::patrol::{self, COVERED, LAP, Work};

#[global_allocator]
static COUNTING: Counting = Counting;

/// Frames, in laps. The month's three million: MAST3R_MONTH_FRAMES=3000000.
const LAPS: usize = 12;
/// Laps of the first day, in which the map is made and everything that has a bound fills up.
const DAY: usize = 4;
/// Frames after which the thread that publishes poses may catch up: half of its queue.
const BURST: usize = 128;
const PERIOD: i64 = 33_000_000;
/// Frames of each lap that come at the camera's own pace, not as fast as the device takes them: the camera is lost, and
/// a metre farther on it sees nothing of the map of the first lap.
const SEARCH: std::ops::Range<usize> = COVERED.end..COVERED.end + 10;
const START: i64 = 1_700_000_000_000_000_000;
/// Number of times that the state is looked at after the day: a look waits for the next diagnostics.
const LOOKS: usize = 24;
/// Bytes in use that may differ between two moments: messages under way, and lists that the node makes anew.
const UNDER_WAY: isize = 256 << 10;

struct Patrol {
    graph: Memory,
    work: Arc<Work>,
    node: Option<Node>,
    next: usize,
}

/// The state of everything that could grow.
#[derive(Debug, Clone, Copy)]
struct Look {
    live: isize,
    allocations: usize,
    keyframes: u64,
    work: [u64; 3],
}

impl Patrol {
    fn new() -> Self {
        let graph = Memory::forgetful();
        let work = Arc::new(Work::default());
        let counts = Arc::clone(&work);
        let make = move |_: &Setup, _: &ImageFormat| -> Result<Device, DeviceError> {
            Ok(patrol::device(&counts))
        };
        let builder = Slam::builder().on_device(Arc::new(make));
        let words = "autosaves:=0 config:=base slam.network.size:=128 use_calib:=false base_frame:= \
             publish_when_lost:=true";
        let words: Vec<String> = words
            .split_whitespace()
            .flat_map(|p| ["-p".to_owned(), p.to_owned()])
            .collect();
        let args = RosArgs::parse(&words).unwrap();
        let node = Node::start(Arc::new(graph.clone()), builder, &args).unwrap();
        Self {
            graph,
            work,
            node: Some(node),
            next: 0,
        }
    }

    /// The next frame, and a transform of a joint; waits until SLAM has looked at it.
    fn frame(&mut self) {
        let stamp = Stamp {
            nanos: START + self.next as i64 * PERIOD,
        };
        let data = [90; 128 * 96 * 3];
        let image = Image {
            header: Header::new(stamp, "camera"),
            height: 96,
            width: 128,
            encoding: "rgb8".to_owned(),
            is_bigendian: 0,
            step: 384,
            data: serde_bytes::Bytes::new(&data),
        };
        self.graph.send("/image", &image);
        let joint = TransformStamped {
            header: Header::new(stamp, "base"),
            child_frame_id: format!("joint_{}", self.next % 50),
            transform: Transform::from(&Isometry3::identity()),
        };
        let transforms = vec![joint];
        self.graph.send("/tf", &TfMessage { transforms });
        self.next += 1;
        let limit = Instant::now() + Duration::from_secs(60);
        while self.work.frames.load(Ordering::Acquire) < self.next {
            assert!(Instant::now() < limit, "frame {} is stuck", self.next);
            std::thread::yield_now();
        }
    }

    fn lap(&mut self) {
        for k in 0..LAP {
            self.frame();
            if SEARCH.contains(&k) {
                std::thread::sleep(Duration::from_nanos(PERIOD as u64));
            }
            if k % BURST == 0 {
                self.rest();
            }
        }
    }

    /// Waits until everything about the frames so far is published: they come as fast as the device takes them, a
    /// thousand times as fast as a camera's.
    fn rest(&self) {
        let limit = Instant::now() + Duration::from_secs(60);
        while self.graph.count("/slam/odometry") < self.next {
            assert!(
                Instant::now() < limit,
                "odometry is missing at frame {}",
                self.next
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The newest diagnostics, which must come.
    fn diagnostics(&self) -> DiagnosticArray {
        let before = self.graph.count("/diagnostics");
        let limit = Instant::now() + Duration::from_secs(60);
        while self.graph.count("/diagnostics") < before + 2 {
            assert!(Instant::now() < limit, "no diagnostics");
            std::thread::sleep(Duration::from_millis(20));
        }
        self.graph.sent("/diagnostics").pop().expect("one is kept")
    }

    fn value(&self, key: &str) -> u64 {
        let all = self.diagnostics();
        let values = &all.status[0].values;
        let found = values.iter().find(|v| v.key.starts_with(key));
        found.expect(key).value.parse().expect("a number")
    }

    fn trigger(&self, name: &str) {
        let answer: TriggerResponse = self
            .graph
            .call(&format!("/slam/{name}"), Default::default());
        assert!(answer.success, "{}", answer.message);
    }

    /// What is in use while the camera stands still.
    fn look(&self) -> Look {
        let keyframes = self.value("keyframes");
        Look {
            live: counting::live(),
            allocations: counting::allocations(),
            keyframes,
            work: self.work.of_mapping(),
        }
    }
}

fn laps() -> usize {
    let frames = std::env::var("MAST3R_MONTH_FRAMES").ok();
    frames.map_or(LAPS, |frames| {
        let frames: usize = frames.parse().expect("a number of frames");
        frames.div_ceil(LAP).max(DAY + 3)
    })
}

#[test]
fn after_a_month_all_is_as_after_the_first_day() {
    let mut patrol = Patrol::new();
    let laps = laps();
    patrol.lap();
    // The map of one lap. That it does not grow from here on is asked for by mode.
    patrol.trigger("set_mode_localization");
    // While the map grows, a camera that is not found in time starts a submap instead.
    let in_first = patrol.value("relocalisations");
    for _ in 1..DAY {
        patrol.lap();
    }
    // The first lap after the day is the measure.
    let day = patrol.look();
    patrol.lap();
    let measure = patrol.look();
    assert!(measure.keyframes > 10, "no map: {measure:?}");
    let one = |a: u64, b: u64| b - a;
    let work = std::array::from_fn::<_, 3, _>(|k| one(day.work[k], measure.work[k]));
    let allocations = measure.allocations - day.allocations;
    let mut works: Vec<[u64; 3]> = vec![work];
    let mut last = measure;
    let start = Instant::now();
    let at_once = (laps - DAY - 1).div_ceil(LOOKS).max(1);
    for lap in (DAY + 1..laps).step_by(at_once) {
        let at_once = at_once.min(laps - lap);
        (0..at_once).for_each(|_| patrol.lap());
        let now = patrol.look();
        assert_eq!(now.keyframes, day.keyframes, "lap {lap}: the map grew");
        let grown = now.live - measure.live;
        assert!(
            grown < UNDER_WAY,
            "lap {lap}: {grown} bytes more are in use"
        );
        works.push(std::array::from_fn(|k| {
            one(last.work[k], now.work[k]) / at_once as u64
        }));
        let made = (now.allocations - last.allocations) / at_once;
        assert!(
            made < allocations + allocations / 4,
            "lap {lap}: {made} allocations, {allocations} at first"
        );
        last = now;
    }
    println!(
        "{} frames, {} of them after the first day in {:.0} s: {} bytes in use, {} at first; {} keyframes, {} at \
         first; calls a lap: {works:?}",
        patrol.next,
        (laps - DAY - 1) * LAP,
        start.elapsed().as_secs_f64(),
        last.live,
        measure.live,
        last.keyframes,
        measure.keyframes
    );
    // The work does not grow: at this speed a frame sooner or later asks again, so that single laps differ.
    let (early, late) = works.split_at(works.len() / 2);
    for k in 0..work.len() {
        let mean = |laps: &[[u64; 3]]| laps.iter().map(|w| w[k]).sum::<u64>() / laps.len() as u64;
        let (early, late) = (mean(early), mean(late));
        assert!(
            late <= early + early / 4 + 8,
            "{late} calls a lap at the end, {early} at first: {works:?}"
        );
    }
    // No queue was ever full, and no frame was left out.
    for key in [
        "images dropped",
        "images rejected",
        "poses not published",
        "messages not sent",
    ] {
        assert_eq!(patrol.value(key), 0, "{key}");
    }
    // The covered lens is a loss of each lap. At this speed the camera may outrun an answer of the mapping thread, too:
    // how often depends on the machine.
    let laps = laps as u64;
    for (key, before, laps) in [
        ("times tracking was lost", 0, laps),
        ("relocalisations", in_first, laps - 1),
    ] {
        let count = patrol.value(key) - before;
        let max = laps * LAP as u64 / 100;
        assert!(
            (laps..=max).contains(&count),
            "{key}: {count} in {laps} laps, {before} before them"
        );
    }
    patrol.node = None;
}
