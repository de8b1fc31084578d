//! Packed maps that are refused or damaged, and loads that are given up.

use super::live_failures::{self, live, waits_at};
use super::packed::{LIMIT, label, packed, why_not};
use super::store::{FRAMES, Folder, Room, WEIGHTS, open, refused, single, sql};
use mast3r_slam::config::{Config, Threads};
use mast3r_slam::map::store::{Reader, Writer, pack};
use mast3r_slam::slam::MapMode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use testkit::room::walk::config;
use testkit::room::{SIZE, Spoil};

#[test]
fn only_a_packed_map_gives_way_to_another() {
    let (room, folder) = (Room::new(SIZE), Folder::new());
    let [whole, small, notes] =
        ["whole.map", "small.map", "notes.map"].map(|name| folder.file(name));
    room.make(&whole, 0..10);
    std::fs::write(&notes, "precious").expect("a file");
    packed(&whole, &small);
    let before = std::fs::read(&small).expect("the file");
    assert!(why_not(&whole, &small, false).contains("--force"));
    assert!(std::fs::read(&small).expect("the file") == before);
    pack(&whole, &small, true).expect("replaced");
    for taken in [&notes, &whole] {
        assert!(why_not(&whole, taken, true).contains("not replaced"));
    }
    assert_eq!(std::fs::read(&notes).expect("the notes"), b"precious");
    let new = folder.file("new.map");
    assert!(why_not(&small, &new, false).contains("packed map already"));
    assert!(why_not(&notes, &new, false).contains("notes.map is not a map"));
    assert!(why_not(&folder.file("missing.map"), &new, false).contains("missing.map"));
    let nowhere = folder.file("nowhere/new.map");
    assert!(why_not(&whole, &nowhere, false).contains("new.map"));
    assert_eq!(folder.names(), ["notes.map", "small.map", "whole.map"]);
    // The packed map itself can only be read.
    assert!(Writer::open(&small).is_err());
}

#[test]
fn packed_maps_that_do_not_fit_or_are_damaged_are_told() {
    let (room, folder) = (Room::new(SIZE), Folder::new());
    let (whole, small) = (folder.file("whole.map"), folder.file("small.map"));
    let made = room.make(&whole, 0..FRAMES);
    packed(&whole, &small);
    let good = std::fs::read(&small).expect("the file");
    for mode in [MapMode::Continue, MapMode::ReadOnly] {
        let mut calibrated = room.system(config(true));
        refused(
            &mut calibrated,
            &small,
            mode,
            &["uncalibrated", "use_calib"],
        );
        let other = room.system(single()).open_map_of(&small, mode, "ffff");
        let error = other.expect_err("other weights").to_string();
        assert!(error.contains("ffff"), "{error}");
        let mut few = single();
        few.local_opt.max_keyframes = 1;
        refused(&mut room.system(few), &small, mode, &["max_keyframes"]);
    }
    let large = Room::of((64, 48), 2 * FRAMES, Spoil::default());
    let words = ["128×96", "64×48"];
    refused(
        &mut large.system(single()),
        &small,
        MapMode::Continue,
        &words,
    );
    sql(&small, "PRAGMA user_version = 2");
    let words = ["version 2", "a newer program"];
    refused(
        &mut room.system(single()),
        &small,
        MapMode::ReadOnly,
        &words,
    );
    // Cut off anywhere, it is refused or named as damaged; nothing panics.
    for part in 0..10 {
        std::fs::write(&small, &good[..good.len() * part / 10]).expect("a part");
        let mut system = room.system(single());
        match system.open_map_of(&small, MapMode::ReadOnly, WEIGHTS) {
            Ok(found) => assert_ne!(found.expect("a map").left_out, "", "{part} tenths"),
            Err(error) => assert!(error.to_string().contains("small.map"), "{error}"),
        }
    }
    // A keyframe's points and another one's image.
    std::fs::write(&small, &good).expect("the whole file");
    let id = |at: usize| made.keyframes[at].id;
    for (table, id) in [("points", id(1)), ("image", id(3))] {
        let damage = format!("UPDATE {table} SET content = zeroblob(200) WHERE id = {id}");
        sql(&small, &damage);
    }
    let (damage, _) = Reader::open(&small).expect("a map").check();
    assert_eq!(damage.keyframes, [id(1), id(3)]);
    let found = open(&mut room.system(single()), &small).expect("a map");
    assert_eq!(found.keyframes, made.keyframes.len() - 2);
    assert!(
        found.left_out.starts_with("2 keyframes ("),
        "{}",
        found.left_out
    );
}

#[test]
fn a_reset_ends_a_load_and_a_save_soon() {
    let folder = Folder::new();
    let (whole, small) = (folder.file("whole.map"), folder.file("small.map"));
    let (mut rig, _) = live(config(false), 20);
    for k in 0..20 {
        rig.show(Some(k)).expect("frame");
    }
    let made = live_failures::save(&mut rig.system, &whole).expect("saved");
    assert!(made.keyframes > 2 && made.edges > 1);
    packed(&whole, &small);
    for method in ["encode_keyframe", "make_edges"] {
        let pipelined = Config {
            threads: Threads::Pipelined,
            ..config(false)
        };
        let (mut rig, faults) = live(pipelined, 20);
        let system = &mut rig.system;
        let (sender, checked) = channel();
        let then = Box::new(move |checked| sender.send(checked).expect("the test listens"));
        assert!(system.check_map(small.clone(), then));
        let source = checked.recv_timeout(LIMIT).expect("an answer");
        let (gate, opened) = channel();
        let (reached, waits) = channel();
        let calls = Arc::new(AtomicUsize::new(0));
        let (counted, verdict) = (Arc::clone(&calls), waits_at(method, reached, opened));
        faults.set(move |name| {
            counted.fetch_add(usize::from(name == method), Ordering::AcqRel);
            verdict(name)
        });
        system.start_load(source.expect("a map")).expect("a load");
        let (sender, saved) = channel();
        if method == "make_edges" {
            let limit = Instant::now() + LIMIT;
            let loaded = loop {
                match system.take_loaded() {
                    Some(loaded) => break loaded.expect("loaded"),
                    None => assert!(Instant::now() < limit, "the map is not loaded"),
                }
                std::thread::sleep(Duration::from_millis(1));
            };
            assert_eq!(loaded.keyframes, made.keyframes);
            let reply = Box::new(move |saved| sender.send(saved).expect("the test listens"));
            let label = Box::new(|| Ok(label()));
            assert!(system.save_map_with(folder.file("new.map"), label, reply));
        }
        waits.recv_timeout(LIMIT).expect("the device is called");
        system.reset().expect("reset");
        gate.send(()).expect("the device waits");
        if method == "make_edges" {
            let saved = saved.recv_timeout(LIMIT).expect("an answer");
            let error = saved.expect_err("the map is gone").to_string();
            assert!(error.contains("cancelled"), "{error}");
        }
        system.complete().expect("finish");
        assert_eq!(calls.load(Ordering::Acquire), 1, "{method}");
        assert!(system.snapshot().keyframes.is_empty());
    }
    assert_eq!(folder.names(), ["small.map", "whole.map"]);
}
