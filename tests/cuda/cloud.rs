//! The cloud on the device against `map::cloud`: the same points in the same order, bit for bit.

use crate::{assert_same, cuda};
use half::f16;
use mast3r_slam::compute::cuda::cloud::{Cloud, CloudFields, CloudKeyframe, CloudPlan, CloudSize};
use mast3r_slam::compute::cuda::slots::{Floats, SlotView};
use mast3r_slam::compute::cuda::{
    Context, DeviceArena, DeviceBuffer, PinnedArena, Pool, Priority, Stream, allocations,
};
use mast3r_slam::compute::plan::{Group, MemoryPlan};
use mast3r_slam::geometry::{Intrinsics, Sim3, Tangent};
use mast3r_slam::image::RgbImage;
use mast3r_slam::map::cloud::{CloudOptions, CloudPoint, collect, points};
use mast3r_slam::map::{KeyframeRecord, MapSnapshot};
use mast3r_slam::time::Stamp;
use std::collections::HashMap;
use std::sync::Arc;

/// Pseudo-random numbers.
struct Chance(u64);

impl Chance {
    fn bits(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 32) as u32
    }

    /// In `low..high`.
    fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * (self.bits() >> 8) as f32 / (1 << 24) as f32
    }
}

/// What the points of a scene look like.
#[derive(Debug, Clone, Copy)]
enum Scene {
    /// A wavy surface, as a camera sees it: neighbours are near each other.
    Surface,
    /// Anywhere within two metres.
    Scattered,
    /// On a grid of a tenth of a metre, so on the faces of cubes.
    Grid,
    /// Among them NaN, infinities, huge and tiny numbers.
    Broken,
    /// All zero.
    Zero,
}

fn keyframe(id: u32, width: usize, height: usize, scene: Scene, half: bool) -> KeyframeRecord {
    let mut chance = Chance(u64::from(id) * 7919 + 13);
    let n = width * height;
    let mut points = Vec::with_capacity(3 * n);
    let mut confidence = Vec::with_capacity(n);
    const ODD: [f32; 8] = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        3e38,
        -3e38,
        1e-42,
        -0.0,
        5e9,
    ];
    for i in 0..n {
        let (u, v) = ((i % width) as f32, (i / width) as f32);
        let mut p = match scene {
            Scene::Surface => {
                let z = 2.0 + 0.3 * (u * 0.11).sin() + 0.2 * (v * 0.07).cos();
                let x = (u / width as f32 - 0.5) * z + chance.between(-0.002, 0.002);
                [x, (v / height as f32 - 0.5) * z, z]
            }
            Scene::Zero => [0.0; 3],
            Scene::Grid => std::array::from_fn(|_| (chance.bits() % 9) as f32 * 0.1 - 0.4),
            Scene::Scattered | Scene::Broken => std::array::from_fn(|_| chance.between(-2.0, 2.0)),
        };
        let mut c = match scene {
            // Few values, so that equals occur.
            Scene::Grid => (chance.bits() % 4) as f32,
            Scene::Zero => 0.0,
            _ => chance.between(0.0, 6.0),
        };
        if matches!(scene, Scene::Broken) {
            for value in p.iter_mut().chain([&mut c]) {
                if chance.bits().is_multiple_of(8) {
                    *value = ODD[(chance.bits() % 8) as usize];
                }
            }
        }
        points.extend(p);
        confidence.push(if half { f16::from_f32(c).to_f32() } else { c });
    }
    let tangent = Tangent::from_fn(|_, _| f64::from(chance.between(-0.6, 0.6)));
    let world_from_camera = match scene {
        // Stays on the grid.
        Scene::Grid => Sim3::identity(),
        _ => Sim3::exp(&tangent),
    };
    KeyframeRecord {
        id,
        frame_index: id as usize,
        stamp: Stamp::default(),
        submap: 0,
        world_from_camera,
        image: Arc::new(RgbImage {
            width,
            height,
            data: (0..3 * n).map(|_| chance.bits() as u8).collect(),
        }),
        points: Arc::new(points),
        confidence: Arc::new(confidence),
    }
}

