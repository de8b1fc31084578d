//! Relocation (MCMC) of ten million rows.

use super::fixture::{FULL_HD, allocate, changed, fill, hash, hashes, memory_stays, scan};
use crate::cuda;
use mast3r_slam::compute::cuda::splat::SplatSizes;
use mast3r_slam::compute::splat::block::BlockContent;
use mast3r_slam::compute::splat::device::{RelocateRules, Relocated, SplatDevice};
use mast3r_slam::compute::splat::layout::Field;

const ROWS: u64 = 10_000_000;
/// A sixteenth of the rows, which a float holds exactly.
const ADDED: u64 = ROWS / 16;

fn is_dead(row: u64) -> bool {
    hash(row) % 10 < 3
}

#[test]
#[ignore = "needs 4 GB of GPU memory; run with --ignored splat::full"]
fn three_million_dead_rows_of_ten_move_onto_live_ones_the_same_way_twice() {
    let Some(gpu) = cuda() else { return };
    let mut device = allocate(&gpu, SplatSizes::new(ROWS + ADDED, 0, FULL_HD));
    let rules = RelocateRules {
        seed: 9,
        step: 4,
        logit_dead: -5.0,
        growth: 0.0625,
    };
    let mut runs = Vec::new();
    for _ in 0..2 {
        let mut dead = 0;
        device.clear().expect("cleared");
        fill(&mut device, ROWS, BlockContent::State, |block, first| {
            for row in 0..block.rows() {
                if is_dead(first + row as u64) {
                    block.parameters.row_mut(Field::Opacity, 0, row)[0] = -8.0;
                    dead += 1;
                }
            }
        });
        let work = || device.relocate(&rules).expect("relocated");
        let (found, _) = memory_stays(&gpu, work);
        let expected = Relocated {
            moved: dead,
            added: ADDED,
            rows: ROWS + ADDED,
        };
        assert_eq!(found, expected);
        assert_eq!(device.counts().rows, ROWS + ADDED);
        // Live rows keep their places; dead and added ones are copies of live ones.
        let (mut distinct, mut previous) = (0_u64, 0);
        let all = (0, ROWS + ADDED);
        scan(&mut device, all, BlockContent::State, |block, first| {
            for row in 0..block.rows() {
                let (slot, anchor) = (first + row as u64, u64::from(block.anchor[row]));
                if slot < ROWS && !is_dead(slot) {
                    assert_eq!(anchor, slot);
                } else {
                    assert!(anchor < ROWS && !is_dead(anchor), "slot {slot}: {anchor}");
                    assert_eq!(block.observed[row], 0, "slot {slot}");
                    let mean = block.first.row(Field::Mean, 0, row);
                    assert_eq!(mean, [0.0; 3], "slot {slot}");
                    distinct += u64::from(anchor != previous);
                    previous = anchor;
                }
                assert_eq!((block.gradient_sum[row], block.seen[row]), (0.0, 0));
            }
        });
        // Draws are spread over the live rows: two of the same row hardly ever follow each other.
        assert!(distinct + 100 > dead + ADDED, "{distinct}");
        device.verify().expect("canaries");
        println!("{found:?}");
        runs.push(hashes(&mut device));
    }
    let between = changed(&runs[0], &runs[1]);
    assert!(between.is_empty(), "{between:?}");
}
