//! A live camera with a mapping thread: tracking never waits for it.

use mast3r_slam::config::Threads;
use mast3r_slam::geometry::Sim3;
use mast3r_slam::map::TrackingState;
use mast3r_slam::slam::{MapLabel, Pace, SavedMap, SavedMapError, Slam};
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use testkit::room::rig::{Mood, Rig, TOLERANCE, Valve, config, keyframes_of};
use testkit::room::square_walk;

/// Longer than any call that does not wait takes here, shorter than a valve holds.
const AT_ONCE: Duration = Duration::from_secs(20);

/// The result of `call`, which must not wait for the mapper.
fn at_once<T>(what: &str, call: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = call();
    assert!(start.elapsed() < AT_ONCE, "{what} waited");
    result
}

#[test]
fn live_tracking_does_not_wait_for_mapping_and_postpones_keyframes() {
    const FRAMES: usize = 24;
    let mut config = config(Threads::Pipelined);
    // Every frame wants to be a keyframe.
    config.tracking.match_frac_thresh = 1.01;
    let walk = square_walk(400, 1.0)[..FRAMES].to_vec();
    let mut rig = Rig::with(walk, config, Pace::Live, Mood::Waits);
    let records: Vec<_> = (0..FRAMES)
        .map(|k| rig.show(Some(k)).expect("does not wait"))
        .collect();
    assert!(records.iter().all(|r| r.state != TrackingState::Lost));
    // Mapping is stuck at keyframe 1; 8 may wait for it, keyframe 0 may have been one of them.
    let made = keyframes_of(records.iter().map(|f| &f.record));
    assert!((8..=9).contains(&made), "{made}");
    assert!(records[FRAMES - 1].keyframe.is_none());
    // Every other frame wanted to be one.
    assert_eq!(
        rig.system.mapping_counts().postponed_keyframes,
        FRAMES - made
    );
    rig.valve.set(Mood::Works);
    // The postponed keyframe is made once there is room again.
    let caught_up = (0..5000).any(|_| {
        std::thread::yield_now();
        rig.show(Some(FRAMES - 1))
            .expect("frame")
            .keyframe
            .is_some()
    });
    assert!(caught_up);
    rig.system.complete().expect("finish");
    let map = rig.system.snapshot();
    assert_eq!(map.keyframes.len(), made + 1);
    assert_eq!(map.edges.len(), made);
    assert_eq!(map.frames.len(), rig.next);
    assert!(map.frames.iter().all(|f| f.state != TrackingState::Lost));
}

#[test]
fn a_live_camera_that_is_lost_does_not_wait_for_the_answer() {
    let mut rig = Rig::new(
        square_walk(400, 1.0)[..12].to_vec(),
        Threads::Pipelined,
        Pace::Live,
        Mood::Works,
    );
    for k in 0..10 {
        assert_ne!(rig.show(Some(k)).expect("frame").state, TrackingState::Lost);
    }
    assert_eq!(rig.show(None).expect("black").state, TrackingState::Lost);
    rig.valve.set(Mood::Waits);
    for _ in 0..20 {
        // The first asks, the others find the mapper busy.
        assert_eq!(rig.show(Some(9)).expect("frame").state, TrackingState::Lost);
    }
    rig.valve.set(Mood::Works);
    let found = (0..5000).any(|_| {
        std::thread::yield_now();
        rig.show(Some(10)).expect("frame").state == TrackingState::Tracking
    });
    assert!(found);
    // The counters can be read while the mapper works.
    assert_eq!(rig.system.mapping_counts().relocalised, 1);
    rig.system.complete().expect("finish");
    let map = rig.system.snapshot();
    assert_eq!(rig.system.mapping_counts().relocalised, 1);
    // The frame that asked is the one that was found.
    assert_eq!(map.frames[11].state, TrackingState::Relocalised);
    assert!(map.frames.iter().all(|f| f.submap == 0));
}

