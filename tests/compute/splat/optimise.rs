//! Adam and relocation.

use super::common::{MIXED, Random, SMOOTH, camera, image, map, rows, state};
use mast3r_slam::compute::splat::CpuSplat;
use mast3r_slam::compute::splat::block::{BlockContent, RowBlock};
use mast3r_slam::compute::splat::camera::View;
use mast3r_slam::compute::splat::device::{
    AdamStep, LossWeights, RelocateRules, RowGradients, SplatDevice,
};
use mast3r_slam::compute::splat::layout::Field;
use mast3r_slam::compute::splat::relocate::shares;

const WEIGHTS: LossWeights = LossWeights {
    statistics: false,
    ..LossWeights::COLOR_ONLY
};

fn step(t: i32) -> AdamStep {
    AdamStep {
        rates: [0.01, 0.02, 0.03, 0.04, 0.05, 0.06],
        bias1: 1.0 - 0.9_f32.powi(t),
        bias2: 1.0 - 0.999_f32.powi(t),
        opacity_weight: 0.0,
        scale_weight: 0.0,
        noise: 0.0,
        seed: 1,
        step: t as u32,
    }
}

#[test]
fn visible_rows_follow_adam_s_formula_and_others_stay() {
    let camera = camera(30, 20);
    let block = rows(40, 1, 3, MIXED);
    let mut map = map(&block, 40);
    let picture = image(&camera, 1);
    let view = View {
        camera,
        image: &picture,
        depth: None,
    };
    let floats = 23;
    // Parameters and moments in plain double precision, by row and value.
    let mut expected: Vec<[Vec<f64>; 3]> = (0..40)
        .map(|row| {
            let fields = Field::ALL.into_iter();
            let values = fields.flat_map(|f| block.parameters.row(f, 1, row).to_vec());
            let values: Vec<f64> = values.map(f64::from).collect();
            [values, vec![0.0; floats], vec![0.0; floats]]
        })
        .collect();
    let mut ever = [false; 40];
    for t in 1..=5 {
        map.gradients(&view, &WEIGHTS).expect("gradients");
        let mut gradients = RowGradients::default();
        map.read_gradients(&mut gradients).expect("gradients");
        let s = step(t);
        map.step(&s).expect("a step");
        assert!(map.step(&s).is_err(), "gradients are used up");
        for (row, g) in gradients.rows.iter().zip(gradients.values.chunks(floats)) {
            ever[*row as usize] = true;
            let [value, first, second] = &mut expected[*row as usize];
            for k in 0..floats {
                let rate = match k {
                    0..3 => 0.01,
                    3..6 => 0.02,
                    6..10 => 0.03,
                    10 => 0.04,
                    11..14 => 0.05,
                    _ => 0.06,
                };
                let g = f64::from(g[k]);
                first[k] = 0.9 * first[k] + 0.1 * g;
                second[k] = 0.999 * second[k] + 0.001 * g * g;
                let (m, v) = (
                    first[k] / (1.0 - 0.9_f64.powi(t)),
                    second[k] / (1.0 - 0.999_f64.powi(t)),
                );
                value[k] -= rate * m / (v.sqrt() + 1e-15);
            }
        }
    }
    assert!(ever.iter().any(|v| *v) && ever.iter().any(|v| !*v));
    let after = state(&mut map);
    for row in 0..40 {
        let found = Field::ALL
            .into_iter()
            .flat_map(|f| after.parameters.row(f, 1, row).to_vec());
        for (f, e) in found.zip(&expected[row][0]) {
            // A gradient of rounding errors alone makes a full step in either direction.
            let near = (f64::from(f) - e).abs() < 2e-4;
            assert!(near, "row {row}: {f} {e}");
            assert!(ever[row] || f64::from(f) == *e);
        }
    }
}

#[test]
fn steps_towards_an_image_make_it_more_similar() {
    let camera = camera(32, 24);
    let target = rows(30, 0, 1, SMOOTH);
    let mut rendering = Default::default();
    map(&target, 30)
        .render(&camera, &mut rendering)
        .expect("an image");
    let picture: Vec<u8> = rendering
        .color
        .iter()
        .map(|c| (c.clamp(0.0, 1.0) * 255.0) as u8)
        .collect();
    let mut map = map(&rows(30, 0, 2, SMOOTH), 30);
    let view = View {
        camera,
        image: &picture,
        depth: Some(&rendering.depth),
    };
    let first = map.gradients(&view, &WEIGHTS).expect("a loss");
    let mut last = first;
    for t in 1..=60 {
        last = map.gradients(&view, &WEIGHTS).expect("a loss");
        map.step(&AdamStep {
            rates: [5e-3, 5e-3, 5e-3, 5e-2, 2e-2, 0.0],
            ..step(t)
        })
        .expect("a step");
    }
    assert!(last.total < 0.3 * first.total, "{first:?} {last:?}");
}

