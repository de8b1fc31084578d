//! A map that is saved and gone on with: the file, what another system makes of it, and what is refused.

use mast3r_slam::compute::retrieval::RetrievalModel;
use mast3r_slam::config::{Config, Threads};
use mast3r_slam::geometry::Sim3;
use mast3r_slam::image::RgbImage;
use mast3r_slam::inference::Backend;
use mast3r_slam::map::saved::{Reader, SavedViews};
use mast3r_slam::map::{Content, KeyframeRecord, TrackingState};
use mast3r_slam::slam::{Frame, MapLabel, Pace, SavedMap, SavedMapError, Slam, TrackedFrame};
use nalgebra::{Isometry3, UnitQuaternion, Vector3};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;
use testkit::room::rig::TOLERANCE;
use testkit::room::walk::{config, stamp, vocabulary};
use testkit::room::{RoomBackend, SIZE, Spoil, cpu_slam, intrinsics, square_walk};

/// Frames of the walk that makes the map; those behind it are of a second walk, beside the first.
const FIRST: usize = 60;
const SECOND: usize = 40;

struct Room {
    backend: RoomBackend,
    places: Arc<RetrievalModel>,
    images: Vec<RgbImage>,
    poses: Vec<Sim3>,
}

impl Room {
    fn new(size: (usize, usize)) -> Self {
        let mut poses = square_walk(FIRST, 0.6);
        // Four centimetres beside the first walk, and turned a little.
        let beside = Sim3 {
            translation: Vector3::new(0.04, 0.01, 0.02),
            rotation: UnitQuaternion::from_axis_angle(&Vector3::y_axis(), 0.03),
            scale: 1.0,
        };
        let second: Vec<Sim3> = poses[..SECOND].iter().map(|p| *p * beside).collect();
        poses.extend(second);
        let mut backend = RoomBackend::new(size, poses.clone(), Spoil::default());
        let places = vocabulary(&mut backend);
        let images = (0..poses.len()).map(|k| backend.image(k)).collect();
        Self {
            backend,
            places,
            images,
            poses,
        }
    }

    fn system(&self, config: Config) -> Slam {
        let shape = self.backend.shape();
        let camera = intrinsics((shape.width, shape.height));
        let places = Some(Arc::clone(&self.places));
        let backend = self.backend.share();
        cpu_slam(config, Pace::EveryFrame, backend, places, Some(camera))
    }

    fn show(&self, system: &mut Slam, k: usize) -> TrackedFrame {
        let input = Frame {
            index: k,
            stamp: stamp(k),
            image: (&self.images[k]).into(),
        };
        system.process(&input).expect("frame")
    }

    fn show_black(&self, system: &mut Slam, k: usize) -> TrackedFrame {
        let black = self.backend.black_image();
        let input = Frame {
            index: k,
            stamp: stamp(k),
            image: (&black).into(),
        };
        system.process(&input).expect("frame")
    }

    /// A map of the first walk.
    fn walked(&self, config: Config) -> Slam {
        let mut system = self.system(config);
        for k in 0..FIRST {
            self.show(&mut system, k);
        }
        system.complete().expect("finish");
        system
    }

    /// How far a frame is from where the truth puts it in the map of the first walk, whose world is the first
    /// camera's frame.
    fn off(&self, k: usize, pose: &Sim3) -> f64 {
        let truth = self.poses[0].inverse() * self.poses[k];
        (pose.translation - truth.translation).norm()
    }
}

fn label() -> MapLabel {
    let t = Isometry3::from_parts(
        Vector3::new(1.0, 2.0, 3.0).into(),
        UnitQuaternion::from_euler_angles(0.1, 0.2, 0.3),
    );
    MapLabel {
        weights: "0123abcd".into(),
        map_from_world: Some(t),
    }
}

