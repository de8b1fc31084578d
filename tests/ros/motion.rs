//! The topics `odom` and `imu`: wheel odometry and a gyro.

use crate::support::stage::{PERIOD, Stage, mount, tf};
use crate::support::wait;
use mast3r_slam::map::saved;
use mast3r_slam::map::store::Reader;
use mast3r_slam::time::Stamp;
use mast3r_slam::wire::messages::Header;
use mast3r_slam::wire::messages::diagnostic::DiagnosticArray;
use mast3r_slam::wire::messages::geometry::{
    Pose, PoseWithCovarianceStamped, TfMessage, Vector3 as Rate,
};
use mast3r_slam::wire::messages::nav::Odometry;
use mast3r_slam::wire::messages::sensor::Imu;
use nalgebra::{Isometry3, Translation3, UnitQuaternion, Vector3};
use std::f64::consts::FRAC_PI_2;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

const SECOND: i64 = 1_000_000_000;

/// Where wheel odometry starts.
fn origin() -> Isometry3<f64> {
    Isometry3::translation(5.0, -3.0, 0.0)
}

/// The message of wheels whose base is at this pose.
fn message(nanos: i64, child: &str, odom_from_base: &Isometry3<f64>) -> Odometry {
    let mut message = Odometry {
        header: Header::new(Stamp { nanos }, "odom"),
        child_frame_id: child.into(),
        ..Default::default()
    };
    message.pose.pose = Pose::from(odom_from_base);
    message
}

/// The pose of the base at the walk's next frame, by wheels without error.
fn base(stage: &Stage) -> Isometry3<f64> {
    origin() * stage.moved(0, stage.shown)
}

/// Sends the pose of the wheels for the walk's next frame.
fn wheels(stage: &Stage) {
    stage
        .graph
        .send("/odom", &message(stage.next, "base_link", &base(stage)));
}

fn camera_from_imu() -> UnitQuaternion<f64> {
    UnitQuaternion::from_scaled_axis(Vector3::new(0.3, -1.2, 0.5))
}

/// Tells the node where the IMU is: at `camera_from_imu`.
fn mount_imu(stage: &Stage, camera_from_imu: UnitQuaternion<f64>) {
    let place = Isometry3::from_parts(Translation3::new(0.0, 0.03, 0.0), camera_from_imu);
    stage
        .graph
        .send("/tf_static", &tf("camera", "imu", 0, &place));
}

fn rates(stage: &Stage, nanos: i64, rate: Vector3<f64>) {
    let message = Imu {
        header: Header::new(Stamp { nanos }, "imu"),
        angular_velocity: Rate {
            x: rate.x,
            y: rate.y,
            z: rate.z,
        },
        ..Default::default()
    };
    stage.graph.send("/imu", &message);
}

/// Sends the rates between the frame shown last and the walk's next one.
fn gyro(stage: &Stage) {
    let rotation = |k: usize| stage.room.poses[k].rotation;
    let turn = match stage.shown {
        0 => UnitQuaternion::identity(),
        k => rotation(k - 1).inverse() * rotation(k),
    };
    let rate = camera_from_imu().inverse() * turn.scaled_axis() / (PERIOD as f64 * 1e-9);
    for third in 1..=3 {
        rates(stage, stage.next - PERIOD + third * PERIOD / 3, rate);
    }
}

/// Frames of the walk, each with what `before` sends.
fn drive(stage: &mut Stage, count: usize, before: impl Fn(&Stage)) {
    for _ in 0..count {
        before(stage);
        stage.track(1);
    }
}

/// Shows the last frame again, with what `before` sends, until the diagnostics say this at the level of a warning.
fn says(stage: &mut Stage, part: &str, before: impl Fn(&Stage)) {
    for _ in 0..200 {
        stage.shown -= 1;
        before(stage);
        stage.frame();
        let (level, message) = stage.diagnostics();
        if message.contains(part) {
            assert_eq!(level, 1, "{message}");
            return;
        }
        sleep(Duration::from_millis(50));
    }
    panic!("expected {part:?}, found {:?}", stage.diagnostics());
}

/// Shows the last frame again, with what `before` sends, until all is well.
fn recovers(stage: &mut Stage, before: impl Fn(&Stage)) {
    for _ in 0..200 {
        stage.shown -= 1;
        before(stage);
        stage.frame();
        if stage.diagnostics() == (0, "tracking".into()) {
            return;
        }
        sleep(Duration::from_millis(50));
    }
    panic!("expected tracking, found {:?}", stage.diagnostics());
}

