//! Packed maps: what is in them, and localisation and mapping in them.

use super::store::{FRAMES, Folder, Room, WEIGHTS, open, poses, single, sql};
use mast3r_slam::compute::device::{EdgeContent, Floats, KeyframeContent, MatchContent};
use mast3r_slam::compute::global::{Matrix7, PoseFactor};
use mast3r_slam::config::{Config, Threads};
use mast3r_slam::inference::Backend;
use mast3r_slam::map::saved::{self, SavedEdge, SavedKeyframe};
use mast3r_slam::map::store::{
    EdgeRow, Job, KeyframeRow, Packed, Reader, RemovedRow, Rest, State, Writer, pack,
};
use mast3r_slam::map::{EdgeKind, TrackingState};
use mast3r_slam::slam::{Frame, MapLabel, MapMode, SavedMap, SavedMapError, Slam};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;
use testkit::room::rig::TOLERANCE;
use testkit::room::walk::{config, stamp};
use testkit::room::{SIZE, Spoil};

/// Longer than anything here takes, so that a test that hangs ends.
pub const LIMIT: Duration = Duration::from_secs(100);

/// What is allowed to be lost of recall and accuracy.
const LOSS: f64 = 0.02;

const SPOIL: Spoil = Spoil {
    noise: 0.01,
    outliers: 0.02,
    bias: 0.005,
};

pub fn packed(from: &Path, to: &Path) -> Packed {
    pack(from, to, false).expect("packed")
}

pub fn why_not(from: &Path, to: &Path, replace: bool) -> String {
    pack(from, to, replace).expect_err("refused").to_string()
}

/// The fraction of frames that are located in the map of `file`, and how far they are from the truth.
fn located(room: &Room, config: &Config, file: &Path) -> (f64, f64) {
    let mut system = room.system(config.clone());
    let found = system.open_map_of(file, MapMode::ReadOnly, WEIGHTS);
    assert!(found.expect("opened").is_some());
    let (mut count, mut sum) = (0, 0.0);
    for k in 5..FRAMES {
        let input = Frame {
            index: k,
            stamp: stamp(k),
            image: (&room.images[k]).into(),
        };
        let tracked = system.process(&input).expect("frame");
        if tracked.state != TrackingState::Lost {
            let truth = room.truth[0].inverse() * room.truth[k];
            let off = tracked.world_from_camera.translation - truth.translation;
            count += 1;
            sum += off.norm_squared();
        }
    }
    let recall = f64::from(count) / (FRAMES - 5) as f64;
    (recall, (sum / f64::from(count)).sqrt())
}

#[test]
fn a_camera_is_located_in_a_packed_map_as_well_as_in_the_map() {
    let (room, folder) = (Room::of(SIZE, FRAMES, SPOIL), Folder::new());
    for calibrated in [false, true] {
        let config = Config {
            threads: Threads::Single,
            ..config(calibrated)
        };
        let (whole, small) = (folder.file("whole.map"), folder.file("small.map"));
        let mut system = room.system(config.clone());
        open(&mut system, &whole);
        room.show(&mut system, 0..FRAMES);
        system.complete().expect("finish");
        drop(system);
        packed(&whole, &small);
        let before = std::fs::read(&small).expect("the file");
        let (recall, ate) = located(&room, &config, &whole);
        let (recall_packed, ate_packed) = located(&room, &config, &small);
        println!(
            "calibrated {calibrated}: {recall} {ate} m, packed {recall_packed} {ate_packed} m"
        );
        assert!(recall > 0.9 && ate < TOLERANCE, "{recall}, {ate} m");
        assert!(recall_packed >= recall * (1.0 - LOSS), "{recall_packed}");
        assert!(
            ate_packed <= ate * (1.0 + LOSS),
            "{ate_packed}, not {ate} m"
        );
        assert!(std::fs::read(&small).expect("the file") == before);
        for file in [whole, small] {
            std::fs::remove_file(file).expect("removed");
        }
    }
}

pub fn label() -> MapLabel {
    MapLabel {
        weights: WEIGHTS.into(),
        map_from_world: None,
    }
}

fn save(system: &mut Slam, path: &Path) -> Result<SavedMap, SavedMapError> {
    let (sender, receiver) = channel();
    let reply = Box::new(move |saved| sender.send(saved).expect("the test listens"));
    assert!(system.save_map_with(path.to_owned(), Box::new(|| Ok(label())), reply));
    receiver.recv_timeout(LIMIT).expect("an answer")
}