fn save(system: &mut Slam, path: &Path) -> Result<SavedMap, SavedMapError> {
    let (sender, receiver) = channel();
    let reply = Box::new(move |saved| sender.send(saved).expect("the test listens"));
    assert!(system.save_map_with(path.to_owned(), Box::new(|| Ok(label())), reply));
    receiver
        .recv_timeout(Duration::from_secs(100))
        .expect("an answer")
}

fn load(system: &mut Slam, path: &Path) -> Result<SavedMap, SavedMapError> {
    system.load_map_of(path, &label().weights)
}

/// Shows frames of the second walk until one is found; which that is.
fn until_found(room: &Room, system: &mut Slam, frames: std::ops::Range<usize>) -> usize {
    for k in frames {
        let record = room.show(system, k);
        match record.state {
            TrackingState::Lost => {}
            // Pipelined, the frame that is told is the one after.
            TrackingState::Relocalised | TrackingState::Tracking => return k,
            TrackingState::Initialising => panic!("frame {k} began a map of its own"),
        }
    }
    panic!("the place was not recognised");
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).expect("the file")
}

#[test]
fn another_system_finds_itself_in_the_map_and_goes_on_in_its_frame() {
    let room = Room::new(SIZE);
    let folder = Folder::new();
    for (threads, calibrated) in [
        (Threads::Single, false),
        (Threads::Single, true),
        (Threads::Pipelined, false),
    ] {
        let config = Config {
            threads,
            ..config(calibrated)
        };
        let file = folder.file("room.map");
        let mut first = room.walked(config.clone());
        let saved = save(&mut first, &file).expect("saved");
        let before = first.snapshot();
        assert!(saved.keyframes > 4 && saved.keyframes == before.keyframes.len());

        let mut second = room.system(config);
        let loaded = load(&mut second, &file).expect("loaded");
        assert_eq!(loaded, saved, "what is told of it");
        assert_eq!(loaded.map_from_world, label().map_from_world);
        let table = second.poses().load_full();
        let poses: Vec<Sim3> = before
            .keyframes
            .iter()
            .map(|k| k.world_from_camera)
            .collect();
        assert_eq!(table.poses, poses);
        assert_eq!(table.edges, before.edges);

        let found = until_found(&room, &mut second, FIRST + 5..FIRST + SECOND);
        assert!(found < FIRST + 15, "found at frame {found} only");
        for k in found + 1..FIRST + SECOND {
            let record = room.show(&mut second, k);
            assert_eq!(record.state, TrackingState::Tracking, "frame {k}");
            let off = room.off(k, &record.world_from_camera);
            assert!(off < TOLERANCE, "{threads:?}, frame {k}: {off} m");
        }
        second.complete().expect("finish");
        let after = second.snapshot();
        assert!(
            after.keyframes.len() > before.keyframes.len(),
            "it mapped on"
        );
        assert!(after.keyframes.iter().all(|k| k.submap == 0));
        assert!(after.edges.len() > before.edges.len());
        for (k, l) in before.keyframes.iter().zip(&after.keyframes) {
            assert_eq!(
                (k.id, k.stamp, k.frame_index),
                (l.id, l.stamp, l.frame_index)
            );
            let (a, b) = (k.view(), l.view());
            assert!(a.image == b.image && a.points == b.points && a.confidence == b.confidence);
            let moved = (k.world_from_camera.translation - l.world_from_camera.translation).norm();
            assert!(moved < TOLERANCE, "keyframe {} moved by {moved} m", k.id);
        }
    }
}

#[test]
fn saved_loaded_and_saved_again_is_the_same_file() {
    let room = Room::new(SIZE);
    let folder = Folder::new();
    for calibrated in [false, true] {
        let (one, two) = (folder.file("one.map"), folder.file("two.map"));
        let mut first = room.walked(config(calibrated));
        save(&mut first, &one).expect("saved");
        let mut second = room.system(config(calibrated));
        load(&mut second, &one).expect("loaded");
        save(&mut second, &two).expect("saved again");
        assert!(read(&one) == read(&two), "calibrated {calibrated}");
        // A system that has a map forgets it for the loaded one.
        load(&mut first, &two).expect("loaded");
        save(&mut first, &two).expect("saved");
        assert!(
            read(&one) == read(&two),
            "calibrated {calibrated}, over another map"
        );
        assert!(first.snapshot().frames.is_empty());
    }
    // Nothing but the maps is left in the folder.
    let left = std::fs::read_dir(folder.0.path()).expect("folder").count();
    assert_eq!(left, 2);
}

