//! The assembled system against the cost that it is the derivative of.

use super::descent::{self, Graph, Lineariser, Wanted};
use super::edges::{Problem, Scratch};
use super::system::{Layout, System};
use super::terms::{Linearised, prior_term};
use super::*;
use crate::compute::stop::Stop;
use nalgebra::{DVector, Vector3};
use proptest::prelude::*;

const SIZE: (usize, usize) = (7, 5);

fn tangent(limit: f64) -> impl Strategy<Value = Tangent> {
    proptest::collection::vec(-limit..limit, 7).prop_map(|v| Tangent::from_column_slice(&v))
}

fn intrinsics() -> Intrinsics {
    Intrinsics {
        fx: 8.0,
        fy: 8.5,
        cx: 3.0,
        cy: 2.0,
    }
}

/// Each keyframe's own pointmap; matches are pixel with the same pixel.
struct Small {
    points: Vec<Vec<f32>>,
    confidence: Vec<f32>,
    index: Vec<u32>,
    valid: Vec<u8>,
    quality: Vec<f32>,
    poses: Vec<Sim3>,
}

impl Small {
    fn new(poses: Vec<Sim3>) -> Self {
        let count = SIZE.0 * SIZE.1;
        let points = (0..poses.len())
            .map(|k| {
                (0..count)
                    .flat_map(|n| {
                        let (u, v) = ((n % SIZE.0) as f64, (n / SIZE.0) as f64);
                        let z = 3.0 + (n as f64 * 0.7).sin() + 0.05 * k as f64;
                        let p = intrinsics().ray(u, v) * z;
                        [p.x as f32, p.y as f32, p.z as f32]
                    })
                    .collect()
            })
            .collect();
        Self {
            points,
            confidence: vec![2.0; count],
            index: (0..count as u32).collect(),
            valid: vec![1; count],
            quality: (0..count).map(|n| 1.6 + 0.1 * (n % 7) as f32).collect(),
            poses,
        }
    }

    fn keyframes(&self) -> Vec<Keyframe<'_>> {
        self.points
            .iter()
            .zip(&self.poses)
            .map(|(points, &world_from_camera)| Keyframe {
                points,
                confidence: &self.confidence,
                world_from_camera,
            })
            .collect()
    }

    fn edge(&self, i: usize, j: usize) -> Edge<'_> {
        Edge {
            i,
            j,
            index_i_from_j: &self.index,
            valid_j: &self.valid,
            quality_j: &self.quality,
            index_j_from_i: &self.index,
            valid_i: &self.valid,
            quality_i: &self.quality,
        }
    }
}

fn problem<'a>(
    keyframes: &'a [Keyframe<'a>],
    edges: &'a [Edge<'a>],
    priors: &'a [PosePrior],
    residual: GlobalResidual,
    params: &LocalOptConfig,
    scratch: &'a mut Scratch,
) -> Problem<'a> {
    let (model, noise) = model(residual, SIZE.0, SIZE.1, params);
    Problem {
        keyframes,
        edges,
        priors,
        model,
        noise,
        pixels: SIZE.0 * SIZE.1,
        c_conf: params.c_conf,
        q_conf: params.q_conf,
        scratch,
    }
}

fn linearised(problem: &mut Problem<'_>, poses: &[Sim3]) -> Linearised {
    let mut out = Linearised::default();
    let active = vec![true; problem.edges.len()];
    problem
        .linearise(poses, &active, Wanted::Equations, &mut out)
        .unwrap();
    out
}

