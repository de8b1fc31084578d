//! All rows are split, in a pool that has room for exactly the children.

use super::fixture::{
    CHUNK, NOTHING, copy_row, fill, free, memory_stays, narrow, parameters, read, state, warm,
};
use crate::cuda;
use mast3r_slam::compute::cuda::splat::CudaSplat;
use mast3r_slam::compute::splat::block::{BlockContent, RowBlock};
use mast3r_slam::compute::splat::device::{RefineRules, RefineStatus, SplatDevice};
use mast3r_slam::compute::splat::layout::{CANARY_BYTES, Field, PLANE_ALIGNMENT};
use mast3r_slam::compute::splat::rng::{Purpose, normals, words};
use mast3r_slam::gpu::Context;
use nalgebra::{Quaternion, UnitQuaternion, Vector3};
use std::time::Instant;

/// Rows that are compared in one place.
const SAMPLE: usize = 1 << 14;

/// Rules by which every row is split.
const SPLIT: RefineRules = RefineRules {
    hot: -1.0,
    ln_small: -1e30,
    ..NOTHING
};

fn vector(block: &RowBlock, field: Field, row: usize) -> Vector3<f64> {
    let values = block.parameters.row(field, block.degree(), row);
    Vector3::new(values[0], values[1], values[2]).map(f64::from)
}

fn rotation(block: &RowBlock, row: usize) -> UnitQuaternion<f64> {
    let q = block
        .parameters
        .row(Field::Rotation, block.degree(), row)
        .iter()
        .map(|v| f64::from(*v));
    let q: Vec<f64> = q.collect();
    UnitQuaternion::new_normalize(Quaternion::new(q[0], q[1], q[2], q[3]))
}

/// Checks one child of each parent; the parents are rows `start` and following.
fn check_children(
    parents: &RowBlock,
    start: u64,
    children: &RowBlock,
    child: u32,
    rules: &RefineRules,
) {
    let degree = parents.degree();
    for row in 0..parents.rows() {
        let number = start + row as u64;
        let what = format!("child {child} of row {number}");
        let mut expected = RowBlock::new(1, degree, BlockContent::Parameters);
        copy_row((parents, row), (&mut expected, 0));
        for value in expected.parameters.row_mut(Field::Scale, degree, 0) {
            *value -= rules.ln_shrink;
        }
        let noise = words(rules.seed, number as u32, rules.step, child, Purpose::Split);
        let z = Vector3::from(normals(noise).map(f64::from));
        let deviations = vector(parents, Field::Scale, row).map(f64::exp);
        let offset = rotation(parents, row) * deviations.component_mul(&z);
        let mean = vector(parents, Field::Mean, row) + offset;
        let found = vector(children, Field::Mean, row);
        let error = (found - mean).amax();
        assert!(
            error <= 4e-6 * (1.0 + mean.amax()),
            "{what}: {found} instead of {mean}"
        );
        // The rest has the same bits.
        let bits = children.parameters.row(Field::Mean, degree, row);
        expected
            .parameters
            .row_mut(Field::Mean, degree, 0)
            .copy_from_slice(bits);
        assert_eq!(
            parameters(children, row),
            parameters(&expected, 0),
            "{what}"
        );
        assert!(state(children, row).iter().all(|bits| *bits == 0), "{what}");
        let statistics = (children.gradient_sum[row], children.seen[row]);
        assert_eq!(statistics, (0.0, 0), "{what}");
    }
}

