//! Refinement in place against a reference that builds a new list of rows.

use super::common::{MIXED, Random, rows, state};
use mast3r_slam::compute::splat::CpuSplat;
use mast3r_slam::compute::splat::block::{BlockContent, RowBlock};
use mast3r_slam::compute::splat::device::{Counters, RefineRules, RefineStatus, SplatDevice};
use mast3r_slam::compute::splat::layout::Field;
use mast3r_slam::compute::splat::rng::{Purpose, normals, words};
use nalgebra::{Quaternion, UnitQuaternion, Vector3};

fn rules() -> RefineRules {
    RefineRules {
        seed: 0x1234_5678_9ABC,
        step: 600,
        hot: 2e-4,
        ln_small: -3.0,
        ln_prune: -1.2,
        logit_prune: -5.0,
        ln_shrink: 1.6_f32.ln(),
        revised_opacity: 0,
        reserved: 0,
    }
}

/// A row as the bits of all its planes but the statistics.
type Bits = Vec<u32>;

fn bits(block: &RowBlock, row: usize) -> Bits {
    let degree = block.degree();
    let planes = [&block.parameters, &block.first, &block.second];
    let values = planes.into_iter().flat_map(|p| {
        Field::ALL
            .into_iter()
            .flat_map(move |f| p.row(f, degree, row).iter().map(|v| v.to_bits()))
    });
    values
        .chain([block.anchor[row], block.observed[row]])
        .collect()
}

fn sorted(block: &RowBlock) -> Vec<Bits> {
    let mut all: Vec<Bits> = (0..block.rows()).map(|row| bits(block, row)).collect();
    all.sort_unstable();
    all
}

/// Random rows with moments and statistics; `hot` and `dead` are fractions.
fn random_state(n: usize, degree: u8, seed: u64, hot: f64, dead: f64) -> RowBlock {
    let mut random = Random::new(seed);
    let plain = rows(n, degree, seed, MIXED);
    let mut block = RowBlock::new(n, degree, BlockContent::State);
    block.parameters = plain.parameters;
    block.anchor = plain.anchor;
    for field in Field::ALL {
        for moments in [&mut block.first, &mut block.second] {
            for value in moments.get_mut(field) {
                *value = random.within(0.001, 1.0) as f32;
            }
        }
    }
    for row in 0..n {
        let is_hot = random.within(0.0, 1.0) < hot;
        block.seen[row] = random.below(5) as u32;
        let mean = if is_hot {
            random.within(2.1e-4, 1e-2)
        } else {
            random.within(0.0, 1.9e-4)
        };
        block.gradient_sum[row] = mean as f32 * block.seen[row].max(1) as f32;
        block.observed[row] = random.below(1000) as u32;
        let logit = if random.within(0.0, 1.0) < dead {
            -5.5
        } else {
            random.within(-4.5, 4.0)
        };
        block.parameters.row_mut(Field::Opacity, degree, row)[0] = logit as f32;
        if random.within(0.0, 1.0) < 0.02 {
            block
                .parameters
                .row_mut(Field::Rotation, degree, row)
                .fill(0.0);
        }
        if random.within(0.0, 1.0) < 0.02 {
            block.parameters.row_mut(Field::Scale, degree, row)[0] = 0.5;
        }
    }
    block
}

