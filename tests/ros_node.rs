//! The node between a middleware inside the test and a SLAM that is known: what goes in comes out as ROS
//! expects it, and what makes no sense ends nothing.

mod ros_support;

use bytes::Bytes;
use mast3r_slam::geometry::Distortion;
use mast3r_slam::ros::args::RosArgs;
use mast3r_slam::ros::messages::diagnostic::DiagnosticArray;
use mast3r_slam::ros::messages::geometry::{Pose, PoseWithCovariance, PoseWithCovarianceStamped};
use mast3r_slam::ros::messages::nav::{Odometry, Path};
use mast3r_slam::ros::messages::visualization::MarkerArray;
use mast3r_slam::ros::messages::{Clock, Header};
use mast3r_slam::ros::node::Node;
use mast3r_slam::time::Stamp;
use nalgebra::Isometry3;
use ros_support::memory::Memory;
use ros_support::stage::{PERIOD, START, Stage, info, mount, near, tf};
use ros_support::{
    BAD, CLOSE_LOOP, FAIL, FastFactory, LOST, PANIC, correction, loaded_camera, step, wait,
};
use std::sync::Arc;
use std::time::Duration;

#[test]
fn every_image_gives_a_pose_of_its_stamp_and_a_whole_chain() {
    let mut stage = Stage::ready("");
    let stamps = stage.track(25);
    let nanos = |h: &Header| Stamp::from(&h.stamp).nanos;
    let poses: Vec<PoseWithCovarianceStamped> = stage.graph.sent("/slam/pose");
    let odometry: Vec<Odometry> = stage.graph.sent("/slam/odometry");
    assert_eq!(
        poses.iter().map(|p| nanos(&p.header)).collect::<Vec<_>>(),
        stamps
    );
    assert_eq!(
        odometry
            .iter()
            .map(|p| nanos(&p.header))
            .collect::<Vec<_>>(),
        stamps
    );
    assert!(poses.iter().all(|p| p.header.frame_id == "map"));
    assert!(
        odometry
            .iter()
            .all(|o| o.header.frame_id == "odom" && o.child_frame_id == "base_link")
    );
    // 24 steps of the camera, seen from the robot that starts at the map's origin.
    let mut camera = Isometry3::identity();
    (0..24).for_each(|_| camera *= step());
    let expected = mount() * camera * mount().inverse();
    let (map_from_odom, odom_from_base) = stage.chain();
    assert!(near(&odom_from_base, &expected) && near(&map_from_odom, &Isometry3::identity()));
    assert!(near(&poses[24].pose.pose.isometry().unwrap(), &expected));
    // The robot drives forward at 2 cm in 33 ms, turning right.
    let twist = &odometry[24].twist.twist;
    assert!((twist.linear.x - 0.02 / 0.033).abs() < 0.02, "{twist:?}");
    assert!(
        (twist.angular.z + 1f64.to_radians() / 0.033).abs() < 1e-6,
        "{twist:?}"
    );
    assert!(poses[24].pose.covariance[0][0] > 0.0 && poses[24].pose.covariance[5][5] > 0.0);
}