/// A keyframe's bulk on the device.
struct Bulk {
    image: DeviceBuffer<u8>,
    points: DeviceBuffer<f32>,
    half: DeviceBuffer<f16>,
    single: DeviceBuffer<f32>,
}

impl Bulk {
    fn new(arena: &mut DeviceArena, n: usize) -> Self {
        Self {
            image: arena.carve("image", 3 * n).unwrap(),
            points: arena.carve("points", 3 * n).unwrap(),
            half: arena.carve("half", n).unwrap(),
            single: arena.carve("single", n).unwrap(),
        }
    }

    fn fill(&self, stream: &Stream, keyframe: &KeyframeRecord) {
        stream
            .write(&keyframe.image.data, self.image.all())
            .unwrap();
        stream.write(&keyframe.points, self.points.all()).unwrap();
        stream
            .write(&keyframe.confidence, self.single.all())
            .unwrap();
        let half: Vec<f16> = keyframe
            .confidence
            .iter()
            .map(|&c| f16::from_f32(c))
            .collect();
        stream.write(&half, self.half.all()).unwrap();
    }

    fn view(&self, half: bool) -> SlotView<'_> {
        SlotView {
            image: self.image.all(),
            points: self.points.all(),
            confidence: match half {
                true => Floats::F16(self.half.all()),
                false => Floats::F32(self.single.all()),
            },
            features: Floats::F32(self.single.all()),
        }
    }
}

/// A cloud with its memory.
struct Bench {
    cloud: Cloud,
    bulk: Bulk,
    packed: DeviceBuffer<u32>,
    stream: Stream,
}

fn bench(context: &Context, plan: CloudPlan) -> Bench {
    let n = plan.width * plan.height;
    let words = plan.capacity * 7;
    let mut memory = MemoryPlan::new();
    let mut part = memory.part(Group::Mapping, "cloud");
    let device = part.device_arena(&Cloud::device_buffers(&plan));
    let host = part.pinned_arena(&Cloud::pinned_buffers());
    let packed = part.device("packed", &[words]);
    let pool = Pool::new(context, &memory).unwrap();
    let mut own = DeviceArena::new(context, "test", 21 * n as u64 + 2048).unwrap();
    let mut arena = pool.device_arena(device).unwrap();
    let mut pinned = pool.pinned_arena(host).unwrap();
    Bench {
        cloud: Cloud::new(context, plan, &mut arena, &mut pinned).unwrap(),
        bulk: Bulk::new(&mut own, n),
        packed: pool.device(packed).unwrap(),
        stream: context.stream(Priority::Low).unwrap(),
    }
}

impl Bench {
    fn run(
        &mut self,
        snapshot: &MapSnapshot,
        options: &CloudOptions,
        half: bool,
    ) -> (CloudSize, Vec<u32>) {
        let stream = &self.stream;
        self.cloud.clear(stream, options.voxel_size).unwrap();
        for keyframe in &snapshot.keyframes {
            self.bulk.fill(stream, keyframe);
            let keyframe = CloudKeyframe {
                id: keyframe.id,
                slot: self.bulk.view(half),
                world_from_camera: keyframe.world_from_camera,
            };
            self.cloud
                .add(
                    stream,
                    &keyframe,
                    snapshot.intrinsics.as_ref(),
                    options.min_confidence,
                )
                .unwrap();
        }
        let size = self.cloud.size(stream).unwrap();
        let count = size.points as usize;
        let fields = CloudFields {
            confidence: true,
            origin: true,
        };
        let dst = self.packed.all();
        self.cloud.pack(stream, 0, count, fields, 42, dst).unwrap();
        let packed = stream
            .read_vec(self.packed.slice(0..count * 7).unwrap())
            .unwrap();
        (size, packed)
    }
}

