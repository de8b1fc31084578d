//! The report stands alone, is well formed, and says what the map holds.

use mast3r_slam::eval::{self, Options, StampedPose};
use mast3r_slam::map::grid::OccupancyMap;
use mast3r_slam::map::trajectories;
use mast3r_slam::map::{CloudOptions, MapSnapshot, TrackingState};
use mast3r_slam::report::{self, ReportInput, RunSummary};
use mast3r_slam::time::Stamp;
use testkit::map_room::{camera, room};

fn truth(frames: usize) -> Vec<StampedPose> {
    (0..frames)
        .map(|i| StampedPose {
            stamp: Stamp::from_seconds(1000.0 + i as f64 / 30.0),
            world_from_camera: camera(i as f64 / frames as f64),
        })
        .collect()
}

fn page(snapshot: &MapSnapshot, truth: Option<&[StampedPose]>) -> String {
    let folder = tempfile::tempdir().unwrap();
    // Somewhere to look at it.
    let path = match std::env::var_os("REPORT_DIR") {
        Some(dir) => {
            std::path::PathBuf::from(dir).join(format!("report{}.html", snapshot.frames.len()))
        }
        None => folder.path().join("report.html"),
    };
    let estimate = trajectories::of_frames(snapshot, snapshot.largest_submap());
    let evaluation =
        truth.map(|truth| eval::evaluate(&estimate, truth, &Options::default()).unwrap());
    let run = RunSummary {
        fps: Some(1.63),
        peak_memory: Some(1_234_000_000),
        backend: "rten, 2 threads".to_owned(),
        scale: truth.map(|_| "by depth, a metre of the map is 1.002 m".to_owned()),
        mapping: vec![("refused edges".into(), "3".into())],
    };
    let settings = [
        ("config".to_owned(), "config/mini.yaml".to_owned()),
        (
            "source".to_owned(),
            "TUM RGB-D <room> & \"loop\", 300 frames".to_owned(),
        ),
        ("tracking.Q_conf".to_owned(), "0.5".to_owned()),
    ];
    let grid = OccupancyMap {
        resolution: 0.05,
        columns: 3,
        rows: 2,
        cells: vec![0, 0, 100, -1, 0, 100],
        ..OccupancyMap::default()
    };
    let input = ReportInput {
        snapshot,
        title: "room_loop <& \"demo\">",
        settings: &settings,
        evaluation: evaluation.as_ref(),
        ground_truth: truth,
        cloud: CloudOptions::default(),
        grid: truth.map(|_| &grid),
        splats: &[],
        run: &run,
    };
    report::write(&path, &input).unwrap();
    std::fs::read_to_string(&path).unwrap()
}

/// The page without scripts: they are tested in a browser.
fn without_scripts(page: &str) -> String {
    let (mut out, mut rest) = (String::new(), page);
    while let Some((before, script)) = rest.split_once("<script") {
        out.push_str(before);
        // A script may name the tag in a comment.
        rest = script.split_once("</script>").expect("its end").1;
    }
    out + rest
}

/// Every tag is closed in order; attributes are quoted; nothing comes from elsewhere.
fn assert_sound(page: &str) {
    let page = &without_scripts(page);
    let body = page.strip_prefix("<!DOCTYPE html>").unwrap();
    let mut open: Vec<&str> = Vec::new();
    let mut rest = body;
    while let Some(start) = rest.find('<') {
        assert!(!rest[..start].contains('>'), "a bare > in text");
        let end = start + rest[start..].find('>').unwrap();
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        assert!(!tag.contains('<'), "a bare < in {tag}");
        assert_eq!(tag.matches('"').count() % 2, 0, "quotes of {tag}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(tag.split_whitespace().next().unwrap());
        }
    }
    assert!(open.is_empty(), "{open:?} are not closed");
    for forbidden in [
        "http:", "https:", "//", "@import", "url(", "<link", "NaN", "inf ",
    ] {
        let plain = without_data(page);
        assert!(!plain.contains(forbidden), "{forbidden} in the page");
    }
}

/// The page without base64, in which any text may turn up.
fn without_data(page: &str) -> String {
    let mut out = String::new();
    for (i, part) in page.split(";base64,").enumerate() {
        let skip = if i == 0 { 0 } else { part.find('"').unwrap() };
        out.push_str(&part[skip..]);
    }
    out
}

#[test]
fn a_run_with_ground_truth_shows_everything() {
    let map = room(300, 14, 192, 144);
    let page = page(&map, Some(&truth(300)));
    assert_sound(&page);
    for text in [
        "room_loop &lt;&amp; &quot;demo&quot;&gt;",
        "ATE rmse, Sim(3)",
        "Trajectory from above",
        "ground truth",
        "loop edge",
        "Absolute trajectory error over time",
        "Time per frame",
        "rten, 2 threads",
        "1.23 <small>GB",
        "<canvas id=\"map\"",
        "id=\"map-data\"",
        "data:image/jpeg;base64,",
        "class=\"lost\"",
        "tracking.Q_conf",
        "Occupancy grid",
        "3 × 2 cells of 50 mm",
        "Scale over time",
        "a metre of the map is 1.002 m",
    ] {
        assert!(page.contains(text), "{text} is missing");
    }
    assert!(page.contains("<b class=\"bad\">10 <small></small></b><span>lost frames"));
    assert!(page.contains("<b>4 <small></small></b><span>loop edges"));
    assert_eq!(page.matches("<img ").count(), 9, "thumbnails and the grid");
    assert!(page.len() < 4_000_000, "{} bytes", page.len());
}

#[test]
fn without_ground_truth_there_is_no_error_plot() {
    let page = page(&room(20, 5, 64, 48), None);
    assert_sound(&page);
    let page = without_scripts(&page);
    assert!(!page.contains("ATE") && !page.contains("ground truth"));
    assert!(!page.contains("Occupancy grid"), "there is no grid");
    assert!(page.contains("no sensor measures the scale"));
}

#[test]
fn degenerate_maps_have_a_page_too() {
    let empty = page(&MapSnapshot::default(), None);
    assert_sound(&empty);
    assert!(empty.contains("No frame has a pose.") && empty.contains("No point has"));
    assert_sound(&page(&room(1, 1, 16, 16), None));
    // A single row of pixels has no surfaces.
    assert_sound(&page(&room(2, 1, 16, 1), None));
    let mut broken = room(9, 3, 16, 16);
    for k in &mut broken.keyframes {
        let view = k.view_mut();
        view.points = std::sync::Arc::new(vec![f32::NAN; view.points.len()]);
    }
    broken.frames[4].world_from_camera.translation.x = f64::NAN;
    let text = page(&broken, None);
    assert_sound(&text);
    assert!(text.contains("No point has"));
    let mut lost = room(9, 3, 16, 16);
    for f in &mut lost.frames {
        f.state = TrackingState::Lost;
        f.times = Default::default();
    }
    lost.keyframes.clear();
    let text = page(&lost, None);
    assert_sound(&text);
    assert!(text.contains("No frame has a pose.") && text.contains("No times were measured."));
}

#[test]
fn the_largest_part_of_a_broken_map_is_shown() {
    let mut map = room(40, 5, 32, 24);
    for f in map.frames.iter_mut().skip(12) {
        f.submap = 1;
    }
    for k in map.keyframes.iter_mut().filter(|k| k.frame_index >= 12) {
        k.submap = 1;
    }
    assert_eq!(map.largest_submap(), 1);
    let page = page(&map, None);
    assert_sound(&page);
    assert!(page.contains("2 unconnected parts") && page.contains("shows part 1"));
}
