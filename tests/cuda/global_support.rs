//! Graphs on the host and their copies on the device, for the tests of the global solve.

use half::f16;
use mast3r_slam::compute::cuda::global::{
    DeviceEdge, DeviceGlobalSolver, DeviceKeyframe, DeviceMatches, DeviceProblem, GlobalBuffers,
    GlobalCapacity, GlobalError,
};
use mast3r_slam::compute::global::{
    EdgeEquations, GlobalReport, GlobalResidual, GlobalSolver, Keyframe, MetricPrior, PoseFactor,
    Priors, ScalePrior, Wanted,
};
use mast3r_slam::config::GlobalOptConfig;
use mast3r_slam::geometry::{Sim3, Tangent};
use mast3r_slam::gpu::{Context, DeviceBuffer, Priority, Stream};
use testkit::solver_scene::{Graph, Random, intrinsics};

/// A graph on the host, with a confidence for each keyframe's pixels, and its copy on the device.
pub struct Case {
    pub graph: Graph,
    pub confidence: Vec<Vec<f32>>,
    pub residual: GlobalResidual,
    pub factors: Vec<PoseFactor>,
    pub scales: Vec<ScalePrior>,
    pub motions: Vec<MetricPrior>,
    pub params: GlobalOptConfig,
}

impl Case {
    /// Qualities are rounded to what the device stores, for both devices.
    pub fn new(mut graph: Graph, residual: GlobalResidual) -> Self {
        for m in &mut graph.matches {
            for quality in m.quality_i.iter_mut().chain(&mut m.quality_j) {
                *quality = f16::from_f32(*quality).to_f32();
            }
        }
        Self {
            confidence: vec![graph.confidence.clone(); graph.truth.len()],
            graph,
            residual,
            factors: Vec::new(),
            scales: Vec::new(),
            motions: Vec::new(),
            params: GlobalOptConfig::default(),
        }
    }

    pub fn size(&self) -> (usize, usize) {
        (self.graph.width, self.graph.height)
    }

    pub fn capacity(&self) -> GlobalCapacity {
        GlobalCapacity {
            pixels: self.graph.width * self.graph.height,
            keyframes: self.graph.truth.len(),
            edges: self.graph.matches.len(),
        }
    }

    pub fn keyframes(&self) -> Vec<Keyframe<'_>> {
        let mut keyframes = self.graph.keyframes();
        for (keyframe, confidence) in keyframes.iter_mut().zip(&self.confidence) {
            keyframe.confidence = confidence;
        }
        keyframes
    }

    /// The priors; they free the scale of the first keyframe.
    pub fn priors(&self) -> Priors<'_> {
        Priors {
            scales: &self.scales,
            motions: &self.motions,
            frees_pinned_scales: true,
        }
    }

    pub fn on_cpu(&self) -> Result<(Vec<Sim3>, GlobalReport), String> {
        let mut poses = self.graph.truth.clone();
        let (w, h) = self.size();
        let solved = GlobalSolver::new().solve(
            &self.keyframes(),
            &self.graph.edges(),
            &self.factors,
            self.priors(),
            self.residual,
            w,
            h,
            &self.params,
            &mut poses,
        );
        match solved {
            Ok(report) => Ok((poses, report)),
            Err(error) => Err(error.to_string()),
        }
    }

    pub fn equations_on_cpu(&self, keyframes: &[Keyframe<'_>]) -> Vec<EdgeEquations> {
        let (w, h) = self.size();
        GlobalSolver::new()
            .equations(
                keyframes,
                &self.graph.edges(),
                self.residual,
                w,
                h,
                &self.params,
            )
            .unwrap()
    }

    /// What a residual of ours is off by, whitened, at most: 2⁻²² of what it is the difference of (four
    /// roundings of f32, of a unit ray, a distance, a pixel or a point), by its σ, and by the root of the
    /// largest quality, 2.6.
    pub fn whitened_error(&self) -> f64 {
        let (size, sigma) = match self.residual {
            GlobalResidual::Rays => (1.0, self.params.sigma_ray),
            GlobalResidual::Points => (8.0, self.params.sigma_point),
            GlobalResidual::Calibrated(_) => (self.graph.width as f64, self.params.sigma_pixel),
        };
        2.6_f64.sqrt() * size / sigma / f64::from(1 << 22)
    }
}

