//! A live camera with a mapping thread, when mapping fails: the map stays, tracking and localisation go on in it.

use mast3r_slam::compute::cpu;
use mast3r_slam::compute::device::{DeviceError, Setup};
use mast3r_slam::config::{Config, DeviceConfig, Loops, Threads};
use mast3r_slam::map::{MapSnapshot, TrackingState};
use mast3r_slam::slam::{MapLabel, Pace, SavedMap, SavedMapError, Slam, SlamError};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::faulty::Faults;
use testkit::room::rig::{Rig, TOLERANCE, config};
use testkit::room::walk::vocabulary;
use testkit::room::{RoomBackend, SIZE, Spoil, cpu_slam, square_walk};

const FRAMES: usize = 60;

/// A camera that walks through the room, on a device that fails when the test wants it to.
pub fn live(config: Config, frames: usize) -> (Rig, Faults) {
    let walk = square_walk(FRAMES, 0.6)[..frames].to_vec();
    let room = RoomBackend::new(SIZE, walk, Spoil::default());
    let images: Vec<_> = (0..frames).map(|k| room.image(k)).collect();
    let setup = Setup {
        config: Arc::new(DeviceConfig::from(&config)),
        preprocessor: None,
        intrinsics: None,
        places: None,
    };
    let faults = Faults::default();
    let device = faults.over(cpu::device(Box::new(room), setup));
    let system = Slam::new(&config, Pace::Live, device, None).expect("a system");
    (Rig::of(system, images), faults)
}

