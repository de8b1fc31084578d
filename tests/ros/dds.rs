//! The node's own DDS client against two other DDS implementations, each in a process of its own: Cyclone DDS
//! (`tests/ros/peer.py`; a Python with cyclonedds and rosbags, named by MAST3R_ROS_PYTHON) and Fast DDS
//! (`tests/ros/peer.cpp`; Debian's libfastrtps-dev and c++). Without them these tests are skipped and listed,
//! unless MAST3R_REQUIRE_DDS is set.

use crate::support::Room;
use crate::support::stage::arguments;
use mast3r_slam::ros::dds::{Dds, Environment};
use mast3r_slam::ros::middleware::{Lane, Middleware};
use mast3r_slam::ros::node::Node;
use mast3r_slam::time::Stamp;
use mast3r_slam::wire::messages::geometry::PoseWithCovarianceStamped;
use mast3r_slam::wire::messages::sensor::Image;
use mast3r_slam::wire::messages::{Header, Message};
use mast3r_slam::wire::names::NodeNames;
use mast3r_slam::wire::{Payload, Qos};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::needs::ros_python;
use testkit::skip::{Need, skip};

/// Seconds of images; MAST3R_ROS_SECONDS changes it.
const SECONDS: &str = "8";
const RATE: &str = "30";

fn peer(program: &str, arguments: &[&str]) -> Value {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ros/peer.py");
    let ran = Command::new(program)
        .arg(script)
        .args(arguments)
        .output()
        .expect("the peer");
    let (out, err) = (
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr),
    );
    assert!(ran.status.success(), "the peer failed: {err}");
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out} {err}"))
}

fn node(domain: u16, variables: &[(&str, &str)], parameters: &[&str]) -> (Node, Room) {
    let domain = domain.to_string();
    let environment = Environment::from(&|name| match name {
        "ROS_DOMAIN_ID" => Some(domain.clone()),
        _ => variables
            .iter()
            .find(|(k, _)| *k == name)
            .map(|(_, v)| (*v).to_owned()),
    });
    let names = NodeNames::new("mast3r_slam", "/", &[]).unwrap();
    let client = Dds::new(names, environment.unwrap()).expect("the domain");
    let args = arguments(&parameters.join(" "));
    let room = Room::default();
    let node = Node::start(Arc::new(client), room.walking(), &args).expect("the node");
    (node, room)
}

/// A domain of this test and process, so that several may run on one machine.
fn domain(test: u32) -> u16 {
    (40 + (std::process::id() + test * 47) % 180) as u16
}

/// Checks what a camera and a listener observed, given the frames that SLAM processed.
fn check_stream(report: &Value, room: &Room) -> Vec<i64> {
    let numbers = |value: &Value| -> Vec<i64> {
        let all = value.as_array().expect("a list");
        all.iter().map(|v| v.as_i64().expect("a number")).collect()
    };
    // Every image that SLAM took gave a pose and an odometry of its stamp, in order, and all arrived.
    let frames = numbers(&report["pose"]);
    assert_eq!(frames.len(), room.frames());
    assert!(frames.is_sorted());
    let sent: BTreeSet<i64> = numbers(&report["sent"]).into_iter().collect();
    assert!(!frames.is_empty());
    assert!(
        frames.iter().all(|at| sent.contains(at)),
        "a stamp that no image had"
    );
    for topic in ["pose", "odometry"] {
        let came = numbers(&report[topic]);
        let missing = frames.iter().filter(|at| !came.contains(at)).count();
        assert_eq!((came.len(), missing), (frames.len(), 0), "{topic}");
        assert!(came == frames, "{topic} in another order");
    }

    // map -> odom -> base_link, both at every stamp.
    let mut edges: BTreeMap<i64, BTreeSet<String>> = BTreeMap::new();
    for message in report["tf"].as_array().unwrap() {
        for t in message.as_array().unwrap() {
            let edge = format!("{} {}", t[0].as_str().unwrap(), t[1].as_str().unwrap());
            edges
                .entry(t[2].as_i64().unwrap())
                .or_default()
                .insert(edge);
        }
    }
    assert_eq!(edges.keys().copied().collect::<Vec<_>>(), frames);
    let both = BTreeSet::from(["map odom".to_owned(), "odom base_link".to_owned()]);
    assert!(edges.values().all(|e| *e == both), "an incomplete chain");

    // Clouds: every chunk of every revision, none too large.
    let per_keyframe = testkit::room::SIZE.0 * testkit::room::SIZE.1;
    let keyframes = numbers(&report["path"]).last().copied().unwrap_or(0) as usize;
    assert!(keyframes > 1);
    let revisions = |clouds: &Value| -> BTreeMap<i64, usize> {
        let mut points = BTreeMap::new();
        for chunk in clouds.as_array().unwrap() {
            assert!(chunk[2].as_i64().unwrap() <= 65_536);
            let count = chunk[1].as_u64().unwrap() as usize;
            *points.entry(chunk[0].as_i64().unwrap()).or_default() += count;
        }
        points
    };
    let map = revisions(&report["map_points"]);
    println!(
        "{} frames of {} images, {keyframes} keyframes, map revisions {map:?}",
        frames.len(),
        sent.len()
    );
    // All but the one that is being sent when the listener leaves are whole, and one is the whole map.
    let mut sent_wholly = map.values().rev().skip(1);
    assert!(
        map.len() > 1 && sent_wholly.all(|n| n.is_multiple_of(per_keyframe)),
        "{map:?}"
    );
    assert!(
        map.values().any(|n| *n == keyframes * per_keyframe),
        "{map:?}"
    );
    let single = revisions(&report["points"]);
    assert!(
        !single.is_empty() && single.values().all(|n| *n == per_keyframe),
        "{single:?}"
    );

    // Who comes late gets what is latched.
    let whole = revisions(&report["late"]["map_points"]);
    assert!(
        whole.values().any(|n| *n >= keyframes * per_keyframe),
        "{whole:?}"
    );
    assert_eq!(
        numbers(&report["late"]["path"]).last(),
        Some(&(keyframes as i64))
    );
    frames
}

