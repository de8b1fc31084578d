//! The node between a middleware inside the test and the real SLAM in a known room: what goes in comes out as ROS
//! expects it, and what makes no sense ends nothing.

use crate::support::memory::Memory;
use crate::support::stage::{PERIOD, START, Stage, about, arguments, info, mount, near, tf};
use crate::support::{Fault, Room, wait};
use bytes::Bytes;
use mast3r_slam::map::saved::Reader;
use mast3r_slam::ros::args::RosArgs;
use mast3r_slam::ros::node::{Node, NodeError};
use mast3r_slam::time::Stamp;
use mast3r_slam::wire::messages::diagnostic::DiagnosticArray;
use mast3r_slam::wire::messages::geometry::{Pose, PoseWithCovariance, PoseWithCovarianceStamped};
use mast3r_slam::wire::messages::lifecycle::{ChangeStateRequest, ChangeStateResponse, Transition};
use mast3r_slam::wire::messages::nav::{Odometry, Path};
use mast3r_slam::wire::messages::parameter::{
    Parameter, ParameterValue, STRING, SetParametersRequest, SetParametersResponse,
};
use mast3r_slam::wire::messages::{Header, Message};
use nalgebra::Isometry3;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[test]
fn every_image_gives_a_pose_of_its_stamp_and_a_whole_chain() {
    let mut stage = Stage::ready("");
    let stamps = stage.track(20);
    let nanos = |h: &Header| Stamp::from(&h.stamp).nanos;
    let poses: Vec<PoseWithCovarianceStamped> = stage.graph.sent("/slam/pose");
    let odometry: Vec<Odometry> = stage.graph.sent("/slam/odometry");
    let of_poses: Vec<_> = poses.iter().map(|p| nanos(&p.header)).collect();
    let of_odometry: Vec<_> = odometry.iter().map(|p| nanos(&p.header)).collect();
    assert_eq!((of_poses, of_odometry), (stamps.clone(), stamps));
    assert!(poses.iter().all(|p| p.header.frame_id == "map"));
    assert!(
        odometry
            .iter()
            .all(|o| o.header.frame_id == "odom" && o.child_frame_id == "base_link")
    );
    // 19 steps of the camera, seen from the robot that starts at the map's origin.
    let expected = stage.moved(0, 19);
    let pose = poses[19].pose.pose.isometry().unwrap();
    assert!(about(&pose, &expected), "{pose}{expected}");
    // The chain is the pose, whatever solves have corrected.
    let (map_from_odom, odom_from_base) = stage.chain();
    assert!(near(&(map_from_odom * odom_from_base), &pose));
    assert!(poses[19].pose.covariance[0][0] > 0.0 && poses[19].pose.covariance[5][5] > 0.0);
    // The odometry adds up the camera's own steps, and the twist is the last one's.
    for k in 1..20 {
        let [a, b] = [k - 1, k].map(|k| odometry[k].pose.pose.isometry().unwrap());
        assert!(
            about(&(a.inverse() * b), &stage.moved(k - 1, k)),
            "step {k}"
        );
    }
    let twist = &odometry[19].twist.twist;
    let seconds = PERIOD as f64 * 1e-9;
    let step = stage.moved(18, 19).translation.vector.norm();
    let linear = nalgebra::Vector3::new(twist.linear.x, twist.linear.y, twist.linear.z);
    assert!((linear.norm() * seconds - step).abs() < 0.05, "{linear}");
}

#[test]
fn keyframes_are_told_as_a_path_while_somebody_listens() {
    let mut stage = Stage::ready("");
    stage.graph.listen(1);
    stage.track(20);
    wait("a path", || stage.graph.count("/slam/path") > 0);
    let all: Vec<Path> = stage.graph.sent("/slam/path");
    let first = all[0].poses[0].pose.isometry().unwrap();
    assert!(near(&first, &Isometry3::identity()));
    wait("a graph", || stage.graph.count("/slam/graph") > 0);
}

#[test]
fn lost_the_odometry_stops_and_found_again_it_goes_on_where_it_stopped() {
    let mut stage = Stage::ready("");
    stage.track(5);
    let (_, before) = stage.chain();
    let sent = stage.graph.count("/slam/odometry");
    for _ in 0..3 {
        stage.black();
    }
    wait("lost", || stage.diagnostics() == (1, "lost".into()));
    assert_eq!(stage.graph.count("/slam/odometry"), sent);
    stage.find();
    assert!(stage.went_on_from(&before), "odom -> base jumped");
    wait("counts", || {
        stage.value("times tracking was lost") == 1 && stage.value("frames not tracked") >= 3
    });
    wait("the counters of mapping", || {
        stage.value("relocalisations") == 1
    });
}

