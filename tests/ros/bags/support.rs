//! Bags to read: written by PyPI rosbags (`tests/ros/bags.py`), or by our own writer where it is only the reader's
//! answer to their content that counts.

use mast3r_slam::image::RgbImage;
use mast3r_slam::image::encoding::{Encoding, RawImage};
use mast3r_slam::source::{self, BagTopics, SourceFrame, SourceOptions};
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ros/bags.py");

/// Has rosbags write a bag.
pub fn write(python: &str, specification: &Value) {
    let mut child = Command::new(python)
        .args([SCRIPT, "write"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("python");
    let text = specification.to_string();
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(text.as_bytes()).expect("a reader");
    drop(stdin);
    let ended = child.wait_with_output().expect("an end");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "rosbags failed: {said}");
}

/// A bag as read by rosbags: topics with types, counts and messages.
pub fn read(python: &str, path: &Path) -> Value {
    let ran = Command::new(python)
        .args([SCRIPT, "read"])
        .arg(path)
        .output()
        .expect("python");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "rosbags failed: {said}");
    serde_json::from_slice(&ran.stdout).expect("JSON")
}

/// The bytes that `bags.py` fills images with.
pub fn pattern(seed: usize, length: usize) -> Vec<u8> {
    let byte = |i: usize| ((7 * i + 13 * seed + i / 11) % 251) as u8;
    (0..length).map(byte).collect()
}

pub const SIZE: (usize, usize) = (12, 8);

/// Every encoding by its ROS name, and whether its numbers have the high byte first.
const NAMES: [(&str, bool); 14] = [
    ("rgb8", false),
    ("bgr8", false),
    ("rgba8", false),
    ("bgra8", false),
    ("mono8", false),
    ("mono16", false),
    ("mono16", true),
    ("yuv422", false),
    ("yuv422_yuy2", false),
    ("nv12", false),
    ("bayer_rggb8", false),
    ("bayer_grbg8", false),
    ("bayer_gbrg8", false),
    ("bayer_bggr8", false),
];

/// A raw image of a bag, and the picture that it is.
pub struct Sent {
    pub specification: Value,
    pub stamp: i64,
    pub image: RgbImage,
}

/// An image of each encoding with padded rows, stamped in steps of 0.1 s, each recorded 5 ms later.
pub fn every_encoding(topic: &str) -> Vec<Sent> {
    let sent = |(k, (name, big)): (usize, &(&str, bool))| {
        let encoding = Encoding::from_name(name, *big).expect(name);
        let (width, height) = SIZE;
        let stride = encoding.row_bytes(width) + 4;
        let rows = if encoding == Encoding::Nv12 {
            height + height / 2
        } else {
            height
        };
        let data = pattern(k, stride * rows);
        let raw = RawImage {
            encoding,
            width,
            height,
            stride,
            data: &data,
        };
        let mut image = RgbImage::default();
        raw.to_rgb(&mut image).expect(name);
        let stamp = 1_700_000_000_123_456_789 + k as i64 * 100_000_000;
        Sent {
            specification: json!({
                "topic": topic, "type": "image", "stamp": stamp, "log": stamp + 5_000_000,
                "encoding": name, "big": u8::from(*big), "width": width, "height": height,
                "step": stride, "length": data.len(), "seed": k,
            }),
            stamp,
            image,
        }
    };
    NAMES.iter().enumerate().map(sent).collect()
}

/// Opens a bag with the topics that are found.
pub fn open(path: &Path) -> Result<Box<dyn source::Source>, String> {
    source::open(path, SourceOptions::default()).map_err(|e| e.to_string())
}

/// The frames up to the end or an error, and that error.
pub fn frames(source: &mut dyn source::Source) -> (Vec<SourceFrame>, Option<String>) {
    let mut frames = Vec::new();
    loop {
        match source.next_frame() {
            Ok(Some(frame)) => frames.push(frame),
            Ok(None) => return (frames, None),
            Err(error) => return (frames, Some(error.to_string())),
        }
    }
}

/// Opens a bag with a named image topic.
pub fn open_named(path: &Path, image: &str) -> Result<Box<dyn source::Source>, String> {
    let topics = BagTopics {
        image: Some(image.to_owned()),
        camera_info: None,
        ..Default::default()
    };
    source::open_bag(path, SourceOptions::default(), &topics).map_err(|e| e.to_string())
}