fn seconds() -> String {
    std::env::var("MAST3R_ROS_SECONDS").unwrap_or_else(|_| SECONDS.into())
}

/// One stream at a time: each has two processes and a camera's data to move.
static ALONE: Mutex<()> = Mutex::new(());

/// Late joiners get the last 400 chunks of the map's cloud: 75 keyframes of this size.
const STREAM: [&str; 4] = [
    "max_keyframes:=60",
    "image_qos:=reliable",
    "map_voxel_size:=0.0",
    "map_publish_period:=2.0",
];

#[test]
fn a_camera_and_a_listener_on_cyclone_dds_miss_nothing() {
    let Some(program) = ros_python() else { return };
    let domain = domain(0);
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let (_node, room) = node(domain, &[], &STREAM);
    let report = peer(&program, &["stream", &domain.to_string(), &seconds(), RATE]);
    let frames = check_stream(&report, &room);
    let diagnostics = report["diagnostics"].as_array().unwrap().last().unwrap();
    println!("{diagnostics:#}");
    let count = |key: &str| -> usize {
        let all = diagnostics.as_object().unwrap();
        let (_, value) = all.iter().find(|(k, _)| k.starts_with(key)).unwrap();
        value.as_str().unwrap().parse().unwrap()
    };
    // Reliable images: none is lost on the way, and what SLAM was too slow for is counted.
    let sent = report["sent"].as_array().unwrap().len();
    assert_eq!(count("images received"), sent);
    assert_eq!(count("frames processed") + count("images dropped"), sent);
    assert_eq!(count("frames processed"), frames.len());
    assert_eq!(count("messages not sent"), 0);
    assert_eq!(count("poses not published"), 0);
    let graph = report["late"]["graph"]
        .as_array()
        .unwrap()
        .last()
        .expect("a graph");
    assert_eq!(
        graph[0].as_i64(),
        report["path"].as_array().unwrap().last().unwrap().as_i64()
    );
}

#[test]
fn depth_from_cyclone_dds_reaches_the_frames() {
    let Some(program) = ros_python() else { return };
    let domain = domain(9);
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let parameters = ["use_calib:=false", "use_depth:=true", "image_qos:=reliable"];
    let (_node, room) = node(domain, &[], &parameters);
    let found = peer(&program, &["depth", &domain.to_string(), "40", "15"]);
    println!("{found:#}");
    let count = |key: &str| -> usize {
        let value = found[key].as_str().expect("a count");
        value.parse().expect("a number")
    };
    let (frames, with_depth) = (count("frames processed"), count("frames with depth"));
    assert!(frames > 10 && frames <= room.frames(), "{frames}");
    // On a busy machine, a depth image may come too late for its image.
    assert!(
        with_depth > frames / 2 && with_depth <= frames,
        "{with_depth} of {frames}"
    );
    let message = found["message"].as_str().expect("a message");
    assert!(!message.contains("no depth"), "{message}");
}

