//! `mast3r-slam splat`: files of splats.

use std::path::{Path, PathBuf};
use std::process::Output;
use testkit::program::{assert_failed, message, program, run, sequence, text};

fn splat(args: &[&str]) -> Output {
    let mut command = program(&["splat"]);
    command.args(args).output().expect("the program starts")
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}", message(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A PLY of `count` splats of degree 0, one value of which may be replaced.
fn ply(path: &Path, count: usize, value: Option<f32>) {
    let names = "x y z nx ny nz f_dc_0 f_dc_1 f_dc_2 opacity scale_0 scale_1 scale_2 rot_0 rot_1 rot_2 rot_3";
    let mut file = format!("ply\nformat binary_little_endian 1.0\nelement vertex {count}\n");
    for name in names.split(' ') {
        file += &format!("property float {name}\n");
    }
    file += "end_header\n";
    let mut bytes = file.into_bytes();
    for row in 0..count {
        let mut values = [0.25f32; 17];
        values[0] = row as f32;
        values[13] = 1.0;
        if row == 3 {
            values[9] = value.unwrap_or(values[9]);
        }
        bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    }
    std::fs::write(path, bytes).expect("a file");
}

#[test]
fn a_file_is_converted_there_and_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    ply(&path("a.ply"), 300, None);
    let files = [
        ("a.ply", "b.compressed.ply", "compressed PLY"),
        ("b.compressed.ply", "c.spz", "spz 4"),
        ("c.spz", "d.ply", "PLY (3DGS)"),
    ];
    for (from, to, format) in files {
        let (from, to) = (path(from), path(to));
        let text_of = said(&splat(&["convert", text(&from), text(&to)]));
        assert!(
            text_of.contains("300 rows") && text_of.contains(format),
            "{text_of}"
        );
        let text_of = said(&splat(&["info", text(&to)]));
        assert!(
            text_of.contains("rows: 300") && text_of.contains(format),
            "{text_of}"
        );
        assert!(text_of.contains("x 0.00 … 299.00"), "{text_of}");
    }
    assert_eq!(
        path("a.ply").metadata().expect("a file").len(),
        path("d.ply").metadata().expect("a file").len()
    );
}

#[test]
fn bad_files_and_names_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let (good, bad, out) = (path("good.ply"), path("bad.ply"), path("out.ply"));
    ply(&good, 10, None);
    ply(&bad, 10, Some(f32::NAN));
    let output = splat(&["convert", text(&bad), text(&out)]);
    assert_failed(&output, &["bad.ply", "opacity", "row 3"]);
    assert!(!out.exists());
    std::fs::write(&out, b"mine").expect("a file");
    let refused = splat(&["convert", text(&good), text(&out)]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(message(&refused).contains("--force"));
    assert_eq!(std::fs::read(&out).expect("a file"), b"mine");
    said(&splat(&["convert", text(&good), text(&out), "--force"]));
    let other = splat(&["convert", text(&good), text(&path("a.splat"))]);
    assert_eq!(other.status.code(), Some(2));
    assert!(message(&other).contains(".compressed.ply"));
    std::fs::write(&bad, b"solid\n").expect("a file");
    assert_failed(&splat(&["info", text(&bad)]), &["not a file of splats"]);
    assert_failed(&splat(&["info", text(&path("no.ply"))]), &["cannot read"]);
}

/// A saved map of the first frames of the bundled sequence.
fn map(folder: &Path, frames: usize) -> PathBuf {
    let sequence = sequence(folder, frames);
    let path = folder.join("room.map");
    let output = run(
        &sequence,
        &folder.join("out"),
        &["--calibrated", "--save-map", text(&path)],
    );
    assert!(output.status.success(), "{}", message(&output));
    path
}

/// The number after `word` in the line of `text` that starts with `line`.
fn number(text: &str, line: &str, word: &str) -> f64 {
    let line = text.lines().find(|l| l.starts_with(line));
    let line = line.unwrap_or_else(|| panic!("no line {line:?} in: {text}"));
    let rest = line.split(word).nth(1).expect("the word");
    let number: String = rest
        .trim_start()
        .chars()
        .take_while(|c| c.is_ascii_digit() || *c == '.')
        .collect();
    number.trim_end_matches('.').parse().expect("a number")
}

#[test]
fn training_raises_the_quality_on_held_out_keyframes_and_goes_on_later() {
    let folder = tempfile::tempdir().expect("a folder");
    let map = map(folder.path(), 25);
    let out = folder.path().join("room.ply");
    let train = |more: &[&str]| {
        let mut args = vec!["train", text(&map), "--out", text(&out)];
        args.extend(["--device", "cpu", "--capacity", "30000"]);
        args.extend(["--set", "splat.holdout=3", "--set", "splat.stride=1"]);
        args.extend(more);
        splat(&args)
    };
    let told = said(&train(&["--iterations", "400"]));
    let before = number(&told, "quality before", "PSNR");
    let after = number(&told, "quality after", "PSNR");
    assert!(told.contains("held-out"), "{told}");
    assert!(
        after > before + 5.0,
        "{before} dB before, {after} dB after: {told}"
    );
    let rows = number(&said(&splat(&["info", text(&out)])), "rows", ":");
    assert!(rows > 1000.0 && rows <= 30_000.0, "{rows}");
    // Without --force, the file stays.
    assert_eq!(train(&["--iterations", "400"]).status.code(), Some(2));
    let told = said(&train(&["--iterations", "450", "--resume"]));
    assert!(told.contains("resumed at iteration 400"), "{told}");
    assert!(
        (number(&told, "quality before", "PSNR") - after).abs() < 0.02,
        "{told}"
    );
    assert!(told.contains("50 iterations in"), "{told}");
}

