//! The network on the CPU: one image encoded, one pair decoded, at 256×192 with the bundled model.

use std::path::Path;

use criterion::{Criterion, criterion_group, criterion_main};
use mast3r_slam::image::RgbImage;
use mast3r_slam::inference::cpu::CpuBackend;
use mast3r_slam::inference::{Backend, PairOutput};

fn inference(c: &mut Criterion) {
    let weights =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("engines/mast3r-mini/model.safetensors");
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut backend = match CpuBackend::load(&weights, 256, 192, threads) {
        Ok(backend) => backend,
        Err(error) => panic!("{error}"),
    };
    let shape = backend.shape().clone();
    let mut image = RgbImage::new(shape.width, shape.height);
    for (i, byte) in image.data.iter_mut().enumerate() {
        *byte = (i * 31 % 251) as u8;
    }
    let mut features = vec![0.0; shape.tokens * shape.feature_dim];
    let mut out = PairOutput::zeros(&shape);

    let mut group = c.benchmark_group(format!("256x192, {threads} threads"));
    group.sample_size(10);
    group.bench_function("encode", |b| {
        b.iter(|| {
            backend
                .encode(&image, &mut features)
                .map_err(|e| panic!("{e}"))
        })
    });
    let other: Vec<f32> = features.iter().rev().copied().collect();
    group.bench_function("decode", |b| {
        b.iter(|| {
            backend
                .decode(&features, &other, &mut out)
                .map_err(|e| panic!("{e}"))
        })
    });
    group.bench_function("decode view 1", |b| {
        b.iter(|| {
            backend
                .decode_view1(&features, &other, &mut out)
                .map_err(|e| panic!("{e}"))
        })
    });
    group.finish();
}

criterion_group!(benches, inference);
criterion_main!(benches);
