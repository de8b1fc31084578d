//! Too many pages, and pages that are slow.

use crate::client::{Stream, get};
use crate::walk::{Walk, wait};
use mast3r_slam::view::MAX_PAGES;
use serde_json::Value;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Kind of a message with an image.
const IMAGE: u8 = 3;
const STATE: u8 = 2;
/// Images that a page misses while it stands still.
const IMAGES: usize = 25;

fn number(message: &[u8]) -> u32 {
    u32::from_le_bytes(message[..4].try_into().expect("a number"))
}

#[test]
fn of_a_hundred_pages_eight_are_served_and_the_ninth_is_told() {
    let walk = Walk::start(Duration::from_millis(20));
    walk.pass(3);
    let mut open = Vec::new();
    let mut refused = 0;
    for _ in 0..100 {
        let stream = Stream::open(walk.address, "/stream");
        match stream.status {
            200 => open.push(stream),
            status => {
                assert_eq!(status, 503);
                refused += 1;
            }
        }
    }
    assert_eq!((open.len(), refused), (MAX_PAGES, 100 - MAX_PAGES));
    let told = get(walk.address, "/stream");
    assert!(
        told.status == 503 && told.body.contains("8 pages are open"),
        "{told:?}"
    );
    for stream in &mut open {
        assert!(stream.message().is_some());
    }
    // Scrapes are served beside them.
    let metrics = get(walk.address, "/metrics").body;
    assert!(metrics.contains("mast3r_slam_pages 8.0"), "{metrics}");
    assert!(
        metrics.contains("mast3r_slam_pages_refused_total 93"),
        "{metrics}"
    );
    open.clear();
    wait("free places", || {
        get(walk.address, "/metrics")
            .body
            .contains("mast3r_slam_pages 0.0")
    });
    assert_eq!(Stream::open(walk.address, "/stream").status, 200);
}

/// A page that reads nothing for a while: tracking goes on at its pace, the server's memory does not grow, and the page
/// continues with the newest.
#[test]
fn a_slow_page_misses_frames_and_tracking_does_not_notice() {
    let walk = Walk::start(Duration::from_millis(5));
    let mut fast = Stream::open(walk.address, "/stream");
    let mut slow = Stream::open_narrow(walk.address, "/stream");
    let next_image = |stream: &mut Stream| loop {
        let (kind, message) = stream.message().expect("a message");
        if kind == IMAGE {
            return number(&message);
        }
    };
    let first = next_image(&mut slow);
    let (mut newest, mut pace) = (next_image(&mut fast), 0);
    // The slow one stands still while the fast one sees more images than the buffers between hold. An emulator shows few
    // in the minute after which the server takes a page for gone.
    for _ in 0..IMAGES {
        let number = next_image(&mut fast);
        pace = pace.max(number - newest);
        newest = number;
    }
    let frames = walk.frames.load(Ordering::Acquire) as u32;
    assert!(frames >= first + IMAGES as u32);
    walk.pass(50);
    // What was under way comes first; then a gap.
    let mut last = first;
    let mut gap = 0;
    while last < frames {
        let number = next_image(&mut slow);
        assert!(number > last, "images come in order");
        gap = gap.max(number - last);
        last = number;
    }
    assert!(
        gap > 4 * pace,
        "a gap of {gap} frames; the fast page has gaps of {pace}"
    );
    let metrics = get(walk.address, "/metrics").body;
    let counter = metrics
        .lines()
        .find_map(|l| l.strip_prefix("mast3r_slam_page_images_left_out_total "));
    let left_out: f64 = counter.and_then(|n| n.parse().ok()).expect("a counter");
    assert!(left_out > 0.0);
}

#[test]
fn nothing_is_made_for_pages_that_are_not_open() {
    let walk = Walk::start(Duration::from_millis(10));
    walk.pass(30);
    let mut page = Stream::open(walk.address, "/stream");
    let mut states = 0;
    let mut way = 0;
    while states < 3 || way < 20 {
        let (kind, message) = page.message().expect("a message");
        if kind == STATE {
            states += 1;
            let state: Value = serde_json::from_slice(&message).expect("JSON");
            assert!(state["frames"].as_u64() >= Some(1));
        }
        if kind == 6 {
            way = way.max(number(&message) + number(&message[4..]));
        }
        if kind == IMAGE {
            // The first image is of a frame that came after the page.
            assert!(number(&message) >= 30, "{}", number(&message));
        }
    }
}
