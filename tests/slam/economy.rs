//! The map grows with space, not with time: keyframes are reused, and redundant ones are removed.

use mast3r_slam::config::{Config, Threads};
use mast3r_slam::geometry::Sim3;
use mast3r_slam::image::RgbImage;
use mast3r_slam::inference::Backend;
use mast3r_slam::map::saved::Reader;
use mast3r_slam::map::{MapSnapshot, TrackingState};
use mast3r_slam::slam::{Frame, MapLabel, MappingCounts, Pace, Slam};
use std::path::Path;
use testkit::room::rig::bits;
use testkit::room::walk::{ate, config, images, lost, stamp, vocabulary, walk};
use testkit::room::{RoomBackend, SIZE, Spoil, cpu_slam, intrinsics, square_walk};

/// Frames of a walk round the room: about five for each keyframe.
const LAP: usize = 100;
/// Frames of a walk in which no frame moves past a third of a keyframe's overlap: else the way between two keyframes is
/// at times covered by neither, and a live camera may lose both before mapping has answered.
const FINE_LAP: usize = 160;

const SPOIL: Spoil = Spoil {
    noise: 0.01,
    outliers: 0.05,
    bias: 0.01,
};

fn economy(reuse: bool, remove: bool) -> Config {
    let mut config = config(false);
    config.economy.reuse = reuse;
    // The walks are short.
    config.economy.reuse_after = 0;
    config.economy.remove = remove;
    config
}

/// A system in the room, images of the first `frames` frames of a walk, and the true poses.
fn room(frames: usize, config: Config, pace: Pace) -> (Slam, Vec<RgbImage>, Vec<Sim3>) {
    room_of(LAP, frames, config, pace)
}

/// The same with `lap` frames of a walk round the room.
fn room_of(
    lap: usize,
    frames: usize,
    config: Config,
    pace: Pace,
) -> (Slam, Vec<RgbImage>, Vec<Sim3>) {
    let laps = frames.div_ceil(lap);
    let mut poses = square_walk(lap * laps, laps as f64);
    poses.truncate(frames);
    let mut backend = RoomBackend::new(SIZE, poses.clone(), SPOIL);
    let model = vocabulary(&mut backend);
    let size = (backend.shape().width, backend.shape().height);
    let images = images(&backend, (0..poses.len()).map(Some));
    let camera = Some(intrinsics(size));
    let system = cpu_slam(config, pace, Box::new(backend), Some(model), camera);
    (system, images, poses)
}

fn walked_of(lap: usize, laps: usize, config: Config) -> (MapSnapshot, Slam, Vec<Sim3>) {
    let (mut system, images, poses) = room_of(lap, lap * laps, config, Pace::EveryFrame);
    let snapshot = walk(&mut system, &images);
    (snapshot, system, poses)
}

/// Waits until the mapping side has handled every event: readers come between two events, of which eight may wait.
fn settle(system: &mut Slam) {
    for _ in 0..10 {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let reply = Box::new(move |_| sender.send(()).expect("the test listens"));
        assert!(system.read_keyframes(Vec::new(), reply));
        receiver.recv().expect("the mapping side lives");
    }
}

/// Inline: beside a mapping thread, which keyframes there are when a frame needs one is a matter of chance.
#[test]
fn further_laps_need_hardly_more_keyframes() {
    let config = Config {
        threads: Threads::Single,
        ..economy(true, true)
    };
    let after = |laps| walked_of(FINE_LAP, laps, config.clone()).0.keyframes.len();
    let (one, three) = (after(1), after(3));
    assert!(
        20 * three <= 23 * one,
        "{three} keyframes after three laps, {one} after one"
    );
}

/// With a keyframe at nearly every frame, few overlap another one by as much as the rules for matches ask: those of the
/// second lap go because the points of the first one show the same.
#[test]
fn keyframes_of_a_second_lap_go_though_they_match_no_others() {
    let two_laps = |covered| {
        let mut config = economy(false, true);
        config.tracking.match_frac_thresh = 0.85;
        config.economy.overlap = 1.0;
        config.economy.covered = covered;
        let (map, _, truth) = walked_of(LAP / 2, 2, config);
        (map.keyframes.len(), ate(&map, &truth))
    };
    // No keyframe is covered as a whole.
    let (all, error_of_all) = two_laps(1.0);
    let (fewer, error) = two_laps(0.9);
    let found = format!("{fewer} keyframes ({error} m), {all} ({error_of_all} m) without the rule");
    assert!(4 * fewer <= 3 * all, "{found}");
    assert!(error <= 2.65_f64.sqrt() * error_of_all, "{found}");
}

