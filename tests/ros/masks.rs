//! Masks: a file, and a topic.

use crate::support::memory::Memory;
use crate::support::stage::{Stage, arguments};
use crate::support::{Room, wait};
use mast3r_slam::ros::node::{Node, NodeError};
use mast3r_slam::time::Stamp;
use mast3r_slam::wire::messages::Header;
use mast3r_slam::wire::messages::sensor::Image;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;
use testkit::room::SIZE;

/// A mask on its topic: grey, of `size`, all of one `value`.
fn mask(stage: &Stage, size: (usize, usize), value: u8) {
    let data = vec![value; size.0 * size.1];
    let image = Image {
        header: Header::new(Stamp { nanos: stage.next }, "camera"),
        height: size.1 as u32,
        width: size.0 as u32,
        encoding: "mono8".to_owned(),
        is_bigendian: 0,
        step: size.0 as u32,
        data: serde_bytes::Bytes::new(&data),
    };
    stage.graph.send("/mask", &image);
}

#[test]
fn the_newest_mask_hides_pixels_for_a_second() {
    let mut stage = Stage::ready("use_mask:=true");
    // No map can be started with what is hidden.
    for _ in 0..3 {
        mask(&stage, SIZE, 0);
        stage.show(Some(0));
    }
    assert_eq!(stage.graph.count("/slam/pose"), 0);
    mask(&stage, SIZE, 1);
    stage.track(3);
    // Lost while everything is hidden, and found again when nothing is.
    let hidden = || stage.diagnostics() == (1, "lost".into());
    let mut tries = 0;
    while !hidden() && tries < 100 {
        mask(&stage, SIZE, 0);
        let nanos = stage.next + tries * 33_000_000;
        stage.image_at(nanos, Some(2));
        sleep(Duration::from_millis(20));
        tries += 1;
    }
    assert!(hidden());
    stage.next += (tries + 1) * 33_000_000;
    sleep(Duration::from_millis(1100));
    stage.find();
}

#[test]
fn masks_that_cannot_be_used_are_ignored() {
    let mut stage = Stage::ready("use_mask:=true");
    for (size, value) in [((16, 16), 0), ((SIZE.0, SIZE.1 / 2), 0), ((0, 0), 0)] {
        mask(&stage, size, value);
        stage.track(1);
    }
    // Without the parameter, the topic is ignored.
    let mut stage = Stage::ready("");
    mask(&stage, SIZE, 0);
    stage.track(2);
}

fn picture(folder: &Path, (width, height): (usize, usize)) -> PathBuf {
    let path = folder.join("mask.png");
    let white = image::GrayImage::from_pixel(width as u32, height as u32, image::Luma([255]));
    white.save(&path).unwrap();
    path
}

#[test]
fn a_mask_file_is_read_at_the_start_and_must_fit() {
    let folder = tempfile::tempdir().unwrap();
    let file = |path: &Path| format!("mask_file:={}", path.display());
    let mut stage = Stage::ready(&file(&picture(folder.path(), SIZE)));
    stage.track(3);
    drop(stage);

    let mut stage = Stage::ready(&file(&picture(folder.path(), (SIZE.0, 8))));
    stage.image_at(stage.next, Some(0));
    wait("the reason", || {
        let (level, message) = stage.diagnostics();
        level == 2 && message.contains("mask.png") && message.contains("128×8")
    });
    stage.next += 1;

    let none = folder.path().join("none.png");
    let args = arguments(&format!("use_calib:=false {}", file(&none)));
    let refused = Node::start(Arc::new(Memory::new()), Room::default().builder(), &args);
    let error = refused.err().expect("no such file");
    assert!(matches!(error, NodeError::Configure(_)), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("mask_file") && text.contains("none.png"),
        "{text}"
    );
}
