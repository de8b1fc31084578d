//! Keyframe slots on the device: what is moved out comes back bit for bit, whatever runs meanwhile.

use crate::{assert_same, cuda};
use half::f16;
use mast3r_slam::compute::cuda::slots::{
    CudaKeyframes, CudaSlots, SlotBuffers, SlotPlan, SlotView,
};
use mast3r_slam::compute::store::{
    Access, Counts, FloatFormat, KeyframeStore, Lane, SlotDevice, SlotLayout, StoreError,
    StoreOptions, Touch,
};
use mast3r_slam::gpu::plan::Group;
use mast3r_slam::gpu::{
    Carving, Context, DeviceBuffer, Element, Floats, Priority, Stream, allocations,
};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Instant;

/// A store with its memory, a pattern for each of some values, and a log of what was read.
struct Bench {
    store: CudaKeyframes,
    patterns: Bulk,
    logs: [Bulk; 2],
    /// For work that takes its time.
    ballast: DeviceBuffer<u8>,
    _directory: tempfile::TempDir,
}

/// Bulk of many keyframes, one after the other.
struct Bulk {
    image: DeviceBuffer<u8>,
    points: DeviceBuffer<f32>,
    confidence: DeviceBuffer<f16>,
    features: DeviceBuffer<f16>,
    each: [usize; 4],
}

const PATTERNS: usize = 61;
const LOG: usize = 600;

impl Bulk {
    fn new(context: &Context, layout: &SlotLayout, count: usize) -> Self {
        let each = [
            layout.image.bytes,
            layout.points.bytes / 4,
            layout.confidence.bytes / 2,
            layout.features.bytes / 2,
        ];
        Self {
            image: crate::buffer(context, count * each[0]),
            points: crate::buffer(context, count * each[1]),
            confidence: crate::buffer(context, count * each[2]),
            features: crate::buffer(context, count * each[3]),
            each,
        }
    }

    fn view(&self, at: usize) -> SlotView<'_> {
        let range = |n: usize| at * n..(at + 1) * n;
        let [image, points, confidence, features] = self.each;
        SlotView {
            image: self.image.slice(range(image)).unwrap(),
            points: self.points.slice(range(points)).unwrap(),
            confidence: Floats::F16(self.confidence.slice(range(confidence)).unwrap()),
            features: Floats::F16(self.features.slice(range(features)).unwrap()),
        }
    }
}

/// Any bits, NaN of every kind among them.
fn bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    (0..count)
        .map(|_| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 56) as u8
        })
        .collect()
}

fn copy_all(stream: &Stream, from: SlotView<'_>, to: SlotView<'_>) {
    stream.copy(from.image, to.image).unwrap();
    stream.copy(from.points, to.points).unwrap();
    for (from, to) in [
        (from.confidence, to.confidence),
        (from.features, to.features),
    ] {
        match (from, to) {
            (Floats::F16(from), Floats::F16(to)) => stream.copy(from, to).unwrap(),
            (Floats::F32(from), Floats::F32(to)) => stream.copy(from, to).unwrap(),
            _ => panic!("different formats"),
        }
    }
}

/// Slots from a memory plan, which needs no more bytes than the slots' plan says.
fn slots(context: &Context, plan: SlotPlan) -> CudaSlots {
    let carve = |carving: &mut Carving<'_>| {
        SlotBuffers::carve(&mut carving.part(Group::Keyframes, "slots"), plan).unwrap()
    };
    let mut paper = Carving::on_paper();
    carve(&mut paper);
    let memory = paper.into_plan();
    assert_eq!(memory.device_bytes(), plan.device_bytes());
    assert_eq!(memory.pinned_bytes(), plan.pinned_bytes());
    let mut carving = Carving::planned(context, &memory).unwrap();
    let buffers = carve(&mut carving);
    carving.finish().unwrap();
    let tracking = Arc::new(context.stream(Priority::High).unwrap());
    let mapping = Arc::new(context.stream(Priority::Low).unwrap());
    CudaSlots::new(context, buffers, tracking, mapping).unwrap()
}