#[test]
fn weights_of_opacity_and_scale_make_rows_transparent_and_small() {
    let camera = camera(16, 16);
    let mut map = map(&rows(5, 0, 1, SMOOTH), 5);
    let mut rendering = Default::default();
    map.render(&camera, &mut rendering).expect("an image");
    let picture = vec![0; 768];
    let view = View {
        camera,
        image: &picture,
        depth: None,
    };
    let before = state(&mut map);
    map.gradients(
        &view,
        &LossWeights {
            ssim: 0.0,
            ..WEIGHTS
        },
    )
    .expect("gradients");
    map.step(&AdamStep {
        opacity_weight: 1e6,
        scale_weight: 1e6,
        ..step(1)
    })
    .expect("a step");
    let after = state(&mut map);
    for field in [Field::Opacity, Field::Scale] {
        let pairs = before
            .parameters
            .get(field)
            .iter()
            .zip(after.parameters.get(field));
        assert!(pairs.into_iter().all(|(old, new)| new < old), "{field:?}");
    }
}

#[test]
fn noise_moves_transparent_rows_within_their_extent_and_leaves_opaque_ones() {
    let n = 4000;
    let mut block = RowBlock::new(n, 0, BlockContent::Parameters);
    for row in 0..n {
        let p = &mut block.parameters;
        p.row_mut(Field::Mean, 0, row)[2] = 2.0;
        p.row_mut(Field::Scale, 0, row)
            .copy_from_slice(&[-3.0, -3.5, -2.5]);
        p.row_mut(Field::Rotation, 0, row)[0] = 2.0;
        // Logits −5 and 5: opacities 0.0067 and 0.9933.
        p.row_mut(Field::Opacity, 0, row)[0] = if row % 2 == 0 { -5.0 } else { 5.0 };
    }
    let camera = camera(16, 16);
    let picture = vec![0; 768];
    let view = View {
        camera,
        image: &picture,
        depth: None,
    };
    let mut map = map(&block, n as u64);
    map.gradients(&view, &WEIGHTS).expect("gradients");
    map.step(&AdamStep {
        rates: [0.0; 6],
        noise: 100.0,
        ..step(1)
    })
    .expect("a step");
    let after = state(&mut map);
    let factor = 100.0 / (1.0 + (100.0 / (1.0 + 5.0_f64.exp()) - 0.5).exp());
    for axis in 0..3 {
        let variance = (2.0 * [-3.0, -3.5, -2.5_f64][axis]).exp();
        let mut square = 0.0;
        for row in 0..n {
            let old = if axis == 2 { 2.0 } else { 0.0 };
            let moved = f64::from(after.parameters.row(Field::Mean, 0, row)[axis]) - old;
            if row % 2 == 0 {
                square += (moved / (factor * variance)).powi(2);
            } else {
                assert!(moved.abs() < 1e-6);
            }
        }
        let spread = square / (n as f64 / 2.0);
        assert!((spread - 1.0).abs() < 0.15, "{axis}: {spread}");
    }
}

#[test]
fn shares_are_those_of_the_double_sum() {
    let binomial =
        |n: u32, k: u32| (0..k).fold(1.0, |b, i| b * f64::from(n - i) / f64::from(i + 1));
    for n in [1, 2, 3, 7, 20] {
        for o in [0.01, 0.3, 0.9, 0.99] {
            let (share, factor) = shares(o, n);
            let together = 1.0 - (1.0 - share).powi(n as i32);
            assert!((together - o).abs() < 1e-9 || share == f64::from(0.005_f32));
            let raw = 1.0 - (1.0 - o).powf(1.0 / f64::from(n));
            let mut sum = 0.0;
            for i in 1..=n {
                for k in 0..i {
                    let sign = if k % 2 == 0 { 1.0 } else { -1.0 };
                    sum += binomial(i - 1, k) * sign * raw.powi(k as i32 + 1)
                        / f64::from(k + 1).sqrt();
                }
            }
            assert!(
                (factor - o / sum).abs() < 1e-6 * factor,
                "{n} {o}: {factor} {}",
                o / sum
            );
        }
    }
    assert_eq!(shares(0.5, 1).1, 1.0);
    let (share, factor) = shares(1.0 - 1e-7, 4_000_000_000);
    assert!(share > 0.2 && share < 0.3 && factor.is_finite() && factor > 0.0);
}

fn relocate_rules(step: u32) -> RelocateRules {
    RelocateRules {
        seed: 9,
        step,
        logit_dead: -5.2933,
        growth: 0.05,
    }
}

