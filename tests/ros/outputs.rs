//! What the node makes of the map and of each frame for those who listen: clouds, depth, covariances.

use crate::support::stage::{PERIOD, START, Stage, info};
use crate::support::wait;
use mast3r_slam::time::Stamp;
use mast3r_slam::wire::messages::diagnostic::DiagnosticArray;
use mast3r_slam::wire::messages::geometry::PoseWithCovarianceStamped;
use mast3r_slam::wire::messages::nav::{OccupancyGrid, Odometry};
use mast3r_slam::wire::messages::sensor::{CameraInfo, Image, PointCloud2};
use mast3r_slam::wire::messages::{Header, Message};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

#[test]
fn clouds_are_made_only_for_subscribers() {
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
    let per_keyframe = 128 * 96;
    wait("the newest keyframe", || {
        whole(&stage, "/slam/points", per_keyframe)
    });
    // The diagnostics may be a second old.
    wait("the map", || {
        let keyframes = stage.value("keyframes") as usize;
        keyframes > 0 && whole(&stage, "/slam/map_points", keyframes * per_keyframe)
    });
    let chunks: Vec<PointCloud2> = stage.graph.sent("/slam/map_points");
    assert!(
        chunks
            .iter()
            .all(|c| c.data.len() <= 65_536 && c.header.frame_id == "map")
    );
}

#[test]
fn clouds_and_depth_hold_only_what_the_configuration_calls_confident() {
    // The room's confidence is 3 everywhere.
    let mut stage = Stage::ready("map_publish_period:=0.1 slam.output.C_conf:=3.5");
    stage.graph.listen(1);
    stage.track(3);
    wait("a cloud", || stage.graph.count("/slam/points") > 0);
    let all: Vec<PointCloud2> = stage.graph.sent("/slam/points");
    assert!(all.iter().all(|c| c.width == 0));
    wait("a depth", || {
        stage.track(1);
        stage.graph.count("/slam/depth") > 0
    });
    let bytes = stage.graph.last_bytes("/slam/depth").unwrap();
    let depth = Image::decode(&bytes).unwrap();
    let (values, _) = depth.data.as_chunks::<4>();
    assert!(values.iter().all(|v| f32::from_le_bytes(*v).is_nan()));
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
            ("32FC1", 128, 96)
        );
        assert_eq!(
            (depth.step, depth.header.frame_id.as_str()),
            (512, "camera")
        );
        let at = |k: usize| f32::from_le_bytes(depth.data[4 * k..4 * k + 4].try_into().unwrap());
        assert_eq!(depth.data.len(), 128 * 96 * 4);
        assert!((0.5..12.0).contains(&at(0)), "{}", at(0));
    }
    // A lost frame has none.
    let before = stage.graph.count("/slam/depth");
    stage.black();
    stage.find();
    wait("the frame after", || {
        stage.graph.count("/slam/depth") > before
    });
    assert_eq!(
        stage.graph.count("/slam/camera_info"),
        0,
        "the camera is not known"
    );
    assert!(last > 0);
}

#[test]
fn tracked_frames_are_clouds_in_the_camera_s_frame_at_a_limited_rate() {
    let mut stage = Stage::ready("cloud_rate:=10.0");
    stage.track(3);
    assert_eq!(stage.graph.count("/slam/cloud"), 0, "without subscribers");
    stage.graph.listen(1);
    let nanos = |cloud: &PointCloud2| Stamp::from(&cloud.header.stamp).nanos;
    let mut tracked = Vec::new();
    wait("three clouds", || {
        let depths = stage.graph.count("/slam/depth");
        tracked.extend(stage.track(1));
        // The cloud of a frame follows its depth.
        stage.graph.count("/slam/depth") > depths && stage.graph.count("/slam/cloud") >= 3
    });
    let clouds: Vec<PointCloud2> = stage.graph.sent("/slam/cloud");
    for cloud in &clouds {
        assert_eq!(cloud.header.frame_id, "camera");
        assert!(tracked.contains(&nanos(cloud)), "a stamp that no frame had");
        assert!(cloud.encode().unwrap().len() <= 60_000);
        assert!(cloud.width > 2_000, "{}", cloud.width);
        let (values, _) = cloud.data.as_chunks::<4>();
        let values: Vec<f32> = values.iter().map(|b| f32::from_le_bytes(*b)).collect();
        // The room is 8 m wide, and its camera looks along z.
        assert!(
            values
                .as_chunks::<3>()
                .0
                .iter()
                .all(|p| (0.1..9.0).contains(&p[2]))
        );
    }
    for pair in clouds.windows(2) {
        assert!(nanos(&pair[1]) - nanos(&pair[0]) >= 90_000_000);
    }
}