/// Values that binary16 holds.
fn exact(values: &[f32]) -> Vec<f16> {
    let half: Vec<f16> = values.iter().map(|&v| f16::from_f32(v)).collect();
    for (v, h) in values.iter().zip(&half) {
        assert_eq!(v.to_bits(), h.to_f32().to_bits(), "f16 holds {v}");
    }
    half
}

struct Matches {
    /// Elements in front of the first: with one, no vector starts at it.
    skipped: usize,
    index: DeviceBuffer<u32>,
    quality: DeviceBuffer<f16>,
}

impl Matches {
    pub fn view(&self) -> DeviceMatches<'_> {
        let range = self.skipped..self.index.len();
        DeviceMatches {
            index: self.index.slice(range.clone()).unwrap(),
            quality: self.quality.slice(range).unwrap(),
        }
    }
}

/// A case's arrays on the device and a solver for it.
pub struct OnDevice {
    stream: Stream,
    solver: DeviceGlobalSolver,
    keyframes: Vec<(DeviceBuffer<f32>, DeviceBuffer<f16>)>,
    matches: Vec<(Matches, Matches)>,
}

impl OnDevice {
    pub fn new(context: &Context, case: &Case, capacity: GlobalCapacity) -> Self {
        let stream = context.stream(Priority::Low).unwrap();
        let pixels = case.graph.width * case.graph.height;
        let buffers = crate::carve(context, |c| GlobalBuffers::carve(c, capacity));
        let solver = DeviceGlobalSolver::new(context, buffers).unwrap();
        let mut keyframes = Vec::new();
        for (points, confidence) in case.graph.points.iter().zip(&case.confidence) {
            let to = crate::buffer(context, points.len());
            stream.write(points, to.all()).unwrap();
            let half = exact(confidence);
            let sure = crate::buffer(context, half.len());
            stream.write(&half, sure.all()).unwrap();
            keyframes.push((to, sure));
        }
        let put = |index: &[u32], quality: &[f32]| {
            // Images of whole vectors and others are met with and without.
            let skipped = pixels / 4 % 2;
            let room = skipped + pixels;
            let matches = Matches {
                skipped,
                index: crate::buffer(context, room),
                quality: crate::buffer(context, room),
            };
            let view = matches.view();
            stream.write(index, view.index).unwrap();
            stream.write(&exact(quality), view.quality).unwrap();
            matches
        };
        let matches = case.graph.matches.iter().map(|m| {
            (
                put(&m.index_i_from_j, &m.quality_j),
                put(&m.index_j_from_i, &m.quality_i),
            )
        });
        let matches = matches.collect();
        Self {
            stream,
            solver,
            keyframes,
            matches,
        }
    }