/// Rows with moments; every fifth one dead or invalid.
fn mixed_rows(n: usize) -> RowBlock {
    let plain = rows(n, 1, 4, MIXED);
    let mut block = RowBlock::new(n, 1, BlockContent::State);
    block.parameters = plain.parameters;
    let mut random = Random::new(3);
    for field in Field::ALL {
        block.first.get_mut(field).fill(1.0);
        block.second.get_mut(field).fill(1.0);
    }
    for row in 0..n {
        block.anchor[row] = row as u32;
        let logit = if row % 5 == 0 {
            -6.0
        } else {
            random.within(-3.0, 3.0)
        };
        block.parameters.row_mut(Field::Opacity, 1, row)[0] = logit as f32;
        if row % 35 == 0 {
            block.parameters.row_mut(Field::Rotation, 1, row).fill(0.0);
        }
    }
    block
}

#[test]
fn dead_rows_move_onto_live_ones_and_the_map_grows_up_to_its_capacity() {
    let n = 1000;
    let block = mixed_rows(n);
    let mut map = CpuSplat::new(1030, 1).expect("a map");
    map.append(&block).expect("room");
    let done = map.relocate(&relocate_rules(1)).expect("relocated");
    assert_eq!((done.moved, done.added, done.rows), (200, 30, 1030));
    let after = state(&mut map);
    // The anchor of a row is the row that it came from.
    let mut opacity = vec![1.0; n];
    let mut copies = vec![0; n];
    for row in 0..1030 {
        let source = after.anchor[row] as usize;
        assert_ne!(source % 5, 0, "row {row} comes from a dead one");
        assert!(row % 5 == 0 || row >= n || source == row);
        let o = 1.0 / (1.0 + (-f64::from(after.parameters.row(Field::Opacity, 1, row)[0])).exp());
        opacity[source] *= 1.0 - o;
        copies[source] += 1;
        for field in [Field::Mean, Field::Rotation, Field::Dc, Field::Rest] {
            let (from, to) = (
                block.parameters.row(field, 1, source),
                after.parameters.row(field, 1, row),
            );
            assert_eq!(from, to);
        }
        let moved = copies[source] > 1 || source != row;
        let moments = after.first.row(Field::Mean, 1, row);
        assert!(!moved || moments.iter().all(|m| *m == 0.0));
    }
    for row in (0..n).filter(|row| row % 5 != 0) {
        let old = 1.0 / (1.0 + (-f64::from(block.parameters.row(Field::Opacity, 1, row)[0])).exp());
        assert!((1.0 - opacity[row] - old).abs() < 2e-3, "row {row}");
    }
    assert!(copies.iter().any(|c| *c > 1));
    map.verify().expect("canaries");
    // Draws repeat.
    let mut again = CpuSplat::new(1030, 1).expect("a map");
    again.append(&block).expect("room");
    again.relocate(&relocate_rules(1)).expect("relocated");
    assert_eq!(state(&mut again).anchor, after.anchor);
    again.clear().expect("cleared");
    again.append(&block).expect("room");
    again.relocate(&relocate_rules(2)).expect("relocated");
    assert_ne!(state(&mut again).anchor, after.anchor);
}

#[test]
fn opaque_rows_are_drawn_as_often_as_they_are_opaque() {
    let n = 40_000;
    let mut block = RowBlock::new(n, 0, BlockContent::Parameters);
    for row in 0..n {
        let p = &mut block.parameters;
        p.row_mut(Field::Rotation, 0, row)[0] = 1.0;
        // Half of the rows are dead; of the others, every second has opacity 0.9, the rest 0.3.
        let o: f32 = [0.001, 0.9, 0.001, 0.3][row % 4];
        p.row_mut(Field::Opacity, 0, row)[0] = (o / (1.0 - o)).ln();
        block.anchor[row] = (row % 4) as u32;
    }
    let mut map = map(&block, n as u64);
    assert_eq!(
        map.relocate(&relocate_rules(1)).expect("relocated").moved,
        n as u64 / 2
    );
    let after = state(&mut map);
    let from = |kind: u32| {
        (0..n)
            .step_by(2)
            .filter(|row| after.anchor[*row] == kind)
            .count() as f64
    };
    let ratio = from(1) / from(3);
    assert!((ratio - 3.0).abs() < 0.15, "{ratio}");
}

#[test]
fn a_map_without_live_rows_stays_as_it_is() {
    let mut block = mixed_rows(50);
    block.parameters.get_mut(Field::Opacity).fill(-9.0);
    let mut map = CpuSplat::new(100, 1).expect("a map");
    map.append(&block).expect("room");
    let done = map.relocate(&relocate_rules(1)).expect("relocated");
    assert_eq!((done.moved, done.added, done.rows), (0, 0, 50));
    assert_eq!(
        state(&mut map).parameters.get(Field::Mean),
        block.parameters.get(Field::Mean)
    );
}
