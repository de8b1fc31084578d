//! The whole of `slam` on a room whose pointmaps are known exactly.

use mast3r_slam::config::{Config, Loops, ResidualChoice, Threads};
use mast3r_slam::geometry::Sim3;
use mast3r_slam::inference::Backend;
use mast3r_slam::map::{MapSnapshot, TrackingState};
use mast3r_slam::slam::{Pace, Slam};
use testkit::room::walk::{ate, config, images, lost, vocabulary, walk};
use testkit::room::{RoomBackend, SIZE, Spoil, cpu_slam, intrinsics, path_length, square_walk};

/// Runs the frames named by `order` (`None`: a black image).
fn run(
    mut backend: RoomBackend,
    order: impl IntoIterator<Item = Option<usize>>,
    config: Config,
) -> (MapSnapshot, Slam) {
    let model = vocabulary(&mut backend);
    let size = (backend.shape().width, backend.shape().height);
    let images = images(&backend, order);
    let mut system = cpu_slam(
        config,
        Pace::EveryFrame,
        Box::new(backend),
        Some(model),
        Some(intrinsics(size)),
    );
    let snapshot = walk(&mut system, &images);
    (snapshot, system)
}

#[test]
fn exact_pointmaps_give_an_exact_trajectory() {
    let poses = square_walk(90, 1.1);
    let length = path_length(&poses);
    let measured = [
        (false, ResidualChoice::Camera),
        (true, ResidualChoice::Camera),
        (false, ResidualChoice::Points),
    ];
    for (calibrated, residual) in measured {
        let backend = RoomBackend::new(SIZE, poses.clone(), Spoil::default());
        let mut config = config(calibrated);
        config.local_opt.residual = residual;
        let (snapshot, _) = run(backend, (0..90).map(Some), config);
        assert_eq!(lost(&snapshot), 0);
        let error = ate(&snapshot, &poses);
        assert!(
            error <= 1e-3 * length,
            "calibrated {calibrated}, {residual:?}: ATE {error} m on {length} m"
        );
    }
}

#[test]
fn noise_and_outliers_stay_within_a_percent() {
    let poses = square_walk(90, 1.1);
    let length = path_length(&poses);
    let spoil = Spoil {
        noise: 0.01,
        outliers: 0.2,
        bias: 0.0,
    };
    for calibrated in [false, true] {
        let backend = RoomBackend::new(SIZE, poses.clone(), spoil);
        let (snapshot, _) = run(backend, (0..90).map(Some), config(calibrated));
        assert_eq!(lost(&snapshot), 0);
        let error = ate(&snapshot, &poses);
        assert!(
            error <= 1e-2 * length,
            "calibrated {calibrated}: ATE {error} m on {length} m"
        );
    }
}

#[test]
fn a_walk_that_returns_closes_its_loop() {
    let poses = square_walk(120, 1.1);
    let spoil = Spoil {
        noise: 0.01,
        outliers: 0.05,
        bias: 0.02,
    };
    let mut errors = Vec::new();
    for loops in [Loops::On, Loops::Off] {
        let backend = RoomBackend::new(SIZE, poses.clone(), spoil);
        let (snapshot, system) = run(
            backend,
            (0..120).map(Some),
            Config {
                loops,
                ..config(false)
            },
        );
        let counts = system.mapping_counts();
        assert_eq!(
            loops == Loops::On,
            counts.loop_edges > 0,
            "{loops:?}: {counts:?}"
        );
        errors.push(ate(&snapshot, &poses));
    }
    let (on, off) = (errors[0], errors[1]);
    assert!(on * 3.0 <= off, "loops on {on} m, off {off} m");
}

#[test]
fn a_kidnapped_camera_is_found_again() {
    let poses = square_walk(60, 0.6);
    let spoil = Spoil {
        noise: 0.01,
        outliers: 0.05,
        bias: 0.0,
    };
    // Half the walk, ten black frames, then a place seen at the start.
    let order = (0..30).map(Some).chain([None; 10]).chain((5..20).map(Some));
    let backend = RoomBackend::new(SIZE, poses.clone(), spoil);
    let (snapshot, system) = run(backend, order, config(false));
    let states: Vec<TrackingState> = snapshot.frames.iter().map(|f| f.state).collect();
    assert!(
        states[30..40].iter().all(|s| *s == TrackingState::Lost),
        "{states:?}"
    );
    assert!(
        states[40..].contains(&TrackingState::Relocalised),
        "{states:?}"
    );
    assert!(
        states[44..].iter().all(|s| *s != TrackingState::Lost),
        "{states:?}"
    );
    assert_eq!(system.mapping_counts().relocalised, 1);
    assert!(snapshot.frames.iter().all(|f| f.submap == 0));
    // Frame 50 of the run shows what frame 15 of the walk showed: the same place, again.
    let apart = (snapshot.frames[50].world_from_camera.translation
        - snapshot.frames[15].world_from_camera.translation)
        .norm();
    assert!(apart < 0.05, "{apart} m");
}

