//! The global solve, on a room seen by every keyframe and matched pixel by pixel.

use super::Setup;
use super::measure::{Stage, Work};
use super::scene::Random;
use crate::cli::CliError;
use crate::compute::cuda::global::{
    DeviceEdge, DeviceGlobalSolver, DeviceKeyframe, DeviceMatches, DeviceProblem, GlobalBuffers,
    GlobalCapacity, GlobalError,
};
use crate::compute::global::{GlobalReport, GlobalResidual, Priors};
use crate::config::GlobalOptConfig;
use crate::geometry::{Intrinsics, Sim3, Tangent};
use crate::gpu::plan::Group;
use crate::gpu::{CudaError, DeviceBuffer, Stream};
use half::f16;
use nalgebra::Vector3;

/// Steps of a solve.
const ITERATIONS: usize = 10;
/// Bytes of a match in a linearisation, index and quality, and of a point, read once for all of its
/// keyframe's edges.
const MATCH_BYTES: u64 = 6;
/// See [`MATCH_BYTES`].
const POINT_BYTES: u64 = 12;
/// Bytes of a pixel of an edge and of a keyframe when gates are tested, once a solve.
const GATE_BYTES: u64 = 6;
/// See [`GATE_BYTES`].
const MASK_BYTES: u64 = 14;
/// Operations on a match's rays; here a multiplication with an addition is one, as the kernel fuses them.
const OPERATIONS: u64 = 145;
/// Those of its cost alone.
const COST_OPERATIONS: u64 = 44;

/// Size of the timed problem.
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
    /// Pixel of each point of the room.
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
    quality: DeviceBuffer<f16>,
}

impl Matches {
    fn view(&self) -> DeviceMatches<'_> {
        DeviceMatches {
            index: self.index.all(),
            quality: self.quality.all(),
        }
    }
}

/// One direction: the pixels of the same point of the room in both orders.
fn matched(
    setup: &Setup<'_>,
    (to, from): (&[u32], &[u32]),
    fraction: f64,
    random: &mut Random,
) -> Result<Matches, CudaError> {
    let pixels = to.len();
    let mut index = vec![0; pixels];
    for (&m, &n) in to.iter().zip(from) {
        index[n as usize] = m;
    }
    let quality: Vec<f16> = (0..pixels)
        .map(|_| match random.uniform() < fraction {
            true => f16::from_f64(1.6 + random.uniform()),
            false => f16::ZERO,
        })
        .collect();
    Ok(Matches {
        index: setup.send("matches", &index)?,
        quality: setup.send("qualities", &quality)?,
    })
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
    let (width, height) = (setup.scene.width, setup.scene.height);
    let pixels = width * height;
    let links = chain(size.keyframes, size.edges);
    let capacity = GlobalCapacity {
        pixels,
        keyframes: size.keyframes,
        edges: links.len(),
    };
    let mut carving = setup.carving();
    let buffers = GlobalBuffers::carve(&mut carving.part(Group::Mapping, "bench"), capacity)?;
    let solver = DeviceGlobalSolver::new(setup.context, buffers);
    let solver = solver.map_err(of_device)?;

    let contents = contents(width, height);
    let mut random = Random(11);
    let confidence = vec![f16::from_f32(2.0); pixels];
    let mut maps = Vec::with_capacity(size.keyframes);
    for (k, content) in contents.iter().cycle().take(size.keyframes).enumerate() {
        let points = setup.send("points", &content.points)?;
        let sure = setup.send("confidences", &confidence)?;
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
            let made = matched(setup, orders, size.matched, &mut random)?;
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

/// Extracts the device error. Other errors cannot occur, because the graph is valid.
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
            &GlobalOptConfig,
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
            factors: &[],
            priors: Priors::default(),
            residual: GlobalResidual::Rays,
            width: self.image.0,
            height: self.image.1,
        };
        // All iterations, whatever they bring.
        let params = GlobalOptConfig {
            max_iters: ITERATIONS,
            rel_error: f64::NEG_INFINITY,
            delta_norm: 0.0,
            ..GlobalOptConfig::default()
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

    fn outcome(&mut self, _: &Stream) -> Result<String, CudaError> {
        let report = self.report;
        Ok(format!(
            "{} iterations, {} steps refused, cost {:.3e} to {:.3e}",
            report.iterations, report.rejected_steps, report.initial_cost, report.final_cost,
        ))
    }
}
