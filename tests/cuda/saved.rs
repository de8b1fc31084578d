//! Maps out of the GPU and back in, frames read back, and the solver's covariance: the CPU's.

use super::slam::{On, SPOIL, gpu, system};
use half::f16;
use mast3r_slam::compute::device::{
    Device, EdgeContent, Floats, FramePoints, KeyframeContent, MatchContent, Setup,
};
use mast3r_slam::config::{Config, DeviceConfig};
use mast3r_slam::geometry::Sim3;
use mast3r_slam::gpu::Context;
use mast3r_slam::image::RgbImage;
use mast3r_slam::inference::{Backend, NetworkShape};
use mast3r_slam::map::TrackingState;
use mast3r_slam::map::store;
use mast3r_slam::slam::{Frame, MapLabel, SavedMap, SavedMapError, Slam, TrackedFrame};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use testkit::room::rig::TOLERANCE;
use testkit::room::walk::{config, images, stamp, vocabulary};
use testkit::room::{RoomBackend, SIZE, Spoil, square_walk};

const FRAMES: usize = 60;

fn show(system: &mut Slam, images: &[RgbImage], k: usize) -> TrackedFrame {
    let input = Frame {
        index: k,
        stamp: stamp(k),
        image: (&images[k]).into(),
    };
    system.process(&input).expect("frame")
}

fn save(system: &mut Slam, path: &Path) -> SavedMap {
    let (sender, receiver) = channel();
    let reply = Box::new(move |saved: Result<SavedMap, SavedMapError>| {
        sender.send(saved).expect("the test listens");
    });
    let label = || {
        Ok(MapLabel {
            weights: "room".into(),
            map_from_world: None,
        })
    };
    assert!(system.save_map_with(path.to_owned(), Box::new(label), reply));
    receiver.recv().expect("an answer").expect("saved")
}

/// Every frame is a keyframe.
fn many(calibrated: bool) -> Config {
    let mut config = config(calibrated);
    config.tracking.match_frac_thresh = 1.01;
    config.local_opt.max_iters = 2;
    config.local_opt.window = 8;
    config
}

/// Few slots, so that most of a map is in host memory or the file when it is loaded and saved.
fn small(calibrated: bool) -> Config {
    let mut config = many(calibrated);
    config.memory.keyframe_slots = 16;
    config.memory.host_slots = 4;
    config.memory.edges = 16;
    config
}

#[test]
fn maps_go_from_device_to_device_and_back_bit_for_bit() {
    let Some(context) = super::cuda() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let poses = square_walk(FRAMES, 0.6);
    for calibrated in [false, true] {
        let mut backend = RoomBackend::new(SIZE, poses.clone(), Spoil::default());
        let places = Some(vocabulary(&mut backend));
        let images = images(&backend, (0..FRAMES).map(Some));
        let file = |name: &str| folder.path().join(format!("{name}-{calibrated}.map"));
        let make =
            |on: &On<'_>, config: &Config| system(on, backend.share(), config, places.clone());
        for (from, made_on) in [("cpu", On::Cpu), ("gpu", On::Gpu(&context))] {
            let first = file(from);
            let mut walked = make(&made_on, &many(calibrated));
            for k in 0..FRAMES {
                show(&mut walked, &images, k);
            }
            walked.complete().expect("finish");
            let saved = save(&mut walked, &first);
            assert!(saved.keyframes > 40, "{saved:?}");
            drop(walked);

            // The room's network works on the host, so slots keep its features in f32 as the CPU does; what
            // the GPU keeps in f16 it gives as f16.
            let again = file("again");
            let mut loaded = make(&On::Gpu(&context), &small(calibrated));
            assert_eq!(loaded.load_map_of(&first, "room").expect("loaded"), saved);
            save(&mut loaded, &again);
            let read = |path: &Path| std::fs::read(path).expect("the file");
            let twice = file("twice");
            drop(loaded);
            let mut loaded = make(&On::Gpu(&context), &many(calibrated));
            loaded.load_map_of(&again, "room").expect("loaded");
            save(&mut loaded, &twice);
            assert!(
                read(&again) == read(&twice),
                "{from}, calibrated {calibrated}"
            );
            if from == "gpu" {
                assert!(read(&first) == read(&again), "calibrated {calibrated}");
            }

            // It goes on in the map, first without changing it.
            let before = read(&twice);
            loaded.set_growing(false);
            go_on(&mut loaded, &images, &poses);
            save(&mut loaded, &twice);
            assert!(read(&twice) == before, "localisation changed the map");
            loaded.load_map_of(&twice, "room").expect("loaded");
            loaded.set_growing(true);
            go_on(&mut loaded, &images, &poses);
            loaded.complete().expect("finish");
            assert!(loaded.snapshot().keyframes.len() > saved.keyframes);

            // And on the CPU.
            let mut back = make(&On::Cpu, &many(calibrated));
            back.load_map_of(&twice, "room").expect("loaded");
            go_on(&mut back, &images, &poses);
        }
    }
}