fn links(edges: &[Edge<'_>], priors: &[PosePrior]) -> Vec<(usize, usize)> {
    let of_edges = edges.iter().map(|e| (e.i, e.j));
    of_edges.chain(priors.iter().map(|p| (p.i, p.j))).collect()
}

/// Central differences of the whole cost: the gradient with respect to each pose must be what
/// the sparse system holds, through adjoints, signs, priors and block places.
#[test]
fn the_gradient_is_the_derivative_of_the_cost() {
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(24));
    let poses = proptest::collection::vec(tangent(0.05), 4);
    let inputs = (poses, tangent(0.3), tangent(0.4));
    runner
        .run(&inputs, |(offsets, outer, prior)| {
            // Far from the origin and from unit scale, near each other.
            let outer = Sim3::exp(&(outer * 4.0));
            let poses: Vec<_> = offsets.iter().map(|o| outer * Sim3::exp(o)).collect();
            let small = Small::new(poses.clone());
            let keyframes = small.keyframes();
            let edges = [small.edge(0, 1), small.edge(3, 1), small.edge(2, 3)];
            let priors = [PosePrior {
                i: 2,
                j: 0,
                i_from_j: Sim3::exp(&prior),
                information: Tangent::from_fn(|r, _| 50.0 + 10.0 * r as f64),
            }];
            let params = LocalOptConfig {
                sigma_ray: 0.1,
                sigma_dist: 0.5,
                sigma_depth: 0.2,
                ..LocalOptConfig::default()
            };
            for residual in [
                GlobalResidual::Rays,
                GlobalResidual::Points,
                GlobalResidual::Calibrated(intrinsics()),
            ] {
                let mut scratch = Scratch::default();
                let mut problem =
                    problem(&keyframes, &edges, &priors, residual, &params, &mut scratch);
                problem.select().unwrap();
                let layout = Layout::new(&[false; 4], &links(&edges, &priors)).unwrap();
                let mut system = System::new(&layout);
                let at = linearised(&mut problem, &poses);
                system.assemble(&layout, &at);
                for k in 0..28 {
                    let mut step = DVector::zeros(28);
                    step[k] = 1e-6;
                    let mut moved = Vec::new();
                    layout.retract(&poses, &step, &mut moved);
                    let plus = linearised(&mut problem, &moved);
                    layout.retract(&poses, &-step, &mut moved);
                    let minus = linearised(&mut problem, &moved);
                    prop_assert_eq!(plus.used(), minus.used());
                    let numeric = (plus.robust - minus.robust) / 2e-6;
                    let got = system.gradient()[k];
                    // Rounding of the cost, 1e-15 of it over 2e-6, and 1e-12 of its third
                    // derivative.
                    let close = 1e-8 * at.robust + 1e-5 * (1.0 + got.abs());
                    prop_assert!(
                        (numeric - got).abs() < close,
                        "{residual:?} {k}: {numeric} {got}"
                    );
                }
            }
            Ok(())
        })
        .unwrap();
}

proptest! {
    /// A prior's Hessian is `rowᵀ·Λ·row`, and its row the derivative of its residual.
    #[test]
    fn a_priors_row_is_the_derivative_of_its_residual(
        a in tangent(1.0), b in tangent(1.0), m in tangent(0.8)
    ) {
        let poses = [Sim3::exp(&a), Sim3::exp(&b)];
        let prior = |information| PosePrior { i: 0, j: 1, i_from_j: Sim3::exp(&m), information };
        let error = |relative: &Sim3| (*relative * Sim3::exp(&m).inverse()).log();
        let relative = poses[0].inverse() * poses[1];
        // Beyond π the logarithm jumps.
        prop_assume!(error(&relative).fixed_rows::<3>(3).norm() < 2.5);
        for r in 0..7 {
            let mut information = Tangent::zeros();
            information[r] = 1.0;
            let (term, cost) = prior_term(&prior(information), &poses);
            let e = error(&relative)[r];
            prop_assert!((cost - 0.5 * e * e).abs() < 1e-12);
            for k in 0..7 {
                let mut xi = Tangent::zeros();
                xi[k] = 1e-5;
                let numeric = (error(&relative.retract(&xi))[r] - error(&relative.retract(&-xi))[r]) / 2e-5;
                prop_assert!((term.hessian[(k, k)] - numeric * numeric).abs() < 1e-6 * (1.0 + numeric * numeric));
                prop_assert!((term.gradient[k] - numeric * e).abs() < 1e-6 * (1.0 + numeric.abs()));
            }
        }
    }
}

/// The sparse solve against a dense one of the same equations.
#[test]
fn the_sparse_step_is_the_dense_one() {
    let mut poses: Vec<Sim3> = Vec::new();
    for k in 0..6 {
        let xi = Tangent::from_fn(|r, _| 0.03 * ((k * 7 + r) as f64).sin());
        poses.push(Sim3::exp(&xi));
    }
    let small = Small::new(poses.clone());
    let keyframes = small.keyframes();
    let pairs = [(0, 1), (1, 2), (4, 2), (3, 4), (5, 3), (5, 0), (1, 4)];
    let edges = pairs.map(|(i, j)| small.edge(i, j));
    let params = LocalOptConfig::default();
    let mut scratch = Scratch::default();
    let mut problem = problem(
        &keyframes,
        &edges,
        &[],
        GlobalResidual::Points,
        &params,
        &mut scratch,
    );
    problem.select().unwrap();
    let at = linearised(&mut problem, &poses);
    let fixed = [true, false, false, true, false, false];
    let layout = Layout::new(&fixed, &links(&edges, &[])).unwrap();
    let mut system = System::new(&layout);
    system.assemble(&layout, &at);

    let mut h = nalgebra::DMatrix::<f64>::zeros(28, 28);
    let mut g = DVector::<f64>::zeros(28);
    for term in &at.terms {
        for (a, sign_a) in [(term.i, -1.0), (term.j, 1.0)] {
            let Some(row) = layout.first_entry(a) else {
                continue;
            };
            let mut rows = g.fixed_rows_mut::<7>(row);
            rows += term.gradient * sign_a;
            for (b, sign_b) in [(term.i, -1.0), (term.j, 1.0)] {
                if let Some(column) = layout.first_entry(b) {
                    let mut view = h.fixed_view_mut::<7, 7>(row, column);
                    view += term.hessian * (sign_a * sign_b);
                }
            }
        }
    }
    for damping in [0.0, 0.5] {
        let mut damped = h.clone();
        for k in 0..28 {
            damped[(k, k)] *= 1.0 + damping;
        }
        let dense = -damped.cholesky().unwrap().solve(&g);
        let mut sparse = DVector::zeros(0);
        assert!(system.solve(&layout, damping, &mut sparse));
        // Conditioning of about 1e5 times rounding, and the floor of 1e-12.
        assert!((&dense - &sparse).norm() < 1e-6 * dense.norm());
    }
}