#[test]
fn with_publish_when_lost_the_odometry_stays_with_growing_covariance() {
    let mut stage = Stage::ready("publish_when_lost:=true");
    stage.track(5);
    let sent = stage.graph.count("/slam/odometry");
    stage.black();
    stage.black();
    wait("odometry", || {
        stage.graph.count("/slam/odometry") == sent + 2
    });
    let all: Vec<Odometry> = stage.graph.sent("/slam/odometry");
    let sigma = |k: usize| all[k].pose.covariance[0][0];
    assert!(sigma(sent) > sigma(sent - 1) && sigma(sent + 1) > sigma(sent));
    assert_eq!(all[sent + 1].pose.pose, all[sent - 1].pose.pose);
}

#[test]
fn bad_images_are_refused_and_counted_and_the_next_is_tracked() {
    let mut stage = Stage::ready("");
    stage.track(2);
    let good = stage.room.image(Some(2)).data;
    let bad = |stage: &mut Stage, send: &dyn Fn(&Stage, i64)| {
        let (frames, refused) = (stage.room.frames(), stage.value("images rejected"));
        let at = stage.next;
        stage.next += PERIOD;
        send(stage, at);
        wait("its refusal", || {
            stage.value("images rejected") == refused + 1
        });
        stage.track(1);
        assert_eq!(stage.room.frames(), frames + 1);
    };
    wait("diagnostics", || stage.graph.count("/diagnostics") > 0);
    let size = (128, 96, 384);
    bad(&mut stage, &|s, at| s.raw(at, "rgb8", size, &good[1..]));
    bad(&mut stage, &|s, at| {
        s.raw(at, "rgb8", (128, 96, 383), &good)
    });
    bad(&mut stage, &|s, at| s.raw(at, "jpeg2000", size, &good));
    bad(&mut stage, &|s, at| s.raw(at, "rgb8", (0, 0, 0), &good));
    bad(&mut stage, &|s, _| {
        s.graph
            .send_bytes("/image", Bytes::from_static(b"nonsense"))
    });
    bad(&mut stage, &|s, _| {
        s.graph.send_bytes("/image", Bytes::new())
    });
    bad(&mut stage, &|s, _| s.image_at(0, Some(0)));
    bad(&mut stage, &|s, at| s.image_at(at - 2 * PERIOD, Some(0)));
    bad(&mut stage, &|s, at| {
        s.raw(at, "mono8", (128, 96, 128), &good)
    });
    assert_eq!(stage.room.made().len(), 1);
    assert_eq!(stage.value("maps started"), 1);
}

#[test]
fn one_stamp_of_another_time_ends_no_map_and_time_that_goes_back_for_good_does() {
    let mut stage = Stage::ready("");
    stage.track(6);
    // An hour ahead, an hour back: one image each.
    for leap in [3_600_000_000_000, -3_600_000_000_000] {
        stage.rejected(stage.next + leap);
        stage.track(2);
    }
    assert_eq!(stage.value("maps started"), 1);
    let (_, before) = stage.chain();
    stage.next -= 60_000_000_000;
    for _ in 0..9 {
        stage.rejected(stage.next);
        stage.next += PERIOD;
    }
    stage.track(1);
    wait("a new map", || stage.value("maps started") == 2);
    let (map_from_odom, odom_from_base) = stage.chain();
    assert!(near(&odom_from_base, &before), "odom -> base jumped");
    let pose = map_from_odom * odom_from_base;
    assert!(
        near(&pose, &Isometry3::identity()),
        "the new map does not start at its origin"
    );
}

#[test]
fn a_new_image_size_is_believed_after_a_while_and_begins_a_new_map() {
    let mut stage = Stage::ready("");
    stage.track(3);
    let good = vec![0u8; 160 * 96 * 3];
    for _ in 0..20 {
        stage.next += PERIOD;
        stage.raw(stage.next, "rgb8", (160, 96, 480), &good);
        std::thread::sleep(Duration::from_millis(5));
    }
    wait("a second engine", || stage.room.made().len() == 2);
    assert_eq!(stage.room.made()[1].format.width, 160);
}