/// The aim: frames that are tracked against known keyframes, which they overlap less than new ones, are as accurate.
#[test]
#[ignore = "not reached: 0.0198 m after three laps, 0.0159 m after one; 0.0098 m without the rules"]
fn three_laps_are_as_accurate_as_one() {
    let config = Config {
        threads: Threads::Single,
        ..economy(true, true)
    };
    let (one, _, truth) = walked_of(FINE_LAP, 1, config.clone());
    let error_of_one = ate(&one, &truth);
    let (three, _, truth) = walked_of(FINE_LAP, 3, config);
    let error = ate(&three, &truth);
    assert!(
        error <= 1.1 * error_of_one,
        "ATE {error} m after three laps, {error_of_one} m after one"
    );
}

fn a_second_lap_reuses_most(threads: Threads) {
    let config = Config {
        threads,
        ..economy(true, true)
    };
    let (map, system, _) = walked_of(FINE_LAP, 2, config);
    let counts = system.mapping_counts();
    assert!(counts.reused_keyframes > 0, "{counts:?}");
    assert_eq!(lost(&map), 0);
    let made = |lap: usize| {
        let frames = &map.frames[lap * FINE_LAP..(lap + 1) * FINE_LAP];
        frames.iter().filter(|f| f.keyframe.is_some()).count()
    };
    let (first, second) = (made(0), made(1));
    assert!(
        2 * second <= first,
        "{threads:?}: {first} keyframes in the first lap, {second} in the second"
    );
}

#[test]
fn a_second_lap_reuses_most_of_what_the_first_one_made() {
    a_second_lap_reuses_most(Threads::Single);
}

/// The aim: however far mapping is behind, no frame is lost.
#[test]
#[ignore = "not reached on one core: one frame of 320 is lost; on two cores none"]
fn a_second_lap_reuses_most_beside_a_mapping_thread() {
    a_second_lap_reuses_most(Threads::Pipelined);
}

/// Two laps of a live camera: the number of keyframes, the ATE, and what mapping did.
fn live_laps(reuse: bool) -> (usize, f64, MappingCounts) {
    let config = Config {
        threads: Threads::Pipelined,
        ..economy(reuse, reuse)
    };
    let (mut system, images, truth) = room_of(FINE_LAP, 2 * FINE_LAP, config, Pace::Live);
    for (k, image) in images.iter().enumerate() {
        let frame = Frame {
            index: k,
            stamp: stamp(k),
            image: image.into(),
        };
        let tracked = system.process(&frame).expect("frame");
        assert_ne!(tracked.state, TrackingState::Lost, "frame {k}");
        settle(&mut system);
    }
    system.complete().expect("finish");
    let snapshot = system.snapshot();
    let error = ate(&snapshot, &truth);
    (snapshot.keyframes.len(), error, system.mapping_counts())
}

#[test]
fn a_live_camera_reuses_keyframes_without_waiting() {
    let (without, _, _) = live_laps(false);
    let (with, _, counts) = live_laps(true);
    assert!(counts.reused_keyframes > 0, "{counts:?}");
    assert!(
        with < without,
        "{with} keyframes after two laps, {without} without reuse"
    );
}

/// The aim for a live camera.
#[test]
#[ignore = "not reached: 0.0144 m with both rules, 0.0091 m without"]
fn a_live_camera_that_reuses_keyframes_is_hardly_less_accurate() {
    let [without, with] = [false, true].map(|reuse| live_laps(reuse).1);
    assert!(with <= 1.5 * without, "{with} m, {without} m");
}

/// Forces removals: many keyframes, and a low limit of what must be covered.
fn crowded() -> Config {
    let mut config = economy(false, true);
    config.tracking.match_frac_thresh = 0.6;
    config.economy.covered = 0.5;
    config
}

