//! The global solve on the device, against the CPU's.

use crate::cuda;
use crate::global_support::{Case, OnDevice, bits, residuals, spoilt_case};
use mast3r_slam::compute::cuda::global::{DeviceProblem, GlobalCapacity, GlobalError};
use mast3r_slam::compute::global::{
    EdgeEquations, GlobalReport, GlobalResidual, Matrix7, MetricPrior, PoseFactor, ScalePrior,
    Wanted,
};
use mast3r_slam::config::GlobalOptConfig;
use mast3r_slam::geometry::{Sim3, Tangent};
use mast3r_slam::gpu::allocations;
use nalgebra::{Isometry3, Vector3};
use testkit::solver_scene::{self, Graph, Random, distance};

/// What rows of `H` in world poses are measured by, where f32 summed `A⁻ᵀ·H·A⁻¹` in a keyframe's own frame,
/// `A = Ad(T⁻¹)`: there entry (a, b) is off by a fraction of `√(H_aa·H_bb)`, and `A` takes these errors along
/// without their signs. The other direction's matches are in `H`, too, which makes the scales larger, not
/// smaller. Directions of points carry an error of their own, four roundings, `direction` of that fraction:
/// what one row knows of the others' motion by that.
fn scales(pose: &Sim3, hessian: &Matrix7, direction: f64) -> Tangent {
    let there = pose.adjoint();
    let own = (there.transpose() * hessian * there).diagonal();
    let own = own.map(|v| v.max(0.0));
    let turned = Tangent::from_fn(|r, _| match r {
        0..3 => own.fixed_rows::<3>(0).sum(),
        3..6 => own.fixed_rows::<3>(3).sum(),
        _ => own[6],
    });
    let own = own.map(f64::sqrt) + turned.map(f64::sqrt) * direction;
    pose.inverse().adjoint().abs().transpose() * own
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
        let direction = 4.0 / f64::from(1 << 24) / relative;
        let m = &case.graph.matches[e];
        let of = |k: usize| scales(&case.graph.start[k], &x.hessian, direction);
        let (one, other) = (of(m.i), of(m.j));
        let mut check = |k: usize, name: String, f: f64, x: f64, bound: f64| {
            worst[k] = worst[k].max((f - x).abs() / bound.max(f64::MIN_POSITIVE));
            assert!(
                (f - x).abs() <= bound,
                "{at}: {name} {f:e}, expected {x:e}, bound {bound:e}"
            );
        };
        for r in 0..7 {
            for c in 0..7 {
                // A match's share of H is at most thirty times the average: near points weigh more.
                let bound = (relative + 30.0 * share) * (one[r] * one[c] + other[r] * other[c]);
                let (f, x) = (f.hessian[(r, c)], x.hessian[(r, c)]);
                check(0, format!("H({r}, {c})"), f, x, bound);
            }
            // Cauchy-Schwarz of rows and errors of the residuals.
            check(
                1,
                format!("g({r})"),
                f.gradient[r],
                x.gradient[r],
                moved * (one[r] + other[r]),
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
            let found = device.equations(&case, Wanted::Equations).unwrap();
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
        let found = device.equations(&case, Wanted::Equations).unwrap();
        let expected = case.equations_on_cpu(&case.keyframes());
        compare_equations(&format!("{size:?} {residual:?}"), &case, &found, &expected);
    }
}

/// The kernels that add up nothing but the cost give its bits, of whole tiles and of lists of matches.
#[test]
fn the_cost_alone_is_that_of_the_equations() {
    let Some(gpu) = cuda() else { return };
    for size in [(11, 3), (53, 41), (256, 192)] {
        for residual in residuals(size) {
            let whole = Graph::new(size.0, size.1, 3, &[(0, 1), (2, 1)], 0.03);
            for case in [spoilt_case(size, residual, 3), Case::new(whole, residual)] {
                let mut device = OnDevice::new(&gpu, &case, case.capacity());
                let whole = device.equations(&case, Wanted::Equations).unwrap();
                let costs = device.equations(&case, Wanted::Cost).unwrap();
                let of = |e: &EdgeEquations| (e.robust.to_bits(), e.matches);
                let what = format!("{size:?} {residual:?}");
                let whole: Vec<_> = whole.iter().map(of).collect();
                assert!(whole.iter().any(|(_, matches)| *matches > 0), "{what}");
                assert_eq!(costs.iter().map(of).collect::<Vec<_>>(), whole, "{what}");
                assert!(costs.iter().all(|e| e.hessian == Matrix7::zeros()));
                assert!(costs.iter().all(|e| e.gradient == Tangent::zeros()));
            }
        }
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

/// Graphs with one solution, to be found from some way off.
fn solvable() -> Vec<(String, Case)> {
    let mut cases = Vec::new();
    for size in [(53, 41), (97, 89)] {
        for residual in residuals(size) {
            for (name, noise, off) in [("exact", 0.0, 0.03), ("noisy", 0.005, 0.05)] {
                let mut graph = Graph::new(size.0, size.1, 8, &Graph::chain(8, 12), off);
                if matches!(residual, GlobalResidual::Calibrated(_)) {
                    // Pixels only fit where the matches are those of one camera.
                    graph = still(graph, off);
                }
                let mut random = Random(17);
                for v in graph.points.iter_mut().flatten() {
                    *v *= 1.0 + (noise * random.normal()) as f32;
                }
                let mut case = Case::new(graph, residual);
                case.params.max_iters = 40;
                cases.push((format!("{size:?} {residual:?} {name}"), case));
            }
        }
    }
    cases
}

/// Without a GPU: they have one.
#[test]
fn solvable_graphs_are_solved_on_the_cpu() {
    for (what, case) in solvable() {
        let (_, report) = case.on_cpu().unwrap();
        assert!(
            report.converged && report.iterations < 30,
            "{what}: {report:?}"
        );
    }
}

#[test]
fn solutions_are_the_cpus() {
    let Some(gpu) = cuda() else { return };
    for (what, case) in solvable() {
        let (expected, on_cpu) = case.on_cpu().unwrap();
        let mut device = OnDevice::new(&gpu, &case, case.capacity());
        let (found, report) = device.solve(&case).unwrap();
        eprintln!("{what}: {report:?}\n  CPU {on_cpu:?}");
        compare_reports(&what, &report, &on_cpu);
        assert!(report.converged, "{what}");
        assert!(report.final_cost <= report.initial_cost, "{what}");
        compare_solutions(&what, &case, &found, &expected, on_cpu.final_cost);
        let pinned = bits(&found[..1]) == bits(&case.graph.start[..1]);
        assert!(pinned, "{what}: the first pose moved");
    }
}

/// Every keyframe the same camera: pixels match themselves.
fn still(mut graph: Graph, off: f64) -> Graph {
    let mut random = Random(3);
    let count = graph.width * graph.height;
    let room = solver_scene::flat(&solver_scene::room(graph.width, graph.height));
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

/// Graphs with nothing to solve, in parts or as a whole.
fn degenerate() -> Vec<(&'static str, Case)> {
    let size = (53, 41);
    let base = || Graph::new(size.0, size.1, 5, &[(0, 1), (1, 2), (0, 2), (3, 4)], 0.05);
    let rays = |graph| Case::new(graph, GlobalResidual::Rays);
    let mut cases: Vec<(&str, Case)> = vec![("two groups and pinned", rays(base()))];

    let mut no_matches = base();
    for m in &mut no_matches.matches {
        m.quality_i.fill(0.0);
        m.quality_j.fill(0.0);
    }
    cases.push(("no matches", rays(no_matches)));

    let mut few = base();
    few.matches[3].quality_i.fill(0.0);
    few.matches[3].quality_j.fill(0.0);
    few.matches[3].quality_j[100..106].fill(2.0);
    cases.push(("six matches are no connection", rays(few)));

    for (all_name, name, value) in [
        ("all NaN points", "NaN points", f32::NAN),
        ("all zero points", "zero points", 0.0),
        ("all infinite points", "infinite points", f32::INFINITY),
    ] {
        for residual in residuals(size) {
            let base = || match residual {
                GlobalResidual::Calibrated(_) => still(base(), 0.05),
                _ => base(),
            };
            let mut all = base();
            all.points.iter_mut().for_each(|p| p.fill(value));
            cases.push((all_name, Case::new(all, residual)));
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
    held.matches[3].quality_i.fill(0.0);
    held.matches[3].quality_j.fill(0.0);
    let mut held = rays(held);
    held.factors = vec![
        PoseFactor {
            i: 3,
            j: 4,
            i_from_j: Sim3::exp(&Random(4).tangent(0.3)),
            information: Matrix7::identity() * 1.0,
        },
        PoseFactor {
            i: 1,
            j: 3,
            i_from_j: Sim3::exp(&Random(5).tangent(0.3)),
            information: correlated(7),
        },
    ];
    cases.push(("held by factors alone", held));
    let mut only = rays(Graph::new(size.0, size.1, 2, &[], 0.1));
    only.factors = vec![PoseFactor {
        i: 0,
        j: 1,
        i_from_j: Sim3::exp(&Random(6).tangent(0.3)),
        information: Matrix7::identity() * 1.0,
    }];
    cases.push(("a factor and no edge", only));

    let mut metric = rays(base());
    metric.scales = vec![
        ScalePrior {
            k: 0,
            log_scale: 0.3,
            information: 4e3,
        },
        ScalePrior {
            k: 2,
            log_scale: 0.25,
            information: 9e3,
        },
    ];
    let p = Random(8).tangent(0.5);
    metric.motions = vec![MetricPrior {
        i: 3,
        j: 1,
        i_from_j: Isometry3::new(
            Vector3::new(p[0], p[1], p[2]),
            Vector3::new(p[3], p[4], p[5]),
        ),
        information: correlated(9).fixed_view::<6, 6>(0, 0) * 1e2,
    }];
    cases.push(("with priors in metres", metric));

    let mut outside = base();
    outside.matches[1].index_j_from_i[5] = 2173;
    outside.matches[1].index_j_from_i[6] = u32::MAX;
    outside.matches[1].index_j_from_i[7] = u32::MAX;
    outside.matches[1].quality_i[7] = 0.0;
    cases.push(("matches outside", rays(outside)));
    cases
}

/// An information with correlations between all directions.
fn correlated(seed: u64) -> Matrix7 {
    let mut random = Random(seed);
    let rows = (0..9).map(|_| random.tangent(1.0));
    let sum = rows.fold(Matrix7::zeros(), |sum, row| sum + row * row.transpose());
    sum + Matrix7::identity()
}

/// Without a GPU: the graphs are what their names say, to the CPU.
#[test]
fn degenerate_graphs_are_what_their_names_say() {
    for (name, case) in degenerate() {
        let found = case.on_cpu();
        let counts = found
            .as_ref()
            .map(|(_, r)| (r.free, r.loose_groups, r.iterations > 0));
        let expected = match name {
            "two groups and pinned" => Ok((3, 1, true)),
            "no matches" | "all NaN points" | "all zero points" | "all infinite points" => {
                Ok((0, 4, false))
            }
            "six matches are no connection" => Ok((2, 2, true)),
            "NaN points" | "zero points" | "infinite points" => Ok((2, 2, true)),
            "one keyframe" | "all pinned" => Ok((0, 0, false)),
            "no edges" => Ok((0, 0, false)),
            "three pinned" => Ok((1, 1, true)),
            "held by factors alone" => Ok((4, 0, true)),
            "a factor and no edge" => Ok((1, 0, true)),
            "with priors in metres" => Ok((5, 0, true)),
            "matches outside" => Err(()),
            other => panic!("{other}"),
        };
        assert_eq!(counts.map_err(|_| ()), expected, "{name}: {found:?}");
    }
}

#[test]
fn degenerate_graphs_end_as_on_the_cpu() {
    let Some(gpu) = cuda() else { return };
    let cases = degenerate();
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
                // What factors hold follows keyframes that matches placed to 1e-6, or nothing that is f32.
                let held = name.contains("factor");
                assert!(!held || far < 1e-4, "{name}: {far:e}");
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
            c.factors.push(PoseFactor {
                i: 0,
                j: 9,
                i_from_j: Sim3::identity(),
                information: Matrix7::zeros(),
            });
        },
        |c: &mut Case| {
            c.factors.push(PoseFactor {
                i: 0,
                j: 1,
                i_from_j: Sim3::identity(),
                information: Matrix7::identity() * -1.0,
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
                max: 2
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
    case.params.max_iters = GlobalOptConfig::default().max_iters;
    let again = device.solve(&case).unwrap();
    assert_eq!(bits(&good.0), bits(&again.0));
}