fn localization(stage: &Stage, key: &str) -> String {
    let all: Vec<DiagnosticArray> = stage.graph.sent("/slam/localization_status");
    let values = all.last().map(|m| m.status[0].values.clone());
    let found = values
        .unwrap_or_default()
        .into_iter()
        .find(|v| v.key == key);
    found.map(|v| v.value).unwrap_or_default()
}

/// Every `map -> odom` that was broadcast.
fn corrections(stage: &Stage) -> Vec<Isometry3<f64>> {
    let all: Vec<TfMessage> = stage.graph.sent("/tf");
    let all = all.into_iter().flat_map(|m| m.transforms);
    let own = all.filter(|t| t.header.frame_id == "map" && t.child_frame_id == "odom");
    own.map(|t| t.transform.isometry().expect("a transform"))
        .collect()
}

/// Poses of the robot in the map, with the traces of their positions' covariances.
fn poses(stage: &Stage) -> Vec<(i64, Isometry3<f64>, f64)> {
    let all: Vec<PoseWithCovarianceStamped> = stage.graph.sent("/slam/pose");
    let read = |m: PoseWithCovarianceStamped| {
        let trace = (0..3).map(|k| m.pose.covariance[k][k]).sum();
        let pose = m.pose.pose.isometry().expect("a pose");
        (Stamp::from(&m.header.stamp).nanos, pose, trace)
    };
    all.into_iter().map(read).collect()
}

fn gap(a: &Isometry3<f64>, b: &Isometry3<f64>) -> f64 {
    (a.inverse() * b).translation.vector.norm()
}

#[test]
fn wheels_and_gyro_predict_the_camera_and_give_the_map_its_scale() {
    let mut stage = Stage::ready("use_wheel_odometry:=true use_gyro:=true");
    mount_imu(&stage, camera_from_imu());
    drive(&mut stage, 30, |stage| {
        wheels(stage);
        gyro(stage);
    });
    wait("predicted frames", || {
        stage.value("frames predicted by wheels or gyro") >= 8
    });
    wait("motions between keyframes", || {
        stage.value("motions by wheels in the map") >= 2
    });
    assert_eq!(stage.value("jumps of wheel odometry"), 0);
    assert_eq!(stage.diagnostics(), (0, "tracking".into()));
    wait("the scale by wheels", || {
        localization(&stage, "scale_source") == "wheels"
    });
    let sigma: f64 = localization(&stage, "scale_sigma")
        .parse()
        .expect("a number");
    assert!((0.02..0.05).contains(&sigma), "{sigma}");

    // Without the parameters, the topics are ignored.
    let mut stage = Stage::ready("");
    assert!(!stage.graph.subscribed("/odom") && !stage.graph.subscribed("/imu"));
    stage.track(2);
    wait("a status", || localization(&stage, "state") == "tracking");
    assert_eq!(localization(&stage, "scale_source"), "network");
    assert_eq!(localization(&stage, "scale_sigma"), "unknown");
}

