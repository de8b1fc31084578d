//! Matching, quality, gates and sanitising against the CPU, bit for bit.

#[path = "../matching_scene/mod.rs"]
mod matching_scene;

use crate::{assert_same, assert_same_bits, common, cuda};
use mast3r_slam::compute::cuda::matching::{Gates, MatchCounts, MatchTask, Matcher, Start};
use mast3r_slam::compute::cuda::sanitise::{Sanitiser, ViewBuffers};
use mast3r_slam::compute::cuda::{
    Context, CudaError, DeviceArena, DeviceBuffer, Pool, Priority, Stream, allocations,
};
use mast3r_slam::compute::matching::{
    self as cpu, Refinement, View, match_quality, unique_matches,
};
use mast3r_slam::compute::plan::{Group, MemoryPlan};
use mast3r_slam::config::MatchingConfig;
use mast3r_slam::inference::{Backend, NetworkShape, PairOutput, ViewOutput, sanitise};
use matching_scene::{Random, Scene};

/// What the network gives for two views, and a keyframe's confidences.
struct Input {
    size: (usize, usize),
    dim: usize,
    views: [ViewOutput; 2],
    key_confidence: Vec<f32>,
    key_count: u32,
}

impl Input {
    fn of_scene(scene: &Scene, random: &mut Random) -> Self {
        let n = scene.pixels();
        let mut confidences = || -> Vec<f32> {
            let value = |random: &mut Random| match random.next() % 16 {
                0 => f32::NAN,
                1 => f32::INFINITY,
                2 => -1.0,
                3 => 0.0,
                _ => (random.next() % 64) as f32 / 8.0,
            };
            (0..n).map(|_| value(random)).collect()
        };
        let mut view = |points: &[f32], descriptors: &[f32]| ViewOutput {
            points: points.to_vec(),
            descriptors: descriptors.to_vec(),
            confidence: confidences(),
            descriptor_confidence: confidences(),
        };
        Self {
            size: (scene.width, scene.height),
            dim: scene.dim,
            views: [
                view(&scene.points1, &scene.descriptors1),
                view(&scene.points2, &scene.descriptors2),
            ],
            key_confidence: confidences(),
            key_count: (random.next() % 4) as u32,
        }
    }

    /// Frame `frame` and keyframe `key` of a walk through the ray-cast room.
    fn of_room(size: (usize, usize), frame: usize, key: usize) -> Self {
        let spoil = common::Spoil {
            noise: 0.003,
            outliers: 0.01,
            bias: 0.0,
        };
        let poses = common::square_walk(120, 1.0);
        let keep = poses[..=frame.max(key)].to_vec();
        let mut room = common::RoomBackend::new(size, keep, spoil);
        let shape = room.shape().clone();
        let features = [frame, key].map(|k| {
            let mut features = vec![0.0; shape.tokens * shape.feature_dim];
            room.encode(&room.image(k), &mut features)
                .expect("room encodes");
            features
        });
        let mut out = PairOutput::zeros(&shape);
        room.decode(&features[0], &features[1], &mut out)
            .expect("room decodes");
        Self {
            size,
            dim: shape.descriptor_dim,
            key_confidence: out.view2.confidence.iter().map(|c| 3.0 * c).collect(),
            key_count: 3,
            views: [out.view1, out.view2],
        }
    }

    fn pixels(&self) -> usize {
        self.size.0 * self.size.1
    }

    fn view(&self, k: usize) -> View<'_> {
        View {
            points: &self.views[k].points,
            descriptors: &self.views[k].descriptors,
        }
    }
}

#[derive(Debug, Clone)]
struct Found {
    index: Vec<u32>,
    valid: Vec<u8>,
    quality: Vec<f32>,
    gated: Vec<f32>,
    counts: MatchCounts,
}

