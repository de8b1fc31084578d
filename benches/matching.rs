//! Matching at the two network sizes: all of it, without the refinement, and the bookkeeping after.

use benches::Canned;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use mast3r_slam::compute::matching::{Matcher, Refinement, View, match_quality, unique_matches};
use mast3r_slam::config::MatchingConfig;
use std::hint::black_box;
use testkit::matching_scene::Scene;

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

/// Two frames of the bundled sequence, 0.3 s apart, as the bundled network sees them: more pixels
/// whose search goes nowhere, and descriptors that send a match further.
fn real(criterion: &mut Criterion) {
    for size in [256, 512] {
        let canned = Canned::new(size, &[0, 2, 3]);
        let (width, height) = (canned.shape.width, canned.shape.height);
        let n = width * height;
        let mut group = criterion.benchmark_group(format!("matching, real/{width}x{height}"));
        group
            .throughput(Throughput::Elements(n as u64))
            .sample_size(20);
        let params = benches::config().matching;
        let views = |frame: usize| {
            let pair = canned.pair(frame, 0);
            [&pair.view1, &pair.view2].map(|v| View {
                points: &v.points,
                descriptors: &v.descriptors,
            })
        };
        let (mut index, mut valid) = (vec![0; n], vec![0; n]);
        let mut edges = Matcher::new(width, height, canned.shape.descriptor_dim);
        let [v1, v2] = views(2);
        group.bench_function("edge", |b| {
            b.iter(|| edges.run(v1, v2, None, black_box(&params), &mut index, &mut valid));
        });
        // As the tracker does it: from the frame before, every pixel refined.
        let mut tracker = Matcher::new(width, height, canned.shape.descriptor_dim)
            .with_refinement(Refinement::SingleAll);
        let [b1, b2] = views(1);
        tracker.run(b1, b2, None, &params, &mut index, &mut valid);
        let before = index.clone();
        group.bench_function("tracking", |b| {
            b.iter(|| {
                let before = Some(before.as_slice());
                tracker.run(v1, v2, before, black_box(&params), &mut index, &mut valid)
            });
        });
        let search = MatchingConfig {
            radius: 0,
            ..params.clone()
        };
        group.bench_function("tracking, without refinement", |b| {
            b.iter(|| {
                let before = Some(before.as_slice());
                tracker.run(v1, v2, before, black_box(&search), &mut index, &mut valid)
            });
        });
    }
}

criterion_group!(benches, matching, real);
criterion_main!(benches);