#[test]
fn localisation_changes_nothing_in_the_map() {
    let room = Room::new(SIZE);
    let folder = Folder::new();
    let (one, two) = (folder.file("one.map"), folder.file("two.map"));
    for threads in [Threads::Single, Threads::Pipelined] {
        let config = Config {
            threads,
            ..config(false)
        };
        save(&mut room.walked(config.clone()), &one).expect("saved");
        let mut second = room.system(config.clone());
        load(&mut second, &one).expect("loaded");
        second.set_growing(false);
        let (mut tracked, mut shown) = (0, 0);
        let mut watch = |record: &TrackedFrame, k: usize| {
            shown += 1;
            assert_eq!(record.keyframe, None);
            if record.state != TrackingState::Lost {
                tracked += 1;
                let off = room.off(k, &record.world_from_camera);
                assert!(off < TOLERANCE, "{threads:?}, frame {k}: {off} m");
            }
        };
        for k in FIRST..FIRST + SECOND {
            watch(&room.show(&mut second, k), k);
        }
        // The lens is covered; then it is somewhere else.
        for k in 0..3 {
            assert_eq!(room.show_black(&mut second, k).state, TrackingState::Lost);
        }
        for k in FIRST + 10..FIRST + SECOND {
            watch(&room.show(&mut second, k), k);
        }
        assert!(
            tracked * 10 >= shown * 7,
            "{threads:?}: {tracked} of {shown} tracked"
        );
        second.complete().expect("finish");
        save(&mut second, &two).expect("saved");
        assert!(read(&one) == read(&two), "{threads:?}");
        // Told to map again, it goes on from where it is.
        let mut third = room.system(config);
        load(&mut third, &two).expect("loaded");
        third.set_growing(false);
        let found = until_found(&room, &mut third, FIRST + 5..FIRST + SECOND);
        third.set_growing(true);
        for k in found + 1..FIRST + SECOND {
            let record = room.show(&mut third, k);
            assert!(
                room.off(k, &record.world_from_camera) < TOLERANCE,
                "frame {k}"
            );
        }
        third.complete().expect("finish");
        let before = second.snapshot().keyframes.len();
        assert!(third.snapshot().keyframes.len() > before, "{threads:?}");
    }
}

/// A system with a small map of its own, which refused files must leave as it is.
struct Holder {
    system: Slam,
    poses: Vec<Sim3>,
}

impl Holder {
    fn new(room: &Room, config: Config) -> Self {
        let mut system = room.system(config);
        for k in 0..10 {
            room.show(&mut system, k);
        }
        let poses = system.poses().load().poses.clone();
        Self { system, poses }
    }

    fn refuses(&mut self, what: &str, path: &Path, weights: &str, words: &[&str]) {
        let error = self.system.load_map_of(path, weights).expect_err(what);
        let text = error.to_string();
        for word in words {
            assert!(text.contains(word), "{what}: {word:?} is not in: {text}");
        }
        assert_eq!(self.system.poses().load().poses, self.poses, "{what}");
    }
}

