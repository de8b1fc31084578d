//! The file that a map is written to as it is made: sessions, another process, damage, and results that stay the same.

use mast3r_slam::compute::retrieval::RetrievalModel;
use mast3r_slam::config::{Config, Threads};
use mast3r_slam::geometry::Sim3;
use mast3r_slam::image::RgbImage;
use mast3r_slam::inference::Backend;
use mast3r_slam::map::store::{Job, Key, Reader, Writer};
use mast3r_slam::map::{MapSnapshot, TrackingState};
use mast3r_slam::slam::{Frame, MapMode, Pace, SavedMap, Slam};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::room::walk::{config, stamp, vocabulary};
use testkit::room::{RoomBackend, SIZE, Spoil, cpu_slam, intrinsics, square_walk};

pub const FRAMES: usize = 60;
pub const WEIGHTS: &str = "0123abcd";

pub struct Room {
    pub backend: RoomBackend,
    pub places: Arc<RetrievalModel>,
    pub images: Vec<RgbImage>,
    pub truth: Vec<Sim3>,
}

impl Room {
    pub fn new(size: (usize, usize)) -> Self {
        Self::of(size, FRAMES, Spoil::default())
    }

    pub fn of(size: (usize, usize), frames: usize, spoil: Spoil) -> Self {
        let truth: Vec<Sim3> = square_walk(frames, 0.6);
        let mut backend = RoomBackend::new(size, truth.clone(), spoil);
        let places = vocabulary(&mut backend);
        let images = (0..frames).map(|k| backend.image(k)).collect();
        Self {
            backend,
            places,
            images,
            truth,
        }
    }

    pub fn system(&self, config: Config) -> Slam {
        let shape = self.backend.shape();
        let camera = intrinsics((shape.width, shape.height));
        let places = Some(Arc::clone(&self.places));
        let backend = self.backend.share();
        cpu_slam(config, Pace::EveryFrame, backend, places, Some(camera))
    }

    pub fn show(&self, system: &mut Slam, frames: std::ops::Range<usize>) -> Vec<TrackingState> {
        let show = |k: usize| {
            let input = Frame {
                index: k,
                stamp: stamp(k),
                image: (&self.images[k]).into(),
            };
            system.process(&input).expect("frame").state
        };
        frames.map(show).collect()
    }

    /// A map of these frames in `file`, completed and closed.
    pub fn make(&self, file: &Path, frames: std::ops::Range<usize>) -> MapSnapshot {
        let mut system = self.system(single());
        assert_eq!(open(&mut system, file), None);
        self.show(&mut system, frames);
        system.complete().expect("finish");
        assert_eq!(system.map_file_failure(), None);
        system.snapshot()
    }
}

pub fn single() -> Config {
    Config {
        threads: Threads::Single,
        ..config(false)
    }
}

pub fn open(system: &mut Slam, file: &Path) -> Option<SavedMap> {
    let opened = system.open_map_of(file, MapMode::Continue, WEIGHTS);
    opened.expect("opened")
}

pub fn refused(system: &mut Slam, file: &Path, mode: MapMode, parts: &[&str]) {
    let error = system
        .open_map_of(file, mode, WEIGHTS)
        .expect_err("refused");
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).expect("the folder");
        let name = |e: std::io::Result<std::fs::DirEntry>| {
            e.expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        };
        let mut names: Vec<String> = entries.map(name).collect();
        names.sort();
        names
    }
}

pub fn sql(file: &Path, statement: &str) {
    let database = rusqlite::Connection::open(file).expect("a database");
    database.execute_batch(statement).expect("done");
}

pub fn poses(map: &MapSnapshot) -> Vec<(u32, Sim3)> {
    map.keyframes
        .iter()
        .map(|k| (k.id, k.world_from_camera))
        .collect()
}

#[test]
fn a_file_changes_no_result() {
    let (room, folder) = (Room::new(SIZE), Folder::new());
    for calibrated in [false, true] {
        let walk = |file: Option<&Path>| {
            let mut system = room.system(Config {
                threads: Threads::Single,
                ..config(calibrated)
            });
            if let Some(file) = file {
                open(&mut system, file);
            }
            room.show(&mut system, 0..FRAMES);
            system.complete().expect("finish");
            system.snapshot()
        };
        let file = folder.file(&format!("{calibrated}.map"));
        let (without, with) = (walk(None), walk(Some(&file)));
        assert_eq!(poses(&without), poses(&with));
        assert_eq!(without.edges, with.edges);
        assert!(without.frames.iter().zip(&with.frames).all(|(a, b)| {
            (a.world_from_camera, a.state, a.keyframe) == (b.world_from_camera, b.state, b.keyframe)
        }));
        // And the file holds that map, to the bit where it is poses.
        let reader = Reader::open(&file).expect("a map");
        let rows = reader.keyframes().iter();
        let stored: Vec<_> = rows.map(|k| (k.id, k.world_from_camera)).collect();
        assert_eq!(stored, poses(&with));
        let rows = reader.edges().iter().map(|e| (e.i, e.j, e.kind));
        let made = with.edges.iter().map(|e| (e.i, e.j, e.kind));
        assert!(rows.eq(made));
    }
    // A map that was closed is one file.
    assert_eq!(folder.names(), ["false.map", "true.map"]);
}

