//! Files are written to the right place and can be read back.

use mast3r_slam::files::export::ExportError;
use mast3r_slam::geometry::{Intrinsics, Sim3, Tangent};
use mast3r_slam::map::trajectories;
use mast3r_slam::map::{
    CloudOptions, FrameRecord, MapSnapshot, TrackingState, colmap, csv, keyframes, ply, submap_path,
};
use mast3r_slam::time::Stamp;
use mast3r_slam::trajectory::{self, BadRows};
use nalgebra::{Quaternion, UnitQuaternion, Vector3};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use testkit::map_room::{intrinsics, keyframe, room};

struct Vertex {
    position: Vector3<f64>,
    color: [u8; 3],
    confidence: f32,
}

/// Reads exactly the layout that the header announces.
fn read_ply(path: &Path) -> Vec<Vertex> {
    let bytes = std::fs::read(path).unwrap();
    let end = b"end_header\n";
    let body = bytes.windows(end.len()).position(|w| w == end).unwrap() + end.len();
    let header: Vec<&str> = std::str::from_utf8(&bytes[..body])
        .unwrap()
        .lines()
        .collect();
    assert_eq!(header[..2], ["ply", "format binary_little_endian 1.0"]);
    let count: usize = header[2]
        .strip_prefix("element vertex ")
        .unwrap()
        .parse()
        .unwrap();
    let properties = [
        "property float x",
        "property float y",
        "property float z",
        "property uchar red",
        "property uchar green",
        "property uchar blue",
        "property float confidence",
    ];
    assert_eq!(header[3..10], properties);
    assert_eq!(bytes.len() - body, count * 19);
    let float = |b: &[u8]| f32::from_le_bytes(b.try_into().unwrap());
    let records = bytes[body..].chunks_exact(19);
    records
        .map(|r| Vertex {
            position: Vector3::new(float(&r[..4]), float(&r[4..8]), float(&r[8..12])).cast(),
            color: [r[12], r[13], r[14]],
            confidence: float(&r[15..]),
        })
        .collect()
}

fn rows(path: &Path) -> Vec<HashMap<String, String>> {
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap().split(',').collect();
    lines
        .map(|line| {
            let values: Vec<&str> = line.split(',').collect();
            assert_eq!(values.len(), names.len(), "{line}");
            let pairs = names.iter().zip(values);
            pairs
                .map(|(n, v)| ((*n).to_owned(), v.to_owned()))
                .collect()
        })
        .collect()
}

/// One keyframe somewhere, turned and scaled, 8×6 pixels.
fn one() -> MapSnapshot {
    let xi = Tangent::from_column_slice(&[0.4, -0.2, 1.0, 0.5, -0.9, 0.3, 0.0]);
    let mut k = keyframe(0, Sim3::exp(&xi), 1.7, 8, 6);
    k.view_mut().confidence = Arc::new((0..48).map(|i| 1.0 + i as f32 * 0.1).collect());
    MapSnapshot {
        keyframes: vec![k],
        ..MapSnapshot::default()
    }
}

const EVERYTHING: CloudOptions = CloudOptions {
    min_confidence: 0.0,
    voxel_size: 0.0,
};

#[test]
fn ply_holds_the_confident_points_in_the_world() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cloud.ply");
    let mut map = one();
    let options = CloudOptions {
        min_confidence: map.keyframes[0].view().confidence[19],
        voxel_size: 0.0,
    };
    let written = ply::write(&path, &map, &options).unwrap();
    // Strictly above the threshold: pixels 20 to 47.
    assert_eq!(written, [(path.clone(), 28)]);
    let vertices = read_ply(&path);
    let (k, pose) = (map.keyframes[0].view(), map.keyframes[0].world_from_camera);
    for (v, i) in vertices.iter().zip(20..48) {
        let p = Vector3::new(k.points[3 * i], k.points[3 * i + 1], k.points[3 * i + 2]);
        let world = pose.transform(&p.cast());
        // One rounding to f32 of coordinates below 8.
        assert!((v.position - world).norm() < 2e-6);
        assert_eq!(v.color[..], k.image.data[3 * i..3 * i + 3]);
        assert_eq!(v.confidence, k.confidence[i]);
    }
    // Points that were not measured are left out: infinite confidences (docs/reference-defects.md,
    // B31) and coordinates that are not finite.
    let k = map.keyframes[0].view_mut();
    let (mut points, mut confidence) = (k.points.to_vec(), k.confidence.to_vec());
    points[3 * 30] = f32::NAN;
    points[3 * 31 + 2] = f32::INFINITY;
    confidence[32] = f32::INFINITY;
    confidence[33] = f32::NAN;
    (k.points, k.confidence) = (Arc::new(points), Arc::new(confidence));
    assert_eq!(ply::write(&path, &map, &options).unwrap()[0].1, 24);
    assert_eq!(read_ply(&path).len(), 24);
}