#[test]
fn a_damped_step_exists_where_nothing_is_observed() {
    let poses = vec![Sim3::identity(); 3];
    let mut small = Small::new(poses.clone());
    // One single match, on the axis, where the Hessian has rank four.
    small.valid.fill(0);
    small.valid[17] = 1;
    let keyframes = small.keyframes();
    let edges = [small.edge(0, 1), small.edge(1, 2)];
    let params = LocalOptConfig::default();
    let mut scratch = Scratch::default();
    let mut problem = problem(
        &keyframes,
        &edges,
        &[],
        GlobalResidual::Rays,
        &params,
        &mut scratch,
    );
    problem.select().unwrap();
    let at = linearised(&mut problem, &poses);
    let layout = Layout::new(&[true, false, false], &links(&edges, &[])).unwrap();
    let mut system = System::new(&layout);
    system.assemble(&layout, &at);
    let mut step = DVector::zeros(0);
    assert!(system.solve(&layout, 1e-3, &mut step));
    // Points 5 cm apart at 3 m: nothing has to move further than that, whatever is undetermined.
    assert!(step.norm() < 0.3, "{step}");
    let outer = Vector3::new(step[0], step[1], step[2]);
    assert!(outer.norm() < 0.1);
}

/// Asks to stop in its `last` linearisation.
struct Stopping<'a> {
    problem: Problem<'a>,
    last: usize,
    stop: Stop,
}

impl Lineariser for Stopping<'_> {
    type Error = SolveError;

    fn select(&mut self) -> Result<(), SolveError> {
        self.problem.select()
    }

    fn linearise(
        &mut self,
        poses: &[Sim3],
        active: &[bool],
        wanted: Wanted,
        out: &mut Linearised,
    ) -> Result<(), SolveError> {
        if self.last == 0 {
            self.stop.ask();
        }
        self.last = self.last.saturating_sub(1);
        self.problem.linearise(poses, active, wanted, out)
    }

    fn rounding(&self, robust: f64, used: u64) -> f64 {
        self.problem.rounding(robust, used)
    }
}

/// Asked to stop in step k, a solve ends with what `max_iters` of k gives. There the last linearisation is of
/// the cost alone, here it is not: they are the same bits.
#[test]
fn a_solve_that_is_asked_to_stop_ends_with_the_poses_that_it_has() {
    let mut at = 0.0;
    let poses: Vec<Sim3> = std::iter::repeat_with(|| {
        at += 0.02;
        Sim3::exp(&Tangent::from_fn(|r, _| {
            at * if r % 2 == 0 { 1.0 } else { -0.7 }
        }))
    })
    .take(4)
    .collect();
    let small = Small::new(poses.clone());
    let keyframes = small.keyframes();
    let edges = [small.edge(0, 1), small.edge(1, 2), small.edge(2, 3)];
    let links = links(&edges, &[]);
    let graph = Graph {
        links: &links,
        priors: &[],
    };
    let solve = |max_iters: usize, last: usize, asked: bool| {
        let params = LocalOptConfig {
            max_iters,
            delta_norm: 0.0,
            rel_error: 0.0,
            ..LocalOptConfig::default()
        };
        let mut scratch = Scratch::default();
        let residual = GlobalResidual::Points;
        let mut stopping = Stopping {
            problem: problem(&keyframes, &edges, &[], residual, &params, &mut scratch),
            last,
            stop: Stop::default(),
        };
        let stop = stopping.stop.clone();
        if asked {
            stop.ask();
        }
        let mut poses = poses.clone();
        let report = descent::descend(&mut stopping, &graph, &params, &stop, &mut poses).unwrap();
        (report, poses)
    };
    let never = usize::MAX;
    let (report, unmoved) = solve(10, never, true);
    assert_eq!((report.iterations, report.converged), (0, false));
    assert_eq!(unmoved, poses);
    for steps in 1..4 {
        let (stopped, found) = solve(10, steps, false);
        let (limited, expected) = solve(steps, never, false);
        assert_eq!((stopped.iterations, stopped.converged), (steps, false));
        assert_eq!(stopped, limited);
        assert_eq!(found, expected, "{steps} steps");
        assert_ne!(found, poses);
        assert!(stopped.final_cost < stopped.initial_cost);
    }
}
