//! `run --device` where there is no GPU.

use std::process::Output;
use testkit::program::{Scene, assert_failed, message, poses, program, text};

/// A run to which no GPU is shown.
fn run(scene: &Scene, more: &[&str]) -> Output {
    let (sequence, out) = (text(&scene.sequence), scene.out());
    let mut args = vec!["run", sequence, "--out", text(&out), "--size", "64"];
    args.extend(more);
    program(&args)
        .env("CUDA_VISIBLE_DEVICES", "")
        .output()
        .expect("the program starts")
}

#[test]
fn a_gpu_that_is_asked_for_and_not_there_is_an_error() {
    let scene = Scene::new(2);
    let output = run(&scene, &["--device", "cuda"]);
    assert_failed(&output, &["GPU", "--device cpu"]);
    assert!(!scene.out().exists(), "nothing was written");
    if cfg!(not(feature = "cuda")) {
        assert!(message(&output).contains("built without CUDA"));
    }
}

#[test]
fn a_gpu_that_is_welcome_and_not_there_is_said_once() {
    let scene = Scene::new(2);
    for device in [
        &["--device", "auto"][..],
        &["--force"],
        &["--force", "--set", "device=cpu"],
    ] {
        let output = run(&scene, device);
        assert!(output.status.success(), "{}", message(&output));
        assert_eq!(poses(&scene.out().join("trajectory.txt")), 2);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let wanted = cfg!(feature = "cuda") && !device.contains(&"device=cpu");
        let times = said.matches("no GPU can be used").count();
        assert_eq!(times, usize::from(wanted), "{device:?}: {said}");
        assert!(said.contains("CPU"), "{said}");
    }
}