#[test]
fn without_camera_info_the_node_waits_and_says_so() {
    let mut stage = Stage::new("");
    stage
        .graph
        .send("/tf_static", &tf("base_link", "camera", 0, &mount()));
    stage.image_at(START, Some(0));
    wait("the reason", || {
        let (level, message) = stage.diagnostics();
        level == 1 && message.contains("camera_info")
    });
    assert!(stage.room.made().is_empty());
    stage.graph.send("/camera_info", &info(0.0));
    stage.image_at(START + PERIOD, Some(0));
    wait("the reason", || {
        stage.diagnostics().1.contains("not calibrated")
    });
    stage.graph.send("/camera_info", &info(89.6));
    stage.next = START + 2 * PERIOD;
    stage.track(2);
    let intrinsics = |stage: &Stage, k: usize| stage.room.made()[k].intrinsics.expect("known");
    assert!((intrinsics(&stage, 0).fx - 89.6).abs() < 1e-6);
    // Once is a mistake, for good is another camera.
    stage.graph.send("/camera_info", &info(92.0));
    stage.track(1);
    assert_eq!(stage.room.made().len(), 1);
    for _ in 0..10 {
        stage.graph.send("/camera_info", &info(92.0));
    }
    stage.frame();
    wait("another SLAM", || stage.room.made().len() == 2);
    assert!((intrinsics(&stage, 1).fx - 92.0).abs() < 1e-6);
}

#[test]
fn without_the_camera_s_place_the_node_waits_and_names_the_frames() {
    let mut stage = Stage::new("use_calib:=false");
    stage.image_at(START, Some(0));
    wait("the reason", || {
        let message = stage.diagnostics().1;
        message.contains("camera")
            && message.contains("base_link")
            && message.contains("base_frame")
    });
    assert!(stage.room.made().is_empty());
    stage
        .graph
        .send("/tf_static", &tf("base_link", "camera", 0, &mount()));
    stage.next = START + PERIOD;
    stage.track(1);
}

/// Joint states are published again and again, each a little later than the image.
#[test]
fn a_camera_s_place_that_is_older_than_the_image_still_holds() {
    let mut stage = Stage::new("use_calib:=false");
    stage
        .graph
        .send("/tf", &tf("base_link", "camera", START - PERIOD, &mount()));
    stage.track(1);
}

#[test]
fn told_to_the_node_takes_the_camera_as_the_robot() {
    let mut stage = Stage::new("use_calib:=false base_frame:=");
    stage.track(3);
    let odometry: Vec<Odometry> = stage.graph.sent("/slam/odometry");
    assert_eq!(odometry[0].child_frame_id, "camera");
    // z up in the map: the first camera looks along x.
    let ahead = odometry[0].pose.pose.isometry().unwrap().rotation * nalgebra::Vector3::z();
    assert!(ahead.x > 0.99, "{ahead}");
}

#[test]
fn an_odometry_from_elsewhere_is_used_at_the_image_s_time() {
    let mut stage = Stage::ready("publish_odom_to_base_tf:=false");
    let wheels = |k: f64| Isometry3::translation(5.0 + k, 1.0, 0.0);
    // The image comes first, its odometry later.
    let at = stage.frame();
    stage.graph.send(
        "/tf",
        &tf("odom", "base_link", at - 10_000_000, &wheels(0.0)),
    );
    stage.graph.send(
        "/tf",
        &tf("odom", "base_link", at + 10_000_000, &wheels(0.2)),
    );
    wait("a pose", || stage.graph.count("/slam/pose") == 1);
    assert!(
        stage.transform("odom", "base_link").is_none(),
        "two parents"
    );
    let (_, map_from_odom) = stage.transform("map", "odom").expect("map -> odom");
    assert!(near(&map_from_odom, &Isometry3::identity()));
    let poses: Vec<PoseWithCovarianceStamped> = stage.graph.sent("/slam/pose");
    assert!(near(&poses[0].pose.pose.isometry().unwrap(), &wheels(0.1)));
    // One that never comes delays nothing for good.
    stage.frame();
    let at = stage.frame();
    stage
        .graph
        .send("/tf", &tf("odom", "base_link", at, &wheels(0.3)));
    wait("the pose after", || stage.graph.count("/slam/pose") >= 2);
}

