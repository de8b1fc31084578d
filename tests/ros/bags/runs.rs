//! The program on bags: converting, tracking, recording.

use super::support::{frames, open, read};
use mast3r_slam::source::{self, SourceOptions};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Output;
use testkit::needs::ros_python;
use testkit::program::{Scene, assert_failed, message, poses, program, run, text};

fn convert(sequence: &Path, out: &Path, more: &[&str]) -> Output {
    let mut args = vec!["bag", "convert", text(sequence), text(out)];
    args.extend(more);
    program(&args).output().expect("the program starts")
}

fn stamps(topic: &Value) -> Vec<i64> {
    let messages = topic["messages"].as_array().expect("messages");
    messages
        .iter()
        .map(|m| nanos(&m["message"]["header"]["stamp"]))
        .collect()
}

fn nanos(stamp: &Value) -> i64 {
    let part = |name: &str| stamp[name].as_i64().expect("a number");
    part("sec") * 1_000_000_000 + part("nanosec")
}

#[test]
fn a_converted_sequence_is_the_sequence() {
    let scene = Scene::new(6);
    let folder = scene.folder.path();
    let mut original = source::open(&scene.sequence, SourceOptions::default()).unwrap();
    let calibration = *original.calibration().unwrap();
    let (expected, _) = frames(original.as_mut());
    for (name, more, topic) in [
        ("raw.mcap", &[][..], "/camera/image_raw"),
        (
            "jpeg.mcap",
            &["--compressed"],
            "/camera/image_raw/compressed",
        ),
    ] {
        let path = folder.join(name);
        let output = convert(&scene.sequence, &path, more);
        assert!(output.status.success(), "{}", message(&output));
        let mut source = open(&path).unwrap();
        assert!(source.describe().contains(topic), "{}", source.describe());
        assert_eq!(source.calibration(), Some(&calibration));
        assert_eq!(source.camera_frame(), Some("camera_optical"));
        let (got, error) = frames(source.as_mut());
        assert_eq!(error, None);
        assert_eq!(got.len(), expected.len());
        for (got, expected) in got.iter().zip(&expected) {
            assert_eq!((got.index, got.stamp), (expected.index, expected.stamp));
            assert!(got.image == expected.image, "{name}: another image");
        }
        // The files as they are, not encoded again.
        let size = std::fs::metadata(&path).unwrap().len();
        let images = std::fs::read_dir(scene.sequence.join("rgb")).unwrap();
        let files: u64 = images.map(|f| f.unwrap().metadata().unwrap().len()).sum();
        assert!(more.is_empty() || size < files + 40_000, "{size}, {files}");

        let Some(python) = ros_python() else { continue };
        let topics = read(&python, &path);
        let count = |name: &str| topics[name]["count"].as_u64();
        assert_eq!(count(topic), Some(6));
        assert_eq!(count("/camera/camera_info"), Some(6));
        assert_eq!(
            topics["/ground_truth"]["type"],
            "geometry_msgs/msg/PoseStamped"
        );
        assert!(count("/ground_truth").is_some_and(|n| n >= 6));
        for (name, topic) in topics.as_object().unwrap() {
            assert_eq!(topic["definition"], true, "{name}");
        }
        let recorded: Vec<i64> = expected.iter().map(|f| f.stamp.nanos).collect();
        assert_eq!(stamps(&topics["/camera/camera_info"]), recorded);
        let info = &topics["/camera/camera_info"]["messages"][0]["message"];
        assert_eq!(info["k"][0], calibration.intrinsics.fx);
        assert_eq!(info["p"][6], calibration.intrinsics.cy);
        let truth = &topics["/ground_truth"]["messages"][0]["message"];
        assert_eq!(truth["pose"]["position"]["x"], 2.030419);
    }
    // A bag of a bag.
    let (front, again) = (folder.join("front.mcap"), folder.join("again.mcap"));
    let output = convert(
        &scene.sequence,
        &front,
        &["--frame-id", "front", "--image-topic", "/a/b"],
    );
    assert!(output.status.success(), "{}", message(&output));
    let output = convert(&front, &again, &["--compressed", "--stride", "2"]);
    assert!(output.status.success(), "{}", message(&output));
    let mut source = open(&again).unwrap();
    assert_eq!(source.camera_frame(), Some("front"));
    assert_eq!(source.calibration(), Some(&calibration));
    let (got, error) = frames(source.as_mut());
    assert_eq!((got.len(), error), (3, None));
    for (got, expected) in got.iter().zip(expected.iter().step_by(2)) {
        assert!(got.stamp == expected.stamp && got.image == expected.image);
    }
    // An existing file is not overwritten by mistake.
    let output = convert(&scene.sequence, &folder.join("raw.mcap"), &[]);
    assert_eq!(output.status.code(), Some(2), "{}", message(&output));
    assert!(message(&output).contains("--force"));
    let output = convert(
        &scene.sequence,
        &folder.join("raw.mcap"),
        &["--force", "--end", "2"],
    );
    assert!(output.status.success(), "{}", message(&output));
    let (got, _) = frames(open(&folder.join("raw.mcap")).unwrap().as_mut());
    assert_eq!(got.len(), 2);
    let output = convert(&scene.sequence, &folder.join("a.db3"), &[]);
    assert_eq!(output.status.code(), Some(2), "{}", message(&output));
}

