//! Matching, quality, gates and sanitising against the CPU, bit for bit.

mod rig;
mod sanitised;
mod times;

use crate::{assert_same, assert_same_bits, cuda};
use half::f16;
use mast3r_slam::compute::cuda::global::DeviceMatches;
use mast3r_slam::compute::cuda::matching::{MatchCounts, MatchTask, Start};
use mast3r_slam::compute::cuda::spread::{SpreadBuffers, SpreadCounter};
use mast3r_slam::compute::matching::Refinement;
use mast3r_slam::config::MatchingConfig;
use mast3r_slam::gpu::{Context, CudaError, Floats, Priority, allocations};
use rig::{Device, Input, compare, compare_stored, on_cpu};
use testkit::matching_scene::{Random, Scene};
pub use times::microseconds;

const DEGENERATE: [f32; 8] = [
    0.0,
    -0.0,
    f32::NAN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    1e-40,
    3e38,
    -1e20,
];

/// Noise on the coordinates; descriptors of -1, 0 and 1 for many ties; every `broken`-th pixel gets a
/// degenerate point or descriptor.
fn disturb(scene: &mut Scene, random: &mut Random, noise: f64, ties: bool, broken: u64) {
    let dim = scene.dim;
    for (points, descriptors) in [
        (&mut scene.points1, &mut scene.descriptors1),
        (&mut scene.points2, &mut scene.descriptors2),
    ] {
        for x in points.iter_mut() {
            *x *= 1.0 + (noise * random.signed()) as f32;
        }
        if ties {
            for d in descriptors.iter_mut() {
                *d = (random.next() % 3) as f32 - 1.0;
            }
        }
        for n in 0..points.len() / 3 {
            if broken == 0 || !random.next().is_multiple_of(broken) {
                continue;
            }
            let value = DEGENERATE[(random.next() % 8) as usize];
            let k = random.next() as usize;
            match random.next() % 4 {
                0 => points[3 * n..3 * n + 3].fill(value),
                1 => points[3 * n + k % 3] = value,
                2 => descriptors[n * dim..(n + 1) * dim].fill(value),
                _ => descriptors[n * dim + k % dim] = value,
            }
        }
    }
}

#[test]
fn matching_equals_the_cpu_on_random_and_degenerate_scenes() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let stream = context.stream(Priority::High).unwrap();
    let mut random = Random(41);
    let sizes = [
        (1, 1),
        (3, 3),
        (3, 5),
        (2, 7),
        (17, 13),
        (31, 4),
        (5, 29),
        (33, 35),
        (48, 64),
    ];
    let (mut valid, mut refined, mut unique) = (0, 0, 0);
    for case in 0..270usize {
        let mut pick = |n: usize| (random.next() % n as u64) as usize;
        let (width, height) = sizes[case % sizes.len()];
        let n = width * height;
        let dim = [24, 24, 1, 8, 25][pick(5)];
        let params = MatchingConfig {
            max_iter: pick(12),
            lambda_init: [0.0, 1e-8, 1.0][pick(3)],
            convergence_thresh: [1e-14, 1e-6, 1e-2, 10.0][pick(4)],
            dist_thresh: [0.01, 0.1, 1e9][pick(3)],
            radius: [3, 3, 3, 0, 1, 2, 4, 9][pick(8)],
            dilation_max: pick(7),
        };
        let (noise, ties) = ([0.0, 0.001, 0.1, 3.0][pick(4)], pick(2) == 0);
        let broken = [0, 1, 2, 7, 30][pick(5)];
        let (initial, refinement) = (
            pick(3),
            [Refinement::Single, Refinement::SingleAll][pick(2)],
        );
        let gates = (1.5, pick(3) as f32);
        let centre = [0, 1, 2].map(|_| 0.2 * random.signed());
        let mut scene = Scene::new(width, height, dim, centre, 0.1);
        disturb(&mut scene, &mut random, noise, ties, broken);
        let input = Input::of_scene(&scene, &mut random);
        let initial: Option<Vec<u32>> = match initial {
            0 => None,
            1 => Some((0..n).map(|_| random.next() as u32 % n as u32).collect()),
            // Most of these lie outside the image.
            _ => Some((0..n).map(|_| random.next() as u32).collect()),
        };
        let device = Device::new(context, &stream, &input, refinement);
        let start = match &initial {
            Some(map) => {
                stream.write(map, device.earlier.all()).unwrap();
                Start::Map {
                    map: device.earlier.all(),
                    used: None,
                }
            }
            None => Start::Identity,
        };
        let task = device.task(start, gates);
        device.matcher.enqueue(&stream, &params, &task).unwrap();
        let expected = on_cpu(&input, refinement, initial.as_deref(), &params, gates);
        let what =
            format!("case {case}: {width}×{height}, {dim} channels, {params:?}, {refinement:?}");
        compare(&what, &device.found(&stream), &expected);
        device.poison(&stream);
        let task = MatchTask {
            quality: Floats::F16(device.stored.all()),
            ..task
        };
        device.matcher.enqueue(&stream, &params, &task).unwrap();
        compare_stored(&what, &device, &stream, &expected);
        valid += expected.counts.valid;
        refined += expected.counts.refined;
        unique += expected.counts.unique;
    }
    // The cases are worth something: matches, moved ones, and several to one pixel.
    assert!(
        valid > 5000 && refined > 1000 && unique < valid,
        "{valid} {refined} {unique}"
    );
}