#[test]
fn a_base_with_another_parent_gets_no_second_one() {
    let mut stage = Stage::ready("");
    stage.graph.send(
        "/tf_static",
        &tf("base_footprint", "base_link", 0, &Isometry3::identity()),
    );
    stage.track(2);
    assert!(stage.transform("odom", "base_link").is_none());
    assert!(stage.transform("map", "odom").is_some());
}

#[test]
fn an_initial_pose_puts_the_map_there() {
    let mut stage = Stage::ready("");
    stage.track(5);
    let (_, before) = stage.chain();
    let given = Isometry3::translation(7.0, 2.0, 0.0);
    stage
        .graph
        .send("/initial_pose", &initial("elsewhere", &given));
    stage.graph.send("/initial_pose", &initial("map", &given));
    stage.track(1);
    let (map_from_odom, odom_from_base) = stage.chain();
    let moved = stage.moved(4, 5);
    assert!(
        about(&odom_from_base, &(before * moved)),
        "odom -> base jumped"
    );
    assert!(about(&(map_from_odom * odom_from_base), &(given * moved)));
}

fn initial(frame: &str, given: &Isometry3<f64>) -> PoseWithCovarianceStamped {
    PoseWithCovarianceStamped {
        header: Header::new(Stamp { nanos: START }, frame),
        pose: PoseWithCovariance {
            pose: Pose::from(given),
            ..Default::default()
        },
    }
}

#[test]
fn a_slow_slam_gets_the_newest_image_and_the_rest_is_counted() {
    let room = Room::slow(Duration::from_millis(60));
    let stage = Stage::with("use_calib:=false base_frame:=", room);
    for k in 0..60 {
        stage.image_at(START + k * PERIOD, Some(k as usize));
        std::thread::sleep(Duration::from_millis(5));
    }
    let processed = || stage.value("frames processed");
    wait("an end", || {
        processed() > 0 && processed() + stage.value("images dropped") == 60
    });
    assert!(processed() < 60);
}

/// A map of some keyframes, and a node that failed after it; then: saved, still failed, and begun anew.
fn fails_and_is_saved(break_it: impl Fn(&mut Stage), why: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept.map");
    let mut stage = Stage::ready(&format!("map_path:={}", path.display()));
    stage.track(12);
    let keyframes = || stage.graph.count("/slam/pose");
    assert_eq!(keyframes(), 12);
    break_it(&mut stage);
    let failed = |stage: &Stage| {
        let (level, message) = stage.diagnostics();
        level == 2 && message.contains(why)
    };
    wait("the failure", || failed(&stage));
    // The map is there to be saved.
    let answer = stage.trigger("save_map");
    assert!(answer.success, "{}", answer.message);
    let reader = Reader::open(&path).expect("a map");
    assert!(reader.header().keyframes > 0);
    // No image is processed, and neither deactivation nor activation hides the failure.
    let frames = stage.room.frames();
    for id in [4, 3] {
        let request = ChangeStateRequest {
            transition: Transition {
                id,
                label: String::new(),
            },
        };
        let done: ChangeStateResponse = stage
            .graph
            .call("/slam/change_state", request.encode().unwrap());
        assert!(done.success);
        stage.image_at(stage.next, Some(20));
        stage.next += PERIOD;
    }
    let reports = stage.graph.count("/diagnostics");
    wait("two more reports", || {
        stage.graph.count("/diagnostics") >= reports + 2
    });
    assert!(failed(&stage), "{:?}", stage.diagnostics());
    assert_eq!(stage.room.frames(), frames);
    // A node that ends so says it by its exit code.
    assert!(stage.trigger("reset").success);
    stage.track(3);
}

#[test]
fn a_device_that_fails_leaves_the_map_to_be_saved_and_reset_starts_again() {
    fails_and_is_saved(|stage| stage.fault(Fault::Fail), "the device is gone");
}

#[test]
fn a_panic_leaves_the_map_to_be_saved_and_reset_starts_again() {
    fails_and_is_saved(|stage| stage.fault(Fault::Panic), "panicked");
}

#[test]
fn a_failed_mapping_thread_leaves_the_map_to_be_saved() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept.map");
    let mut stage = Stage::ready(&format!("map_path:={}", path.display()));
    stage.track(8);
    stage.room.break_mapper();
    for _ in 0..60 {
        stage.image_at(stage.next, Some(stage.shown));
        stage.next += PERIOD;
        stage.shown += 1;
        std::thread::sleep(Duration::from_millis(20));
        if stage.diagnostics().0 == 2 {
            break;
        }
    }
    wait("the failure", || {
        stage.diagnostics().1.contains("the device is gone")
    });
    let answer = stage.trigger("save_map");
    assert!(answer.success, "{}", answer.message);
    assert!(Reader::open(&path).expect("a map").header().keyframes > 0);
}

