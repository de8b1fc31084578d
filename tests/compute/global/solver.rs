//! Global solve: keyframe poses recovered from matches, and what must not go wrong with graphs.

use mast3r_slam::compute::global::{
    Edge, GlobalReport, GlobalResidual, GlobalSolver, Keyframe, Matrix7, PoseFactor, Priors,
    SolveError,
};
use mast3r_slam::compute::pose_solver::{Correspondences, PoseSolver, Residual};
use mast3r_slam::config::{GlobalOptConfig, TrackingConfig};
use mast3r_slam::geometry::{Sim3, Tangent};
use nalgebra::Vector3;
use testkit::solver_scene::{Graph, Match, Random, distance, flat, intrinsics};

const SIZE: (usize, usize) = (53, 41);

fn exhaustive() -> GlobalOptConfig {
    GlobalOptConfig {
        max_iters: 50,
        rel_error: 0.0,
        delta_norm: 1e-10,
        ..GlobalOptConfig::default()
    }
}

fn solve_with(
    graph: &Graph,
    edges: &[Edge<'_>],
    factors: &[PoseFactor],
    residual: GlobalResidual,
    params: &GlobalOptConfig,
) -> Result<(Vec<Sim3>, GlobalReport), SolveError> {
    // The previous contents of the output are not read.
    let mut poses = vec![Sim3::exp(&Tangent::repeat(0.7)); graph.truth.len()];
    let (width, height) = (graph.width, graph.height);
    let keyframes = graph.keyframes();
    let mut solver = GlobalSolver::new();
    let priors = Priors::default();
    let report = solver.solve(
        &keyframes, edges, factors, priors, residual, width, height, params, &mut poses,
    )?;
    Ok((poses, report))
}

fn solve(graph: &Graph, residual: GlobalResidual) -> (Vec<Sim3>, GlobalReport) {
    solve_with(graph, &graph.edges(), &[], residual, &exhaustive()).unwrap()
}

fn loopy() -> Graph {
    Graph::new(SIZE.0, SIZE.1, 6, &Graph::chain(6, 9), 0.05)
}

/// With noise of `sigma` times the distance on every point.
fn noisy(mut graph: Graph, sigma: f64) -> Graph {
    let mut random = Random(77);
    for points in &mut graph.points {
        for p in points.chunks_exact_mut(3) {
            let d = p.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
            for v in p {
                *v += (random.normal() * sigma * d) as f32;
            }
        }
    }
    graph
}

fn bits(poses: &[Sim3]) -> Vec<[u64; 8]> {
    let of = |p: &Sim3| p.to_array().map(f64::to_bits);
    poses.iter().map(of).collect()
}

#[test]
fn exact_poses_are_recovered() {
    for residual in [GlobalResidual::Rays, GlobalResidual::Points] {
        let graph = loopy();
        let (poses, report) = solve(&graph, residual);
        assert!(report.converged && report.final_cost <= report.initial_cost);
        assert_eq!((report.free, report.loose_groups), (5, 0));
        for (p, t) in poses.iter().zip(&graph.truth) {
            // Points rounded to f32 and averaged; a scale hangs on distances with σ 10 m.
            let off = distance(p, t);
            assert!(off < 1e-6, "{residual:?} {off} {report:?}");
        }
    }
}

/// Cameras that slide along a wall by whole pixels: the matches are exact pixels.
fn sliding(starts_off: f64) -> Graph {
    let (width, height) = SIZE;
    let k = intrinsics(width, height);
    let (depth, shift) = (2.0, 3);
    let count = 4;
    let mut random = Random(9);
    // Scales differ: a keyframe's own metre is its own affair.
    let scales = [1.0, 1.25, 0.8, 1.1];
    let truth: Vec<Sim3> = (0..count)
        .map(|c| Sim3 {
            translation: Vector3::new((c * shift) as f64 * depth / k.fx, 0.0, 0.0),
            scale: scales[c],
            ..Sim3::identity()
        })
        .collect();
    let points = scales
        .iter()
        .map(|s| {
            let all = (0..width * height).map(|n| {
                // Only depths are read: what else is here is wrong on purpose.
                Vector3::new((n % 7) as f64, -3.0, depth / s)
            });
            flat(&all.collect::<Vec<_>>())
        })
        .collect();
    let pairs = [(0, 1), (1, 2), (3, 2), (0, 3)];
    let matches = pairs
        .map(|(i, j)| {
            // Pixel u of j is pixel u + (j − i)·shift of i.
            let map = |from: usize, to: usize, sure: f32| {
                let by = (from as i64 - to as i64) * shift as i64;
                let mut index = vec![0; width * height];
                let mut quality = vec![0.0; width * height];
                for v in 0..height {
                    for u in 0..width {
                        let m = u as i64 + by;
                        if (0..width as i64).contains(&m) {
                            index[v * width + u] = (v * width) as u32 + m as u32;
                            quality[v * width + u] = sure;
                        }
                    }
                }
                (index, quality)
            };
            let (index_i_from_j, quality_j) = map(j, i, 2.0);
            let (index_j_from_i, quality_i) = map(i, j, 1.7);
            Match {
                i,
                j,
                index_i_from_j,
                index_j_from_i,
                quality_j,
                quality_i,
            }
        })
        .into();
    let start = truth.iter().enumerate().map(|(c, t)| match c {
        0 => *t,
        _ => t.retract(&random.tangent(starts_off)),
    });
    Graph {
        width,
        height,
        points,
        confidence: vec![2.0; width * height],
        start: start.collect(),
        truth,
        matches,
    }
}

#[test]
fn exact_calibrated_poses_are_recovered_from_depths_and_pixels() {
    let graph = sliding(0.03);
    let residual = GlobalResidual::Calibrated(intrinsics(SIZE.0, SIZE.1));
    let (poses, report) = solve(&graph, residual);
    for (p, t) in poses.iter().zip(&graph.truth) {
        // Depths rounded to f32 all alike here: 6e-8 each, not averaged.
        assert!(distance(p, t) < 1e-6, "{} {report:?}", distance(p, t));
    }
    assert!(report.final_cost < 1e-6 * report.initial_cost);
}

/// One direction of one edge is exactly what tracking solves.
#[test]
fn two_poses_are_the_trackers_solution() {
    let mut graph = noisy(Graph::new(SIZE.0, SIZE.1, 2, &[(0, 1)], 0.05), 0.003);
    graph.matches[0].quality_i.fill(0.0);
    let intrinsics = intrinsics(SIZE.0, SIZE.1);
    for calibrated in [false, true] {
        let (global, tracking) = match calibrated {
            true => (
                GlobalResidual::Calibrated(intrinsics),
                Residual::Calibrated(intrinsics),
            ),
            false => (GlobalResidual::Rays, Residual::Rays),
        };
        let edge = &graph.matches[0];
        // Tracking goes by the pixels of the target.
        let count = SIZE.0 * SIZE.1;
        let mut index = vec![0; count];
        let mut quality = vec![0.0; count];
        for (n, &m) in edge.index_i_from_j.iter().enumerate() {
            index[m as usize] = n as u32;
            quality[m as usize] = edge.quality_j[n];
        }
        let mut moving = graph.points[1].clone();
        if calibrated {
            let points = &graph.points[1];
            let (w, h) = SIZE;
            mast3r_slam::compute::pose_solver::constrain_to_rays(
                points,
                intrinsics,
                w,
                h,
                &mut moving,
            )
            .unwrap();
        }
        let correspondences = Correspondences {
            frame_points: &moving,
            keyframe_points: &graph.points[0],
            index: &index,
            quality: &quality,
            width: SIZE.0,
            height: SIZE.1,
            measured: None,
            min_fit: 0.0,
        };
        let start = graph.start[0].inverse() * graph.start[1];
        let params = TrackingConfig {
            rel_error: 0.0,
            delta_norm: 1e-11,
            ..TrackingConfig::default()
        };
        let tracked = PoseSolver::new(count)
            .solve(&correspondences, tracking, &start, &params)
            .unwrap();
        let params = GlobalOptConfig {
            max_iters: params.max_iters,
            delta_norm: 1e-11,
            ..exhaustive()
        };
        let (poses, report) = solve_with(&graph, &graph.edges(), &[], global, &params).unwrap();
        let relative = poses[0].inverse() * poses[1];
        let off = distance(&relative, &tracked.keyframe_from_frame);
        // Both stop when steps fall below what rounding leaves of them.
        assert!(off < 1e-7, "{calibrated} {off} {report:?} {tracked:?}");
        assert_eq!(report.matches, tracked.used as u64);
    }
}

#[test]
fn pinned_poses_keep_every_bit() {
    for pin in [1, 2, 5] {
        let graph = loopy();
        let params = GlobalOptConfig {
            pin,
            ..exhaustive()
        };
        let edges = graph.edges();
        let (poses, report) =
            solve_with(&graph, &edges, &[], GlobalResidual::Rays, &params).unwrap();
        assert_eq!(bits(&poses[..pin]), bits(&graph.start[..pin]));
        assert!((pin..6).all(|k| poses[k] != graph.start[k]));
        assert_eq!(report.free, 6 - pin);
        for p in &poses[pin..] {
            assert!((p.rotation.norm() - 1.0).abs() < 1e-15);
        }
    }
}

#[test]
fn nothing_to_solve_is_a_report_at_once() {
    let graph = loopy();
    let edges = graph.edges();
    let all_pinned = GlobalOptConfig {
        pin: 6,
        ..exhaustive()
    };
    for (edges, params) in [(&edges[..0], exhaustive()), (&edges[..], all_pinned)] {
        let solved = solve_with(&graph, edges, &[], GlobalResidual::Rays, &params);
        let (poses, report) = solved.unwrap();
        assert_eq!(bits(&poses), bits(&graph.start));
        assert_eq!((report.iterations, report.converged), (0, true));
    }
    let mut none = [];
    let report = GlobalSolver::new()
        .solve(
            &[],
            &[],
            &[],
            Priors::default(),
            GlobalResidual::Rays,
            4,
            4,
            &exhaustive(),
            &mut none,
        )
        .unwrap();
    assert!(report.converged);
}

#[test]
fn the_order_of_edges_means_nothing() {
    let graph = noisy(loopy(), 0.005);
    let mut edges = graph.edges();
    let params = exhaustive();
    let one = |edges: &[Edge<'_>]| {
        let solved = solve_with(&graph, edges, &[], GlobalResidual::Rays, &params);
        solved.unwrap().0
    };
    let expected = one(&edges);
    edges.reverse();
    edges.swap(1, 4);
    // An edge is undirected: turned round it is the same.
    let e = edges[0];
    edges[0] = Edge {
        i: e.j,
        j: e.i,
        index_i_from_j: e.index_j_from_i,
        quality_j: e.quality_i,
        index_j_from_i: e.index_i_from_j,
        quality_i: e.quality_j,
    };
    for (a, b) in one(&edges).iter().zip(&expected) {
        assert!(distance(a, b) < 1e-8, "{}", distance(a, b));
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let graph = noisy(loopy(), 0.005);
    for residual in [
        GlobalResidual::Rays,
        GlobalResidual::Points,
        GlobalResidual::Calibrated(intrinsics(SIZE.0, SIZE.1)),
    ] {
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()
                .unwrap();
            let params = GlobalOptConfig::default();
            let edges = graph.edges();
            let solved = pool.install(|| solve_with(&graph, &edges, &[], residual, &params));
            let (poses, report) = solved.unwrap();
            (bits(&poses), format!("{report:?}"))
        };
        assert_eq!(on(1), on(3), "{residual:?}");
    }
}

#[test]
fn nan_changes_no_bit_of_any_pose() {
    let graph = || noisy(loopy(), 0.005);
    let spoilt = || (0..SIZE.0 * SIZE.1).step_by(11);
    let mut clean = graph();
    // Everything that touches the spoilt pixels of keyframe 2 is invalid.
    for m in &mut clean.matches {
        for n in spoilt() {
            if m.j == 2 {
                m.quality_j[n] = 0.0;
                let to = m.index_i_from_j[n] as usize;
                m.quality_i[to] = 0.0;
            }
            if m.i == 2 {
                m.quality_i[n] = 0.0;
                let to = m.index_j_from_i[n] as usize;
                m.quality_j[to] = 0.0;
            }
        }
    }
    for residual in [GlobalResidual::Rays, GlobalResidual::Points] {
        let expected = bits(&solve(&clean, residual).0);
        for bad in [f32::NAN, f32::INFINITY, 0.0] {
            for valid in [true, false] {
                let mut poisoned = graph();
                for n in spoilt() {
                    poisoned.points[2][3 * n..3 * n + 3].fill(bad);
                }
                if !valid {
                    for (m, c) in poisoned.matches.iter_mut().zip(&clean.matches) {
                        m.quality_i.clone_from(&c.quality_i);
                        m.quality_j.clone_from(&c.quality_j);
                    }
                }
                let (poses, report) = solve(&poisoned, residual);
                assert_eq!(
                    bits(&poses),
                    expected,
                    "{residual:?} {bad} {valid} {report:?}"
                );
            }
        }
    }
}

/// Gates on quality and confidence are strict, and confidence gates both ends of a match.
#[test]
fn gates_are_the_configured_ones() {
    let mut graph = loopy();
    let count = SIZE.0 * SIZE.1;
    let directed = 2 * graph.matches.len() as u64;
    for m in &mut graph.matches {
        m.quality_j.fill(1.5);
        m.quality_j[..100].fill(1.6);
    }
    let (_, report) = solve(&graph, GlobalResidual::Rays);
    assert_eq!(report.matches, directed / 2 * (count as u64 + 100));

    let mut graph = loopy();
    graph.confidence.fill(3.0);
    graph.confidence[..50].fill(1.0);
    let params = GlobalOptConfig {
        c_conf: 1.0,
        ..exhaustive()
    };
    let edges = graph.edges();
    let of = |e: &Edge<'_>| {
        let both = |index: &[u32]| {
            let ok = index.iter().enumerate();
            ok.filter(|(n, m)| *n >= 50 && **m >= 50).count() as u64
        };
        both(e.index_i_from_j) + both(e.index_j_from_i)
    };
    let expected: u64 = edges.iter().map(of).sum();
    let solved = solve_with(&graph, &edges, &[], GlobalResidual::Rays, &params);
    assert_eq!(solved.unwrap().1.matches, expected);
}

