//! From a raw image to the network's.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use mast3r_slam::geometry::{Calibration, Distortion, Intrinsics};
use mast3r_slam::image::{PreprocessOptions, Preprocessor, RgbImage};
use std::hint::black_box;

fn scene(width: usize, height: usize) -> RgbImage {
    let mut image = RgbImage::new(width, height);
    let mut state = 1u32;
    for value in &mut image.data {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *value = (state >> 24) as u8;
    }
    image
}

fn preprocess(c: &mut Criterion) {
    let mut group = c.benchmark_group("preprocess");
    let lens = Calibration {
        width: 640,
        height: 480,
        intrinsics: Intrinsics {
            fx: 517.3,
            fy: 516.5,
            cx: 318.6,
            cy: 255.3,
        },
        distortion: Distortion::PlumbBob([0.2624, -0.9531, -0.0054, 0.0026, 1.1633]),
    };
    for (name, width, height, size, calibration) in [
        ("640x480 to 512x384", 640, 480, 512, None),
        (
            "640x480 to 512x384, undistorted",
            640,
            480,
            512,
            Some(&lens),
        ),
        ("512x384 to 256x192", 512, 384, 256, None),
        ("1920x1080 to 512x288", 1920, 1080, 512, None),
    ] {
        let options = PreprocessOptions::default();
        let Ok(mut p) = Preprocessor::new(width, height, size, calibration, options) else {
            panic!("{name}: sizes and camera are usable");
        };
        let (src, mut dst) = (scene(width, height), RgbImage::default());
        // What must be moved at least: source in, result out.
        let (w, h) = p.output_size();
        group.throughput(Throughput::Bytes(((width * height + w * h) * 3) as u64));
        group.bench_function(name, |b| {
            b.iter(|| p.run(black_box(&src), &mut dst).is_ok())
        });
    }
    group.finish();
}

criterion_group!(benches, preprocess);
criterion_main!(benches);
