//! The viewer in `report.html`, from a file.

use serde_json::json;
use std::time::Duration;
use testkit::browser::Browser;
use testkit::program::{Scene, message};

#[test]
fn the_report_shows_splats_without_a_server() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let scene = Scene::new(4);
    let settings = ["--set", "output.C_conf=0", "--set", "splat.C_conf=0"];
    let output = scene.run(&[&settings[..], &["--calibrated", "--splat"]].concat());
    assert!(output.status.success(), "{}", message(&output));
    let told = String::from_utf8_lossy(&output.stdout);
    let made = told.lines().find_map(|line| {
        let (number, _) = line.strip_prefix("splats: ")?.split_once(" after ")?;
        number.parse::<u64>().ok()
    });
    let report = scene.out().join("report.html");
    let tab = browser.open(&format!("file://{}", report.display()));
    browser.wait(&tab, "the map", "window.report?.scene?.pointCount > 1000");
    // They are drawn while they are on screen.
    browser.eval(&tab, "document.getElementById('splats').scrollIntoView()");
    browser.wait(&tab, "the splats", "report.splats.frames > 10");
    let count = browser.eval(&tab, "report.splats.count");
    assert!(
        made > Some(500) && count.as_u64() == made,
        "{count}: {told}"
    );
    // A worker sorts them before the first image of them.
    let mut splats = browser.canvas(&tab, "splats");
    for _ in 0..200 {
        if splats.colors() > 100 {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
        splats = browser.canvas(&tab, "splats");
    }
    assert!(
        splats.drawn() > 2_000 && splats.colors() > 100,
        "{} pixels, {} colours",
        splats.drawn(),
        splats.colors()
    );
    // Without splats, neither they nor their viewer are in the page.
    let output = scene.run(&["--calibrated", "--set", "output.C_conf=0", "--force"]);
    assert!(output.status.success(), "{}", message(&output));
    let page = std::fs::read_to_string(&report).expect("a report");
    assert!(!page.contains("splat-viewer") && !page.contains("<h2>Splats"));
}

#[test]
fn the_report_shows_the_map_without_a_server() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let scene = Scene::new(8);
    // At so small a size the network is sure of little.
    let output = scene.run(&["--calibrated", "--set", "output.C_conf=0"]);
    assert!(output.status.success(), "{}", message(&output));
    let report = scene.out().join("report.html");
    let tab = browser.open(&format!("file://{}", report.display()));
    browser.wait(&tab, "the map", "window.report?.scene?.pointCount > 1000");
    let map = browser.canvas(&tab, "map");
    assert!(
        map.drawn() > 2_000 && map.colors() > 100,
        "{} pixels, {} colours",
        map.drawn(),
        map.colors()
    );
    let counts = browser.eval(
        &tab,
        "[report.scene.graph.keyframes.size, report.scene.trail.count]",
    );
    assert!(
        counts[0].as_u64() >= Some(1) && counts[1] == json!(8),
        "{counts}"
    );
    // The rest of the page is still there.
    let text = browser.eval(&tab, "document.body.innerText");
    assert!(
        text.as_str().is_some_and(|t| t.contains("Time per frame")),
        "{text}"
    );
    let size = std::fs::metadata(&report).expect("a report").len();
    assert!(size < 6_000_000, "{size} bytes");
}
