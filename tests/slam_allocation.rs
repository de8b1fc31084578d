//! Tracking a frame allocates nothing once the system is warm. (Alone in its file: it counts every
//! allocation of the process.)

mod common;

use common::recording::Recording;
use common::{RoomBackend, SIZE, Spoil, intrinsics, square_walk};
use mast3r_slam::config::{Config, FilteringMode, Threads};
use mast3r_slam::image::RgbImage;
use mast3r_slam::map::TrackingState;
use mast3r_slam::slam::{FrameInput, Pace, System};
use mast3r_slam::time::Stamp;
use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

fn count() {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
}

// SAFETY: every call is passed on unchanged to the system's allocator; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { std::alloc::System.alloc(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: as above, and `ptr` came from `System` with this layout.
        unsafe { std::alloc::System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `System` through `alloc` with this layout.
        unsafe { std::alloc::System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

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
    let mut system = System::new(
        config,
        Pace::EveryFrame,
        backend,
        None,
        Some(intrinsics(SIZE)),
    )
    .expect("system");
    let mut image = RgbImage::new(SIZE.0, SIZE.1);
    let mut counts = Vec::with_capacity(FRAMES);
    for index in 0..FRAMES {
        image.data[0] = index as u8;
        let input = FrameInput {
            index,
            stamp: Stamp::default(),
            image: (&image).into(),
        };
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        let record = system.process(input);
        counts.push(ALLOCATIONS.load(Ordering::Relaxed) - before);
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

#[test]
fn tracking_does_not_allocate() {
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
