//! A thousand refinements one after the other.

use super::fixture::{NOTHING, allocate, fill, free, hash, narrow, read, unit};
use crate::cuda;
use crate::splat::common::{assert_close, state};
use mast3r_slam::compute::splat::CpuSplat;
use mast3r_slam::compute::splat::block::{BlockContent, RowBlock};
use mast3r_slam::compute::splat::device::{Counters, RefineRules, SplatDevice};
use mast3r_slam::compute::splat::layout::Field;
use std::time::{Duration, Instant};

const CYCLES: u64 = 1000;
/// Minimum number of rows to which they are pruned.
const MIN_ROWS: u64 = 100_000;
const CAPACITY: u64 = 150_000;
const DEGREE: u8 = 1;
/// Cycles after which the CPU does the same.
const COMPARED: u64 = 10;

/// Gives rows random opacities, sizes and statistics. Returns how many are to be pruned and how many to grow.
fn mix(block: &mut RowBlock, cycle: u64) -> (u64, u64) {
    let rows = block.rows() as u64;
    let surplus = rows.saturating_sub(MIN_ROWS) as f32 / rows as f32;
    let dead = (0.3 * unit(cycle, 50)).min(surplus);
    let hot = 0.3 * unit(cycle, 51);
    let (mut holes, mut extras) = (0, 0);
    for row in 0..block.rows() {
        let key = cycle << 20 | row as u64;
        let (dies, grows) = (unit(key, 52) < dead, unit(key, 53) < hot);
        holes += u64::from(dies);
        extras += u64::from(grows && !dies);
        let logit = if dies {
            -8.0
        } else {
            4.0 * unit(key, 54) - 2.0
        };
        let p = &mut block.parameters;
        p.row_mut(Field::Opacity, DEGREE, row)[0] = logit;
        for (k, scale) in (55..).zip(p.row_mut(Field::Scale, DEGREE, row)) {
            *scale = -5.0 + 2.0 * unit(key, k);
        }
        block.gradient_sum[row] = if grows { 1.0 + unit(key, 58) } else { 0.0 };
        block.seen[row] = (hash(key) % 4) as u32;
    }
    (holes, extras)
}

#[test]
#[ignore = "needs 1 GB of GPU memory; run with --ignored splat::full"]
fn a_thousand_refinements_have_the_cpu_s_rows_and_leave_free_memory_as_it_was() {
    let Some(gpu) = cuda() else { return };
    let mut device = allocate(&gpu, narrow(CAPACITY, DEGREE));
    let mut cpu = CpuSplat::new(CAPACITY, DEGREE).expect("a map");
    fill(&mut device, 125_000, BlockContent::State, |_, _| ());
    let memory = free(&gpu);
    let (mut smallest, mut largest, mut limited) = (u64::MAX, 0, 0);
    let mut times = [Duration::ZERO; CYCLES as usize];
    for cycle in 0..CYCLES {
        let rows = device.counts().rows;
        let mut block = read(&mut device, 0, rows as usize, BlockContent::State);
        let (holes, extras) = mix(&mut block, cycle);
        device.clear().expect("cleared");
        device.append(&block).expect("room");
        let rules = RefineRules {
            step: cycle as u32,
            hot: 0.2,
            ln_small: -5.0 + 2.0 * unit(cycle, 60),
            logit_prune: -5.0,
            revised_opacity: u32::from(cycle.is_multiple_of(3)),
            ..NOTHING
        };
        let clock = Instant::now();
        let found = device.refine(&rules).expect("refined");
        times[cycle as usize] = clock.elapsed();
        let granted = extras.min(CAPACITY - rows + holes);
        let numbers = (found.rows, found.holes, found.extras, found.granted);
        assert_eq!(numbers, (rows, holes, extras, granted), "cycle {cycle}");
        let after = rows - holes + granted;
        assert_eq!((found.after, device.counts().rows), (after, after));
        assert_eq!(free(&gpu), memory, "free memory after cycle {cycle}");
        if cycle % COMPARED == 0 {
            cpu.clear().expect("cleared");
            cpu.append(&block).expect("room");
            let expected = cpu.refine(&rules).expect("refined");
            let expected = Counters {
                epoch: found.epoch,
                ..expected
            };
            assert_eq!(found, expected, "cycle {cycle}");
            let (a, b) = (state(&mut device), state(&mut cpu));
            // Offsets and revised opacities are rounded differently.
            assert_close(&format!("cycle {cycle}"), &a, &b, 2e-5);
        }
        smallest = smallest.min(after);
        largest = largest.max(after);
        limited += u64::from(granted < extras);
    }
    device.verify().expect("canaries");
    assert!(limited > 0, "the capacity was never reached");
    let mean = |times: &[Duration]| times.iter().sum::<Duration>() / times.len() as u32;
    println!(
        "{CYCLES} refinements, {smallest} to {largest} rows, {limited} at the capacity; {memory} bytes free throughout; \
         {:.2?} each at first, {:.2?} at the end",
        mean(&times[..100]),
        mean(&times[CYCLES as usize - 100..])
    );
}