/// The same bits from a bag as from the folder that it was made of, with a recording and without.
#[test]
fn a_bag_is_tracked_as_the_folder_is() {
    let scene = Scene::new(7);
    let folder = scene.folder.path();
    let result = |out: &Path| {
        let file = |name: &str| std::fs::read(out.join(name)).expect(name);
        [
            file("trajectory.txt"),
            file("keyframes.txt"),
            file("cloud.ply"),
        ]
    };
    let output = scene.run(&["--calibrated"]);
    assert!(output.status.success(), "{}", message(&output));
    let expected = result(&scene.out());

    let record = folder.join("record.mcap");
    for (name, more) in [("raw", &[][..]), ("jpeg", &["--compressed"])] {
        let path = folder.join(format!("{name}.mcap"));
        let output = convert(&scene.sequence, &path, more);
        assert!(output.status.success(), "{}", message(&output));
        let out = folder.join(name);
        let mut args = vec!["--calibrated"];
        if name == "raw" {
            args.extend(["--record", text(&record)]);
        }
        let output = run(&path, &out, &args);
        assert!(output.status.success(), "{}", message(&output));
        assert!(result(&out) == expected, "{name}: another trajectory");
    }
    recording_is_complete(&record, &scene, 7);

    // The topics' options are for bags.
    let output = scene.run(&["--force", "--image-topic", "/image"]);
    assert_eq!(output.status.code(), Some(2), "{}", message(&output));
    // A recording is not overwritten by mistake.
    let output = run(
        &scene.sequence,
        &folder.join("new"),
        &["--record", text(&record)],
    );
    assert_eq!(output.status.code(), Some(2), "{}", message(&output));
    assert!(message(&output).contains("--force"), "{}", message(&output));
}