#[test]
fn a_packed_map_is_used_on_the_gpu() {
    let Some(context) = super::cuda() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let poses = square_walk(FRAMES, 0.6);
    for calibrated in [false, true] {
        let mut backend = RoomBackend::new(SIZE, poses.clone(), Spoil::default());
        let places = Some(vocabulary(&mut backend));
        let images = images(&backend, (0..FRAMES).map(Some));
        let [whole, packed, again] = ["whole", "packed", "again"]
            .map(|name| folder.path().join(format!("{name}-{calibrated}.map")));
        let make = |on: &On<'_>| system(on, backend.share(), &small(calibrated), places.clone());
        let mut walked = make(&On::Cpu);
        for k in 0..FRAMES {
            show(&mut walked, &images, k);
        }
        walked.complete().expect("finish");
        let saved = save(&mut walked, &whole);
        store::pack(&whole, &packed, false).expect("packed");
        for on in [On::Gpu(&context), On::Cpu] {
            let mut loaded = make(&on);
            let found = loaded.load_map_of(&packed, "room").expect("loaded");
            assert_eq!(
                (found.keyframes, found.edges),
                (saved.keyframes, saved.edges)
            );
            loaded.set_growing(false);
            go_on(&mut loaded, &images, &poses);
            // Saving makes the matches, and then the map grows.
            assert_eq!(save(&mut loaded, &again).edges, saved.edges);
            loaded.load_map_of(&packed, "room").expect("loaded");
            loaded.set_growing(true);
            go_on(&mut loaded, &images, &poses);
            loaded.complete().expect("finish");
            assert!(loaded.snapshot().keyframes.len() > saved.keyframes);
        }
    }
}

/// The room's device on the GPU, and the network's shape.
fn device(context: &Context, config: &Config) -> (Device, NetworkShape) {
    let backend = RoomBackend::new(SIZE, square_walk(2, 0.6), Spoil::default());
    let shape = backend.shape().clone();
    let setup = Setup {
        config: Arc::new(DeviceConfig::from(config)),
        preprocessor: None,
        intrinsics: None,
        places: None,
    };
    (gpu(context, backend.share(), setup), shape)
}

/// A keyframe whose coordinates are `points` of their index.
fn keyframe(shape: &NetworkShape, points: impl Fn(usize) -> f32) -> KeyframeContent {
    let n = shape.pixels();
    KeyframeContent {
        image: vec![9; 3 * n],
        points: (0..3 * n).map(points).collect(),
        confidence: Floats::F32(vec![2.0; n]),
        features: Floats::F32(vec![0.5; shape.tokens * shape.feature_dim]),
    }
}

#[test]
fn points_are_read_from_wherever_a_keyframe_is() {
    let Some(context) = super::cuda() else { return };
    let config = small(false);
    let (device, shape) = device(&context, &config);
    let mut mapping = device.mapping;
    // As many are on the GPU as fit, the others in host memory and in the file.
    let count = 2 * (config.memory.keyframe_slots + config.memory.host_slots) as u32;
    let points = |id: u32| move |k: usize| id as f32 + (k % 1000) as f32 * 0.25;
    for id in 0..count {
        let keyframe = keyframe(&shape, points(id));
        mapping.import_keyframe(id, &keyframe).expect("a keyframe");
    }
    let mut found = vec![f32::NAN; 7];
    for id in (0..count).chain((0..count).rev()) {
        mapping.read_points(id, &mut found).expect("its points");
        let expected: Vec<f32> = (0..3 * shape.pixels()).map(points(id)).collect();
        super::assert_same_bits("points", &found, &expected);
    }
    let before = found.clone();
    assert!(mapping.read_points(count, &mut found).is_err());
    super::assert_same_bits("points", &found, &before);
}