#[test]
fn a_closed_loop_moves_map_to_odom_and_odom_to_base_goes_on() {
    let mut stage = Stage::ready("");
    stage.graph.listen(1);
    stage.track(30);
    let (before_map, before_odom) = stage.chain();
    wait("a path", || stage.graph.count("/slam/path") > 0);
    stage.frame(CLOSE_LOOP);
    wait("the loop's pose", || stage.graph.count("/slam/pose") == 31);
    let (after_map, after_odom) = stage.chain();
    let moved = mount() * step() * mount().inverse();
    assert!(
        near(&after_odom, &(before_odom * moved)),
        "odom -> base jumped"
    );
    assert!(!near(&after_map, &before_map), "the correction is nowhere");
    let poses: Vec<PoseWithCovarianceStamped> = stage.graph.sent("/slam/pose");
    let pose = poses[30].pose.pose.isometry().unwrap();
    assert!(
        near(&(after_map * after_odom), &pose),
        "the chain is not the pose"
    );
    // The keyframes' path and the graph are told anew, where the loop has put them.
    let last = |stage: &Stage| stage.graph.sent::<Path>("/slam/path").pop().unwrap();
    wait("the new path", || {
        last(&stage).poses.len() == 4
            || last(&stage).poses.len() == 3 && {
                let first = last(&stage).poses[0].pose.isometry().unwrap();
                !near(&first, &Isometry3::identity())
            }
    });
    let first = last(&stage).poses[0].pose.isometry().unwrap();
    let corrected = correction();
    let rigid = Isometry3::from_parts(corrected.translation.into(), corrected.rotation);
    assert!(near(&first, &(mount() * rigid * mount().inverse())));
    wait("the loop in the graph", || {
        let graph: Vec<MarkerArray> = stage.graph.sent("/slam/graph");
        graph.last().is_some_and(|g| {
            g.markers
                .iter()
                .any(|m| m.ns == "loops" && m.points.len() == 2)
        })
    });
}

#[test]
fn lost_the_odometry_stops_and_found_again_it_goes_on_where_it_stopped() {
    let mut stage = Stage::ready("");
    stage.track(5);
    let (_, before) = stage.chain();
    let sent = stage.graph.count("/slam/odometry");
    for _ in 0..3 {
        stage.frame(LOST);
    }
    wait("lost", || stage.diagnostics() == (1, "lost".into()));
    assert_eq!(stage.graph.count("/slam/odometry"), sent);
    stage.track(1);
    assert!(near(&stage.chain().1, &before));
    wait("counts", || {
        (stage.value("frames lost"), stage.value("times lost")) == (3, 1)
    });
}

#[test]
fn with_publish_when_lost_the_odometry_stays_with_growing_covariance() {
    let mut stage = Stage::ready("publish_when_lost:=true");
    stage.track(5);
    let sent = stage.graph.count("/slam/odometry");
    stage.frame(LOST);
    stage.frame(LOST);
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
    let good = vec![0u8; 8 * 6 * 3];
    let bad = |stage: &mut Stage, send: &dyn Fn(&Stage, i64)| {
        let (frames, refused) = (
            stage.factory.log().frames.len(),
            stage.value("images refused"),
        );
        let at = stage.next;
        stage.next += PERIOD;
        send(stage, at);
        wait("its refusal", || {
            stage.value("images refused") == refused + 1
        });
        stage.track(1);
        assert_eq!(stage.factory.log().frames.len(), frames + 1);
    };
    wait("diagnostics", || stage.graph.count("/diagnostics") > 0);
    bad(&mut stage, &|s, at| {
        s.raw(at, "rgb8", (8, 6, 24), &good[1..])
    });
    bad(&mut stage, &|s, at| s.raw(at, "rgb8", (8, 6, 23), &good));
    bad(&mut stage, &|s, at| {
        s.raw(at, "jpeg2000", (8, 6, 24), &good)
    });
    bad(&mut stage, &|s, at| s.raw(at, "rgb8", (0, 0, 0), &good));
    bad(&mut stage, &|s, _| {
        s.graph
            .send_bytes("/image", Bytes::from_static(b"nonsense"))
    });
    bad(&mut stage, &|s, _| {
        s.graph.send_bytes("/image", Bytes::new())
    });
    bad(&mut stage, &|s, _| s.image_at(0, 0));
    bad(&mut stage, &|s, at| s.image_at(at - 2 * PERIOD, 0));
    bad(&mut stage, &|s, at| s.raw(at, "mono8", (8, 6, 8), &good));
    let before = stage.graph.count("/slam/pose");
    stage.frame(BAD);
    stage.track(1);
    assert_eq!(stage.graph.count("/slam/pose"), before + 1);
    assert_eq!(stage.factory.log().resets, 0);
    assert_eq!(stage.factory.log().made.len(), 1);
}

