//! Compares the assembled system with derivatives of the cost.

use super::descent::{self, Graph, Lineariser, Wanted};
use super::edges::{Problem, Scratch};
use super::factor::LeftJacobian;
use super::system::{Hold, Layout, System};
use super::terms::{Linearised, factor_term};
use super::*;
use crate::compute::cancel::CancelToken;
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

/// Each keyframe has its own pointmap; every pixel is matched with the same pixel.
struct Small {
    points: Vec<Vec<f32>>,
    confidence: Vec<f32>,
    index: Vec<u32>,
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
            quality_j: &self.quality,
            index_j_from_i: &self.index,
            quality_i: &self.quality,
        }
    }
}

fn problem<'a>(
    keyframes: &'a [Keyframe<'a>],
    edges: &'a [Edge<'a>],
    factors: &'a [PoseFactor],
    residual: GlobalResidual,
    params: &GlobalOptConfig,
    scratch: &'a mut Scratch,
) -> Problem<'a> {
    let (model, noise) = model(residual, SIZE.0, SIZE.1, params);
    Problem {
        keyframes,
        edges,
        factors,
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

fn links(edges: &[Edge<'_>], factors: &[PoseFactor]) -> Vec<(usize, usize)> {
    let of_edges = edges.iter().map(|e| (e.i, e.j));
    of_edges.chain(factors.iter().map(|p| (p.i, p.j))).collect()
}

/// Differences of the total cost along each coordinate of each pose must equal the integral of the gradient in the
/// sparse system, which involves adjoints, signs, factors and block positions. The gradient at the middle alone would not
/// do: where Huber's cost has its kink within the step, the gradient bends there.
#[test]
fn the_gradient_is_the_derivative_of_the_cost() {
    const PARTS: i32 = 4;
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(24));
    let poses = proptest::collection::vec(tangent(0.05), 4);
    let rows = proptest::collection::vec(tangent(5.0), 1..9);
    let inputs = (poses, tangent(0.3), tangent(0.4), rows);
    runner
        .run(&inputs, |(offsets, outer, factor, information_rows)| {
            // Far from the origin and from unit scale, but near each other.
            let outer = Sim3::exp(&(outer * 4.0));
            let poses: Vec<_> = offsets.iter().map(|o| outer * Sim3::exp(o)).collect();
            let small = Small::new(poses.clone());
            let keyframes = small.keyframes();
            let edges = [small.edge(0, 1), small.edge(3, 1), small.edge(2, 3)];
            let factors = [PoseFactor {
                i: 2,
                j: 0,
                i_from_j: Sim3::exp(&factor),
                information: information(&information_rows),
            }];
            let params = GlobalOptConfig {
                sigma_ray: 0.1,
                sigma_dist: 0.5,
                sigma_depth: 0.2,
                ..GlobalOptConfig::default()
            };
            for residual in [
                GlobalResidual::Rays,
                GlobalResidual::Points,
                GlobalResidual::Calibrated(intrinsics()),
            ] {
                let mut scratch = Scratch::default();
                let mut problem = problem(
                    &keyframes,
                    &edges,
                    &factors,
                    residual,
                    &params,
                    &mut scratch,
                );
                problem.select().unwrap();
                let layout = Layout::new(&[Hold::Free; 4], &links(&edges, &factors)).unwrap();
                let mut system = System::new(&layout);
                let mut moved = Vec::new();
                for k in 0..28 {
                    // Cost and gradient at even distances from -1e-6 to 1e-6.
                    let along: Vec<_> = (-PARTS..=PARTS)
                        .map(|part| {
                            let mut step = DVector::zeros(28);
                            step[k] = 1e-6 * f64::from(part) / f64::from(PARTS);
                            layout.retract(&poses, &step, &mut moved);
                            let at = linearised(&mut problem, &moved);
                            system.assemble(&layout, &at);
                            (at.used(), at.robust, system.gradient()[k])
                        })
                        .collect();
                    let ((used, start, _), (_, end, _)) = (along[0], along[along.len() - 1]);
                    prop_assert!(along.iter().all(|at| at.0 == used));
                    let numeric = (end - start) / 2e-6;
                    let pairs = along.windows(2).map(|pair| (pair[0].2 + pair[1].2) / 2.0);
                    let got = pairs.sum::<f64>() / f64::from(2 * PARTS);
                    // Rounding of the cost, 1e-15 of it over 2e-6, plus 1e-12 of its third
                    // derivative.
                    let close = 1e-8 * start + 1e-5 * (1.0 + got.abs());
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
    /// The blocks are those of the series of 7×7 matrices, and of its inverse.
    #[test]
    fn the_left_jacobian_is_its_series(e in tangent(2.0), length in prop::sample::select(vec![0.0, 1e-9, 1e-3, 1.0, 100.0])) {
        let mut e = e;
        e.fixed_rows_mut::<3>(0).scale_mut(length);
        // The adjoint representation of the algebra, column by column.
        let step = 1e-6;
        let ad = Matrix7::from_columns(&std::array::from_fn::<_, 7, _>(|k| {
            let mut direction = Tangent::zeros();
            direction[k] = 1.0;
            let column = |by: f64| Sim3::exp(&(e * by)).adjoint() * direction;
            (column(step) - column(-step)) / (2.0 * step)
        }));
        let (mut term, mut sum) = (Matrix7::identity(), Matrix7::identity());
        for k in 1..=40 {
            term = term * ad / f64::from(k + 1);
            sum += term;
        }
        let jacobian = LeftJacobian::at(&e);
        let close = 1e-7 * (1.0 + length);
        prop_assert!((jacobian.to_matrix() - sum).abs().max() < close, "{} {sum}", jacobian.to_matrix());
        let inverse = jacobian.inverse().expect("it is regular").to_matrix();
        let product = inverse * jacobian.to_matrix();
        prop_assert!((product - Matrix7::identity()).abs().max() < 1e-12 * (1.0 + length), "{product}");
    }

    /// A factor's Hessian is `rowᵀ·Ω·row`, and `row` the derivative of its residual, for
    /// information of any rank.
    #[test]
    fn a_factors_row_is_the_derivative_of_its_residual(
        a in tangent(1.0), b in tangent(1.0), m in tangent(0.8),
        rows in proptest::collection::vec(tangent(1.0), 0..9),
    ) {
        let poses = [Sim3::exp(&a), Sim3::exp(&b)];
        let i_from_j = Sim3::exp(&m);
        let factor = PoseFactor { i: 0, j: 1, i_from_j, information: information(&rows) };
        let error = |relative: &Sim3| (*relative * i_from_j.inverse()).log();
        let relative = poses[0].inverse() * poses[1];
        // The logarithm is discontinuous at π.
        prop_assume!(error(&relative).fixed_rows::<3>(3).norm() < 2.5);
        let e = error(&relative);
        let numeric = Matrix7::from_columns(&std::array::from_fn::<_, 7, _>(|k| {
            let mut xi = Tangent::zeros();
            xi[k] = 1e-5;
            (error(&relative.retract(&xi)) - error(&relative.retract(&-xi))) / 2e-5
        }));
        let (term, cost) = factor_term(&factor, &relative);
        prop_assert!((cost - 0.5 * (factor.information * e).dot(&e)).abs() < 1e-12 * (1.0 + cost));
        let hessian = numeric.transpose() * factor.information * numeric;
        prop_assert!((term.hessian - hessian).norm() < 1e-6 * (1.0 + hessian.norm()));
        let gradient = numeric.transpose() * factor.information * e;
        prop_assert!((term.gradient - gradient).norm() < 1e-6 * (1.0 + gradient.norm()));

        // The same in the world, moving either keyframe.
        let at = factor.equations(&poses[0], &poses[1]);
        let cost = |i: &Sim3, j: &Sim3| factor.equations(i, j).robust;
        for k in 0..7 {
            let mut xi = Tangent::zeros();
            xi[k] = 1e-5;
            let at_j = cost(&poses[0], &poses[1].retract(&xi)) - cost(&poses[0], &poses[1].retract(&-xi));
            let at_i = cost(&poses[0].retract(&xi), &poses[1]) - cost(&poses[0].retract(&-xi), &poses[1]);
            let close = 1e-6 * (1.0 + at.gradient.norm() + at.hessian.norm());
            prop_assert!((at_j / 2e-5 - at.gradient[k]).abs() < close, "{k}");
            prop_assert!((at_i / 2e-5 + at.gradient[k]).abs() < close, "{k}");
        }
    }

    /// A solve over factors alone reaches the poses that they measure, from any start nearby, and
    /// keeps what a rank-deficient factor does not measure.
    #[test]
    fn factors_alone_place_keyframes(
        truth in proptest::collection::vec(tangent(1.0), 5),
        off in proptest::collection::vec(tangent(0.1), 5),
        rows in proptest::collection::vec(tangent(30.0), 12),
    ) {
        let truth: Vec<Sim3> = truth.iter().map(Sim3::exp).collect();
        let full = information(&rows);
        prop_assume!(full.symmetric_eigenvalues().min() > 1.0);
        let factor = |i: usize, j: usize| PoseFactor {
            i, j, i_from_j: truth[i].inverse() * truth[j], information: full,
        };
        let factors = [(0, 1), (2, 1), (2, 3), (0, 3), (4, 0)].map(|(i, j)| factor(i, j));
        let points = vec![1.0; 3];
        let keyframe = |(k, pose): (usize, &Sim3)| Keyframe {
            points: &points,
            confidence: &points[..1],
            world_from_camera: if k == 0 { *pose } else { pose.retract(&off[k]) },
        };
        let keyframes: Vec<_> = truth.iter().enumerate().map(keyframe).collect();
        let params = GlobalOptConfig { max_iters: 50, ..GlobalOptConfig::default() };
        let mut poses = truth.clone();
        let report = GlobalSolver::new()
            .solve(&keyframes, &[], &factors, Priors::default(), GlobalResidual::Rays, 1, 1, &params, &mut poses)
            .unwrap();
        prop_assert_eq!((report.free, report.loose_groups, report.matches), (4, 0, 0));
        for (pose, truth) in poses.iter().zip(&truth) {
            prop_assert!((pose.inverse() * *truth).log().norm() < 1e-6, "{report:?}");
        }
    }
}

/// A positive semidefinite matrix, of at most the rank of the number of rows.
fn information(rows: &[Tangent]) -> Matrix7 {
    let products = rows.iter().map(|row| row * row.transpose());
    products.fold(Matrix7::zeros(), |sum, product| sum + product)
}

#[test]
fn an_information_is_symmetric_and_semidefinite() {
    let accepted = |information: Matrix7| {
        let factor = PoseFactor {
            i: 0,
            j: 1,
            i_from_j: Sim3::identity(),
            information,
        };
        let graph = Graph {
            links: &[],
            factors: &[factor],
            priors: Priors::default(),
        };
        match graph.validate([Sim3::identity(); 2].into_iter()) {
            Ok(()) => true,
            Err(error) => {
                assert_eq!(error, SolveError::Information { i: 0, j: 1 });
                false
            }
        }
    };
    let row = Tangent::from_fn(|r, _| 10_f64.powi(r as i32 - 3));
    assert!(accepted(Matrix7::zeros()));
    assert!(accepted(row * row.transpose()), "rank one");
    assert!(accepted(Matrix7::identity() * 1e12));
    let mut bad = Matrix7::identity();
    bad[(2, 5)] = 0.5;
    assert!(!accepted(bad), "not symmetric");
    bad[(5, 2)] = 0.5;
    assert!(accepted(bad));
    bad[(2, 5)] = 1.1;
    bad[(5, 2)] = 1.1;
    assert!(!accepted(bad), "indefinite");
    assert!(!accepted(-Matrix7::identity()));
    let mut nothing = Matrix7::identity();
    nothing[(3, 3)] = 0.0;
    assert!(accepted(nothing));
    nothing[(3, 1)] = 0.1;
    nothing[(1, 3)] = 0.1;
    assert!(!accepted(nothing), "a covariance without a variance");
    for value in [f64::NAN, f64::INFINITY] {
        assert!(!accepted(Matrix7::identity() * value));
    }
}

/// Compares the sparse solve with a dense solve of the same equations.
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
    let params = GlobalOptConfig::default();
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
    let (all, free) = (Hold::All, Hold::Free);
    let fixed = [all, free, free, all, free, free];
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
        // A condition number of about 1e5 times rounding, plus the floor of 1e-12.
        assert!((&dense - &sparse).norm() < 1e-6 * dense.norm());
    }
}

#[test]
fn a_damped_step_exists_where_nothing_is_observed() {
    let poses = vec![Sim3::identity(); 3];
    let mut small = Small::new(poses.clone());
    // A single match on the axis, where the Hessian has rank four.
    let quality = small.quality[17];
    small.quality.fill(0.0);
    small.quality[17] = quality;
    let keyframes = small.keyframes();
    let edges = [small.edge(0, 1), small.edge(1, 2)];
    let params = GlobalOptConfig::default();
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
    let layout = Layout::new(&[Hold::All, Hold::Free, Hold::Free], &links(&edges, &[])).unwrap();
    let mut system = System::new(&layout);
    system.assemble(&layout, &at);
    let mut step = DVector::zeros(0);
    assert!(system.solve(&layout, 1e-3, &mut step));
    // Points 5 cm apart at 3 m: nothing has to move further, even in unobserved directions.
    assert!(step.norm() < 0.3, "{step}");
    let outer = Vector3::new(step[0], step[1], step[2]);
    assert!(outer.norm() < 0.1);
}

/// Cancels in its `last` linearisation.
struct Stopping<'a> {
    problem: Problem<'a>,
    last: usize,
    cancel: CancelToken,
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
            self.cancel.cancel();
        }
        self.last = self.last.saturating_sub(1);
        self.problem.linearise(poses, active, wanted, out)
    }

    fn rounding(&self, robust: f64, used: u64) -> f64 {
        self.problem.rounding(robust, used)
    }
}

