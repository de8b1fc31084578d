//! The renderer against a plain one without tiles, and what every renderer must keep.

use super::common::{MIXED, Random, camera, image, map, rows};
use mast3r_slam::compute::splat::block::RowBlock;
use mast3r_slam::compute::splat::camera::{Camera, Rendering, View};
use mast3r_slam::compute::splat::device::{AnchorMove, LossWeights, RowGradients, SplatDevice};
use mast3r_slam::compute::splat::layout::Field;
use mast3r_slam::compute::splat::{CpuSplat, SplatError};
use mast3r_slam::geometry::Sim3;
use nalgebra::{Matrix2x3, Matrix3, Quaternion, UnitQuaternion, Vector3};

/// Colour, depth and silhouette of each pixel, row by row of the map, without tiles. Degree 0.
fn plain(block: &RowBlock, camera: &Camera) -> Vec<[f64; 5]> {
    let k = &camera.intrinsics;
    let p = &block.parameters;
    let value = |field, row: usize| -> Vec<f64> {
        p.row(field, 0, row).iter().map(|v| f64::from(*v)).collect()
    };
    let mut drawn = Vec::new();
    for row in 0..block.rows() {
        let (mean, scale) = (value(Field::Mean, row), value(Field::Scale, row));
        let (q, dc) = (value(Field::Rotation, row), value(Field::Dc, row));
        let opacity = 1.0 / (1.0 + (-value(Field::Opacity, row)[0]).exp());
        let v = camera.rotation * Vector3::from_column_slice(&mean) + camera.translation;
        if v.z < 0.01 {
            continue;
        }
        let turn = UnitQuaternion::from_quaternion(Quaternion::new(q[0], q[1], q[2], q[3]));
        let turn = turn.to_rotation_matrix().into_inner();
        let variances = Vector3::from_column_slice(&scale).map(|s| (2.0 * s).exp());
        let sigma = turn * Matrix3::from_diagonal(&variances) * turn.transpose();
        let limit_x = 1.3 * (k.cx + 0.5).max(camera.width as f64 - 0.5 - k.cx) / k.fx;
        let limit_y = 1.3 * (k.cy + 0.5).max(camera.height as f64 - 0.5 - k.cy) / k.fy;
        let slope_x = (v.x / v.z).clamp(-limit_x, limit_x);
        let slope_y = (v.y / v.z).clamp(-limit_y, limit_y);
        let j = Matrix2x3::new(
            k.fx / v.z,
            0.0,
            -k.fx * slope_x / v.z,
            0.0,
            k.fy / v.z,
            -k.fy * slope_y / v.z,
        ) * camera.rotation;
        let mut covariance = j * sigma * j.transpose();
        covariance[(0, 0)] += f64::from(0.3_f32);
        covariance[(1, 1)] += f64::from(0.3_f32);
        let conic = covariance.try_inverse().expect("a positive matrix");
        let pixel = k.project(&v);
        let color = [0, 1, 2].map(|c| (0.5 + f64::from(0.282_094_79_f32) * dc[c]).max(0.0));
        drawn.push(((v.z as f32).to_bits(), v.z, pixel, conic, opacity, color));
    }
    drawn.sort_by_key(|row| row.0);
    let pixels = (0..camera.height).flat_map(|y| (0..camera.width).map(move |x| (x, y)));
    let one = |(x, y): (usize, usize)| {
        let (mut out, mut rest) = ([0.0; 5], 1.0);
        for (_, z, pixel, conic, opacity, color) in &drawn {
            let d = pixel - nalgebra::Vector2::new(x as f64, y as f64);
            let fall = (-0.5 * (d.transpose() * conic * d)[(0, 0)]).exp();
            let alpha = (opacity * fall).min(f64::from(0.99_f32));
            if alpha < f64::from(1.0_f32 / 255.0) {
                continue;
            }
            if rest * (1.0 - alpha) < f64::from(1e-4_f32) {
                break;
            }
            for c in 0..3 {
                out[c] += color[c] * alpha * rest;
            }
            out[3] += z * alpha * rest;
            rest *= 1.0 - alpha;
        }
        out[4] = 1.0 - rest;
        out
    };
    pixels.map(one).collect()
}