/// A camera whose every frame wants to be a keyframe, six frames on: mapping is at keyframe 1, which its network
/// keeps waiting.
fn with_a_busy_mapper() -> Rig {
    let mut config = config(Threads::Pipelined);
    config.tracking.match_frac_thresh = 1.01;
    let walk = square_walk(400, 1.0)[..6].to_vec();
    let mut rig = Rig::with(walk, config, Pace::Live, Mood::Waits);
    for k in 0..6 {
        rig.show(Some(k)).expect("frame");
    }
    rig
}

/// Does `work` in a thread, and lets the network go on only once that has been seen to wait for the mapper.
fn waited_for<T: Send + 'static>(valve: &Valve, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (told, done) = std::sync::mpsc::channel();
    let working = std::thread::spawn(move || {
        let result = work();
        told.send(()).expect("the receiver exists");
        result
    });
    let soon = std::time::Duration::from_millis(300);
    assert!(done.recv_timeout(soon).is_err(), "it did not wait");
    valve.set(Mood::Works);
    let limit = std::time::Duration::from_secs(60);
    done.recv_timeout(limit).expect("it came to an end");
    working.join().expect("it told")
}

/// A process that ends while its mapper still works takes the GPU from under it.
#[test]
fn a_system_that_goes_waits_for_the_job_under_way_and_leaves_out_the_others() {
    let rig = with_a_busy_mapper();
    let valve = rig.valve.clone();
    waited_for(&valve, move || drop(rig));
    // An edge is decoded both ways; five keyframes wanted one.
    assert!(valve.passes() <= 2, "{} decoder passes", valve.passes());
}

/// A live camera whose mapper is stuck at keyframe 1, with a full queue behind it.
fn with_a_full_queue() -> (Rig, Vec<Sim3>) {
    let mut config = config(Threads::Pipelined);
    config.tracking.match_frac_thresh = 1.01;
    let walk = square_walk(400, 1.0)[..20].to_vec();
    let mut rig = Rig::with(walk.clone(), config, Pace::Live, Mood::Waits);
    for k in 0..12 {
        at_once("tracking", || rig.show(Some(k)).expect("frame"));
    }
    assert!(rig.system.mapping_counts().postponed_keyframes > 0);
    (rig, walk)
}

#[test]
fn a_lost_camera_does_not_wait_for_a_full_queue() {
    let (mut rig, _) = with_a_full_queue();
    let black = at_once("a black frame", || rig.show(None).expect("black"));
    assert_eq!(black.state, TrackingState::Lost);
    for _ in 0..5 {
        let frame = at_once("a lost frame", || rig.show(Some(11)).expect("frame"));
        assert_eq!(frame.state, TrackingState::Lost);
    }
    rig.valve.set(Mood::Works);
    let found = (0..5000).any(|_| {
        std::thread::sleep(Duration::from_millis(1));
        rig.show(Some(11)).expect("frame").state == TrackingState::Tracking
    });
    assert!(found);
}

#[test]
fn a_black_image_is_lost_without_asking_the_network() {
    let walk = square_walk(400, 1.0)[..12].to_vec();
    let mut rig = Rig::new(walk, Threads::Single, Pace::Live, Mood::Works);
    for k in 0..6 {
        assert_ne!(rig.show(Some(k)).expect("frame").state, TrackingState::Lost);
    }
    let passes = rig.valve.passes();
    for _ in 0..15 {
        let black = rig.show(None).expect("black");
        assert_eq!(black.state, TrackingState::Lost);
    }
    assert_eq!(rig.valve.passes(), passes);
    // No try to find the camera was used up.
    let found = rig.show(Some(6)).expect("frame");
    assert_eq!(found.state, TrackingState::Relocalised);
    assert!(rig.valve.passes() > passes);
}