/// Submaps of the map in this file.
fn submaps(file: &Path) -> Vec<u32> {
    let reader = Reader::open(file).expect("the map");
    let mut all: Vec<u32> = reader.keyframes().iter().map(|k| k.submap).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[test]
fn twenty_black_frames_are_bridged_in_the_same_map_and_no_tick_is_missed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("room.map");
    let mut stage = Stage::ready(&format!(
        "use_wheel_odometry:=true transform_publish_rate:=100 slam.reloc.max_tries:=3 load_map_on_start:=true \
         map_path:={}",
        path.display()
    ));
    drive(&mut stage, 20, wheels);
    let before = poses(&stage);
    let (_, lost_at, _) = *before.last().expect("poses");
    let last = stage.shown - 1;
    let ticks = corrections(&stage).len();
    for _ in 0..20 {
        wheels(&stage);
        stage.shown += 1;
        let posed = stage.graph.count("/slam/pose");
        stage.black();
        wait("a bridged pose", || stage.graph.count("/slam/pose") > posed);
    }
    let during = poses(&stage).split_off(before.len());
    assert_eq!(during.len(), 20);
    for (k, (stamp, pose, trace)) in during.iter().enumerate() {
        assert_eq!(*stamp, stage.next - (20 - k as i64) * PERIOD);
        let expected = lost_at * stage.moved(last, last + 1 + k);
        // The wheels are exact here; what is left is the correction since the last pose.
        let error = gap(pose, &expected);
        assert!(error < 0.03, "{k}: {error} m");
        let before = match k {
            0 => 0.0,
            k => during[k - 1].2,
        };
        assert!(*trace > before, "{k}: {trace} after {before}");
    }
    // Our own odometry went on at every stamp.
    let (at, _) = stage.transform("odom", "base_link").expect("odom -> base");
    assert_eq!(at, stage.next - PERIOD);
    wait("the state", || {
        stage.diagnostics() == (1, "lost, bridged by wheel odometry".into())
    });
    wait("the status", || localization(&stage, "state") == "bridging");
    assert_eq!(stage.value("frames bridged by wheels"), 20);
    let age: f64 = localization(&stage, "age of the last fix, s")
        .parse()
        .expect("a number");
    wait("an older fix", || {
        let now: f64 = localization(&stage, "age of the last fix, s")
            .parse()
            .expect("a number");
        now > age
    });
    // The timer went on, and goes on, with the correction that was known last.
    wait("a second of ticks", || {
        corrections(&stage).len() > ticks + 100
    });
    let all = corrections(&stage);
    let held = all.last().expect("a correction");
    assert!(all[all.len() - 100..].iter().all(|t| gap(t, held) < 1e-9));

    // The camera sees a place that it has never seen.
    let start = stage.shown;
    while stage.diagnostics() != (0, "tracking".into()) {
        assert!(stage.shown < start + 30, "{:?}", stage.diagnostics());
        wheels(&stage);
        stage.frame();
        sleep(Duration::from_millis(100));
    }
    let (stamp, found, _) = *poses(&stage).last().expect("a pose");
    let shown = stage.stamps.iter().rfind(|(at, _)| *at == stamp);
    let index = shown.expect("a frame that was shown").1;
    let expected = lost_at * stage.moved(last, index);
    let error = gap(&found, &expected);
    assert!(error < 0.03, "{error} m");
    assert_eq!(stage.value("maps started"), 1);
    stage.node = None;
    assert_eq!(submaps(&saved::file_of(&path)), [0]);
}

#[test]
fn beside_another_odometry_a_bridged_pose_is_that_odometry_s() {
    let mut stage = Stage::ready(
        "use_wheel_odometry:=true publish_odom_to_base_tf:=false transform_publish_rate:=100",
    );
    let both = |stage: &Stage| {
        wheels(stage);
        let transform = tf("odom", "base_link", stage.next, &base(stage));
        stage.graph.send("/tf", &transform);
    };
    drive(&mut stage, 8, both);
    let tracked = poses(&stage).len();
    for _ in 0..5 {
        both(&stage);
        let expected = base(&stage);
        stage.shown += 1;
        let posed = stage.graph.count("/slam/pose");
        stage.black();
        wait("a bridged pose", || stage.graph.count("/slam/pose") > posed);
        let (_, pose, _) = *poses(&stage).last().expect("a pose");
        // The newest tick may be from before the last tracked frame.
        wait("the correction of the pose", || {
            let held = *corrections(&stage).last().expect("a correction");
            gap(&pose, &(held * expected)) < 1e-6
        });
    }
    assert_eq!(poses(&stage).len(), tracked + 5);
    assert!(stage.transform("odom", "base_link").is_none(), "not ours");
}