/// A keyframe whose only edge has no matches must not stop the others, and a factor keeps it in place
/// (docs/reference-defects.md, B44).
#[test]
fn a_keyframe_without_matches_stays_or_follows_its_factor() {
    let mut graph = Graph::new(SIZE.0, SIZE.1, 4, &[(0, 1), (1, 2), (0, 2), (2, 3)], 0.05);
    graph.matches[3].quality_i.fill(0.0);
    graph.matches[3].quality_j.fill(0.0);
    // A handful of matches is no connection either.
    graph.matches[3].quality_j[40..46].fill(2.0);
    let (poses, report) = solve(&graph, GlobalResidual::Rays);
    for (pose, truth) in poses.iter().zip(&graph.truth).take(3) {
        assert!(
            distance(pose, truth) < 1e-6,
            "{} {report:?}",
            distance(pose, truth)
        );
    }
    assert_eq!(bits(&poses[3..]), bits(&graph.start[3..]));
    assert_eq!((report.loose_groups, report.free), (1, 2));

    graph.matches[3].quality_j.fill(0.0);
    let believed = Sim3::exp(&Random(40).tangent(0.2));
    let factor = PoseFactor {
        i: 2,
        j: 3,
        i_from_j: believed,
        information: Matrix7::identity() * 1e-3,
    };
    let params = exhaustive();
    let edges = graph.edges();
    let (poses, report) =
        solve_with(&graph, &edges, &[factor], GlobalResidual::Rays, &params).unwrap();
    assert_eq!((report.loose_groups, report.free), (0, 3));
    for (pose, truth) in poses.iter().zip(&graph.truth).take(3) {
        // The factor is satisfied fully and pulls at nothing.
        assert!(distance(pose, truth) < 1e-6);
    }
    let kept = poses[2].inverse() * poses[3];
    assert!(distance(&kept, &believed) < 1e-6, "{report:?}");
}