#[test]
fn a_failure_is_in_the_exit_code() {
    for (fault, ended_well) in [(Fault::None, true), (Fault::Fail, false)] {
        let mut stage = Stage::ready("");
        stage.track(3);
        stage.fault(fault);
        let level = if ended_well { 0 } else { 2 };
        wait("the state", || stage.diagnostics().0 == level);
        let stop = AtomicBool::new(true);
        let ended = stage
            .node
            .take()
            .unwrap()
            .run(&|| stop.load(Ordering::Acquire));
        assert_eq!(ended.is_ok(), ended_well, "{ended:?}");
    }
}

#[test]
fn a_full_map_goes_on_to_be_localised_in() {
    let mut stage = Stage::ready("max_keyframes:=2");
    let mut full = false;
    for _ in 0..70 {
        stage.frame();
        full = full || stage.diagnostics().1.contains("the map is full");
    }
    wait("that the map is full", || {
        stage.diagnostics().1.contains("the map is full")
    });
    // One that the other covers may have made room by now.
    assert!((1..=2).contains(&stage.value("keyframes")));
    assert_ne!(stage.diagnostics().0, 2);
    // Back at the beginning the camera is found in the two keyframes that there are.
    stage.shown = 0;
    stage.find();
    stage.track(2);
}

#[test]
fn an_output_thread_that_falls_over_goes_on_and_one_that_cannot_ends_the_node() {
    let mut stage = Stage::ready("");
    stage.track(2);
    stage.graph.panic_on("/slam/odometry", 1);
    stage.frame();
    wait("the panic", || stage.graph.count("/tf") == 3);
    stage.track(2);
    stage.graph.panic_on("/tf", usize::MAX);
    for _ in 0..3 {
        stage.frame();
    }
    let node = stage.node.take().unwrap();
    let ended = node.run(&|| false).expect_err("the thread cannot go on");
    assert!(
        matches!(&ended, NodeError::Thread(why) if why.contains("output")),
        "{ended}"
    );
}

#[test]
fn services_do_what_they_say() {
    let mut stage = Stage::ready("");
    assert!(!stage.trigger("save_map").success, "without map_path");
    stage.track(12);
    assert!(stage.trigger("pause").success);
    stage.next += PERIOD;
    stage.image_at(stage.next, Some(12));
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(stage.room.frames(), 12);
    assert!(stage.trigger("resume").success);
    stage.next += PERIOD;
    stage.track(1);
    wait("keyframes", || stage.value("keyframes") > 0);
    assert!(stage.trigger("set_mode_localization").success);
    assert!(stage.trigger("set_mode_mapping").success);
    assert!(!stage.trigger("load_map").success, "without map_path");
    let (_, before) = stage.chain();
    assert!(stage.trigger("reset").success);
    stage.track(1);
    wait("a second map", || stage.value("maps started") == 2);
    assert!(near(&stage.chain().1, &before));
}

#[test]
fn the_map_is_saved_where_map_path_says() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("some-map");
    let mut stage = Stage::ready(&format!("map_path:={}", path.display()));
    assert!(!stage.trigger("save_map").success, "without a map");
    stage.track(12);
    let answer = stage.trigger("save_map");
    assert!(answer.success, "{}", answer.message);
    for part in [
        "edges in",
        "slam.map",
        &format!("written to {}", path.display()),
    ] {
        assert!(answer.message.contains(part), "{part}: {}", answer.message);
    }
    let reader = Reader::open(&path.join("slam.map")).expect("a map");
    assert!(
        reader.header().map_from_world.is_some(),
        "the place in the map frame is not saved"
    );
    for file in ["trajectory.txt", "cloud.ply", "report.html"] {
        assert!(path.join(file).exists(), "{file}");
    }
}

