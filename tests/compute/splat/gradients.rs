//! Gradients against central differences.

use super::common::{MIXED, Random, SMOOTH, camera, image, map, rows};
use mast3r_slam::compute::splat::block::RowBlock;
use mast3r_slam::compute::splat::camera::{Camera, View};
use mast3r_slam::compute::splat::device::{LossWeights, RowGradients, SplatDevice};
use mast3r_slam::compute::splat::layout::{Field, floats};
use mast3r_slam::compute::splat::loss::window;
use nalgebra::{Rotation3, Vector3};

const WEIGHTS: LossWeights = LossWeights {
    ssim: 0.2,
    depth: 0.3,
    statistics: false,
};

struct Scene {
    block: RowBlock,
    camera: Camera,
    image: Vec<u8>,
    depth: Vec<f32>,
}

impl Scene {
    fn loss(&self, block: &RowBlock, camera: Camera) -> f64 {
        let mut map = map(block, 1000);
        let view = View {
            camera,
            image: &self.image,
            depth: Some(&self.depth),
        };
        map.gradients(&view, &WEIGHTS).expect("a loss").total
    }

    /// Gradient by a value of the block by central differences with the steps that f32 allows.
    fn numeric(&self, field: Field, at: usize, step: f32) -> f64 {
        let moved = |by: f32| {
            let mut block = self.block.clone();
            let value = &mut block.parameters.get_mut(field)[at];
            *value += by;
            (f64::from(*value), self.loss(&block, self.camera))
        };
        let ((a, plus), (b, minus)) = (moved(step), moved(-step));
        (plus - minus) / (a - b)
    }
}

fn smooth_scene(degree: u8, seed: u64) -> Scene {
    let camera = camera(14, 11);
    let mut random = Random::new(seed + 100);
    // One pixel of four has no depth.
    let depth = (0..camera.pixels()).map(|i| match i % 4 {
        0 => f32::NAN,
        _ => random.within(1.0, 3.0) as f32,
    });
    Scene {
        block: rows(6, degree, seed, SMOOTH),
        camera,
        image: image(&camera, seed),
        depth: depth.collect(),
    }
}

#[test]
fn every_parameter_s_gradient_is_that_of_central_differences() {
    for (degree, seed) in [(3, 1), (3, 2), (0, 3), (1, 4), (2, 5)] {
        let scene = smooth_scene(degree, seed);
        let mut map = map(&scene.block, 6);
        let view = View {
            camera: scene.camera,
            image: &scene.image,
            depth: Some(&scene.depth),
        };
        map.gradients(&view, &WEIGHTS).expect("gradients");
        let mut gradients = RowGradients::default();
        map.read_gradients(&mut gradients).expect("gradients");
        assert_eq!(gradients.rows, [0, 1, 2, 3, 4, 5]);
        let size = gradients.values.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
        assert!(size > 1e-3);
        let mut column = 0;
        for field in Field::ALL {
            let width = field.width(degree);
            for (row, k) in (0..6).flat_map(|row| (0..width).map(move |k| (row, k))) {
                let analytic = f64::from(gradients.values[row * floats(degree) + column + k]);
                let numeric = scene.numeric(field, row * width + k, 1.0 / 8192.0);
                let error = (analytic - numeric).abs();
                assert!(
                    error < 1e-3 * numeric.abs() + 2e-5 * f64::from(size),
                    "{field:?} of row {row}: {analytic} instead of {numeric}"
                );
            }
            column += width;
        }
    }
}

#[test]
fn the_pose_s_gradient_is_that_of_central_differences() {
    for seed in [1, 2, 3] {
        let scene = smooth_scene(3, seed);
        let mut map = map(&scene.block, 6);
        let view = View {
            camera: scene.camera,
            image: &scene.image,
            depth: Some(&scene.depth),
        };
        let loss = map.gradients(&view, &WEIGHTS).expect("gradients");
        let size = loss.pose.iter().fold(0.0_f64, |a, b| a.max(b.abs()));
        for axis in 0..6 {
            let moved = |h: f64| {
                let mut camera = scene.camera;
                let unit = Vector3::ith(axis % 3, h);
                if axis < 3 {
                    camera.translation += unit;
                } else {
                    let turn = Rotation3::from_scaled_axis(unit).into_inner();
                    camera.rotation = turn * camera.rotation;
                    camera.translation = turn * camera.translation;
                }
                scene.loss(&scene.block, camera)
            };
            let numeric = (moved(1e-5) - moved(-1e-5)) / 2e-5;
            let error = (loss.pose[axis] - numeric).abs();
            assert!(error < 1e-3 * size, "{axis}: {:?} {numeric}", loss.pose);
        }
    }
}

