//! The global solve, on a room seen by every keyframe and matched pixel by pixel.

use super::measure::{Stage, Work};
use super::scene::Random;
use super::{Setup, WHAT, planned, room};
use crate::cli::CliError;
use crate::compute::cuda::global::{
    DeviceEdge, DeviceGlobalSolver, DeviceKeyframe, DeviceMatches, DeviceProblem, GlobalCapacity,
    GlobalError, StageTimes,
};
use crate::compute::cuda::{CudaError, DeviceArena, DeviceBuffer, PinnedArena, Stream};
use crate::compute::global::{GlobalReport, GlobalResidual};
use crate::config::LocalOptConfig;
use crate::geometry::{Intrinsics, Sim3, Tangent};
use half::f16;
use nalgebra::Vector3;

/// Steps of a solve.
const ITERATIONS: usize = 10;
/// Bytes of a match in a linearisation, index and quality, and of a point, read once for all of its
/// keyframe's edges.
const MATCH_BYTES: u64 = 8;
/// See [`MATCH_BYTES`].
const POINT_BYTES: u64 = 12;
/// Bytes of a pixel of an edge and of a keyframe when gates are tested, once a solve.
const GATE_BYTES: u64 = 9;
/// See [`GATE_BYTES`].
const MASK_BYTES: u64 = 14;
/// Operations on a match's rays; here a multiplication with an addition is one, as the kernel fuses them.
const OPERATIONS: u64 = 145;
/// Those of its cost alone.
const COST_OPERATIONS: u64 = 44;

/// What is timed.
#[derive(Debug, Clone, Copy)]
struct Size {
    /// Keyframes in a chain, with loops back over two and more.
    keyframes: usize,
    /// Edges, of two directions each.
    edges: usize,
    /// Fraction of pixels that are matched.
    matched: f64,
    target: Option<f64>,
}

const ALL: Size = Size {
    keyframes: 10,
    edges: 10,
    matched: 1.0,
    target: Some(1.0),
};

/// 10 keyframes, 20 directed edges.
pub fn small(setup: &Setup<'_>) -> Result<Box<dyn Stage>, CliError> {
    stage(setup, ALL)
}

/// 50 keyframes, 150 directed edges.
pub fn medium(setup: &Setup<'_>) -> Result<Box<dyn Stage>, CliError> {
    let size = Size {
        keyframes: 50,
        edges: 75,
        target: Some(3.5),
        ..ALL
    };
    stage(setup, size)
}

const LARGE: Size = Size {
    keyframes: 200,
    edges: 300,
    target: Some(14.0),
    ..ALL
};

/// 200 keyframes, 600 directed edges.
pub fn large(setup: &Setup<'_>) -> Result<Box<dyn Stage>, CliError> {
    stage(setup, LARGE)
}

/// The same with half of the pixels matched, as real ones are.
pub fn large_half(setup: &Setup<'_>) -> Result<Box<dyn Stage>, CliError> {
    let size = Size {
        matched: 0.5,
        target: None,
        ..LARGE
    };
    stage(setup, size)
}

/// Different pointmaps: keyframes share the contents, not the memory.
const VIEWS: usize = 8;

struct Content {
    pose: Sim3,
    points: Vec<f32>,
    /// Of each point of the room, its pixel.
    order: Vec<u32>,
}