/// A message's words for these points; the keyframe is that whose point it is.
fn words(points: &[(CloudPoint, u32)]) -> Vec<[u32; 7]> {
    points
        .iter()
        .map(|(p, keyframe)| {
            let [r, g, b] = p.color.map(u32::from);
            let [x, y, z] = p.position.map(f32::to_bits);
            let rgb = r << 16 | g << 8 | b;
            [x, y, z, rgb, p.confidence.to_bits(), *keyframe, 42]
        })
        .collect()
}

/// The CPU's cloud, with the keyframe of each point: the first that has such a point.
fn reference(snapshot: &MapSnapshot, options: &CloudOptions) -> Vec<(CloudPoint, u32)> {
    let mut all = Vec::new();
    for (i, keyframe) in snapshot.keyframes.iter().enumerate() {
        let one = MapSnapshot {
            intrinsics: snapshot.intrinsics,
            keyframes: snapshot.keyframes[i..=i].to_vec(),
            ..MapSnapshot::default()
        };
        all.extend(points(&one, 0, options.min_confidence).map(|p| (p, keyframe.id)));
    }
    let cloud = collect(snapshot, 0, options).unwrap();
    if cloud.len() == all.len() {
        return all;
    }
    let bits = |p: &CloudPoint| {
        (
            p.position.map(f32::to_bits),
            p.color,
            p.confidence.to_bits(),
        )
    };
    let mut sources = HashMap::new();
    for (p, keyframe) in &all {
        sources.entry(bits(p)).or_insert(*keyframe);
    }
    cloud.into_iter().map(|p| (p, sources[&bits(&p)])).collect()
}

fn check(
    context: &Context,
    plan: CloudPlan,
    snapshot: &MapSnapshot,
    half: bool,
    (voxel_sizes, confidences): (&[f32], &[f32]),
    what: &str,
) {
    let mut bench = bench(context, plan);
    for &voxel_size in voxel_sizes {
        for &min_confidence in confidences {
            let options = CloudOptions {
                min_confidence,
                voxel_size,
            };
            let what = format!("{what}, {options:?}");
            let expected = reference(snapshot, &options);
            let (size, found) = bench.run(snapshot, &options, half);
            assert_eq!(size.refused, 0, "{what}");
            let (found, _) = found.as_chunks::<7>();
            assert_same(&what, found, &words(&expected));
            let again = bench.run(snapshot, &options, half);
            assert_eq!(again.0, size, "{what}: a second run");
            assert_same(&what, again.1.as_chunks::<7>().0, found);
        }
    }
}

/// Scenes of each size, as they are and calibrated, against the CPU.
fn compare(
    context: &Context,
    sizes: &[(usize, usize)],
    scenes: &[Scene],
    options: (&[f32], &[f32]),
) {
    let intrinsics = Intrinsics {
        fx: 31.0,
        fy: 29.5,
        cx: 15.5,
        cy: 11.25,
    };
    for &(width, height) in sizes {
        for &scene in scenes {
            for (half, intrinsics) in [(false, None), (true, Some(intrinsics))] {
                let keyframes: Vec<_> = (0..3)
                    .map(|id| keyframe(id * 5, width, height, scene, half))
                    .collect();
                let snapshot = MapSnapshot {
                    intrinsics,
                    keyframes,
                    ..MapSnapshot::default()
                };
                let plan = CloudPlan {
                    width,
                    height,
                    capacity: 3 * width * height,
                };
                let what = format!("{width}×{height} {scene:?}, calibrated {intrinsics:?}");
                check(context, plan, &snapshot, half, options, &what);
            }
        }
    }
}

#[test]
fn clouds_are_those_of_the_cpu() {
    let Some(gpu) = cuda() else { return };
    let scenes = [Scene::Surface, Scene::Broken];
    compare(&gpu, &[(33, 1), (35, 29)], &scenes, (&[0.0, 0.1], &[-1.0]));
}

