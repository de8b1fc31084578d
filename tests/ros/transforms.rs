//! `map -> odom` from its timer, and transforms that stay in a plane.

use crate::support::stage::{PERIOD, START, Stage, near, tf};
use crate::support::wait;
use mast3r_slam::time::Stamp;
use mast3r_slam::wire::messages::geometry::{PoseWithCovarianceStamped, TfMessage};
use nalgebra::{Isometry3, Vector3};

/// Every `map -> odom` that was broadcast, with its stamp.
fn corrections(stage: &Stage) -> Vec<(i64, Isometry3<f64>)> {
    let all: Vec<TfMessage> = stage.graph.sent("/tf");
    let all = all.into_iter().flat_map(|m| m.transforms);
    let own = all.filter(|t| t.header.frame_id == "map" && t.child_frame_id == "odom");
    let of = |t: mast3r_slam::wire::messages::geometry::TransformStamped| {
        let pose = t.transform.isometry().expect("a transform");
        (Stamp::from(&t.header.stamp).nanos, pose)
    };
    own.map(of).collect()
}

/// Wheels that stand at this pose for the first minute.
fn wheels(stage: &Stage, pose: &Isometry3<f64>) {
    for at in [START - PERIOD, START + 5_000_000_000] {
        stage.graph.send("/tf", &tf("odom", "base_link", at, pose));
    }
}

#[test]
fn beside_another_odometry_the_correction_is_never_stale_and_lost_frames_miss_no_tick() {
    let mut stage = Stage::ready(
        "publish_odom_to_base_tf:=false transform_publish_rate:=100 transform_tolerance:=0.2",
    );
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert!(corrections(&stage).is_empty(), "nothing is known yet");
    wheels(&stage, &Isometry3::translation(5.0, 1.0, 0.0));
    stage.track(4);
    // The chain begins at the first image, though the timer stamps ahead.
    let first = corrections(&stage)[0].0;
    assert_eq!(first, START);
    wait("the timer", || corrections(&stage).len() > 5);
    for _ in 0..20 {
        stage.black();
    }
    wait("lost", || stage.diagnostics() == (1, "lost".into()));
    let before = corrections(&stage).len();
    let kept = corrections(&stage)[before - 1].1;
    wait("a second of ticks while lost", || {
        corrections(&stage).len() > before + 100
    });
    let all = corrections(&stage);
    assert!(all.is_sorted_by(|a, b| a.0 < b.0), "time went back");
    assert!(all[before..].iter().all(|(_, t)| near(t, &kept)));
    // Each is ahead of the newest image by the tolerance.
    let newest = stage.next - PERIOD;
    assert!(all[all.len() - 1].0 > newest + 200_000_000);
    stage.find();
}

#[test]
fn our_own_odometry_stops_while_lost_and_so_does_the_correction() {
    let mut stage = Stage::ready("transform_publish_rate:=100");
    stage.track(4);
    wait("the timer", || corrections(&stage).len() > 3);
    stage.black();
    wait("lost", || stage.diagnostics() == (1, "lost".into()));
    let reports = stage.graph.count("/diagnostics");
    let before = corrections(&stage).len();
    wait("two seconds", || {
        stage.graph.count("/diagnostics") >= reports + 2
    });
    assert_eq!(corrections(&stage).len(), before);
    stage.find();
    wait("the timer", || corrections(&stage).len() > before + 3);
}

#[test]
fn the_correction_is_not_sent_where_odom_has_another_parent() {
    let mut stage = Stage::ready("publish_odom_to_base_tf:=false transform_publish_rate:=100");
    wheels(&stage, &Isometry3::identity());
    stage
        .graph
        .send("/tf", &tf("world", "odom", START, &Isometry3::identity()));
    stage.track(2);
    let reports = stage.graph.count("/diagnostics");
    wait("two seconds", || {
        stage.graph.count("/diagnostics") >= reports + 2
    });
    assert!(corrections(&stage).len() <= 1, "two parents");
}

#[test]
fn in_two_d_mode_the_robot_stays_on_the_floor() {
    let mut stage = Stage::ready("two_d_mode:=true");
    stage.track(12);
    let (map_from_odom, odom_from_base) = stage.chain();
    for t in [&map_from_odom, &odom_from_base] {
        let (roll, pitch, _) = t.rotation.euler_angles();
        let height = t.translation.z;
        assert!(
            roll.abs() < 1e-9 && pitch.abs() < 1e-9 && height.abs() < 1e-9,
            "{t}"
        );
    }
    let poses: Vec<PoseWithCovarianceStamped> = stage.graph.sent("/slam/pose");
    let pose = poses[11].pose.pose.isometry().expect("a pose");
    assert!(near(&(map_from_odom * odom_from_base), &pose));
    let expected = stage.moved(0, 11);
    let gap: Vector3<f64> = pose.translation.vector - expected.translation.vector;
    assert!(gap.xy().norm() < 0.1, "{gap}");
}