/// Splits 10 million rows of degree 3 until `capacity` is reached, which must take at most `limit` bytes.
fn split_all(gpu: &Context, capacity: u64, limit: u64) {
    warm(gpu);
    let before = free(gpu);
    let sizes = narrow(capacity, 3);
    let planned = CudaSplat::plan(&sizes).expect("a plan").device_bytes();
    let mut device = CudaSplat::allocate(gpu, sizes).expect("a map");
    let taken = before - free(gpu);
    assert!(planned <= limit && taken <= limit, "{planned} {taken}");
    // The pool has no room for one row more.
    let pool = device.memory().pool;
    let planes = device.layout().planes().len() as u64;
    let canaries = planes * (CANARY_BYTES + PLANE_ALIGNMENT);
    assert!((724 * capacity..=724 * capacity + canaries).contains(&pool));
    fill(&mut device, 10_000_000, BlockContent::State, |_, _| ());
    let mut rules = SPLIT;
    while device.counts().rows < capacity {
        let rows = device.counts().rows;
        let starts = [0, rows / 2 - SAMPLE as u64 / 2, rows - SAMPLE as u64];
        let parents = starts.map(|start| read(&mut device, start, SAMPLE, BlockContent::State));
        let clock = Instant::now();
        let (found, asked) = memory_stays(gpu, || device.refine(&rules).expect("refined"));
        let took = clock.elapsed();
        assert_eq!((found.rows, found.holes, found.extras), (rows, 0, rows));
        assert_eq!((found.granted, found.after), (rows, 2 * rows));
        assert_eq!(found.status(), RefineStatus::Complete);
        assert_eq!(device.counts().rows, 2 * rows);
        for (start, parents) in starts.into_iter().zip(&parents) {
            for (child, first) in [(0, start), (1, rows + start)] {
                let children = read(&mut device, first, SAMPLE, BlockContent::State);
                check_children(parents, start, &children, child, &rules);
            }
        }
        device.verify().expect("canaries");
        println!(
            "{rows} rows became {}: {taken} bytes in all ({planned} planned), {} free, the same {asked} times during it; \
             {took:.1?}",
            found.after,
            free(gpu),
        );
        rules.step += 1;
    }
}

#[test]
#[ignore = "needs 15 GB of GPU memory; run with --ignored splat::full"]
fn ten_million_rows_become_twenty_million_in_14_6_gb() {
    let Some(gpu) = cuda() else { return };
    split_all(&gpu, 20_000_000, 14_600_000_000);
}

#[test]
#[ignore = "needs 29 GB of GPU memory; run with --ignored splat::full"]
fn twenty_million_rows_become_forty_million_in_29_gb() {
    let Some(gpu) = cuda() else { return };
    split_all(&gpu, 40_000_000, 29_000_000_000);
}

#[test]
#[ignore = "needs 2 GB of GPU memory; run with --ignored splat::full"]
fn ten_million_children_have_their_parents_distribution() {
    const PARENTS: u64 = 5_000_000;
    let Some(gpu) = cuda() else { return };
    warm(&gpu);
    let mut device = CudaSplat::allocate(&gpu, narrow(2 * PARENTS, 0)).expect("a map");
    fill(&mut device, PARENTS, BlockContent::State, |block, _| {
        // Deviations from 0.6 to 1.6 m, far above the rounding of a mean.
        let colours = block.parameters.get(Field::Dc).to_vec();
        (block.parameters.get_mut(Field::Scale)).copy_from_slice(&colours);
    });
    let blocks: Vec<RowBlock> = (0..PARENTS)
        .step_by(CHUNK)
        .map(|start| {
            let rows = (PARENTS - start).min(CHUNK as u64) as usize;
            read(&mut device, start, rows, BlockContent::Parameters)
        })
        .collect();
    let found = device.refine(&SPLIT).expect("refined");
    assert_eq!((found.granted, found.after), (PARENTS, 2 * PARENTS));
    let (mut sum, mut square, mut product) = ([0.0; 3], [0.0; 3], [0.0; 3]);
    let mut largest = 0.0_f64;
    for (start, parents) in (0..).step_by(CHUNK).zip(&blocks) {
        let rows = parents.rows();
        let children = [start, PARENTS + start]
            .map(|first| read(&mut device, first, rows, BlockContent::Parameters));
        for row in 0..rows {
            let (turn, mean) = (rotation(parents, row), vector(parents, Field::Mean, row));
            let deviations = vector(parents, Field::Scale, row).map(f64::exp);
            let [a, b] = [0, 1].map(|child| {
                let offset = vector(&children[child], Field::Mean, row) - mean;
                turn.inverse_transform_vector(&offset)
                    .component_div(&deviations)
            });
            for k in 0..3 {
                sum[k] += a[k] + b[k];
                square[k] += a[k] * a[k] + b[k] * b[k];
                product[k] += a[k] * b[k];
            }
            largest = largest.max(a.amax()).max(b.amax());
        }
    }
    let n = 2.0 * PARENTS as f64;
    let means = sum.map(|v| v / n);
    let variances = square.map(|v| v / n);
    let correlations = product.map(|v| v / PARENTS as f64);
    println!("means {means:?}, variances {variances:?}, pairs {correlations:?}, largest {largest}");
    for k in 0..3 {
        assert!(means[k].abs() < 5.0 / n.sqrt(), "{means:?}");
        assert!((variances[k] - 1.0).abs() < 0.002, "{variances:?}");
        assert!(correlations[k].abs() < 0.002, "{correlations:?}");
    }
    assert!(largest < 6.7, "{largest}");
}