#[test]
fn a_map_grows_in_its_file_from_session_to_session() {
    let room = Room::new(SIZE);
    for threads in [Threads::Single, Threads::Pipelined] {
        let folder = Folder::new();
        let file = folder.file("room.map");
        let config = Config {
            threads,
            ..config(false)
        };
        let mut known: Vec<(u32, Sim3)> = Vec::new();
        for session in 0..3 {
            let mut system = room.system(config.clone());
            let found = open(&mut system, &file);
            assert_eq!(found.as_ref().map_or(0, |map| map.keyframes), known.len());
            assert_eq!(found.map_or(String::new(), |map| map.left_out), "");
            let table = system.poses().load_full();
            let loaded: Vec<_> = table
                .ids
                .iter()
                .copied()
                .zip(table.poses.iter().copied())
                .collect();
            assert_eq!(loaded, known, "{threads:?}, session {session}");
            let states = room.show(&mut system, session * 20..FRAMES);
            if session > 0 {
                assert!(!states.contains(&TrackingState::Initialising), "{states:?}");
                assert!(states.contains(&TrackingState::Relocalised), "{states:?}");
            }
            system.complete().expect("finish");
            assert_eq!(system.map_file_failure(), None);
            let map = system.snapshot();
            assert!(map.keyframes.len() >= known.len());
            assert!(map.keyframes.iter().all(|k| k.submap == 0));
            known = poses(&map);
        }
        let (damage, structure) = Reader::open(&file).expect("a map").check();
        assert!(
            damage.is_none() && structure.is_empty(),
            "{damage} {structure:?}"
        );
    }
}

#[test]
fn a_map_that_is_only_read_stays_as_it_is() {
    let (room, folder) = (Room::new(SIZE), Folder::new());
    let file = folder.file("room.map");
    refused(
        &mut room.system(single()),
        &file,
        MapMode::ReadOnly,
        &["room.map"],
    );
    assert!(folder.names().is_empty(), "nothing was created");
    let made = room.make(&file, 0..40);
    let before = std::fs::read(&file).expect("the file");
    let mut system = room.system(single());
    let opened = system.open_map_of(&file, MapMode::ReadOnly, WEIGHTS);
    let found = opened.expect("opened").expect("a map");
    assert_eq!(found.keyframes, made.keyframes.len());
    let states = room.show(&mut system, 5..FRAMES);
    assert!(states.contains(&TrackingState::Tracking));
    system.complete().expect("finish");
    assert_eq!(system.snapshot().keyframes.len(), found.keyframes);
    assert!(std::fs::read(&file).expect("the file") == before);
    assert_eq!(folder.names(), ["room.map"]);
}

#[test]
fn a_map_in_use_can_be_read_and_not_be_written_by_another() {
    let (room, folder) = (Room::new(SIZE), Folder::new());
    let file = folder.file("room.map");
    room.make(&file, 0..20);
    let mut first = room.system(single());
    open(&mut first, &file);
    let process = format!("process {}", std::process::id());
    let parts = ["is in use", process.as_str(), "--read-only"];
    refused(&mut room.system(single()), &file, MapMode::Continue, &parts);
    let mut reading = room.system(single());
    let read = reading.open_map_of(&file, MapMode::ReadOnly, WEIGHTS);
    assert!(read.expect("read").is_some());
    // Reading it in the same process has not given up the lock.
    refused(&mut room.system(single()), &file, MapMode::Continue, &parts);
    drop(first);
    open(&mut room.system(single()), &file);
}

