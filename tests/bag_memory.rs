//! Reading a bag takes as much memory for a long one as for a short one. (Alone in its file: it counts every
//! allocation of the process.)

use mast3r_slam::bag::BagWriter;
use mast3r_slam::ros::messages::Header;
use mast3r_slam::ros::messages::sensor::Image;
use mast3r_slam::ros::middleware::Qos;
use mast3r_slam::source::{SourceOptions, open};
use mast3r_slam::time::Stamp;
use serde_bytes::Bytes;
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};

struct Counting;

static LIVE: AtomicIsize = AtomicIsize::new(0);
static PEAK: AtomicIsize = AtomicIsize::new(0);

fn add(bytes: isize) {
    let live = LIVE.fetch_add(bytes, Relaxed) + bytes;
    PEAK.fetch_max(live, Relaxed);
}

// SAFETY: every call is passed on unchanged to the system's allocator; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as isize);
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        add(new_size as isize - layout.size() as isize);
        // SAFETY: as above, and `ptr` came from `System` with this layout.
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        add(-(layout.size() as isize));
        // SAFETY: `ptr` came from `System` through `alloc` with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const WIDTH: usize = 320;
const HEIGHT: usize = 240;
const BYTES: usize = 3 * WIDTH * HEIGHT;

fn bag(folder: &Path, count: usize) -> PathBuf {
    let path = folder.join(format!("{count}.mcap"));
    let mut bag = BagWriter::create(&path).unwrap();
    let topic = bag.topic::<Image<'_>>("/image", Qos::reliable(1)).unwrap();
    for k in 0..count {
        let pixels: Vec<u8> = (0..BYTES).map(|i| (i * (k + 1) / 7) as u8).collect();
        let stamp = Stamp {
            nanos: (k as i64 + 1) * 33_000_000,
        };
        let message = Image {
            header: Header::new(stamp, "camera"),
            height: HEIGHT as u32,
            width: WIDTH as u32,
            encoding: "rgb8".to_owned(),
            is_bigendian: 0,
            step: 3 * WIDTH as u32,
            data: Bytes::new(&pixels),
        };
        bag.write(topic, stamp, &message).unwrap();
    }
    bag.finish().unwrap()
}

/// Most bytes in use at once, beyond what was before.
fn peak(path: &Path, count: usize) -> isize {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let mut source = open(path, SourceOptions::default()).unwrap();
    let mut read = 0;
    while let Some(frame) = source.next_frame().unwrap() {
        assert_eq!(frame.index, read);
        read += 1;
    }
    assert_eq!(read, count);
    PEAK.load(Relaxed) - before
}

#[test]
fn a_bag_ten_times_as_long_takes_no_more_memory() {
    let root = tempfile::tempdir().unwrap();
    let (short, long) = (bag(root.path(), 30), bag(root.path(), 300));
    // Threads and their buffers, once.
    peak(&short, 30);
    let (a, b) = (peak(&short, 30), peak(&long, 300));
    println!("30 images: {a} bytes, 300 images: {b} bytes");
    // How far the decoder is ahead is up to the scheduler: two images, and as many in their messages.
    assert!(b < a + 4 * BYTES as isize, "{a} bytes, then {b}");
}