#[test]
fn wheels_and_gyro_from_cyclone_dds_reach_slam() {
    let Some(program) = ros_python() else { return };
    let domain = domain(10);
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let parameters = [
        "use_calib:=false",
        "use_wheel_odometry:=true",
        "use_gyro:=true",
        "image_qos:=reliable",
    ];
    let (_node, room) = node(domain, &[], &parameters);
    let found = peer(&program, &["motion", &domain.to_string(), "40", "15"]);
    println!("{found:#}");
    let count = |key: &str| -> usize {
        let value = found[key].as_str().expect("a count");
        value.parse().expect("a number")
    };
    let frames = count("frames processed");
    assert!(frames > 10 && frames <= room.frames(), "{frames}");
    // The camera walks while the sensors say that it stands: SLAM takes them until it notices.
    assert!(count("frames predicted by wheels or gyro") > 3);
    assert!(count("motions by wheels that do not fit") > 0);
    assert_eq!(count("jumps of wheel odometry"), 0);
    let message = found["message"].as_str().expect("a message");
    assert!(
        !message.contains("no wheel odometry") && !message.contains("no gyro"),
        "{message}"
    );
}

/// The compiled Fast DDS peer.
fn fast_dds() -> Option<String> {
    static PEER: std::sync::OnceLock<Result<String, String>> = std::sync::OnceLock::new();
    let made = PEER.get_or_init(|| {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ros/peer.cpp");
        let program = concat!(env!("CARGO_TARGET_TMPDIR"), "/fastdds-peer");
        let mut compile = Command::new("c++");
        compile.args([
            "-O1",
            "-std=c++17",
            source,
            "-lfastrtps",
            "-lfastcdr",
            "-o",
            program,
        ]);
        let ran = compile
            .output()
            .map_err(|e| format!("no C++ compiler: {e}"))?;
        match ran.status.success() {
            true => Ok(program.to_owned()),
            false => Err(String::from_utf8_lossy(&ran.stderr).into_owned()),
        }
    });
    match made {
        Ok(program) => Some(program.clone()),
        Err(why) => {
            skip(
                Need::FastDds,
                format!("the Fast DDS peer was not built: {why}"),
            );
            None
        }
    }
}

fn fast_peer(program: &str, arguments: &[&str]) -> Value {
    let ran = Command::new(program)
        .args(arguments)
        .output()
        .expect("the peer");
    let (out, err) = (
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr),
    );
    assert!(ran.status.success(), "the peer failed: {err}");
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out} {err}"))
}

#[test]
fn a_camera_and_a_listener_on_fast_dds_miss_nothing() {
    let Some(program) = fast_dds() else { return };
    let domain = domain(4);
    let parameters = [&STREAM[..], &["use_calib:=false"]].concat();
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let (_node, room) = node(domain, &[], &parameters);
    let report = fast_peer(&program, &["stream", &domain.to_string(), &seconds(), RATE]);
    check_stream(&report, &room);
}

/// A peer's calls of the services.
fn check_services(report: &Value) {
    assert_eq!(report["state"], "active");
    assert_eq!(report["paused"], true);
}

#[test]
fn services_and_parameters_answer_fast_dds() {
    let Some(program) = fast_dds() else { return };
    for (k, variables) in [&[("RMW_IMPLEMENTATION", "rmw_fastrtps_cpp")][..], &[]]
        .into_iter()
        .enumerate()
    {
        let domain = domain(5 + k as u32);
        let (_node, _) = node(domain, variables, &[]);
        let report = fast_peer(&program, &["services", &domain.to_string()]);
        check_services(&report);
        assert_eq!(report["set"], true);
        assert_eq!(report["max_rate"], 7.5);
    }
}

#[test]
fn services_and_parameters_answer_cyclone_dds() {
    let Some(program) = ros_python() else { return };
    // Told to, and by recognising who asks.
    for (k, variables) in [&[("RMW_IMPLEMENTATION", "rmw_cyclonedds_cpp")][..], &[]]
        .into_iter()
        .enumerate()
    {
        let domain = domain(1 + k as u32);
        let (_node, _) = node(domain, variables, &[]);
        let report = peer(&program, &["services", &domain.to_string()]);
        check_services(&report);
        assert!(
            report["names"]
                .as_array()
                .unwrap()
                .iter()
                .any(|n| n == "max_rate")
        );
        assert_eq!(report["set"][0][0], true);
        assert_eq!(report["set"][1][0], false);
        assert!(report["set"][1][1].as_str().unwrap().contains("nonsense"));
        assert_eq!(report["max_rate"], 7.5);
    }
}