#[test]
fn time_that_goes_back_begins_a_new_map_and_the_odometry_goes_on() {
    let mut stage = Stage::ready("");
    stage.track(10);
    let (_, before) = stage.chain();
    stage.next -= 60_000_000_000;
    stage.track(1);
    assert_eq!(stage.factory.log().resets, 1);
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
    let good = vec![0u8; 16 * 6 * 3];
    for _ in 0..20 {
        stage.next += PERIOD;
        stage.raw(stage.next, "rgb8", (16, 6, 48), &good);
        std::thread::sleep(Duration::from_millis(5));
    }
    wait("a second engine", || stage.factory.log().made.len() == 2);
    assert_eq!(stage.factory.log().made[1].0.width, 16);
}

#[test]
fn without_camera_info_the_node_waits_and_says_so() {
    let mut stage = Stage::new("");
    stage
        .graph
        .send("/tf_static", &tf("base_link", "camera", 0, &mount()));
    stage.image_at(START, 0);
    wait("the reason", || {
        let (level, message) = stage.diagnostics();
        level == 1 && message.contains("camera_info")
    });
    assert!(stage.factory.log().made.is_empty());
    stage.graph.send("/camera_info", &info(0.0));
    stage.image_at(START + PERIOD, 0);
    wait("the reason", || {
        stage.diagnostics().1.contains("not calibrated")
    });
    stage.graph.send("/camera_info", &info(10.0));
    stage.next = START + 2 * PERIOD;
    stage.track(2);
    let calibration = stage.factory.log().made[0].1.expect("a calibration");
    assert_eq!(calibration.intrinsics.fx, 10.0);
    assert_eq!(
        calibration.distortion,
        Distortion::PlumbBob([0.1, 0.0, 0.0, 0.0, 0.0])
    );
    // Once is a mistake, for good is another camera.
    stage.graph.send("/camera_info", &info(12.0));
    stage.track(1);
    assert_eq!(stage.factory.log().made.len(), 1);
    for _ in 0..10 {
        stage.graph.send("/camera_info", &info(12.0));
    }
    stage.track(1);
    let log = stage.factory.log();
    assert_eq!(log.made[1].1.expect("a calibration").intrinsics.fx, 12.0);
}

#[test]
fn without_the_camera_s_place_the_node_waits_and_names_the_frames() {
    let mut stage = Stage::new("use_calibration:=false");
    stage.image_at(START, 0);
    wait("the reason", || {
        let message = stage.diagnostics().1;
        message.contains("camera")
            && message.contains("base_link")
            && message.contains("base_frame")
    });
    assert!(stage.factory.log().made.is_empty());
    stage
        .graph
        .send("/tf_static", &tf("base_link", "camera", 0, &mount()));
    stage.next = START + PERIOD;
    stage.track(1);
}

/// Joint states are told of again and again, each time a little later than the image.
#[test]
fn a_camera_s_place_that_is_older_than_the_image_still_holds() {
    let mut stage = Stage::new("use_calibration:=false");
    stage
        .graph
        .send("/tf", &tf("base_link", "camera", START - PERIOD, &mount()));
    stage.track(1);
}

#[test]
fn told_to_the_node_takes_the_camera_as_the_robot() {
    let mut stage = Stage::new("use_calibration:=false base_frame:=");
    stage.track(3);
    let (_, odom_from_camera) = stage.transform("odom", "camera").expect("odom -> camera");
    // z up in the map: the camera looks along x.
    let ahead = odom_from_camera.rotation * nalgebra::Vector3::z();
    assert!(ahead.x > 0.99, "{ahead}");
    let odometry: Vec<Odometry> = stage.graph.sent("/slam/odometry");
    assert_eq!(odometry[0].child_frame_id, "camera");
}