#[test]
fn other_files_and_maps_that_do_not_fit_are_refused_and_stay() {
    let (room, folder) = (Room::new(SIZE), Folder::new());
    let (file, notes, foreign) = (
        folder.file("room.map"),
        folder.file("notes.map"),
        folder.file("other.map"),
    );
    room.make(&file, 0..20);
    std::fs::write(&notes, "precious").expect("a file");
    sql(&foreign, "CREATE TABLE mine (precious)");
    let both = [MapMode::Continue, MapMode::ReadOnly];
    for mode in both {
        let mut system = room.system(single());
        refused(&mut system, &notes, mode, &["notes.map", "not a map"]);
        refused(&mut system, &foreign, mode, &["other.map", "not a map"]);
    }
    assert_eq!(std::fs::read(&notes).expect("the notes"), b"precious");
    let before = std::fs::read(&file).expect("the file");
    for mode in both {
        let mut calibrated = room.system(Config {
            threads: Threads::Single,
            ..config(true)
        });
        refused(&mut calibrated, &file, mode, &["uncalibrated", "use_calib"]);
        let mut other = room.system(single());
        let error = other
            .open_map_of(&file, mode, "ffff")
            .expect_err("other weights");
        assert!(error.to_string().contains("ffff"), "{error}");
        let mut few = single();
        few.local_opt.max_keyframes = 1;
        refused(&mut room.system(few), &file, mode, &["max_keyframes"]);
    }
    // Small images have fewer features for a vocabulary.
    let small = Room::of((64, 48), 2 * FRAMES, Spoil::default());
    refused(
        &mut small.system(single()),
        &file,
        MapMode::Continue,
        &["128×96", "64×48"],
    );
    let read = |file: &Path| Reader::open(file).expect("a map").keyframes().to_vec();
    let rows = read(&file);
    std::fs::write(folder.file("before.map"), before).expect("a copy");
    assert_eq!(rows, read(&folder.file("before.map")));
    sql(&file, "PRAGMA user_version = 2");
    for mode in both {
        let words = ["version 2", "a newer program"];
        refused(&mut room.system(single()), &file, mode, &words);
    }
}

#[test]
fn damaged_rows_are_named_and_the_rest_is_used() {
    let (room, folder) = (Room::new(SIZE), Folder::new());
    let file = folder.file("room.map");
    let made = room.make(&file, 0..FRAMES);
    let count = made.keyframes.len();
    assert!(count > 5);
    // A bit in the points of one keyframe, the pose of another, the matches of an edge; a row that is gone.
    let flip = |table: &str, id: usize| {
        sql(
            &file,
            &format!(
                "UPDATE {table} SET content = CAST(substr(content, 1, 20) || x'77' || substr(content, 22) AS BLOB) \
                 WHERE id = (SELECT id FROM {table} ORDER BY id LIMIT 1 OFFSET {id})"
            ),
        );
    };
    flip("points", 1);
    flip("keyframe", 3);
    flip("matches", 0);
    sql(
        &file,
        "DELETE FROM image WHERE id = (SELECT max(id) FROM image)",
    );
    let (damage, structure) = Reader::open(&file).expect("a map").check();
    assert_eq!(structure, [""; 0]);
    let mut named = damage.keyframes.clone();
    named.sort_unstable();
    let id = |at: usize| made.keyframes[at].id;
    assert_eq!(named, [id(1), id(3), id(count - 1)]);
    assert_eq!(damage.edges.len(), 1);
    let mut system = room.system(single());
    let found = open(&mut system, &file).expect("a map");
    assert_eq!(found.keyframes, count - 3);
    assert!(
        found.left_out.starts_with("3 keyframes ("),
        "{}",
        found.left_out
    );
    let states = room.show(&mut system, 5..FRAMES);
    assert!(states.contains(&TrackingState::Relocalised), "{states:?}");
    system.complete().expect("finish");
    drop(system);
    // What was damaged is gone, so that it is told once.
    let (damage, structure) = Reader::open(&file).expect("a map").check();
    assert!(
        damage.is_none() && structure.is_empty(),
        "{damage} {structure:?}"
    );
}

#[test]
fn a_map_without_any_sound_keyframe_is_refused_and_stays() {
    let (room, folder) = (Room::new(SIZE), Folder::new());
    let file = folder.file("room.map");
    room.make(&file, 0..20);
    sql(&file, "UPDATE points SET content = x'00'");
    refused(
        &mut room.system(single()),
        &file,
        MapMode::Continue,
        &["no keyframes"],
    );
    assert!(!Reader::open(&file).expect("a map").keyframes().is_empty());
}

