//! The program as users run it: `mast3r-slam node` with the bundled network, a camera on Cyclone DDS that shows
//! the bundled room. (Needs what `ros_dds` needs of Python.)

use serde_json::Value;
use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use testkit::needs::ros_python;

const ROOM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/room_loop");
/// Images, and how many a second: more than the network on a CPU can take.
const IMAGES: &str = "40";
const RATE: &str = "4";

#[test]
fn the_bundled_room_is_tracked_saved_begun_anew_and_loaded() {
    let Some(python) = ros_python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let map = folder.path().join("map");
    let domain = (40 + (std::process::id() + 600) % 180).to_string();
    let mut node = Command::new(env!("CARGO_BIN_EXE_mast3r-slam"))
        .args(["node", "--ros-args"])
        .args([
            "-p",
            "image_transport:=compressed",
            "-p",
            "image_qos:=reliable",
        ])
        .args(["-p", "device:=cpu", "-p", "map_publish_period:=0.5"])
        .args(["-p", &format!("map_path:={}", map.display())])
        .env("ROS_DOMAIN_ID", &domain)
        .stderr(Stdio::piped())
        .spawn()
        .expect("the node");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ros/peer.py");
    let ran = Command::new(python)
        .args([script, "room", &domain, ROOM, IMAGES, RATE])
        .output()
        .expect("the peer");
    // Ctrl-C ends the node.
    let stopped = Command::new("kill")
        .args(["-INT", &node.id().to_string()])
        .status();
    assert!(
        stopped.expect("kill").success(),
        "the node ended before it was told to"
    );
    let status = node.wait().expect("the node's end");
    let mut said = String::new();
    if let Some(mut stderr) = node.stderr.take() {
        use std::io::Read;
        stderr.read_to_string(&mut said).expect("text");
    }
    let (out, err) = (
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr),
    );
    assert!(
        ran.status.success(),
        "the peer failed: {err}\nthe node said: {said}"
    );
    assert!(status.success(), "{status}: {said}");
    assert!(!said.contains("panicked"), "{said}");
    let report: Value = serde_json::from_str(&out).expect("a report");

    let numbers = |name: &str| -> Vec<i64> {
        let all = report[name].as_array().expect("a list");
        all.iter().map(|v| v.as_i64().expect("a number")).collect()
    };
    let count = |name: &str| report[name].as_u64().expect("a count");
    println!(
        "{} images, {} frames, {} poses, {} map messages; {}",
        count("received"),
        count("processed"),
        numbers("pose").len(),
        report["map_points"].as_array().expect("a list").len(),
        report["saved"]
    );
    // No image is lost on the way; each is processed or counted as dropped.
    let sent: BTreeSet<i64> = numbers("sent").into_iter().collect();
    assert_eq!(count("received"), 40);
    assert_eq!(count("processed") + count("dropped"), 40);
    let poses = numbers("pose");
    assert!(poses.len() > 1 && poses.is_sorted());
    assert!(
        poses.iter().all(|at| sent.contains(at)),
        "a stamp that no image had"
    );
    assert_eq!(report["saved"][0], true, "{}", report["saved"][1]);
    assert_eq!(report["reset"], true);
    // The saved map is gone on with: a pose comes of a frame that was shown after it was loaded.
    assert_eq!(report["loaded"][0], true, "{}", report["loaded"][1]);
    let from = report["found_from"].as_i64().expect("a time");
    assert!(
        poses.iter().any(|at| *at >= from),
        "the camera was not found in the loaded map: {said}"
    );
    for file in ["slam.map", "trajectory.txt", "keyframes.txt", "cloud.ply"] {
        let bytes = std::fs::metadata(map.join(file)).expect(file).len();
        assert!(bytes > 0, "{file} is empty");
    }
}
