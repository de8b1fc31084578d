//! Matching at the two network sizes: all of it, without the refinement, and the bookkeeping after.

#[path = "../tests/matching_scene/mod.rs"]
mod matching_scene;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use mast3r_slam::compute::matching::{Matcher, match_quality, unique_matches};
use mast3r_slam::config::MatchingConfig;
use matching_scene::Scene;
use std::hint::black_box;

fn matching(criterion: &mut Criterion) {
    for (width, height) in [(256, 192), (512, 384)] {
        let n = width * height;
        // About two pixels of motion.
        let scene = Scene::new(
            width,
            height,
            24,
            [2.3 / width as f64, 1.2 / width as f64, 0.01],
            0.2,
        );
        let mut group = criterion.benchmark_group(format!("matching/{width}x{height}"));
        group
            .throughput(Throughput::Elements(n as u64))
            .sample_size(20);
        let mut matcher = Matcher::new(width, height, 24);
        let (mut index, mut valid) = (vec![0; n], vec![0; n]);
        let full = MatchingConfig::default();
        let stages = [
            (
                "rays",
                MatchingConfig {
                    max_iter: 0,
                    radius: 0,
                    ..full.clone()
                },
            ),
            (
                "rays+search",
                MatchingConfig {
                    radius: 0,
                    ..full.clone()
                },
            ),
            ("all", full.clone()),
        ];
        for (name, params) in stages {
            group.bench_function(name, |b| {
                b.iter(|| {
                    let (v1, v2) = (scene.view1(), scene.view2());
                    matcher.run(v1, v2, None, black_box(&params), &mut index, &mut valid)
                });
            });
        }
        let initial = index.clone();
        group.bench_function("all, from the last match", |b| {
            b.iter(|| {
                let (v1, v2) = (scene.view1(), scene.view2());
                matcher.run(v1, v2, Some(&initial), &full, &mut index, &mut valid)
            });
        });
        let confidence = vec![2.0; n];
        let mut quality = vec![0.0; n];
        group.bench_function("quality", |b| {
            b.iter(|| match_quality(&confidence, &confidence, &index, &valid, &mut quality));
        });
        let mut seen = Vec::new();
        group.bench_function("unique", |b| {
            b.iter(|| unique_matches(&index, &valid, &mut seen))
        });
    }
}

criterion_group!(benches, matching);
criterion_main!(benches);