#[test]
fn an_odometry_from_elsewhere_is_used_at_the_image_s_time() {
    let mut stage = Stage::ready("publish_odom_to_base_tf:=false");
    let wheels = |k: f64| Isometry3::translation(5.0 + k, 1.0, 0.0);
    // The image comes first, its odometry later.
    let at = stage.frame(0);
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
    stage.frame(0);
    let at = stage.frame(0);
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
    let message = |frame: &str| PoseWithCovarianceStamped {
        header: Header::new(Stamp { nanos: START }, frame),
        pose: PoseWithCovariance {
            pose: Pose::from(&given),
            ..Default::default()
        },
    };
    stage.graph.send("/initial_pose", &message("elsewhere"));
    stage.graph.send("/initial_pose", &message("map"));
    stage.track(1);
    let (map_from_odom, odom_from_base) = stage.chain();
    let moved = mount() * step() * mount().inverse();
    assert!(
        near(&odom_from_base, &(before * moved)),
        "odom -> base jumped"
    );
    assert!(near(&(map_from_odom * odom_from_base), &(given * moved)));
}

#[test]
fn a_slow_slam_gets_the_newest_image_and_the_rest_is_counted() {
    let pace = Duration::from_millis(60);
    let factory = FastFactory {
        pace,
        ..Default::default()
    };
    let stage = Stage::with("use_calibration:=false base_frame:=", factory);
    for k in 0..60 {
        stage.image_at(START + k * PERIOD, 0);
        std::thread::sleep(Duration::from_millis(5));
    }
    wait("the last image", || {
        let log = stage.factory.log();
        log.frames
            .last()
            .is_some_and(|s| s.nanos == START + 59 * PERIOD)
    });
    let frames = stage.factory.log().frames.clone();
    assert!(frames.len() < 60 && frames.is_sorted());
    wait("counts", || {
        stage.value("images dropped") == 60 - frames.len() as u64
    });
    wait("poses", || stage.graph.count("/slam/pose") == frames.len());
}

#[test]
fn an_engine_that_fails_or_panics_is_told_and_reset_starts_again() {
    let mut stage = Stage::ready("");
    for (first, why) in [(FAIL, "the device is gone"), (PANIC, "panicked")] {
        stage.track(3);
        stage.frame(first);
        wait("the failure", || {
            let (level, message) = stage.diagnostics();
            level == 2 && message.contains(why)
        });
        stage.image_at(stage.next, 0);
        stage.next += PERIOD;
        assert!(stage.trigger("reset").success);
    }
    stage.track(3);
    assert_eq!(stage.factory.log().made.len(), 3);
}

#[test]
fn services_do_what_they_say() {
    let mut stage = Stage::ready("");
    assert!(!stage.trigger("save_map").success, "without map_path");
    stage.track(12);
    assert!(stage.trigger("pause").success);
    stage.next += PERIOD;
    stage.image_at(stage.next, 0);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(stage.factory.log().frames.len(), 12);
    assert!(stage.trigger("resume").success);
    stage.next += PERIOD;
    stage.track(1);
    assert!(stage.trigger("set_mode_localization").success);
    stage.track(1);
    assert!(!stage.factory.log().growing);
    assert!(stage.trigger("set_mode_mapping").success);
    stage.track(1);
    assert!(stage.factory.log().growing);
    assert!(!stage.trigger("load_map").success, "without map_path");
    let (_, before) = stage.chain();
    assert!(stage.trigger("reset").success);
    stage.track(1);
    assert_eq!(stage.factory.log().resets, 1);
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
        "3 keyframes and 2 edges in",
        "slam.map",
        &format!("saved to {}", path.display()),
    ] {
        assert!(answer.message.contains(part), "{part}: {}", answer.message);
    }
    let log = stage.factory.log();
    assert_eq!(log.saved, [2]);
    assert_eq!(log.files.len(), 1);
    assert_eq!(log.files[0].0, path.join("slam.map"));
    assert!(
        log.files[0].1.is_some(),
        "the place in the map frame is not saved"
    );
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
    let message = PoseWithCovarianceStamped {
        header: Header::new(Stamp { nanos: START }, "map"),
        pose: PoseWithCovariance {
            pose: Pose::from(&given),
            ..Default::default()
        },
    };
    stage.graph.send("/initial_pose", &message);
    stage.track(1);
    assert!(stage.trigger("save_map").success);
    let placed = stage.factory.log().files[0].1.expect("a place");
    assert_eq!(stage.factory.log().files[0].0, path);
    assert!(
        stage.factory.log().saved.is_empty(),
        "a file of its own has no results beside it"
    );
    // A map of another place in between.
    assert!(stage.trigger("reset").success);
    stage.track(3);
    let (_, before) = stage.chain();
    let answer = stage.trigger("load_map");
    assert!(answer.success, "{}", answer.message);
    assert_eq!(stage.factory.log().loaded, [path]);
    stage.track(1);
    let (map_from_odom, odom_from_base) = stage.chain();
    assert!(near(&odom_from_base, &before), "odom -> base jumped");
    let camera = loaded_camera();
    let camera = Isometry3::from_parts(camera.translation.into(), camera.rotation);
    let expected = placed * camera * mount().inverse();
    assert!(near(&(map_from_odom * odom_from_base), &expected));
}

