//! Numbers of rows are exact at every size.

use super::fixture::{NOTHING, allocate, fill, hash, narrow, read};
use crate::cuda;
use mast3r_slam::compute::cuda::splat::CudaSplat;
use mast3r_slam::compute::splat::block::BlockContent;
use mast3r_slam::compute::splat::device::{Counters, RefineRules, SplatDevice};
use mast3r_slam::compute::splat::layout::Field;

/// Edges of the scan's tiles and of what a float can count, and large numbers.
const SIZES: [u64; 12] = [
    1,
    31,
    2047,
    2048,
    2049,
    1_000_000,
    10_000_000,
    (1 << 24) - 1,
    1 << 24,
    (1 << 24) + 1,
    33_554_433,
    40_000_000,
];

/// Opacity logit of rows with and without a flag.
const LOGITS: [f32; 2] = [1.0, -8.0];

/// Whether a row has a flag, by its number and the number of rows.
type Flag = fn(u64, u64) -> bool;

const FLAGS: [(&str, Flag); 4] = [
    ("one", |row, rows| row == rows / 3),
    ("the last", |row, rows| row + 1 == rows),
    ("alternating", |row, _| row % 2 == 1),
    ("random", |row, _| hash(row).is_multiple_of(3)),
];

/// Refines a map without room for more rows.
fn counted(device: &mut CudaSplat, hot: f32, logit_prune: f32) -> Counters {
    let rules = RefineRules {
        hot,
        logit_prune,
        ..NOTHING
    };
    device.refine(&rules).expect("refined")
}

/// Counts flags as rows to grow, then all rows, no rows, flags as rows to prune, and the rows that are left. Returns
/// the number of flags.
fn check(device: &mut CudaSplat, rows: u64, what: &str, flag: Flag) -> u64 {
    let mut flags = 0;
    device.clear().expect("cleared");
    fill(device, rows, BlockContent::State, |block, first| {
        for row in 0..block.rows() {
            let flagged = flag(first + row as u64, rows);
            flags += u64::from(flagged);
            block.gradient_sum[row] = if flagged { 1.0 } else { 0.0 };
            let logit = LOGITS[usize::from(flagged)];
            block.parameters.row_mut(Field::Opacity, 0, row)[0] = logit;
        }
    });
    let never = f32::NEG_INFINITY;
    let what = format!("{rows} rows, {what}");
    let numbers = |c: Counters| (c.rows, c.holes, c.extras, c.granted, c.after);
    // The capacity is reached, so that no row changes; only the statistics start again.
    let grown = numbers(counted(device, 0.5, never));
    assert_eq!(grown, (rows, 0, flags, 0, rows), "{what}");
    let all = numbers(counted(device, -1.0, never));
    assert_eq!(all, (rows, 0, rows, 0, rows), "{what}: all");
    let no = numbers(counted(device, 0.5, never));
    assert_eq!(no, (rows, 0, 0, 0, rows), "{what}: no row");
    let pruned = numbers(counted(device, 0.5, -5.0));
    let left = rows - flags;
    assert_eq!(pruned, (rows, flags, 0, 0, left), "{what}: pruned");
    assert_eq!(device.counts().rows, left, "{what}");
    if left > 0 {
        let part = left.min(1 << 16);
        for start in [0, left / 2 - part / 2, left - part] {
            let found = read(device, start, part as usize, BlockContent::Parameters);
            let logits = found.parameters.get(Field::Opacity);
            assert!(logits.iter().all(|logit| *logit == LOGITS[0]), "{what}");
        }
        let emptied = numbers(counted(device, 0.5, f32::INFINITY));
        assert_eq!(emptied, (left, left, 0, 0, 0), "{what}: emptied");
    }
    device.verify().expect("canaries");
    flags
}

#[test]
#[ignore = "needs 8 GB of GPU memory; run with --ignored splat::full"]
fn numbers_of_rows_are_exact_at_the_edges_of_tiles_and_floats_and_at_40_million() {
    let Some(gpu) = cuda() else { return };
    for rows in SIZES {
        let mut device = allocate(&gpu, narrow(rows, 0));
        let mut text = format!("{rows} rows:");
        for (what, flag) in FLAGS {
            let flags = check(&mut device, rows, what, flag);
            if what == "one" || what == "the last" {
                assert_eq!(flags, 1, "{rows} rows, {what}");
            }
            text += &format!(" {what} {flags},");
        }
        println!("{text} none 0, all {rows}: counted exactly");
    }
}
