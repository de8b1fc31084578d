//! Command lines that cannot be right: an exit code, one message on standard error, no panic.

use std::path::Path;
use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    let folder = tempfile::tempdir().expect("a temporary folder");
    run_in(folder.path(), args)
}

fn run_in(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mast3r-slam"))
        .args(args)
        .current_dir(folder)
        .env_remove("RUST_LOG")
        .env_remove("MAST3R_SLAM_SHARE")
        .output()
        .expect("the program starts")
}

/// Fails as it should: `code`, one line that starts with `error:` and holds `parts`.
fn assert_refused(output: &Output, code: i32, parts: &[&str]) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{message}");
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
    assert_eq!(message.matches("error:").count(), 1, "{message}");
    for word in ["panicked", "RUST_BACKTRACE", "unwrap"] {
        assert!(!message.contains(word), "{message}");
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a UTF-8 path")
}

/// A file that stands in for weights where the run must end before they are read.
fn weights() -> String {
    format!("{}/Cargo.toml", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn usage_errors_end_with_code_2() {
    for (args, parts) in [
        (&["run"][..], &["<PATH>"][..]),
        (&["run", ".", "--bogus"], &["--bogus"]),
        (&["walk", "."], &["walk"]),
        (&["run", ".", "--stride", "0"], &["--stride", "1 or more"]),
        (&["run", ".", "--stride", "-1"], &["-1"]),
        (&["run", ".", "--jobs", "0"], &["--jobs", "1 to 1024"]),
        (&["run", ".", "--jobs", "100000"], &["--jobs", "1 to 1024"]),
        (&["run", ".", "--start", "x"], &["--start", "x"]),
        (
            &["run", ".", "--threads", "both"],
            &["--threads", "pipelined"],
        ),
        (&["run", ".", "--loops", "maybe"], &["--loops", "off"]),
        (
            &["run", ".", "--calib", "c.yaml", "--no-calib"],
            &["--calib", "--no-calib"],
        ),
        (
            &["run", ".", "--start", "5", "--end", "5"],
            &["--end", "larger"],
        ),
        (&["eval", "a.txt"], &["<GROUND_TRUTH>"]),
        (
            &["eval", "a.txt", "b.txt", "--align", "affine"],
            &["affine", "sim3"],
        ),
        (&["eval", "a.txt", "b.txt", "--tolerance", "-1"], &["-1"]),
        (
            &["eval", "a.txt", "b.txt", "--tolerance=nan"],
            &["nan", "seconds"],
        ),
        (&["eval", "a.txt", "b.txt", "--delta", "0"], &["--delta"]),
        (&["network", "export", "w.pth"], &["--out"]),
        (
            &[
                "network", "export", "w.pth", "--out", "o", "--size", "500x384",
            ],
            &["multiple of 16"],
        ),
        (&["codebook", "build"], &["<PATH>"]),
        (
            &["codebook", "build", ".", "--clusters", "0"],
            &["--clusters"],
        ),
    ] {
        assert_refused(&run(args), 2, parts);
    }
}

#[test]
fn missing_files_are_named_before_any_work() {
    let w = weights();
    for (args, parts) in [
        (
            &["run", "no_such_sequence", "--weights", &w][..],
            &["no_such_sequence", "frames"][..],
        ),
        (
            &["run", ".", "--weights", "none.pth"],
            &["none.pth", "weights"],
        ),
        (
            &["run", ".", "--weights", &w, "--codebook", "none.bin"],
            &["none.bin", "codebook"],
        ),
        (
            &["run", ".", "--weights", &w, "--config", "none.yaml"],
            &["none.yaml", "mini.yaml"],
        ),
        (
            &["run", ".", "--weights", &w, "--config", "x/none.yaml"],
            &["x/none.yaml", "cannot read"],
        ),
        (&["eval", "none.txt", "none2.txt"], &["none", "cannot"]),
        (&["network", "info", "none.pth"], &["none.pth"]),
        (
            &["network", "export", "none.pth", "--out", "o"],
            &["none.pth"],
        ),
        (
            &["codebook", "build", ".", "--weights", "none.pth"],
            &["none.pth"],
        ),
        (
            &[
                "codebook",
                "build",
                ".",
                "--weights",
                &w,
                "--out",
                "no/folder/c.bin",
            ],
            &["no/folder", "--out"],
        ),
        (
            &["config", "show", "--config", "none"],
            &["none", "base.yaml"],
        ),
    ] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        assert_refused(&run_in(folder.path(), args), 1, parts);
        let left = std::fs::read_dir(folder.path())
            .expect("the folder")
            .count();
        assert_eq!(left, 0, "{args:?} left something behind");
    }
}

#[test]
fn an_output_folder_that_cannot_be_written_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // Tests may run as root, whom permissions do not stop; a path through a file stops everyone.
    let file = folder.path().join("file");
    std::fs::write(&file, "").expect("a file");
    let through = file.join("out");
    for out in [&file, &through] {
        let args = ["run", ".", "--weights", &weights(), "--out", text(out)];
        let output = run_in(folder.path(), &args);
        assert_refused(&output, 1, &["output folder", text(out), "--out"]);
    }
}