#[test]
fn the_robot_s_localisation_has_a_status_of_its_own() {
    let mut stage = Stage::ready("");
    let last = |stage: &Stage| {
        let all: Vec<DiagnosticArray> = stage.graph.sent("/slam/localization_status");
        all.last().map(|m| m.status[0].clone()).unwrap_or_default()
    };
    let value = |stage: &Stage, key: &str| {
        let status = last(stage);
        let found = status.values.into_iter().find(|v| v.key == key);
        found.unwrap_or_else(|| panic!("no {key}")).value
    };
    wait("a status", || last(&stage).message == "waiting");
    assert_eq!(value(&stage, "age of the last fix, s"), "unknown");
    stage.track(5);
    wait("tracking", || last(&stage).message == "tracking");
    let number = |stage: &Stage, key: &str| value(stage, key).parse::<f64>().unwrap();
    wait("a matched fraction", || {
        number(&stage, "matched fraction") > 0.3
    });
    assert!(number(&stage, "position covariance trace, m2") > 0.0);
    assert!((number(&stage, "scale") - 1.0).abs() < 0.1);
    assert_eq!(value(&stage, "map"), "");
    stage.black();
    wait("lost", || last(&stage).message == "lost");
    let age = number(&stage, "age of the last fix, s");
    wait("an older fix", || {
        number(&stage, "age of the last fix, s") > age
    });
}

/// A bag that is played slowly, paused, or played fast.
#[test]
fn the_age_of_a_fix_is_that_of_the_simulated_clock() {
    let mut stage = Stage::ready("use_sim_time:=true");
    let last = |stage: &Stage| {
        let all: Vec<DiagnosticArray> = stage.graph.sent("/slam/localization_status");
        let status = all.last().map(|m| m.status[0].clone()).unwrap_or_default();
        let age = status
            .values
            .iter()
            .find(|v| v.key == "age of the last fix, s");
        (
            status.message,
            age.map(|age| age.value.clone()).unwrap_or_default(),
        )
    };
    stage.clock(START);
    stage.track(3);
    std::thread::sleep(Duration::from_millis(1500));
    let sent = stage.graph.count("/slam/localization_status");
    wait("two more", || {
        stage.graph.count("/slam/localization_status") > sent + 1
    });
    assert_eq!(last(&stage), ("tracking".into(), "0.000".into()));
    stage.clock(START + 5_000_000_000);
    wait("an old fix", || {
        last(&stage) == ("stale".into(), "5.000".into())
    });
}

/// A node that publishes the room's grid and saves its maps at `path`. The camera is 0.5 m above the robot's frame, which is
/// 0.9 m above the room's floor.
fn with_grid(path: &Path) -> Stage {
    Stage::ready(&format!(
        "slam.grid.enable:=true slam.grid.min_height:=-0.7 slam.grid.max_height:=0.8 \
         map_publish_period:=0.1 map_path:={}",
        path.display()
    ))
}