/// Windows refuses to move a file that is open.
#[cfg(unix)]
#[test]
fn what_could_not_be_written_is_written_when_that_is_possible_again() {
    let (room, folder) = (Room::new(SIZE), Folder::new());
    let (file, away) = (folder.file("room.map"), folder.file("away.map"));
    for threads in [Threads::Single, Threads::Pipelined] {
        let mut system = room.system(Config {
            threads,
            ..config(false)
        });
        open(&mut system, &file);
        room.show(&mut system, 0..10);
        std::fs::rename(&file, &away).expect("moved");
        room.show(&mut system, 10..50);
        let limit = Instant::now() + Duration::from_secs(60);
        while system.map_file_failure().is_none() {
            assert!(Instant::now() < limit, "the moved file is not missed");
            std::thread::sleep(Duration::from_millis(20));
        }
        let failure = system.map_file_failure().expect("a failure");
        assert!(failure.contains("moved or deleted"), "{failure}");
        std::fs::rename(&away, &file).expect("moved back");
        room.show(&mut system, 50..FRAMES);
        system.complete().expect("finish");
        assert_eq!(system.map_file_failure(), None);
        let map = system.snapshot();
        drop(system);
        let mut reader = Reader::open(&file).expect("a map");
        let rows = reader
            .keyframes()
            .iter()
            .map(|k| (k.id, k.world_from_camera));
        assert_eq!(rows.collect::<Vec<_>>(), poses(&map), "{threads:?}");
        assert_eq!(reader.edges().len(), map.edges.len());
        let (damage, structure) = reader.check();
        assert!(
            damage.is_none() && structure.is_empty(),
            "{damage} {structure:?}"
        );
        std::fs::remove_file(&file).expect("removed");
    }
}

/// Windows refuses to move a file that is open.
#[cfg(unix)]
#[test]
fn a_file_that_moves_within_a_transaction_is_missed_at_its_end() {
    let (room, folder) = (Room::new(SIZE), Folder::new());
    let (file, away) = (folder.file("room.map"), folder.file("away.map"));
    let made = room.make(&file, 0..10);
    let id = made.keyframes[0].id;
    let mut content = Box::default();
    let mut reader = Reader::open(&file).expect("a map");
    assert!(reader.read_keyframe(id, &mut content));
    drop(reader);
    let writer = Writer::open(&file).expect("not in use");
    let whole = true;
    assert!(writer.send(Job::Keyframe { id, whole, content }));
    // Enough for the transaction to begin; whether it has or not, the answer is the same.
    std::thread::sleep(Duration::from_millis(200));
    std::fs::rename(&file, &away).expect("moved");
    let failure = writer.flush().expect_err("the file is elsewhere");
    assert!(failure.contains("moved or deleted"), "{failure}");
    let mut returned = Vec::new();
    writer.take_returned(&mut returned);
    assert_eq!(returned, [Key::Keyframe { id, whole }]);
    std::fs::rename(&away, &file).expect("moved back");
    assert_eq!(writer.flush(), Ok(()));
}

#[test]
fn a_discarded_map_stays_in_the_file_until_the_next_one_begins() {
    let (room, folder) = (Room::new(SIZE), Folder::new());
    let file = folder.file("room.map");
    let made = room.make(&file, 0..40);
    let ids = || {
        let reader = Reader::open(&file).expect("a map");
        reader
            .keyframes()
            .iter()
            .map(|k| k.id)
            .collect::<Vec<u32>>()
    };
    let before = ids();
    assert_eq!(before.len(), made.keyframes.len());
    let mut system = room.system(single());
    open(&mut system, &file);
    system.reset().expect("reset");
    drop(system);
    assert_eq!(ids(), before);
    let mut system = room.system(single());
    open(&mut system, &file);
    system.reset().expect("reset");
    room.show(&mut system, 0..10);
    system.complete().expect("finish");
    let map = system.snapshot();
    drop(system);
    assert!(map.keyframes.len() < before.len());
    assert_eq!(
        ids(),
        map.keyframes.iter().map(|k| k.id).collect::<Vec<_>>()
    );
    let (damage, structure) = Reader::open(&file).expect("a map").check();
    assert!(
        damage.is_none() && structure.is_empty(),
        "{damage} {structure:?}"
    );
}

#[test]
fn another_map_that_is_loaded_leaves_the_file_as_it_is() {
    let (room, folder) = (Room::new(SIZE), Folder::new());
    let (file, other) = (folder.file("room.map"), folder.file("other.map"));
    room.make(&file, 0..40);
    room.make(&other, 0..20);
    let rows = || Reader::open(&file).expect("a map").keyframes().to_vec();
    let before = rows();
    let mut system = room.system(single());
    open(&mut system, &file);
    assert_eq!(system.map_file(), Some(file.as_path()));
    system.load_map_of(&other, WEIGHTS).expect("loaded");
    assert_eq!(system.map_file(), None);
    room.show(&mut system, 5..FRAMES);
    system.complete().expect("finish");
    assert_eq!(rows(), before);
    // And it is free for others.
    drop(Writer::open(&file).expect("not in use"));
}