#[test]
fn tokens_and_matches_are_made_anew() {
    let (room, folder) = (Room::new(SIZE), Folder::new());
    let [whole, small, direct, again] =
        ["whole.map", "small.map", "direct.map", "again.map"].map(|name| folder.file(name));
    room.make(&whole, 0..FRAMES);
    packed(&whole, &small);
    for threads in [Threads::Single, Threads::Pipelined] {
        let config = Config {
            threads,
            ..config(false)
        };
        // Saved at once, from the map as it was and from the packed one.
        for (from, to) in [(&whole, &direct), (&small, &again)] {
            let mut system = room.system(config.clone());
            system.load_map_of(from, WEIGHTS).expect("loaded");
            save(&mut system, to).expect("saved");
        }
        let mut readers = [&direct, &again].map(|path| saved::Reader::open(path).expect("a map"));
        let counts = readers
            .each_ref()
            .map(|r| (r.header().keyframes, r.header().edges));
        assert_eq!(counts[0], counts[1]);
        let (keyframes, edges) = counts[0];
        assert!(keyframes > 4 && edges > 4);
        for _ in 0..keyframes {
            let [a, b] = readers.each_mut().map(|reader| {
                let mut keyframe = SavedKeyframe::default();
                reader.keyframe(&mut keyframe).expect("a keyframe");
                keyframe
            });
            assert_eq!(a.world_from_camera, b.world_from_camera);
            assert_eq!(a.content.image, b.content.image);
            // The file of the running map keeps seven bits of a token's mantissa.
            let tokens = a.content.features.to_f32();
            let pairs = tokens.iter().zip(b.content.features.to_f32());
            let off = pairs
                .filter(|(a, b)| (**a - b).abs() > 0.01 * a.abs())
                .count();
            assert_eq!(off, 0, "keyframe {}", a.id);
        }
        for number in 0..edges {
            let [a, b] = readers.each_mut().map(|reader| {
                let mut edge = SavedEdge::default();
                reader.edge(&mut edge).expect("an edge");
                edge
            });
            assert_eq!(
                (a.i, a.j, a.kind, a.match_fraction),
                (b.i, b.j, b.kind, b.match_fraction)
            );
            for (a, b) in [
                (&a.content.i_from_j, &b.content.i_from_j),
                (&a.content.j_from_i, &b.content.j_from_i),
            ] {
                // The file of the running map only says where a match leads.
                let matches = |m: &MatchContent| {
                    let all = m.quality.iter().zip(&m.index);
                    Vec::from_iter(all.map(|(quality, k)| (*quality > 0.0).then_some(*k)))
                };
                assert!(matches(a) == matches(b), "edge {number}");
            }
        }
    }
}

#[test]
fn a_packed_map_is_gone_on_with_and_its_file_stays() {
    let (room, folder) = (Room::new(SIZE), Folder::new());
    let (whole, small) = (folder.file("whole.map"), folder.file("small.map"));
    let made = room.make(&whole, 0..40);
    packed(&whole, &small);
    let before = std::fs::read(&small).expect("the file");
    for threads in [Threads::Single, Threads::Pipelined] {
        let mut system = room.system(Config {
            threads,
            ..config(false)
        });
        let found = open(&mut system, &small).expect("a map");
        assert_eq!(found.keyframes, made.keyframes.len());
        assert_eq!(
            (found.edges, found.left_out.as_str()),
            (made.edges.len(), "")
        );
        assert_eq!(system.map_file(), None);
        let states = room.show(&mut system, 20..FRAMES);
        assert!(states.contains(&TrackingState::Relocalised), "{states:?}");
        system.complete().expect("finish");
        let map = system.snapshot();
        assert!(map.keyframes.len() > made.keyframes.len(), "{threads:?}");
        assert!(map.keyframes.iter().all(|k| k.submap == 0));
        for ((id, pose), (again, moved)) in poses(&made).into_iter().zip(poses(&map)) {
            assert_eq!(id, again);
            let off = (pose.translation - moved.translation).norm();
            assert!(
                off < TOLERANCE,
                "{threads:?}, keyframe {id} moved by {off} m"
            );
        }
    }
    assert!(std::fs::read(&small).expect("the file") == before);
    assert_eq!(folder.names(), ["small.map", "whole.map"]);
}

