//! The tools' programs as they are run. A package with such a test has its programs built by `cargo test`.

use std::process::{Command, Output};

fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program)
        .args(arguments)
        .output()
        .expect("the program starts")
}

#[test]
fn a_program_without_its_arguments_fails_and_says_its_usage() {
    let programs = [
        env!("CARGO_BIN_EXE_grid_error"),
        env!("CARGO_BIN_EXE_random_weights"),
        env!("CARGO_BIN_EXE_simulated_drive"),
    ];
    for program in programs {
        let output = run(program, &[]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{program} succeeded");
        assert!(error.contains("usage: "), "{program}: {error}");
    }
}

#[test]
fn weights_of_an_unknown_model_are_refused_before_a_file_is_made() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("weights.safetensors");
    let path = file.to_str().expect("a path in UTF-8");
    let output = run(env!("CARGO_BIN_EXE_random_weights"), &[path, "vitx"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(error.contains("vitl, dune-base or dune-small"), "{error}");
    assert!(!file.exists());
}
