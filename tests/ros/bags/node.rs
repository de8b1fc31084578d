//! `mast3r-slam node --record`: what the node says is in the bag, message for message.

use super::support::read;
use crate::support::memory::Memory;
use crate::support::stage::{START, Stage, arguments, mount, tf};
use crate::support::{Room, wait};
use mast3r_slam::bag::Bag;
use mast3r_slam::ros::node::Node;
use mast3r_slam::ros::recording::Recording;
use std::collections::BTreeMap;
use std::sync::Arc;
use testkit::needs::ros_python;

#[test]
fn what_a_node_says_is_recorded() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("live.mcap");
    let graph = Memory::new();
    let recording = Recording::beside(Arc::new(graph.clone()), &path).unwrap();
    let room = Room::default();
    let args = arguments("use_calib:=false map_publish_period:=0.1");
    let node = Node::start(recording.client(), room.builder(), &args).unwrap();
    let mut stage = Stage {
        graph,
        room,
        shown: 0,
        node: Some(node),
        next: START,
        stamps: Vec::new(),
    };
    let fixed = tf("base_link", "camera", 0, &mount());
    stage.graph.send("/tf_static", &fixed);
    let stamps = stage.track(25);
    // Only the bag is subscribed.
    for topic in ["/slam/path", "/slam/points", "/slam/map_points"] {
        wait(topic, || stage.graph.count(topic) > 0);
    }
    assert!(!path.exists(), "it is not complete yet");
    drop(stage.node.take());
    assert_eq!(recording.finish().unwrap(), Some(path.clone()));
    assert_eq!(recording.finish().unwrap(), None);

    let topics: BTreeMap<String, u64> = Bag::open(&path)
        .unwrap()
        .topics()
        .iter()
        .map(|t| (t.name.clone(), t.messages.unwrap()))
        .collect();
    let said = [
        "/tf",
        "/slam/odometry",
        "/slam/pose",
        "/slam/path",
        "/slam/points",
        "/slam/map_points",
    ];
    assert_eq!(topics.len(), said.len() + 1, "{topics:?}");
    assert_eq!(topics["/tf_static"], 1);
    for name in said {
        assert_eq!(topics[name] as usize, stage.graph.count(name), "{name}");
    }
    assert_eq!(topics["/slam/pose"], 25);

    let Some(python) = ros_python() else { return };
    let topics = read(&python, &path);
    for (k, stamp) in stamps.iter().enumerate() {
        let header = &topics["/slam/pose"]["messages"][k]["message"]["header"];
        assert_eq!(header["stamp"]["sec"], stamp / 1_000_000_000);
        assert_eq!(header["stamp"]["nanosec"], stamp % 1_000_000_000);
    }
    let latched = |name: &str| topics[name]["latched"][0].as_bool();
    assert_eq!(latched("/tf_static"), Some(true));
    assert_eq!(latched("/slam/map_points"), Some(true));
    assert_eq!(latched("/slam/odometry"), Some(false));
    let child = &topics["/tf_static"]["messages"][0]["message"]["transforms"][0]["child_frame_id"];
    assert_eq!(child, "camera");
}
