//! `weights`: the table, the licence, fetching from another server, and the name as an option.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use testkit::http::{Answer, Server};
use testkit::program::{message, program, text};
use testkit::repository;

fn weights(cache: &Path, args: &[&str]) -> Command {
    let mut command = program(&[&["weights"], args].concat());
    command
        .env("MAST3R_SLAM_WEIGHTS", cache)
        .stdin(Stdio::null());
    command
}

fn output(mut command: Command) -> Output {
    command.output().expect("the program starts")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A server with a small network in the official layout.
fn server(answers: &[Answer]) -> Server {
    let content = std::fs::read(repository("tests/data/network/tiny-random.pth")).expect("weights");
    Server::new(content, "\"tiny\"", answers)
}

#[test]
fn the_table_names_licence_address_and_state() {
    let cache = tempfile::tempdir().expect("a folder");
    let listed = output(weights(cache.path(), &["list", "--json"]));
    let report: Value = serde_json::from_slice(&listed.stdout).expect("JSON");
    let entries = report["weights"].as_array().expect("a list");
    let states: Vec<_> = entries
        .iter()
        .map(|entry| entry["state"].as_str())
        .collect();
    assert_eq!(states, [Some("bundled"), Some("not fetched")]);
    let words = said(&output(weights(cache.path(), &["list"])));
    for part in [
        "mast3r-vitl",
        "CC BY-NC-SA 4.0",
        "https://download.europe",
        text(cache.path()),
    ] {
        assert!(words.contains(part), "{part} is not in {words}");
    }
}

#[test]
fn nothing_is_fetched_before_the_licence_is_agreed_to() {
    let cache = tempfile::tempdir().expect("a folder");
    let server = server(&[]);
    let refused = output(weights(
        cache.path(),
        &["get", "mast3r-vitl", "--from", server.address()],
    ));
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        said(&refused).contains("no commercial use"),
        "{}",
        said(&refused)
    );
    assert!(message(&refused).contains("--accept-licence"));
    assert!(server.requests().is_empty());
    let unknown = output(weights(cache.path(), &["get", "mast3r-vitx"]));
    assert_eq!(unknown.status.code(), Some(2));
    assert!(message(&unknown).contains("mast3r-vitl"));
}

#[test]
fn fetched_weights_are_found_by_their_name() {
    let cache = tempfile::tempdir().expect("a folder");
    let cut = server(&[Answer::Cut(1_000_000)]);
    let args = [
        "get",
        "mast3r-vitl",
        "--accept-licence",
        "--from",
        cut.address(),
    ];
    let run = || {
        let mut command = program(&["doctor", "--json", "--weights", "mast3r-vitl"]);
        command.env("MAST3R_SLAM_WEIGHTS", cache.path());
        serde_json::from_slice::<Value>(&output(command).stdout).expect("JSON")["findings"][0]
            .clone()
    };
    let before = run();
    assert!(
        before["found"]
            .as_str()
            .is_some_and(|text| text.contains("weights get mast3r-vitl")),
        "{before}"
    );
    let done = output(weights(cache.path(), &args));
    assert!(done.status.success(), "{}", message(&done));
    assert!(
        said(&done).contains("--weights mast3r-vitl"),
        "{}",
        said(&done)
    );
    // The first file in two parts, then the two of place recognition.
    assert_eq!(cut.requests().len(), 4, "{:?}", cut.requests());
    let found = run();
    assert!(
        found["found"]
            .as_str()
            .is_some_and(|text| text.contains("catmlpdpt_metric.pth")),
        "{found}"
    );
    let again = output(weights(cache.path(), &args));
    assert!(said(&again).contains("is there already"));
    assert_eq!(cut.requests().len(), 4);
}

#[test]
fn a_wrong_hash_and_a_page_instead_of_weights_are_refused() {
    let cache = tempfile::tempdir().expect("a folder");
    let server = server(&[]);
    let hash = "0".repeat(64);
    let base = [
        "get",
        "mast3r-vitl",
        "--accept-licence",
        "--from",
        server.address(),
    ];
    let wrong = output(weights(
        cache.path(),
        &[&base[..], &["--sha256", &hash]].concat(),
    ));
    assert_eq!(wrong.status.code(), Some(1));
    assert!(message(&wrong).contains(&hash), "{}", message(&wrong));
    let page = Server::new(b"<html>Not here</html>".to_vec(), "\"page\"", &[]);
    let args = [
        "get",
        "mast3r-vitl",
        "--accept-licence",
        "--from",
        page.address(),
    ];
    let refused = output(weights(cache.path(), &args));
    assert_eq!(refused.status.code(), Some(1));
    let left = std::fs::read_dir(cache.path().join("mast3r-vitl")).expect("a folder");
    assert_eq!(left.count(), 0, "{}", message(&refused));
}
