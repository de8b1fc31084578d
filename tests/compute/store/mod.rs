//! Keyframes that come and go between slots, host memory and file: what comes back is what went, whatever
//! the order of operations, and nothing is lost when the disk is full.

mod sim;

use mast3r_slam::compute::store::{
    Access, KeyframeStore, Lane, Lease, Place, SpillError, SpillFile, StoreError, StoreOptions,
    Touch,
};
use proptest::prelude::*;
use sim::{BYTES, Sim, bulk};
use std::collections::HashMap;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};

fn store(device: usize, host: usize, seed: u64) -> (KeyframeStore<Sim>, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let options = StoreOptions {
        keyframes: 100,
        directory: Some(directory.path().to_owned()),
    };
    let store = KeyframeStore::new(Sim::new(device, host, seed), &options).unwrap();
    (store, directory)
}

#[derive(Debug, Clone)]
enum Step {
    Insert(Lane),
    Read(Lane, usize, Touch),
    Write(Lane, usize),
    /// Several at once, as a solve holds them.
    ReadMany(Lane, Vec<usize>),
    /// Keeps a lease until the next of this step.
    Hold(Lane, usize, Access),
    Prepare(Lane, usize),
    Remove(usize),
    Run(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let lane = || prop::sample::select(Lane::ALL.to_vec());
    let touch = prop::sample::select(vec![Touch::Use, Touch::Pass]);
    let access = prop::sample::select(vec![Access::Read, Access::Write]);
    prop_oneof![
        4 => lane().prop_map(Step::Insert),
        6 => (lane(), any::<usize>(), touch).prop_map(|(l, i, t)| Step::Read(l, i, t)),
        4 => (lane(), any::<usize>()).prop_map(|(l, i)| Step::Write(l, i)),
        2 => (lane(), prop::collection::vec(any::<usize>(), 1..4))
            .prop_map(|(l, i)| Step::ReadMany(l, i)),
        1 => (lane(), any::<usize>(), access).prop_map(|(l, i, a)| Step::Hold(l, i, a)),
        1 => (lane(), 0usize..3).prop_map(|(l, n)| Step::Prepare(l, n)),
        1 => any::<usize>().prop_map(Step::Remove),
        3 => (0usize..12).prop_map(Step::Run),
    ]
}

/// The model: what each keyframe holds.
#[derive(Default)]
struct Model {
    contents: HashMap<u32, Vec<u8>>,
    ids: Vec<u32>,
    values: u64,
}

impl Model {
    fn pick(&self, i: usize) -> Option<u32> {
        (!self.ids.is_empty()).then(|| self.ids[i % self.ids.len()])
    }

    fn fill(&mut self, store: &KeyframeStore<Sim>, lane: Lane, lease: &Lease<'_, Sim>) {
        self.values += 1;
        let bytes = bulk(self.values);
        store
            .device()
            .enqueue_write(lane, lease.slot(), bytes.clone());
        self.contents.insert(lease.id(), bytes);
    }