fn bench(context: &Context, device_slots: usize, host_slots: usize, pixels: usize) -> Bench {
    let layout = SlotLayout::new(pixels, pixels / 16, 24, FloatFormat::F16, FloatFormat::F16);
    let plan = SlotPlan {
        layout,
        device_slots,
        host_slots,
    };
    let ballast = 32 << 20;
    let slots = slots(context, plan);
    let patterns = Bulk::new(context, &layout, PATTERNS);
    let stream = slots.stream(Lane::Tracking);
    let fill = |n: usize, seed| bytes(n, seed);
    stream
        .write(&fill(patterns.image.len(), 1), patterns.image.all())
        .unwrap();
    let floats: Vec<f32> = fill(patterns.points.len() * 4, 2)
        .as_chunks::<4>()
        .0
        .iter()
        .map(|&b| f32::from_bits(u32::from_le_bytes(b)))
        .collect();
    stream.write(&floats, patterns.points.all()).unwrap();
    for (buffer, seed) in [(&patterns.confidence, 3), (&patterns.features, 4)] {
        let halves: Vec<f16> = fill(buffer.len() * 2, seed)
            .as_chunks::<2>()
            .0
            .iter()
            .map(|&b| f16::from_bits(u16::from_le_bytes(b)))
            .collect();
        stream.write(&halves, buffer.all()).unwrap();
    }
    let logs = [0; 2].map(|_| Bulk::new(context, &layout, LOG));
    let ballast = crate::buffer(context, ballast);
    let directory = tempfile::tempdir().unwrap();
    let options = StoreOptions {
        keyframes: 6000,
        directory: Some(directory.path().to_owned()),
    };
    Bench {
        store: KeyframeStore::new(slots, &options).unwrap(),
        patterns,
        logs,
        ballast,
        _directory: directory,
    }
}

/// A lane's view of a bench: what it writes and reads is only enqueued; what was read is compared when the
/// log is full.
struct Worker<'a> {
    bench: &'a Bench,
    lane: Lane,
    expected: Vec<(u32, usize)>,
    compared: usize,
}

impl<'a> Worker<'a> {
    fn new(bench: &'a Bench, lane: Lane) -> Self {
        Self {
            bench,
            lane,
            expected: Vec::with_capacity(LOG),
            compared: 0,
        }
    }

    fn stream(&self) -> &'a Stream {
        self.bench.store.device().stream(self.lane)
    }

    /// Delays the following work, so that a reader that does not wait comes too early.
    fn linger(&self) {
        self.stream().fill(self.bench.ballast.all(), 1).unwrap();
    }

    fn write(&self, slot: u32, pattern: usize) {
        let view = self.bench.store.device().slot(slot).unwrap();
        copy_all(
            self.stream(),
            self.bench.patterns.view(pattern % PATTERNS),
            view,
        );
    }

    fn check(&mut self, id: u32, slot: u32, pattern: usize) {
        if self.expected.len() == LOG {
            self.compare();
        }
        let log = &self.bench.logs[self.lane.index()];
        let view = self.bench.store.device().slot(slot).unwrap();
        copy_all(self.stream(), view, log.view(self.expected.len()));
        self.expected.push((id, pattern % PATTERNS));
    }

    fn compare(&mut self) {
        let stream = self.stream();
        let (log, patterns) = (&self.bench.logs[self.lane.index()], &self.bench.patterns);
        /// The bytes of the first `count` keyframes; the log is not written beyond.
        fn bits<T: Element>(stream: &Stream, buffer: &DeviceBuffer<T>, count: usize) -> Vec<u8> {
            let values = stream.read_vec(buffer.slice(0..count).unwrap()).unwrap();
            // SAFETY: an element's bytes are all initialised.
            let (_, bytes, _) = unsafe { values.align_to::<u8>() };
            bytes.to_vec()
        }
        let [image, points, confidence, features] = log.each;
        let (kept, all) = (self.expected.len(), PATTERNS);
        let parts = [
            (
                "image",
                bits(stream, &log.image, kept * image),
                bits(stream, &patterns.image, all * image),
                1,
            ),
            (
                "points",
                bits(stream, &log.points, kept * points),
                bits(stream, &patterns.points, all * points),
                4,
            ),
            (
                "confidences",
                bits(stream, &log.confidence, kept * confidence),
                bits(stream, &patterns.confidence, all * confidence),
                2,
            ),
            (
                "features",
                bits(stream, &log.features, kept * features),
                bits(stream, &patterns.features, all * features),
                2,
            ),
        ];
        for ((what, found, patterns, size), each) in parts.iter().zip(log.each) {
            let n = each * size;
            for (i, &(id, pattern)) in self.expected.iter().enumerate() {
                let found = &found[i * n..(i + 1) * n];
                let expected = &patterns[pattern * n..(pattern + 1) * n];
                if found != expected {
                    let is = (0..PATTERNS).find(|p| found == &patterns[p * n..(p + 1) * n]);
                    let lane = self.lane;
                    eprintln!("{lane:?}: keyframe {id} holds pattern {is:?}, not {pattern}");
                    assert_same(what, found, expected);
                }
            }
        }
        self.compared += self.expected.len();
        self.expected.clear();
    }
}

