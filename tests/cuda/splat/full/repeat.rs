//! Ten million rows: pruning, resets and mixes of everything change what they should, and the same bits each time.

use super::fixture::{NOTHING, allocate, changed, fill, hash, hashes, narrow, scan, unit};
use crate::cuda;
use mast3r_slam::compute::cuda::splat::CudaSplat;
use mast3r_slam::compute::splat::block::BlockContent;
use mast3r_slam::compute::splat::device::{RefineRules, SplatDevice};
use mast3r_slam::compute::splat::layout::{Field, PlaneKind};

const ROWS: u64 = 10_000_000;
/// The limit of a reset, of the opacity 0.01.
const RESET: f32 = -4.595_12;

/// Whether a row is to be pruned.
fn dies(row: u64) -> bool {
    hash(row).is_multiple_of(3)
}

/// Fills a map with rows of which a third are to be pruned. Returns how many.
fn fill_dying(device: &mut CudaSplat) -> u64 {
    let (degree, mut dead) = (device.layout().degree(), 0);
    device.clear().expect("cleared");
    fill(device, ROWS, BlockContent::State, |block, first| {
        for row in 0..block.rows() {
            if dies(first + row as u64) {
                block.parameters.row_mut(Field::Opacity, degree, row)[0] = -8.0;
                dead += 1;
            }
        }
    });
    dead
}

#[test]
#[ignore = "needs 8 GB of GPU memory; run with --ignored splat::full"]
fn a_third_of_ten_million_rows_is_pruned_and_opacities_are_reset_the_same_way_twice() {
    let Some(gpu) = cuda() else { return };
    let mut device = allocate(&gpu, narrow(ROWS, 3));
    let rules = RefineRules {
        logit_prune: -5.0,
        ..NOTHING
    };
    let mut runs = Vec::new();
    for _ in 0..2 {
        let dead = fill_dying(&mut device);
        let found = device.refine(&rules).expect("refined");
        let after = ROWS - dead;
        assert_eq!((found.holes, found.extras, found.after), (dead, 0, after));
        // Rows that live keep their places, and those behind the new end fill the holes in order.
        let mut last = (after..ROWS).filter(|row| !dies(*row));
        scan(
            &mut device,
            (0, after),
            BlockContent::Parameters,
            |block, first| {
                for (slot, anchor) in (first..).zip(&block.anchor) {
                    let expected = if dies(slot) { last.next() } else { Some(slot) };
                    assert_eq!(Some(u64::from(*anchor)), expected, "slot {slot}");
                }
                let opacities = block.parameters.get(Field::Opacity);
                assert!(opacities.iter().all(|logit| *logit > -5.0));
            },
        );
        assert_eq!(last.next(), None);
        let pruned = hashes(&mut device);
        device.reset_opacity(RESET).expect("reset");
        let reset = hashes(&mut device);
        let opacity = [PlaneKind::Parameter, PlaneKind::First, PlaneKind::Second];
        let opacity = opacity.map(|kind| kind(Field::Opacity));
        assert_eq!(changed(&pruned, &reset), opacity);
        scan(&mut device, (0, after), BlockContent::State, |block, _| {
            let opacities = block.parameters.get(Field::Opacity);
            assert!(opacities.iter().all(|logit| *logit == RESET));
            for moments in [&block.first, &block.second] {
                assert!(moments.get(Field::Opacity).iter().all(|v| *v == 0.0));
            }
        });
        device.verify().expect("canaries");
        println!("{dead} of {ROWS} rows pruned, {after} left, opacities reset");
        runs.push((pruned, reset));
    }
    assert!(runs[0] == runs[1], "the runs have other bits");
}

#[test]
#[ignore = "needs 3 GB of GPU memory; run with --ignored splat::full"]
fn ten_million_rows_are_refined_to_the_same_bits_and_a_seed_changes_only_the_means() {
    const CAPACITY: u64 = 11_000_000;
    let Some(gpu) = cuda() else { return };
    let mut device = allocate(&gpu, narrow(CAPACITY, 0));
    let mut run = |seed: u64| {
        let (mut holes, mut extras) = (0, 0);
        device.clear().expect("cleared");
        fill(&mut device, ROWS, BlockContent::State, |block, first| {
            for row in 0..block.rows() {
                let number = first + row as u64;
                let hot = unit(number, 40) < 0.5;
                block.gradient_sum[row] = if hot { 1.0 + unit(number, 41) } else { 0.0 };
                if unit(number, 42) < 0.1 {
                    block.parameters.row_mut(Field::Opacity, 0, row)[0] = -8.0;
                    holes += 1;
                } else if hot {
                    extras += 1;
                }
            }
        });
        let rules = RefineRules {
            seed,
            hot: 0.5,
            // About half of the rows are smaller.
            ln_small: -3.0,
            logit_prune: -5.0,
            ..NOTHING
        };
        let found = device.refine(&rules).expect("refined");
        let granted = CAPACITY - ROWS + holes;
        assert!(granted < extras, "{granted} {extras}");
        assert_eq!((found.holes, found.extras), (holes, extras));
        assert_eq!((found.granted, found.after), (granted, CAPACITY));
        device.verify().expect("canaries");
        println!("{holes} rows pruned, {granted} of {extras} grown");
        hashes(&mut device)
    };
    let [first, again, other] = [7, 7, 8].map(&mut run);
    let between = changed(&first, &again);
    assert!(between.is_empty(), "{between:?}");
    assert_eq!(changed(&first, &other), [PlaneKind::Parameter(Field::Mean)]);
}

#[test]
#[ignore = "needs 2 GB of GPU memory; run with --ignored splat::full"]
fn without_gradients_and_dead_rows_no_parameter_of_ten_million_rows_changes() {
    let Some(gpu) = cuda() else { return };
    let mut device = allocate(&gpu, narrow(ROWS, 0));
    fill(&mut device, ROWS, BlockContent::State, |block, _| {
        block.gradient_sum.fill(0.0);
    });
    let before = hashes(&mut device);
    let rules = RefineRules {
        hot: 2e-4,
        ln_small: -4.6,
        ln_prune: 10.0,
        logit_prune: -5.0,
        ..NOTHING
    };
    let found = device.refine(&rules).expect("refined");
    assert_eq!((found.holes, found.extras, found.after), (0, 0, ROWS));
    // All rows had been seen once.
    assert_eq!(changed(&before, &hashes(&mut device)), [PlaneKind::Seen]);
    device.verify().expect("canaries");
    println!("{ROWS} rows: only their statistics changed");
}
