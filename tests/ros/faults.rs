//! The node in trouble, in its usual mode: mapping on a thread of its own, a live camera. The map stays, is kept on
//! disk before it ends, is localised in where that is possible, and the diagnostics say what happened.

use crate::support::stage::{PERIOD, START, Stage, info, mount, tf};
use crate::support::{Fault, Room, wait};
use mast3r_slam::map::saved::Reader;
use mast3r_slam::wire::messages::diagnostic::DiagnosticArray;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;
use tempfile::TempDir;

/// A node that keeps two maps in a folder of its own.
fn keeping(parameters: &str) -> (Stage, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let root = format!("map_root:={}", folder.path().display());
    std::fs::create_dir(folder.path().join("saves")).unwrap();
    let saves = format!("map_path:={}", saved_in(&folder).display());
    let stage = Stage::ready(&format!("autosaves:=2 {root} {saves} {parameters}"));
    (stage, folder)
}

/// Where `~/save_map` writes, beside the maps that the node keeps.
fn saved_in(folder: &TempDir) -> PathBuf {
    folder.path().join("saves/house.map")
}

/// `~/save_map` writes all of the map, whatever goes on.
fn saves(stage: &Stage, folder: &TempDir) {
    let saved = stage.trigger("save_map");
    assert!(saved.success, "{}", saved.message);
    let mut map = Reader::open(&saved_in(folder)).unwrap();
    assert!(map.header().keyframes > 0);
    map.verify().unwrap();
    std::fs::remove_file(saved_in(folder)).unwrap();
}

/// The maps in `folder`, each of which can be read from its first to its last byte.
fn maps(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let all = entries.map(|e| e.unwrap().path());
    // Without files that are being written.
    let mut all: Vec<PathBuf> = all
        .filter(|p| p.extension().is_some_and(|e| e == "map"))
        .collect();
    all.sort();
    for map in &all {
        Reader::open(map).unwrap().verify().unwrap();
    }
    all
}