#[test]
fn clouds_of_the_full_set_of_scenes_are_those_of_the_cpu() {
    let Some(gpu) = cuda() else { return };
    let scenes = [
        Scene::Surface,
        Scene::Scattered,
        Scene::Grid,
        Scene::Broken,
        Scene::Zero,
    ];
    let sizes = [(1, 1), (33, 1), (35, 29), (64, 48)];
    let voxel_sizes = [0.0, 0.1, 0.037, 5.0, f32::NAN, 1e-30];
    compare(&gpu, &sizes, &scenes, (&voxel_sizes, &[1.5, -1.0, 0.0]));
}

/// As `cloud::voxel_filter`, but with the first point and all members of each cube.
fn cube(p: &CloudPoint, edge: f32) -> [i64; 3] {
    let per_metre = 1.0 / f64::from(edge);
    p.position
        .map(|v| (f64::from(v) * per_metre).floor() as i64)
}

#[test]
fn at_its_capacity_a_cloud_keeps_its_first_cubes_and_counts_the_rest() {
    let Some(gpu) = cuda() else { return };
    let (width, height) = (40, 30);
    let keyframes: Vec<_> = (0..4)
        .map(|id| keyframe(id, width, height, Scene::Scattered, false))
        .collect();
    let snapshot = MapSnapshot {
        keyframes,
        ..MapSnapshot::default()
    };
    for (capacity, voxel_size) in [(1, 0.1), (700, 0.1), (2500, 0.1), (1000, 0.0), (1, 0.0)] {
        let plan = CloudPlan {
            width,
            height,
            capacity,
        };
        let options = CloudOptions {
            min_confidence: 1.0,
            voxel_size,
        };
        let all: Vec<_> = points(&snapshot, 0, 1.0).collect();
        let mut expected = reference(&snapshot, &options);
        assert!(expected.len() > capacity, "{} points", expected.len());
        expected.truncate(capacity);
        let kept: std::collections::HashSet<_> =
            expected.iter().map(|(p, _)| cube(p, voxel_size)).collect();
        let refused = if voxel_size > 0.0 {
            let out = |p: &&CloudPoint| !kept.contains(&cube(p, voxel_size));
            all.iter().filter(out).count()
        } else {
            all.len() - capacity
        };
        let mut bench = bench(&gpu, plan);
        for round in 0..2 {
            let what = format!("capacity {capacity}, voxels {voxel_size}, round {round}");
            let (size, found) = bench.run(&snapshot, &options, false);
            assert_eq!(size.points as usize, capacity, "{what}");
            assert_eq!(size.refused as usize, refused, "{what}");
            assert_same(&what, found.as_chunks::<7>().0, &words(&expected));
        }
    }
}

#[test]
fn messages_have_the_fields_that_were_asked_for_and_parts_fit_together() {
    let Some(gpu) = cuda() else { return };
    let (width, height) = (35, 29);
    let plan = CloudPlan {
        width,
        height,
        capacity: width * height,
    };
    let snapshot = MapSnapshot {
        keyframes: vec![keyframe(9, width, height, Scene::Surface, false)],
        ..MapSnapshot::default()
    };
    let options = CloudOptions {
        min_confidence: 1.5,
        voxel_size: 0.02,
    };
    let mut bench = bench(&gpu, plan);
    let (size, whole) = bench.run(&snapshot, &options, false);
    let (whole, _) = whole.as_chunks::<7>();
    let count = size.points as usize;
    assert!(count > 100, "{count}");
    for (confidence, origin) in [(false, false), (true, false), (false, true), (true, true)] {
        let fields = CloudFields { confidence, origin };
        let words = fields.words();
        let expected: Vec<u32> = whole
            .iter()
            .flat_map(|w| {
                let mut part = w[..4].to_vec();
                part.extend(confidence.then_some(w[4]));
                part.extend(origin.then_some(w[5]));
                part.extend(origin.then_some(w[6]));
                part
            })
            .collect();
        let mut found = Vec::new();
        for from in (0..count).step_by(64) {
            let part = 64.min(count - from);
            let dst = bench.packed.all();
            bench
                .cloud
                .pack(&bench.stream, from, part, fields, 42, dst)
                .unwrap();
            let part = bench.packed.slice(0..part * words).unwrap();
            found.extend(bench.stream.read_vec(part).unwrap());
        }
        assert_same(&format!("{fields:?}"), &found, &expected);
    }
    // More than there is room for is refused, nothing at all is not.
    let fields = CloudFields::default();
    let dst = bench.packed.all();
    let capacity = plan.capacity;
    let too_many = bench.cloud.pack(&bench.stream, 1, capacity, fields, 0, dst);
    assert!(too_many.is_err());
    let short = bench.packed.slice(0..7).unwrap();
    let too_short = bench.cloud.pack(&bench.stream, 0, 2, fields, 0, short);
    assert!(too_short.is_err());
    bench
        .cloud
        .pack(&bench.stream, 0, 0, fields, 0, short)
        .unwrap();
    bench.stream.synchronize().unwrap();
}