/// Where there are matches a weak factor is weak.
#[test]
fn a_weak_factor_gives_way_to_matches() {
    let graph = loopy();
    let wrong = PoseFactor {
        i: 0,
        j: 1,
        i_from_j: Sim3::exp(&Random(41).tangent(0.2)),
        information: Matrix7::identity() * 1e-3,
    };
    let edges = graph.edges();
    let params = exhaustive();
    let solved = solve_with(&graph, &edges, &[wrong], GlobalResidual::Points, &params);
    let (poses, report) = solved.unwrap();
    assert!(report.final_cost > 1e-6, "the factor costs something");
    for (pose, truth) in poses.iter().zip(&graph.truth) {
        // Information of 1e-3 against more than 2000 matches of 1.6/0.05² each.
        assert!(distance(pose, truth) < 1e-6);
    }
}

/// A group that nothing connects with the pinned keyframe is solved about its own first pose.
#[test]
fn groups_without_a_pinned_pose_are_solved_too() {
    let pairs = [(0, 2), (1, 3), (3, 4), (1, 4)];
    let graph = Graph::new(SIZE.0, SIZE.1, 6, &pairs, 0.05);
    let (poses, report) = solve(&graph, GlobalResidual::Rays);
    // {0, 2}, {1, 3, 4}, {5}.
    assert_eq!((report.loose_groups, report.free), (2, 3));
    for k in [0, 1, 5] {
        assert_eq!(bits(&poses[k..=k]), bits(&graph.start[k..=k]));
    }
    for (a, b) in [(0, 2), (1, 3), (1, 4)] {
        let relative = poses[a].inverse() * poses[b];
        let truth = graph.truth[a].inverse() * graph.truth[b];
        assert!(distance(&relative, &truth) < 1e-6, "{a} {b}");
    }
}