/// A run's use of keyframes, all lanes from this thread. What each keyframe held at the end.
fn long_run(bench: &Bench, keyframes: u32) -> Vec<usize> {
    let store = &bench.store;
    let mut tracking = Worker::new(bench, Lane::Tracking);
    let mut mapping = Worker::new(bench, Lane::Mapping);
    let mut contents = Vec::new();
    for id in 0..keyframes {
        let lease = store.insert(Lane::Tracking, id).unwrap();
        if id % 16 == 0 {
            tracking.linger();
        }
        contents.push(id as usize * 7);
        tracking.write(lease.slot(), contents[id as usize]);
        drop(lease);
        for other in [
            id,
            id.saturating_sub(1),
            id.wrapping_mul(2654435761) % (id + 1),
        ] {
            let lease = store.read(Lane::Mapping, other).unwrap();
            mapping.check(other, lease.slot(), contents[other as usize]);
        }
        let before = id.saturating_sub(1);
        let lease = store.write(Lane::Mapping, before).unwrap();
        if id % 16 == 8 {
            mapping.linger();
        }
        contents[before as usize] += 1;
        mapping.write(lease.slot(), contents[before as usize]);
        drop(lease);
        if id > 0 {
            let lease = store.read(Lane::Tracking, before).unwrap();
            tracking.check(before, lease.slot(), contents[before as usize]);
        }
        if id % 1024 == 1023 {
            for other in 0..=id {
                let lease = store
                    .lease(Lane::Mapping, other, Access::Read, Touch::Pass)
                    .unwrap();
                mapping.check(other, lease.slot(), contents[other as usize]);
            }
        }
        store.prepare(Lane::Mapping, 2).unwrap();
    }
    for id in 0..keyframes {
        let lease = store.read(Lane::Mapping, id).unwrap();
        mapping.check(id, lease.slot(), contents[id as usize]);
    }
    tracking.compare();
    mapping.compare();
    eprintln!(
        "{} and {} reads compared, {:?}",
        tracking.compared,
        mapping.compared,
        store.counts()
    );
    contents.iter().map(|c| c % PATTERNS).collect()
}

#[test]
fn keyframes_on_few_slots_are_as_on_enough() {
    let Some(gpu) = cuda() else { return };
    let few = bench(&gpu, 6, 3, 48);
    let with_few = long_run(&few, 40);
    assert!(few.store.counts().from_file > 30);
    let enough = bench(&gpu, 42, 1, 48);
    assert_same("contents", &with_few, &long_run(&enough, 40));
}

#[test]
fn keyframes_5000_on_64_slots_are_as_on_enough() {
    let Some(gpu) = cuda() else { return };
    let few = bench(&gpu, 64, 32, 48);
    let before = allocations();
    let with_few = long_run(&few, 5000);
    assert_eq!(allocations(), before, "allocations while keyframes move");
    let counts = few.store.counts();
    assert!(
        counts.spilled > 4000 && counts.from_file > 4000,
        "{counts:?}"
    );
    assert_eq!(counts.refused, 0);
    let enough = bench(&gpu, 5002, 1, 48);
    let with_enough = long_run(&enough, 5000);
    assert_eq!(enough.store.counts(), Counts::default());
    assert_same("contents", &with_few, &with_enough);
}

#[test]
fn two_threads_share_the_slots() {
    let Some(gpu) = cuda() else { return };
    share(&gpu, 1, 60);
}

#[test]
fn two_threads_share_the_slots_for_a_full_run() {
    let Some(gpu) = cuda() else { return };
    share(&gpu, 4, 400);
}