/// The rows afterwards, in any order, and the numbers of holes, extras and granted extras.
fn reference(block: &RowBlock, capacity: usize, r: &RefineRules) -> (Vec<Bits>, [u64; 3]) {
    let degree = block.degree();
    let n = block.rows();
    // 0: pruned, 1: kept, 2: duplicated, 3: split.
    let mut outcome = vec![1_u8; n];
    let mut gradients = vec![0.0_f32; n];
    for row in 0..n {
        let p = &block.parameters;
        let finite = [Field::Mean, Field::Scale, Field::Rotation, Field::Opacity]
            .iter()
            .all(|f| p.row(*f, degree, row).iter().all(|v| v.is_finite()));
        let q = p.row(Field::Rotation, degree, row);
        let norm2 = q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3];
        let mean = block.gradient_sum[row] / block.seen[row].max(1) as f32;
        gradients[row] = if mean.is_finite() { mean } else { 0.0 };
        let largest = p
            .row(Field::Scale, degree, row)
            .iter()
            .fold(f32::MIN, |a, b| a.max(*b));
        let opacity = p.row(Field::Opacity, degree, row)[0];
        let hot = gradients[row] > r.hot;
        let split = hot && largest > r.ln_small;
        let size = if split {
            largest - r.ln_shrink
        } else {
            largest
        };
        outcome[row] = match (hot, split) {
            _ if !finite || norm2 < 1e-8 => 0,
            _ if opacity < r.logit_prune || size > r.ln_prune => 0,
            (false, _) => 1,
            (true, false) => 2,
            (true, true) => 3,
        };
    }
    let holes = outcome.iter().filter(|o| **o == 0).count();
    let mut growing: Vec<usize> = (0..n).filter(|row| outcome[*row] > 1).collect();
    let extras = growing.len();
    let room = capacity - n + holes;
    growing.sort_by(|a, b| gradients[*b].total_cmp(&gradients[*a]).then(a.cmp(b)));
    for row in growing.iter().skip(room) {
        outcome[*row] = 1;
    }
    let mut out = Vec::new();
    for row in 0..n {
        let mut fresh = RowBlock::new(1, degree, BlockContent::State);
        for field in Field::ALL {
            let from = block.parameters.row(field, degree, row);
            fresh
                .parameters
                .row_mut(field, degree, 0)
                .copy_from_slice(from);
        }
        fresh.anchor[0] = block.anchor[row];
        match outcome[row] {
            0 => {}
            1 => out.push(bits(block, row)),
            2 => {
                out.push(bits(block, row));
                out.push(bits(&fresh, 0));
            }
            _ => {
                let p = &block.parameters;
                let get = |field| -> Vec<f64> {
                    p.row(field, degree, row)
                        .iter()
                        .map(|v| f64::from(*v))
                        .collect()
                };
                let (mean, scale, q) = (get(Field::Mean), get(Field::Scale), get(Field::Rotation));
                let q = UnitQuaternion::from_quaternion(Quaternion::new(q[0], q[1], q[2], q[3]));
                for child in 0..2 {
                    let w = words(r.seed, row as u32, r.step, child, Purpose::Split);
                    let z = normals(w);
                    let local = Vector3::from_fn(|k, _| scale[k].exp() * f64::from(z[k]));
                    let at = q * local + Vector3::from_column_slice(&mean);
                    for k in 0..3 {
                        // Rounded, because the reference may differ in the last bit.
                        fresh.parameters.row_mut(Field::Mean, degree, 0)[k] = at[k] as f32;
                        let s = p.row(Field::Scale, degree, row)[k] - r.ln_shrink;
                        fresh.parameters.row_mut(Field::Scale, degree, 0)[k] = s;
                    }
                    out.push(bits(&fresh, 0));
                }
            }
        }
    }
    (out, [holes as u64, extras as u64, extras.min(room) as u64])
}

/// Means are rounded to 2⁻¹⁶ and put last, so that sorting does not depend on their last bits.
fn blurred(all: Vec<Bits>) -> Vec<(Bits, [i64; 3])> {
    let mut out: Vec<(Bits, [i64; 3])> = all
        .into_iter()
        .map(|bits| {
            let mean =
                [0, 1, 2].map(|k| (f64::from(f32::from_bits(bits[k])) * 65536.0).round() as i64);
            (bits[3..].to_vec(), mean)
        })
        .collect();
    out.sort_unstable();
    out
}

fn assert_same(found: Vec<Bits>, expected: Vec<Bits>, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (f, e) in blurred(found).iter().zip(blurred(expected).iter()) {
        assert_eq!(f.0, e.0, "{what}");
        assert!((0..3).all(|k| (f.1[k] - e.1[k]).abs() <= 1), "{what}");
    }
}

fn load(block: &RowBlock, capacity: u64) -> CpuSplat {
    let mut map = CpuSplat::new(capacity, block.degree()).expect("a map");
    map.append(block).expect("room");
    map
}

fn check(block: &RowBlock, capacity: u64, r: &RefineRules, what: &str) -> Counters {
    let mut map = load(block, capacity);
    let counters = map.refine(r).expect("refined");
    map.verify().expect("canaries");
    let (expected, [holes, extras, granted]) = reference(block, capacity as usize, r);
    assert_eq!(
        [counters.holes, counters.extras, counters.granted],
        [holes, extras, granted],
        "{what}"
    );
    assert_eq!(counters.after, expected.len() as u64, "{what}");
    assert_eq!(map.counts().rows, counters.after);
    let after = state(&mut map);
    assert!(after.seen.iter().all(|n| *n == 0) && after.gradient_sum.iter().all(|g| *g == 0.0));
    assert_same(sorted(&after), expected, what);
    counters
}