/// Steps from far away that overshoot are taken back.
#[test]
fn the_cost_never_rises() {
    for seed in 0..4 {
        let mut graph = noisy(loopy(), 0.01);
        for (k, pose) in graph.start.iter_mut().enumerate().skip(1) {
            *pose = Sim3::exp(&Random(10 * seed + k as u64).tangent(1.0));
        }
        let mut last = f64::INFINITY;
        for max_iters in [1, 3, 10, 40] {
            let params = GlobalOptConfig {
                max_iters,
                ..GlobalOptConfig::default()
            };
            let edges = graph.edges();
            let solved = solve_with(&graph, &edges, &[], GlobalResidual::Rays, &params);
            let (poses, report) = solved.unwrap();
            assert!(poses.iter().all(Sim3::is_finite));
            assert!(report.final_cost <= report.initial_cost.min(last));
            assert!(report.iterations <= max_iters);
            last = report.final_cost;
        }
    }
}

/// A solve ends by itself, unlike one that waits for steps below 1e-8 (docs/reference-defects.md, B27).
#[test]
fn noisy_problems_converge_with_the_default_settings() {
    let graph = noisy(loopy(), 0.002);
    let params = GlobalOptConfig {
        max_iters: 30,
        ..GlobalOptConfig::default()
    };
    let edges = graph.edges();
    let solved = solve_with(&graph, &edges, &[], GlobalResidual::Rays, &params);
    let (poses, report) = solved.unwrap();
    assert!(report.converged && report.iterations < 30, "{report:?}");
    for (pose, truth) in poses.iter().zip(&graph.truth) {
        // 0.2 % of 3 m, twice, over 4346 matches is 0.13 mm across the view; turning against
        // shifting costs ten times that at 60°, a chain of edges twice: 2.6 mm, and four sigmas.
        assert!(distance(pose, truth) < 0.01, "{}", distance(pose, truth));
    }
}

