//! The viewer in `report.html`, from a file.

use serde_json::json;
use testkit::browser::Browser;
use testkit::program::{Scene, message};

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