#[test]
fn files_that_are_no_whole_map_are_refused() {
    let room = Room::new(SIZE);
    let folder = Folder::new();
    let (good, bad) = (folder.file("good.map"), folder.file("bad.map"));
    save(&mut room.walked(config(false)), &good).expect("saved");
    let whole = read(&good);
    let mut holder = Holder::new(&room, config(false));
    let weights = label().weights;
    let mut refuse = |what: &str, bytes: &[u8], words: &[&str]| {
        std::fs::write(&bad, bytes).expect("a bad file");
        holder.refuses(what, &bad, &weights, words);
    };
    let path = bad.display().to_string();
    refuse("empty", &[], &["is not a map file", &path]);
    refuse(
        "a text",
        b"tx ty tz qx qy qz qw",
        &["is not a map file", "--save-map"],
    );
    for length in [8, 11, 40, 200, whole.len() / 2, whole.len() - 1] {
        let what = format!("cut off at {length}");
        refuse(&what, &whole[..length], &["bytes, expected", &path]);
    }
    refuse("longer", &[&whole[..], b"x"].concat(), &["bytes, expected"]);
    let changed = |at: usize, to: u8| {
        let mut bytes = whole.clone();
        bytes[at] = to;
        bytes
    };
    refuse("version 3", &changed(8, 3), &["version 3", "at most 2"]);
    // One bit anywhere behind the header.
    for part in 1..20 {
        let at = whole.len() * part / 20;
        let bytes = changed(at, whole[at] ^ 0x10);
        refuse(&format!("bit at {at}"), &bytes, &["damaged", "checksum"]);
    }
    // Nonsense whose checksum is right: the last edge's last-but-one part holds its index.
    let pixels = SIZE.0 * SIZE.1;
    let end = whole.len() - 32;
    let index = end - pixels * 9;
    for (what, at, word) in [
        ("an index", index, "edge"),
        ("a kind", end - 18 * pixels - 8, "number"),
    ] {
        let mut bytes = whole.clone();
        bytes[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        let sum = Sha256::digest(&bytes[..end]);
        bytes[end..].copy_from_slice(&sum);
        refuse(what, &bytes, &["is invalid", word]);
    }
    let missing = folder.file("missing.map");
    holder.refuses(
        "missing",
        &missing,
        &weights,
        &["missing.map", "cannot read"],
    );
    holder.refuses("a folder", folder.0.path(), &weights, &["cannot read"]);
    // And the good one is taken.
    holder.system.load_map_of(&good, &weights).expect("loaded");
}

#[test]
fn maps_of_another_network_size_or_camera_are_refused() {
    let room = Room::new(SIZE);
    let folder = Folder::new();
    let [plain, calibrated] = [false, true].map(|c| {
        let file = folder.file(&format!("calibrated-{c}.map"));
        save(&mut room.walked(config(c)), &file).expect("saved");
        file
    });
    let weights = label().weights;
    let mut holder = Holder::new(&room, config(false));
    holder.refuses(
        "other weights",
        &plain,
        "ffff",
        &["0123abcd", "ffff", "weights"],
    );
    let words = ["made calibrated", "this run is uncalibrated", "use_calib"];
    holder.refuses("calibrated", &calibrated, &weights, &words);
    let mut holder = Holder::new(&room, config(true));
    holder.refuses("uncalibrated", &plain, &weights, &["made uncalibrated"]);

    let small = Room::new((64, 48));
    let mut holder = Holder::new(&small, config(false));
    holder.refuses(
        "size",
        &plain,
        &weights,
        &["128×96", "64×48", "network.size"],
    );

    // The same images by another camera.
    let mut other = intrinsics(SIZE);
    other.cx += 0.4;
    let with = |camera| {
        let backend = room.backend.share();
        let config = config(true);
        cpu_slam(config, Pace::EveryFrame, backend, None, Some(camera))
    };
    with(other)
        .load_map_of(&calibrated, &weights)
        .expect("within half a pixel");
    other.fx *= 1.05;
    let error = with(other).load_map_of(&calibrated, &weights);
    let text = error.expect_err("another camera").to_string();
    assert!(text.contains("another calibration"), "{text}");

    let keyframes = Reader::open(&plain).expect("a map").header().keyframes as usize;
    let mut config = config(false);
    config.local_opt.max_keyframes = keyframes - 1;
    let text = room
        .system(config.clone())
        .load_map_of(&plain, &weights)
        .expect_err("too many keyframes")
        .to_string();
    let (holds, may) = (
        format!("it has {keyframes} keyframes"),
        format!("the limit of this run is {}", keyframes - 1),
    );
    for word in [holds.as_str(), may.as_str(), "max_keyframes"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    config.local_opt.max_keyframes = keyframes;
    room.system(config)
        .load_map_of(&plain, &weights)
        .expect("just enough");
}

#[test]
fn a_map_that_cannot_be_written_leaves_what_was_there() {
    let room = Room::new(SIZE);
    let folder = Folder::new();
    let mut empty = room.system(config(false));
    let error = save(&mut empty, &folder.file("empty.map")).expect_err("no keyframes");
    assert!(error.to_string().contains("no map yet"), "{error}");
    let mut system = room.walked(config(false));
    let nowhere = folder.file("missing/folder/room.map");
    let error = save(&mut system, &nowhere)
        .expect_err("no folder")
        .to_string();
    assert!(
        error.contains("cannot write the map") && error.contains("room.map"),
        "{error}"
    );
    let taken = folder.file("taken.map");
    std::fs::create_dir(&taken).expect("a folder");
    save(&mut system, &taken).expect_err("a folder stands there");
    let left = std::fs::read_dir(folder.0.path()).expect("folder").count();
    assert_eq!(left, 1, "half a file is left");
    // While frames come, with mapping in its own thread.
    let mut live = room.system(Config {
        threads: Threads::Pipelined,
        ..config(false)
    });
    for k in 0..FIRST / 2 {
        room.show(&mut live, k);
    }
    let file = folder.file("live.map");
    let saved = save(&mut live, &file).expect("saved");
    for k in FIRST / 2..FIRST {
        let record = room.show(&mut live, k);
        assert_eq!(record.state, TrackingState::Tracking);
    }
    let mut second = room.system(config(false));
    assert_eq!(load(&mut second, &file).expect("loaded"), saved);
}

#[test]
fn a_map_that_was_saved_is_read_from_its_file() {
    let room = Room::new(SIZE);
    let mut system = room.walked(config(false));
    let before = system.snapshot();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("slam.map");
    let (sender, receiver) = channel();
    let reply = Box::new(move |saved| drop(sender.send(saved)));
    let label = Box::new(|| Ok(label()));
    assert!(system.save_and_outline(path.clone(), label, reply));
    let (saved, map) = receiver.recv().expect("a reply").expect("a map");
    assert_eq!(saved.path, path);
    assert!(map.frames == before.frames && map.edges == before.edges);
    assert!(map.keyframes.len() > 3 && map.keyframes.len() == before.keyframes.len());
    // In any order, and as often as it is asked for.
    for (k, l) in map.keyframes.iter().zip(&before.keyframes).rev() {
        let of = |k: &KeyframeRecord| (k.id, k.stamp, k.submap, k.world_from_camera);
        assert_eq!(of(k), of(l));
        assert!(matches!(k.content, Content::Elsewhere(_)));
        let (a, b) = (k.view(), l.view());
        assert!(a.image == b.image && a.points == b.points && a.confidence == b.confidence);
        assert!(k.view().points == a.points);
    }
    // A file that is cut off gives what it has.
    let file = File::options().write(true).open(&path).expect("the file");
    file.set_len(path.metadata().expect("the file").len() / 3)
        .expect("shorter");
    let there = map
        .keyframes
        .iter()
        .filter(|k| !k.view().points.is_empty())
        .count();
    assert!(there > 0 && there < map.keyframes.len(), "{there}");
    assert!(SavedViews::open(&path, 0..4).is_err());
}

#[test]
fn a_file_of_another_number_of_keyframes_is_refused() {
    let room = Room::new(SIZE);
    let mut system = room.walked(config(false));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("slam.map");
    let saved = save(&mut system, &path).expect("a map");
    assert!(SavedViews::open(&path, 0..saved.keyframes as u32).is_ok());
    let error = SavedViews::open(&path, 0..2)
        .err()
        .expect("two are too few");
    assert!(error.to_string().contains("expected 2"), "{error}");
}
