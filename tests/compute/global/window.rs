//! A solve of the newest keyframes instead of all (docs/reference-defects.md, B51): what it costs and what it changes.

use mast3r_slam::compute::global::{GlobalResidual, GlobalSolver, Priors};
use mast3r_slam::config::GlobalOptConfig;
use mast3r_slam::geometry::Sim3;
use mast3r_slam::slam::window::{Limits, Window};
use testkit::solver_scene::{Graph, Random, distance};

const SIZE: (usize, usize) = (29, 23);
const COUNT: usize = 48;

/// Keyframes that are connected with the two before them, with noise on every point, and one more edge
/// from the last to the third.
fn sequence() -> (Graph, Vec<(usize, usize)>) {
    let mut links = Vec::new();
    for k in 1..COUNT {
        links.push((k - 1, k));
        if k > 1 {
            links.push((k - 2, k));
        }
    }
    links.push((2, COUNT - 1));
    let mut graph = Graph::new(SIZE.0, SIZE.1, COUNT, &links, 0.0);
    let mut random = Random(31);
    for points in &mut graph.points {
        for v in points {
            *v *= 1.0 + (random.normal() * 0.01) as f32;
        }
    }
    (graph, links)
}

/// A run that adds keyframes one by one, each placed a little wrong beside the one before.
struct Run {
    /// Just before the loop is closed, and after.
    before: Vec<Sim3>,
    after: Vec<Sim3>,
    /// Edges and free keyframes of each solve.
    work: Vec<(usize, usize)>,
    /// Solves of everything though there were more keyframes than the window has.
    whole: usize,
}

fn run(size: usize) -> Run {
    let (graph, links) = sequence();
    let all = graph.edges();
    let params = GlobalOptConfig::default();
    let mut solver = GlobalSolver::new();
    let mut poses: Vec<Sim3> = Vec::new();
    let (mut work, mut whole, mut solved) = (Vec::new(), 0, 0);
    let mut random = Random(5);
    let mut before = Vec::new();
    for step in 0..=COUNT {
        // The last step only adds the edge that closes the loop.
        if let Some(truth) = graph.truth.get(step) {
            let pose = match step {
                0 => *truth,
                _ => {
                    let relative = graph.truth[step - 1].inverse() * *truth;
                    (poses[step - 1] * relative).retract(&random.tangent(0.01))
                }
            };
            poses.push(pose);
        } else {
            before = poses.clone();
        }
        let closing = usize::from(step < COUNT);
        let known = links.iter().take(links.len() - closing);
        let known: Vec<_> = known.copied().filter(|(_, j)| *j < poses.len()).collect();
        let limits = Limits {
            newest: size,
            keyframes: 0,
            edges: 0,
        };
        let window = Window::choose(poses.len(), &known, solved, &[], params.pin, limits);
        solved = known.len();
        whole += usize::from(window.whole && size > 0 && poses.len() > size);
        work.push((window.edges.len(), window.keyframes.len() - window.fixed));
        let places = window.places(poses.len());
        let keyframes: Vec<_> = window
            .keyframes
            .iter()
            .map(|&k| {
                let mut keyframe = graph.keyframes()[k];
                keyframe.world_from_camera = poses[k];
                keyframe
            })
            .collect();
        let edges: Vec<_> = window
            .edges
            .iter()
            .map(|&e| {
                let mut edge = all[e];
                edge.i = places[edge.i].unwrap();
                edge.j = places[edge.j].unwrap();
                edge
            })
            .collect();
        let params = GlobalOptConfig {
            pin: window.fixed,
            ..params.clone()
        };
        let mut moved = vec![Sim3::identity(); keyframes.len()];
        let residual = GlobalResidual::Rays;
        solver
            .solve(
                &keyframes,
                &edges,
                &[],
                Priors::default(),
                residual,
                SIZE.0,
                SIZE.1,
                &params,
                &mut moved,
            )
            .unwrap();
        for (pose, &k) in moved.iter().zip(&window.keyframes) {
            poses[k] = *pose;
        }
    }
    Run {
        before,
        after: poses,
        work,
        whole,
    }
}

fn worst(a: &[Sim3], b: &[Sim3]) -> f64 {
    let each = a.iter().zip(b).map(|(a, b)| distance(a, b));
    each.fold(0.0, f64::max)
}

#[test]
fn a_window_costs_the_same_for_ever_and_changes_next_to_nothing() {
    let (graph, links) = sequence();
    let full = run(0);
    assert_eq!(full.work.last(), Some(&(links.len(), COUNT - 1)));
    let error = worst(&full.before, &graph.truth);
    for size in [6, 10] {
        let windowed = run(size);
        // Until the loop: `size` keyframes with two edges each to the ones before them.
        let (last, rest) = windowed.work.split_last().unwrap();
        for (k, work) in rest.iter().enumerate().skip(size + 1) {
            assert_eq!(*work, (2 * size, size), "keyframe {k}");
        }
        // The loop is closed by moving everything, at once.
        assert_eq!((windowed.whole, *last), (1, (links.len(), COUNT - 1)));

        let before = worst(&windowed.before, &full.before);
        let after = worst(&windowed.after, &full.after);
        eprintln!(
            "window {size}: {before:.2e} before the loop, {after:.2e} after it; error {error:.2e}"
        );
        assert!(before < 0.1 * error, "{size}: {before} of {error}");
        assert!(after < 1e-3 * error, "{size}: {after} of {error}");
    }
}
