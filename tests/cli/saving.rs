//! Runs whose results cannot be written: a full disk, a folder that takes no files, a reader that
//! went away. Nothing is half-written, and what could be saved is.
#![cfg(unix)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use testkit::program::{Scene, assert_failed, bundled, message, program, text};
use testkit::skip::{Need, skip};

/// The program on `scene`, started by a shell `script` as its `"$@"`; `$out` is the output folder.
fn run_from(script: &str, scene: &Scene) -> Output {
    let out = scene.out();
    let mut args = vec!["run", text(&scene.sequence), "--out", text(&out)];
    args.extend(["--size", "64", "--threads", "single"]);
    let run = program(&args);
    Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(run.get_program())
        .args(run.get_args())
        .env("out", &out)
        .env_remove("RUST_LOG")
        .env_remove("MAST3R_SLAM_SHARE")
        .output()
        .expect("sh starts")
}

/// The same with a file system of its own, mounted with `options`, as the output folder; it is gone
/// with the program, so what it held is listed on standard output after a line `left:`. `None`
/// where tests may not mount.
fn run_mounted(options: &str, scene: &Scene) -> Option<Output> {
    std::fs::create_dir(scene.out()).expect("a folder");
    let mounted = |then: &str| {
        format!(
            "exec unshare --mount --map-root-user sh -c \
             'mount -t tmpfs -o {options} tmpfs \"$out\" || exit 77; {then}' sh \"$@\""
        )
    };
    if !run_from(&mounted("true"), scene).status.success() {
        skip(
            Need::Mount,
            "this system does not let tests mount a file system",
        );
        return None;
    }
    let list = "\"$@\"; code=$?; echo left:; cd \"$out\"; find . -type f; exit $code";
    Some(run_from(&mounted(list), scene))
}

/// Every file below `folder`.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        match entry.path() {
            path if path.is_dir() => all.extend(files(&path)),
            path => all.push(path),
        }
    }
    all
}

#[test]
fn a_file_that_does_not_fit_is_not_there_and_the_others_are_whole() {
    let scene = Scene::new(5);
    let whole = scene.run(&[]);
    assert!(whole.status.success(), "{}", message(&whole));
    let (full, kept) = (scene.out(), scene.folder.path().join("whole"));
    std::fs::rename(&full, &kept).expect("moved away");

    // Files of 8 KiB or 16 (shells differ in the unit) and no more, as on a disk that fills up.
    let output = run_from("ulimit -f 16; trap '' XFSZ; exec \"$@\"", &scene);
    assert_failed(&output, &["the disk is full", text(&full)]);
    let left = files(&full);
    for path in &left {
        let name = path.strip_prefix(&full).expect("below it");
        let expected = std::fs::read(kept.join(name)).expect("a result of the whole run");
        let written = std::fs::read(path).expect("a file");
        // Single-threaded runs repeat to the bit, but for the times in the table.
        match name.ends_with("frames.csv") {
            true => assert_eq!(
                written.iter().filter(|b| **b == b'\n').count(),
                expected.iter().filter(|b| **b == b'\n').count()
            ),
            false => assert!(written == expected, "{} differs", name.display()),
        }
    }
    let has = |name: &str| left.contains(&full.join(name));
    assert!(has("trajectory.txt") && has("frames.csv"), "{left:?}");
    assert!(!has("report.html") && !has("cloud.ply"), "{left:?}");
}

#[test]
fn models_and_codebooks_that_do_not_fit_are_not_there() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let weights = root.join("engines/mast3r-mini/model.safetensors");
    let (models, words) = (folder.path().join("models"), folder.path().join("words"));
    std::fs::create_dir(&models).expect("a folder");
    let images = bundled();
    let export = ["network", "export", text(&weights), "--out", text(&models)];
    let build = ["codebook", "build", text(&images), "--out", text(&words)];
    let small = ["--size", "64x48"];
    let few = ["--size", "64", "--stride", "50", "--clusters", "8"];
    for args in [[&export[..], &small].concat(), [&build[..], &few].concat()] {
        let run = program(&args);
        let output = Command::new("sh")
            .args(["-c", "ulimit -f 16; trap '' XFSZ; exec \"$@\"", "sh"])
            .arg(run.get_program())
            .args(run.get_args())
            .output()
            .expect("sh starts");
        assert_failed(&output, &["the disk is full", text(folder.path())]);
        assert!(files(folder.path()).is_empty(), "{args:?}");
    }
}

#[test]
fn a_full_disk_is_said_to_be_one() {
    let scene = Scene::new(5);
    let Some(output) = run_mounted("size=64k", &scene) else {
        return;
    };
    assert_failed(&output, &["the disk is full", text(&scene.out())]);
    let said = String::from_utf8_lossy(&output.stdout);
    let (_, left) = said.split_once("left:\n").expect("a list");
    assert!(left.contains("./trajectory.txt"), "{left}");
    assert!(!left.contains(".writing"), "{left}");
}

#[test]
fn a_folder_that_takes_no_files_is_refused_before_any_work() {
    let scene = Scene::new(2);
    let Some(output) = run_mounted("ro", &scene) else {
        return;
    };
    assert_failed(&output, &["output folder", text(&scene.out()), "--out"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "left:\n", "nothing was begun");
}

#[test]
fn messages_without_a_reader_cause_no_panic() {
    let mut child = program(&["eval", "none.txt", "none.txt"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    drop(child.stderr.take());
    assert_eq!(child.wait().expect("it ends").code(), Some(1));
}