#[test]
fn random_mixes_of_rows_become_the_reference_s_rows() {
    let mut random = Random::new(5);
    for seed in 0..300 {
        let n = 1 + random.below(60);
        let (hot, dead) = (random.within(0.0, 1.0), random.within(0.0, 1.0));
        let block = random_state(n, (seed % 4) as u8, seed, hot, dead);
        let room = random.below(2 * n + 1) as u64;
        check(&block, n as u64 + room, &rules(), &format!("seed {seed}"));
    }
    for (seed, hot, dead) in [
        (1, 0.3, 0.1),
        (2, 0.1, 0.5),
        (3, 1.0, 0.0),
        (4, 0.0, 1.0),
        (5, 0.5, 0.5),
    ] {
        let block = random_state(20_000, 1, seed, hot, dead);
        check(&block, 40_000, &rules(), &format!("large {seed}"));
        check(&block, 20_010, &rules(), &format!("large and full {seed}"));
    }
}

#[test]
fn counts_are_exact_at_the_edges_of_tiles() {
    for n in [1, 31, 2047, 2048, 2049, 6145] {
        type Pattern = fn(usize, usize) -> bool;
        let patterns: [Pattern; 4] = [
            |_, _| false,
            |_, _| true,
            |row, _| row % 2 == 0,
            |row, n| row == n - 1,
        ];
        for (index, pattern) in patterns.into_iter().enumerate() {
            let mut block = random_state(n, 0, 3, 0.0, 0.0);
            for row in 0..n {
                let p = &mut block.parameters;
                p.row_mut(Field::Rotation, 0, row)[0] = 1.0;
                p.row_mut(Field::Scale, 0, row).fill(-4.0);
                p.row_mut(Field::Opacity, 0, row)[0] = 0.0;
                block.seen[row] = 1;
                block.gradient_sum[row] = if pattern(row, n) { 1.0 } else { 0.0 };
            }
            let flags = (0..n).filter(|row| pattern(*row, n)).count() as u64;
            let what = format!("{n} rows, pattern {index}");
            let counters = check(&block, 2 * n as u64, &rules(), &what);
            assert_eq!((counters.holes, counters.extras), (0, flags), "{what}");
            for row in 0..n {
                let logit = if pattern(row, n) { -9.0 } else { 0.0 };
                block.parameters.row_mut(Field::Opacity, 0, row)[0] = logit;
                block.gradient_sum[row] = 0.0;
            }
            let counters = check(&block, 2 * n as u64, &rules(), &what);
            assert_eq!((counters.holes, counters.extras), (flags, 0), "{what}");
        }
    }
}

#[test]
fn over_capacity_exactly_the_largest_gradients_grow() {
    let n = 3000;
    let mut block = random_state(n, 0, 8, 0.0, 0.0);
    let mut random = Random::new(9);
    for row in 0..n {
        let p = &mut block.parameters;
        p.row_mut(Field::Rotation, 0, row)[0] = 1.0;
        p.row_mut(Field::Scale, 0, row).fill(-4.0);
        p.row_mut(Field::Opacity, 0, row)[0] = 0.0;
        block.seen[row] = 1;
        // Many equal values: the lower row wins.
        let value = random.below(20) as f32 * 1e-3 + 1e-3;
        block.gradient_sum[row] = if row % 3 == 0 { value } else { 0.0 };
    }
    let counters = check(&block, n as u64 + 10, &rules(), "ten free rows");
    assert_eq!(
        (counters.extras, counters.granted, counters.after),
        (1000, 10, n as u64 + 10)
    );
    assert_eq!(counters.status(), RefineStatus::Limited { refused: 990 });
    // A full map without holes stays as it is.
    let mut full = load(&block, n as u64);
    let before = state(&mut full);
    let counters = full.refine(&rules()).expect("refined");
    assert_eq!(counters.status(), RefineStatus::Limited { refused: 1000 });
    let after = state(&mut full);
    assert_eq!(
        (&before.parameters, &before.first),
        (&after.parameters, &after.first)
    );
    // A full map with holes uses these.
    for row in [5, 77, 2999] {
        block.parameters.row_mut(Field::Opacity, 0, row)[0] = -9.0;
    }
    let counters = check(&block, n as u64, &rules(), "three holes");
    assert_eq!(
        (counters.holes, counters.granted, counters.after),
        (3, 3, n as u64)
    );
}

