//! Reading a bag takes as much memory for a long one as for a short one.

use mast3r_slam::bag::BagWriter;
use mast3r_slam::source::{SourceOptions, open};
use mast3r_slam::time::Stamp;
use mast3r_slam::wire::Qos;
use mast3r_slam::wire::messages::Header;
use mast3r_slam::wire::messages::sensor::Image;
use serde_bytes::Bytes;
use std::path::{Path, PathBuf};
use testkit::counting;

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

/// The largest number of bytes in use while a bag of `count` images is read.
fn peak(path: &Path, count: usize) -> isize {
    counting::peak(|| {
        let mut source = open(path, SourceOptions::default()).unwrap();
        let mut read = 0;
        while let Some(frame) = source.next_frame().unwrap() {
            assert_eq!(frame.index, read);
            read += 1;
        }
        assert_eq!(read, count);
    })
}

pub fn a_bag_ten_times_as_long_takes_no_more_memory() {
    let root = tempfile::tempdir().unwrap();
    let (short, long) = (bag(root.path(), 30), bag(root.path(), 300));
    // Threads and their buffers, once.
    peak(&short, 30);
    let (a, b) = (peak(&short, 30), peak(&long, 300));
    println!("30 images: {a} bytes, 300 images: {b} bytes");
    // How far the decoder is ahead is up to the scheduler: two images, and as many in their messages.
    assert!(b < a + 4 * BYTES as isize, "{a} bytes, then {b}");
}