/// A solve cancelled in step k ends with the same bits as one with `max_iters` = k. The latter
/// computes only the cost in its last linearisation, the former computes the equations too; both
/// must agree.
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
        factors: &[],
        priors: Priors::default(),
    };
    let solve = |max_iters: usize, last: usize, asked: bool| {
        let params = GlobalOptConfig {
            max_iters,
            delta_norm: 0.0,
            rel_error: 0.0,
            ..GlobalOptConfig::default()
        };
        let mut scratch = Scratch::default();
        let residual = GlobalResidual::Points;
        let mut stopping = Stopping {
            problem: problem(&keyframes, &edges, &[], residual, &params, &mut scratch),
            last,
            cancel: CancelToken::default(),
        };
        let cancel = stopping.cancel.clone();
        if asked {
            cancel.cancel();
        }
        let mut poses = poses.clone();
        let report = descent::descend(&mut stopping, &graph, &params, &cancel, &mut poses).unwrap();
        (report, poses)
    };
    let never = usize::MAX;
    let (report, unmoved) = solve(10, never, true);
    assert_eq!((report.iterations, report.converged), (0, false));
    assert_eq!(unmoved, poses);
    for steps in 1..4 {
        let (cancelled, found) = solve(10, steps, false);
        let (limited, expected) = solve(steps, never, false);
        assert_eq!((cancelled.iterations, cancelled.converged), (steps, false));
        assert_eq!(cancelled, limited);
        assert_eq!(found, expected, "{steps} steps");
        assert_ne!(found, poses);
        assert!(cancelled.final_cost < cancelled.initial_cost);
    }
}