#[test]
fn calibrated_points_lie_on_their_pixels_rays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cloud.ply");
    let mut map = one();
    let k = Intrinsics {
        fx: 5.0,
        fy: 7.0,
        cx: 3.0,
        cy: 2.0,
    };
    map.intrinsics = Some(k);
    ply::write(&path, &map, &EVERYTHING).unwrap();
    let pose = map.keyframes[0].world_from_camera;
    for (i, v) in read_ply(&path).iter().enumerate() {
        let p = pose.inverse().transform(&v.position);
        let pixel = k.project(&p);
        let z = f64::from(map.keyframes[0].view().points[3 * i + 2]);
        // f32 rounding of coordinates below 8, over depths above 0.5, times focal lengths below 8.
        assert!((p.z - z).abs() < 4e-6);
        assert!((pixel.x - (i % 8) as f64).abs() < 1e-4 && (pixel.y - (i / 8) as f64).abs() < 1e-4);
    }
}

#[test]
fn voxels_thin_the_file_and_nothing_moves() {
    let folder = tempfile::tempdir().unwrap();
    let map = room(12, 3, 32, 24);
    let (all, thin) = (folder.path().join("a.ply"), folder.path().join("t.ply"));
    ply::write(&all, &map, &CloudOptions::default()).unwrap();
    let options = CloudOptions {
        voxel_size: 0.5,
        ..CloudOptions::default()
    };
    ply::write(&thin, &map, &options).unwrap();
    let once = std::fs::read(&thin).unwrap();
    ply::write(&thin, &map, &options).unwrap();
    assert_eq!(once, std::fs::read(&thin).unwrap());
    let bits = |v: &Vertex| v.position.map(f64::to_bits);
    let everything: std::collections::HashSet<_> = read_ply(&all).iter().map(bits).collect();
    let kept = read_ply(&thin);
    assert!(kept.len() > 100 && kept.len() < everything.len() / 2);
    assert!(kept.iter().all(|v| everything.contains(&bits(v))));
}