/// One thread makes keyframes, the other reads and changes those before, `rounds` times.
fn share(context: &Context, rounds: u32, keyframes: u32) {
    for round in 0..rounds {
        let bench = bench(context, 6, 3, 256);
        let store = &bench.store;
        let (made, inbox) = mpsc::channel();
        std::thread::scope(|scope| {
            let bench = &bench;
            scope.spawn(move || {
                let mut worker = Worker::new(bench, Lane::Tracking);
                for id in 0..keyframes {
                    let lease = loop {
                        match store.insert(Lane::Tracking, id) {
                            Ok(lease) => break lease,
                            // The other thread holds some.
                            Err(StoreError::AllInUse { .. }) => std::thread::yield_now(),
                            Err(error) => panic!("{error}"),
                        }
                    };
                    worker.linger();
                    worker.write(lease.slot(), id as usize);
                    drop(lease);
                    match store.read(Lane::Tracking, id) {
                        Ok(lease) => worker.check(id, lease.slot(), id as usize),
                        Err(StoreError::AllInUse { .. } | StoreError::Busy { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                    made.send(id).unwrap();
                }
                worker.compare();
            });
            let mut worker = Worker::new(bench, Lane::Mapping);
            let lane = Lane::Mapping;
            let mut contents = Vec::new();
            for id in inbox {
                contents.push(id as usize);
                let old = id.wrapping_mul(2654435761).wrapping_add(round) % (id + 1);
                let leases: Vec<_> = [id, old]
                    .iter()
                    .filter_map(|&id| match store.read(lane, id) {
                        Ok(lease) => Some(lease),
                        Err(StoreError::AllInUse { .. }) => None,
                        Err(error) => panic!("{error}"),
                    })
                    .collect();
                worker.linger();
                for lease in &leases {
                    let id = lease.id();
                    worker.check(id, lease.slot(), contents[id as usize]);
                }
                drop(leases);
                // The newest is tracking's.
                if old != id
                    && let Ok(lease) = store.write(lane, old)
                {
                    contents[old as usize] += 3;
                    worker.write(lease.slot(), contents[old as usize]);
                }
                store.prepare(lane, 2).unwrap();
            }
            for (id, &pattern) in contents.iter().enumerate() {
                let lease = store.read(lane, id as u32).unwrap();
                worker.check(id as u32, lease.slot(), pattern);
            }
            worker.compare();
        });
        eprintln!("round {round}: {:?}", store.counts());
        assert_eq!(store.counts().refused, 0);
    }
}

#[test]
fn a_slot_that_there_is_not_is_refused() {
    let Some(gpu) = cuda() else { return };
    let bench = bench(&gpu, 2, 1, 16);
    let device = bench.store.device();
    assert!(device.slot(1).is_ok());
    assert!(device.slot(2).is_err());
    assert!(device.save(Lane::Mapping, &[], 0, 1).is_err());
    assert!(device.load(Lane::Mapping, &[], 0, 2).is_err());
    device.with_host(7, &mut |_| panic!("there is no such host slot"));
}

#[test]
fn full_size_keyframes_and_what_moving_them_takes() {
    let Some(gpu) = cuda() else { return };
    let layout = SlotLayout::new(512 * 384, 768, 1024, FloatFormat::F16, FloatFormat::F16);
    assert!(layout.bytes <= 5_200_000);
    let plan = SlotPlan {
        layout,
        device_slots: 4,
        host_slots: 4,
    };
    let slots = slots(&gpu, plan);
    let lane = Lane::Mapping;
    let pattern = |slot: u32| 0x31 + slot as u8 * 0x11;
    for slot in 0..4 {
        let view = slots.slot(slot).unwrap();
        let stream = slots.stream(lane);
        stream.fill(view.image, pattern(slot)).unwrap();
        stream.fill(view.points, pattern(slot)).unwrap();
        for floats in [view.confidence, view.features] {
            match floats {
                Floats::F16(halves) => stream.fill(halves, pattern(slot)).unwrap(),
                Floats::F32(singles) => stream.fill(singles, pattern(slot)).unwrap(),
            }
        }
    }
    slots.stream(lane).synchronize().unwrap();
    let rate = |what: &str, work: &dyn Fn()| {
        work();
        let start = Instant::now();
        for _ in 0..8 {
            work();
        }
        let each = start.elapsed().as_secs_f64() / 32.0;
        let speed = layout.bytes as f64 / each / 1e9;
        eprintln!("{what}: {:.3} ms a keyframe, {speed:.1} GB/s", each * 1e3);
    };
    rate("device to host", &|| {
        (0..4).for_each(|i| slots.save(lane, &[], i, i).unwrap())
    });
    rate("host to device", &|| {
        (0..4).for_each(|i| slots.load(lane, &[], i, 3 - i).unwrap())
    });
    for slot in 0..4 {
        let view = slots.slot(slot).unwrap();
        let found = slots.stream(lane).read_vec(view.image).unwrap();
        assert!(found.iter().all(|&v| v == pattern(3 - slot)), "slot {slot}");
        let Floats::F16(features) = view.features else {
            panic!("features are planned as f16");
        };
        let found = slots.stream(lane).read_vec(features).unwrap();
        let expected = f16::from_le_bytes([pattern(3 - slot); 2]).to_bits();
        assert!(found.iter().all(|v| v.to_bits() == expected), "slot {slot}");
    }
}
