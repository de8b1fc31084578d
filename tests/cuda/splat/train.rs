//! Rendering, gradients and training.

use super::common::{both, camera, difference, rows, rows_apart, state};
use crate::cuda;
use mast3r_slam::compute::splat::SplatError;
use mast3r_slam::compute::splat::camera::{Rendering, View};
use mast3r_slam::compute::splat::device::{AdamStep, LossWeights, RowGradients};
use mast3r_slam::compute::splat::layout::{FIELDS, Field};
use mast3r_slam::gpu::allocations;

#[test]
fn a_view_looks_as_on_the_cpu_and_gives_its_gradients() {
    let Some(gpu) = cuda() else { return };
    for degree in [0, 3] {
        let block = rows(3000, degree);
        let [mut device, mut cpu] = both(&gpu, &block, 3000);
        let camera = camera();
        let (mut found, mut expected) = (Rendering::default(), Rendering::default());
        device.render(&camera, &mut found).expect("an image");
        cpu.render(&camera, &mut expected).expect("an image");
        for (what, a, b, limit) in [
            ("colour", &found.color, &expected.color, 1e-4),
            ("depth", &found.depth, &expected.depth, 1e-3),
            ("silhouette", &found.silhouette, &expected.silhouette, 1e-4),
        ] {
            let d = difference(a, b);
            assert!(d < limit, "{what} differs by {d}");
        }
        let covered: f32 = expected.silhouette.iter().sum();
        let part = covered / expected.silhouette.len() as f32;
        assert!(part > 0.05, "{part} of the image is covered");

        let pixels = camera.pixels();
        let image: Vec<u8> = (0..3 * pixels).map(|i| (i * 7 % 251) as u8).collect();
        let depth: Vec<f32> = (0..pixels)
            .map(|i| {
                if i % 9 == 0 {
                    f32::NAN
                } else {
                    1.0 + (i % 40) as f32 * 0.1
                }
            })
            .collect();
        let view = View {
            camera,
            image: &image,
            depth: Some(&depth),
        };
        let weights = LossWeights {
            ssim: 0.2,
            depth: 0.1,
            statistics: true,
        };
        let a = device.gradients(&view, &weights).expect("gradients");
        let b = cpu.gradients(&view, &weights).expect("gradients");
        assert_eq!(a.visible, b.visible);
        for (what, a, b) in [
            ("total", a.total, b.total),
            ("l1", a.l1, b.l1),
            ("ssim", a.ssim, b.ssim),
            ("depth", a.depth, b.depth),
            ("mse", a.mse, b.mse),
        ] {
            assert!((a - b).abs() < 1e-4, "{what}: {a} instead of {b}");
        }
        let largest = b.pose.iter().fold(0.0_f64, |a, v| a.max(v.abs()));
        for (a, b) in a.pose.iter().zip(b.pose) {
            assert!((a - b).abs() < 1e-2 * largest, "pose: {a} instead of {b}");
        }
        let (mut a, mut b) = (RowGradients::default(), RowGradients::default());
        device.read_gradients(&mut a).expect("gradients");
        cpu.read_gradients(&mut b).expect("gradients");
        assert_eq!(a.rows, b.rows);
        let apart = rows_apart(&a, &b, 1e-7);
        assert!(apart * 100 <= a.rows.len(), "{apart} of {}", a.rows.len());

        let step = AdamStep {
            rates: [1e-3; FIELDS],
            bias1: 0.1,
            bias2: 0.001,
            opacity_weight: 0.01,
            scale_weight: 0.01,
            noise: 0.5,
            seed: 5,
            step: 3,
        };
        device.step(&step).expect("a step");
        cpu.step(&step).expect("a step");
        assert!(matches!(device.step(&step), Err(SplatError::NoGradients)));
        let (a, b) = (state(device.as_mut()), state(cpu.as_mut()));
        assert_eq!((&a.seen, &a.observed), (&b.seen, &b.observed));
        let width = Field::Dc.width(degree);
        let dc = (a.parameters.get(Field::Dc), b.parameters.get(Field::Dc));
        let apart = (dc.0.chunks(width).zip(dc.1.chunks(width)))
            .filter(|(a, b)| difference(a, b) > 1e-4)
            .count();
        assert!(apart * 100 <= a.rows(), "{apart} rows of {}", a.rows());
    }
}

#[test]
fn training_lowers_the_loss_without_allocating() {
    let Some(gpu) = cuda() else { return };
    let target = rows(2000, 0);
    let [mut device, _] = both(&gpu, &target, 4000);
    let camera = camera();
    let mut rendering = Rendering::default();
    device.render(&camera, &mut rendering).expect("an image");
    let image: Vec<u8> = (rendering.color.iter())
        .map(|v| (255.0 * v.clamp(0.0, 1.0)).round() as u8)
        .collect();
    let mut start = target.clone();
    for value in start.parameters.get_mut(Field::Dc) {
        *value *= 0.3;
    }
    // The moments of `rows` are so large that they would keep the first steps small.
    for field in Field::ALL {
        start.first.get_mut(field).fill(0.0);
        start.second.get_mut(field).fill(0.0);
    }
    device.clear().expect("cleared");
    device.append(&start).expect("appended");
    let view = View {
        camera,
        image: &image,
        depth: None,
    };
    let weights = LossWeights::COLOR_ONLY;
    let before = allocations();
    let mut losses = Vec::new();
    for t in 1..=60 {
        losses.push(device.gradients(&view, &weights).expect("gradients").total);
        let step = AdamStep {
            rates: [1e-5, 1e-4, 1e-4, 1e-3, 3e-2, 1e-3],
            bias1: 1.0 - 0.9_f32.powi(t),
            bias2: 1.0 - 0.999_f32.powi(t),
            opacity_weight: 0.0,
            scale_weight: 0.0,
            noise: 0.0,
            seed: 0,
            step: t as u32,
        };
        device.step(&step).expect("a step");
    }
    assert_eq!(allocations(), before);
    let (first, last) = (losses[0], losses[59]);
    assert!(last < 0.5 * first, "{first} -> {last}");
}