#[test]
fn without_gradients_and_dead_rows_no_parameter_changes() {
    let mut block = random_state(5000, 2, 4, 0.0, 0.0);
    for row in 0..5000 {
        block.parameters.row_mut(Field::Rotation, 2, row)[3] = 1.0;
        block.parameters.row_mut(Field::Scale, 2, row).fill(-2.0);
    }
    block.gradient_sum.fill(0.0);
    let mut map = load(&block, 10_000);
    let counters = map.refine(&rules()).expect("refined");
    assert_eq!(
        (counters.after, counters.status()),
        (5000, RefineStatus::Complete)
    );
    let after = state(&mut map);
    assert_eq!(after.parameters, block.parameters);
    assert_eq!((after.first, after.second), (block.first, block.second));
}

#[test]
fn invalid_rows_are_pruned_and_invalid_gradients_are_zero() {
    let mut block = random_state(8, 1, 4, 0.0, 0.0);
    for row in 0..8 {
        let p = &mut block.parameters;
        p.row_mut(Field::Rotation, 1, row)
            .copy_from_slice(&[1.0, 0.0, 0.0, 0.0]);
        p.row_mut(Field::Scale, 1, row).fill(-4.0);
    }
    let p = &mut block.parameters;
    p.row_mut(Field::Mean, 1, 0)[1] = f32::NAN;
    p.row_mut(Field::Scale, 1, 1)[2] = f32::NEG_INFINITY;
    p.row_mut(Field::Rotation, 1, 2).fill(1e-5);
    block.gradient_sum[3] = f32::NAN;
    block.gradient_sum[4] = f32::INFINITY;
    block.gradient_sum[5] = 1.0;
    block.seen[5] = 0;
    let counters = check(&block, 20, &rules(), "invalid rows");
    assert_eq!((counters.holes, counters.extras, counters.after), (3, 1, 6));
}

#[test]
fn children_of_a_split_have_the_parent_s_distribution() {
    let n = 100_000;
    let mut block = RowBlock::new(n, 0, BlockContent::State);
    let q = UnitQuaternion::from_scaled_axis(Vector3::new(0.4, -1.0, 0.3));
    let (mean, scale) = ([1.0, 2.0, 3.0], [0.5_f32.ln(), 1.0_f32.ln(), 0.8_f32.ln()]);
    for row in 0..n {
        let p = &mut block.parameters;
        p.row_mut(Field::Mean, 0, row).copy_from_slice(&mean);
        p.row_mut(Field::Scale, 0, row).copy_from_slice(&scale);
        let q = [q.w, q.i, q.j, q.k].map(|v| 3.0 * v as f32);
        p.row_mut(Field::Rotation, 0, row).copy_from_slice(&q);
        block.gradient_sum[row] = 1.0;
        block.seen[row] = 1;
    }
    let mut large = rules();
    large.ln_prune = f32::INFINITY;
    let mut map = load(&block, 2 * n as u64);
    assert_eq!(map.refine(&large).expect("refined").after, 2 * n as u64);
    let after = state(&mut map);
    let z = |row: usize| {
        let m = after.parameters.row(Field::Mean, 0, row);
        let d = Vector3::new(m[0] - mean[0], m[1] - mean[1], m[2] - mean[2]).map(f64::from);
        let local = q.inverse() * d;
        Vector3::from_fn(|k, _| local[k] / f64::from(scale[k]).exp())
    };
    let (mut sum, mut square, mut pair) = (Vector3::zeros(), Vector3::zeros(), Vector3::zeros());
    for row in 0..n {
        let (a, b) = (z(row), z(n + row));
        sum += a + b;
        square += a.component_mul(&a) + b.component_mul(&b);
        pair += a.component_mul(&b);
        assert!(a.amax() < 6.7 && b.amax() < 6.7);
    }
    let children = 2.0 * n as f64;
    for k in 0..3 {
        assert!((sum[k] / children).abs() < 5.0 / children.sqrt());
        assert!((square[k] / children - 1.0).abs() < 0.02);
        assert!((pair[k] / n as f64).abs() < 0.02);
    }
}

