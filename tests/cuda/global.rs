//! The global solve on the device, against the CPU's.

use crate::cuda;
use crate::tracking_common::{self, Graph, Random, distance, intrinsics};
use half::f16;
use mast3r_slam::compute::cuda::global::{
    DeviceEdge, DeviceGlobalSolver, DeviceKeyframe, DeviceMatches, DeviceProblem, GlobalCapacity,
    GlobalError, bench,
};
use mast3r_slam::compute::cuda::{
    Context, DeviceArena, DeviceBuffer, PinnedArena, Priority, Stream, allocations,
};
use mast3r_slam::compute::global::{
    EdgeEquations, GlobalReport, GlobalResidual, GlobalSolver, Keyframe, PosePrior,
};
use mast3r_slam::compute::plan::Spec;
use mast3r_slam::config::LocalOptConfig;
use mast3r_slam::geometry::{Sim3, Tangent};

/// A graph on the host, with a confidence for each keyframe's pixels, and its copy on the device.
struct Case {
    graph: Graph,
    confidence: Vec<Vec<f32>>,
    residual: GlobalResidual,
    priors: Vec<PosePrior>,
    params: LocalOptConfig,
}

impl Case {
    fn new(graph: Graph, residual: GlobalResidual) -> Self {
        Self {
            confidence: vec![graph.confidence.clone(); graph.truth.len()],
            graph,
            residual,
            priors: Vec::new(),
            params: LocalOptConfig::default(),
        }
    }

    fn size(&self) -> (usize, usize) {
        (self.graph.width, self.graph.height)
    }

    fn capacity(&self) -> GlobalCapacity {
        GlobalCapacity {
            pixels: self.graph.width * self.graph.height,
            keyframes: self.graph.truth.len(),
            edges: self.graph.matches.len(),
        }
    }

