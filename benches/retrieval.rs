//! Place recognition, per keyframe: describing an image and asking the database.
//!
//! Sizes are those of the bundled network at 256×192 (192 features of 192 components, 1024 words).
//! Limits: the search for the nearest words is 2·T·K·C floating-point operations, whitening 2·T·C²
//! in f64; a query reads the postings of its words, C/8 bytes for each entry.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use mast3r_slam::compute::retrieval::{
    Codebook, CodebookInfo, Database, Description, Nearest, RetrievalModel, Scratch, whiten,
};
use testkit::random::Random;

const C: usize = 192;
const T: usize = 192;

fn noise(count: usize, seed: u64) -> Vec<f32> {
    Random(seed.wrapping_mul(2).wrapping_add(1)).noise(count)
}

fn nearest(c: &mut Criterion) {
    let rows = noise(T * C, 1);
    let mut group = c.benchmark_group("retrieval/nearest");
    for words in [1024, 4096] {
        let codebook = Codebook::new(C, &noise(words * C, 2)).expect("a codebook");
        let mut found = vec![Nearest::NONE; T * 5];
        // Operations, so that the report reads in floating-point operations a second.
        group.throughput(Throughput::Elements((2 * T * words * C) as u64));
        group.bench_function(BenchmarkId::from_parameter(words), |b| {
            b.iter(|| codebook.nearest(black_box(&rows), 5, &mut found));
        });
    }
    group.finish();
}

fn whitening(c: &mut Criterion) {
    let rows = noise(T * C, 1);
    let projection: Vec<f64> = noise(C * C, 3).into_iter().map(f64::from).collect();
    let mean = vec![0.1; C];
    let mut dst = vec![0.0; T * C];
    let mut group = c.benchmark_group("retrieval/whiten");
    group.throughput(Throughput::Elements((2 * T * C * C) as u64));
    group.bench_function("192", |b| {
        b.iter(|| whiten(black_box(&rows), &mean, &projection, &mut dst));
    });
    group.finish();
}

fn keyframe(c: &mut Criterion) {
    let mut projection = vec![0.0; C * C];
    for i in 0..C {
        projection[i * C + i] = 1.0;
    }
    let centroids = noise(1024 * C, 4);
    let model = RetrievalModel::new(
        vec![0.0; C],
        projection,
        &centroids,
        CodebookInfo::default(),
    )
    .expect("a model");
    let (mut scratch, mut description) = (Scratch::default(), Description::default());
    let features = noise(T * C, 5);
    c.bench_function("retrieval/describe", |b| {
        b.iter(|| model.describe(black_box(&features), &mut scratch, &mut description));
    });

    let mut database = Database::new(&model);
    for id in 0..1000 {
        let features = noise(T * C, 100 + u64::from(id));
        model
            .describe(&features, &mut scratch, &mut description)
            .and_then(|()| database.insert(id, &description))
            .expect("a keyframe");
    }
    let mut hits = Vec::new();
    c.bench_function("retrieval/query of 1000 keyframes", |b| {
        b.iter(|| database.query(black_box(&description), 3, 5e-3, &mut hits));
    });
}

criterion_group!(benches, nearest, whitening, keyframe);
criterion_main!(benches);
