//! More rows are to grow than there is room for.

use super::fixture::{NOTHING, allocate, fill, narrow, scan};
use crate::cuda;
use mast3r_slam::compute::splat::block::BlockContent;
use mast3r_slam::compute::splat::device::{RefineRules, RefineStatus, SplatDevice, growth_key};

#[test]
#[ignore = "needs 3 GB of GPU memory; run with --ignored splat::full"]
fn exactly_the_two_million_largest_gradients_of_ten_million_rows_grow() {
    const ROWS: u64 = 10_000_000;
    const CAPACITY: u64 = 12_000_000;
    let Some(gpu) = cuda() else { return };
    // A permutation: the factor has no divisor in common with the number of rows.
    let place = |row: u64| row * 6_180_339 % ROWS;
    let grows = |row: &u64| place(*row) >= 2 * ROWS - CAPACITY;
    let mut device = allocate(&gpu, narrow(CAPACITY, 0));
    let mut last = None;
    fill(&mut device, ROWS, BlockContent::State, |block, first| {
        for row in 0..block.rows() {
            let number = first + row as u64;
            // A float counts to 2²⁴ exactly, so all gradients differ.
            block.gradient_sum[row] = (place(number) + 1) as f32;
            if place(number) == 2 * ROWS - CAPACITY {
                last = Some(growth_key(block.gradient_sum[row], number as u32));
            }
        }
    });
    let rules = RefineRules {
        hot: 0.5,
        ..NOTHING
    };
    let found = device.refine(&rules).expect("refined");
    assert_eq!((found.holes, found.extras), (0, ROWS));
    assert_eq!((found.granted, found.after), (CAPACITY - ROWS, CAPACITY));
    let refused = 2 * ROWS - CAPACITY;
    assert_eq!(found.status(), RefineStatus::Limited { refused });
    assert_eq!(Some(found.cutoff), last);
    // All rows stay in their places, and the copies follow in the order of their rows.
    let mut expected = (0..ROWS).chain((0..ROWS).filter(grows));
    scan(
        &mut device,
        (0, CAPACITY),
        BlockContent::Parameters,
        |block, first| {
            for (slot, anchor) in (first..).zip(&block.anchor) {
                assert_eq!(Some(u64::from(*anchor)), expected.next(), "slot {slot}");
            }
        },
    );
    assert_eq!(expected.next(), None);
    device.verify().expect("canaries");
    println!(
        "{} of {} rows grew, down to a gradient of {}",
        found.granted,
        found.extras,
        f32::from_bits((found.cutoff >> 32) as u32)
    );
}