/// As the tracker does it: matching, quality and gates.
fn on_cpu(
    input: &Input,
    refinement: Refinement,
    initial: Option<&[u32]>,
    params: &MatchingConfig,
    (q_conf, c_conf): (f32, f32),
) -> Found {
    let n = input.pixels();
    let (mut index, mut valid) = (vec![0; n], vec![0; n]);
    let stats = cpu::Matcher::new(input.size.0, input.size.1, input.dim)
        .with_refinement(refinement)
        .run(
            input.view(0),
            input.view(1),
            initial,
            params,
            &mut index,
            &mut valid,
        );
    let mut quality = vec![0.0; n];
    let [view1, view2] = &input.views;
    match_quality(
        &view1.descriptor_confidence,
        &view2.descriptor_confidence,
        &index,
        &valid,
        &mut quality,
    );
    let mut counts = MatchCounts {
        valid: stats.valid as u32,
        refined: stats.refined as u32,
        unique: unique_matches(&index, &valid, &mut Vec::new()) as u32,
        ..MatchCounts::default()
    };
    let mut gated = vec![0.0; n];
    for i in 0..n {
        let average = input.key_confidence[i] / input.key_count.max(1) as f32;
        let passes = quality[i] > q_conf;
        let confident = average > c_conf && view1.confidence[index[i] as usize] > c_conf;
        counts.good += u32::from(passes);
        counts.used += u32::from(passes && confident);
        if passes && confident {
            gated[i] = quality[i];
        }
    }
    Found {
        index,
        valid,
        quality,
        gated,
        counts,
    }
}

/// Device buffers for one input.
struct Device {
    matcher: Matcher,
    views: [ViewBuffers; 2],
    key_confidence: DeviceBuffer<f32>,
    key_count: DeviceBuffer<u32>,
    /// The index map, and an earlier one.
    index: DeviceBuffer<u32>,
    earlier: DeviceBuffer<u32>,
    use_earlier: DeviceBuffer<u32>,
    valid: DeviceBuffer<u8>,
    quality: DeviceBuffer<f32>,
    gated: DeviceBuffer<f32>,
    counts: DeviceBuffer<MatchCounts>,
}

impl Device {
    fn new(context: &Context, stream: &Stream, input: &Input, refinement: Refinement) -> Self {
        let (n, (w, h), dim) = (input.pixels(), input.size, input.dim);
        let mut plan = MemoryPlan::new();
        let mut part = plan.part(Group::Tracking, "test");
        let matcher = part.device_arena(&Matcher::buffers(w, h, dim));
        let views = [0, 1].map(|_| part.device_arena(&ViewBuffers::buffers(n, dim)));
        let key_confidence = part.device("key confidence", &[n]);
        let key_count = part.device("key count", &[1]);
        let index = part.device("index", &[n]);
        let earlier = part.device("earlier", &[n]);
        let use_earlier = part.device("use earlier", &[1]);
        let valid = part.device("valid", &[n]);
        let quality = part.device("quality", &[n]);
        let gated = part.device("gated", &[n]);
        let counts = part.device("counts", &[1]);
        let pool = Pool::new(context, &plan).unwrap();
        let mut arena = pool.device_arena(matcher).unwrap();
        let matcher = Matcher::new(context, &mut arena, w, h, dim, refinement).unwrap();
        let views = views.map(|view| {
            let mut arena = pool.device_arena(view).unwrap();
            ViewBuffers::carve(&mut arena, n, dim).unwrap()
        });
        for (to, from) in views.iter().zip(&input.views) {
            stream.write(&from.points, to.points.all()).unwrap();
            stream.write(&from.confidence, to.confidence.all()).unwrap();
            stream
                .write(&from.descriptors, to.descriptors.all())
                .unwrap();
            let q = to.descriptor_confidence.all();
            stream.write(&from.descriptor_confidence, q).unwrap();
        }
        let device = Self {
            matcher,
            views,
            key_confidence: pool.device(key_confidence).unwrap(),
            key_count: pool.device(key_count).unwrap(),
            index: pool.device(index).unwrap(),
            earlier: pool.device(earlier).unwrap(),
            use_earlier: pool.device(use_earlier).unwrap(),
            valid: pool.device(valid).unwrap(),
            quality: pool.device(quality).unwrap(),
            gated: pool.device(gated).unwrap(),
            counts: pool.device(counts).unwrap(),
        };
        let confidence = device.key_confidence.all();
        stream.write(&input.key_confidence, confidence).unwrap();
        stream
            .write(&[input.key_count], device.key_count.all())
            .unwrap();
        device.poison(stream);
        device
    }

    /// What the kernels do not write stays recognisable.
    fn poison(&self, stream: &Stream) {
        stream.fill(self.index.all(), 0xee).unwrap();
        stream.fill(self.valid.all(), 0xee).unwrap();
        stream.fill(self.quality.all(), 0xee).unwrap();
        stream.fill(self.gated.all(), 0xee).unwrap();
        stream.fill(self.counts.all(), 0xee).unwrap();
    }