/// Shows frame `k` until `done`, a few seconds long.
fn until(rig: &mut Rig, k: usize, mut done: impl FnMut(&mut Rig, TrackingState) -> bool) {
    for _ in 0..5000 {
        let state = rig.show(Some(k)).expect("a live camera goes on").state;
        if done(rig, state) {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("waited in vain at frame {k}");
}

/// A verdict that has the first call of `method` tell `reached` and wait until the gate is opened.
pub fn waits_at(
    method: &'static str,
    reached: Sender<()>,
    opened: Receiver<()>,
) -> impl Fn(&'static str) -> Result<(), DeviceError> + Send + Sync {
    let opened = Mutex::new(Some(opened));
    move |name| {
        let first = (name == method).then(|| opened.lock().expect("the gate").take());
        if let Some(opened) = first.flatten() {
            let _ = reached.send(());
            // A test that fails meanwhile does not hang.
            let _ = opened.recv_timeout(Duration::from_secs(60));
        }
        Ok(())
    }
}

fn published(rig: &Rig) -> usize {
    rig.system.poses().load().poses.len()
}

pub fn save(slam: &mut Slam, path: &Path) -> Result<SavedMap, SavedMapError> {
    let (sender, receiver) = channel();
    let reply = Box::new(move |saved| sender.send(saved).expect("the test listens"));
    let label = Box::new(|| Ok(MapLabel::default()));
    assert!(slam.save_map_with(path.to_owned(), label, reply));
    receiver.recv().expect("an answer")
}

/// Walks to frame 20, has mapping fail, and walks on to frame 40 and back.
fn goes_on(break_it: impl Fn(&Faults), heal: bool, words: &str) {
    let (mut rig, faults) = live(config(Threads::Pipelined), FRAMES);
    for k in 0..20 {
        rig.show(Some(k)).expect("frame");
        // One keyframe after the other, so that all of them are in the map.
        let made = rig
            .system
            .snapshot()
            .frames
            .iter()
            .filter(|f| f.keyframe.is_some())
            .count();
        until(&mut rig, k, |rig, _| published(rig) >= made);
    }
    let before = published(&rig);
    assert!(before > 2);
    break_it(&faults);
    let mut k = 20;
    while rig.system.mapping_failure().is_none() {
        let frame = rig.show(Some(k)).expect("tracking goes on");
        assert_ne!(frame.state, TrackingState::Lost, "frame {k}");
        k = (k + 1).min(FRAMES - 1);
        std::thread::sleep(Duration::from_millis(2));
        assert!(k < FRAMES - 1, "mapping never failed");
    }
    let why = rig.system.mapping_failure().expect("a reason").to_owned();
    assert!(why.contains(words), "{why}");
    if heal {
        faults.clear();
    }
    // No keyframe any more: back to where the map is, against the keyframe that is there.
    let made = |rig: &Rig| {
        rig.system
            .snapshot()
            .frames
            .iter()
            .filter(|f| f.keyframe.is_some())
            .count()
    };
    let keyframes = made(&rig);
    for k in (0..k).rev() {
        rig.show(Some(k)).expect("a live camera goes on");
    }
    if heal {
        until(&mut rig, 2, |_, state| state == TrackingState::Tracking);
        let frame = rig.show(Some(2)).expect("frame");
        let walk = square_walk(FRAMES, 0.6);
        let truth = walk[0].inverse() * walk[2];
        let apart = (frame.world_from_camera.translation - truth.translation).norm();
        assert!(apart < TOLERANCE, "{apart} m");
        // Blinded, it is found again in the map that it has.
        assert_eq!(rig.show(None).expect("black").state, TrackingState::Lost);
        until(&mut rig, 3, |_, state| state == TrackingState::Tracking);
    }
    assert_eq!(made(&rig), keyframes, "the map grew");
    // The map can be read and saved.
    let (sender, maps) = channel::<MapSnapshot>();
    let reply = Box::new(move |map| sender.send(map).expect("the test listens"));
    assert!(rig.system.read_map(reply));
    assert!(maps.recv().expect("a map").keyframes.len() >= before);
    let folder = tempfile::tempdir().expect("a folder");
    let saved = save(&mut rig.system, &folder.path().join("kept.map")).expect("saved");
    assert!(saved.keyframes >= before);
    // A reset says that mapping has failed: the owner makes another SLAM.
    let error = rig.system.reset().expect_err("mapping has failed");
    assert!(matches!(error, SlamError::Thread(_)), "{error}");
}

#[test]
fn a_panic_in_the_mapping_thread_ends_the_growth_only() {
    let panics = |faults: &Faults| {
        faults.set(|name| match name {
            "make_edges" => panic!("the device fell over (as this test wants it to)"),
            _ => Ok(()),
        });
    };
    goes_on(panics, true, "fell over");
    goes_on(panics, false, "fell over");
}

#[test]
fn a_solve_that_panics_or_a_full_disk_ends_the_growth_only() {
    let panics = |faults: &Faults| {
        faults.set(|name| match name {
            "solve" => panic!("the solver fell over (as this test wants it to)"),
            _ => Ok(()),
        });
    };
    goes_on(panics, true, "solver fell over");
    let full = |faults: &Faults| faults.fail("accept_keyframe", "No space left on device");
    goes_on(full, true, "No space left");
    goes_on(full, false, "No space left");
}

#[test]
fn a_solve_that_fails_leaves_the_poses_and_the_map_grows_on() {
    let (mut rig, faults) = live(config(Threads::Pipelined), FRAMES);
    for k in 0..15 {
        rig.show(Some(k)).expect("frame");
    }
    faults.unsolvable();
    for k in 15..35 {
        let frame = rig.show(Some(k)).expect("frame");
        assert_ne!(frame.state, TrackingState::Lost, "frame {k}");
        std::thread::sleep(Duration::from_millis(5));
    }
    until(&mut rig, 35, |rig, _| {
        rig.system.mapping_counts().failed_solves > 0
    });
    assert_eq!(rig.system.mapping_failure(), None);
    let before = published(&rig);
    faults.clear();
    for k in 36..FRAMES {
        rig.show(Some(k)).expect("frame");
        std::thread::sleep(Duration::from_millis(5));
    }
    until(&mut rig, FRAMES - 1, |rig, _| published(rig) > before);
    rig.system.complete().expect("the map");
    let map = rig.system.snapshot();
    let walk = square_walk(FRAMES, 0.6);
    for key in &map.keyframes {
        // The walk's frames are shown in order, one each, up to the waits.
        let truth = walk[0].inverse() * walk[key.frame_index.min(FRAMES - 1)];
        let apart = (key.world_from_camera.translation - truth.translation).norm();
        assert!(
            key.frame_index >= 35 || apart < TOLERANCE,
            "keyframe {}: {apart} m",
            key.id
        );
    }
}

#[test]
fn a_lost_device_is_an_error_and_every_pose_is_kept() {
    let (mut rig, faults) = live(config(Threads::Pipelined), FRAMES);
    for k in 0..20 {
        rig.show(Some(k)).expect("frame");
    }
    faults.lose();
    let error = rig.show(Some(20)).expect_err("the device is gone");
    assert!(error.to_string().contains("the plug was pulled"), "{error}");
    let frames = rig.system.snapshot().frames;
    assert_eq!(frames.len(), 20);
    assert!(frames.iter().all(|f| f.state != TrackingState::Lost));
    let poses = published(&rig);
    assert!(poses > 0);
}

#[test]
fn a_failure_under_a_question_answers_it() {
    let (mut rig, faults) = live(config(Threads::Pipelined), FRAMES);
    for k in 0..20 {
        rig.show(Some(k)).expect("frame");
    }
    rig.show(None).expect("black");
    faults.set(|name| match name {
        "make_edges" => panic!("the device fell over (as this test wants it to)"),
        _ => Ok(()),
    });
    until(&mut rig, 19, |rig, _| {
        rig.system.mapping_failure().is_some()
    });
    faults.clear();
    until(&mut rig, 19, |_, state| state == TrackingState::Tracking);
}

#[test]
fn a_map_is_checked_and_loaded_while_tracking_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("room.map");
    let (mut first, _) = live(config(Threads::Pipelined), FRAMES);
    for k in 0..20 {
        first.show(Some(k)).expect("frame");
        std::thread::sleep(Duration::from_millis(5));
    }
    let saved = save(&mut first.system, &path).expect("saved");
    std::fs::write(folder.path().join("broken.map"), b"M3RSLMAP and nonsense").expect("a file");

    let (mut rig, faults) = live(config(Threads::Pipelined), FRAMES);
    for k in 0..10 {
        rig.show(Some(k)).expect("frame");
    }
    // A file that cannot be used changes nothing.
    let (sender, checked) = channel();
    let then = Box::new(move |checked| sender.send(checked).expect("the test listens"));
    assert!(rig.system.check_map(folder.path().join("broken.map"), then));
    assert!(checked.recv().expect("an answer").is_err());
    assert_eq!(
        rig.show(Some(10)).expect("frame").state,
        TrackingState::Tracking
    );

    let (sender, checked) = channel();
    let then = Box::new(move |checked| sender.send(checked).expect("the test listens"));
    assert!(rig.system.check_map(path.clone(), then));
    let reader = checked.recv().expect("an answer").expect("a map");
    // The mapper waits within the load; frames are processed all the same.
    let (gate, opened) = channel::<()>();
    let (reached, waits) = channel::<()>();
    faults.set(waits_at("import_edge", reached, opened));
    rig.system.start_load(reader).expect("a load");
    waits.recv().expect("the mapper is at the load");
    for _ in 0..20 {
        assert_eq!(
            rig.show(Some(11)).expect("frame").state,
            TrackingState::Lost
        );
        assert!(rig.system.take_loaded().is_none());
    }
    gate.send(()).expect("the mapper waits");
    until(&mut rig, 15, |_, state| state == TrackingState::Tracking);
    let loaded = rig.system.take_loaded().expect("a result").expect("loaded");
    assert_eq!(
        (loaded.keyframes, loaded.edges),
        (saved.keyframes, saved.edges)
    );
    assert!(rig.system.take_loaded().is_none(), "told twice");
    // A load that fails midway leaves an empty map, in which the next frame starts.
    faults.fail("import_edge", "No space left on device");
    let (sender, checked) = channel();
    let then = Box::new(move |checked| sender.send(checked).expect("the test listens"));
    assert!(rig.system.check_map(path, then));
    let reader = checked.recv().expect("an answer").expect("a map");
    rig.system.start_load(reader).expect("a load");
    until(&mut rig, 15, |_, state| {
        state == TrackingState::Initialising
    });
    let error = rig
        .system
        .take_loaded()
        .expect("a result")
        .expect_err("a full disk");
    assert!(error.to_string().contains("No space left"), "{error}");
}

#[test]
fn readers_that_gave_up_make_room_for_others() {
    let (mut rig, faults) = live(config(Threads::Pipelined), FRAMES);
    let (gate, opened) = channel::<()>();
    let (reached, waits) = channel::<()>();
    faults.set(waits_at("solve", reached, opened));
    rig.show(Some(0)).expect("frame");
    waits.recv().expect("the mapper is at the solve");
    // As many as there is room for, all of which give up.
    let asked = Arc::new(());
    let mut taken = 0;
    let reply = || Box::new(|_: MapSnapshot| panic!("no reader waits for this"));
    while rig
        .system
        .read_keyframes_while(Arc::downgrade(&asked), vec![0], reply())
    {
        taken += 1;
        assert!(taken < 1000, "no bound");
    }
    assert!(taken > 1);
    drop(asked);
    let (sender, maps) = channel::<MapSnapshot>();
    let reply = Box::new(move |map| sender.send(map).expect("the test listens"));
    assert!(rig.system.read_keyframes(vec![0], reply), "no room");
    gate.send(()).expect("the mapper waits");
    assert_eq!(maps.recv().expect("a map").keyframes.len(), 1);
    assert!(rig.system.mapping_pulse().is_some());
}

#[test]
fn a_submap_joins_when_a_known_place_comes() {
    let walk = square_walk(200, 1.0);
    let mut config = config(Threads::Pipelined);
    config.reloc.max_tries = 1;
    config.loops = Loops::On;
    let mut room = RoomBackend::new(SIZE, walk, Spoil::default());
    let model = vocabulary(&mut room);
    let images: Vec<_> = (0..200).map(|k| room.image(k)).collect();
    let system = cpu_slam(config, Pace::Live, Box::new(room), Some(model), None);
    let mut rig = Rig::of(system, images);
    for k in 0..40 {
        rig.show(Some(k)).expect("frame");
        std::thread::sleep(Duration::from_millis(5));
    }
    // Carried to where nothing is known: poses flow as soon as the submap has begun.
    until(&mut rig, 110, |_, state| {
        state == TrackingState::Initialising
    });
    for k in 111..200 {
        let frame = rig.show(Some(k)).expect("frame");
        assert_eq!(frame.state, TrackingState::Tracking, "frame {k}");
        std::thread::sleep(Duration::from_millis(5));
    }
    // And on into the known place, far enough for loops of three keyframes, which must agree with each other.
    for k in 0..40 {
        let frame = rig.show(Some(k)).expect("frame");
        assert_eq!(frame.state, TrackingState::Tracking, "frame {k}");
        std::thread::sleep(Duration::from_millis(5));
    }
    until(&mut rig, 39, |rig, _| {
        rig.system.mapping_counts().merged_submaps == 1
    });
    assert_eq!(rig.show(Some(39)).expect("frame").submap, 0);
}

#[test]
fn a_map_that_is_written_to_after_it_was_checked_is_not_loaded() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("room.map");
    let (mut rig, _) = live(config(Threads::Pipelined), FRAMES);
    for k in 0..10 {
        rig.show(Some(k)).expect("frame");
    }
    save(&mut rig.system, &path).expect("saved");
    let (sender, checked) = channel();
    let then = Box::new(move |checked| sender.send(checked).expect("the test listens"));
    assert!(rig.system.check_map(path.clone(), then));
    let reader = checked.recv().expect("an answer").expect("a map");
    // In place: a file that is renamed there would be another one.
    let mut bytes = std::fs::read(&path).expect("the file");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, &bytes).expect("the file");
    rig.system.start_load(reader).expect("a load");
    until(&mut rig, 9, |rig, _| {
        rig.system
            .take_loaded()
            .is_some_and(|loaded| loaded.is_err())
    });
    let state = rig.show(Some(9)).expect("frame").state;
    assert_ne!(state, TrackingState::Lost, "a new map begins");
}
