//! Tracking a frame, and counting it for the metrics, allocates nothing once the system is warm.

use mast3r_slam::config::{Config, FilteringMode, Threads};
use mast3r_slam::image::RgbImage;
use mast3r_slam::map::TrackingState;
use mast3r_slam::slam::{Frame, Pace};
use mast3r_slam::time::Stamp;
use testkit::counting;
use testkit::room::recording::Recording;
use testkit::room::{RoomBackend, SIZE, Spoil, cpu_slam, intrinsics, square_walk};

const FRAMES: usize = 24;
const WARM: usize = 8;

/// Allocations of each frame after the first `WARM`.
fn allocations(calibrated: bool, mode: FilteringMode, recording: &Recording) -> Vec<usize> {
    let mut config = Config {
        use_calib: calibrated,
        threads: Threads::Single,
        ..Config::default()
    };
    config.tracking.filtering_mode = mode;
    let backend = Box::new(recording.clone());
    let mut system = cpu_slam(
        config,
        Pace::EveryFrame,
        backend,
        None,
        Some(intrinsics(SIZE)),
    );
    // Its server is not started: allocations of all threads are counted.
    #[cfg(feature = "view")]
    let door = {
        let localhost = std::net::Ipv4Addr::LOCALHOST.into();
        mast3r_slam::view::Door::bind(localhost, 0, "the test").expect("a free port")
    };
    #[cfg(feature = "view")]
    door.feed().start(&system);
    let mut image = RgbImage::new(SIZE.0, SIZE.1);
    // A black image is not tracked.
    image.data.fill(90);
    let mut counts = Vec::with_capacity(FRAMES);
    for index in 0..FRAMES {
        image.data[0] = index as u8;
        let input = Frame {
            index,
            stamp: Stamp::default(),
            image: (&image).into(),
        };
        let before = counting::allocations();
        let record = system.process(&input);
        #[cfg(feature = "view")]
        if let Ok(tracked) = &record {
            door.feed().frame(tracked, &mut system);
        }
        counts.push(counting::allocations() - before);
        let record = record.expect("frame");
        if record.index > 0 {
            assert_eq!(record.state, TrackingState::Tracking);
            assert_eq!(record.keyframe, None, "frame {}", record.index);
            assert!(record.iterations > 0);
        }
    }
    // The first keyframe is allocated: counting counts.
    assert!(counts[0] > 0);
    counts.split_off(WARM)
}

pub fn tracking_does_not_allocate() {
    let spoil = Spoil {
        noise: 0.01,
        outliers: 0.05,
        bias: 0.0,
    };
    let walk = square_walk(600, 1.0)[..FRAMES].to_vec();
    let recording = Recording::of(RoomBackend::new(SIZE, walk, spoil));
    // On a worker of the pool: a call from outside may make rayon grow its queue.
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(2)
        .build()
        .expect("pool");
    for calibrated in [false, true] {
        for mode in [FilteringMode::WeightedPointmap, FilteringMode::BestScore] {
            let counts = pool.install(|| allocations(calibrated, mode, &recording));
            assert_eq!(
                counts,
                [0; FRAMES - WARM],
                "calibrated {calibrated}, {mode:?}"
            );
        }
    }
}
