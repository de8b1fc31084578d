//! A million rows: all of them as on the CPU, and one test that is small enough for compute-sanitizer.

use super::fixture::{NOTHING, STEP, fill, place, unit};
use crate::cuda;
use crate::splat::rows::refined_as_on_the_cpu;
use mast3r_slam::compute::cuda::splat::{CudaSplat, SplatSizes};
use mast3r_slam::compute::splat::block::BlockContent;
use mast3r_slam::compute::splat::camera::View;
use mast3r_slam::compute::splat::device::{
    LossWeights, RefineRules, RefineStatus, RelocateRules, SplatDevice,
};
use mast3r_slam::compute::splat::layout::Field;
use mast3r_slam::compute::splat::synthetic;

const ROWS: u64 = 1_000_000;

#[test]
#[ignore = "needs 2 GB of GPU memory, 6 GB on the host; run with --ignored splat::full"]
fn a_million_rows_are_refined_as_on_the_cpu() {
    let Some(gpu) = cuda() else { return };
    for capacity in [2_000_000, 1_000_000, 1_100_000] {
        refined_as_on_the_cpu(&gpu, (3, ROWS as usize), capacity, 0);
        println!("{ROWS} rows of degree 3, room for {capacity}: as on the CPU");
    }
}

/// Every kernel that changes or draws rows runs, each few times: also under compute-sanitizer (docs/splat.md).
#[test]
#[ignore = "needs 1 GB of GPU memory; run with --ignored splat::full"]
fn a_million_rows_are_refined_relocated_drawn_and_trained() {
    const DEGREE: u8 = 1;
    const CAPACITY: u64 = 1_100_000;
    let Some(gpu) = cuda() else { return };
    let size = (320, 240);
    let camera = synthetic::camera(size);
    let sizes = SplatSizes::new(CAPACITY, DEGREE, size);
    let mut device = CudaSplat::allocate(&gpu, sizes).expect("a map");
    let (mut holes, mut extras) = (0, 0);
    fill(&mut device, ROWS, BlockContent::State, |block, first| {
        for row in 0..block.rows() {
            let number = first + row as u64;
            place(block, row, number, &camera, number.is_multiple_of(8));
            let (dies, grows) = (unit(number, 70) < 0.05, unit(number, 71) < 0.3);
            block.gradient_sum[row] = if grows { 1.0 + unit(number, 72) } else { 0.0 };
            if dies {
                block.parameters.row_mut(Field::Opacity, DEGREE, row)[0] = -8.0;
                holes += 1;
            } else if grows {
                extras += 1;
            }
        }
    });

    // More rows than fit, then fewer.
    let rules = RefineRules {
        hot: 0.5,
        ln_small: -3.0,
        logit_prune: -5.0,
        ..NOTHING
    };
    let found = device.refine(&rules).expect("refined");
    let granted = CAPACITY - ROWS + holes;
    assert_eq!((found.holes, found.extras), (holes, extras));
    assert_eq!((found.granted, found.after), (granted, CAPACITY));
    let refused = extras - granted;
    assert_eq!(found.status(), RefineStatus::Limited { refused });
    let rules = RefineRules {
        logit_prune: -1.5,
        ..NOTHING
    };
    let found = device.refine(&rules).expect("refined");
    assert!(found.holes > 100_000 && found.extras == 0, "{found:?}");
    let rows = CAPACITY - found.holes;
    assert_eq!(device.counts().rows, rows);

    let rules = RelocateRules {
        seed: 9,
        step: 4,
        logit_dead: -1.0,
        growth: 0.015_625,
    };
    let relocated = device.relocate(&rules).expect("relocated");
    assert!(relocated.moved > 100_000, "{relocated:?}");
    assert_eq!(
        (relocated.added, relocated.rows),
        (rows / 64, rows + rows / 64)
    );
    device.reset_opacity(1.0).expect("reset");

    let image = vec![100; 3 * camera.pixels()];
    let depth = vec![5.0; camera.pixels()];
    let view = View {
        camera,
        image: &image,
        depth: Some(&depth),
    };
    let weights = LossWeights {
        depth: 0.1,
        ..LossWeights::COLOR_ONLY
    };
    let mut losses = Vec::new();
    for _ in 0..2 {
        let loss = device.gradients(&view, &weights).expect("gradients");
        assert!(loss.total.is_finite() && loss.visible > 100_000, "{loss:?}");
        losses.push(loss.total);
        device.step(&STEP).expect("a step");
    }
    device.verify().expect("canaries");
    println!(
        "{ROWS} rows, then {CAPACITY}, {rows}, {}; losses {losses:?}",
        relocated.rows
    );
}
