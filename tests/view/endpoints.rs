//! `/metrics`, `/healthz` and `/status` during a run of the program.

use crate::client::get;
use crate::walk::{Walk, wait};
use mast3r_slam::view::HostReport;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Stdio};
use std::time::Duration;
use testkit::program::{Scene, program, text};

/// A run of the program with a live page.
pub struct Running {
    pub address: SocketAddr,
    process: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    _scene: Scene,
}

impl Running {
    /// Tracks `count` images of the bundled sequence.
    pub fn start(count: usize) -> Self {
        let scene = Scene::new(count);
        let out = scene.out();
        let mut args = vec!["run", text(&scene.sequence), "--out", text(&out)];
        args.extend(["--calibrated", "--view=0"]);
        let mut process = program(&args)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        let page = lines.by_ref().find_map(|line| {
            let line = line.expect("a line");
            line.strip_prefix("live page: http://").map(str::to_owned)
        });
        let page = page.expect("the address is printed");
        Self {
            address: page.trim_end_matches('/').parse().expect("an address"),
            process,
            lines,
            _scene: scene,
        }
    }

    /// Waits for its end; returns what it printed.
    pub fn finish(mut self) -> String {
        let rest: Vec<String> = self.lines.by_ref().map_while(Result::ok).collect();
        assert!(self.process.wait().expect("an end").success());
        rest.join("\n")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // After a failure; otherwise it has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The value of a sample.
fn sample(metrics: &str, name: &str) -> Option<f64> {
    let line = metrics.lines().find(|line| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with(' '))
    })?;
    line.rsplit(' ').next()?.parse().ok()
}

#[test]
fn a_run_serves_metrics_health_and_status() {
    let running = Running::start(16);
    let at = running.address;
    assert!(at.ip().is_loopback(), "localhost unless told otherwise");
    wait("tracked frames", || {
        let metrics = get(at, "/metrics").body;
        sample(&metrics, "mast3r_slam_frames_total{state=\"tracking\"}") >= Some(5.0)
    });
    let answer = get(at, "/metrics");
    assert_eq!(answer.status, 200);
    assert!(
        answer.headers.contains("application/openmetrics-text"),
        "{}",
        answer.headers
    );
    let metrics = answer.body;
    let value =
        |name: &str| sample(&metrics, name).unwrap_or_else(|| panic!("no {name} in\n{metrics}"));
    assert_eq!(value("mast3r_slam_up"), 1.0);
    assert!(value("mast3r_slam_stage_seconds_count{stage=\"encode\"}") >= 5.0);
    assert!(value("mast3r_slam_frame_seconds_sum") > 0.0);
    assert!(value("mast3r_slam_keyframes") >= 1.0);
    assert!(value("mast3r_slam_memory_bytes{pool=\"process\",place=\"host\"}") > 1e7);
    assert_eq!(
        value("mast3r_slam_dropped_total{reason=\"keyframe_postponed\"}"),
        0.0
    );
    assert_eq!(value("mast3r_slam_lost_seconds_total"), 0.0);
    let build = metrics
        .lines()
        .find(|line| line.starts_with("mast3r_slam_build_info{"));
    let build = build.expect("the build");
    assert!(
        build.contains(env!("CARGO_PKG_VERSION")) && build.contains("rten"),
        "{build}"
    );
    assert!(metrics.ends_with("# EOF\n"));

    let health = get(at, "/healthz");
    assert_eq!((health.status, health.body.as_str()), (200, "ok\n"));
    let status: Value = serde_json::from_str(&get(at, "/status").body).expect("JSON");
    assert_eq!(status["state"], "tracking");
    assert!(
        status["frames"].as_u64() >= Some(5) && status["times_ms"]["total"].as_f64() > Some(0.0)
    );
    assert_eq!(
        status["world_from_camera"].as_array().map(Vec::len),
        Some(8)
    );
    assert_eq!(get(at, "/nothing").status, 404);
    let said = running.finish();
    assert!(said.contains("16 frames in"), "{said}");
}

#[test]
fn a_program_that_does_not_work_says_why() {
    let walk = Walk::start(Duration::from_millis(20));
    walk.pass(5);
    *walk.said.0.lock().expect("a report") = HostReport {
        state: Some("failed".into()),
        failure: Some("the GPU is lost".into()),
        drops: vec![("image rejected", 7)],
    };
    let health = get(walk.address, "/healthz");
    assert_eq!(
        (health.status, health.body.as_str()),
        (503, "the GPU is lost\n")
    );
    let metrics = get(walk.address, "/metrics").body;
    assert_eq!(sample(&metrics, "mast3r_slam_up"), Some(0.0));
    let rejected = "mast3r_slam_dropped_total{reason=\"image_rejected\"}";
    assert_eq!(sample(&metrics, rejected), Some(7.0));
    let status: Value = serde_json::from_str(&get(walk.address, "/status").body).expect("JSON");
    assert_eq!(status["failure"], "the GPU is lost");
}

#[test]
fn a_port_in_use_is_named_with_what_to_do() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port();
    let scene = Scene::new(2);
    let view = format!("--view={port}");
    let output = scene.run(&[&view]);
    let address = format!("127.0.0.1:{port}");
    testkit::program::assert_failed(
        &output,
        &[&address, "in use", "--view PORT", "any that is free"],
    );
    assert!(!scene.out().join("report.html").exists());
    // Another machine's address.
    let output = scene.run(&["--view=0", "--view-address", "192.0.2.1"]);
    testkit::program::assert_failed(&output, &["192.0.2.1"]);
}