/// With thresholds in play (rows that end within the image, opaque rows, clamped slopes) the loss has small jumps, so
/// only most of the gradients can be compared.
#[test]
fn gradients_of_mixed_rows_are_those_of_central_differences_nearly_everywhere() {
    let camera = camera(40, 33);
    let scene = Scene {
        block: rows(60, 2, 11, MIXED),
        camera,
        image: image(&camera, 7),
        depth: vec![2.0; camera.pixels()],
    };
    let mut map = map(&scene.block, 60);
    let view = View {
        camera,
        image: &scene.image,
        depth: Some(&scene.depth),
    };
    map.gradients(&view, &WEIGHTS).expect("gradients");
    let mut gradients = RowGradients::default();
    map.read_gradients(&mut gradients).expect("gradients");
    assert!((20..60).contains(&gradients.rows.len()));
    let (mut good, mut all) = (0, 0);
    for (index, row) in gradients.rows.iter().enumerate() {
        let mut column = 0;
        for field in [Field::Mean, Field::Scale, Field::Rotation, Field::Opacity] {
            let width = field.width(2);
            for k in 0..width {
                let analytic = f64::from(gradients.values[index * floats(2) + column + k]);
                let numeric = scene.numeric(field, *row as usize * width + k, 1.0 / 262_144.0);
                all += 1;
                let near = (analytic - numeric).abs() < 0.02 * numeric.abs() + 1e-6;
                good += usize::from(near);
            }
            column += width;
        }
    }
    assert!(good * 100 >= all * 93, "{good} of {all}");
}

#[test]
fn ssim_of_an_image_is_that_of_its_definition() {
    let camera = camera(20, 17);
    let (a, b) = (image(&camera, 1), image(&camera, 2));
    let weights = window();
    let (w, h) = (20_isize, 17_isize);
    let mut expected = 0.0;
    for channel in 0..3 {
        for y in 0..h {
            for x in 0..w {
                let (mut m, mut s) = ([0.0; 2], [0.0; 3]);
                for dy in -5..=5 {
                    for dx in -5..=5 {
                        let (u, v) = (x + dx, y + dy);
                        if !(0..w).contains(&u) || !(0..h).contains(&v) {
                            continue;
                        }
                        let weight = weights[(dx + 5) as usize] * weights[(dy + 5) as usize];
                        let at = 3 * (v * w + u) as usize + channel;
                        let (p, q) = (f64::from(a[at]) / 255.0, f64::from(b[at]) / 255.0);
                        m[0] += weight * p;
                        m[1] += weight * q;
                        s[0] += weight * p * p;
                        s[1] += weight * q * q;
                        s[2] += weight * p * q;
                    }
                }
                let (c1, c2) = (1e-4, 9e-4);
                let covariance = s[2] - m[0] * m[1];
                let variances = s[0] - m[0] * m[0] + s[1] - m[1] * m[1];
                expected += (2.0 * m[0] * m[1] + c1) * (2.0 * covariance + c2)
                    / ((m[0] * m[0] + m[1] * m[1] + c1) * (variances + c2));
            }
        }
    }
    expected /= f64::from(3 * 20 * 17);
    let rendering = mast3r_slam::compute::splat::camera::Rendering {
        width: 20,
        height: 17,
        color: a.iter().map(|v| f32::from(*v) / 255.0).collect(),
        ..Default::default()
    };
    let (_, ssim) = mast3r_slam::compute::splat::loss::quality(&rendering, &b).expect("a quality");
    assert!((ssim - expected).abs() < 1e-6, "{ssim} {expected}");
    let (mse, same) =
        mast3r_slam::compute::splat::loss::quality(&rendering, &a).expect("a quality");
    assert!(mse < 1e-12 && (same - 1.0).abs() < 1e-6);
}
