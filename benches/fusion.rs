//! Fusing one pointmap into another at the two network sizes, by each mode.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use mast3r_slam::compute::fusion::{FusedPointmap, FusionScratch};
use mast3r_slam::config::{FilteringMode, FilteringScore};
use testkit::matching_scene::{Random, Scene};

fn fusion(criterion: &mut Criterion) {
    for (width, height) in [(256, 192), (512, 384)] {
        let n = width * height;
        let scene = Scene::new(width, height, 0, [0.0; 3], 0.0);
        let mut random = Random(1);
        let confidence: Vec<f32> = (0..n).map(|_| 2.0 + random.signed() as f32).collect();
        let mut group = criterion.benchmark_group(format!("fusion/{width}x{height}"));
        group
            .throughput(Throughput::Elements(n as u64))
            .sample_size(20);
        for (name, mode) in [
            ("weighted_pointmap", FilteringMode::WeightedPointmap),
            ("weighted_spherical", FilteringMode::WeightedSpherical),
            ("recent", FilteringMode::Recent),
            ("best_score", FilteringMode::BestScore),
            ("indep_conf", FilteringMode::IndepConf),
        ] {
            let mut map = FusedPointmap::new(n);
            let mut scratch = FusionScratch::default();
            group.bench_function(name, |b| {
                b.iter(|| {
                    let score = FilteringScore::Median;
                    map.update(&scene.points1, &confidence, mode, score, &mut scratch);
                });
            });
        }
    }
}

criterion_group!(benches, fusion);
criterion_main!(benches);
