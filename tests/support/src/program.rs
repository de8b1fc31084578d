//! Running the program on the first frames of the bundled sequence, at a small network size.

use crate::repository;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The bundled sequence.
pub fn bundled() -> PathBuf {
    repository("assets/room_loop")
}

/// The program that cargo built for the running test: two folders above the test program.
pub fn executable() -> PathBuf {
    let test = std::env::current_exe().expect("a test program has a path");
    let folder = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
    folder.join(format!("mast3r-slam{}", std::env::consts::EXE_SUFFIX))
}

/// The program with `args`, and without the variables of the environment that change what it does.
pub fn program(args: &[&str]) -> Command {
    let mut command = Command::new(executable());
    command
        .args(args)
        .env_remove("RUST_LOG")
        .env_remove("MAST3R_SLAM_SHARE");
    command
}

/// Tracks `sequence` into `out`; small and repeatable.
pub fn run(sequence: &Path, out: &Path, more: &[&str]) -> Output {
    let mut args = vec!["run", text(sequence), "--out", text(out)];
    args.extend(["--size", "64", "--threads", "single"]);
    args.extend(more);
    program(&args).output().expect("the program starts")
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("a UTF-8 path")
}

pub fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Exit code 1, one error that holds `parts`, no panic.
pub fn assert_failed(output: &Output, parts: &[&str]) {
    let message = message(output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert_eq!(message.matches("error:").count(), 1, "{message}");
    assert!(!message.contains("panicked"), "{message}");
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
}

/// Poses in a TUM file.
pub fn poses(path: &Path) -> usize {
    let text = std::fs::read_to_string(path).expect("a trajectory");
    text.lines().filter(|l| !l.starts_with('#')).count()
}

/// The first `count` frames of the bundled sequence, in a folder of their own.
pub fn sequence(folder: &Path, count: usize) -> PathBuf {
    let path = folder.join("sequence");
    std::fs::create_dir_all(path.join("rgb")).expect("a folder");
    let list = std::fs::read_to_string(bundled().join("rgb.txt")).expect("rgb.txt");
    let rows: Vec<&str> = list
        .lines()
        .filter(|l| !l.starts_with('#'))
        .take(count)
        .collect();
    for row in &rows {
        let image = row.split(' ').nth(1).expect("a file name");
        std::fs::copy(bundled().join(image), path.join(image)).expect("a copy");
    }
    std::fs::write(path.join("rgb.txt"), rows.join("\n") + "\n").expect("rgb.txt");
    for name in ["camera.yaml", "groundtruth.txt"] {
        std::fs::copy(bundled().join(name), path.join(name)).expect("a copy");
    }
    path
}

/// Image number `index` of such a folder.
pub fn image(sequence: &Path, index: usize) -> PathBuf {
    let list = std::fs::read_to_string(sequence.join("rgb.txt")).expect("rgb.txt");
    let row = list.lines().nth(index).expect("a row");
    sequence.join(row.split(' ').nth(1).expect("a file name"))
}

pub struct Scene {
    pub folder: tempfile::TempDir,
    pub sequence: PathBuf,
}

impl Scene {
    pub fn new(count: usize) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let sequence = sequence(folder.path(), count);
        Self { folder, sequence }
    }

    pub fn out(&self) -> PathBuf {
        self.folder.path().join("out")
    }

    pub fn run(&self, more: &[&str]) -> Output {
        run(&self.sequence, &self.out(), more)
    }
}