#[test]
fn the_frames_between_keyframes_are_trained_on_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let sequence = sequence(folder.path(), 20);
    let (map, results) = (folder.path().join("room.map"), folder.path().join("out"));
    let output = run(
        &sequence,
        &results,
        &[
            "--calibrated",
            "--save-map",
            text(&map),
            // At this size every frame would become a keyframe.
            "--set",
            "tracking.match_frac_thresh=0.2",
        ],
    );
    assert!(output.status.success(), "{}", message(&output));
    let out = folder.path().join("room.ply");
    let train = |more: &[&str]| {
        let mut args = vec!["train", text(&map), "--out", text(&out), "--force"];
        args.extend(["--device", "cpu", "--capacity", "5000", "--iterations", "3"]);
        args.extend(["--set", "splat.C_conf=0", "--set", "splat.align=2"]);
        args.extend(more);
        splat(&args)
    };
    let trajectory = results.join("trajectory.txt");
    let frames = ["--frames", text(&sequence), "--trajectory"];
    let told = said(&train(&[&frames[..], &[text(&trajectory)]].concat()));
    let poses = std::fs::read_to_string(&trajectory).expect("poses");
    let views = poses.lines().filter(|l| !l.starts_with('#')).count();
    assert!(
        told.contains(&format!("{views} keyframes and other frames of")),
        "{told}"
    );
    assert!(told.contains("aligned with the splats"), "{told}");
    // A training of some seconds ends with them, whatever the number of iterations in the configuration.
    let mut args = vec!["train", text(&map), "--out", text(&out), "--force"];
    args.extend(["--device", "cpu", "--capacity", "5000", "--seconds", "4"]);
    args.extend(["--set", "splat.C_conf=0", "--set", "splat.iterations=1"]);
    let told = said(&splat(&args));
    let line = told.lines().find(|l| l.contains("iterations in"));
    let seconds = line.and_then(|l| l.split(" iterations in ").nth(1)?.split(' ').next());
    let seconds: f64 = seconds.expect("a time").parse().expect("a number");
    assert!((3.0..12.0).contains(&seconds), "{told}");
    // The keyframes alone are trained on after a hint.
    assert!(said(&train(&[])).contains("--frames SEQUENCE"));
    // Poses of other frames, no poses, and frames of another camera.
    let other = folder.path().join("other.txt");
    std::fs::write(&other, "99 0 0 0 0 0 0 1\n").expect("a file");
    let output = train(&[&frames[..], &[text(&other)]].concat());
    assert_failed(&output, &["other.txt", "no frame has the stamp"]);
    assert_eq!(train(&frames[..2]).status.code(), Some(2));
    let calib = folder.path().join("calib.yaml");
    let camera = std::fs::read_to_string(sequence.join("camera.yaml")).expect("a camera");
    let camera = camera.replace("fx: 379", "fx: 479");
    std::fs::write(&calib, camera).expect("a file");
    let more = [text(&trajectory), "--calib", text(&calib)];
    assert_failed(
        &train(&[&frames[..], &more].concat()),
        &["those of the map are"],
    );
}

#[test]
fn a_map_without_images_and_other_files_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let sequence = sequence(folder.path(), 12);
    let path = folder.path().join("room.map");
    let output = run(
        &sequence,
        &folder.path().join("out"),
        &["--map", text(&path)],
    );
    assert!(output.status.success(), "{}", message(&output));
    let database = rusqlite::Connection::open(&path).expect("a map");
    database
        .execute_batch("DELETE FROM image")
        .expect("deleted");
    drop(database);
    let out = folder.path().join("room.ply");
    let train = |map: &Path| splat(&["train", text(map), "--out", text(&out), "--device", "cpu"]);
    assert_failed(&train(&path), &["room.map", "no keyframe whose image"]);
    let other = folder.path().join("other.map");
    std::fs::write(&other, b"text").expect("a file");
    assert_failed(&train(&other), &["other.map"]);
    assert!(!out.exists());
}

#[test]
fn a_run_makes_splats_beside_and_writes_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let sequence = sequence(folder.path(), 60);
    let out = folder.path().join("out");
    let more = [
        "--calibrated",
        "--device",
        "cpu",
        "--splat",
        "--set",
        "splat.capacity=30000",
    ];
    let told = said(&run(&sequence, &out, &more));
    assert!(told.contains("splats: at most 30000, on"), "{told}");
    assert!(told.contains("PSNR"), "{told}");
    let told = said(&splat(&["info", text(&out.join("splat.ply"))]));
    assert!(number(&told, "rows", ":") > 500.0, "{told}");
    // Another format is refused before any work.
    let refused = run(&sequence, &out, &["--force", "--splat", "a.splat"]);
    assert_eq!(refused.status.code(), Some(2));
    // What does not fit is left out.
    let more = [
        "--force",
        "--device",
        "cpu",
        "--splat",
        "--set",
        "splat.capacity=1073741823",
    ];
    let output = run(&sequence, &out, &more);
    assert!(output.status.success(), "{}", message(&output));
    assert!(
        message(&output).contains("the Gaussian map is left out"),
        "{}",
        message(&output)
    );
    assert!(!out.join("splat.ply").exists());
}
