//! `doctor`, `--version` and `manual`: what a packaged program tells about itself and its machine.

use serde_json::Value;
use std::path::Path;
use testkit::program::{message, program, text};

/// The report of `doctor` with `args` and its exit code; `share` stands in for the installed files.
fn doctor(args: &[&str], share: Option<&Path>) -> (Value, Option<i32>) {
    let mut command = program(&[&["doctor", "--json"], args].concat());
    if let Some(share) = share {
        command.env("MAST3R_SLAM_SHARE", share);
    }
    let output = command.output().expect("the program starts");
    let report = serde_json::from_slice(&output.stdout);
    (report.expect("JSON"), output.status.code())
}

fn finding<'a>(report: &'a Value, name: &str) -> &'a Value {
    let findings = report["findings"].as_array().expect("a list");
    let found = findings.iter().find(|finding| finding["name"] == name);
    found.unwrap_or_else(|| panic!("{name} is not in {report}"))
}

#[test]
fn a_machine_that_can_run_is_found_usable() {
    let folder = tempfile::tempdir().expect("a folder");
    // Runs create such folders.
    let out = folder.path().join("not/there/yet");
    let (report, code) = doctor(&["--out", text(&out)], None);
    assert_eq!(code, Some(0), "{report}");
    assert_eq!(report["usable"], true);
    for name in ["weights", "demo", "disk"] {
        assert_ne!(finding(&report, name)["state"], "missing", "{report}");
    }
    assert!(
        finding(&report, "weights")["found"]
            .as_str()
            .is_some_and(|text| text.contains("mast3r-mini"))
    );
    assert!(!out.exists());
}

#[test]
fn missing_weights_are_told_in_the_words_of_a_run_with_a_command_that_adds_them() {
    let empty = tempfile::tempdir().expect("a folder");
    let (report, code) = doctor(&[], Some(empty.path()));
    assert_eq!(code, Some(1));
    assert_eq!(report["usable"], false);
    let weights = finding(&report, "weights");
    assert_eq!(weights["state"], "missing");
    assert!(weights["command"].is_string());
    let mut run = program(&["run", text(empty.path())]);
    run.env("MAST3R_SLAM_SHARE", empty.path());
    let run = message(&run.output().expect("the program starts"));
    let said = weights["found"].as_str().expect("a text");
    assert_eq!(run.trim_end(), format!("error: {said}"));
}

#[test]
fn damaged_weights_and_a_folder_that_is_a_file_are_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let weights = folder.path().join("half.safetensors");
    std::fs::write(&weights, [9; 100]).expect("a file");
    let (report, code) = doctor(&["--weights", text(&weights)], None);
    assert_eq!(code, Some(1));
    assert_eq!(finding(&report, "weights")["state"], "missing");
    let (report, code) = doctor(&["--out", text(&weights)], None);
    assert_eq!(code, Some(1));
    assert_eq!(finding(&report, "disk")["state"], "missing");
}

#[test]
fn the_text_has_what_the_json_has_and_strict_counts_optional_parts() {
    let (report, _) = doctor(&[], None);
    let output = program(&["doctor", "--strict"]).output();
    let output = output.expect("the program starts");
    let shown = String::from_utf8_lossy(&output.stdout);
    let findings = report["findings"].as_array().expect("a list");
    for finding in findings.iter().filter(|finding| finding["name"] != "disk") {
        let found = finding["found"].as_str().expect("a text");
        assert!(shown.contains(found), "{found:?} is not in {shown}");
    }
    let complete = findings.iter().all(|finding| finding["state"] == "ok");
    assert_eq!(output.status.code(), Some(i32::from(!complete)));
}

#[test]
fn the_version_names_platform_and_features() {
    let output = program(&["--version"])
        .output()
        .expect("the program starts");
    let shown = String::from_utf8_lossy(&output.stdout);
    let first = format!("mast3r-slam {}", env!("CARGO_PKG_VERSION"));
    assert_eq!(shown.lines().next(), Some(first.as_str()));
    for (part, built) in [
        ("commit:", true),
        (std::env::consts::ARCH, true),
        ("bags", cfg!(feature = "bags")),
        ("onnxruntime", cfg!(feature = "onnxruntime")),
        ("tensorrt", cfg!(feature = "tensorrt")),
        (
            "sm_120",
            cfg!(feature = "cuda") && std::env::var_os("MAST3R_CUDA_ARCHS").is_none(),
        ),
    ] {
        assert!(!built || shown.contains(part), "{part:?} is not in {shown}");
    }
    // Only what was built is named.
    assert_eq!(shown.contains("cuda"), cfg!(feature = "cuda"), "{shown}");
}