/// Walks until the map has so many keyframes.
fn walk_to(stage: &mut Stage, keyframes: usize) {
    for _ in 0..70 {
        stage.track(1);
        if stage.graph.count("/slam/graph") > 0 && stage.value("keyframes") >= keyframes as u64 {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    wait("keyframes", || stage.value("keyframes") >= keyframes as u64);
}

fn ready(stage: &mut Stage) {
    stage.graph.listen(1);
    stage.track(2);
    walk_to(stage, 4);
}

/// Mapping fails by `break_it`: poses go on, the map is kept, and only the map's growth has ended.
fn mapping_fails(break_it: impl Fn(&Stage), words: &str) {
    let (mut stage, folder) = keeping("");
    ready(&mut stage);
    let there = stage.shown - 1;
    break_it(&stage);
    let failed = |stage: &Stage| {
        let (level, message) = stage.diagnostics();
        level == 2 && message.contains("mapping failed") && message.contains(words)
    };
    for _ in 0..60 {
        // The camera may leave what the last keyframe shows before the failure is told.
        stage.frame();
        if failed(&stage) {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    wait("the failure", || failed(&stage));
    saves(&stage, &folder);
    stage.room.faults.clear();
    wait("the map on disk", || maps(folder.path()).len() == 1);
    let map = Reader::open(&maps(folder.path())[0]).unwrap();
    assert!(map.header().keyframes >= 4);
    // Back where the map is the poses go on, and a camera that was blinded is found again.
    for _ in 0..3 {
        stage.shown = there;
        stage.find();
    }
    stage.black();
    wait("lost", || stage.diagnostics().1.contains("lost"));
    stage.shown = there;
    stage.find();
    let (level, message) = stage.diagnostics();
    assert!(level == 2 && message.contains(words), "{message}");
    // The exit code tells, unless a user begins anew.
    assert!(stage.trigger("reset").success);
    stage.track(2);
    wait("a new start", || {
        stage.diagnostics() == (0, "tracking".into())
    });
    assert_eq!(stage.room.made().len(), 2);
    stage
        .node
        .take()
        .unwrap()
        .run(&|| true)
        .expect("all is well");
}

#[test]
fn a_panic_of_the_mapping_thread_ends_the_growth_of_the_map_only() {
    mapping_fails(
        |stage| {
            stage.room.faults.set(|name| match name {
                "make_edges" => panic!("the device fell over (as this test wants it to)"),
                _ => Ok(()),
            });
        },
        "fell over",
    );
}

#[test]
fn a_full_disk_ends_the_growth_of_the_map_only() {
    let full = |stage: &Stage| {
        stage
            .room
            .faults
            .fail("accept_keyframe", "No space left on device")
    };
    mapping_fails(full, "No space left");
}

#[test]
fn a_failure_of_mapping_is_in_the_exit_code() {
    let (mut stage, _folder) = keeping("");
    ready(&mut stage);
    stage.room.break_mapper();
    for _ in 0..60 {
        stage.frame();
        std::thread::sleep(Duration::from_millis(20));
    }
    wait("the failure", || stage.diagnostics().0 == 2);
    let ended = stage.node.take().unwrap().run(&|| true);
    let error = ended.expect_err("mapping failed").to_string();
    assert!(error.contains("the device is gone"), "{error}");
}

#[test]
fn a_solve_that_fails_is_counted_and_tracking_goes_on() {
    let (mut stage, folder) = keeping("");
    ready(&mut stage);
    stage.room.faults.unsolvable();
    let there = stage.shown - 1;
    for _ in 0..30 {
        stage.frame();
        std::thread::sleep(Duration::from_millis(10));
    }
    wait("its count", || stage.value("failed solves") > 0);
    saves(&stage, &folder);
    stage.shown = there;
    stage.find();
    let (level, message) = stage.diagnostics();
    assert!(level < 2 && !message.contains("failed"), "{message}");
}

#[test]
fn a_lost_device_is_told_and_is_in_the_exit_code() {
    let (mut stage, folder) = keeping("");
    ready(&mut stage);
    stage.room.faults.lose();
    stage.image_at(stage.next, Some(stage.shown));
    wait("the failure", || {
        let (level, message) = stage.diagnostics();
        // The points are gone with the device, and the node says that too.
        level == 2 && message.contains("the plug was pulled") && message.contains("not be kept")
    });
    // What cannot be read cannot be saved, and leaves no file that looks like a map.
    let saved = stage.trigger("save_map");
    assert!(!saved.success && !saved_in(&folder).exists());
    let ended = stage.node.take().unwrap().run(&|| true);
    assert!(ended.is_err());
}

#[test]
fn a_network_that_dies_leaves_its_map_on_disk() {
    let (mut stage, folder) = keeping("");
    ready(&mut stage);
    stage.fault(Fault::Panic);
    wait("the failure", || stage.diagnostics().0 == 2);
    wait("the map on disk", || maps(folder.path()).len() == 1);
    saves(&stage, &folder);
    assert!(stage.trigger("reset").success);
    stage.track(2);
    // A keyframe that came afterwards may have been worth another file.
    assert!((1..=2).contains(&maps(folder.path()).len()));
}

#[test]
fn another_image_size_ends_no_map_before_it_is_on_disk() {
    let (mut stage, folder) = keeping("");
    ready(&mut stage);
    let grey = vec![0u8; 160 * 96 * 3];
    for _ in 0..200 {
        stage.next += PERIOD;
        stage.raw(stage.next, "rgb8", (160, 96, 480), &grey);
        std::thread::sleep(Duration::from_millis(10));
        if stage.room.made().len() == 2 {
            break;
        }
    }
    assert_eq!(stage.room.made().len(), 2, "no new SLAM");
    assert_eq!(maps(folder.path()).len(), 1);
}

#[test]
fn another_camera_ends_no_map_before_it_is_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let root = format!("autosaves:=2 map_root:={}", folder.path().display());
    let mut stage = Stage::new(&root);
    stage
        .graph
        .send("/tf_static", &tf("base_link", "camera", 0, &mount()));
    stage.graph.send("/camera_info", &info(89.6));
    ready(&mut stage);
    for _ in 0..10 {
        stage.graph.send("/camera_info", &info(92.0));
    }
    for _ in 0..200 {
        stage.next += PERIOD;
        stage.image_at(stage.next, Some(0));
        std::thread::sleep(Duration::from_millis(10));
        if stage.room.made().len() == 2 {
            break;
        }
    }
    assert_eq!(stage.room.made().len(), 2, "no new SLAM");
    assert_eq!(maps(folder.path()).len(), 1);
}

/// Images of a camera whose time went back, until the node believes it.
fn time_goes_back(stage: &mut Stage) {
    let started = stage.value("maps started");
    stage.next -= 60_000_000_000;
    for _ in 0..200 {
        stage.image_at(stage.next, Some(0));
        stage.next += PERIOD;
        std::thread::sleep(Duration::from_millis(10));
        if stage.value("maps started") > started || stage.diagnostics().0 == 2 {
            return;
        }
    }
    panic!("the node does not believe it");
}

#[test]
fn time_that_goes_back_again_and_again_keeps_a_bounded_number_of_maps() {
    let (mut stage, folder) = keeping("use_sim_time:=false");
    for round in 1..=3 {
        stage.shown = 0;
        ready(&mut stage);
        time_goes_back(&mut stage);
        let count = maps(folder.path()).len();
        assert_eq!(count, round.min(2), "after {round} leaps");
    }
}

#[test]
fn a_clock_that_goes_back_keeps_the_map() {
    let (mut stage, folder) = keeping("use_sim_time:=true");
    stage.clock(START);
    ready(&mut stage);
    stage.clock(START - 60_000_000_000);
    wait("the map on disk", || maps(folder.path()).len() == 1);
    wait("a second map", || stage.value("maps started") == 2);
}

#[test]
fn a_map_that_cannot_be_kept_does_not_end() {
    let folder = tempfile::tempdir().unwrap();
    let occupied = folder.path().join("file");
    std::fs::write(&occupied, "not a folder").unwrap();
    let parameters = format!("autosaves:=2 map_root:={}", occupied.display());
    let mut stage = Stage::ready(&parameters);
    ready(&mut stage);
    let keyframes = stage.value("keyframes");
    time_goes_back(&mut stage);
    let (level, message) = stage.diagnostics();
    assert!(
        level == 2 && message.contains("could not be kept"),
        "{message}"
    );
    assert_eq!(stage.value("maps started"), 1);
    assert!(stage.value("keyframes") >= keyframes);
    // A user who asks for a new map gets it.
    assert!(stage.trigger("reset").success);
    stage.track(2);
    wait("a second map", || stage.value("maps started") == 2);
}

#[test]
fn a_node_that_closes_keeps_its_map() {
    let (mut stage, folder) = keeping("");
    ready(&mut stage);
    stage.node = None;
    assert_eq!(maps(folder.path()).len(), 1);
}

#[test]
fn a_map_is_loaded_while_tracking_goes_on_and_the_last_one_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("house.map");
    let parameters = format!("autosaves:=2 map_path:={}", path.display());
    let mut stage = Stage::ready(&parameters);
    ready(&mut stage);
    let saved = stage.trigger("save_map");
    assert!(saved.success, "{}", saved.message);
    walk_to(&mut stage, 6);
    let loaded = stage.trigger("load_map");
    assert!(loaded.success, "{}", loaded.message);
    assert_eq!(maps(folder.path()).len(), 2, "the map before is not kept");
    stage.shown = 3;
    stage.find();
    wait("a second map", || stage.value("maps started") == 2);
    // An invalid map file changes nothing.
    std::fs::write(&path, "M3RSLMAP and nonsense").unwrap();
    let refused = stage.trigger("load_map");
    assert!(
        !refused.success && !refused.message.contains("try again"),
        "{}",
        refused.message
    );
    stage.track(2);
    wait("a second map", || stage.value("maps started") == 2);
}

/// A gate at which the first call of `method` waits.
fn gate(room: &Room, method: &'static str) -> Sender<()> {
    let (gate, opened) = channel::<()>();
    let opened = Mutex::new(Some(opened));
    room.faults.set(move |name| {
        let first = (name == method).then(|| opened.lock().unwrap().take());
        if let Some(opened) = first.flatten() {
            // A test that fails meanwhile does not hang.
            let _ = opened.recv_timeout(Duration::from_secs(60));
        }
        Ok(())
    });
    gate
}

fn told(stage: &Stage, words: &str) -> bool {
    let all: Vec<DiagnosticArray> = stage.graph.sent("/diagnostics");
    all.iter()
        .any(|d| d.status[0].level >= 1 && d.status[0].message.contains(words))
}

#[test]
fn threads_that_stand_still_are_named() {
    let (mut stage, _folder) = keeping("");
    ready(&mut stage);
    let opened = gate(&stage.room, "encode");
    stage.image_at(stage.next, Some(stage.shown));
    wait("its name", || {
        told(&stage, "the tracking thread has not moved")
    });
    drop(opened);
    // It goes on, and so does the message.
    stage.next += PERIOD;
    stage.track(1);
    wait("that all is well", || {
        stage.diagnostics() == (0, "tracking".into())
    });
    let opened = gate(&stage.room, "solve");
    for _ in 0..20 {
        stage.track(1);
    }
    wait("its name", || {
        told(&stage, "the mapping thread has not moved")
    });
    drop(opened);
    // The thread that publishes diagnostics cannot name itself.
    stage.graph.hold(Some("/tf"));
    stage.frame();
    wait("its name", || {
        told(&stage, "the output thread has not moved")
    });
    stage.graph.hold(None);
    stage.track(1);
    wait("that all is well", || {
        stage.diagnostics() == (0, "tracking".into())
    });
}

const HOUR: i64 = 3_600_000_000_000;

#[test]
fn ten_stamps_one_hour_ahead_end_no_map() {
    let (mut stage, folder) = keeping("");
    ready(&mut stage);
    // Each between two images of the camera, and each of the same moment: a driver that repeats its mistake.
    let wrong = stage.next + HOUR;
    for _ in 0..10 {
        stage.rejected(wrong);
        stage.track(1);
    }
    saves(&stage, &folder);
    // Each a little later than the one before: another clock, which is not the camera's.
    for _ in 0..10 {
        stage.rejected(stage.next + HOUR);
        stage.track(1);
    }
    saves(&stage, &folder);
    assert_eq!(stage.value("maps started"), 1);
    assert!(maps(folder.path()).is_empty());
    // Ten in a row, as after a pause of the camera: the map goes on.
    let back = stage.next;
    stage.next += HOUR;
    for _ in 0..10 {
        stage.image_at(stage.next, Some(stage.shown));
        stage.next += PERIOD;
        std::thread::sleep(Duration::from_millis(20));
    }
    stage.track(1);
    saves(&stage, &folder);
    assert_eq!(stage.value("maps started"), 1);
    assert!(maps(folder.path()).is_empty());
    // The clock goes back: that ends the map, which is on disk by then.
    stage.next = back;
    for _ in 0..200 {
        if stage.value("maps started") == 2 {
            break;
        }
        stage.image_at(stage.next, Some(stage.shown));
        stage.next += PERIOD;
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(stage.value("maps started"), 2);
    assert_eq!(maps(folder.path()).len(), 1);
}

#[test]
fn two_publishers_on_one_topic_end_no_map() {
    let (mut stage, folder) = keeping("");
    ready(&mut stage);
    let grey = vec![0u8; 160 * 96 * 3];
    for k in 0..30 {
        // One of another size, one of another clock.
        stage.raw(stage.next - PERIOD / 2, "rgb8", (160, 96, 480), &grey);
        std::thread::sleep(Duration::from_millis(5));
        stage.image_at(stage.next + HOUR, Some(k));
        std::thread::sleep(Duration::from_millis(5));
        stage.track(1);
        if k == 15 {
            saves(&stage, &folder);
        }
    }
    assert_eq!(stage.value("maps started"), 1);
    assert_eq!(stage.room.made().len(), 1);
    assert!(maps(folder.path()).is_empty());
}
