//! Time of the tracker's pose solve: whole, and a Gauss-Newton iteration.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use mast3r_slam::compute::pose_solver::{PoseSolver, Residual};
use mast3r_slam::config::TrackingConfig;
use mast3r_slam::geometry::Sim3;
use std::hint::black_box;
use testkit::solver_scene::{Pair, Random, intrinsics};

fn bench(c: &mut Criterion) {
    let mut group = c.benchmark_group("tracking");
    group.sample_size(20);
    for (width, height) in [(256, 192), (512, 384)] {
        let truth = Sim3::exp(&Random(1).tangent(0.05));
        let pair = Pair::exact(width, height, truth)
            .noisy(0.01)
            .with_outliers(0.1);
        let mut solver = PoseSolver::new(width * height);
        let start = Sim3::identity();
        let names = [
            ("rays", Residual::Rays),
            (
                "calibrated",
                Residual::Calibrated(intrinsics(width, height)),
            ),
        ];
        for (name, residual) in names {
            group.throughput(Throughput::Elements((width * height) as u64));
            // Without a step there is one linearisation; three more are an iteration each.
            for (what, max_iters) in [("gather+1", 0), ("gather+4", 3)] {
                let params = TrackingConfig {
                    max_iters,
                    rel_error: 0.0,
                    delta_norm: 0.0,
                    ..TrackingConfig::default()
                };
                let id = BenchmarkId::new(format!("{name}/{what}"), format!("{width}x{height}"));
                group.bench_function(id, |b| {
                    b.iter(|| {
                        let c = pair.correspondences();
                        black_box(solver.solve(&c, residual, &start, &params))
                    });
                });
            }
            let params = TrackingConfig::default();
            let id = BenchmarkId::new(format!("{name}/solve"), format!("{width}x{height}"));
            group.bench_function(id, |b| {
                b.iter(|| {
                    let c = pair.correspondences();
                    black_box(solver.solve(&c, residual, &start, &params))
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