/// The room's walls and floor, seen from the robot's place in the map.
#[test]
fn the_grid_is_published_while_somebody_listens_and_saved_with_the_map() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("room");
    let mut stage = with_grid(&path);
    stage.track(20);
    assert_eq!(stage.graph.count("/map"), 0, "without subscribers");
    stage.graph.listen(1);
    let newest = |stage: &Stage| -> OccupancyGrid {
        let all: Vec<OccupancyGrid> = stage.graph.sent("/map");
        all.last().cloned().unwrap_or_default()
    };
    let count = |grid: &OccupancyGrid, value: i8| grid.data.iter().filter(|v| **v == value).count();
    wait("a grid with walls and floor", || {
        let grid = newest(&stage);
        count(&grid, 0) > 1000 && count(&grid, 100) > 20
    });
    let grid = newest(&stage);
    assert_eq!(grid.header.frame_id, "map");
    assert!((grid.info.resolution - 0.05).abs() < 1e-6);
    assert_eq!(
        grid.data.len(),
        (grid.info.width * grid.info.height) as usize
    );
    // A new subscriber receives it again.
    let before = stage.graph.count("/map");
    stage.graph.listen(2);
    wait("the grid for the new subscriber", || {
        stage.graph.count("/map") > before
    });
    let answer = stage.trigger("save_map");
    assert!(answer.success, "{}", answer.message);
    let yaml = std::fs::read_to_string(path.join("map.yaml")).expect("map.yaml");
    assert!(yaml.contains("image: \"map.pgm\"") && yaml.contains("mode: trinary"));
    assert!(path.join("map.pgm").exists());
}

/// Cells of the published grid that differ from those in the saved files, and known cells of the two.
fn differing(live: &OccupancyGrid, folder: &Path) -> (usize, usize) {
    let yaml = std::fs::read_to_string(folder.join("map.yaml")).expect("map.yaml");
    let origin = yaml
        .lines()
        .find_map(|l| l.strip_prefix("origin: ["))
        .expect("an origin");
    let origin: Vec<f64> = origin
        .split(", ")
        .take(2)
        .map(|v| v.parse().expect("a number"))
        .collect();
    let image = std::fs::read(folder.join("map.pgm")).expect("map.pgm");
    let header: Vec<&[u8]> = image.splitn(4, |b| b.is_ascii_whitespace()).collect();
    let number = |k: usize| -> usize { std::str::from_utf8(header[k]).unwrap().parse().unwrap() };
    let (columns, rows) = (number(1), number(2));
    let grey = header[3].strip_prefix(b"255\n").expect("the largest grey");
    let resolution = f64::from(live.info.resolution);
    let cell = |v: f64| (v / resolution).round() as i64;
    let mut cells = BTreeMap::new();
    for (k, grey) in grey.iter().enumerate() {
        let (column, row) = (k % columns, rows - 1 - k / columns);
        let value = match grey {
            0 => 100,
            254 => 0,
            _ => continue,
        };
        cells.insert(
            (
                cell(origin[0]) + column as i64,
                cell(origin[1]) + row as i64,
            ),
            value,
        );
    }
    let (mut found, width) = (BTreeMap::new(), live.info.width as usize);
    let place = &live.info.origin.position;
    for (k, value) in live
        .data
        .iter()
        .enumerate()
        .filter(|(_, value)| **value != -1)
    {
        found.insert(
            (
                cell(place.x) + (k % width) as i64,
                cell(place.y) + (k / width) as i64,
            ),
            *value,
        );
    }
    let all: BTreeSet<_> = cells.keys().chain(found.keys()).collect();
    let differs = |at: &&&(i64, i64)| cells.get(at) != found.get(at);
    (all.iter().filter(differs).count(), all.len())
}

/// Poses and scales change with each keyframe, and its points until the camera leaves it.
#[test]
fn the_grid_of_a_quiet_node_is_the_one_that_it_saves() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("room");
    let mut stage = with_grid(&path);
    stage.graph.listen(1);
    let compared = |stage: &Stage| {
        let answer = stage.trigger("save_map");
        assert!(answer.success, "{}", answer.message);
        let all: Vec<OccupancyGrid> = stage.graph.sent("/map");
        let live = all.last().expect("a grid");
        differing(live, &path)
    };
    for _ in 0..7 {
        stage.track(10);
        println!(
            "differing and known cells while it runs: {:?}",
            compared(&stage)
        );
    }
    wait("five keyframes", || stage.value("keyframes") >= 5);
    let mut last = compared(&stage);
    for _ in 0..30 {
        if last.0 == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(300));
        last = compared(&stage);
    }
    assert!(last.0 == 0 && last.1 > 3000, "{last:?} differ, are known");
}