/// Any peer may set `map_path` and call the service.
#[test]
fn maps_are_written_below_the_folder_of_the_start_and_over_maps_only() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("maps");
    std::fs::create_dir(&root).unwrap();
    let (outside, notes) = (folder.path().join("outside.map"), root.join("notes.map"));
    std::fs::write(&notes, "precious").unwrap();
    let mut stage = Stage::ready(&format!("map_path:={}", root.display()));
    stage.track(12);
    let save_to = |stage: &Stage, path: &std::path::Path| {
        let value = ParameterValue {
            kind: STRING,
            string_value: path.display().to_string(),
            ..Default::default()
        };
        let name = "map_path".to_owned();
        let parameters = vec![Parameter { name, value }];
        let request = SetParametersRequest { parameters };
        let set: SetParametersResponse = stage
            .graph
            .call("/slam/set_parameters", request.encode().unwrap());
        assert!(set.results[0].successful, "{}", set.results[0].reason);
        stage.trigger("save_map")
    };
    for (path, words) in [
        (outside.clone(), "outside of"),
        (root.join("../outside.map"), "outside of"),
        (notes.clone(), "is not a map"),
    ] {
        let answer = save_to(&stage, &path);
        assert!(
            !answer.success && answer.message.contains(words),
            "{}",
            answer.message
        );
    }
    assert!(!outside.exists());
    assert_eq!(std::fs::read(&notes).unwrap(), b"precious");
    for path in [
        root.join("house.map"),
        root.join("house.map"),
        root.join("floor/two"),
    ] {
        let answer = save_to(&stage, &path);
        assert!(answer.success, "{}", answer.message);
    }
    assert!(Reader::open(&root.join("floor/two/slam.map")).is_ok());
}

#[test]
fn a_loaded_map_lies_where_it_lay_and_the_odometry_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("room.map");
    let mut stage = Stage::ready(&format!("map_path:={}", path.display()));
    let early = stage.trigger("load_map");
    assert!(
        !early.success && early.message.contains("load_map_on_start"),
        "{}",
        early.message
    );
    stage.track(12);
    // The map is put elsewhere, and saved so.
    let given = Isometry3::translation(7.0, 2.0, 0.0);
    stage.graph.send("/initial_pose", &initial("map", &given));
    stage.track(1);
    let saved = stage.trigger("save_map");
    assert!(saved.success, "{}", saved.message);
    // A map of another place in between.
    assert!(stage.trigger("reset").success);
    stage.track(3);
    let (_, before) = stage.chain();
    let answer = stage.trigger("load_map");
    assert!(answer.success, "{}", answer.message);
    // Seen again from where the first map was made.
    stage.shown = 8;
    stage.find();
    let (map_from_odom, odom_from_base) = stage.chain();
    assert!(stage.went_on_from(&before), "odom -> base jumped");
    let expected = given * stage.moved(11, stage.posed());
    let pose = map_from_odom * odom_from_base;
    assert!(about(&pose, &expected), "{pose}{expected}");
}

#[test]
fn an_initial_pose_in_a_loaded_map_is_a_hint_and_the_map_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("room.map");
    let mut stage = Stage::ready(&format!("map_path:={}", path.display()));
    stage.track(12);
    assert!(stage.trigger("save_map").success);
    assert!(stage.trigger("load_map").success);
    wait("lost", || stage.diagnostics().1.contains("lost"));
    // A click on the map: near the place, and one far off, which must not keep it from being found.
    for away in [0.3, 30.0] {
        let given = stage.moved(0, 9) * Isometry3::translation(away, 0.0, 0.0);
        stage.graph.send("/initial_pose", &initial("map", &given));
    }
    stage.shown = 8;
    stage.find();
    let (map_from_odom, odom_from_base) = stage.chain();
    let pose = map_from_odom * odom_from_base;
    let expected = stage.moved(0, stage.posed());
    assert!(about(&pose, &expected), "{pose}{expected}");
    // One that comes while the camera is tracked moves nothing either.
    let given = Isometry3::translation(7.0, 2.0, 0.0);
    stage.graph.send("/initial_pose", &initial("map", &given));
    stage.track(1);
    let (map_from_odom, odom_from_base) = stage.chain();
    let expected = stage.moved(0, stage.posed());
    assert!(about(&(map_from_odom * odom_from_base), &expected));
}

#[test]
fn set_map_origin_moves_the_map_to_the_robot() {
    let mut stage = Stage::ready("");
    let early = stage.trigger("set_map_origin");
    assert!(!early.success && early.message.contains("no frame has been tracked"));
    stage.track(5);
    let (_, before) = stage.chain();
    let answer = stage.trigger("set_map_origin");
    assert!(answer.success, "{}", answer.message);
    stage.track(1);
    let (map_from_odom, odom_from_base) = stage.chain();
    let moved = stage.moved(4, 5);
    assert!(
        about(&odom_from_base, &(before * moved)),
        "odom -> base jumped"
    );
    assert!(about(&(map_from_odom * odom_from_base), &moved));
}