#[test]
fn the_node_is_in_the_graph_and_names_its_double() {
    let Some(program) = ros_python() else { return };
    let domain = domain(3);
    let (_node, _) = node(domain, &[], &[]);
    let found = peer(&program, &["list", &domain.to_string()]);
    let counts = found["/mast3r_slam"].as_array().expect("the node");
    // Subscriptions and services; publishers and services.
    assert!(
        counts[0].as_i64() > Some(20) && counts[1].as_i64() > Some(20),
        "{found}"
    );
    let names = NodeNames::new("mast3r_slam", "/", &[]).unwrap();
    let text = domain.to_string();
    let environment = Environment::from(&|name| (name == "ROS_DOMAIN_ID").then(|| text.clone()));
    let double = Dds::new(names, environment.unwrap()).expect("the domain");
    crate::support::wait("the double", || double.same_name_nodes() == 1);
}

/// A peer that is subscribed to everything, and hears the node already.
fn listener(program: &str, domain: u16, seconds: &str) -> Child {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ros/peer.py");
    let mut listener = Command::new(program)
        .args([script, "listen", &domain.to_string(), seconds])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the peer");
    let mut heard = String::new();
    let stderr = listener.stderr.take().expect("stderr");
    BufReader::new(stderr)
        .read_line(&mut heard)
        .expect("a line");
    assert_eq!(heard.trim(), "heard");
    listener
}

#[test]
fn a_subscriber_that_stands_still_keeps_nothing_from_the_others() {
    let Some(program) = ros_python() else { return };
    let domain = domain(8);
    let (_node, room) = node(
        domain,
        &[],
        &["use_calib:=false", "base_frame:=", "image_qos:=reliable"],
    );
    let mut still = listener(&program, domain, "60");
    let signal = |name: &str| {
        Command::new("kill")
            .args([name, &still.id().to_string()])
            .status()
    };
    assert!(signal("-STOP").expect("kill").success());

    // A camera and a listener on the node's own client.
    let text = domain.to_string();
    let environment = Environment::from(&|name| (name == "ROS_DOMAIN_ID").then(|| text.clone()));
    let names = NodeNames::new("camera", "/", &[]).unwrap();
    let camera = Dds::new(names, environment.unwrap()).expect("the domain");
    let images = camera
        .advertise("/image", Image::TYPE, Qos::reliable(5))
        .expect("images");
    let poses = Arc::new(Mutex::new(Vec::new()));
    let came = Arc::clone(&poses);
    let take = Box::new(move |payload: Payload| {
        let pose = PoseWithCovarianceStamped::decode(&payload).expect("a pose");
        came.lock().unwrap().push(Stamp::from(&pose.header.stamp));
    });
    let (topic, kind) = ("/mast3r_slam/pose", PoseWithCovarianceStamped::TYPE);
    let _poses = camera
        .subscribe(topic, kind, Qos::reliable(100), Lane::Rest, take)
        .expect("poses");
    crate::support::wait("the node's subscription", || images.subscribers() > 0);
    // The other way round there is nothing to ask.
    std::thread::sleep(Duration::from_secs(1));
    // For six seconds: within the lease of the one that stands still, so the node must think it alive.
    for k in 0..180 {
        let image = Image {
            header: Header::new(
                Stamp {
                    nanos: 1_000_000_000 + k * 33_000_000,
                },
                "camera",
            ),
            height: 6,
            width: 8,
            encoding: "rgb8".into(),
            is_bigendian: 0,
            step: 24,
            data: serde_bytes::Bytes::new(&[90; 144]),
        };
        images
            .publish(image.encode().expect("an image"))
            .expect("sent");
        std::thread::sleep(Duration::from_millis(33));
    }
    crate::support::wait("all poses", || {
        let poses = poses.lock().unwrap();
        let last = poses.last().map(|at: &Stamp| at.nanos);
        last == Some(1_000_000_000 + 179 * 33_000_000) && poses.len() == room.frames()
    });
    still.kill().expect("kill");
    still.wait().expect("the peer's end");
}

/// Seconds that a peer is not there: longer than the lease of Cyclone DDS, 10 s.
const ABSENCE: u64 = 14;

#[test]
fn a_peer_that_was_out_of_reach_for_longer_than_its_lease_is_found_again() {
    let Some(program) = ros_python() else { return };
    let domain = domain(7);
    let (_node, _) = node(domain, &[], &[]);
    let listener = listener(&program, domain, "50");
    let signal = |name: &str| {
        let id = listener.id().to_string();
        assert!(
            Command::new("kill")
                .args([name, &id])
                .status()
                .expect("kill")
                .success()
        );
    };
    signal("-STOP");
    std::thread::sleep(Duration::from_secs(ABSENCE));
    signal("-CONT");
    let out = listener.wait_with_output().expect("the peer's end").stdout;
    let came: Vec<f64> = serde_json::from_slice(&out).expect("times");
    // Long after it is back, well beyond what was on its way when it stopped.
    let late = came.iter().filter(|at| **at > 40.0).count();
    assert!(late > 0, "nothing came any more: {came:?}");
}