/// On a GPU an edge's qualities are binary16: imported ones are rounded to nearest, and finite ones stay finite.
#[test]
fn imported_qualities_are_rounded_once() {
    let Some(context) = super::cuda() else { return };
    let (device, shape) = device(&context, &config(false));
    let mut mapping = device.mapping;
    let n = shape.pixels();
    for id in 0..2 {
        let keyframe = keyframe(&shape, |_| 1.0);
        mapping.import_keyframe(id, &keyframe).expect("a keyframe");
    }
    let limit = 1.5_f32;
    let qualities = [
        0.0,
        limit,
        limit.next_up(),
        2.345_678,
        65504.0,
        65519.0,
        1e9,
        f32::INFINITY,
        f32::NAN,
        -1.0,
        1e-7,
        1e-9,
    ];
    let all = qualities.iter().copied().cycle();
    let way = |skipped: usize| MatchContent {
        index: (0..n as u32).rev().collect(),
        quality: all.clone().skip(skipped).take(n).collect(),
    };
    let content = EdgeContent {
        i_from_j: way(0),
        j_from_i: way(5),
    };
    let edge = mapping.import_edge(0, 1, &content).expect("an edge");
    let mut found = EdgeContent::default();
    mapping.export_edge(edge, &mut found).expect("its matches");
    let rounded = |q: &f32| match q.is_finite() {
        true => f16::from_f32(q.min(65504.0)).to_f32(),
        false => *q,
    };
    let both = |content: &EdgeContent| [content.i_from_j.clone(), content.j_from_i.clone()];
    for (found, given) in both(&found).iter().zip(&both(&content)) {
        super::assert_same("index", &found.index, &given.index);
        let expected: Vec<f32> = given.quality.iter().map(rounded).collect();
        super::assert_same_bits("quality", &found.quality, &expected);
    }
    let edge = mapping.import_edge(0, 1, &found).expect("an edge");
    let mut again = EdgeContent::default();
    mapping.export_edge(edge, &mut again).expect("its matches");
    for (again, found) in both(&again).iter().zip(&both(&found)) {
        super::assert_same_bits("again", &again.quality, &found.quality);
    }
}

fn go_on(system: &mut Slam, images: &[RgbImage], poses: &[Sim3]) {
    let mut tracked = 0;
    for k in 5..FRAMES {
        let record = show(system, images, k);
        if record.state != TrackingState::Lost {
            let truth = poses[0].inverse() * poses[k];
            let off = (record.world_from_camera.translation - truth.translation).norm();
            assert!(off < TOLERANCE, "frame {k}: {off} m");
            tracked += 1;
        }
    }
    assert!(tracked > (FRAMES - 5) * 7 / 10, "{tracked} tracked");
}

#[test]
fn frames_and_covariances_are_the_cpu_s() {
    let Some(context) = super::cuda() else { return };
    let poses = square_walk(90, 1.0)[..20].to_vec();
    for calibrated in [false, true] {
        let backend = RoomBackend::new(SIZE, poses.clone(), SPOIL);
        let images = images(&backend, (0..20).map(Some));
        let config = config(calibrated);
        let [mut cpu, mut gpu] =
            [On::Cpu, On::Gpu(&context)].map(|on| system(&on, backend.share(), &config, None));
        let (mut expected, mut found) = (FramePoints::default(), FramePoints::default());
        let mut untracked = 0;
        for k in 0..20 {
            let on_cpu = show(&mut cpu, &images, k);
            let on_gpu = show(&mut gpu, &images, k);
            cpu.read_frame(&mut expected).expect("points");
            gpu.read_frame(&mut found).expect("points");
            let what = format!("frame {k}");
            super::assert_same_bits(&what, &found.points, &expected.points);
            super::assert_same_bits(&what, &found.confidence, &expected.confidence);
            let (a, b) = match (on_cpu.covariance, on_gpu.covariance) {
                (Some(a), Some(b)) => (a, b),
                (None, None) => {
                    // The first frame, and one that is found again instead of tracked.
                    untracked += 1;
                    continue;
                }
                (a, b) => panic!("{what}: {b:?} instead of {a:?}"),
            };
            // Both solves may end a step apart, so the poses are not the same to the last bit; the matches are.
            assert!(
                (a - b).norm() <= 0.01 * a.norm(),
                "{what}: {b} instead of {a}"
            );
            assert_eq!(b, b.transpose());
        }
        assert!(
            untracked < 5,
            "calibrated {calibrated}: {untracked} of 20 frames untracked"
        );
    }
}