    fn task<'a>(&'a self, start: Start<'a>, (q_conf, c_conf): (f32, f32)) -> MatchTask<'a> {
        MatchTask {
            target: self.views[0].view(),
            query: self.views[1].view(),
            start,
            q_conf,
            gates: Some(Gates {
                key_confidence: self.key_confidence.all(),
                key_count: self.key_count.all(),
                c_conf,
                gated: self.gated.all(),
            }),
            index: self.index.all(),
            valid: self.valid.all(),
            quality: self.quality.all(),
            counts: self.counts.all(),
        }
    }

    fn found(&self, stream: &Stream) -> Found {
        Found {
            index: stream.read_vec(self.index.all()).unwrap(),
            valid: stream.read_vec(self.valid.all()).unwrap(),
            quality: stream.read_vec(self.quality.all()).unwrap(),
            gated: stream.read_vec(self.gated.all()).unwrap(),
            counts: stream.read_vec(self.counts.all()).unwrap()[0],
        }
    }
}

fn compare(what: &str, found: &Found, expected: &Found) {
    assert_same(&format!("{what}: valid"), &found.valid, &expected.valid);
    assert_same(&format!("{what}: index"), &found.index, &expected.index);
    let named = |name| format!("{what}: {name}");
    assert_same_bits(&named("quality"), &found.quality, &expected.quality);
    assert_same_bits(&named("gated"), &found.gated, &expected.gated);
    assert_eq!(found.counts, expected.counts, "{what}");
}

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
    assert_eq!(graph.nodes(), 3);
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
    short.quality = device.quality.slice(0..63).unwrap();
    let mut map = good;
    map.start = Start::Map {
        map: device.earlier.slice(1..64).unwrap(),
        used: None,
    };
    for task in [short, map] {
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

#[test]
fn sanitised_views_equal_the_cpu_s() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let stream = context.stream(Priority::High).unwrap();
    let mut random = Random(17);
    for (width, height, dim) in [
        (1, 1, 24),
        (7, 9, 25),
        (33, 31, 24),
        (64, 48, 8),
        (512, 384, 24),
    ] {
        let n = width * height;
        let shape = NetworkShape {
            width,
            height,
            tokens: 1,
            feature_dim: 1,
            descriptor_dim: dim,
        };
        let mut plan = MemoryPlan::new();
        let mut part = plan.part(Group::Tracking, "test");
        let sanitiser = part.device_arena(&Sanitiser::buffers());
        let counts = part.device::<u32>("counts", &[2]);
        let buffers = [0, 1].map(|_| part.device_arena(&ViewBuffers::buffers(n, dim)));
        let pool = Pool::new(context, &plan).unwrap();
        let mut arena = pool.device_arena(sanitiser).unwrap();
        let sanitiser = Sanitiser::new(context, &mut arena, &stream, n, dim).unwrap();
        let counts = pool.device(counts).unwrap();
        let buffers = buffers.map(|planned| {
            let mut arena = pool.device_arena(planned).unwrap();
            ViewBuffers::carve(&mut arena, n, dim).unwrap()
        });
        // Twice, as the scratch must be as it was; the third time one view alone; then all bad.
        for round in 0..4 {
            let mut views = [0, 1].map(|_| ViewOutput::zeros(&shape));
            for view in &mut views {
                let mut value = |scale: f64| -> f32 {
                    match random.next() % 900 {
                        0 => f32::NAN,
                        1 => f32::INFINITY,
                        2 => f32::NEG_INFINITY,
                        3 => 3e38,
                        4 => 1e-30,
                        5 => -1e-3,
                        _ => (scale * (0.5 + random.signed().abs())) as f32,
                    }
                };
                for slice in [&mut view.points, &mut view.descriptors] {
                    slice.iter_mut().for_each(|v| *v = value(1.0));
                }
                for slice in [&mut view.confidence, &mut view.descriptor_confidence] {
                    slice.iter_mut().for_each(|v| *v = value(4.0));
                }
                if round == 3 {
                    view.points.fill(0.0);
                }
            }
            for (to, from) in buffers.iter().zip(&views) {
                stream.write(&from.points, to.points.all()).unwrap();
                stream.write(&from.confidence, to.confidence.all()).unwrap();
                stream
                    .write(&from.descriptors, to.descriptors.all())
                    .unwrap();
                let q = to.descriptor_confidence.all();
                stream.write(&from.descriptor_confidence, q).unwrap();
            }
            stream.fill(counts.all(), 0xee).unwrap();
            let second = (round != 2).then(|| buffers[1].view());
            sanitiser
                .enqueue(&stream, buffers[0].view(), second, counts.all())
                .unwrap();
            let found = stream.read_vec(counts.all()).unwrap();
            for (k, view) in views.iter_mut().enumerate() {
                let what = format!("{width}×{height}×{dim}, round {round}, view {k}");
                let expected = if k == 1 && round == 2 {
                    0xeeee_eeee
                } else {
                    sanitise(view) as u32
                };
                assert_eq!(found[k], expected, "{what}: unusable");
                let buffers = &buffers[k];
                for (name, buffer, expected) in [
                    ("points", &buffers.points, &view.points),
                    ("confidence", &buffers.confidence, &view.confidence),
                    ("descriptors", &buffers.descriptors, &view.descriptors),
                    (
                        "descriptor confidence",
                        &buffers.descriptor_confidence,
                        &view.descriptor_confidence,
                    ),
                ] {
                    let found = stream.read_vec(buffer.all()).unwrap();
                    assert_same_bits(&format!("{what}: {name}"), &found, expected);
                }
            }
            if round == 3 {
                assert_eq!(found, [n as u32; 2]);
            }
        }
    }
}