/// Two inputs of full size: an exact scene with noisy descriptors, and the ray-cast room.
fn full_size() -> [(&'static str, Input); 2] {
    let scene = Scene::new(512, 384, 24, [2.3 / 512.0, 1.2 / 512.0, 0.01], 0.2);
    [
        ("scene", Input::of_scene(&scene, &mut Random(3))),
        ("room", Input::of_room((512, 384), 2, 0)),
    ]
}

#[test]
fn matching_equals_the_cpu_at_full_size() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let stream = context.stream(Priority::High).unwrap();
    let params = MatchingConfig::default();
    let gates = (1.5, 0.5);
    for (name, input) in full_size() {
        for refinement in [Refinement::Single, Refinement::SingleAll] {
            let device = Device::new(context, &stream, &input, refinement);
            let first = on_cpu(&input, refinement, None, &params, gates);
            let task = device.task(Start::Identity, gates);
            device.matcher.enqueue(&stream, &params, &task).unwrap();
            let what = format!("{name}, {refinement:?}");
            compare(&what, &device.found(&stream), &first);
            println!("{what}: {:?}", first.counts);

            // The next one starts from that map, which it replaces, unless the flag says otherwise.
            let second = on_cpu(&input, refinement, Some(&first.index), &params, gates);
            for (flag, expected) in [(1u32, &second), (0, &first)] {
                stream.write(&[flag], device.use_earlier.all()).unwrap();
                stream.write(&first.index, device.index.all()).unwrap();
                let start = Start::Map {
                    map: device.index.all(),
                    used: Some(device.use_earlier.all()),
                };
                let task = device.task(start, gates);
                device.matcher.enqueue(&stream, &params, &task).unwrap();
                let what = format!("{what}, from its own map ({flag})");
                compare(&what, &device.found(&stream), expected);
            }
        }
    }
}

#[test]
fn matching_without_gates_counts_what_edges_need() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let stream = context.stream(Priority::Low).unwrap();
    let input = Input::of_room((128, 96), 2, 0);
    let params = MatchingConfig::default();
    let expected = on_cpu(&input, Refinement::Single, None, &params, (1.5, 0.0));
    let device = Device::new(context, &stream, &input, Refinement::Single);
    let task = MatchTask {
        gates: None,
        ..device.task(Start::Identity, (1.5, 0.0))
    };
    device.matcher.enqueue(&stream, &params, &task).unwrap();
    let found = device.found(&stream);
    assert_same("index", &found.index, &expected.index);
    assert_same("valid", &found.valid, &expected.valid);
    assert_same_bits("quality", &found.quality, &expected.quality);
    let counts = MatchCounts {
        used: 0,
        unique: 0,
        ..expected.counts
    };
    assert_eq!(found.counts, counts);
    assert!(counts.valid > 0);
    // Nothing was gated.
    assert!(found.gated.iter().all(|g| g.to_bits() == 0xeeee_eeee));
}

/// Beyond the range of binary16 its maximum is stored. A quality above the limit that rounds to it counts as good when
/// the edge is made, but what reads the stored ones does not use it.
#[test]
fn stored_qualities_stay_finite_and_are_counted_before_they_are_rounded() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let stream = context.stream(Priority::Low).unwrap();
    let (width, height) = (32, 24);
    let pixels = width * height;
    let scene = Scene::new(width, height, 24, [0.0; 3], 0.0);
    let mut input = Input::of_scene(&scene, &mut Random(5));
    let limit = 1.5_f32;
    // Half a step of binary16: the limit is the even neighbour.
    let tie = limit + 2_f32.powi(-11);
    let qualities = [
        1e9,
        65504.0,
        65519.0,
        65520.0,
        1e6,
        limit,
        limit.next_up(),
        tie.next_down(),
        tie,
        tie.next_up(),
        limit.next_down(),
        1e-3,
        6e-5,
        1e-7,
        1e-9,
        0.0,
    ];
    // The root of a square is the number itself, or its neighbour: the CPU's are compared.
    input.views[0].descriptor_confidence = vec![1.0; pixels];
    input.views[1].descriptor_confidence = (0..pixels)
        .map(|n| qualities[n % qualities.len()] * qualities[n % qualities.len()])
        .collect();
    let params = MatchingConfig::default();
    let expected = on_cpu(&input, Refinement::Single, None, &params, (limit, 0.0));
    let device = Device::new(context, &stream, &input, Refinement::Single);
    let task = MatchTask {
        quality: Floats::F16(device.stored.all()),
        ..device.task(Start::Identity, (limit, 0.0))
    };
    device.matcher.enqueue(&stream, &params, &task).unwrap();
    compare_stored("stored", &device, &stream, &expected);

    let stored = stream.read_vec(device.stored.all()).unwrap();
    assert!(stored.iter().all(|q| q.is_finite()));
    let pairs = || expected.quality.iter().zip(&stored);
    let at_most = |q: &f16| *q == f16::MAX;
    assert!(pairs().any(|(_, s)| at_most(s)), "saturated");
    assert!(pairs().all(|(q, s)| *q <= 65504.0 && (*q < 65504.0 || at_most(s))));
    let lost = pairs().filter(|(q, s)| **q > limit && s.to_f32() == limit);
    let lost = lost.count() as u32;
    assert!(lost > 0, "some round to the limit");

    // Good when made; a reader of the stored ones uses those that are above the limit as stored.
    let found = device.found(&stream);
    assert_eq!(found.counts.good, expected.counts.good);
    let counter = crate::carve(context, |c| {
        SpreadCounter::new(context, SpreadBuffers::carve(c)?, (width, height))
    });
    let matches = DeviceMatches {
        index: device.index.all(),
        quality: device.stored.all(),
    };
    let spread = counter.count(&stream, [matches; 2], limit).unwrap();
    let read: u32 = spread[0].iter().sum();
    assert_eq!(read, found.counts.good - lost);
    assert!(read > 0);
}