#[test]
fn a_camera_that_moves_on_while_mapping_stands_is_lost_and_not_wrong() {
    let mut config = config(Threads::Pipelined);
    config.tracking.match_frac_thresh = 0.9;
    let walk = square_walk(400, 1.0);
    let mut rig = Rig::with(walk.clone(), config, Pace::Live, Mood::Waits);
    let mut lost = None;
    for k in (0..400).step_by(2) {
        let seen = at_once("tracking", || rig.show(Some(k)).expect("frame"));
        if seen.state == TrackingState::Lost {
            lost = Some((k, seen.match_fraction));
            break;
        }
        let truth = walk[0].inverse() * walk[k];
        let apart = (seen.world_from_camera.translation - truth.translation).norm();
        assert!(apart < 10.0 * TOLERANCE, "frame {k}: {apart}");
    }
    // Without the rule it is tracked down to 5 %.
    let (k, fraction) = lost.expect("too far to be tracked");
    println!("lost at {k}, {fraction}");
    assert!(fraction > 0.2 && fraction < 0.6, "{fraction}");
    assert!(rig.system.mapping_counts().postponed_keyframes > 0);
    rig.valve.set(Mood::Works);
    let found = (0..5000).any(|_| {
        std::thread::sleep(Duration::from_millis(1));
        rig.show(Some(k)).expect("frame").state == TrackingState::Tracking
    });
    assert!(found);
    assert_eq!(rig.system.mapping_counts().relocalised, 1);
}

/// On a slow machine minutes of mapping may be waiting.
#[test]
fn a_reset_drops_what_waits_and_the_new_map_is_tracked_at_once() {
    let (mut rig, walk) = with_a_full_queue();
    at_once("a reset", || rig.system.reset().expect("reset"));
    assert!(rig.system.poses().load().poses.is_empty());
    // The mapper still is at the old map; the new map's poses do not wait for it.
    let first = at_once("the first frame", || rig.show(Some(0)).expect("frame"));
    assert_eq!(first.state, TrackingState::Initialising);
    for (k, pose) in walk.iter().enumerate().take(6).skip(1) {
        let tracked = at_once("a frame", || rig.show(Some(k)).expect("frame"));
        assert_eq!(tracked.state, TrackingState::Tracking, "frame {k}");
        let truth = walk[0].inverse() * *pose;
        let apart = tracked.world_from_camera.translation - truth.translation;
        // Each keyframe brings its own half pixel.
        let limit = TOLERANCE * (1.0 + k as f64);
        assert!(apart.norm() < limit, "frame {k}: {apart}");
    }
    let passes = rig.valve.passes();
    assert!(passes <= 2, "{passes} decoder passes");
    assert!(rig.system.poses().load().poses.is_empty());
    rig.valve.set(Mood::Works);
    rig.system.complete().expect("finish");
    let map = rig.system.snapshot();
    assert_eq!((map.keyframes.len(), map.edges.len()), (6, 5));
    assert_eq!(map.frames.len(), 6);
    // The edge under way and five new ones, both ways each; none of those that waited.
    let passes = rig.valve.passes();
    assert!(passes <= 12, "{passes} decoder passes");
}

#[test]
fn a_reset_forgets_the_question_under_way() {
    let walk = square_walk(400, 1.0)[..12].to_vec();
    let mut rig = Rig::new(walk, Threads::Pipelined, Pace::Live, Mood::Works);
    for k in 0..10 {
        rig.show(Some(k)).expect("frame");
    }
    assert_eq!(rig.show(None).expect("black").state, TrackingState::Lost);
    rig.valve.set(Mood::Waits);
    assert_eq!(rig.show(Some(9)).expect("asks").state, TrackingState::Lost);
    at_once("a reset", || rig.system.reset().expect("reset"));
    let first = rig.show(Some(3)).expect("frame");
    assert_eq!(first.state, TrackingState::Initialising);
    assert_eq!(first.keyframe, Some(0));
    rig.valve.set(Mood::Works);
    rig.system.complete().expect("finish");
    // Whether the thread found that place or not, nothing of it is left.
    let map = rig.system.snapshot();
    assert_eq!((map.frames.len(), map.keyframes.len()), (1, 1));
    assert_eq!(map.frames[0].state, TrackingState::Initialising);
}

