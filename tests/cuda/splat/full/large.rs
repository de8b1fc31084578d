//! Planes of more than 2³¹ elements.

use super::fixture::{NOTHING, allocate, ends, fill, narrow, parameters, read, state};
use crate::cuda;
use mast3r_slam::compute::cuda::splat::CudaSplat;
use mast3r_slam::compute::splat::block::{BlockContent, RowBlock};
use mast3r_slam::compute::splat::device::{RefineRules, SplatDevice};
use mast3r_slam::compute::splat::layout::{Field, PlaneKind};

const ROWS: u64 = 48_000_000;
/// The last rows, which are duplicated.
const GROWN: u64 = 1000;
/// The first row that is pruned, and how many are.
const PRUNED: (u64, u64) = (1000, 1500);
/// Rows that are compared in one place.
const SAMPLE: usize = 1 << 14;

fn sample(device: &mut CudaSplat, start: u64) -> RowBlock {
    read(device, start, SAMPLE, BlockContent::State)
}

/// Checks that a row is another one as it was; with `fresh`, a copy of it without moments.
fn check(found: (&RowBlock, usize), expected: (&RowBlock, usize), fresh: bool, what: &str) {
    let (a, b) = (
        parameters(found.0, found.1),
        parameters(expected.0, expected.1),
    );
    assert_eq!(a, b, "{what}");
    let mut expected = state(expected.0, expected.1);
    if fresh {
        expected.fill(0);
    }
    assert_eq!(state(found.0, found.1), expected, "{what}");
    let statistics = (found.0.gradient_sum[found.1], found.0.seen[found.1]);
    assert_eq!(statistics, (0.0, 0), "{what}");
}

#[test]
#[ignore = "needs 35 GB of GPU memory; run with --ignored splat::full"]
fn rows_beyond_two_to_the_31_elements_survive_three_refinements_and_move() {
    let Some(gpu) = cuda() else { return };
    let mut device = allocate(&gpu, narrow(ROWS + GROWN, 3));
    let rest = device.layout().plane(PlaneKind::Parameter(Field::Rest));
    let width = rest.expect("higher bands").width;
    assert!(ROWS * width > 1 << 31);
    fill(&mut device, ROWS, BlockContent::State, |block, first| {
        for row in 0..block.rows() {
            let number = first + row as u64;
            let hot = number >= ROWS - GROWN;
            block.gradient_sum[row] = if hot { 1.0 } else { 0.0 };
            if (PRUNED.0..PRUNED.0 + PRUNED.1).contains(&number) {
                block.parameters.row_mut(Field::Opacity, 3, row)[0] = -4.0;
            }
        }
    });
    let starts = [0, ROWS / 2, ROWS - SAMPLE as u64];
    let before = starts.map(|start| sample(&mut device, start));
    for (start, block) in starts.into_iter().zip(&before) {
        for row in 0..SAMPLE {
            let number = start + row as u64;
            assert_eq!(u64::from(block.anchor[row]), number);
            for plane in [&block.parameters, &block.first, &block.second] {
                let bands = plane.row(Field::Rest, 3, row);
                assert_eq!([bands[0], bands[44]], ends(number), "row {number}");
            }
        }
    }
    let [first, middle, last] = &before;
    // The row `number` as it was, if it is one of the last.
    let tail = |number: u64| (last, (number - starts[2]) as usize);

    let rules = RefineRules {
        hot: 0.5,
        ..NOTHING
    };
    let found = device.refine(&rules).expect("refined");
    assert_eq!((found.holes, found.extras), (0, GROWN));
    assert_eq!(found.after, ROWS + GROWN);
    for (start, block) in starts.into_iter().zip(&before) {
        let now = sample(&mut device, start);
        for row in 0..SAMPLE {
            check(
                (&now, row),
                (block, row),
                false,
                &format!("{start} + {row}"),
            );
        }
    }
    let copies = read(&mut device, ROWS, GROWN as usize, BlockContent::State);
    for k in 0..GROWN {
        let from = tail(ROWS - GROWN + k);
        check((&copies, k as usize), from, true, &format!("copy {k}"));
    }

    // The last rows move to the places of those that are pruned, then nothing happens.
    for (logit_prune, holes) in [(-3.0, PRUNED.1), (f32::NEG_INFINITY, 0)] {
        let rules = RefineRules {
            logit_prune,
            ..NOTHING
        };
        let found = device.refine(&rules).expect("refined");
        assert_eq!((found.holes, found.extras), (holes, 0));
        let after = ROWS + GROWN - PRUNED.1;
        assert_eq!(found.after, after);
        let now = sample(&mut device, 0);
        for slot in 0..SAMPLE as u64 {
            let what = format!("slot {slot}");
            let moved = slot.checked_sub(PRUNED.0).filter(|k| *k < PRUNED.1);
            let (from, fresh) = match moved.map(|k| after + k) {
                None => ((first, slot as usize), false),
                Some(source) if source < ROWS => (tail(source), false),
                Some(source) => (tail(source - GROWN), true),
            };
            check((&now, slot as usize), from, fresh, &what);
        }
        let now = sample(&mut device, starts[1]);
        for row in 0..SAMPLE {
            check(
                (&now, row),
                (middle, row),
                false,
                &format!("middle + {row}"),
            );
        }
        let left = read(
            &mut device,
            starts[2],
            (after - starts[2]) as usize,
            BlockContent::State,
        );
        for row in 0..left.rows() {
            check((&left, row), (last, row), false, &format!("end + {row}"));
        }
    }
    device.verify().expect("canaries");
    println!(
        "{ROWS} rows of {} bytes: {} elements in a plane, {} bytes in all",
        device.layout().row_bytes(),
        ROWS * width,
        device.layout().bytes()
    );
}
