//! What the node makes of the map and of each frame for those who listen: clouds, depth, covariances.

mod ros_support;

use mast3r_slam::ros::messages::geometry::PoseWithCovarianceStamped;
use mast3r_slam::ros::messages::nav::Odometry;
use mast3r_slam::ros::messages::sensor::{CameraInfo, Image, PointCloud2};
use mast3r_slam::ros::messages::{Header, Message};
use mast3r_slam::time::Stamp;
use ros_support::stage::{PERIOD, Stage, info, mount};
use ros_support::{CLOSE_LOOP, LOST, covariance, wait};
use std::collections::BTreeMap;
use std::time::Duration;

#[test]
fn clouds_are_made_while_somebody_listens_and_again_after_a_loop() {
    let mut stage = Stage::ready("map_voxel_size:=0.0 map_publish_period:=0.1");
    stage.track(25);
    std::thread::sleep(Duration::from_millis(300));
    for topic in [
        "/slam/points",
        "/slam/map_points",
        "/slam/depth",
        "/slam/path",
        "/slam/graph",
    ] {
        assert_eq!(stage.graph.count(topic), 0, "{topic} without subscribers");
    }
    stage.graph.listen(1);
    // Points by revision, which is the seventh field of each.
    let revisions = |stage: &Stage, topic: &str| -> BTreeMap<u32, usize> {
        let all: Vec<PointCloud2> = stage.graph.sent(topic);
        let mut points = BTreeMap::new();
        for chunk in all.iter().filter(|c| c.width > 0) {
            let revision = u32::from_le_bytes(chunk.data[24..28].try_into().unwrap());
            *points.entry(revision).or_default() += chunk.width as usize;
        }
        points
    };
    let whole = |stage: &Stage, topic: &str, points: usize| {
        revisions(stage, topic).values().any(|n| *n == points)
    };
    let per_keyframe = 64 * 48;
    wait("the newest keyframe", || {
        whole(&stage, "/slam/points", per_keyframe)
    });
    wait("the map", || {
        whole(&stage, "/slam/map_points", 3 * per_keyframe)
    });
    let chunks: Vec<PointCloud2> = stage.graph.sent("/slam/map_points");
    assert!(
        chunks
            .iter()
            .all(|c| c.data.len() <= 65_536 && c.header.frame_id == "map")
    );
    // The wall is 2 m ahead of the first keyframe's camera, which sits 0.2 m ahead of the map's origin.
    let x = f32::from_le_bytes(chunks[0].data[..4].try_into().unwrap());
    assert!((x - 2.2).abs() < 1e-4, "{x}");
    let before = revisions(&stage, "/slam/map_points")
        .into_keys()
        .max()
        .unwrap();
    stage.frame(CLOSE_LOOP);
    // What comes after the one that was perhaps under way is of the new map.
    wait("the map after the loop", || {
        let all = revisions(&stage, "/slam/map_points");
        all.range(before + 2..).any(|(_, n)| *n == 3 * per_keyframe)
    });
    let all: Vec<PointCloud2> = stage.graph.sent("/slam/map_points");
    let revision = |c: &&PointCloud2| u32::from_le_bytes(c.data[24..28].try_into().unwrap());
    let moved = all
        .iter()
        .find(|c| revision(c) > before + 1)
        .expect("a chunk");
    assert_ne!(moved.data[..12], chunks[0].data[..12]);
}

#[test]
fn every_tracked_frame_has_its_depth_while_somebody_listens() {
    let nanos = |h: &Header| Stamp::from(&h.stamp).nanos;
    let mut stage = Stage::ready("");
    stage.track(3);
    assert_eq!(stage.graph.count("/slam/depth"), 0, "without subscribers");
    stage.graph.listen(1);
    // From when on the node knows of the subscriber is its affair.
    let mut last = 0;
    wait("a depth", || {
        last = stage.track(1)[0];
        stage.graph.count("/slam/depth") > 0
    });
    for _ in 0..5 {
        let before = stage.graph.count("/slam/depth");
        last = stage.track(1)[0];
        wait("the frame's depth", || {
            stage.graph.count("/slam/depth") > before
        });
        let bytes = stage.graph.last_bytes("/slam/depth").unwrap();
        let depth = Image::decode(&bytes).unwrap();
        assert_eq!(nanos(&depth.header), last);
        assert_eq!(
            (depth.encoding.as_str(), depth.width, depth.height),
            ("32FC1", 64, 48)
        );
        assert_eq!(
            (depth.step, depth.header.frame_id.as_str()),
            (256, "camera")
        );
        let at = |k: usize| f32::from_le_bytes(depth.data[4 * k..4 * k + 4].try_into().unwrap());
        assert_eq!((at(0), depth.data.len()), (2.0, 64 * 48 * 4));
        assert!(at(64 * 48 - 1).is_nan());
    }
    // A lost frame has none.
    let before = stage.graph.count("/slam/depth");
    stage.frame(LOST);
    stage.track(1);
    wait("the frame after", || {
        stage.graph.count("/slam/depth") == before + 1
    });
    assert_eq!(
        stage.graph.count("/slam/camera_info"),
        0,
        "nobody knows the camera"
    );
    assert!(last > 0);
}