/// Median of the time of one call, in microseconds: as many calls in a graph as take about a
/// millisecond, the graph launched often. Printed, not judged: another GPU is as right.
pub fn microseconds(
    stream: &Stream,
    calls: usize,
    enqueue: impl Fn() -> Result<(), CudaError>,
) -> f32 {
    let graph = stream
        .capture(|| (0..calls).try_for_each(|_| enqueue()))
        .unwrap();
    let context = stream.context();
    let (start, end) = (context.event(true).unwrap(), context.event(true).unwrap());
    let mut times: Vec<f32> = (0..31)
        .map(|_| {
            stream.record(&start).unwrap();
            // SAFETY: all buffers are alive, and this stream alone uses them.
            unsafe { graph.launch(stream) }.unwrap();
            stream.record(&end).unwrap();
            start.milliseconds_until(&end).unwrap() * 1e3 / calls as f32
        })
        .collect();
    times.sort_by(f32::total_cmp);
    times[times.len() / 2]
}

#[test]
fn the_time_of_matching() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let stream = context.stream(Priority::High).unwrap();
    for (name, input) in full_size() {
        let n = input.pixels();
        let device = Device::new(context, &stream, &input, Refinement::SingleAll);
        let params = MatchingConfig::default();
        let search = MatchingConfig {
            radius: 0,
            ..params.clone()
        };
        let rays = MatchingConfig {
            max_iter: 0,
            ..search.clone()
        };
        let task = device.task(Start::Identity, (1.5, 0.0));
        device.matcher.enqueue(&stream, &params, &task).unwrap();
        stream
            .copy(device.index.all(), device.earlier.all())
            .unwrap();
        let warm = device.task(
            Start::Map {
                map: device.earlier.all(),
                used: None,
            },
            (1.5, 0.0),
        );
        for (what, params, task) in [
            ("rays, one look, gates", &rays, &task),
            ("rays, search, gates", &search, &task),
            ("all, from the identity", &params, &task),
            ("all, from the last map", &params, &warm),
        ] {
            let time = microseconds(&stream, 5, || device.matcher.enqueue(&stream, params, task));
            println!("time: matching, {name}, {what}: {time:.1} us");
        }
        let mut arena = DeviceArena::new(context, "test", 4096).unwrap();
        let sanitiser = Sanitiser::new(context, &mut arena, &stream, n, input.dim).unwrap();
        let counts = arena.carve::<u32>("counts", 2).unwrap();
        let time = microseconds(&stream, 20, || {
            let [a, b] = &device.views;
            sanitiser.enqueue(&stream, a.view(), Some(b.view()), counts.all())
        });
        println!("time: sanitising two views, {name}: {time:.1} us");
    }
}