#[test]
fn an_image_is_that_of_a_renderer_without_tiles() {
    for (seed, count, size) in [
        (1, 200, (64, 48)),
        (2, 200, (61, 47)),
        (3, 1500, (33, 100)),
        (4, 1, (5, 3)),
    ] {
        let camera = camera(size.0, size.1);
        let block = rows(count, 0, seed, MIXED);
        let mut out = Rendering::default();
        map(&block, 2000)
            .render(&camera, &mut out)
            .expect("an image");
        let expected = plain(&block, &camera);
        let mut worst = 0.0_f64;
        for (i, e) in expected.iter().enumerate() {
            let found = [
                out.color[3 * i],
                out.color[3 * i + 1],
                out.color[3 * i + 2],
                out.depth[i],
                out.silhouette[i],
            ];
            for (f, e) in found.iter().zip(e) {
                worst = worst.max((f64::from(*f) - e).abs());
            }
        }
        assert!(worst < 1e-5, "{worst} at {size:?}");
    }
}

#[test]
fn an_empty_map_is_black_and_transparent() {
    let camera = camera(20, 10);
    let mut out = Rendering::default();
    let mut empty = CpuSplat::new(10, 3).expect("a map");
    empty.render(&camera, &mut out).expect("an image");
    let all = out.color.iter().chain(&out.depth).chain(&out.silhouette);
    assert!(all.clone().count() == 1000 && all.into_iter().all(|v| *v == 0.0));
}

#[test]
fn invalid_rows_are_not_drawn() {
    let camera = camera(30, 20);
    let good = rows(20, 1, 5, MIXED);
    let mut clean = Rendering::default();
    map(&good, 100)
        .render(&camera, &mut clean)
        .expect("an image");
    let mut bad = rows(6, 1, 6, super::common::SMOOTH);
    bad.parameters.get_mut(Field::Mean)[0] = f32::NAN;
    bad.parameters.row_mut(Field::Rotation, 1, 1).fill(0.0);
    bad.parameters.row_mut(Field::Scale, 1, 2)[1] = f32::INFINITY;
    bad.parameters.row_mut(Field::Opacity, 1, 3)[0] = f32::NAN;
    bad.parameters.row_mut(Field::Scale, 1, 4)[0] = f32::NAN;
    bad.parameters.row_mut(Field::Rotation, 1, 5).fill(4e-5);
    let mut both = map(&good, 100);
    both.append(&bad).expect("room");
    let mut out = Rendering::default();
    both.render(&camera, &mut out).expect("an image");
    assert_eq!(out, clean);
}

#[test]
fn a_color_that_is_not_finite_is_drawn_as_zero_and_has_no_gradient() {
    let camera = camera(14, 11);
    let mut block = rows(2, 1, 6, super::common::SMOOTH);
    block.parameters.row_mut(Field::Dc, 1, 0)[1] = f32::NAN;
    block.parameters.row_mut(Field::Rest, 1, 1)[0] = f32::INFINITY;
    let mut zero = block.clone();
    // So negative that the channel is 0.
    zero.parameters.row_mut(Field::Dc, 1, 0)[1] = -1e3;
    zero.parameters.row_mut(Field::Rest, 1, 1)[0] = 0.0;
    zero.parameters.row_mut(Field::Dc, 1, 1)[0] = -1e3;
    let picture = image(&camera, 3);
    let view = View {
        camera,
        image: &picture,
        depth: None,
    };
    let weights = LossWeights {
        statistics: false,
        ..LossWeights::COLOR_ONLY
    };
    let run = |block| {
        let mut map = map(block, 2);
        let loss = map.gradients(&view, &weights).expect("gradients");
        let mut gradients = RowGradients::default();
        map.read_gradients(&mut gradients).expect("gradients");
        (loss, gradients)
    };
    assert_eq!(run(&block), run(&zero));
}