#[test]
fn a_map_that_cannot_be_loaded_changes_nothing_and_at_the_start_it_is_an_error() {
    let mut stage = Stage::ready("map_path:=/tmp/damaged.map");
    stage.track(3);
    let before = stage.chain();
    let answer = stage.trigger("load_map");
    assert_eq!(
        (answer.success, answer.message.as_str()),
        (false, "the map is damaged")
    );
    stage.track(1);
    let moved = mount() * step() * mount().inverse();
    let after = stage.chain();
    assert!(near(&after.1, &(before.1 * moved)) && near(&after.0, &before.0));

    let mut stage = Stage::ready("map_path:=/tmp/damaged.map load_map_on_start:=true");
    stage.image_at(stage.next, 0);
    stage.next += PERIOD;
    wait("the error", || {
        let (level, message) = stage.diagnostics();
        level == 2 && message.contains("the map is damaged")
    });

    let mut stage = Stage::ready("map_path:=/tmp/good.map load_map_on_start:=true");
    stage.track(1);
    let loaded = stage.factory.log().loaded.clone();
    assert_eq!(loaded, [std::path::PathBuf::from("/tmp/good.map")]);
}

#[test]
fn the_simulated_clock_going_back_begins_a_new_map() {
    let mut stage = Stage::ready("use_sim_time:=true");
    let clock = |nanos| Clock {
        clock: Stamp { nanos }.into(),
    };
    stage.graph.send("/clock", &clock(START));
    stage.graph.send("/clock", &clock(START - 5_000_000_000));
    wait("that there is nothing yet to begin anew", || {
        let (level, message) = stage.diagnostics();
        level == 1 && message.contains("the next image")
    });
    stage.graph.send("/clock", &clock(START));
    stage.track(3);
    stage.graph.send("/clock", &clock(START + 1_000_000_000));
    assert_eq!(stage.factory.log().resets, 0);
    stage.graph.send("/clock", &clock(START - 60_000_000_000));
    wait("a reset", || stage.factory.log().resets == 1);
    stage.next -= 60_000_000_000;
    stage.track(1);
    wait("diagnostics of the simulated time", || {
        let all: Vec<DiagnosticArray> = stage.graph.sent("/diagnostics");
        all.last()
            .is_some_and(|d| Stamp::from(&d.header.stamp).nanos == START - 60_000_000_000)
    });
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
        ("weights:=missing", "no such weights"),
    ] {
        let args = RosArgs::parse(&["-p".to_owned(), line.to_owned()]).unwrap();
        let node = Node::start(
            Arc::new(Memory::new()),
            Arc::new(FastFactory::default()),
            &args,
        );
        let error = node.err().expect(line).to_string();
        assert!(error.contains(part), "{line}: {error}");
    }
}
