//! Pointmaps whose depth was measured elsewhere, as the CPU corrects them.

use crate::cuda;
use crate::depth_moved::camera;
use mast3r_slam::compute::cuda::depth::pointmap::{PointmapMover, PointmapMoverBuffers};
use mast3r_slam::compute::depth::pointmap::PointmapMover as OnCpu;
use mast3r_slam::geometry::Sim3;
use mast3r_slam::gpu::{Context, Priority};
use nalgebra::Vector6;
use testkit::matching_scene::Random;

/// Logarithms and exponentials of both differ by a few units in the last place.
const TOLERANCE: f32 = 1e-5;

/// Points on the rays of a camera at these depths.
fn points(width: usize, height: usize, depth: impl Fn(usize, usize) -> f32) -> Vec<f32> {
    let camera = camera(width, height);
    let points = (0..width * height).flat_map(|n| {
        let (u, v) = (n % width, n / width);
        let (ray, z) = (camera.ray(u as f64, v as f64), depth(u, v));
        [ray.x as f32 * z, ray.y as f32 * z, z]
    });
    points.collect()
}

fn scenes(width: usize, height: usize) -> Vec<(&'static str, Vec<f32>, Vec<f32>)> {
    let n = width * height;
    let mut random = Random(77);
    let mut noise = vec![0.0; n];
    noise.fill_with(|| random.signed() as f32);
    let smooth = |u: usize, v: usize| 2.0 + (u as f32 * 0.05).sin() + 0.01 * v as f32;
    let seen = vec![1.5; n];
    let hidden = (0..n).map(|k| if k % 5 == 0 { 0.0 } else { 1.5 }).collect();
    vec![
        ("smooth", points(width, height, smooth), seen.clone()),
        (
            "edges",
            points(width, height, |u, v| smooth(u, v) * (1 + u / 23 % 3) as f32),
            seen.clone(),
        ),
        (
            "noise, partly hidden",
            points(width, height, |u, v| {
                smooth(u, v) * (1.0 + 0.02 * noise[v * width + u])
            }),
            hidden,
        ),
        ("nothing", points(width, height, |_, _| 0.0), seen.clone()),
        (
            "no points",
            points(width, height, |u, v| match (u + v) % 3 {
                0 => f32::NAN,
                1 => f32::INFINITY,
                _ => -1.0,
            }),
            seen,
        ),
    ]
}

#[test]
fn pointmaps_are_corrected_as_by_the_cpu() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let stream = context.stream(Priority::Low).unwrap();
    let exp = |twist: [f64; 6]| Sim3::exp(&Vector6::from(twist).push(0.0));
    let motions = [
        Sim3::identity(),
        exp([0.02, -0.01, 0.03, 0.01, -0.02, 0.01]),
        exp([-0.004, 0.002, 0.003, 0.002, 0.001, -0.002]),
        exp([0.0, 0.0, -50.0, 0.0, 0.0, 0.0]),
        exp([f64::NAN; 6]),
    ];
    let mut corrected = 0;
    for (width, height) in [(512, 384), (131, 77), (16, 16)] {
        let n = width * height;
        let buffers = crate::carve(context, |c| PointmapMoverBuffers::carve(c, width, height));
        let camera = camera(width, height);
        let mover =
            PointmapMover::new(context, &stream, buffers, (width, height), &camera).unwrap();
        let mut on_cpu = OnCpu::new(width, height, camera);
        let (on_gpu, confidences) = (crate::buffer(context, 3 * n), crate::buffer(context, n));
        for (name, points, confidence) in scenes(width, height) {
            stream.write(&confidence, confidences.all()).unwrap();
            for (k, motion) in motions.iter().enumerate() {
                let what = format!("{name}, {width} × {height}, motion {k}");
                let (mut expected, mut found) = (points.clone(), points.clone());
                let moves = on_cpu.run(&mut expected, &confidence, motion);
                stream.write(&points, on_gpu.all()).unwrap();
                let moved = mover
                    .run(&stream, on_gpu.all(), confidences.all(), motion)
                    .unwrap();
                stream.read(on_gpu.all(), &mut found).unwrap();
                assert_eq!(moved, moves, "{what}");
                corrected += usize::from(moved && k > 0);
                for (found, expected) in found.iter().zip(&expected) {
                    let same = (found - expected).abs() <= TOLERANCE * expected.abs().max(1.0);
                    let odd = !expected.is_finite() && found.to_bits() == expected.to_bits();
                    assert!(same || odd, "{what}: {found}, CPU {expected}");
                }
            }
        }
    }
    assert!(corrected >= 12, "{corrected}");
    let short = crate::buffer(context, 8);
    let buffers = crate::carve(context, |c| PointmapMoverBuffers::carve(c, 16, 16));
    let mover = PointmapMover::new(context, &stream, buffers, (16, 16), &camera(16, 16)).unwrap();
    let still = Sim3::identity();
    let all = crate::buffer(context, 3 * 256);
    assert!(mover.run(&stream, short.all(), all.all(), &still).is_err());
    assert!(mover.run(&stream, all.all(), short.all(), &still).is_err());
}
