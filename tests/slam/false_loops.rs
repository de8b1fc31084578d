//! False loops in the room: matches that agree with each other and with nothing else.

use mast3r_slam::compute::cpu;
use mast3r_slam::compute::device::Setup;
use mast3r_slam::slam::{MappingCounts, Pace, Slam};
use std::sync::Arc;
use testkit::deceiver::{Lies, deceiving};
use testkit::room::walk::{ate, config, images, vocabulary, walk};
use testkit::room::{RoomBackend, SIZE, Spoil, intrinsics, square_walk};

struct Run {
    error: f64,
    counts: MappingCounts,
    replaced: usize,
    /// Number of false loops in the map at the end.
    alive: usize,
}

/// A lap and a half, with this share of false loops, or without these if `lose`.
fn run(share: f64, judged: bool, lose: bool) -> Run {
    const FRAMES: usize = 130;
    let poses = square_walk(FRAMES, 1.5);
    let spoil = Spoil {
        noise: 0.01,
        outliers: 0.05,
        bias: 0.0,
    };
    let mut room = RoomBackend::new(SIZE, poses.clone(), spoil);
    let model = vocabulary(&mut room);
    let images = images(&room, (0..FRAMES).map(Some));
    let mut config = config(false);
    config.local_opt.judge_loops = judged;
    let setup = Setup {
        config: Arc::new((&config).into()),
        preprocessor: None,
        intrinsics: None,
        places: Some(model),
    };
    let whole = cpu::device(Box::new(room), setup);
    let lies = Lies {
        share,
        seed: 17,
        lose,
    };
    let (device, told) = deceiving(whole, intrinsics(SIZE), lies);
    let mut system = Slam::new(&config, Pace::EveryFrame, device, None).expect("system");
    let snapshot = walk(&mut system, &images);
    Run {
        error: ate(&snapshot, &poses),
        counts: system.mapping_counts(),
        replaced: told.replaced(),
        alive: told.alive(),
    }
}

#[test]
fn false_loops_do_not_bend_the_map() {
    let (trusting, clean) = (run(0.0, false, false), run(0.0, true, false));
    assert_eq!(trusting.counts.refused_odometry, 0, "nothing is judged");
    // True loops are found, and they do their work.
    assert!(clean.counts.loop_edges > 0, "{:?}", clean.counts);
    assert!(
        clean.error <= 1.25 * trusting.error,
        "{} m, {} m if every loop is believed",
        clean.error,
        trusting.error
    );
    for share in [0.1, 0.3] {
        let found = run(share, true, false);
        assert!(found.replaced > 0);
        assert_eq!(found.alive, 0, "{share}");
        let counts = found.counts;
        let named = counts.refused_matches
            + counts.refused_directions
            + counts.refused_spread
            + counts.refused_undetermined
            + counts.refused_odometry
            + counts.refused_trials;
        assert_eq!(counts.refused_edges, named, "every refusal has a name");
        // The pairs that are false are missing as true loops, which no judge can mend.
        let lost = run(share, true, true);
        let bound = clean.error.max(lost.error);
        assert!(
            found.error <= 1.1 * bound,
            "{share}: {} m, {} m without false loops, {} m with these pairs lost",
            found.error,
            clean.error,
            lost.error
        );
    }
    // Believed, false loops bend the map: the test can fail.
    let bent = run(1.0, false, false);
    assert!(bent.error > 2.0 * clean.error, "{} m", bent.error);
}