#[test]
fn arrays_that_do_not_fit_the_image_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut map = one();
    map.keyframes[0].view_mut().confidence = Arc::new(vec![2.0; 47]);
    let error = ply::write(&folder.path().join("c.ply"), &map, &EVERYTHING).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, ExportError::Keyframe { .. }));
    assert!(
        text.contains("keyframe 0: expected 48 confidences for its 8×6 image, found 47"),
        "{text}"
    );
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn trajectories_leave_out_lost_frames_and_part_by_submap() {
    let folder = tempfile::tempdir().unwrap();
    let mut map = room(10, 4, 8, 6);
    map.frames[3].state = TrackingState::Lost;
    map.frames[5].world_from_camera.translation.z = f64::NAN;
    for f in &mut map.frames[7..] {
        f.submap = 1;
    }
    map.keyframes[2].submap = 1;
    // Scale and the quaternion's length do not reach the file.
    map.frames[1].world_from_camera.scale = 3.0;
    let q = map.frames[1].world_from_camera.rotation.into_inner() * 2.0;
    map.frames[1].world_from_camera.rotation = UnitQuaternion::new_unchecked(q);
    let path = folder.path().join("trajectory.txt");
    let files = trajectories::write_frames(&path, &map).unwrap();
    let second = folder.path().join("trajectory_submap1.txt");
    assert_eq!(files, [path.clone(), second.clone()]);
    let read = |p: &Path| trajectory::read(p, BadRows::Refuse).unwrap().poses;
    let poses = read(&path);
    let stamps: Vec<Stamp> = poses.iter().map(|p| p.stamp).collect();
    let expected: Vec<Stamp> = [0, 1, 2, 4, 6].map(|i: usize| map.frames[i].stamp).to_vec();
    assert_eq!(stamps, expected);
    for (p, i) in poses.iter().zip([0, 1, 2, 4, 6]) {
        let truth = map.frames[i].world_from_camera;
        // Nine decimals: half of the last one in each coordinate.
        assert!((p.world_from_camera.translation - truth.translation).amax() <= 0.51e-9);
        let q = truth.rotation.into_inner().normalize();
        assert!((p.world_from_camera.rotation.coords - q.coords).amax() < 2e-9);
    }
    assert_eq!(read(&second).len(), 3);
    let files = trajectories::write_keyframes(&folder.path().join("keyframes.txt"), &map).unwrap();
    assert_eq!(
        files.iter().map(|f| read(f).len()).collect::<Vec<_>>(),
        [2, 1]
    );
}

#[test]
fn names_of_further_submaps() {
    assert_eq!(submap_path(Path::new("a/b.txt"), 0), Path::new("a/b.txt"));
    assert_eq!(
        submap_path(Path::new("a/b.c.txt"), 2),
        Path::new("a/b.c_submap2.txt")
    );
    assert_eq!(
        submap_path(Path::new("cloud"), 1),
        Path::new("cloud_submap1")
    );
}

#[test]
fn the_frame_table_reads_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("frames.csv");
    let map = room(120, 10, 8, 6);
    csv::write(&path, &map).unwrap();
    let rows = rows(&path);
    assert_eq!(rows.len(), 120);
    let number = |row: &HashMap<String, String>, key: &str| row[key].parse::<f64>().unwrap();
    for (row, f) in rows.iter().zip(&map.frames) {
        let f: &FrameRecord = f;
        assert_eq!(row["index"], f.index.to_string());
        assert_eq!(row["stamp"], f.stamp.to_string());
        assert_eq!(row["state"], f.state.name());
        assert_eq!(row["keyframe"].parse().ok(), f.keyframe);
        assert!((number(row, "match_fraction") - f64::from(f.match_fraction)).abs() < 1e-6);
        assert!((number(row, "tz") - f.world_from_camera.translation.z).abs() < 1e-9);
        assert!((number(row, "mapping_ms") - f.times.mapping).abs() < 1e-3);
        assert!((number(row, "total_ms") - f.times.total).abs() < 1e-3);
    }
}

#[test]
fn keyframe_images_and_their_table_agree() {
    let folder = tempfile::tempdir().unwrap();
    let mut map = room(9, 3, 16, 12);
    // A camera driver that repeats a stamp.
    map.keyframes[2].stamp = map.keyframes[1].stamp;
    let table = keyframes::write(folder.path(), &map).unwrap();
    let listed = rows(&table);
    assert_eq!(listed.len(), 3);
    assert_eq!(listed[0]["file"], "keyframes/1000.000000.png");
    assert_eq!(listed[2]["file"], "keyframes/1000.100000_2.png");
    for (row, k) in listed.iter().zip(&map.keyframes) {
        let image = image::open(folder.path().join(&row["file"]))
            .unwrap()
            .into_rgb8();
        assert_eq!((image.width(), image.height()), (16, 12));
        assert_eq!(image.as_raw(), &k.view().image.data);
        let scale: f64 = row["scale"].parse().unwrap();
        assert!((scale - k.world_from_camera.scale).abs() < 1e-9);
    }
    // A keyframe whose image was lost names none.
    map.keyframes[1].view_mut().image = Arc::default();
    let folder = tempfile::tempdir().unwrap();
    let table = keyframes::write(folder.path(), &map).unwrap();
    assert_eq!(rows(&table)[1]["file"], "");
    let images = std::fs::read_dir(folder.path().join("keyframes")).unwrap();
    assert_eq!(images.count(), 2);
    // One whose bytes do not fit its size is an error, not a wrong file.
    Arc::make_mut(&mut map.keyframes[2].view_mut().image).width += 1;
    let text = keyframes::write(folder.path(), &map)
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("cannot encode") && text.contains(".png"),
        "{text}"
    );
}