#[test]
fn cameras_and_arrays_that_cannot_be_used_are_refused() {
    let mut map = map(&rows(3, 0, 1, MIXED), 3);
    let mut out = Rendering::default();
    let good = camera(16, 16);
    for change in [
        |c: &mut Camera| c.width = 0,
        |c: &mut Camera| c.height = 1 << 20,
        |c: &mut Camera| c.intrinsics.fx = 0.0,
        |c: &mut Camera| c.intrinsics.cy = f64::NAN,
        |c: &mut Camera| c.translation.x = f64::INFINITY,
    ] {
        let mut bad = good;
        change(&mut bad);
        assert!(matches!(
            map.render(&bad, &mut out),
            Err(SplatError::Camera { .. })
        ));
    }
    let view = View {
        camera: good,
        image: &[0; 3],
        depth: None,
    };
    let weights = LossWeights {
        statistics: false,
        ..LossWeights::COLOR_ONLY
    };
    let refused = map.gradients(&view, &weights);
    assert!(matches!(
        refused,
        Err(SplatError::Length {
            expected: 768,
            found: 3,
            ..
        })
    ));
    assert!(matches!(
        map.read_gradients(&mut RowGradients::default()),
        Err(SplatError::NoGradients)
    ));
    let more = rows(1, 0, 1, MIXED);
    assert!(matches!(
        map.append(&more),
        Err(SplatError::Full {
            rows: 1,
            held: 3,
            capacity: 3
        })
    ));
    assert!(matches!(
        map.append(&rows(1, 1, 1, MIXED)),
        Err(SplatError::Setting { .. })
    ));
}

#[test]
fn gradients_do_not_depend_on_the_number_of_threads() {
    let camera = camera(70, 50);
    let block = rows(500, 3, 9, MIXED);
    let picture = image(&camera, 3);
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .expect("threads");
        pool.install(|| {
            let mut map = map(&block, 500);
            let view = View {
                camera,
                image: &picture,
                depth: None,
            };
            let weights = LossWeights::COLOR_ONLY;
            let loss = map.gradients(&view, &weights).expect("gradients");
            let mut gradients = RowGradients::default();
            map.read_gradients(&mut gradients).expect("gradients");
            (loss, gradients, super::common::state(&mut map))
        })
    };
    assert_eq!(run(1), run(3));
}

#[test]
fn statistics_are_gradients_of_half_images_and_views() {
    let camera = camera(40, 30);
    let block = rows(100, 0, 21, MIXED);
    let mut map = map(&block, 100);
    let picture = image(&camera, 3);
    let view = View {
        camera,
        image: &picture,
        depth: None,
    };
    let mut weights = LossWeights {
        statistics: false,
        ..LossWeights::COLOR_ONLY
    };
    let visible = map.gradients(&view, &weights).expect("gradients").visible;
    let before = super::common::state(&mut map);
    assert!(before.seen.iter().chain(&before.observed).all(|n| *n == 0));
    weights.statistics = true;
    map.gradients(&view, &weights).expect("gradients");
    map.gradients(&view, &weights).expect("gradients");
    let mut gradients = RowGradients::default();
    map.read_gradients(&mut gradients).expect("gradients");
    let after = super::common::state(&mut map);
    assert_eq!(
        after.seen.iter().filter(|n| **n == 2).count() as u64,
        visible
    );
    assert_eq!(after.seen, after.observed);
}

