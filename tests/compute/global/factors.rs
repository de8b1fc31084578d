//! Edges of matches replaced by factors: a converged map stays where it is.

use mast3r_slam::compute::global::{
    EdgeEquations, GlobalResidual, GlobalSolver, Keyframe, Matrix7, PoseFactor, Priors,
};
use mast3r_slam::config::GlobalOptConfig;
use mast3r_slam::geometry::{Sim3, Tangent};
use nalgebra::DMatrix;
use testkit::solver_scene::{Graph, Random};

const SIZE: (usize, usize) = (53, 41);
const KEYFRAMES: usize = 8;

/// A chain with loops of noisy matches: the solution has tension everywhere.
fn noisy() -> Graph {
    let mut graph = Graph::new(
        SIZE.0,
        SIZE.1,
        KEYFRAMES,
        &Graph::chain(KEYFRAMES, 16),
        0.05,
    );
    let mut random = Random(77);
    for points in &mut graph.points {
        for p in points.chunks_exact_mut(3) {
            let d = p.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
            for v in p {
                *v += (random.normal() * 0.01 * d) as f32;
            }
        }
    }
    graph
}

fn params() -> GlobalOptConfig {
    GlobalOptConfig {
        max_iters: 100,
        rel_error: 0.0,
        delta_norm: 1e-10,
        ..GlobalOptConfig::default()
    }
}

/// Solves over the edges that `keep` names and these factors, from `start`.
fn solve(graph: &Graph, keep: &[usize], factors: &[PoseFactor], start: &[Sim3]) -> Vec<Sim3> {
    let keyframes = at(graph, start);
    let all = graph.edges();
    let edges: Vec<_> = keep.iter().map(|&e| all[e]).collect();
    let mut poses = start.to_vec();
    let (w, h) = SIZE;
    let residual = GlobalResidual::Points;
    GlobalSolver::new()
        .solve(
            &keyframes,
            &edges,
            factors,
            Priors::default(),
            residual,
            w,
            h,
            &params(),
            &mut poses,
        )
        .unwrap();
    poses
}

fn at<'a>(graph: &'a Graph, poses: &[Sim3]) -> Vec<Keyframe<'a>> {
    let keyframes = graph.keyframes().into_iter().zip(poses);
    keyframes
        .map(|(k, pose)| Keyframe {
            world_from_camera: *pose,
            ..k
        })
        .collect()
}

fn equations(graph: &Graph, poses: &[Sim3]) -> Vec<EdgeEquations> {
    let (w, h) = SIZE;
    let residual = GlobalResidual::Points;
    GlobalSolver::new()
        .equations(&at(graph, poses), &graph.edges(), residual, w, h, &params())
        .unwrap()
}

/// Standard deviations of all poses with the first one fixed.
fn sigmas(graph: &Graph, found: &[EdgeEquations]) -> Vec<Tangent> {
    let mut m = DMatrix::<f64>::zeros(7 * KEYFRAMES, 7 * KEYFRAMES);
    for (edge, e) in graph.edges().iter().zip(found) {
        let (i, j) = (edge.i, edge.j);
        for (a, b, sign) in [(i, i, 1.0), (j, j, 1.0), (i, j, -1.0), (j, i, -1.0)] {
            let mut view = m.fixed_view_mut::<7, 7>(7 * a, 7 * b);
            view += e.hessian * sign;
        }
    }
    let free = 7 * (KEYFRAMES - 1);
    let covariance = m.view((7, 7), (free, free)).into_owned();
    let variances = covariance.cholesky().unwrap().inverse().diagonal();
    let sigmas = variances.as_slice().chunks_exact(7);
    sigmas
        .map(|v| Tangent::from_column_slice(v).map(f64::sqrt))
        .collect()
}

/// Movement between two solutions in standard deviations, the largest of all components.
fn moved(from: &[Sim3], to: &[Sim3], sigmas: &[Tangent]) -> f64 {
    let each = from.iter().zip(to).skip(1).zip(sigmas);
    let each = each.map(|((from, to), sigma)| {
        let off = (*to * from.inverse()).log();
        off.component_div(sigma).abs().max()
    });
    each.fold(0.0, f64::max)
}

#[test]
fn demoting_an_edge_in_a_converged_graph_moves_nothing() {
    let graph = noisy();
    let every: Vec<usize> = (0..graph.edges().len()).collect();
    let converged = solve(&graph, &every, &[], &graph.start);
    let found = equations(&graph, &converged);
    let sigmas = sigmas(&graph, &found);
    let factor = |e: usize, tension: bool| {
        let (i, j) = (graph.edges()[e].i, graph.edges()[e].j);
        let gradient = match tension {
            true => found[e].gradient,
            false => Tangent::zeros(),
        };
        let ends = [(i, &converged[i]), (j, &converged[j])];
        PoseFactor::at(ends[0], ends[1], &found[e].hessian, &gradient)
    };
    let mut slack: f64 = 0.0;
    for demoted in 0..every.len() {
        let keep: Vec<usize> = every.iter().copied().filter(|e| *e != demoted).collect();
        let again = solve(&graph, &keep, &[factor(demoted, true)], &converged);
        let far = moved(&converged, &again, &sigmas);
        assert!(far < 0.1, "edge {demoted}: {far} standard deviations");
        let again = solve(&graph, &keep, &[factor(demoted, false)], &converged);
        slack = slack.max(moved(&converged, &again, &sigmas));
    }
    // At the present relative pose a factor would let its keyframes go: the test can fail.
    assert!(slack > 0.5, "{slack}");

    // All edges at once, so that no match is left.
    let factors: Vec<PoseFactor> = every.iter().map(|&e| factor(e, true)).collect();
    let again = solve(&graph, &[], &factors, &converged);
    let far = moved(&converged, &again, &sigmas);
    assert!(far < 0.1, "the skeleton: {far} standard deviations");
}

/// A factor meets the normal equations that it was made for, in any frame and of any rank.
#[test]
fn a_factor_has_the_equations_that_it_was_made_for() {
    let mut random = Random(5);
    for rank in 0..9 {
        for far in [0.0, 100.0] {
            let mut outer = random.tangent(1.0);
            outer[0] += far;
            let outer = Sim3::exp(&outer);
            let (a, b) = (
                outer * Sim3::exp(&random.tangent(0.5)),
                outer * Sim3::exp(&random.tangent(0.5)),
            );
            let to_outer = outer.inverse().adjoint();
            let mut local = Matrix7::zeros();
            for _ in 0..rank {
                let row = random.tangent(30.0);
                local += row * row.transpose();
            }
            // A pull of a few standard deviations, in directions that are measured.
            let pull = local * random.tangent(0.05);
            let hessian = to_outer.transpose() * local * to_outer;
            let gradient = to_outer.transpose() * pull;
            let factor = PoseFactor::at((0, &a), (1, &b), &hessian, &gradient);
            let at = factor.equations(&a, &b);
            let close = 1e-6 * (1.0 + hessian.norm());
            assert!(
                (at.hessian - hessian).norm() < close,
                "rank {rank}, {far} m"
            );
            let close = 1e-6 * (1.0 + gradient.norm());
            assert!(
                (at.gradient - gradient).norm() < close,
                "rank {rank}, {far} m"
            );
        }
    }
}