/// Numbers of the lines that are neither comments nor blank.
fn fields(path: &Path) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text
        .lines()
        .filter(|l| !l.starts_with('#') && !l.is_empty());
    lines
        .map(|l| l.split_whitespace().map(str::to_owned).collect())
        .collect()
}

fn numbers(fields: &[String]) -> Vec<f64> {
    fields.iter().map(|f| f.parse().unwrap()).collect()
}

#[test]
fn colmaps_cameras_see_the_points_at_their_pixels() {
    let folder = tempfile::tempdir().unwrap();
    let (width, height) = (32, 24);
    let map = room(6, 3, width, height);
    let models = colmap::write(folder.path(), &map, &EVERYTHING).unwrap();
    assert_eq!(models, [folder.path().join("sparse/0")]);
    let cameras = fields(&models[0].join("cameras.txt"));
    assert_eq!(cameras[0][..4], ["1", "PINHOLE", "32", "24"]);
    let k = numbers(&cameras[0][4..]);
    let ours = intrinsics(width, height);
    // COLMAP's pixel centres are at half integers.
    assert!((k[0] - ours.fx).abs() < 1e-6 && (k[2] - ours.cx - 0.5).abs() < 1e-6);
    let images = fields(&models[0].join("images.txt"));
    let points = fields(&models[0].join("points3D.txt"));
    // Confidence in the test's room is positive up to 6 metres, and each keyframe's are in order.
    assert_eq!((images.len(), points.len()), (2, 2 * width * height));
    for (n, image) in images.iter().enumerate() {
        assert_eq!(image[9], keyframes::file_names(&map)[n]);
        let v = numbers(&image[1..8]);
        let q = UnitQuaternion::from_quaternion(Quaternion::new(v[0], v[1], v[2], v[3]));
        let t = Vector3::new(v[4], v[5], v[6]);
        for i in (0..width * height).step_by(7) {
            let point = numbers(&points[n * width * height + i][1..7]);
            let c = q * Vector3::new(point[0], point[1], point[2]) + t;
            let (u, v) = (k[0] * c.x / c.z + k[2], k[1] * c.y / c.z + k[3]);
            // f32 rounding below 4 m, over depths above 0.3 m, times a focal length of 23.
            assert!((u - 0.5 - (i % width) as f64).abs() < 1e-4, "{u} at {i}");
            assert!((v - 0.5 - (i / width) as f64).abs() < 1e-4, "{v} at {i}");
            // Metric: the depth in the rigid camera is scale times the pointmap's.
            let keyframe = &map.keyframes[n];
            let z = f64::from(keyframe.view().points[3 * i + 2]) * keyframe.world_from_camera.scale;
            assert!((c.z - z).abs() < 4e-6);
        }
    }
    let text = std::fs::read_to_string(models[0].join("images.txt")).unwrap();
    let body: Vec<&str> = text.lines().filter(|l| !l.starts_with('#')).collect();
    assert!(
        body.len() == 4 && body[1].is_empty() && body[3].is_empty(),
        "{text}"
    );
}

#[test]
fn an_uncalibrated_focal_length_comes_from_the_pointmaps() {
    let mut map = room(6, 3, 64, 48);
    let estimate = |map: &MapSnapshot| {
        colmap::estimate_intrinsics(
            map.keyframes.iter().map(|k| k.view()),
            64,
            48,
            CloudOptions::default().min_confidence,
        )
    };
    let (found, truth) = (estimate(&map), intrinsics(64, 48));
    // Exact points but for f32: slopes are good to 1e-7, times 46 pixels.
    for (a, b) in [
        (found.fx, truth.fx),
        (found.fy, truth.fy),
        (found.cx, truth.cx),
        (found.cy, truth.cy),
    ] {
        assert!((a - b).abs() < 1e-4, "{found:?}");
    }
    // Nothing to go by: COLMAP's own guess.
    for k in &mut map.keyframes {
        let view = k.view_mut();
        view.points = Arc::new(vec![f32::NAN; view.points.len()]);
    }
    assert_eq!(estimate(&map).fx, 1.2 * 64.0);
    assert_eq!(estimate(&map).cx, 31.5);
}