#[test]
fn results_of_an_earlier_run_are_not_overwritten_unasked() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let old = folder.path().join("out/trajectory.txt");
    std::fs::create_dir(folder.path().join("out")).expect("a folder");
    std::fs::write(&old, "old").expect("a file");
    let output = run_in(
        folder.path(),
        &["run", ".", "--weights", &weights(), "--out", "out"],
    );
    assert_refused(&output, 1, &["earlier run", "--force"]);
    assert_eq!(std::fs::read_to_string(&old).expect("still there"), "old");
}

#[test]
fn mistakes_in_the_configuration_are_explained() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("c.yaml"), "tracking:\n  Q_cnf: 1\n").expect("a file");
    let w = weights();
    for (args, parts) in [
        (
            &["run", ".", "--weights", &w, "--config", "c.yaml"][..],
            &["c.yaml", "tracking.Q_cnf", "did you mean tracking.Q_conf?"][..],
        ),
        (
            &["run", ".", "--weights", &w, "--set", "tracking.huber=soft"],
            &["--set tracking.huber=soft", "a number"],
        ),
        (
            &["run", ".", "--weights", &w, "--set", "tracking.huber"],
            &["key=value"],
        ),
        (
            &["run", ".", "--weights", &w, "--size", "500"],
            &["network.size is 500", "multiple of 16"],
        ),
        (
            &["config", "show", "--set", "reloc.max_tries=0"],
            &["reloc.max_tries", "1 or more"],
        ),
    ] {
        assert_refused(&run_in(folder.path(), args), 1, parts);
    }
}

#[test]
fn bundled_files_that_are_not_there_are_asked_for_by_name() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let output = Command::new(env!("CARGO_BIN_EXE_mast3r-slam"))
        .arg("demo")
        .current_dir(folder.path())
        .env("MAST3R_SLAM_SHARE", folder.path())
        .output()
        .expect("the program starts");
    assert_refused(
        &output,
        1,
        &["assets/room_loop", "MAST3R_SLAM_SHARE", text(folder.path())],
    );
}

#[test]
fn the_shown_configuration_is_the_effective_one() {
    let output = run(&["config", "show", "--set", "tracking.Q_conf=0.25"]);
    assert!(output.status.success());
    let shown = String::from_utf8(output.stdout).expect("UTF-8");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("shown.yaml");
    std::fs::write(&path, &shown).expect("a file");
    let config = mast3r_slam::config::load(&path).expect(&shown);
    assert_eq!(config.tracking.q_conf, 0.25);
    assert_eq!(
        config.network.size, 256,
        "mini.yaml, as no weights are given"
    );
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    use std::process::Stdio;
    let mut child = Command::new(env!("CARGO_BIN_EXE_mast3r-slam"))
        .args(["config", "show"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert!(
        output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn help_and_version_end_well() {
    for args in [
        &["--help"][..],
        &["--version"],
        &["run", "--help"],
        &["codebook", "build", "-h"],
    ] {
        let output = run(args);
        assert!(
            output.status.success() && !output.stdout.is_empty(),
            "{args:?}"
        );
    }
}