    pub fn with<T>(
        &mut self,
        case: &Case,
        work: impl FnOnce(&mut DeviceGlobalSolver, &Stream, &DeviceProblem<'_>) -> T,
    ) -> T {
        let keyframes: Vec<_> = self
            .keyframes
            .iter()
            .zip(&case.graph.start)
            .map(|((points, confidence), start)| DeviceKeyframe {
                points: points.all(),
                confidence: confidence.all(),
                world_from_camera: *start,
            })
            .collect();
        let edges: Vec<_> = case
            .graph
            .matches
            .iter()
            .zip(&self.matches)
            .map(|(m, (i_from_j, j_from_i))| DeviceEdge {
                i: m.i,
                j: m.j,
                i_from_j: i_from_j.view(),
                j_from_i: j_from_i.view(),
            })
            .collect();
        let problem = DeviceProblem {
            keyframes: &keyframes,
            edges: &edges,
            factors: &case.factors,
            priors: case.priors(),
            residual: case.residual,
            width: case.graph.width,
            height: case.graph.height,
        };
        work(&mut self.solver, &self.stream, &problem)
    }

    pub fn solve(&mut self, case: &Case) -> Result<(Vec<Sim3>, GlobalReport), String> {
        // What is in it is not read, and stays where there is an error.
        let before = vec![Sim3::exp(&Tangent::repeat(0.3)); case.graph.truth.len()];
        let mut poses = before.clone();
        let solved = self.with(case, |solver, stream, problem| {
            solver.solve(stream, problem, &case.params, &mut poses)
        });
        match solved {
            Ok(report) => Ok((poses, report)),
            Err(error) => {
                assert_eq!(bits(&poses), bits(&before), "{error}");
                Err(error.to_string())
            }
        }
    }

    pub fn equations(
        &mut self,
        case: &Case,
        wanted: Wanted,
    ) -> Result<Vec<EdgeEquations>, GlobalError> {
        self.with(case, |solver, stream, problem| {
            solver.equations(stream, problem, &case.params, wanted)
        })
    }
}

pub fn bits(poses: &[Sim3]) -> Vec<[u64; 8]> {
    let of = |p: &Sim3| p.to_array().map(f64::to_bits);
    poses.iter().map(of).collect()
}

/// Residuals at an image size.
pub fn residuals((width, height): (usize, usize)) -> [GlobalResidual; 3] {
    [
        GlobalResidual::Rays,
        GlobalResidual::Calibrated(intrinsics(width, height)),
        GlobalResidual::Points,
    ]
}

/// Everything that a match can be refused for, with another fraction of matches for each direction.
pub fn spoilt(mut graph: Graph, seed: u64) -> (Graph, Vec<Vec<f32>>) {
    let mut random = Random(seed);
    let count = graph.width * graph.height;
    for points in &mut graph.points {
        for p in points.chunks_exact_mut(3) {
            for v in p.iter_mut() {
                *v *= 1.0 + (0.005 * random.normal()) as f32;
            }
            if random.uniform() < 0.02 {
                let bad = [f32::NAN, f32::INFINITY, 0.0, 1e-9, 1e9, -1.0];
                p[(random.uniform() * 3.0) as usize] = bad[(random.uniform() * 6.0) as usize];
            }
            if random.uniform() < 0.01 {
                p.fill([0.0, f32::NAN, 1e-9, 1e12][(random.uniform() * 4.0) as usize]);
            }
        }
    }
    let confidence = (0..graph.truth.len()).map(|_| {
        let each = (0..count).map(|_| match (random.uniform() * 12.0) as usize {
            0 => 0.25,
            1 => 0.0,
            2 => f32::NAN,
            _ => f16::from_f64(0.26 + random.uniform()).to_f32(),
        });
        each.collect()
    });
    let confidence = confidence.collect();
    let fractions = [1.0, 0.97, 0.6, 0.3, 0.05, 0.0, 0.9];
    for (e, m) in graph.matches.iter_mut().enumerate() {
        let sides = [
            (&mut m.index_i_from_j, &mut m.quality_j),
            (&mut m.index_j_from_i, &mut m.quality_i),
        ];
        for (side, (index, quality)) in sides.into_iter().enumerate() {
            let fraction = fractions[(2 * e + side) % fractions.len()];
            for n in 0..count {
                let matched = random.uniform() < fraction;
                if random.uniform() < 0.05 {
                    index[n] = (random.uniform() * count as f64) as u32;
                }
                if random.uniform() < 0.02 {
                    // The last is below the normal range of binary16.
                    let odd = [f32::NAN, f32::INFINITY, 0.0, 1.5, -2.0, 6e-6];
                    quality[n] = odd[(random.uniform() * 6.0) as usize];
                }
                if !matched {
                    quality[n] = 0.0;
                }
                // Refused before its target is read.
                let wanted = quality[n] > GlobalOptConfig::default().q_conf;
                if !wanted && random.uniform() < 0.1 {
                    index[n] = u32::MAX - n as u32;
                }
            }
        }
    }
    (graph, confidence)
}

pub fn spoilt_case(size: (usize, usize), residual: GlobalResidual, seed: u64) -> Case {
    let links = [(0, 1), (2, 1), (2, 3), (3, 0), (1, 3)];
    let graph = Graph::new(size.0, size.1, 4, &links, 0.03);
    let (graph, confidence) = spoilt(graph, seed);
    let mut case = Case::new(graph, residual);
    case.confidence = confidence;
    case.params.c_conf = 0.25;
    case
}
