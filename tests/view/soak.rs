//! A walk at 30 Hz with a page open takes constant memory on both sides. Half an hour: MAST3R_VIEW_SECONDS=1800.

use crate::walk::{FRAMES, Walk};
use mast3r_slam::files::memory;
use serde_json::json;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use testkit::browser::Browser;

/// Frames in which everything that has a bound fills up (three ways there and back), and seconds after that.
const WARM: usize = 6 * FRAMES;
const SECONDS: u64 = 20;
/// Resident memory that may come and go, in megabytes.
const OWN_GROWTH: f64 = 24.0;
/// The same in the page, whose collector takes its time.
const PAGE_GROWTH: f64 = 24.0;

/// Resident memory of this process in megabytes.
fn resident() -> f64 {
    memory::resident().expect("a size") as f64 / f64::from(1 << 20)
}

#[test]
fn a_page_and_its_server_take_constant_memory() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let seconds = std::env::var("MAST3R_VIEW_SECONDS").ok();
    let seconds = seconds.map_or(SECONDS, |s| s.parse().expect("a number of seconds"));
    let walk = Walk::start(Duration::from_micros(33_333));
    let tab = browser.open(&walk.page());
    browser.wait(
        &tab,
        "the map",
        "live.connected && live.scene.pointCount > 1000",
    );
    let look = |browser: &mut Browser| {
        browser.call(Some(&tab), "HeapProfiler.collectGarbage", json!({}));
        let usage = browser.call(Some(&tab), "Runtime.getHeapUsage", json!({}));
        let bytes = |name: &str| usage[name].as_f64().unwrap_or(0.0);
        let page =
            (bytes("usedSize") + bytes("embedderHeapUsedSize") + bytes("backingStorageSize")) / 1e6;
        (resident(), page)
    };
    walk.pass(WARM);
    let (own, page) = look(&mut browser);
    let (from, start) = (walk.frames.load(Ordering::Acquire), Instant::now());
    let mut most = (own, page);
    while start.elapsed() < Duration::from_secs(seconds) {
        std::thread::sleep(Duration::from_secs(5.min(seconds)));
        let now = look(&mut browser);
        most = (most.0.max(now.0), most.1.max(now.1));
    }
    let frames = walk.frames.load(Ordering::Acquire) - from;
    let received = browser.eval(
        &tab,
        "[live.images, live.bytes, live.connections, live.scene.pointCount]",
    );
    println!(
        "{frames} frames in {:.0} s; process {own:.1} MB, at most {:.1}; page {page:.1} MB, at most {:.1}; images, \
         bytes, connections, points: {received}",
        start.elapsed().as_secs_f64(),
        most.0,
        most.1
    );
    assert!(
        most.0 - own < OWN_GROWTH,
        "the process grew from {own:.1} to {:.1} MB",
        most.0
    );
    assert!(
        most.1 - page < PAGE_GROWTH,
        "the page grew from {page:.1} to {:.1} MB",
        most.1
    );
    assert_eq!(received[2], json!(1), "one connection lasted");
    assert!(frames > 0 && received[0].as_u64() > Some(10));
}