/// A recording has the node's topics, as read by rosbags.
fn recording_is_complete(record: &Path, scene: &Scene, count: usize) {
    let Some(python) = ros_python() else { return };
    let topics = read(&python, record);
    let kinds = [
        ("/tf", "tf2_msgs/msg/TFMessage", false),
        ("/tf_static", "tf2_msgs/msg/TFMessage", true),
        ("/mast3r_slam/odometry", "nav_msgs/msg/Odometry", false),
        (
            "/mast3r_slam/pose",
            "geometry_msgs/msg/PoseWithCovarianceStamped",
            false,
        ),
        ("/mast3r_slam/path", "nav_msgs/msg/Path", true),
        ("/mast3r_slam/points", "sensor_msgs/msg/PointCloud2", false),
        (
            "/mast3r_slam/map_points",
            "sensor_msgs/msg/PointCloud2",
            true,
        ),
    ];
    assert_eq!(topics.as_object().map(|t| t.len()), Some(kinds.len()));
    for (name, kind, latched) in kinds {
        let topic = &topics[name];
        assert_eq!(topic["type"], kind, "{name}");
        assert_eq!(topic["definition"], true, "{name}");
        assert_eq!(topic["latched"], serde_json::json!([latched]), "{name}");
        let messages = topic["messages"].as_array().unwrap();
        assert_eq!(
            topic["count"].as_u64(),
            Some(messages.len() as u64),
            "{name}"
        );
        assert!(!messages.is_empty(), "{name}");
    }
    let mut original = source::open(&scene.sequence, SourceOptions::default()).unwrap();
    let (expected, _) = frames(original.as_mut());
    let expected: Vec<i64> = expected.iter().map(|f| f.stamp.nanos).collect();
    assert_eq!(expected.len(), count);
    for name in ["odometry", "pose"] {
        let topic = &topics[&format!("/mast3r_slam/{name}")];
        assert_eq!(stamps(topic), expected, "{name}");
        // Recorded as of the image's time.
        let logs = topic["messages"].as_array().unwrap().iter();
        let logs: Vec<i64> = logs.map(|m| m["log"].as_i64().unwrap()).collect();
        assert_eq!(logs, expected, "{name}");
    }

    // map -> odom -> base_link at every stamp, base_link -> camera for good.
    let mut edges: BTreeMap<i64, Vec<String>> = BTreeMap::new();
    let mut fixed = Vec::new();
    for (topic, name) in [
        (&topics["/tf"], "/tf"),
        (&topics["/tf_static"], "/tf_static"),
    ] {
        for message in topic["messages"].as_array().unwrap() {
            for t in message["message"]["transforms"].as_array().unwrap() {
                let parent = t["header"]["frame_id"].as_str().unwrap();
                let edge = format!("{parent} {}", t["child_frame_id"].as_str().unwrap());
                match name {
                    "/tf" => edges
                        .entry(nanos(&t["header"]["stamp"]))
                        .or_default()
                        .push(edge),
                    _ => fixed.push(edge),
                }
            }
        }
    }
    assert_eq!(fixed, ["base_link camera_optical"]);
    assert_eq!(edges.keys().copied().collect::<Vec<_>>(), expected);
    assert!(edges.values().all(|e| *e == ["odom base_link", "map odom"]));

    // The robot starts at the map's origin, and the poses are those of the trajectory: the same steps.
    let at = |k: usize| {
        let p = &topics["/mast3r_slam/pose"]["messages"][k]["message"]["pose"]["pose"]["position"];
        ["x", "y", "z"].map(|axis| p[axis].as_f64().unwrap())
    };
    assert!(at(0).iter().all(|v| v.abs() < 1e-12), "{:?}", at(0));
    let clouds = |name: &str| topics[&format!("/mast3r_slam/{name}")]["messages"].clone();
    let keyframes = poses(&scene.out().join("keyframes.txt"));
    assert_eq!(clouds("points").as_array().map(Vec::len), Some(keyframes));
    for name in ["points", "map_points"] {
        // At this small size the network is sure of nothing in some keyframes.
        let mut most = 0;
        for message in clouds(name).as_array().unwrap() {
            let cloud = &message["message"];
            let width = cloud["width"].as_u64().unwrap();
            most = most.max(width);
            assert_eq!(cloud["header"]["frame_id"], "map");
            let bytes = match &cloud["data"] {
                Value::Array(few) => few.len() as u64,
                many => many["length"].as_u64().unwrap(),
            };
            assert_eq!(bytes, 28 * width, "{name}");
            assert_eq!(cloud["row_step"].as_u64(), Some(28 * width));
        }
        assert!(most > 100, "{name}: at most {most} points");
    }
    let path = clouds("path");
    let last = &path.as_array().unwrap().last().unwrap()["message"];
    assert_eq!(last["poses"].as_array().map(Vec::len), Some(keyframes));

    // rosbag2's own description, in the file, makes it a bag with metadata.yaml.
    let bytes = std::fs::read(record).unwrap();
    let folder = scene.folder.path().join("described");
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(record, folder.join("record.mcap")).unwrap();
    let said = description(&bytes);
    let indented: Vec<String> = said.lines().map(|l| format!("  {l}")).collect();
    let yaml = format!("rosbag2_bagfile_information:\n{}\n", indented.join("\n"));
    std::fs::write(folder.join("metadata.yaml"), yaml).unwrap();
    assert_eq!(read(&python, &folder), topics);
}

