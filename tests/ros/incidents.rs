//! Incidents: the last minute as a bag, when the camera is lost, at an error, and on request.

use crate::support::memory::Memory;
use crate::support::stage::{Stage, arguments};
use crate::support::{Fault, Room, wait};
use mast3r_slam::bag::Bag;
use mast3r_slam::ros::node::{Node, NodeError};
use mast3r_slam::source::{self, SourceOptions};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The incidents in the folder whose names end so.
fn incidents(folder: &Path, cause: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let paths = entries.map(|entry| entry.unwrap().path());
    let end = format!("{cause}.mcap");
    let named = |path: &PathBuf| path.to_str().is_some_and(|name| name.ends_with(&end));
    paths.filter(named).collect()
}

fn counts(bag: &Path) -> BTreeMap<String, u64> {
    let bag = Bag::open(bag).unwrap();
    let topics = bag.topics().iter();
    topics
        .map(|topic| (topic.name.clone(), topic.messages.unwrap()))
        .collect()
}

fn folder_parameter(folder: &Path) -> String {
    format!(
        "incident_folder:={} incident_image_rate:=0.0",
        folder.display()
    )
}

#[test]
fn an_operator_gets_the_last_minute_and_run_replays_it() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("incidents");
    let mut stage = Stage::ready(&folder_parameter(&folder));
    let stamps = stage.track(12);
    let answer = stage.trigger("save_incident");
    assert!(answer.success, "{}", answer.message);
    let [path] = &incidents(&folder, "-operator")[..] else {
        panic!("one incident, not {:?}", incidents(&folder, ""));
    };
    assert!(
        answer.message.contains(path.to_str().unwrap()),
        "{}",
        answer.message
    );
    let counts = counts(path);
    assert_eq!(counts["/tf_static"], 1, "{counts:?}");
    assert_eq!(counts["/slam/pose"], 12, "{counts:?}");
    assert_eq!(counts["/slam/odometry"], 12, "{counts:?}");
    assert!(!counts.contains_key("/image"), "pixels: {counts:?}");
    // One that arrives while another is compressed replaces a waiting one; these came one at a time.
    let images = counts["/image/compressed"];
    assert!((11..=14).contains(&images), "{counts:?}");
    let mut source = source::open(path, SourceOptions::default()).unwrap();
    let mut read = Vec::new();
    while let Some(frame) = source.next_frame().unwrap() {
        read.push(frame.stamp.nanos);
    }
    assert!(read.iter().all(|stamp| stamps.contains(stamp)), "{read:?}");
    assert!(read.len() >= 11, "{read:?}");

    // No second one of this cause.
    let answer = stage.trigger("save_incident");
    assert!(
        !answer.success && answer.message.contains("next is possible in"),
        "{}",
        answer.message
    );
    assert_eq!(incidents(&folder, "").len(), 1);
}

#[test]
fn a_camera_that_stays_lost_is_an_incident() {
    let root = tempfile::tempdir().unwrap();
    let mut stage = Stage::ready(&folder_parameter(root.path()));
    stage.track(5);
    let start = Instant::now();
    while incidents(root.path(), "-lost").is_empty() {
        assert!(start.elapsed() < Duration::from_secs(60), "no incident");
        stage.black();
        std::thread::sleep(Duration::from_millis(50));
    }
    let lost = incidents(root.path(), "-lost");
    let counts = counts(&lost[0]);
    // The images before the loss, and some of it.
    assert!(counts["/image/compressed"] > 10, "{counts:?}");
    assert!(counts["/diagnostics"] > 2, "{counts:?}");
}

#[test]
fn an_error_is_an_incident_and_the_node_goes_on() {
    let root = tempfile::tempdir().unwrap();
    let mut stage = Stage::ready(&folder_parameter(root.path()));
    stage.track(3);
    stage.fault(Fault::Fail);
    wait("an incident", || {
        incidents(root.path(), "").iter().any(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.contains("-error-")
        })
    });
    wait("the failure", || stage.diagnostics().0 == 2);
    assert!(stage.trigger("reset").success);
    stage.track(3);
}

#[test]
fn without_a_folder_nothing_is_kept_and_a_bad_one_is_refused() {
    let stage = Stage::ready("");
    let answer = stage.trigger("save_incident");
    assert!(
        !answer.success && answer.message.contains("incident_folder"),
        "{}",
        answer.message
    );

    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("file");
    fs::write(&file, "not a folder").unwrap();
    let args = arguments(&format!("use_calib:=false {}", folder_parameter(&file)));
    let refused = Node::start(Arc::new(Memory::new()), Room::default().builder(), &args);
    let error = refused.err().expect("no such folder");
    assert!(matches!(error, NodeError::Configure(_)), "{error}");
    assert!(error.to_string().contains("incidents"), "{error}");
}
