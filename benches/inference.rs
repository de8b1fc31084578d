//! The network on the CPU with the bundled model: loading (with its self-test), one image encoded, one
//! pair decoded.

use criterion::{Criterion, criterion_group, criterion_main};
use mast3r_slam::image::RgbImage;
use mast3r_slam::inference::cpu::CpuBackend;
use mast3r_slam::inference::{Backend, PairOutput};
use std::time::Duration;

fn inference(c: &mut Criterion) {
    let weights = benches::weights();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    for (width, height) in [(256, 192), (512, 384)] {
        let load = || match CpuBackend::load(&weights, width, height, threads) {
            Ok(backend) => backend,
            Err(error) => panic!("{error}"),
        };
        let mut group = c.benchmark_group(format!("inference/{width}x{height}, {threads} threads"));
        group
            .sample_size(10)
            .warm_up_time(Duration::from_secs(1))
            .measurement_time(Duration::from_secs(1));
        if width == 256 {
            group.bench_function("load", |b| b.iter(load));
        }
        let mut backend = load();
        let shape = backend.shape().clone();
        let mut image = RgbImage::new(shape.width, shape.height);
        for (i, byte) in image.data.iter_mut().enumerate() {
            *byte = (i * 31 % 251) as u8;
        }
        let mut features = vec![0.0; shape.tokens * shape.feature_dim];
        let mut out = PairOutput::zeros(&shape);
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
}

criterion_group!(benches, inference);
criterion_main!(benches);
