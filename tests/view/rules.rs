//! The rules for Prometheus and the dashboard: promtool tests the rules, and every metric that they name exists.

use crate::client::get;
use crate::walk::Walk;
use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;
use testkit::repository;
use testkit::skip::{Need, skip};

fn promtool(args: &[&str]) -> Option<Command> {
    if Command::new("promtool").arg("--version").output().is_err() {
        skip(Need::Promtool, "promtool is not installed");
        return None;
    }
    let mut command = Command::new("promtool");
    command
        .args(args)
        .current_dir(repository("deploy/prometheus"));
    Some(command)
}

#[test]
fn promtool_tests_the_rules() {
    for args in [
        ["test", "rules", "rules_test.yml"],
        ["check", "config", "prometheus.yml"],
    ] {
        let Some(mut command) = promtool(&args) else {
            return;
        };
        let output = command.output().expect("promtool runs");
        let said =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    }
}

/// Names of metrics in a text, without those that rules record.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
    let own = words.filter(|word| word.starts_with("mast3r_slam_") && !word.contains(':'));
    own.map(str::to_owned).collect()
}

#[test]
fn rules_dashboard_and_document_name_metrics_that_exist() {
    let walk = Walk::start(Duration::from_millis(20));
    walk.pass(10);
    let metrics = get(walk.address, "/metrics").body;
    let mut exist = names(&metrics);
    // The document names histograms, whose samples have suffixes.
    exist.extend(["mast3r_slam_frame_seconds", "mast3r_slam_stage_seconds"].map(str::to_owned));
    // Only with a sensor that measures it.
    exist.extend(["mast3r_slam_scale_ratio", "mast3r_slam_scale_sigma_ratio"].map(str::to_owned));
    for file in [
        "deploy/prometheus/rules.yml",
        "deploy/grafana/dashboard.json",
        "docs/monitoring.md",
    ] {
        let text = std::fs::read_to_string(repository(file)).expect(file);
        let named = names(&text);
        assert!(named.len() > 5, "{file}: {named:?}");
        let unknown: Vec<_> = named.difference(&exist).collect();
        assert!(
            unknown.is_empty(),
            "{file} names {unknown:?}; there are {exist:?}"
        );
    }
    let dashboard = std::fs::read(repository("deploy/grafana/dashboard.json")).expect("a file");
    let dashboard: serde_json::Value = serde_json::from_slice(&dashboard).expect("JSON");
    assert!(dashboard["panels"].as_array().map_or(0, Vec::len) >= 10);
}

#[test]
fn promtool_can_read_the_metrics() {
    let walk = Walk::start(Duration::from_millis(20));
    walk.pass(10);
    let metrics = get(walk.address, "/metrics").body;
    let Some(mut command) = promtool(&["check", "metrics", "--lint=none"]) else {
        return;
    };
    let process = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut process = process.spawn().expect("promtool runs");
    let mut to = process.stdin.take().expect("a pipe");
    to.write_all(metrics.as_bytes()).expect("promtool reads");
    drop(to);
    let output = process.wait_with_output().expect("an end");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("error while"), "{said}\n{metrics}");
    // Without an error in the names of units and types either.
    assert!(!said.contains("parsing"), "{said}");
}