#[test]
fn a_calibrated_depth_has_its_camera_info() {
    let mut stage = Stage::new("base_frame:=");
    stage.graph.listen(1);
    stage.graph.send("/camera_info", &info(5.0));
    wait("a camera_info", || {
        stage.track(1);
        stage.graph.count("/slam/camera_info") > 0
    });
    let infos: Vec<CameraInfo> = stage.graph.sent("/slam/camera_info");
    let info = infos.last().unwrap();
    assert_eq!((info.width, info.height, info.k[0]), (64, 48, 50.0));
    assert_eq!((info.k[4], info.k[2], info.k[5]), (51.0, 31.5, 23.5));
    assert_eq!((info.p[0], info.p[6], info.p[10]), (50.0, 23.5, 1.0));
    assert!(info.d.iter().all(|d| *d == 0.0));
}

#[test]
fn covariances_are_the_solver_s_about_each_message_s_axes_and_grow_while_lost() {
    let mut stage = Stage::ready("publish_when_lost:=true");
    stage.track(4);
    let poses: Vec<PoseWithCovarianceStamped> = stage.graph.sent("/slam/pose");
    let odometry: Vec<Odometry> = stage.graph.sent("/slam/odometry");
    let of = |c: &[[f64; 6]; 6]| nalgebra::SMatrix::<f64, 6, 6>::from_fn(|r, k| c[r][k]);
    let (map, odom) = (poses.last().unwrap(), odometry.last().unwrap());
    let found = of(&map.pose.covariance);
    // The camera's z, the least known, is the map's x; its y the map's -z, its x the map's -y. Of the base,
    // which is 0.54 m from the camera, the position is less known.
    let camera = covariance();
    let lever = mount().inverse().translation.vector;
    let chain = stage.chain();
    let map_from_camera = (chain.0 * chain.1 * mount()).rotation;
    let orientation = |k: usize| {
        let axis = map_from_camera.inverse() * nalgebra::Vector3::ith(k, 1.0);
        axis.component_mul(&axis).dot(&nalgebra::Vector3::new(
            camera[(3, 3)],
            camera[(4, 4)],
            camera[(5, 5)],
        ))
    };
    for k in 0..3 {
        let (value, expected) = (found[(3 + k, 3 + k)], orientation(k));
        assert!((value - expected).abs() < 3e-7, "{k}: {value}, {expected}");
    }
    let trace = |c: &nalgebra::SMatrix<f64, 6, 6>| c.fixed_view::<3, 3>(0, 0).trace();
    let most =
        trace(&camera) + lever.norm_squared() * (camera[(3, 3)] + camera[(4, 4)] + camera[(5, 5)]);
    assert!(trace(&found) > trace(&camera) && trace(&found) < most + 1e-5);
    // map and odom lie on each other so far.
    assert!((found - of(&odom.pose.covariance)).norm() < 1e-12);
    for c in [
        &map.pose.covariance,
        &odom.pose.covariance,
        &odom.twist.covariance,
    ] {
        let c = of(c);
        assert_eq!(c, c.transpose());
        assert!(c.symmetric_eigenvalues().min() > 0.0);
    }
    // A velocity is a difference of two positions over a thirtieth of a second.
    let seconds = PERIOD as f64 * 1e-9;
    let ratio = trace(&of(&odom.twist.covariance)) / trace(&found);
    assert!((ratio * seconds * seconds - 2.0).abs() < 1e-9, "{ratio}");
    for _ in 0..2 {
        let before = stage.graph.count("/slam/odometry");
        stage.frame(LOST);
        wait("an odometry", || {
            stage.graph.count("/slam/odometry") > before
        });
    }
    let odometry: Vec<Odometry> = stage.graph.sent("/slam/odometry");
    let traces: Vec<f64> = odometry[3..]
        .iter()
        .map(|o| trace(&of(&o.pose.covariance)))
        .collect();
    assert_eq!(traces.len(), 3);
    assert!(
        traces.is_sorted() && traces[0] < traces[1] && traces[1] < traces[2],
        "{traces:?}"
    );
}