#[test]
fn wheels_that_cannot_be_used_are_reported_and_tracking_goes_on() {
    let mut stage = Stage::ready("use_wheel_odometry:=true");
    stage.track(2);
    says(
        &mut stage,
        "no wheel odometry: no message received; check the topic (remap odom)",
        |_| {},
    );
    // A base that no transform places.
    let foot = |stage: &Stage| {
        let odometry = message(stage.next, "foot", &base(stage));
        stage.graph.send("/odom", &odometry);
    };
    says(&mut stage, "camera and foot are not connected", foot);
    let place = Isometry3::translation(0.0, 0.0, 0.1);
    stage
        .graph
        .send("/tf_static", &tf("foot", "base_link", 0, &place));
    recovers(&mut stage, foot);
    // Another source, once this one is silent.
    says(&mut stage, "the last message on odom arrived", |_| {});
    recovers(&mut stage, wheels);
    // Stamps of another clock.
    for (ahead, part) in [(-3, "s before the image"), (10, "s after the image")] {
        let strange = |stage: &Stage| {
            let nanos = stage.next + ahead * SECOND;
            let odometry = message(nanos, "base_link", &base(stage));
            stage.graph.send("/odom", &odometry);
        };
        says(&mut stage, part, strange);
        recovers(&mut stage, wheels);
    }
    // Each message twice.
    says(&mut stage, "expected an odometry stamp after", |stage| {
        wheels(stage);
        wheels(stage);
    });
    recovers(&mut stage, wheels);
    // Invalid poses.
    let broken = |stage: &Stage| {
        let mut odometry = message(stage.next, "base_link", &base(stage));
        odometry.pose.pose.orientation.w = f64::NAN;
        stage.graph.send("/odom", &odometry);
    };
    says(&mut stage, "expected a pose of finite numbers", broken);
    let noise = bytes::Bytes::from_static(&[0, 1, 0, 0, 255, 255, 255, 255]);
    stage.graph.send_bytes("/odom", noise);
    recovers(&mut stage, wheels);
    // A jump is counted and nothing is measured across it.
    assert_eq!(stage.value("jumps of wheel odometry"), 0);
    let moved = Isometry3::translation(4.0, 0.0, 0.0);
    let elsewhere = |stage: &Stage| {
        let odometry = message(stage.next, "base_link", &(moved * base(stage)));
        stage.graph.send("/odom", &odometry);
    };
    drive(&mut stage, 3, elsewhere);
    wait("a jump", || stage.value("jumps of wheel odometry") == 1);
    let predicted = stage.value("frames predicted by wheels or gyro");
    drive(&mut stage, 3, elsewhere);
    wait("predictions after it", || {
        stage.value("frames predicted by wheels or gyro") > predicted
    });
    // A flood.
    for k in 0..5000 {
        let odometry = message(stage.next + k, "base_link", &base(&stage));
        stage.graph.send("/odom", &odometry);
    }
    stage.next += PERIOD;
    drive(&mut stage, 2, elsewhere);
    assert_eq!(stage.value("frames not tracked"), 0);
    assert_eq!(stage.value("maps started"), 1);
}

#[test]
fn a_mount_that_tf_has_wrong_is_refused_with_the_reason() {
    let stage = Stage::new("use_calib:=false use_wheel_odometry:=true");
    let turn = UnitQuaternion::from_axis_angle(&Vector3::z_axis(), FRAC_PI_2);
    let wrong = Isometry3::from_parts(mount().translation, turn * mount().rotation);
    stage
        .graph
        .send("/tf_static", &tf("base_link", "camera", 0, &wrong));
    let mut stage = stage;
    drive(&mut stage, 70, wheels);
    wait("the refusal", || {
        let (level, message) = stage.diagnostics();
        level == 1 && message.contains("wheel odometry is not used: its mount is wrong")
    });
    assert_eq!(stage.value("motions by wheels in the map"), 0);
    assert_eq!(stage.value("frames not tracked"), 0);
}

#[test]
fn a_gyro_that_is_mounted_otherwise_than_tf_says_is_refused_and_one_that_stops_is_a_warning() {
    let mut stage = Stage::ready("use_gyro:=true");
    let turn = UnitQuaternion::from_axis_angle(&Vector3::x_axis(), FRAC_PI_2);
    mount_imu(&stage, turn * camera_from_imu());
    let refused = |stage: &Stage| {
        let (level, message) = stage.diagnostics();
        level == 1 && message.contains("the gyro is not used: its mount is wrong")
    };
    for _ in 0..70 {
        gyro(&stage);
        stage.track(1);
    }
    wait("the refusal", || refused(&stage));

    let mut stage = Stage::ready("use_gyro:=true");
    stage.track(2);
    says(
        &mut stage,
        "no gyro: imu and camera are not connected",
        |stage| {
            rates(stage, stage.next, Vector3::zeros());
        },
    );
    mount_imu(&stage, camera_from_imu());
    let still = |stage: &Stage| rates(stage, stage.next, Vector3::zeros());
    recovers(&mut stage, still);
    says(
        &mut stage,
        "no gyro: the last message on imu arrived",
        |_| {},
    );
    // Degrees instead of radians, and an IMU without a gyro.
    says(&mut stage, "check its source and unit (rad/s)", |stage| {
        rates(stage, stage.next, Vector3::new(0.0, 90.0, 0.0));
    });
    says(&mut stage, "expected an IMU with a gyro", |stage| {
        let mut message = Imu {
            header: Header::new(Stamp { nanos: stage.next }, "imu"),
            ..Default::default()
        };
        message.angular_velocity_covariance[0] = -1.0;
        stage.graph.send("/imu", &message);
    });
    recovers(&mut stage, still);
    assert_eq!(stage.value("frames not tracked"), 0);
}