fn tangent(random: &mut Random, limit: f64) -> Tangent {
    Tangent::from_fn(|_, _| (2.0 * random.uniform() - 1.0) * limit)
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
        let pose = Sim3::exp(&tangent(&mut random, 0.15));
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

/// One direction: the pixels of the same point of the room in both orders.
fn matched(
    stream: &Stream,
    device: &mut DeviceArena,
    (to, from): (&[u32], &[u32]),
    fraction: f64,
    random: &mut Random,
) -> Result<Matches, CudaError> {
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

/// A graph on the device. Memory is allocated for it alone.
struct GraphStage {
    size: Size,
    image: (usize, usize),
    solver: DeviceGlobalSolver,
    maps: Vec<(DeviceBuffer<f32>, DeviceBuffer<f16>, Sim3)>,
    links: Vec<(usize, usize)>,
    matches: Vec<Matches>,
    report: GlobalReport,
}

fn stage(setup: &Setup<'_>, size: Size) -> Result<Box<dyn Stage>, CliError> {
    let (context, stream) = (setup.context, &setup.bench.stream);
    let (width, height) = (setup.scene.width, setup.scene.height);
    let pixels = width * height;
    let links = chain(size.keyframes, size.edges);
    let capacity = GlobalCapacity {
        pixels,
        keyframes: size.keyframes,
        edges: links.len(),
    };
    let n = pixels as u64;
    let bytes = planned(&capacity.device_buffers())
        + size.keyframes as u64 * room(&[12 * n, 2 * n])
        + 2 * links.len() as u64 * room(&[4 * n, n, 4 * n]);
    let mut device = DeviceArena::new(context, WHAT, bytes)?;
    let mut pinned = PinnedArena::new(context, planned(&capacity.pinned_buffers()))?;
    let solver = DeviceGlobalSolver::new(context, &mut device, &mut pinned, capacity);
    let solver = solver.map_err(of_device)?;

    let contents = contents(width, height);
    let mut random = Random(11);
    let confidence = vec![f16::from_f32(2.0); pixels];
    let mut maps = Vec::with_capacity(size.keyframes);
    for (k, content) in contents.iter().cycle().take(size.keyframes).enumerate() {
        let points: DeviceBuffer<f32> = device.carve("points", 3 * pixels)?;
        let sure: DeviceBuffer<f16> = device.carve("confidences", pixels)?;
        stream.write(&content.points, points.all())?;
        stream.write(&confidence, sure.all())?;
        let start = match k {
            0 => content.pose,
            _ => content.pose.retract(&tangent(&mut random, 0.01)),
        };
        maps.push((points, sure, start));
    }
    let mut matches = Vec::with_capacity(2 * links.len());
    for &(i, j) in &links {
        for (to, from) in [(i, j), (j, i)] {
            let orders = (&*contents[to % VIEWS].order, &*contents[from % VIEWS].order);
            let made = matched(stream, &mut device, orders, size.matched, &mut random)?;
            matches.push(made);
        }
    }
    Ok(Box::new(GraphStage {
        size,
        image: (width, height),
        solver,
        maps,
        links,
        matches,
        report: GlobalReport::default(),
    }))
}

/// What is not the device's own failure cannot be: the graph is a good one.
fn of_device(error: GlobalError) -> CudaError {
    match error {
        GlobalError::Cuda(error) => error,
        other => CudaError::Failed {
            doing: "solving the bench's graph",
            code: 0,
            status: other.to_string(),
        },
    }
}

impl GraphStage {
    fn with<T>(
        &mut self,
        work: impl FnOnce(
            &mut DeviceGlobalSolver,
            &DeviceProblem<'_>,
            &LocalOptConfig,
        ) -> Result<T, GlobalError>,
    ) -> Result<T, CudaError> {
        let keyframes: Vec<_> = self
            .maps
            .iter()
            .map(|(points, confidence, start)| DeviceKeyframe {
                points: points.all(),
                confidence: confidence.all(),
                world_from_camera: *start,
            })
            .collect();
        let edges: Vec<_> = self
            .links
            .iter()
            .zip(self.matches.chunks_exact(2))
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
            width: self.image.0,
            height: self.image.1,
        };
        // All iterations, whatever they bring.
        let params = LocalOptConfig {
            max_iters: ITERATIONS,
            rel_error: f64::NEG_INFINITY,
            delta_norm: 0.0,
            ..LocalOptConfig::default()
        };
        work(&mut self.solver, &problem, &params).map_err(of_device)
    }
}

impl Stage for GraphStage {
    fn name(&self) -> String {
        let (k, e) = (self.size.keyframes, 2 * self.size.edges);
        let matched = 100.0 * self.size.matched;
        format!("global GN {k}/{e}, {ITERATIONS} it, {matched:.0} %")
    }

    fn work(&self) -> Work {
        let pixels = (self.image.0 * self.image.1) as u64;
        let (keyframes, directed) = (self.maps.len() as u64, self.matches.len() as u64);
        let matches = (self.size.matched * (directed * pixels) as f64) as u64;
        // One linearisation before the first step and one after each, the last of the cost alone.
        let linearisations = ITERATIONS as u64 + 1;
        let streamed = MATCH_BYTES * matches + POINT_BYTES * keyframes * pixels;
        let gates = (GATE_BYTES * directed + MASK_BYTES * keyframes) * pixels;
        Work {
            bytes: linearisations * streamed + gates,
            operations: (ITERATIONS as u64 * OPERATIONS + COST_OPERATIONS) * matches,
        }
    }

    fn target(&self) -> Option<f64> {
        self.size.target
    }

    fn host_driven(&self) -> bool {
        true
    }

    fn enqueue(&mut self, stream: &Stream) -> Result<(), CudaError> {
        let mut poses = vec![Sim3::identity(); self.maps.len()];
        self.report =
            self.with(|solver, problem, params| solver.solve(stream, problem, params, &mut poses))?;
        Ok(())
    }

    fn outcome(&mut self, stream: &Stream) -> Result<String, CudaError> {
        let report = self.report;
        let times: StageTimes =
            self.with(|solver, problem, params| solver.time_stages(stream, problem, params, 20))?;
        let rate = times.matches as f64 / f64::from(times.sums_ms) * 1e-6;
        Ok(format!(
            "{} iterations, {} steps refused, cost {:.3e} to {:.3e}; us: mask {:.1}, gate {:.1}, relate {:.1}, \
             sums {:.1} ({rate:.0} G matches/s), of the cost alone {:.1}, reduce {:.1}; a linearisation with its wait {:.1}",
            report.iterations,
            report.rejected_steps,
            report.initial_cost,
            report.final_cost,
            times.mask_ms * 1e3,
            times.gate_ms * 1e3,
            times.relate_ms * 1e3,
            times.sums_ms * 1e3,
            times.costs_ms * 1e3,
            times.reduce_ms * 1e3,
            times.round_trip_ms * 1e3,
        ))
    }
}