#[test]
fn a_map_that_cannot_be_loaded_changes_nothing_and_at_the_start_it_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.map");
    std::fs::write(&path, b"this is not a map").unwrap();
    let mut stage = Stage::ready(&format!("map_path:={}", path.display()));
    stage.track(3);
    let before = stage.chain();
    let answer = stage.trigger("load_map");
    assert!(!answer.success && answer.message.contains("is not a map file"));
    stage.track(1);
    let moved = stage.moved(2, 3);
    assert!(about(&stage.chain().1, &(before.1 * moved)));

    let words = format!("map_path:={} load_map_on_start:=true", path.display());
    let node = Node::start(
        Arc::new(Memory::new()),
        Room::default().builder(),
        &arguments(&words),
    );
    let error = node.err().expect("a damaged map").to_string();
    assert!(error.contains("is not a map file"), "{error}");
}

#[test]
fn the_simulated_clock_going_back_begins_a_new_map() {
    let mut stage = Stage::ready("use_sim_time:=true");
    stage.clock(START);
    stage.clock(START - 5_000_000_000);
    wait("that there is nothing yet to begin anew", || {
        let (level, message) = stage.diagnostics();
        level == 1 && message.contains("the next image")
    });
    stage.clock(START);
    stage.track(3);
    stage.clock(START + 1_000_000_000);
    wait("a map", || stage.value("maps started") == 1);
    stage.clock(START - 60_000_000_000);
    wait("a reset", || stage.value("maps started") == 2);
    stage.next -= 60_000_000_000;
    stage.track(1);
    wait("diagnostics of the simulated time", || {
        let all: Vec<DiagnosticArray> = stage.graph.sent("/diagnostics");
        all.last()
            .is_some_and(|d| Stamp::from(&d.header.stamp).nanos == START - 60_000_000_000)
    });
}

#[test]
fn two_publishers_of_the_clock_begin_at_most_one_new_map() {
    let mut stage = Stage::ready("use_sim_time:=true");
    stage.clock(START);
    stage.track(3);
    wait("a map", || stage.value("maps started") == 1);
    let later = |k: i64| START + k * PERIOD;
    for k in 0..40 {
        stage.clock(later(k) - 60_000_000_000);
        stage.clock(later(k));
    }
    stage.track(3);
    let reports = stage.graph.count("/diagnostics");
    wait("new diagnostics", || {
        stage.graph.count("/diagnostics") > reports + 1
    });
    assert_eq!(stage.value("maps started"), 2);
    let all: Vec<DiagnosticArray> = stage.graph.sent("/diagnostics");
    let stamp = Stamp::from(&all.last().expect("diagnostics").header.stamp);
    assert_eq!(stamp.nanos, later(39), "the later clock is followed");
    // The other one is followed once it is alone: a bag that was started anew before the first one had ended.
    std::thread::sleep(Duration::from_millis(2100));
    stage.clock(later(40) - 60_000_000_000);
    wait("a reset", || stage.value("maps started") == 3);
}

#[test]
fn a_node_that_is_dropped_leaves_nothing_behind() {
    let mut stage = Stage::ready("");
    stage.track(2);
    stage.node = None;
    assert!(!stage.graph.subscribed("/image") && !stage.graph.subscribed("/tf_static"));
}

#[test]
fn parameters_that_make_no_sense_keep_the_node_from_starting() {
    for (line, part) in [
        ("max_rat:=1", "did you mean max_rate?"),
        ("device:=gpu", "one of"),
        ("weights:=missing", "cannot read the weights missing"),
        ("slam.tracking.Q_cnf:=1", "slam.tracking.Q_conf"),
        (
            "slam.matching.radius:=99",
            "matching.radius must be from 0 to 32, found 99",
        ),
    ] {
        let args = RosArgs::parse(&["-p".to_owned(), line.to_owned()]).unwrap();
        let node = Node::start(Arc::new(Memory::new()), Room::default().builder(), &args);
        let error = node.err().expect(line).to_string();
        assert!(error.contains(part), "{line}: {error}");
    }
}
