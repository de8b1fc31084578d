//! A graph to time the solve with: a room seen by every keyframe, matched pixel by pixel.

use super::{
    DeviceEdge, DeviceGlobalSolver, DeviceKeyframe, DeviceMatches, DeviceProblem, GlobalCapacity,
    GlobalError, StageTimes,
};
use crate::compute::cuda::{Context, DeviceArena, DeviceBuffer, PinnedArena, Priority, Stream};
use crate::compute::global::{GlobalReport, GlobalResidual};
use crate::compute::plan::{ALIGNMENT, Spec};
use crate::config::LocalOptConfig;
use crate::geometry::{Intrinsics, Sim3, Tangent};
use half::f16;
use nalgebra::Vector3;
use std::time::Instant;

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BenchSize {
    /// Keyframes in a chain, with loops back over two and more.
    pub keyframes: usize,
    /// Edges, of two directions each.
    pub edges: usize,
    /// Fraction of pixels that are matched.
    pub matched: f64,
}

/// The sizes of issue 3, every pixel matched, and the largest with half of them.
pub const SIZES: [BenchSize; 4] = [
    BenchSize {
        keyframes: 10,
        edges: 10,
        matched: 1.0,
    },
    BenchSize {
        keyframes: 50,
        edges: 75,
        matched: 1.0,
    },
    BenchSize {
        keyframes: 200,
        edges: 300,
        matched: 1.0,
    },
    BenchSize {
        keyframes: 200,
        edges: 300,
        matched: 0.5,
    },
];

/// Bytes of a match in a linearisation: index, quality, both points. Cached or not.
pub const MATCH_BYTES: u64 = 32;
/// Bytes of a match when gates are tested, and of a keyframe's pixel.
pub const GATE_BYTES: u64 = 9;
/// See [`GATE_BYTES`].
pub const MASK_BYTES: u64 = 14;

/// What came out.
#[derive(Debug, Clone, PartialEq)]
pub struct BenchResult {
    /// Milliseconds of each solve of ten iterations, ascending.
    pub solves_ms: Vec<f64>,
    /// Of the last one.
    pub report: GlobalReport,
    /// Milliseconds of each kernel.
    pub stages: StageTimes,
}

/// Different pointmaps: keyframes share the contents, not the memory.
const VIEWS: usize = 8;

struct Content {
    pose: Sim3,
    points: Vec<f32>,
    /// Of each point of the room, its pixel.
    order: Vec<u32>,
}

/// A small generator (PCG), so that every run times the same.
struct Random(u64);

impl Random {
    fn uniform(&mut self) -> f64 {
        let state = self.0;
        self.0 = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let mixed = ((state >> 18) ^ state) >> 27;
        let word = (mixed as u32).rotate_right((state >> 59) as u32);
        f64::from(word) / 4_294_967_296.0
    }

    fn tangent(&mut self, limit: f64) -> Tangent {
        Tangent::from_fn(|_, _| (2.0 * self.uniform() - 1.0) * limit)
    }
}

/// The room from `VIEWS` places, each with its pixels shifted and shuffled a little: a gather as real
/// matches make it, of neighbours that stay near each other.
fn contents(width: usize, height: usize) -> Vec<Content> {
    let f = 0.866 * width as f64;
    let k = Intrinsics {
        fx: f,
        fy: f,
        cx: (width as f64 - 1.0) / 2.0,
        cy: (height as f64 - 1.0) / 2.0,
    };
    let mut random = Random(7);
    let mut room = Vec::with_capacity(width * height);
    for v in 0..height {
        for u in 0..width {
            let (x, y) = (u as f64 / width as f64, v as f64 / height as f64);
            let waves = (9.0 * x).sin() + (7.0 * y + 2.0 * x).cos();
            let depth = 3.0 + 0.8 * waves + 0.1 * random.uniform();
            room.push(k.ray(u as f64, v as f64) * depth);
        }
    }
    let views = (0..VIEWS).map(|view| {
        let pose = Sim3::exp(&random.tangent(0.15));
        let inverse = pose.inverse();
        let count = room.len();
        let shift = view * (5 * width + 7);
        let mut order: Vec<u32> = (0..count)
            .map(|n| ((n + shift) % count.max(1)) as u32)
            .collect();
        for n in 3..count {
            order.swap(n, n - (random.uniform() * 3.0) as usize);
        }
        let mut points = vec![0.0; 3 * count];
        for (p, &at) in room.iter().zip(&order) {
            // One millimetre of noise, so that there is something left to minimise.
            let noise = Vector3::from_fn(|_, _| 2e-3 * (random.uniform() - 0.5));
            let seen = inverse.transform(p) + noise;
            for (to, v) in points[3 * at as usize..].iter_mut().zip(seen.iter()) {
                *to = *v as f32;
            }
        }
        Content {
            pose,
            points,
            order,
        }
    });
    views.collect()
}

/// A chain with loops back over two keyframes, then three, and so on.
fn chain(keyframes: usize, edges: usize) -> Vec<(usize, usize)> {
    let mut links: Vec<_> = (1..keyframes).map(|k| (k - 1, k)).collect();
    for span in 2..keyframes {
        links.extend((0..keyframes - span).step_by(2).map(|k| (k, k + span)));
    }
    links.truncate(edges);
    links
}