#[test]
fn views_without_a_usable_point_match_nothing() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let stream = context.stream(Priority::High).unwrap();
    let scene = Scene::new(37, 41, 24, [0.01, 0.0, 0.0], 0.0);
    let params = MatchingConfig {
        convergence_thresh: 100.0,
        dist_thresh: 1e30,
        ..MatchingConfig::default()
    };
    for bad in [0.0, f32::NAN, f32::INFINITY, 1e-30] {
        for broken in [[true, false], [false, true], [true, true]] {
            let mut input = Input::of_scene(&scene, &mut Random(1));
            for (view, broken) in input.views.iter_mut().zip(broken) {
                if broken {
                    view.points.fill(bad);
                }
            }
            let device = Device::new(context, &stream, &input, Refinement::SingleAll);
            let task = device.task(Start::Identity, (1.5, 0.0));
            device.matcher.enqueue(&stream, &params, &task).unwrap();
            let found = device.found(&stream);
            assert_eq!(found.counts, MatchCounts::default(), "{bad} {broken:?}");
            let expected = on_cpu(&input, Refinement::SingleAll, None, &params, (1.5, 0.0));
            compare(&format!("{bad} {broken:?}"), &found, &expected);
        }
    }
}

#[test]
fn a_captured_matching_repeats_its_bits_and_allocates_nothing() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let stream = context.stream(Priority::High).unwrap();
    let input = Input::of_room((256, 192), 3, 0);
    let params = MatchingConfig::default();
    let device = Device::new(context, &stream, &input, Refinement::SingleAll);
    let expected = on_cpu(&input, Refinement::SingleAll, None, &params, (1.5, 0.0));
    let task = device.task(Start::Identity, (1.5, 0.0));
    let graph = stream
        .capture(|| device.matcher.enqueue(&stream, &params, &task))
        .unwrap();
    assert_eq!(graph.nodes(), 4);
    let before = allocations();
    for round in 0..5 {
        device.poison(&stream);
        // SAFETY: all buffers are alive, and this stream alone uses them.
        unsafe { graph.launch(&stream) }.unwrap();
        compare(&format!("round {round}"), &device.found(&stream), &expected);
    }
    assert_eq!(allocations(), before);
}

#[test]
fn short_or_misaligned_buffers_are_refused() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let stream = context.stream(Priority::High).unwrap();
    let scene = Scene::new(8, 8, 24, [0.0; 3], 0.0);
    let input = Input::of_scene(&scene, &mut Random(1));
    let device = Device::new(context, &stream, &input, Refinement::Single);
    let params = MatchingConfig::default();
    let good = device.task(Start::Identity, (1.5, 0.0));
    let mut short = good;
    short.quality = Floats::F32(device.quality.slice(0..63).unwrap());
    let mut short_stored = good;
    short_stored.quality = Floats::F16(device.stored.slice(0..63).unwrap());
    let mut map = good;
    map.start = Start::Map {
        map: device.earlier.slice(1..64).unwrap(),
        used: None,
    };
    for task in [short, short_stored, map] {
        let error = device.matcher.enqueue(&stream, &params, &task).unwrap_err();
        assert!(matches!(error, CudaError::Length { .. }), "{error}");
    }
    let wide = Input::of_scene(&Scene::new(9, 8, 24, [0.0; 3], 0.0), &mut Random(1));
    let wide = Device::new(context, &stream, &wide, Refinement::Single);
    let mut crooked = good;
    crooked.query.descriptors = wide.views[0].descriptors.slice(1..9 * 8 * 24).unwrap();
    let error = device
        .matcher
        .enqueue(&stream, &params, &crooked)
        .unwrap_err();
    assert!(matches!(error, CudaError::Misaligned { .. }), "{error}");
}
