//! `selftest`: the exit code, the figures that come with the program, and wrong weights.

use serde_json::Value;
use std::process::Output;
use testkit::program::{message, program, text};
use testkit::repository;

fn selftest(args: &[&str]) -> Output {
    let mut command = program(&[&["selftest", "--device", "cpu"], args].concat());
    command.output().expect("the program starts")
}

#[test]
fn the_bundled_network_agrees_with_its_recorded_figures() {
    let ran = selftest(&["--golden", "--json"]);
    assert_eq!(ran.status.code(), Some(0), "{}", message(&ran));
    let report: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    assert_eq!(report["passed"], true);
    assert_eq!(report["precision"], "fp32");
    assert_eq!(
        (&report["frames"], &report["size"][0]),
        (&20.into(), &256.into())
    );
    let checks = report["checks"].as_array().expect("a list");
    let names: Vec<&str> = checks
        .iter()
        .filter_map(|check| check["name"].as_str())
        .collect();
    assert_eq!(names.len(), 8, "{names:?}");
    // The figures are of this network: an error of a thousandth of the limit, not of nearly all of it.
    for check in checks.iter().filter(|check| {
        check["name"]
            .as_str()
            .is_some_and(|name| name.contains("points"))
    }) {
        assert!(
            check["found"].as_f64() <= check["limit"].as_f64().map(|limit| limit * 0.5),
            "{check}"
        );
    }
}

#[test]
fn weights_that_cannot_track_fail() {
    let weights = repository("tests/data/network/tiny-random.pth");
    let ran = selftest(&["--json", "--size", "128", "--weights", text(&weights)]);
    assert_eq!(ran.status.code(), Some(1), "{}", message(&ran));
    let report: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    assert_eq!(report["passed"], false);
    assert_eq!(report["compared_with"], Value::Null);
    assert!(
        message(&ran).contains("the self-test failed"),
        "{}",
        message(&ran)
    );
}

#[test]
fn figures_are_asked_for_and_must_fit() {
    let ran = selftest(&["--golden", "--size", "128"]);
    assert_eq!(ran.status.code(), Some(1));
    let said = message(&ran);
    assert!(
        said.contains("128x96") && said.contains("--record"),
        "{said}"
    );
    let figures = repository("assets/selftest/mast3r-mini-512x384.safetensors");
    let ran = selftest(&["--figures", text(&figures)]);
    assert_eq!(ran.status.code(), Some(1));
    let said = message(&ran);
    assert!(
        said.contains("at 256x192") && said.contains("at 512x384"),
        "{said}"
    );
}