#[test]
fn each_submap_has_its_colmap_model_and_cloud() {
    let folder = tempfile::tempdir().unwrap();
    let mut map = room(8, 2, 16, 12);
    map.keyframes[3].submap = 2;
    let models = colmap::write(folder.path(), &map, &EVERYTHING).unwrap();
    assert_eq!(
        models,
        [
            folder.path().join("sparse/0"),
            folder.path().join("sparse/2")
        ]
    );
    let lines = models.iter().map(|m| fields(&m.join("images.txt")).len());
    assert_eq!(lines.collect::<Vec<_>>(), [3, 1]);
    let clouds = ply::write(&folder.path().join("cloud.ply"), &map, &EVERYTHING).unwrap();
    let counts: Vec<u64> = clouds.iter().map(|(_, n)| *n).collect();
    assert_eq!(counts, [3 * 192, 192]);
    assert_eq!(clouds[1].0, folder.path().join("cloud_submap2.ply"));
}

/// Everything that a run writes but the report, which has tests of its own.
fn write_all(folder: &Path, map: &MapSnapshot) -> Result<u64, ExportError> {
    trajectories::write_frames(&folder.join("trajectory.txt"), map)?;
    trajectories::write_keyframes(&folder.join("keyframes.txt"), map)?;
    keyframes::write(folder, map)?;
    csv::write(&folder.join("frames.csv"), map)?;
    colmap::write(&folder.join("colmap"), map, &CloudOptions::default())?;
    let clouds = ply::write(&folder.join("cloud.ply"), map, &CloudOptions::default())?;
    Ok(clouds.iter().map(|(_, n)| n).sum())
}

#[test]
fn degenerate_maps_are_written() {
    let mut unseen = room(5, 2, 8, 6);
    let mut doubtful = unseen.clone();
    let mut nowhere = unseen.clone();
    for k in &mut unseen.keyframes {
        let view = k.view_mut();
        view.points = Arc::new(vec![f32::NAN; view.points.len()]);
    }
    for k in &mut doubtful.keyframes {
        let view = k.view_mut();
        view.confidence = Arc::new(vec![1.0; view.confidence.len()]);
    }
    for k in &mut nowhere.keyframes {
        k.world_from_camera.translation.x = f64::NAN;
    }
    for map in [MapSnapshot::default(), unseen, doubtful, nowhere] {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(write_all(folder.path(), &map).unwrap(), 0);
        assert!(read_ply(&folder.path().join("cloud.ply")).is_empty());
        assert_eq!(
            rows(&folder.path().join("frames.csv")).len(),
            map.frames.len()
        );
        assert!(folder.path().join("colmap/sparse/0/points3D.txt").is_file());
    }
    let folder = tempfile::tempdir().unwrap();
    assert!(write_all(folder.path(), &room(1, 1, 8, 6)).unwrap() > 0);
}

#[test]
fn a_file_in_the_way_is_named_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let blocker = folder.path().join("out");
    std::fs::write(&blocker, "mine").unwrap();
    let text = write_all(&blocker, &one()).unwrap_err().to_string();
    assert!(
        text.contains("out") && text.contains("choose another output folder"),
        "{text}"
    );
    assert_eq!(std::fs::read_to_string(&blocker).unwrap(), "mine");
}

#[test]
fn points_that_do_not_match_their_count_leave_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let text = ply::write_points(&folder.path().join("c.ply"), 3, std::iter::empty())
        .unwrap_err()
        .to_string();
    assert!(text.contains("expected 3 points, found 0"), "{text}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
