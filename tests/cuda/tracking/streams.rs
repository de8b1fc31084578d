//! Repeated, in graphs, side by side, and timed.

use super::*;
use crate::cuda;

#[test]
fn two_runs_give_the_same_bits() {
    let Some(gpu) = cuda() else { return };
    let (width, height) = (512, 384);
    let rig = Rig::new(&gpu, width, height);
    let other = Rig::new(&gpu, width, height);
    for seed in 0..3 {
        let truth = Sim3::exp(&Random(seed).tangent(0.1));
        for (_, residual, pair) in problems(width, height, truth) {
            let start = Sim3::exp(&Random(seed + 50).tangent(0.05));
            let params = TrackingConfig::default();
            let first = rig.solve(&pair, residual, &start, &params);
            for _ in 0..20 {
                assert_eq!(rig.solve(&pair, residual, &start, &params), first);
            }
            assert_eq!(other.solve(&pair, residual, &start, &params), first);
        }
    }
}

/// In a graph the solve is one node, and each launch goes on from the pose of the one before.
#[test]
fn a_graph_replays_the_solve() {
    let Some(gpu) = cuda() else { return };
    let rig = Rig::new(&gpu, 256, 192);
    let truth = Sim3::exp(&Random(3).tangent(0.1));
    let params = TrackingConfig {
        max_iters: 1,
        ..TrackingConfig::default()
    };
    for (_, residual, pair) in problems(256, 192, truth) {
        let mut expected = Vec::new();
        let mut start = Sim3::identity().to_array();
        for _ in 0..4 {
            rig.load(&pair, &Sim3::identity());
            rig.stream.write(&start, rig.pose.all()).unwrap();
            let task = rig.task(residual);
            rig.solver.enqueue(&rig.stream, &task, &params).unwrap();
            expected.push(rig.outcome());
            start = rig.outcome().pose;
        }
        rig.load(&pair, &Sim3::identity());
        let graph = rig
            .stream
            .capture(|| {
                rig.solver
                    .enqueue(&rig.stream, &rig.task(residual), &params)
            })
            .unwrap();
        assert_eq!(graph.nodes(), 1);
        for expected in &expected {
            // SAFETY: the rig's buffers are alive, and the stream is waited for in between.
            unsafe { graph.launch(&rig.stream) }.unwrap();
            assert_eq!(&rig.outcome(), expected);
        }
    }
}

/// Two solves on two streams at once, as tracker and mapper do: both end, and with the right bits.
#[test]
fn two_streams_solve_at_the_same_time() {
    let Some(gpu) = cuda() else { return };
    let (width, height) = (512, 384);
    let rigs = [Rig::new(&gpu, width, height), Rig::new(&gpu, width, height)];
    let truth = Sim3::exp(&Random(3).tangent(0.1));
    let [(_, residual, pair), ..] = problems(width, height, truth);
    let params = TrackingConfig::default();
    let start = Sim3::identity();
    let solve = |rig: &Rig| rig.solve(&pair, residual, &start, &params);
    let expected = rigs.each_ref().map(solve);
    assert_eq!(expected[0], expected[1]);
    for _ in 0..50 {
        for rig in &rigs {
            rig.load(&pair, &start);
        }
        for _ in 0..4 {
            for rig in &rigs {
                let task = SolveTask {
                    pose: None,
                    ..rig.task(residual)
                };
                rig.solver.enqueue(&rig.stream, &task, &params).unwrap();
            }
        }
        for rig in &rigs {
            assert_eq!(rig.outcome(), expected[0]);
        }
    }
}

/// Not a test of anything: how long a solve takes, as the kernel runs it and as a frame sees it.
#[test]
#[ignore = "measures"]
fn how_long_a_solve_takes() {
    let Some(gpu) = cuda() else { return };
    for (width, height) in [(256, 192), (512, 384)] {
        let rig = Rig::new(&gpu, width, height);
        let truth = Sim3::exp(&Random(1).tangent(0.05));
        for (name, residual, pair) in problems(width, height, truth) {
            for max_iters in [0, 1, 10] {
                let params = TrackingConfig {
                    max_iters,
                    rel_error: 0.0,
                    delta_norm: 0.0,
                    ..TrackingConfig::default()
                };
                rig.load(&pair, &Sim3::exp(&Random(2).tangent(0.2)));
                let task = SolveTask {
                    pose: None,
                    ..rig.task(residual)
                };
                let (begin, end) = (gpu.event(true).unwrap(), gpu.event(true).unwrap());
                let mut times: Vec<f32> = (0..200)
                    .map(|_| {
                        rig.stream.record(&begin).unwrap();
                        rig.solver.enqueue(&rig.stream, &task, &params).unwrap();
                        rig.stream.record(&end).unwrap();
                        begin.milliseconds_until(&end).unwrap()
                    })
                    .collect();
                times.sort_by(f32::total_cmp);
                let outcome = rig.outcome();
                println!(
                    "{name} {width}x{height}: {} iterations, {} evaluations, {} used: median {:.1} us, \
                     p99 {:.1} us, least {:.1} us",
                    outcome.iterations,
                    outcome.evaluations,
                    outcome.used,
                    times[100] * 1e3,
                    times[198] * 1e3,
                    times[0] * 1e3
                );
            }
        }
    }
}