#[test]
fn a_calibrated_depth_has_its_camera_info() {
    let mut stage = Stage::new("base_frame:=");
    stage.graph.listen(1);
    stage.graph.send("/camera_info", &info(89.6));
    wait("a camera_info", || {
        stage.track(1);
        stage.graph.count("/slam/camera_info") > 0
    });
    let infos: Vec<CameraInfo> = stage.graph.sent("/slam/camera_info");
    let info = infos.last().unwrap();
    assert_eq!((info.width, info.height), (128, 96));
    assert!((info.k[0] - 89.6).abs() < 1e-6 && (info.p[0] - 89.6).abs() < 1e-6);
    assert!((info.k[2] - 63.5).abs() < 1e-6 && (info.p[6] - 47.5).abs() < 1e-6);
    assert_eq!(info.p[10], 1.0);
    assert!(info.d.iter().all(|d| *d == 0.0));
}

#[test]
fn covariances_are_positive_of_each_message_s_axes_and_grow_while_lost() {
    let mut stage = Stage::ready("publish_when_lost:=true");
    stage.track(4);
    let poses: Vec<PoseWithCovarianceStamped> = stage.graph.sent("/slam/pose");
    let odometry: Vec<Odometry> = stage.graph.sent("/slam/odometry");
    let of = |c: &[[f64; 6]; 6]| nalgebra::SMatrix::<f64, 6, 6>::from_fn(|r, k| c[r][k]);
    let (map, odom) = (poses.last().unwrap(), odometry.last().unwrap());
    let found = of(&map.pose.covariance);
    let trace = |c: &nalgebra::SMatrix<f64, 6, 6>| c.fixed_view::<3, 3>(0, 0).trace();
    assert!(trace(&found) > 0.0);
    // map and odom have not been moved apart so far.
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
        stage.black();
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

#[test]
fn splats_are_rendered_for_subscribers_and_saved_with_the_map() {
    let folder = tempfile::tempdir().unwrap();
    let mut stage = Stage::ready(&format!(
        "splat:=true slam.splat.capacity:=20000 slam.splat.stride:=4 map_path:={}",
        folder.path().join("room.map").display()
    ));
    stage.track(25);
    assert_eq!(stage.graph.count("/slam/splat_image"), 0);
    stage.graph.listen(1);
    // The first keyframe becomes splats when the second one follows.
    wait("a picture with colours", || {
        stage.track(1);
        stage
            .graph
            .last_bytes("/slam/splat_image")
            .is_some_and(|bytes| {
                let image = Image::decode(&bytes).unwrap();
                assert_eq!((image.width, image.height), (128, 96));
                assert_eq!(
                    (image.encoding.as_str(), image.data.len()),
                    ("rgb8", 128 * 96 * 3)
                );
                let lit = image.data.iter().filter(|v| **v > 20).count();
                lit > image.data.len() / 4
            })
    });
    let answer = stage.trigger("save_map");
    assert!(answer.success, "{}", answer.message);
    assert!(answer.message.contains("splats in"), "{}", answer.message);
    let splats = mast3r_slam::map::splat::load(&folder.path().join("room.splat.ply"), 20_000);
    assert!(!splats.unwrap().is_empty());
}

#[test]
fn splats_that_do_not_fit_are_left_out_and_tracking_goes_on() {
    // 184 bytes each: 200 GB.
    let mut stage = Stage::ready("splat:=true slam.splat.capacity:=1073741823");
    stage.graph.listen(1);
    stage.track(25);
    assert_eq!(stage.graph.count("/slam/splat_image"), 0);
    assert!(stage.graph.count("/slam/pose") >= 25);
}