#[test]
fn revised_opacity_makes_the_children_as_opaque_as_the_parent() {
    let mut block = random_state(1, 0, 1, 1.0, 0.0);
    let p = &mut block.parameters;
    p.row_mut(Field::Rotation, 0, 0)[0] = 1.0;
    p.row_mut(Field::Scale, 0, 0).fill(-2.0);
    p.row_mut(Field::Opacity, 0, 0)[0] = 1.3;
    let revised = RefineRules {
        revised_opacity: 1,
        ..rules()
    };
    let mut map = load(&block, 2);
    map.refine(&revised).expect("refined");
    let after = state(&mut map);
    let sigmoid = |x: f32| 1.0 / (1.0 + (-f64::from(x)).exp());
    let o = [0, 1].map(|row| sigmoid(after.parameters.row(Field::Opacity, 0, row)[0]));
    assert!((1.0 - (1.0 - o[0]) * (1.0 - o[1]) - sigmoid(1.3)).abs() < 1e-6);
}

#[test]
fn a_seed_repeats_bit_for_bit_and_another_changes_only_the_split_means() {
    let block = random_state(3000, 3, 12, 0.4, 0.3);
    let run = |seed: u64| {
        let mut map = load(&block, 5000);
        map.refine(&RefineRules { seed, ..rules() })
            .expect("refined");
        state(&mut map)
    };
    let (a, b, mut c) = (run(1), run(1), run(2));
    assert_eq!(sorted(&a), sorted(&b));
    assert_ne!(a.parameters.get(Field::Mean), c.parameters.get(Field::Mean));
    let means = a.parameters.get(Field::Mean).to_vec();
    c.parameters.get_mut(Field::Mean).copy_from_slice(&means);
    assert_eq!(
        (a.parameters, a.first, a.anchor),
        (c.parameters, c.first, c.anchor)
    );
}

#[test]
fn a_thousand_refinements_follow_the_reference_s_numbers() {
    let mut random = Random::new(77);
    let capacity = 600;
    let mut map = load(&random_state(200, 0, 1, 0.5, 0.1), capacity);
    let bytes = map.memory().pool;
    for cycle in 0..1000 {
        let before = state(&mut map);
        let n = before.rows().max(50);
        // New statistics and opacities for the rows that are there.
        let mut block = random_state(
            n,
            0,
            cycle,
            random.within(0.0, 0.8),
            random.within(0.0, 0.6),
        );
        if before.rows() == n {
            block.parameters = before.parameters.clone();
            for row in 0..n {
                let dead = random.within(0.0, 1.0) < 0.3;
                block.parameters.row_mut(Field::Opacity, 0, row)[0] = if dead { -9.0 } else { 1.0 };
            }
        }
        map.clear().expect("cleared");
        map.append(&block).expect("room");
        let step = RefineRules {
            step: cycle as u32,
            ..rules()
        };
        let counters = map.refine(&step).expect("refined");
        let (_, [holes, extras, granted]) = reference(&block, capacity as usize, &step);
        assert_eq!(
            [counters.holes, counters.extras, counters.granted],
            [holes, extras, granted]
        );
        map.verify().expect("canaries");
        assert_eq!(map.memory().pool, bytes);
    }
}

#[test]
fn a_reset_limits_opacities_and_touches_nothing_else() {
    let block = random_state(500, 1, 6, 0.2, 0.2);
    let mut map = load(&block, 500);
    let limit = -4.595_12;
    map.reset_opacity(limit).expect("reset");
    let after = state(&mut map);
    for row in 0..500 {
        let (old, new) = (&block.parameters, &after.parameters);
        let opacity =
            |p: &mast3r_slam::compute::splat::block::FieldBuffers| p.row(Field::Opacity, 1, row)[0];
        assert_eq!(opacity(new), opacity(old).min(limit));
    }
    assert!(after.first.get(Field::Opacity).iter().all(|v| *v == 0.0));
    assert!(after.second.get(Field::Opacity).iter().all(|v| *v == 0.0));
    for field in Field::ALL.into_iter().filter(|f| *f != Field::Opacity) {
        assert_eq!(block.parameters.get(field), after.parameters.get(field));
        assert_eq!(block.first.get(field), after.first.get(field));
    }
    assert_eq!(
        (block.seen, block.gradient_sum),
        (after.seen, after.gradient_sum)
    );
}