#[test]
fn the_gradient_by_the_projection_is_that_by_the_principal_point() {
    // With one row, moving the principal point is moving its projection.
    for seed in [1, 2, 3] {
        let camera = camera(40, 30);
        let block = rows(1, 0, seed, super::common::SMOOTH);
        let picture = image(&camera, 3);
        let weights = LossWeights::COLOR_ONLY;
        let run = |dx: f64, dy: f64| {
            let mut map = map(&block, 1);
            let mut camera = camera;
            camera.intrinsics.cx += dx;
            camera.intrinsics.cy += dy;
            let view = View {
                camera,
                image: &picture,
                depth: None,
            };
            let loss = map.gradients(&view, &weights).expect("gradients");
            (loss.total, super::common::state(&mut map).gradient_sum[0])
        };
        let h = 1e-5;
        let by_x = (run(h, 0.0).0 - run(-h, 0.0).0) / (2.0 * h) * 20.0;
        let by_y = (run(0.0, h).0 - run(0.0, -h).0) / (2.0 * h) * 15.0;
        let (expected, found) = (by_x.hypot(by_y), f64::from(run(0.0, 0.0).1));
        assert!((found / expected - 1.0).abs() < 1e-2, "{found} {expected}");
    }
}

#[test]
fn a_map_that_moves_with_its_camera_looks_the_same() {
    let mut random = Random::new(4);
    for seed in 0..5 {
        let camera = camera(48, 40);
        let block = rows(150, 3, 30 + seed, MIXED);
        let mut map = map(&block, 150);
        let (mut before, mut after) = (Rendering::default(), Rendering::default());
        map.render(&camera, &mut before).expect("an image");
        let mut any = |size: f64| Vector3::from_fn(|_, _| random.within(-size, size));
        let t = Sim3 {
            translation: any(2.0),
            rotation: UnitQuaternion::from_scaled_axis(any(2.0)),
            scale: 1.0 + 0.25 * (seed as f64 - 2.0),
        };
        let moves: Vec<AnchorMove> = (0..7)
            .map(|anchor| AnchorMove {
                anchor,
                new_from_old: t,
            })
            .collect();
        map.move_anchors(&moves).expect("moved");
        // world_from_camera becomes t·world_from_camera.
        let old = Sim3 {
            translation: camera.centre(),
            rotation: UnitQuaternion::from_matrix(&camera.rotation.transpose()),
            scale: 1.0,
        };
        let moved = Camera::new(camera.intrinsics, (48, 40), &(t * old));
        map.render(&moved, &mut after).expect("an image");
        let mut differences: Vec<f32> = before
            .color
            .iter()
            .zip(&after.color)
            .map(|(a, b)| (a - b).abs())
            .collect();
        differences.sort_by(f32::total_cmp);
        // The near plane is where it was in metres, and thresholds are crossed at single pixels.
        let typical = differences[differences.len() * 95 / 100];
        assert!(typical < 1e-3, "{typical} at scale {}", t.scale);
    }
}

#[test]
fn only_rows_of_listed_keyframes_move() {
    let block = rows(70, 1, 8, MIXED);
    let mut map = map(&block, 70);
    let t = Sim3 {
        translation: Vector3::new(1.0, 2.0, 3.0),
        rotation: UnitQuaternion::identity(),
        scale: 2.0,
    };
    let bad = Sim3 {
        scale: f64::NAN,
        ..t
    };
    let moves = [(3, t), (5, bad), (99, t)].map(|(anchor, new_from_old)| AnchorMove {
        anchor,
        new_from_old,
    });
    map.move_anchors(&moves).expect("moved");
    let after = super::common::state(&mut map);
    for row in 0..70 {
        let (old, new) = (&block.parameters, &after.parameters);
        if row % 7 == 3 {
            for k in 0..3 {
                let mean = 2.0 * old.row(Field::Mean, 1, row)[k] + (k + 1) as f32;
                assert!((new.row(Field::Mean, 1, row)[k] - mean).abs() < 1e-5);
                let scale = old.row(Field::Scale, 1, row)[k] + 2.0_f32.ln();
                assert!((new.row(Field::Scale, 1, row)[k] - scale).abs() < 1e-6);
            }
        } else {
            for field in Field::ALL {
                assert_eq!(old.row(field, 1, row), new.row(field, 1, row));
            }
        }
    }
}