/// Spoils a problem.
type Change = dyn for<'a> Fn(&mut [Keyframe<'a>], &mut [Edge<'a>], &mut PoseFactor);

#[test]
fn input_that_does_not_fit_is_refused_and_changes_nothing() {
    let graph = loopy();
    let refuse = |change: &Change| {
        let (mut keyframes, mut edges) = (graph.keyframes(), graph.edges());
        let mut factor = PoseFactor {
            i: 0,
            j: 1,
            i_from_j: Sim3::identity(),
            information: Matrix7::identity() * 1.0,
        };
        change(&mut keyframes, &mut edges, &mut factor);
        let mut poses = graph.truth.clone();
        let error = GlobalSolver::new()
            .solve(
                &keyframes,
                &edges,
                &[factor],
                Priors::default(),
                GlobalResidual::Rays,
                SIZE.0,
                SIZE.1,
                &exhaustive(),
                &mut poses,
            )
            .unwrap_err();
        assert_eq!(bits(&poses), bits(&graph.truth));
        error.to_string()
    };
    let ends = "give arrays of one image size";
    assert_eq!(
        refuse(&|k, _, _| k[2].confidence = &[]),
        format!("keyframe confidences: expected 2173 entries, found 0: {ends}")
    );
    assert!(
        refuse(&|_, e, _| e[1].quality_i = &[1.0])
            .starts_with("an edge's match qualities: expected 2173")
    );
    assert!(refuse(&|_, e, _| e[1].quality_j = &[]).starts_with("an edge's match qualities"));
    assert!(refuse(&|_, e, _| e[1].index_j_from_i = &[]).starts_with("an edge's matches"));
    assert_eq!(
        refuse(&|_, e, _| e[3].j = 6),
        "an edge connects keyframes 3 and 6: expected two different indices below 6"
    );
    assert!(refuse(&|_, e, _| e[3].j = e[3].i).starts_with("an edge connects keyframes 3 and 3"));
    assert!(refuse(&|_, _, p| p.i = 9).starts_with("a factor connects keyframes 9 and 1"));
    assert_eq!(
        refuse(&|k, _, _| k[4].world_from_camera.translation.x = f64::NAN),
        "a keyframe's pose is not finite: the pose is kept as it was"
    );
    assert!(
        refuse(&|_, _, p| p.information[(3, 3)] = -1.0)
            .starts_with("the factor between keyframes 0 and 1 has an information")
    );
    assert!(refuse(&|_, _, p| p.i_from_j.scale = 0.0).starts_with("a factor's pose is not finite"));

    let mut outside = loopy();
    outside.matches[2].index_i_from_j[7] = 2173;
    outside.matches[2].index_i_from_j[8] = 9999;
    outside.matches[2].quality_j[8] = 0.0;
    let edges = outside.edges();
    let solved = solve_with(&outside, &edges, &[], GlobalResidual::Rays, &exhaustive());
    assert_eq!(
        solved.unwrap_err().to_string(),
        "1 matches point outside the image of 2173 pixels: the matches belong to another image size"
    );
}