#[test]
fn a_full_size_cloud_and_what_it_takes() {
    let Some(gpu) = cuda() else { return };
    let (width, height) = (512, 384);
    let count = 6;
    let keyframes: Vec<_> = (0..count)
        .map(|id| keyframe(id, width, height, Scene::Surface, true))
        .collect();
    let snapshot = MapSnapshot {
        keyframes,
        ..MapSnapshot::default()
    };
    let plan = CloudPlan {
        width,
        height,
        capacity: 6 * width * height,
    };
    let mut bench = bench(&gpu, plan);
    for voxel_size in [0.0, 0.01] {
        let options = CloudOptions {
            min_confidence: 1.5,
            voxel_size,
        };
        // Without keyframes: looking for them takes too long at this size.
        let expected: Vec<_> = collect(&snapshot, 0, &options)
            .unwrap()
            .into_iter()
            .map(|p| (p, 0))
            .collect();
        let (_, found) = bench.run(&snapshot, &options, true);
        let mut found = found.as_chunks::<7>().0.to_vec();
        for w in &mut found {
            w[5] = 0;
        }
        assert_same("full size", &found, &words(&expected));

        let before = allocations();
        let (start, end) = (gpu.event(true).unwrap(), gpu.event(true).unwrap());
        let mut times = Vec::new();
        for _ in 0..20 {
            bench.cloud.clear(&bench.stream, voxel_size).unwrap();
            bench.stream.synchronize().unwrap();
            bench.stream.record(&start).unwrap();
            for k in &snapshot.keyframes {
                let keyframe = CloudKeyframe {
                    id: k.id,
                    slot: bench.bulk.view(true),
                    world_from_camera: k.world_from_camera,
                };
                bench
                    .cloud
                    .add(&bench.stream, &keyframe, None, 1.5)
                    .unwrap();
            }
            bench.stream.record(&end).unwrap();
            times.push(start.milliseconds_until(&end).unwrap() / count as f32);
        }
        times.sort_by(f32::total_cmp);
        eprintln!(
            "cloud of {} points, voxels {voxel_size} m: {:.4} ms a keyframe",
            expected.len(),
            times[times.len() / 2]
        );
        assert_eq!(allocations(), before);
    }
}

#[test]
fn sizes_that_make_no_sense_are_refused() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let mut arena = DeviceArena::new(context, "test", 1 << 20).unwrap();
    let mut pinned = PinnedArena::new(context, 4096).unwrap();
    for (width, height, capacity) in [(0, 5, 5), (8, 8, u32::MAX as usize), (1, 1, usize::MAX / 2)]
    {
        let plan = CloudPlan {
            width,
            height,
            capacity,
        };
        let refused = Cloud::new(context, plan, &mut arena, &mut pinned).map(|_| ());
        assert!(refused.is_err(), "{plan:?}");
    }
}