#[test]
fn a_place_never_seen_starts_a_submap_and_joins_when_it_meets_the_old_one() {
    let poses = square_walk(200, 1.0);
    let mut config = config(false);
    config.reloc.max_tries = 3;
    // A stretch, then a jump to where nothing is known, then the walk leads back to the start.
    let order = (0..40)
        .map(Some)
        .chain((110..200).map(Some))
        .chain((0..25).map(Some));
    let backend = RoomBackend::new(SIZE, poses.clone(), Spoil::default());
    let (snapshot, system) = run(backend, order, config);
    let lost = lost(&snapshot);
    assert!((3..=6).contains(&lost), "{lost} lost");
    let counts = system.mapping_counts();
    assert_eq!(counts.merged_submaps, 1, "{counts:?}");
    assert!(
        snapshot
            .frames
            .iter()
            .filter(|f| f.state != TrackingState::Lost)
            .all(|f| f.submap == 0)
    );
    let last = snapshot.frames.last().expect("frames").world_from_camera;
    let apart = (last.translation - snapshot.frames[24].world_from_camera.translation).norm();
    assert!(apart < 0.05, "{apart} m");
}

#[test]
fn a_covered_lens_uses_up_no_tries() {
    let poses = square_walk(200, 1.0);
    let mut config = config(false);
    config.reloc.max_tries = 3;
    // A stretch, the lens is covered for long, then a place that is not known.
    let order = (0..40).map(Some).chain([None; 20]);
    let order = order.chain((110..120).map(Some));
    let backend = RoomBackend::new(SIZE, poses, Spoil::default());
    let (snapshot, _) = run(backend, order, config);
    let states: Vec<TrackingState> = snapshot.frames.iter().map(|f| f.state).collect();
    assert_eq!(states[40..63], [TrackingState::Lost; 23]);
    // The fourth frame is one more than may be tried.
    assert_eq!(states[63], TrackingState::Initialising);
}

#[test]
fn a_black_start_costs_no_submap() {
    let poses = square_walk(60, 0.3);
    let order = [None; 5].into_iter().chain((0..20).map(Some));
    let backend = RoomBackend::new(SIZE, poses, Spoil::default());
    let (snapshot, _) = run(backend, order, config(false));
    assert_eq!(lost(&snapshot), 5);
    assert!(snapshot.keyframes.iter().all(|k| k.submap == 0));
    assert_eq!(snapshot.frames[5].state, TrackingState::Initialising);
}

#[test]
fn nothing_but_black_frames_is_a_named_state_and_ends() {
    let backend = RoomBackend::new(SIZE, square_walk(60, 0.1), Spoil::default());
    let (snapshot, _) = run(backend, [None; 12], config(false));
    assert_eq!(lost(&snapshot), 12);
    assert!(snapshot.keyframes.is_empty());
}

#[test]
fn single_threaded_runs_repeat_bit_for_bit() {
    let poses = square_walk(40, 0.5);
    let spoil = Spoil {
        noise: 0.01,
        outliers: 0.1,
        bias: 0.01,
    };
    let once = || {
        let backend = RoomBackend::new(SIZE, poses.clone(), spoil);
        let (snapshot, _) = run(backend, (0..40).map(Some), config(false));
        let bits = |p: &Sim3| p.to_array().map(f64::to_bits);
        let frames: Vec<_> = snapshot
            .frames
            .iter()
            .map(|f| bits(&f.world_from_camera))
            .collect();
        let keyframes: Vec<_> = snapshot
            .keyframes
            .iter()
            .map(|k| bits(&k.world_from_camera))
            .collect();
        (frames, keyframes)
    };
    assert_eq!(once(), once());
}

#[test]
fn the_pipelined_system_drains_its_queue_and_agrees() {
    let poses = square_walk(60, 0.7);
    let backend = || RoomBackend::new(SIZE, poses.clone(), Spoil::default());
    let pipelined = Config {
        threads: Threads::Pipelined,
        ..config(false)
    };
    let (a, _) = run(backend(), (0..60).map(Some), pipelined);
    let (b, _) = run(backend(), (0..60).map(Some), config(false));
    assert_eq!(a.keyframes.len(), b.keyframes.len());
    assert!(a.keyframes.len() > 3);
    let length = path_length(&poses);
    assert!(ate(&a, &poses) <= 1e-3 * length);
    // Not only as good: the same trajectory, frame by frame.
    assert_eq!(a.frames.len(), b.frames.len());
    for (of_a, of_b) in a.frames.iter().zip(&b.frames) {
        assert_eq!(of_a.state, of_b.state, "frame {}", of_a.index);
        let apart = of_a.world_from_camera.translation - of_b.world_from_camera.translation;
        assert!(apart.norm() <= 1e-3 * length, "frame {}", of_a.index);
    }
}

#[test]
fn more_than_512_keyframes() {
    let poses = square_walk(540, 3.0);
    let mut config = config(false);
    // Every frame is a keyframe.
    config.tracking.match_frac_thresh = 1.01;
    config.loops = Loops::Off;
    config.local_opt.max_iters = 1;
    let backend = RoomBackend::new((48, 32), poses.clone(), Spoil::default());
    let (snapshot, _) = run(backend, (0..540).map(Some), config);
    assert_eq!(snapshot.keyframes.len(), 540);
    assert_eq!(lost(&snapshot), 0);
}

/// A limit that protects the memory must not end the localisation: the map is kept as it is.
#[test]
fn a_full_map_goes_on_without_growing() {
    // Short enough to be seen from its first five frames.
    let poses = square_walk(400, 1.0)[..20].to_vec();
    let mut config = config(false);
    config.tracking.match_frac_thresh = 1.0;
    config.local_opt.max_keyframes = 5;
    let backend = RoomBackend::new(SIZE, poses, Spoil::default());
    let (snapshot, system) = run(backend, (0..20).map(Some), config);
    assert!(system.is_full());
    assert_eq!(snapshot.keyframes.len(), 5);
    assert_eq!((snapshot.frames.len(), lost(&snapshot)), (20, 0));
}
