//! Depth makes a map metric although the network sees every pass in another wrong scale.

use mast3r_slam::compute::device::DeviceError;
use mast3r_slam::config::{Config, Threads};
use mast3r_slam::eval::Alignment;
use mast3r_slam::map::MapSnapshot;
use mast3r_slam::slam::{FrameDepth, Pace, ScaleEstimate, ScaleSource, Slam};
use testkit::room::metric::Misscaled;
use testkit::room::walk::{config, evaluation, images, lost, show, vocabulary};
use testkit::room::{RoomBackend, SIZE, Spoil, cpu_slam, intrinsics, path_length, square_walk};

const FRAMES: usize = 60;
/// Frames of a walk on which an offset is found: 4 s.
const LATE_FRAMES: usize = 120;
const PIXELS: usize = SIZE.0 * SIZE.1;

/// Thirty percent too large, and another ten percent up and down from pass to pass.
fn wrong(pass: usize) -> f32 {
    1.3 * (1.0 + 0.1 * (1.7 * pass as f32).sin())
}

fn too_large(_: usize) -> f32 {
    1.3
}

fn uniform(n: usize) -> f64 {
    let mut x = (n as u64)
        .wrapping_add(1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (((x ^ (x >> 31)) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
}

fn normal(n: usize) -> f64 {
    (-2.0 * uniform(2 * n).ln()).sqrt() * (std::f64::consts::TAU * uniform(2 * n + 1)).cos()
}

/// What a sensor makes of a frame's true depth; `None`: its image is missing.
type Sensor = dyn Fn(usize, Vec<f32>) -> Option<Vec<f32>>;

fn configured(calibrated: bool, depth: bool) -> Config {
    let mut config = config(calibrated);
    config.depth.enabled = depth;
    config
}

fn system(config: Config, spoil: Spoil, factor: fn(usize) -> f32) -> (Slam, RoomBackend) {
    system_on(FRAMES, config, spoil, factor)
}

/// On a walk of so many frames.
fn system_on(
    frames: usize,
    config: Config,
    spoil: Spoil,
    factor: fn(usize) -> f32,
) -> (Slam, RoomBackend) {
    let mut room = RoomBackend::new(SIZE, square_walk(frames, 0.6), spoil);
    let places = vocabulary(&mut room);
    let shared = RoomBackend::new(SIZE, square_walk(frames, 0.6), spoil);
    let backend = Box::new(Misscaled::new(Box::new(room), factor));
    let camera = Some(intrinsics(SIZE));
    let slam = cpu_slam(config, Pace::EveryFrame, backend, Some(places), camera);
    (slam, shared)
}

struct Run {
    /// Root mean square error after a rotation and translation, metres.
    error: f64,
    /// The same after a similarity.
    shape: f64,
    /// Truth over estimate.
    scale: f64,
    estimate: Option<ScaleEstimate>,
    /// Motions between keyframes by depth.
    motions: usize,
    map: MapSnapshot,
}

fn run(
    calibrated: bool,
    depth: bool,
    factor: fn(usize) -> f32,
    spoil: Spoil,
    sensor: &Sensor,
) -> Run {
    let (mut slam, room) = system(configured(calibrated, depth), spoil, factor);
    for (k, image) in images(&room, (0..FRAMES).map(Some)).iter().enumerate() {
        if depth && let Some(metres) = sensor(k, room.depth(k)) {
            slam.set_depth(Some(metres.as_slice().into()))
                .expect("depth of the right size");
        }
        show(&mut slam, k, image);
    }
    slam.complete().expect("finish");
    let (map, truth) = (slam.snapshot(), square_walk(FRAMES, 0.6));
    let similar = evaluation(&map, &truth, Alignment::Sim3);
    Run {
        error: evaluation(&map, &truth, Alignment::Se3).ate.rmse,
        shape: similar.ate.rmse,
        scale: similar.alignment.scale,
        estimate: slam.scale(),
        motions: slam.mapping_counts().depth_motions,
        map,
    }
}

fn exact(calibrated: bool, factor: fn(usize) -> f32, sensor: &Sensor) -> Run {
    run(calibrated, true, factor, Spoil::default(), sensor)
}

fn bits(map: &MapSnapshot) -> Vec<u64> {
    let poses = map
        .frames
        .iter()
        .flat_map(|f| f.world_from_camera.to_array());
    poses.map(f64::to_bits).collect()
}

#[test]
fn exact_depth_makes_the_map_metric() {
    let path = path_length(&square_walk(FRAMES, 0.6));
    for calibrated in [false, true] {
        let found = exact(calibrated, wrong, &|_, depth| Some(depth));
        println!(
            "{calibrated}: ATE {} of {path}, scale {}, {:?}",
            found.error, found.scale, found.estimate
        );
        assert!(found.error < 1e-3 * path, "{} m of {path} m", found.error);
        assert!((found.scale - 1.0).abs() < 1e-3, "{}", found.scale);
        assert_eq!(lost(&found.map), 0);
        let estimate = found.estimate.expect("depth measures the scale");
        assert!(
            (estimate.factor - 1.0).abs() < 3.0 * estimate.sigma,
            "{estimate:?}"
        );
        assert!(
            estimate.source == ScaleSource::Depth
                && estimate.keyframes == found.map.keyframes.len()
        );
        // All but the last two keyframes': a motion goes to the map with the event after.
        match calibrated {
            true => assert!(found.motions + 3 >= found.map.keyframes.len() && found.motions > 2),
            false => assert_eq!(found.motions, 0),
        }
        // Without depth the same map is nearly a third too large.
        let without = run(calibrated, false, wrong, Spoil::default(), &|_, _| None);
        println!(
            "{calibrated}: without ATE {}, scale {}",
            without.error, without.scale
        );
        assert!(without.scale < 0.85 && without.error > 100.0 * found.error);
        assert_eq!((without.estimate, without.motions), (None, 0));
    }
}

#[test]
fn depth_that_comes_late_resizes_what_was_mapped_before() {
    for calibrated in [false, true] {
        let late = exact(calibrated, too_large, &|k, depth| {
            (k >= FRAMES / 2).then_some(depth)
        });
        println!("{calibrated}: late {} {:?}", late.scale, late.estimate);
        assert!((late.scale - 1.0).abs() < 5e-3, "{}", late.scale);
        let measured = late.estimate.expect("an estimate").keyframes;
        assert!(measured > 0 && measured < late.map.keyframes.len());
    }
}

/// Median error of the depths `found`, as a part of the true ones.
fn off(found: impl Iterator<Item = f32>, truth: &[f32]) -> f64 {
    let mut off: Vec<f32> = found.zip(truth).map(|(z, t)| (z / t - 1.0).abs()).collect();
    off.sort_unstable_by(f32::total_cmp);
    f64::from(off[off.len() / 2])
}

/// A walk with depth of the frame before, stamped `after` seconds after its frame, with this `offset` set, with a mapping
/// thread or without: for each keyframe the error of its depths over that of the depth as it came, and the ATE.
fn late_by_a_frame((after, offset): (f64, f64), threads: Threads) -> (Vec<f64>, f64) {
    let mut config = configured(true, true);
    config.threads = threads;
    config.depth.offset = offset;
    let (mut slam, room) = system_on(LATE_FRAMES, config, Spoil::default(), wrong);
    let images = images(&room, (0..LATE_FRAMES).map(Some));
    for (k, image) in images.iter().enumerate().skip(1) {
        let metres = &room.depth(k - 1);
        slam.set_depth(Some(FrameDepth { metres, after }))
            .expect("depth");
        show(&mut slam, k, image);
    }
    slam.complete().expect("finish");
    let map = slam.snapshot();
    // The last keyframe may still lack the frame after it.
    let keyframes = map.keyframes.iter().rev().skip(1).rev();
    let left = keyframes.map(|k| {
        let (frame, truth) = (k.frame_index, room.depth(k.frame_index));
        let points = k.view().points;
        let found = off(points.chunks_exact(3).map(|p| p[2]), &truth);
        found / off(room.depth(frame - 1).into_iter(), &truth)
    });
    let left: Vec<f64> = left.collect();
    let error = evaluation(&map, &square_walk(LATE_FRAMES, 0.6), Alignment::Se3);
    println!("{after} {offset}: {left:?}, ATE {}", error.ate.rmse);
    (left, error.ate.rmse)
}

#[test]
fn pointmaps_by_depth_of_another_moment_are_corrected() {
    for threads in [Threads::Single, Threads::Pipelined] {
        // The offset is found in the end, or known from the start; the first keyframe knows no velocity either way.
        let (found, error_if_found) = late_by_a_frame((0.0, 0.0), threads);
        let mean = |left: &[f64]| left.iter().sum::<f64>() / left.len() as f64;
        assert!(found.len() > 4 && mean(&found) < 0.4);
        // Known by the setting, or by stamps that say so.
        for late in [(0.0, -0.033), (-0.033, 0.0)] {
            let (known, error) = late_by_a_frame(late, threads);
            assert!(known.len() > 4 && mean(&known) < 0.25);
            assert!(known.iter().all(|left| *left < 0.5));
            // What is found counts for most of the walk.
            let bounded = error < error_if_found && error_if_found < 0.015;
            assert!(bounded, "{error}, {error_if_found}");
        }
    }
}

#[test]
fn noise_and_missing_depth_cost_little() {
    let noisy = |sigma: f64| {
        move |k: usize, mut depth: Vec<f32>| {
            for (n, z) in depth.iter_mut().enumerate() {
                *z *= (1.0 + sigma * normal(k * PIXELS + n)) as f32;
            }
            Some(depth)
        }
    };
    let sparse = |k: usize, mut depth: Vec<f32>| {
        for (n, z) in depth.iter_mut().enumerate() {
            if uniform(k * PIXELS + n) < 0.97 {
                *z = 0.0;
            }
        }
        Some(depth)
    };
    let missing = |k: usize, depth: Vec<f32>| (k % 10 != 5).then_some(depth);
    let spoil = Spoil {
        noise: 0.01,
        outliers: 0.0,
        bias: 0.01,
    };
    let best = run(true, true, wrong, spoil, &|_, depth| Some(depth));
    println!("best: {} {} {:?}", best.error, best.scale, best.estimate);
    assert!((best.scale - 1.0).abs() < 1e-3, "{}", best.scale);
    // Points of the network that are wrong hardly change the scale.
    let outliers = Spoil {
        outliers: 0.05,
        ..spoil
    };
    let wrong_points = run(true, true, wrong, outliers, &|_, depth| Some(depth));
    assert!(
        (wrong_points.scale - 1.0).abs() < 5e-3,
        "{}",
        wrong_points.scale
    );
    // Without neighbours, whose differences show the sensor's noise, no pixel's own depth corrects its point.
    let alone = run(true, true, wrong, spoil, &|_, mut depth| {
        for (n, z) in depth.iter_mut().enumerate() {
            if !(n % SIZE.0).is_multiple_of(11) {
                *z = 0.0;
            }
        }
        Some(depth)
    });
    println!("every 11th column: {}, all {}", alone.shape, best.shape);
    // Columns show no planes, so that depth measures no motions there, nor with noise in images as small as these.
    assert_eq!(alone.motions, 0);
    assert!(best.shape < 0.9 * alone.shape);
    let sensors: [(&str, Box<Sensor>, f64, &Run); 4] = [
        ("5 % noise", Box::new(noisy(0.05)), 1.25, &alone),
        ("10 % noise", Box::new(noisy(0.1)), 1.6, &alone),
        ("3 % of the pixels", Box::new(sparse), 1.05, &alone),
        ("every tenth missing", Box::new(missing), 1.03, &best),
    ];
    for (name, sensor, worse, best) in sensors {
        let found = run(true, true, wrong, spoil, &sensor);
        println!(
            "{name}: {} {} {} {:?}",
            found.error, found.shape, found.scale, found.estimate
        );
        assert!(
            found.shape < worse * best.shape,
            "{name}: {}, best {}",
            found.shape,
            best.shape
        );
        assert!((found.scale - 1.0).abs() < 3e-3, "{name}: {}", found.scale);
        assert_eq!(lost(&found.map), 0, "{name}");
    }
}

#[test]
fn a_constant_error_of_depth_is_that_of_the_map() {
    let found = exact(true, wrong, &|_, depth| {
        Some(depth.iter().map(|z| 1.03 * z).collect())
    });
    assert!((1.03 * found.scale - 1.0).abs() < 1e-3, "{}", found.scale);
}

#[test]
fn depth_that_cannot_be_used_changes_nothing() {
    for calibrated in [false, true] {
        let none = bits(&run(calibrated, false, wrong, Spoil::default(), &|_, _| None).map);
        let useless: [(&str, Box<Sensor>); 5] = [
            ("no depth", Box::new(|_, _| None)),
            ("all zeros", Box::new(|_, _| Some(vec![0.0; PIXELS]))),
            (
                "not a number",
                Box::new(|_, _| Some(vec![f32::NAN; PIXELS])),
            ),
            (
                "millimetres",
                Box::new(|_, depth| Some(depth.iter().map(|z| 1000.0 * z).collect())),
            ),
            (
                "another scene",
                Box::new(|k, _| {
                    Some(
                        (0..PIXELS)
                            .map(|n| 0.1 + 9.0 * uniform(k * PIXELS + n) as f32)
                            .collect(),
                    )
                }),
            ),
        ];
        for (name, sensor) in useless {
            let found = run(calibrated, true, wrong, Spoil::default(), &sensor);
            assert!(bits(&found.map) == none, "{name}, calibrated: {calibrated}");
            assert_eq!(found.estimate, None, "{name}");
        }
    }
}

#[test]
fn depth_is_refused_without_the_setting_and_in_a_wrong_size() {
    let (mut slam, _) = system(configured(true, false), Spoil::default(), wrong);
    let refused = slam.set_depth(Some([1.0; PIXELS][..].into()));
    assert!(matches!(refused, Err(DeviceError::NoDepth)), "{refused:?}");
    slam.set_depth(None).expect("no depth is no error");
    let (mut slam, _) = system(configured(true, true), Spoil::default(), wrong);
    let refused = slam.set_depth(Some([1.0; PIXELS - 1][..].into()));
    let expected = (PIXELS, PIXELS - 1);
    assert!(
        matches!(refused, Err(DeviceError::Content { expected: e, found: f, .. }) if (e, f) == expected),
        "{refused:?}"
    );
}
