//! `run --save-map` and `run --map`: another process goes on in the map of the first.

use std::path::Path;
use testkit::program::{Scene, assert_failed, message, program, run, text};

/// Keyframes that a run wrote.
fn keyframes(out: &Path) -> usize {
    let table = std::fs::read_to_string(out.join("keyframes.csv")).expect("a table");
    table.lines().count() - 1
}

#[test]
fn another_process_finds_itself_in_the_map() {
    let scene = Scene::new(6);
    let map = scene.folder.path().join("maps/room.map");
    let first = scene.run(&["--save-map", text(&map)]);
    assert!(first.status.success(), "{}", message(&first));
    let said = String::from_utf8_lossy(&first.stdout).into_owned();
    let made = keyframes(&scene.out());
    let part = format!("map: {made} keyframe");
    assert!(said.contains(&part), "{part:?} is not in: {said}");

    let out = scene.folder.path().join("second");
    let second = run(&scene.sequence, &out, &["--map", text(&map)]);
    assert!(second.status.success(), "{}", message(&second));
    let said = String::from_utf8_lossy(&second.stdout).into_owned();
    for part in [part.as_str(), "1 relocalised"] {
        assert!(said.contains(part), "{part:?} is not in: {said}");
    }
    assert!(!said.contains("unconnected"), "{said}");
    assert!(
        keyframes(&out) > made,
        "the frame that was found is no keyframe"
    );
}

#[test]
fn what_is_no_map_or_of_another_size_is_refused_before_anything_is_written() {
    let scene = Scene::new(3);
    let folder = scene.folder.path();
    let (map, missing) = (folder.join("room.map"), folder.join("missing.map"));
    let made = scene.run(&["--save-map", text(&map)]);
    assert!(made.status.success(), "{}", message(&made));
    let out = folder.join("second");
    let image = scene.out().join("cloud.ply");
    let refused = |map: &Path, more: &[&str], parts: &[&str]| {
        let args = [&["--map", text(map)], more].concat();
        assert_failed(&run(&scene.sequence, &out, &args), parts);
        let left = std::fs::read_dir(&out).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{parts:?}: something was written");
    };
    refused(&missing, &["--read-only"], &["missing.map"]);
    refused(&image, &[], &["cloud.ply"]);
    refused(&map, &["--calibrated"], &["uncalibrated", "use_calib"]);
    let sequence = text(&scene.sequence);
    let args = [
        "run",
        sequence,
        "--out",
        text(&out),
        "--size",
        "96",
        "--map",
        text(&map),
    ];
    let larger = program(&args).output().expect("the program starts");
    assert_failed(&larger, &["64×48", "network.size"]);
    let whole = std::fs::read(&map).expect("the map");
    std::fs::write(&map, &whole[..whole.len() - 7]).expect("a shorter map");
    refused(&map, &[], &["room.map", "bytes, expected"]);
}