/// The metadata record that rosbag2's storage plugin looks for.
fn description(bytes: &[u8]) -> String {
    use mcap::records::Record;
    let records = mcap::read::LinearReader::new(bytes).expect("an MCAP file");
    for record in records {
        if let Record::Metadata(metadata) = record.expect("a whole file")
            && metadata.name == "rosbag2"
        {
            return metadata.metadata["serialized_metadata"].clone();
        }
    }
    panic!("no description");
}

#[test]
fn a_run_that_breaks_off_leaves_a_whole_recording() {
    let scene = Scene::new(6);
    let record = scene.folder.path().join("record.mcap");
    let broken = testkit::program::image(&scene.sequence, 4);
    let bytes = std::fs::read(&broken).expect("an image");
    std::fs::write(&broken, &bytes[..bytes.len() / 2]).expect("half an image");
    let output = scene.run(&["--record", text(&record)]);
    let name = broken.file_name().expect("a name").to_string_lossy();
    assert_failed(&output, &[&name]);
    let Some(python) = ros_python() else { return };
    let topics = read(&python, &record);
    assert_eq!(topics["/mast3r_slam/odometry"]["count"], 4);
    assert_eq!(topics["/mast3r_slam/map_points"]["count"], 1);
}

#[test]
fn a_truncated_bag_leaves_the_results_of_what_was_whole() {
    let scene = Scene::new(8);
    let path = scene.folder.path().join("bag.mcap");
    let output = convert(&scene.sequence, &path, &[]);
    assert!(output.status.success(), "{}", message(&output));
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() * 2 / 3]).unwrap();
    let output = run(&path, &scene.out(), &[]);
    assert_failed(&output, &["bag.mcap", "truncated"]);
    let kept = poses(&scene.out().join("trajectory.txt"));
    assert!((2..8).contains(&kept), "{kept} poses");
}

#[cfg(unix)]
#[test]
fn ctrl_c_leaves_a_whole_recording() {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;
    let scene = Scene::new(60);
    let record = scene.folder.path().join("record.mcap");
    let mut args = vec!["run", text(&scene.sequence), "--out"];
    let out = scene.out();
    args.extend([text(&out), "--size", "64", "--record", text(&record)]);
    let mut child = program(&args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program");
    let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut lines = stdout.lines();
    // The run has begun.
    assert!(lines.any(|l| l.expect("text").starts_with("output:")));
    std::thread::sleep(std::time::Duration::from_millis(400));
    let stopped = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(stopped.expect("kill").success());
    // It goes on writing until its end.
    let said: Vec<String> = lines.map_while(Result::ok).collect();
    let status = child.wait().expect("an end");
    let done = poses(&out.join("trajectory.txt"));
    // On a fast machine it may be through before the signal.
    let expected = if done == 60 {
        [Some(0), Some(130)]
    } else {
        [Some(130); 2]
    };
    assert!(expected.contains(&status.code()), "{status}: {said:?}");
    let Some(python) = ros_python() else { return };
    let topics = read(&python, &record);
    assert_eq!(
        topics["/mast3r_slam/odometry"]["count"].as_u64(),
        Some(done as u64)
    );
    assert_eq!(topics["/mast3r_slam/map_points"]["count"], 1);
}