fn save(slam: &mut Slam, path: &Path) -> SavedMap {
    let (sender, receiver) = channel();
    let reply = Box::new(move |saved: Result<SavedMap, SavedMapError>| {
        sender.send(saved).expect("the test listens");
    });
    let label = Box::new(|| Ok(MapLabel::default()));
    assert!(slam.save_map_with(path.to_owned(), label, reply));
    receiver.recv().expect("an answer").expect("saved")
}

#[test]
fn a_load_waits_for_the_event_under_way_and_not_for_the_queue() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("room.map");
    let walk = square_walk(400, 1.0)[..20].to_vec();
    let mut first = Rig::new(walk, Threads::Single, Pace::EveryFrame, Mood::Works);
    for k in 0..20 {
        first.show(Some(k)).expect("frame");
    }
    first.system.complete().expect("finish");
    let saved = save(&mut first.system, &path);

    let (mut rig, _) = with_a_full_queue();
    let valve = rig.valve.clone();
    let (mut rig, loaded) = waited_for(&valve, move || {
        let loaded = rig.system.load_map_of(&path, "");
        (rig, loaded)
    });
    let loaded = loaded.expect("loaded");
    assert_eq!(
        (loaded.keyframes, loaded.edges),
        (saved.keyframes, saved.edges)
    );
    let passes = valve.passes();
    assert!(passes <= 2, "{passes} decoder passes");
    assert_eq!(rig.system.poses().load().poses.len(), saved.keyframes);
    let found = (0..5000).any(|_| {
        std::thread::sleep(Duration::from_millis(1));
        rig.show(Some(19)).expect("frame").state == TrackingState::Tracking
    });
    assert!(found);
}

/// A robot that was carried to another room, or blinded while it went there.
#[test]
fn a_live_camera_that_is_lost_in_an_unknown_place_starts_a_submap() {
    let whole = square_walk(400, 1.0);
    let mut walk = whole[..10].to_vec();
    walk.extend_from_slice(&whole[200..230]);
    let mut config = config(Threads::Pipelined);
    config.reloc.max_tries = 1;
    let mut rig = Rig::with(walk, config, Pace::Live, Mood::Works);
    for k in 0..10 {
        rig.show(Some(k)).expect("frame");
    }
    let started = (0..5000).find(|_| {
        std::thread::sleep(Duration::from_millis(1));
        let frame = rig.show(Some(10)).expect("frame");
        assert!(frame.state != TrackingState::Tracking, "{frame:?}");
        frame.state == TrackingState::Initialising
    });
    assert!(started.is_some(), "lost without end");
    for k in 11..40 {
        let tracked = rig.show(Some(k)).expect("frame");
        assert_eq!(tracked.state, TrackingState::Tracking, "frame {k}");
        assert_eq!(tracked.submap, 1, "frame {k}");
    }
    rig.system.complete().expect("finish");
    assert_eq!(rig.system.snapshot().submaps(), [0, 1]);
}

#[test]
fn a_live_camera_goes_on_in_a_full_map() {
    let mut config = config(Threads::Pipelined);
    config.tracking.match_frac_thresh = 1.01;
    config.local_opt.max_keyframes = 5;
    let walk = square_walk(400, 1.0)[..20].to_vec();
    let mut rig = Rig::with(walk, config, Pace::Live, Mood::Works);
    for k in 0..20 {
        let frame = rig.show(Some(k)).expect("a full map is no error");
        assert_ne!(frame.state, TrackingState::Lost, "frame {k}");
    }
    assert!(rig.system.is_full());
    rig.system.complete().expect("finish");
    assert_eq!(rig.keyframes(), 5);
}