    fn check(&self, store: &KeyframeStore<Sim>, lane: Lane, lease: &Lease<'_, Sim>) {
        let expected = self.contents[&lease.id()].clone();
        store.device().enqueue_check(lane, lease.slot(), expected);
    }
}

/// Acceptable results while some slots are in use: never an error of the disk.
fn in_use<T>(result: Result<T, StoreError<sim::SimError>>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(StoreError::AllInUse { .. } | StoreError::Busy { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn any_order_of_operations_keeps_every_byte(
        device in 2usize..6, host in 1usize..4, seed in any::<u64>(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let (store, _directory) = store(device, host, seed);
        let mut model = Model::default();
        let mut held: Option<Lease<'_, Sim>> = None;
        let mut held_at = None;
        for step in steps {
            match step {
                Step::Insert(lane) => {
                    let id = model.values as u32 * 3 + 1;
                    if let Some(lease) = in_use(store.insert(lane, id)) {
                        model.fill(&store, lane, &lease);
                        model.ids.push(id);
                    }
                }
                Step::Read(lane, i, touch) => {
                    let Some(id) = model.pick(i) else { continue };
                    if let Some(lease) = in_use(store.lease(lane, id, Access::Read, touch)) {
                        model.check(&store, lane, &lease);
                    }
                }
                Step::Write(lane, i) => {
                    let Some(id) = model.pick(i) else { continue };
                    if let Some(lease) = in_use(store.write(lane, id)) {
                        model.check(&store, lane, &lease);
                        model.fill(&store, lane, &lease);
                    }
                }
                Step::ReadMany(lane, many) => {
                    let leases: Vec<_> = many
                        .iter()
                        .filter_map(|&i| in_use(store.read(lane, model.pick(i)?)))
                        .collect();
                    let mut slots: Vec<_> = leases.iter().map(|l| (l.slot(), l.id())).collect();
                    slots.sort_unstable();
                    slots.dedup();
                    let distinct = slots.windows(2).all(|s| s[0].0 != s[1].0);
                    prop_assert!(distinct, "two keyframes in a slot: {:?}", slots);
                    for lease in &leases {
                        model.check(&store, lane, lease);
                    }
                }
                Step::Hold(lane, i, access) => {
                    held = None;
                    held_at = None;
                    let Some(id) = model.pick(i) else { continue };
                    held = in_use(store.lease(lane, id, access, Touch::Use));
                    if let Some(lease) = &held {
                        held_at = Some((id, lease.slot()));
                        model.check(&store, lane, lease);
                        if access == Access::Write {
                            model.fill(&store, lane, lease);
                        }
                    }
                }
                Step::Prepare(lane, n) => {
                    in_use(store.prepare(lane, n));
                }
                Step::Remove(i) => {
                    let Some(id) = model.pick(i) else { continue };
                    if in_use(store.remove(id)) == Some(true) {
                        model.ids.retain(|&other| other != id);
                        model.contents.remove(&id);
                    }
                }
                Step::Run(n) => store.device().run(n),
            }
            prop_assert_eq!(store.len(), model.ids.len());
            if let Some((id, slot)) = held_at {
                prop_assert_eq!(store.place(id), Some(Place::Device(slot)), "moved while leased");
            }
        }
        drop(held);
        for &id in &model.ids {
            let lease = store.read(Lane::Mapping, id).unwrap();
            model.check(&store, Lane::Mapping, &lease);
        }
        store.device().run(usize::MAX);
        prop_assert_eq!(store.counts().refused, 0);
        store.clear().unwrap();
        prop_assert!(store.is_empty());
        prop_assert_eq!(store.prepare(Lane::Tracking, device).unwrap(), device);
    }
}

/// What a run does with keyframes: each is made, its neighbours and now and then an old one are read,
/// the one before is written once more, and from time to time all are.
fn long_run(store: &KeyframeStore<Sim>, keyframes: u32) -> HashMap<u32, Vec<u8>> {
    let mut model = Model::default();
    for id in 0..keyframes {
        let lease = store.insert(Lane::Tracking, id).unwrap();
        model.fill(store, Lane::Tracking, &lease);
        drop(lease);
        for other in [
            id,
            id.saturating_sub(1),
            id.wrapping_mul(2654435761) % (id + 1),
        ] {
            let lease = store.read(Lane::Mapping, other).unwrap();
            model.check(store, Lane::Mapping, &lease);
        }
        let before = id.saturating_sub(1);
        let lease = store.write(Lane::Mapping, before).unwrap();
        model.fill(store, Lane::Mapping, &lease);
        drop(lease);
        if id % 512 == 511 {
            for other in 0..=id {
                let lease = store
                    .lease(Lane::Mapping, other, Access::Read, Touch::Pass)
                    .unwrap();
                model.check(store, Lane::Mapping, &lease);
            }
        }
        store.prepare(Lane::Mapping, 2).unwrap();
        store.device().run(7);
    }
    for id in 0..keyframes {
        let lease = store.read(Lane::Mapping, id).unwrap();
        model.check(store, Lane::Mapping, &lease);
    }
    store.device().run(usize::MAX);
    model.contents
}

#[test]
fn five_thousand_keyframes_on_64_slots_are_as_on_enough() {
    let (few, _directory) = store(64, 32, 1);
    let with_few = long_run(&few, 5000);
    let (enough, _directory) = store(5002, 1, 2);
    let with_enough = long_run(&enough, 5000);
    assert_eq!(with_few, with_enough);
    let counts = few.counts();
    assert!(
        counts.spilled > 4000 && counts.from_file > 4000,
        "{counts:?}"
    );
    assert_eq!(counts.refused, 0);
    assert_eq!(enough.counts(), Default::default());
}

#[test]
fn a_pass_over_all_leaves_most_slots_alone() {
    let (store, _directory) = store(8, 4, 3);
    let n = 40;
    for id in 0..n {
        let lease = store.insert(Lane::Mapping, id).unwrap();
        store
            .device()
            .enqueue_write(Lane::Mapping, lease.slot(), bulk(u64::from(id)));
    }
    for round in 0..4 {
        let before = store.counts();
        for id in 0..n {
            let lease = store
                .lease(Lane::Mapping, id, Access::Read, Touch::Pass)
                .unwrap();
            store
                .device()
                .enqueue_check(Lane::Mapping, lease.slot(), bulk(u64::from(id)));
        }
        let after = store.counts();
        let came = after.from_host + after.from_file - before.from_host - before.from_file;
        // All but one slot keep their keyframes, which the pass finds there.
        assert!(came <= u64::from(n) - 7, "round {round}: {came} came back");
        // Unchanged records are not written again.
        let written = after.spilled - before.spilled;
        assert!(
            round == 0 || written == 0,
            "round {round}: {written} written"
        );
    }
    store.device().run(usize::MAX);
}

/// As a solve leads a graph past the device: as many as there are slots, then the rest, again and again.
#[test]
fn a_pass_in_parts_moves_only_what_does_not_fit() {
    let (store, _directory) = store(8, 4, 4);
    let ids: Vec<u32> = (0..10).collect();
    for &id in &ids {
        let lease = store.insert(Lane::Mapping, id).unwrap();
        store
            .device()
            .enqueue_write(Lane::Mapping, lease.slot(), bulk(u64::from(id)));
    }
    for touch in [Touch::Use, Touch::Pass, Touch::Pass, Touch::Pass] {
        let before = store.counts();
        for part in [&ids[..8], &ids[8..]] {
            let leases = store
                .lease_all(Lane::Mapping, part, Access::Read, touch)
                .unwrap();
            for (lease, &id) in leases.iter().zip(part) {
                store
                    .device()
                    .enqueue_check(Lane::Mapping, lease.slot(), bulk(u64::from(id)));
            }
            assert_eq!(leases.len(), part.len());
        }
        let after = store.counts();
        let came = after.from_host + after.from_file - before.from_host - before.from_file;
        assert_eq!(came, 4, "two out and two in for each part");
    }
    store.device().run(usize::MAX);
}

/// Linux has a device that is always full.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_said_and_loses_nothing() {
    let full = File::options()
        .read(true)
        .write(true)
        .open("/dev/full")
        .unwrap();
    let file = SpillFile::from_file(full, "/dev/full".as_ref(), BYTES);
    let store = KeyframeStore::with_file(Sim::new(2, 1, 4), 8, Some(file));
    let lane = Lane::Tracking;
    for id in 0..3 {
        let lease = store.insert(lane, id).unwrap();
        store
            .device()
            .enqueue_write(lane, lease.slot(), bulk(u64::from(id)));
    }
    let places: Vec<_> = (0..3).map(|id| store.place(id)).collect();
    for attempt in 1..4 {
        let error = store.insert(lane, 3).map(|_| ()).unwrap_err();
        assert!(
            matches!(
                error,
                StoreError::NoRoom {
                    source: SpillError::DiskFull { bytes, .. }
                } if bytes == BYTES as u64
            ),
            "{error}"
        );
        let text = error.to_string();
        assert!(
            text.contains("/dev/full") && text.contains("space"),
            "{text}"
        );
        assert_eq!(places, (0..3).map(|id| store.place(id)).collect::<Vec<_>>());
        assert_eq!(store.counts().refused, attempt);
        assert_eq!(store.len(), 3);
    }
    for id in [1, 2] {
        let lease = store.read(lane, id).unwrap();
        store
            .device()
            .enqueue_check(lane, lease.slot(), bulk(u64::from(id)));
    }
    // With one fewer there is room in host memory again.
    store.remove(1).unwrap();
    let lease = store.read(lane, 0).unwrap();
    store.device().enqueue_check(lane, lease.slot(), bulk(0));
    drop(lease);
    store.insert(lane, 4).unwrap();
    let lease = store.read(lane, 2).map(|_| ());
    assert!(matches!(lease, Err(StoreError::NoRoom { .. })), "{lease:?}");
    store.device().run(usize::MAX);
}

#[test]
fn without_a_file_host_memory_is_the_end() {
    let store = KeyframeStore::with_file(Sim::new(1, 1, 5), 8, None);
    store.insert(Lane::Mapping, 0).unwrap();
    store.insert(Lane::Mapping, 1).unwrap();
    let error = store.insert(Lane::Mapping, 2).map(|_| ()).unwrap_err();
    assert!(
        matches!(
            error,
            StoreError::NoRoom {
                source: SpillError::NoFile
            }
        ),
        "{error}"
    );
    assert_eq!(store.place(0), Some(Place::Host(0)));
    assert_eq!(store.place(1), Some(Place::Device(0)));
}

#[test]
fn a_missing_directory_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("nowhere");
    let options = StoreOptions {
        keyframes: 1,
        directory: Some(directory.clone()),
    };
    let error = KeyframeStore::new(Sim::new(1, 1, 6), &options)
        .map(|_| ())
        .unwrap_err();
    let named = directory.display().to_string();
    assert!(error.to_string().contains(&named), "{error}");
}

/// A store of one slot and one host slot whose keyframe 0 is in `file`.
fn spilled(file: &File) -> KeyframeStore<Sim> {
    let file = SpillFile::from_file(file.try_clone().unwrap(), "here".as_ref(), BYTES);
    let store = KeyframeStore::with_file(Sim::new(1, 1, 7), 8, Some(file));
    for id in 0..3 {
        let lease = store.insert(Lane::Mapping, id).unwrap();
        store
            .device()
            .enqueue_write(Lane::Mapping, lease.slot(), bulk(u64::from(id)));
    }
    assert!(matches!(store.place(0), Some(Place::File(_))));
    store
}

#[test]
fn a_file_that_was_changed_or_cut_is_said() {
    let file = tempfile::tempfile().unwrap();
    let store = spilled(&file);
    let mut other = &file;
    other.seek(SeekFrom::Start(5)).unwrap();
    other.write_all(&[1]).unwrap();
    for _ in 0..3 {
        let error = store.read(Lane::Mapping, 0).map(|_| ()).unwrap_err();
        let damaged = matches!(
            error,
            StoreError::Unreadable {
                id: 0,
                source: SpillError::Damaged { .. }
            }
        );
        assert!(damaged, "{error}");
    }
    // The others are as they were.
    for id in [1, 2] {
        let lease = store.read(Lane::Mapping, id).unwrap();
        store
            .device()
            .enqueue_check(Lane::Mapping, lease.slot(), bulk(u64::from(id)));
    }
    store.device().run(usize::MAX);
    // Nothing has to move any more to make room for 0, so nothing makes the file longer again.
    store.remove(1).unwrap();
    store.remove(2).unwrap();
    file.set_len(3).unwrap();
    let error = store.read(Lane::Mapping, 0).map(|_| ()).unwrap_err();
    let unreadable = matches!(
        error,
        StoreError::Unreadable {
            id: 0,
            source: SpillError::Read { .. }
        }
    );
    assert!(unreadable, "{error}");
}

#[test]
fn a_device_that_fails_leaves_everything_where_it_was() {
    let (store, _directory) = store(2, 1, 8);
    let lane = Lane::Mapping;
    for id in 0..2 {
        let lease = store.insert(lane, id).unwrap();
        store
            .device()
            .enqueue_write(lane, lease.slot(), bulk(u64::from(id)));
    }
    store.device().fail(true);
    let error = store.insert(lane, 2).map(|_| ()).unwrap_err();
    assert!(matches!(error, StoreError::Device(_)), "{error}");
    store.device().fail(false);
    store.insert(lane, 2).unwrap();
    store.device().fail(true);
    let error = store.read(lane, 0).map(|_| ()).unwrap_err();
    assert!(matches!(error, StoreError::Device(_)), "{error}");
    store.device().fail(false);
    for id in [0, 1] {
        let lease = store.read(lane, id).unwrap();
        store
            .device()
            .enqueue_check(lane, lease.slot(), bulk(u64::from(id)));
    }
    store.device().run(usize::MAX);
}

#[test]
fn misuse_has_names() {
    let (store, _directory) = store(2, 1, 9);
    let lane = Lane::Mapping;
    let a = store.insert(lane, 7).unwrap();
    let said = |r: Result<Lease<'_, Sim>, StoreError<_>>| r.map(|_| ()).unwrap_err().to_string();
    assert!(said(store.insert(lane, 7)).contains("keyframe 7 is in the store already"));
    assert!(said(store.read(lane, 8)).contains("keyframe 8 is not in the store"));
    assert!(said(store.read(Lane::Tracking, 7)).contains("in use by the other thread"));
    assert!(store.remove(7).is_err());
    let b = store.insert(lane, 8).unwrap();
    assert!(said(store.insert(lane, 9)).contains("all 2 keyframe slots are in use"));
    assert_eq!(store.prepare(lane, 1).unwrap(), 0);
    drop((a, b));
    assert_eq!(store.prepare(lane, 1).unwrap(), 1);
    assert!(store.remove(7).unwrap());
    assert!(!store.remove(7).unwrap());
}

/// Tracking makes keyframes while mapping reads, rewrites and passes over them, in threads of their own.
#[test]
fn two_threads_at_once() {
    for seed in 0..8 {
        let (store, _directory) = store(6, 3, seed);
        let store = &store;
        let (made, inbox) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for id in 0..300u32 {
                    let lease = loop {
                        match store.insert(Lane::Tracking, id) {
                            Ok(lease) => break lease,
                            // The other thread holds up to 3.
                            Err(StoreError::AllInUse { .. }) => std::thread::yield_now(),
                            Err(error) => panic!("{error}"),
                        }
                    };
                    store
                        .device()
                        .enqueue_write(Lane::Tracking, lease.slot(), bulk(u64::from(id)));
                    drop(lease);
                    if id > 0 {
                        match store.read(Lane::Tracking, id - 1) {
                            Ok(lease) => drop(lease),
                            Err(StoreError::AllInUse { .. } | StoreError::Busy { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                    made.send(id).unwrap();
                }
            });
            let mut contents = Vec::new();
            let lane = Lane::Mapping;
            for id in inbox {
                contents.push(u64::from(id));
                let old = id.wrapping_mul(2654435761).wrapping_add(seed as u32) % (id + 1);
                let leases: Vec<_> = [id, old]
                    .iter()
                    .filter_map(|&id| match store.read(lane, id) {
                        Ok(lease) => Some(lease),
                        Err(StoreError::AllInUse { .. }) => None,
                        Err(error) => panic!("{error}"),
                    })
                    .collect();
                for lease in &leases {
                    let expected = bulk(contents[lease.id() as usize]);
                    store.device().enqueue_check(lane, lease.slot(), expected);
                }
                drop(leases);
                match store.write(lane, old) {
                    Ok(lease) => {
                        contents[old as usize] += 1_000_000;
                        let bytes = bulk(contents[old as usize]);
                        store.device().enqueue_write(lane, lease.slot(), bytes);
                    }
                    Err(StoreError::AllInUse { .. } | StoreError::Busy { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
                match store.prepare(lane, 2) {
                    Ok(_) => {}
                    Err(error) => panic!("{error}"),
                }
                store.device().run(5);
            }
            for (id, &value) in contents.iter().enumerate() {
                let lease = store.read(lane, id as u32).unwrap();
                store
                    .device()
                    .enqueue_check(lane, lease.slot(), bulk(value));
            }
        });
        store.device().run(usize::MAX);
        assert_eq!(store.counts().refused, 0);
    }
}
