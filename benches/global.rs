//! Time of the global solve, an iteration and a whole one.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use mast3r_slam::compute::global::{GlobalResidual, GlobalSolver, Priors};
use mast3r_slam::config::GlobalOptConfig;
use mast3r_slam::geometry::Sim3;
use std::hint::black_box;
use std::time::Duration;
use testkit::solver_scene::{Graph, intrinsics};

fn bench(c: &mut Criterion) {
    let mut group = c.benchmark_group("global");
    group
        .sample_size(10)
        .measurement_time(Duration::from_secs(2));
    for (width, height, count, edges) in [
        (256, 192, 10, 10),
        (256, 192, 20, 25),
        (512, 384, 10, 10),
        (512, 384, 20, 25),
    ] {
        let graph = Graph::new(width, height, count, &Graph::chain(count, edges), 0.01);
        let (keyframes, edges) = (graph.keyframes(), graph.edges());
        let mut solver = GlobalSolver::new();
        let mut poses = vec![Sim3::identity(); count];
        group.throughput(Throughput::Elements(
            2 * (edges.len() * width * height) as u64,
        ));
        let params = GlobalOptConfig {
            max_iters: 1,
            ..GlobalOptConfig::default()
        };
        // One step: the gates, two linearisations and a factorisation.
        let what = format!("{width}x{height}, {count} keyframes, {} edges", edges.len());
        for (name, residual) in [
            ("rays/1 step", GlobalResidual::Rays),
            (
                "calibrated/1 step",
                GlobalResidual::Calibrated(intrinsics(width, height)),
            ),
        ] {
            group.bench_function(BenchmarkId::new(name, &what), |b| {
                b.iter(|| {
                    black_box(solver.solve(
                        &keyframes,
                        &edges,
                        &[],
                        Priors::default(),
                        residual,
                        width,
                        height,
                        &params,
                        &mut poses,
                    ))
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