struct Matches {
    index: DeviceBuffer<u32>,
    valid: DeviceBuffer<u8>,
    quality: DeviceBuffer<f32>,
}

impl Matches {
    fn view(&self) -> DeviceMatches<'_> {
        DeviceMatches {
            index: self.index.all(),
            valid: self.valid.all(),
            quality: self.quality.all(),
        }
    }
}

/// Solves `repeats` times, ten iterations each, and times every kernel. Memory is allocated for it alone.
pub fn run(
    context: &Context,
    size: BenchSize,
    (width, height): (usize, usize),
    repeats: usize,
) -> Result<BenchResult, GlobalError> {
    let pixels = width * height;
    let links = chain(size.keyframes, size.edges);
    let capacity = GlobalCapacity {
        pixels,
        keyframes: size.keyframes,
        edges: links.len(),
    };
    let padded = |buffers: &[Spec]| buffers.iter().map(|b| b.bytes() + ALIGNMENT).sum::<u64>();
    let own = padded(&capacity.device_buffers());
    let keyframe = pixels as u64 * MASK_BYTES + 2 * ALIGNMENT;
    let direction = pixels as u64 * GATE_BYTES + 3 * ALIGNMENT;
    let bytes = own + keyframe * size.keyframes as u64 + 2 * direction * links.len() as u64;
    let mut device = DeviceArena::new(context, "the benchmark of the global solve", bytes)?;
    let mut pinned = PinnedArena::new(context, padded(&capacity.pinned_buffers()))?;
    let stream = context.stream(Priority::Low)?;
    let mut solver = DeviceGlobalSolver::new(context, &mut device, &mut pinned, capacity)?;

    let contents = contents(width, height);
    let mut random = Random(11);
    let confidence = vec![f16::from_f32(2.0); pixels];
    let mut maps = Vec::with_capacity(size.keyframes);
    for k in 0..size.keyframes {
        let points: DeviceBuffer<f32> = device.carve("points", 3 * pixels)?;
        let sure: DeviceBuffer<f16> = device.carve("confidences", pixels)?;
        stream.write(&contents[k % VIEWS].points, points.all())?;
        stream.write(&confidence, sure.all())?;
        let pose = contents[k % VIEWS].pose;
        let start = match k {
            0 => pose,
            _ => pose.retract(&random.tangent(0.01)),
        };
        maps.push((points, sure, start));
    }
    let mut matches = Vec::with_capacity(2 * links.len());
    for &(i, j) in &links {
        for (to, from) in [(i, j), (j, i)] {
            let (to, from) = (&contents[to % VIEWS].order, &contents[from % VIEWS].order);
            matches.push(matched(
                &stream,
                &mut device,
                (to, from),
                size.matched,
                &mut random,
            )?);
        }
    }
    let keyframes: Vec<_> = maps
        .iter()
        .map(|(points, confidence, start)| DeviceKeyframe {
            points: points.all(),
            confidence: confidence.all(),
            world_from_camera: *start,
        })
        .collect();
    let edges: Vec<_> = links
        .iter()
        .zip(matches.chunks_exact(2))
        .map(|(&(i, j), pair)| DeviceEdge {
            i,
            j,
            i_from_j: pair[0].view(),
            j_from_i: pair[1].view(),
        })
        .collect();
    let problem = DeviceProblem {
        keyframes: &keyframes,
        edges: &edges,
        priors: &[],
        residual: GlobalResidual::Rays,
        width,
        height,
    };
    // Ten iterations, whatever they bring.
    let params = LocalOptConfig {
        max_iters: 10,
        rel_error: f64::NEG_INFINITY,
        delta_norm: 0.0,
        ..LocalOptConfig::default()
    };
    let mut poses = vec![Sim3::identity(); size.keyframes];
    let mut report = solver.solve(&stream, &problem, &params, &mut poses)?;
    let mut solves_ms = Vec::with_capacity(repeats);
    for _ in 0..repeats {
        let started = Instant::now();
        report = solver.solve(&stream, &problem, &params, &mut poses)?;
        solves_ms.push(started.elapsed().as_secs_f64() * 1e3);
    }
    solves_ms.sort_by(f64::total_cmp);
    let stages = solver.time_stages(&stream, &problem, &params, 20)?;
    Ok(BenchResult {
        solves_ms,
        report,
        stages,
    })
}

/// One direction: the pixels of the same point of the room in both orders.
fn matched(
    stream: &Stream,
    device: &mut DeviceArena,
    (to, from): (&[u32], &[u32]),
    fraction: f64,
    random: &mut Random,
) -> Result<Matches, GlobalError> {
    let pixels = to.len();
    let mut index = vec![0; pixels];
    for (&m, &n) in to.iter().zip(from) {
        index[n as usize] = m;
    }
    let valid: Vec<u8> = (0..pixels)
        .map(|_| u8::from(random.uniform() < fraction))
        .collect();
    let quality: Vec<f32> = valid
        .iter()
        .map(|&v| f32::from(v) * (1.6 + random.uniform() as f32))
        .collect();
    let matches = Matches {
        index: device.carve("matches", pixels)?,
        valid: device.carve("flags", pixels)?,
        quality: device.carve("qualities", pixels)?,
    };
    stream.write(&index, matches.index.all())?;
    stream.write(&valid, matches.valid.all())?;
    stream.write(&quality, matches.quality.all())?;
    Ok(matches)
}