    fn keyframes(&self) -> Vec<Keyframe<'_>> {
        let mut keyframes = self.graph.keyframes();
        for (keyframe, confidence) in keyframes.iter_mut().zip(&self.confidence) {
            keyframe.confidence = confidence;
        }
        keyframes
    }

    fn on_cpu(&self) -> Result<(Vec<Sim3>, GlobalReport), String> {
        let mut poses = self.graph.truth.clone();
        let (w, h) = self.size();
        let solved = GlobalSolver::new().solve(
            &self.keyframes(),
            &self.graph.edges(),
            &self.priors,
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

    fn equations_on_cpu(&self, keyframes: &[Keyframe<'_>]) -> Vec<EdgeEquations> {
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
    fn whitened_error(&self) -> f64 {
        let (size, sigma) = match self.residual {
            GlobalResidual::Rays => (1.0, self.params.sigma_ray),
            GlobalResidual::Points => (8.0, self.params.sigma_point),
            GlobalResidual::Calibrated(_) => (self.graph.width as f64, self.params.sigma_pixel),
        };
        2.6_f64.sqrt() * size / sigma / f64::from(1 << 22)
    }
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

/// A case's arrays on the device and a solver for it.
struct OnDevice {
    stream: Stream,
    solver: DeviceGlobalSolver,
    keyframes: Vec<(DeviceBuffer<f32>, DeviceBuffer<f16>)>,
    matches: Vec<(Matches, Matches)>,
}

impl OnDevice {
    fn new(context: &Context, case: &Case, capacity: GlobalCapacity) -> Self {
        let stream = context.stream(Priority::Low).unwrap();
        let padded = |buffers: Vec<Spec>| buffers.iter().map(|b| b.bytes() + 256).sum::<u64>();
        let pixels = case.graph.width * case.graph.height;
        let keyframe = 14 * pixels as u64 + 512;
        let edge = 18 * pixels as u64 + 1536;
        let bytes = padded(capacity.device_buffers())
            + keyframe * case.graph.truth.len() as u64
            + edge * case.graph.matches.len() as u64;
        let mut device = DeviceArena::new(context, "test", bytes).unwrap();
        let mut pinned = PinnedArena::new(context, padded(capacity.pinned_buffers())).unwrap();
        let solver = DeviceGlobalSolver::new(context, &mut device, &mut pinned, capacity).unwrap();
        let mut keyframes = Vec::new();
        for (points, confidence) in case.graph.points.iter().zip(&case.confidence) {
            let to = device.carve("points", points.len()).unwrap();
            stream.write(points, to.all()).unwrap();
            let half: Vec<f16> = confidence.iter().map(|&c| f16::from_f32(c)).collect();
            for (c, h) in confidence.iter().zip(&half) {
                assert_eq!(c.to_bits(), h.to_f32().to_bits(), "confidences are f16");
            }
            let sure = device.carve("confidence", half.len()).unwrap();
            stream.write(&half, sure.all()).unwrap();
            keyframes.push((to, sure));
        }
        let mut put = |index: &[u32], valid: &[u8], quality: &[f32]| {
            let matches = Matches {
                index: device.carve("index", index.len()).unwrap(),
                valid: device.carve("valid", valid.len()).unwrap(),
                quality: device.carve("quality", quality.len()).unwrap(),
            };
            stream.write(index, matches.index.all()).unwrap();
            stream.write(valid, matches.valid.all()).unwrap();
            stream.write(quality, matches.quality.all()).unwrap();
            matches
        };
        let matches = case.graph.matches.iter().map(|m| {
            (
                put(&m.index_i_from_j, &m.valid_j, &m.quality_j),
                put(&m.index_j_from_i, &m.valid_i, &m.quality_i),
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

    fn with<T>(
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
            priors: &case.priors,
            residual: case.residual,
            width: case.graph.width,
            height: case.graph.height,
        };
        work(&mut self.solver, &self.stream, &problem)
    }

    fn solve(&mut self, case: &Case) -> Result<(Vec<Sim3>, GlobalReport), String> {
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

    fn equations(&mut self, case: &Case) -> Result<Vec<EdgeEquations>, GlobalError> {
        self.with(case, |solver, stream, problem| {
            solver.equations(stream, problem, &case.params)
        })
    }
}

fn bits(poses: &[Sim3]) -> Vec<[u64; 8]> {
    let of = |p: &Sim3| p.to_array().map(f64::to_bits);
    poses.iter().map(of).collect()
}

/// Residuals at an image size.
fn residuals((width, height): (usize, usize)) -> [GlobalResidual; 3] {
    [
        GlobalResidual::Rays,
        GlobalResidual::Calibrated(intrinsics(width, height)),
        GlobalResidual::Points,
    ]
}

/// Everything that a match can be refused for, with another fraction of matches for each direction.
fn spoilt(mut graph: Graph, seed: u64) -> (Graph, Vec<Vec<f32>>) {
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
            (&mut m.index_i_from_j, &mut m.valid_j, &mut m.quality_j),
            (&mut m.index_j_from_i, &mut m.valid_i, &mut m.quality_i),
        ];
        for (side, (index, valid, quality)) in sides.into_iter().enumerate() {
            let fraction = fractions[(2 * e + side) % fractions.len()];
            for n in 0..count {
                valid[n] = u8::from(random.uniform() < fraction) * (1 + n as u8 % 200);
                if random.uniform() < 0.05 {
                    index[n] = (random.uniform() * count as f64) as u32;
                }
                if random.uniform() < 0.02 {
                    let odd = [f32::NAN, f32::INFINITY, 0.0, 1.5, -2.0];
                    quality[n] = odd[(random.uniform() * 5.0) as usize];
                }
                // Refused before anybody looks at where it points.
                if valid[n] == 0 && random.uniform() < 0.1 {
                    index[n] = u32::MAX - n as u32;
                }
            }
        }
    }
    (graph, confidence)
}

fn spoilt_case(size: (usize, usize), residual: GlobalResidual, seed: u64) -> Case {
    let links = [(0, 1), (2, 1), (2, 3), (3, 0), (1, 3)];
    let graph = Graph::new(size.0, size.1, 4, &links, 0.03);
    let (graph, confidence) = spoilt(graph, seed);
    let mut case = Case::new(graph, residual);
    case.confidence = confidence;
    case.params.c_conf = 0.25;
    case
}

/// Entries of `H`, `g` and the cost against bounds that follow from the errors of f32.
fn compare_equations(what: &str, case: &Case, found: &[EdgeEquations], expected: &[EdgeEquations]) {
    let error = case.whitened_error();
    // Sums of 32 matches of a lane, then trees of 5 and 2 levels, and ten roundings of a product; weights
    // beyond Huber's constant follow the residual.
    let relative = 49.0 / f64::from(1 << 24) + error;
    let mut worst = [0.0_f64; 3];
    for (e, (f, x)) in found.iter().zip(expected).enumerate() {
        let at = format!("{what}, edge {e}, {} matches", x.matches);
        // Whether a projection is inside the image is rounded: 1e-4 pixels at the border.
        let allowed = match case.residual {
            GlobalResidual::Calibrated(_) => 2 + x.matches / 500_000,
            _ => 0,
        };
        let off = f.matches.abs_diff(x.matches);
        assert!(off <= allowed, "{at}: {} matches", f.matches);
        let share = off as f64 / x.matches.max(1) as f64;
        let rows = (4 * x.matches) as f64;
        let moved = error * rows.sqrt() + (relative + 30.0 * share) * (2.0 * x.robust).sqrt();
        let mut check = |k: usize, name: String, f: f64, x: f64, bound: f64| {
            worst[k] = worst[k].max((f - x).abs() / bound.max(f64::MIN_POSITIVE));
            assert!(
                (f - x).abs() <= bound,
                "{at}: {name} {f:e}, expected {x:e}, bound {bound:e}"
            );
        };
        for r in 0..7 {
            let scale = x.hessian[(r, r)].sqrt();
            for c in 0..7 {
                // A match's share of H is at most thirty times the average: near points weigh more.
                let bound = (relative + 30.0 * share) * scale * x.hessian[(c, c)].sqrt();
                let (f, x) = (f.hessian[(r, c)], x.hessian[(r, c)]);
                check(0, format!("H({r}, {c})"), f, x, bound);
            }
            // Cauchy-Schwarz of rows and errors of the residuals.
            check(
                1,
                format!("g({r})"),
                f.gradient[r],
                x.gradient[r],
                moved * scale,
            );
        }
        let bound = error * (2.0 * x.robust * rows).sqrt()
            + error * error * rows
            + (relative + 30.0 * share) * x.robust;
        check(2, "cost".into(), f.robust, x.robust, bound);
    }
    let [h, g, cost] = worst;
    eprintln!("{what}: of the bounds H {h:.1e}, g {g:.1e}, cost {cost:.1e}");
}

#[test]
fn equations_are_the_cpus() {
    let Some(gpu) = cuda() else { return };
    // N of no multiple, of one block exactly, of less than a word, of a word and one; one row, one column.
    let sizes = [
        (53, 41),
        (64, 64),
        (97, 89),
        (5, 4),
        (11, 3),
        (67, 1),
        (1, 1),
        (130, 127),
    ];
    for size in sizes {
        for residual in residuals(size) {
            let case = spoilt_case(size, residual, 3);
            let mut device = OnDevice::new(&gpu, &case, case.capacity());
            let found = device.equations(&case).unwrap();
            let expected = case.equations_on_cpu(&case.keyframes());
            let what = format!("{size:?} {residual:?}");
            assert_eq!(found.len(), expected.len(), "{what}");
            compare_equations(&what, &case, &found, &expected);
        }
    }
}

#[test]
fn equations_of_whole_images_are_the_cpus() {
    let Some(gpu) = cuda() else { return };
    let size = (512, 384);
    for residual in residuals(size) {
        let case = spoilt_case(size, residual, 5);
        let mut device = OnDevice::new(&gpu, &case, case.capacity());
        let found = device.equations(&case).unwrap();
        let expected = case.equations_on_cpu(&case.keyframes());
        compare_equations(&format!("{size:?} {residual:?}"), &case, &found, &expected);
    }
}

/// Whether two solutions are the same but for what f32 can tell: by how much, in whitened residuals, the
/// edges of one are strained in the other. `Σ δᵀHδ` over edges is that squared.
fn compare_solutions(what: &str, case: &Case, found: &[Sim3], expected: &[Sim3], cost: f64) {
    let mut keyframes = case.keyframes();
    for (keyframe, pose) in keyframes.iter_mut().zip(expected) {
        keyframe.world_from_camera = *pose;
    }
    let equations = case.equations_on_cpu(&keyframes);
    let delta: Vec<Tangent> = found
        .iter()
        .zip(expected)
        .map(|(f, x)| (*f * x.inverse()).log())
        .collect();
    let strained = case.graph.matches.iter().zip(&equations).map(|(m, e)| {
        let d = delta[m.j] - delta[m.i];
        (e.hessian * d).dot(&d)
    });
    let strain: f64 = strained.sum();
    let rows: f64 = equations.iter().map(|e| 4.0 * e.matches as f64).sum();
    let error = case.whitened_error();
    // What errors of residuals move (at most all of them the same way), and what is left when steps no
    // longer show in a cost that is known to its rounding: the solver's own figure, of quality 9.
    let own = 3.0 / 2.6_f64.sqrt() * error;
    let left = 2.0 * (4.0 * own * (2.0 * cost).sqrt() + 2.0 * 0.25 * rows * own * own);
    let bound = error * error * rows + left;
    let far = found.iter().zip(expected).map(|(f, x)| distance(f, x));
    let far = far.fold(0.0, f64::max);
    eprintln!("{what}: strain {strain:.2e} of {bound:.2e}, poses differ by {far:.2e}");
    assert!(
        strain <= bound,
        "{what}: {strain:e}, bound {bound:e}, poses {far:e}"
    );
}

fn compare_reports(what: &str, found: &GlobalReport, expected: &GlobalReport) {
    assert_eq!(
        (found.free, found.loose_groups),
        (expected.free, expected.loose_groups),
        "{what}: {found:?} {expected:?}"
    );
    let near = found.matches.abs_diff(expected.matches) <= expected.matches / 1000;
    assert!(near, "{what}: {found:?} {expected:?}");
}

#[test]
fn solutions_are_the_cpus() {
    let Some(gpu) = cuda() else { return };
    for size in [(53, 41), (97, 89)] {
        for residual in residuals(size) {
            for (name, noise, off) in [("exact", 0.0, 0.03), ("noisy", 0.005, 0.05)] {
                let mut graph = Graph::new(size.0, size.1, 8, &Graph::chain(8, 12), off);
                if matches!(residual, GlobalResidual::Calibrated(_)) {
                    // Pixels only fit where cameras stand still: each sees the room from its own place.
                    graph = still(graph, off);
                }
                let mut random = Random(17);
                for v in graph.points.iter_mut().flatten() {
                    *v *= 1.0 + (noise * random.normal()) as f32;
                }
                let mut case = Case::new(graph, residual);
                case.params.max_iters = 40;
                let (expected, on_cpu) = case.on_cpu().unwrap();
                let mut device = OnDevice::new(&gpu, &case, case.capacity());
                let (found, report) = device.solve(&case).unwrap();
                let what = format!("{size:?} {residual:?} {name}");
                eprintln!("{what}: {report:?}\n  CPU {on_cpu:?}");
                compare_reports(&what, &report, &on_cpu);
                assert!(report.converged, "{what}");
                assert!(report.final_cost <= report.initial_cost, "{what}");
                compare_solutions(&what, &case, &found, &expected, on_cpu.final_cost);
                let pinned = bits(&found[..1]) == bits(&case.graph.start[..1]);
                assert!(pinned, "{what}: the first pose moved");
            }
        }
    }
}

/// Every keyframe the same camera: pixels match themselves.
fn still(mut graph: Graph, off: f64) -> Graph {
    let mut random = Random(3);
    let count = graph.width * graph.height;
    let room = tracking_common::flat(&tracking_common::room(graph.width, graph.height));
    for points in &mut graph.points {
        points.clone_from(&room);
    }
    for (k, start) in graph.start.iter_mut().enumerate() {
        let step = random.tangent(if k == 0 { 0.0 } else { off });
        *start = Sim3::identity().retract(&step);
    }
    graph.truth.fill(Sim3::identity());
    for m in &mut graph.matches {
        m.index_i_from_j = (0..count as u32).collect();
        m.index_j_from_i = (0..count as u32).collect();
    }
    graph
}

#[test]
fn a_graph_of_whole_images_is_solved_as_on_the_cpu() {
    let Some(gpu) = cuda() else { return };
    let mut graph = Graph::new(512, 384, 10, &Graph::chain(10, 12), 0.03);
    let mut random = Random(18);
    for v in graph.points.iter_mut().flatten() {
        *v *= 1.0 + (0.004 * random.normal()) as f32;
    }
    let case = Case::new(graph, GlobalResidual::Rays);
    let (expected, on_cpu) = case.on_cpu().unwrap();
    let mut device = OnDevice::new(&gpu, &case, case.capacity());
    let (found, report) = device.solve(&case).unwrap();
    eprintln!("whole images: {report:?}\n  CPU {on_cpu:?}");
    compare_reports("whole images", &report, &on_cpu);
    compare_solutions("whole images", &case, &found, &expected, on_cpu.final_cost);
}

#[test]
fn two_runs_give_the_same_bits_whatever_ran_between() {
    let Some(gpu) = cuda() else { return };
    for residual in residuals((97, 89)) {
        let case = spoilt_case((97, 89), residual, 7);
        let larger = GlobalCapacity {
            pixels: 20_000,
            keyframes: 9,
            edges: 17,
        };
        let mut first = OnDevice::new(&gpu, &case, larger);
        let mut second = OnDevice::new(&gpu, &case, case.capacity());
        let one = first.solve(&case).unwrap();
        let before = allocations();
        let other = first.with(&case, |solver, stream, problem| {
            // Fewer edges and another start leave other numbers in the same memory.
            let mut poses = vec![Sim3::identity(); 4];
            let mut keyframes = problem.keyframes.to_vec();
            keyframes[2].world_from_camera = Sim3::exp(&Tangent::repeat(0.1));
            let problem = DeviceProblem {
                keyframes: &keyframes,
                edges: &problem.edges[1..3],
                ..*problem
            };
            solver.solve(stream, &problem, &case.params, &mut poses)
        });
        other.unwrap();
        let again = first.solve(&case).unwrap();
        assert_eq!(allocations(), before, "nothing is allocated in a solve");
        let elsewhere = second.solve(&case).unwrap();
        for (name, run) in [("again", again), ("elsewhere", elsewhere)] {
            assert_eq!(bits(&one.0), bits(&run.0), "{residual:?} {name}");
            assert_eq!(
                format!("{:?}", one.1),
                format!("{:?}", run.1),
                "{residual:?} {name}"
            );
        }
    }
}

/// Graphs with nothing to solve, in parts or as a whole: what the CPU makes of them.
#[test]
fn degenerate_graphs_end_as_on_the_cpu() {
    let Some(gpu) = cuda() else { return };
    let size = (53, 41);
    let base = || Graph::new(size.0, size.1, 5, &[(0, 1), (1, 2), (0, 2), (3, 4)], 0.05);
    let rays = |graph| Case::new(graph, GlobalResidual::Rays);
    let mut cases: Vec<(&str, Case)> = vec![("two groups and pinned", rays(base()))];

    let mut no_matches = base();
    for m in &mut no_matches.matches {
        m.valid_i.fill(0);
        m.valid_j.fill(0);
    }
    cases.push(("no matches", rays(no_matches)));

    let mut few = base();
    few.matches[3].valid_i.fill(0);
    few.matches[3].valid_j.fill(0);
    few.matches[3].valid_j[100..106].fill(3);
    cases.push(("six matches are no connection", rays(few)));

    for (name, value) in [
        ("NaN points", f32::NAN),
        ("zero points", 0.0),
        ("infinite", f32::INFINITY),
    ] {
        for residual in residuals(size) {
            let base = || match residual {
                GlobalResidual::Calibrated(_) => still(base(), 0.05),
                _ => base(),
            };
            let mut all = base();
            all.points.iter_mut().for_each(|p| p.fill(value));
            cases.push((name, Case::new(all, residual)));
            let mut one = base();
            one.points[2].fill(value);
            cases.push((name, Case::new(one, residual)));
        }
    }

    let mut alone = Graph::new(size.0, size.1, 1, &[], 0.0);
    cases.push(("one keyframe", rays(alone)));
    alone = Graph::new(size.0, size.1, 4, &[], 0.1);
    cases.push(("no edges", rays(alone)));

    let mut pinned = rays(base());
    pinned.params.pin = 3;
    cases.push(("three pinned", pinned));
    let mut pinned = rays(base());
    pinned.params.pin = 5;
    cases.push(("all pinned", pinned));

    let mut held = base();
    held.matches[3].valid_i.fill(0);
    held.matches[3].valid_j.fill(0);
    let mut held = rays(held);
    held.priors = vec![
        PosePrior {
            i: 3,
            j: 4,
            i_from_j: Sim3::exp(&Random(4).tangent(0.3)),
            information: Tangent::repeat(1.0),
        },
        PosePrior {
            i: 1,
            j: 3,
            i_from_j: Sim3::exp(&Random(5).tangent(0.3)),
            information: Tangent::repeat(2.0),
        },
    ];
    cases.push(("held by priors alone", held));
    let mut only = rays(Graph::new(size.0, size.1, 2, &[], 0.1));
    only.priors = vec![PosePrior {
        i: 0,
        j: 1,
        i_from_j: Sim3::exp(&Random(6).tangent(0.3)),
        information: Tangent::repeat(1.0),
    }];
    cases.push(("a prior and no edge", only));

    let mut outside = base();
    outside.matches[1].index_j_from_i[5] = 2173;
    outside.matches[1].index_j_from_i[6] = u32::MAX;
    outside.matches[1].index_j_from_i[7] = u32::MAX;
    outside.matches[1].valid_i[7] = 0;
    cases.push(("matches outside", rays(outside)));

    for (name, case) in &cases {
        let expected = case.on_cpu();
        let found = OnDevice::new(&gpu, case, case.capacity()).solve(case);
        match (&found, &expected) {
            (Ok((poses, report)), Ok((on_cpu, cpu_report))) => {
                compare_reports(name, report, cpu_report);
                let moved = |p: &[Sim3]| -> Vec<bool> {
                    let start = case.graph.start.iter();
                    start
                        .zip(p)
                        .map(|(a, b)| bits(&[*a]) != bits(&[*b]))
                        .collect()
                };
                assert_eq!(moved(poses), moved(on_cpu), "{name}: which poses moved");
                compare_solutions(name, case, poses, on_cpu, cpu_report.final_cost);
                let far = poses.iter().zip(on_cpu).map(|(a, b)| distance(a, b));
                let far = far.fold(0.0, f64::max);
                // Nothing of it is f32.
                let exact = *name == "a prior and no edge";
                assert!(!exact || far < 1e-6, "{name}: {far:e}");
            }
            (Err(found), Err(expected)) => assert_eq!(found, expected, "{name}"),
            _ => panic!("{name}: {found:?}, on the CPU {expected:?}"),
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_as_on_the_cpu() {
    let Some(gpu) = cuda() else { return };
    let mut case = Case::new(
        Graph::new(13, 11, 3, &[(0, 1), (1, 2)], 0.02),
        GlobalResidual::Rays,
    );
    let mut device = OnDevice::new(&gpu, &case, case.capacity());
    let good = device.solve(&case).unwrap();

    for change in [
        |c: &mut Case| c.graph.matches[1].j = 3,
        |c: &mut Case| c.graph.matches[1].j = 1,
        |c: &mut Case| c.graph.start[1].translation.x = f64::NAN,
        |c: &mut Case| {
            c.priors.push(PosePrior {
                i: 0,
                j: 9,
                i_from_j: Sim3::identity(),
                information: Tangent::zeros(),
            });
        },
        |c: &mut Case| {
            c.priors.push(PosePrior {
                i: 0,
                j: 1,
                i_from_j: Sim3::identity(),
                information: Tangent::repeat(-1.0),
            });
        },
    ] {
        let mut bad = Case::new(
            Graph::new(13, 11, 3, &[(0, 1), (1, 2)], 0.02),
            GlobalResidual::Rays,
        );
        change(&mut bad);
        assert_eq!(device.solve(&bad).unwrap_err(), bad.on_cpu().unwrap_err());
    }

    let message = device.with(&case, |solver, stream, problem| {
        let mut poses = vec![Sim3::identity(); 3];
        let twice = [problem.edges, problem.edges].concat();
        let more = DeviceProblem {
            edges: &twice,
            ..*problem
        };
        let error = solver.solve(stream, &more, &case.params, &mut poses);
        assert_eq!(
            error,
            Err(GlobalError::Capacity {
                what: "edges of a solve",
                found: 4,
                most: 2
            })
        );
        let larger = DeviceProblem {
            height: 12,
            ..*problem
        };
        let error = solver.solve(stream, &larger, &case.params, &mut poses);
        assert!(
            matches!(error, Err(GlobalError::Capacity { .. })),
            "{error:?}"
        );
        let mut short = problem.keyframes.to_vec();
        short[1].points = short[1].points.slice(0..400).unwrap();
        let short = DeviceProblem {
            keyframes: &short,
            ..*problem
        };
        let error = solver.solve(stream, &short, &case.params, &mut poses);
        error.unwrap_err().to_string()
    });
    assert_eq!(message, "keyframe points: expected 429 elements, found 400");

    // And none of it is left behind.
    case.params.max_iters = LocalOptConfig::default().max_iters;
    let again = device.solve(&case).unwrap();
    assert_eq!(bits(&good.0), bits(&again.0));
}

/// Prints what issue 3 asks for; not a check, as it depends on the GPU.
#[test]
#[ignore = "a benchmark: needs 3 GB and a quiet GPU"]
fn global_speed() {
    let Some(gpu) = cuda() else { return };
    println!("global Gauss-Newton, rays, 512x384, 10 iterations (11 linearisations)");
    for size in bench::SIZES {
        let result = bench::run(&gpu, size, (512, 384), 15).unwrap();
        let (solves, stages) = (&result.solves_ms, &result.stages);
        let pixels = 512 * 384_u64;
        let rate = |bytes: u64, ms: f32| bytes as f64 / f64::from(ms) / 1e9;
        println!(
            "{} keyframes, {} directed edges, {:.0} % matched: median {:.3} ms, best {:.3}, worst {:.3}; {:?}",
            size.keyframes,
            2 * size.edges,
            100.0 * size.matched,
            solves[solves.len() / 2],
            solves[0],
            solves[solves.len() - 1],
            result.report,
        );
        let directed = 2 * size.edges as u64 * pixels;
        println!(
            "  mask {:.4} ms ({:.2} TB/s), gate {:.4} ({:.2} TB/s), relate {:.4}, sums {:.4} ({:.2} TB/s of {} B a match, {:.1} G matches/s), reduce {:.4}, round trip {:.4}",
            stages.mask_ms,
            rate(
                bench::MASK_BYTES * size.keyframes as u64 * pixels,
                stages.mask_ms
            ),
            stages.gate_ms,
            rate(bench::GATE_BYTES * directed, stages.gate_ms),
            stages.relate_ms,
            stages.sums_ms,
            rate(bench::MATCH_BYTES * stages.matches, stages.sums_ms),
            bench::MATCH_BYTES,
            stages.matches as f64 / f64::from(stages.sums_ms) / 1e6,
            stages.reduce_ms,
            stages.round_trip_ms,
        );
    }
}
