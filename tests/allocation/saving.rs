//! Saving a map takes as much memory for a large one as for a small one.

use mast3r_slam::config::{Config, Loops, Threads};
use mast3r_slam::image::RgbImage;
use mast3r_slam::map::saved::Reader;
use mast3r_slam::slam::{Frame, MapLabel, Pace, Slam};
use mast3r_slam::time::Stamp;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use testkit::counting;
use testkit::patrol::{self, Work};

/// Bytes that saving may take beside the running system, at 512×384.
const MAX: isize = 200 << 20;
/// Bytes that a keyframe may take while it is saved beside its images and points: its record, and those of its frames.
const OF_GRAPH: isize = 4096;

/// A map of so many keyframes and its edges, with blank images of this size.
fn map(keyframes: usize, (width, height): (usize, usize)) -> Slam {
    let mut config = Config {
        loops: Loops::Off,
        threads: Threads::Single,
        ..Config::default()
    };
    // A keyframe every few frames, in a walk that goes round and round.
    config.tracking.match_frac_thresh = 0.9;
    config.economy.remove = false;
    config.local_opt.max_keyframes = keyframes;
    let device = patrol::device_of(&Arc::new(Work::default()), (width, height), 1024);
    let mut slam = Slam::new(&config, Pace::EveryFrame, device, None).expect("a system");
    let mut image = RgbImage::new(16, 16);
    // Black ones would be lost.
    image.data.fill(90);
    for index in 0.. {
        slam.process(&Frame {
            index,
            stamp: Stamp {
                nanos: index as i64 * 33_000_000,
            },
            image: (&image).into(),
        })
        .expect("a frame");
        if slam.is_full() {
            break;
        }
    }
    slam
}

/// The largest number of bytes in use while the map is saved as `~/save_map` does, beyond those before.
fn saving(slam: &mut Slam, path: &Path) -> isize {
    let (sender, answer) = sync_channel(1);
    counting::peak(|| {
        let label = Box::new(|| Ok(MapLabel::default()));
        let reply = Box::new(move |saved: Result<_, _>| {
            let (saved, outline) = saved.expect("saved");
            drop(outline);
            sender.send(saved).expect("the test listens");
        });
        assert!(slam.save_and_outline(path.to_owned(), label, reply));
        answer.recv().expect("the mapping side lives");
    })
}

fn saved(keyframes: usize, size: (usize, usize)) -> isize {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("large.map");
    let mut slam = map(keyframes, size);
    let peak = saving(&mut slam, &path);
    let reader = Reader::open(&path).expect("a map");
    assert_eq!(reader.header().keyframes as usize, keyframes);
    assert!(reader.header().edges > 0);
    let megabytes = std::fs::metadata(&path).expect("the file").len() >> 20;
    println!("{keyframes} keyframes at {size:?}: {megabytes} MB saved with {peak} bytes");
    peak
}

pub fn a_map_is_saved_in_memory_that_does_not_grow_with_it() {
    let large = std::env::var("MAST3R_LARGE_MAP").ok();
    if let Some(large) = large {
        // As the environment asks: 5,000 keyframes at 512×384 take 26 GB of disk.
        let keyframes = large.parse().expect("a number of keyframes");
        let peak = saved(keyframes, (512, 384));
        assert!(peak < MAX, "{peak} bytes for {keyframes} keyframes");
        return;
    }
    // As large as real ones, but few; then as many as in a building, but small.
    let (few, twice) = (saved(20, (512, 384)), saved(40, (512, 384)));
    assert!(twice < MAX, "{twice} bytes for 40 keyframes");
    assert!(
        twice - few < 1 << 20,
        "{few} bytes for 20 keyframes, {twice} for 40"
    );
    let (many, twice) = (saved(1000, (16, 16)), saved(2000, (16, 16)));
    let more = (twice - many) / 1000;
    assert!(more < OF_GRAPH, "{more} bytes more for each keyframe more");
}
