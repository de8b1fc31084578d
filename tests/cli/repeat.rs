//! Single-threaded runs repeat bit for bit, with the bundled network at its own size.

use std::path::Path;
use testkit::program::{bundled, message, program, text};

/// Runs twenty frames, and returns what must not differ: file names with their contents.
fn results(folder: &Path, jobs: &str) -> Vec<(String, Vec<u8>)> {
    let out = folder.join(jobs);
    let map = out.join("slam.map");
    let sequence = bundled();
    let mut args = vec!["run", text(&sequence), "--out", text(&out)];
    args.extend(["--save-map", text(&map), "--jobs", jobs]);
    args.extend(["--threads", "single", "--calibrated"]);
    args.extend(["--stride", "4", "--end", "80"]);
    let ran = program(&args).output().expect("the program starts");
    assert!(ran.status.success(), "{}", message(&ran));
    let mut files: Vec<(String, Vec<u8>)> = std::fs::read_dir(&out)
        .expect("results")
        .flatten()
        .filter(|entry| entry.path().is_file())
        .map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, std::fs::read(entry.path()).expect("a file"))
        })
        .collect();
    // The table of frames and the report hold times.
    files.retain(|(name, _)| name != "frames.csv" && name != "report.html");
    files.sort();
    files
}

#[test]
fn single_threaded_runs_give_the_same_bits_with_one_job_and_with_two() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let first = results(folder.path(), "1");
    let names: Vec<&str> = first.iter().map(|(name, _)| &name[..]).collect();
    for name in ["trajectory.txt", "keyframes.txt", "cloud.ply", "slam.map"] {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    let (_, keyframes) = &first[names
        .iter()
        .position(|n| *n == "keyframes.txt")
        .expect("it")];
    let poses = keyframes.iter().filter(|byte| **byte == b'\n').count();
    assert!(poses > 2, "{poses} lines: too few keyframes to compare");
    let second = results(folder.path(), "2");
    assert_eq!(first.len(), second.len());
    for ((name, a), (second_name, b)) in first.iter().zip(&second) {
        assert_eq!(name, second_name);
        assert!(a == b, "{name} differs with two jobs");
    }
}