#[test]
fn removed_keyframes_leave_no_frame_without_a_place_and_the_map_as_good() {
    let frames = 60;
    let run = |config| {
        let (mut system, images, truth) = room(frames, config, Pace::EveryFrame);
        let snapshot = walk(&mut system, &images);
        (snapshot, system, truth)
    };
    let mut keeping = crowded();
    keeping.economy.remove = false;
    let (all, _, truth) = run(keeping);
    let (fewer, mut system, _) = run(crowded());
    let removed = system.mapping_counts().removed_keyframes;
    assert!(removed > 3, "{removed}");
    assert_eq!(fewer.keyframes.len() + removed, all.keyframes.len());
    // The first one is fixed, and the last one says where the camera is.
    let made = all.keyframes.len() as u32;
    let ids: Vec<u32> = fewer.keyframes.iter().map(|k| k.id).collect();
    assert!(ids.is_sorted() && ids[0] == 0, "{ids:?}");
    assert!(ids.contains(&(made - 1)), "{ids:?} of {made}");
    let known = |id: &u32| ids.contains(id);
    assert!(fewer.edges.iter().all(|e| known(&e.i) && known(&e.j)));
    let poses = system.poses().load_full();
    assert_eq!((&poses.ids, poses.poses.len()), (&ids, ids.len()));
    // Factors keep the map where it was, but know less than the edges did: the variance of relative poses grows up to
    // 2.65 times (docs/algorithm.md, Map economy), the error by the root of that.
    let (error, before) = (ate(&fewer, &truth), ate(&all, &truth));
    assert!(
        error <= 2.65_f64.sqrt() * before,
        "ATE {error} m, {before} m with all"
    );

    // What is saved has no gaps, has the factors, and can be resumed: the last place is found in it.
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("room.map");
    save(&mut system, &file);
    let (mut resumed, images, _) = room(frames, crowded(), Pace::EveryFrame);
    let loaded = resumed.load_map_of(&file, "").expect("the map");
    assert_eq!(loaded.keyframes, ids.len());
    let factors = Reader::open(&file).expect("a map").header().factors;
    assert!(factors > 0, "keyframes were removed");
    let again = folder.path().join("again.map");
    save(&mut resumed, &again);
    let read = |path: &Path| std::fs::read(path).expect("the file");
    assert!(read(&file) == read(&again), "{factors} factors");
    let last = images.last().expect("an image");
    let tracked = resumed.process(&Frame {
        index: 0,
        stamp: stamp(0),
        image: last.into(),
    });
    assert_eq!(tracked.expect("frame").state, TrackingState::Relocalised);
}

fn save(system: &mut Slam, file: &Path) {
    let (sender, receiver) = std::sync::mpsc::channel();
    let reply = Box::new(move |saved| sender.send(saved).expect("the test listens"));
    let label = || Ok(MapLabel::default());
    assert!(system.save_map_with(file.to_owned(), Box::new(label), reply));
    let saved: Result<_, _> = receiver.recv().expect("an answer");
    saved.expect("a saved map");
}

#[test]
fn a_full_map_replaces_what_is_covered_most_and_never_exceeds_its_limit() {
    let mut config = crowded();
    config.economy.covered = 1.0;
    config.economy.covered_when_full = 0.1;
    config.local_opt.max_keyframes = 12;
    let (mut system, images, _) = room(20, config, Pace::EveryFrame);
    let mut newest = 0;
    // Along twenty frames there and back, again and again.
    let back = images.iter().rev();
    let walk: Vec<&RgbImage> = images.iter().chain(back).collect();
    for (k, image) in walk.iter().cycle().take(160).enumerate() {
        let frame = Frame {
            index: k,
            stamp: stamp(k),
            image: (*image).into(),
        };
        let tracked = system.process(&frame).expect("frame");
        assert_ne!(tracked.state, TrackingState::Lost, "frame {k}");
        let poses = system.poses().load_full();
        assert!(poses.ids.len() <= 12, "{:?}", poses.ids);
        newest = poses.newest().expect("keyframes");
    }
    assert!(newest > 20, "the map went on growing: {newest}");
    assert!(!system.is_full());
}

#[test]
fn economical_single_threaded_runs_repeat_bit_for_bit() {
    let once = || {
        let mut config = crowded();
        config.economy.reuse = true;
        config.local_opt.max_edges = 4;
        let (mut system, images, _) = room(LAP + 30, config, Pace::EveryFrame);
        let snapshot = walk(&mut system, &images);
        let counts = system.mapping_counts();
        assert!(counts.reused_keyframes > 0 && counts.removed_keyframes > 0);
        assert!(counts.demoted_edges > 0, "{counts:?}");
        let frames = snapshot.frames.iter().map(|f| bits(&f.world_from_camera));
        let keyframes = snapshot.keyframes.iter();
        let keyframes = keyframes.map(|k| (k.id, bits(&k.world_from_camera)));
        (frames.collect::<Vec<_>>(), keyframes.collect::<Vec<_>>())
    };
    assert_eq!(once(), once());
}
