//! Bounds of the graph and solves over its skeleton, in the room.

use mast3r_slam::config::{Config, Loops};
use mast3r_slam::map::MapSnapshot;
use mast3r_slam::slam::{MappingCounts, Pace};
use testkit::room::walk::{ate, config, images, vocabulary, walk};
use testkit::room::{RoomBackend, SIZE, Spoil, cpu_slam, intrinsics, square_walk};

const FRAMES: usize = 120;

/// One lap and a bit, with pointmaps that drift without loops.
fn run(config: Config) -> (MapSnapshot, MappingCounts, f64) {
    let poses = square_walk(FRAMES, 1.1);
    let spoil = Spoil {
        noise: 0.01,
        outliers: 0.05,
        bias: 0.02,
    };
    let mut backend = RoomBackend::new(SIZE, poses.clone(), spoil);
    let model = vocabulary(&mut backend);
    let images = images(&backend, (0..FRAMES).map(Some));
    let mut system = cpu_slam(
        config,
        Pace::EveryFrame,
        Box::new(backend),
        Some(model),
        Some(intrinsics(SIZE)),
    );
    let snapshot = walk(&mut system, &images);
    let error = ate(&snapshot, &poses);
    (snapshot, system.mapping_counts(), error)
}

fn degrees(map: &MapSnapshot) -> Vec<usize> {
    let of = |k: u32| map.edges.iter().filter(|e| e.i == k || e.j == k).count();
    (0..map.keyframes.len() as u32).map(of).collect()
}

fn poses(map: &MapSnapshot) -> Vec<[u64; 8]> {
    let bits = |f: &mast3r_slam::map::FrameRecord| f.world_from_camera.to_array().map(f64::to_bits);
    map.frames.iter().map(bits).collect()
}

#[test]
fn keyframes_keep_few_edges_and_the_map_its_shape() {
    let mut settings = config(false);
    settings.local_opt.neighbours = 3;
    let (free, counts, without) = run(settings.clone());
    assert_eq!(counts.demoted_edges, 0);
    let limit = 6;
    assert!(degrees(&free).iter().any(|&d| d > limit), "no limit");
    settings.local_opt.max_edges = limit;
    let (bounded, counts, with) = run(settings);
    assert!(counts.demoted_edges > 0, "{counts:?}");
    assert_eq!(counts.failed_solves, 0);
    assert!(degrees(&bounded).iter().all(|&d| d <= limit));
    // As accurate as with all matches.
    assert!(
        with <= 1.1 * without,
        "{with} m, {without} m without a limit"
    );
}

#[test]
fn a_loop_beyond_the_window_is_closed_by_the_skeleton() {
    let mut settings = config(false);
    let open = run(Config {
        loops: Loops::Off,
        ..settings.clone()
    });
    settings.local_opt.window = 10;
    settings.local_opt.window_keyframes = 20;
    settings.local_opt.window_edges = 60;
    let (in_windows, _, whole) = run(settings.clone());
    settings.local_opt.skeleton = true;
    let (map, counts, skeleton) = run(settings.clone());
    assert_ne!(poses(&map), poses(&in_windows), "the skeleton was not used");
    assert!(
        counts.loop_edges > 0 && counts.failed_solves == 0,
        "{counts:?}"
    );
    assert!(
        2.0 * skeleton <= open.2 && skeleton <= 1.1 * whole,
        "{skeleton} m, {whole} m by all matches, {} m without loops",
        open.2
    );
    let again = run(settings).0;
    assert_eq!(poses(&again), poses(&map), "the same bits");
}