/// A map of two keyframes with everything that a map may have.
fn written(path: &Path) {
    let pixels = SIZE.0 * SIZE.1;
    let room = Room::new(SIZE);
    room.make(path, 0..2);
    let writer = Writer::open(path).expect("the map");
    let keyframe = |id: u32| KeyframeRow {
        id,
        submap: id / 5,
        frame_index: u64::from(id) * 3,
        world_from_camera: room.truth[id as usize],
        chain: (id > 2).then(|| saved::SavedChain {
            keyframe: 9,
            keyframe_from_camera: room.truth[1],
        }),
        ..KeyframeRow::default()
    };
    let edge = |number: u64, i: u32, j: u32, kind: EdgeKind| EdgeRow {
        number,
        i,
        j,
        kind,
        match_fraction: 0.25 + number as f32 / 64.0,
    };
    let ids = [2, 5, 9];
    writer.set_state(State {
        epoch: 0,
        keyframes: ids.map(keyframe).to_vec(),
        edges: vec![
            edge(3, 2, 5, EdgeKind::Neighbour),
            edge(7, 9, 2, EdgeKind::Loop),
        ],
        factors: vec![PoseFactor {
            i: 5,
            j: 9,
            i_from_j: room.truth[3],
            information: Matrix7::identity() * 7.0,
        }],
        removed: Arc::new(vec![RemovedRow {
            id: 4,
            keyframe: 5,
            keyframe_from_removed: room.truth[2],
        }]),
        rest: Rest {
            solved_edges: 1,
            map_from_world: None,
        },
    });
    let tokens = room.backend.shape().tokens * room.backend.shape().feature_dim;
    for id in ids {
        let content = Box::new(KeyframeContent {
            image: room.backend.image(id as usize).data,
            points: [0.5, -0.25, 2.0 + id as f32].repeat(pixels),
            confidence: Floats::F32(vec![3.0; pixels]),
            features: Floats::F32(vec![0.5; tokens]),
        });
        let whole = true;
        assert!(writer.send(Job::Keyframe { id, whole, content }));
    }
    let way = MatchContent {
        index: vec![1; pixels],
        quality: vec![2.0; pixels],
    };
    for number in [3, 7] {
        let content = Box::new(EdgeContent {
            i_from_j: way.clone(),
            j_from_i: way.clone(),
        });
        assert!(writer.send(Job::Edge { number, content }));
    }
    writer.flush().expect("a map on the disk");
}

#[test]
fn every_number_of_a_map_is_kept() {
    let folder = Folder::new();
    let (whole, small) = (folder.file("whole.map"), folder.file("small.map"));
    written(&whole);
    let made = packed(&whole, &small);
    assert_eq!((made.keyframes, made.edges), (3, 2));
    assert!(made.left_out.is_none());
    let [mut a, mut b] = [&whole, &small].map(|path| Reader::open(path).expect("a map"));
    assert!(b.is_packed() && !a.is_packed());
    assert_eq!(a.header(), b.header());
    assert_eq!((a.keyframes(), a.edges()), (b.keyframes(), b.edges()));
    assert_eq!((a.factors(), a.removed()), (b.factors(), b.removed()));
    assert_eq!((a.rest(), a.keyframes().len()), (b.rest(), 3));
    let mut contents = [KeyframeContent::default(), KeyframeContent::default()];
    assert!(a.read_keyframe(5, &mut contents[0]) && b.read_keyframe(5, &mut contents[1]));
    assert_eq!(contents[0].image, contents[1].image);
    let (damage, structure) = b.check();
    assert!(damage.is_none() && structure.is_empty());
    drop((a, b));
    // What is damaged in the map is left out, with what needs it.
    sql(
        &whole,
        "UPDATE points SET content = zeroblob(100) WHERE id = 9",
    );
    let made = pack(&whole, &small, true).expect("packed");
    assert_eq!((made.keyframes, made.edges), (2, 1));
    assert_eq!(made.left_out.keyframes, [9]);
    let reader = Reader::open(&small).expect("a map");
    assert!(reader.factors().is_empty());
    assert_eq!(reader.rest().solved_edges, 1);
    // Nothing of it can be used any more.
    sql(&whole, "UPDATE points SET content = zeroblob(100)");
    let before = std::fs::read(&small).expect("the file");
    assert!(why_not(&whole, &small, true).contains("no keyframes"));
    assert!(std::fs::read(&small).expect("the file") == before);
    assert_eq!(folder.names(), ["small.map", "whole.map"]);
}

#[test]
fn a_map_that_was_saved_at_once_is_packed_too() {
    let (room, folder) = (Room::new(SIZE), Folder::new());
    let [whole, at_once, small] =
        ["whole.map", "at-once.map", "small.map"].map(|name| folder.file(name));
    room.make(&whole, 0..FRAMES);
    let mut system = room.system(single());
    system.load_map_of(&whole, WEIGHTS).expect("loaded");
    let saved = save(&mut system, &at_once).expect("saved");
    let made = packed(&at_once, &small);
    assert_eq!((made.keyframes, made.edges), (saved.keyframes, saved.edges));
    let loaded = room.system(single()).load_map_of(&small, WEIGHTS);
    let loaded = loaded.expect("loaded");
    assert_eq!(
        loaded,
        SavedMap {
            path: small,
            ..saved
        }
    );
    let bytes = std::fs::read(&at_once).expect("the map");
    std::fs::write(&at_once, &bytes[..bytes.len() - 1]).expect("a shorter map");
    let error = why_not(&at_once, &folder.file("new.map"), false);
    assert!(error.contains("bytes, expected"), "{error}");
    assert_eq!(folder.names(), ["at-once.map", "small.map", "whole.map"]);
}
