//! Views of large maps.

use super::fixture::{
    FULL_HD, STEP, allocate, copy_row, fill, free, memory_stays, place, read, warm,
};
use crate::assert_same_bits;
use crate::cuda;
use crate::splat::common::rows_apart;
use mast3r_slam::compute::cuda::splat::{CudaSplat, SplatSizes};
use mast3r_slam::compute::splat::CpuSplat;
use mast3r_slam::compute::splat::block::{BlockContent, RowBlock};
use mast3r_slam::compute::splat::camera::{Rendering, View};
use mast3r_slam::compute::splat::device::{LossWeights, RowGradients, SplatDevice};
use mast3r_slam::compute::splat::synthetic;
use std::time::Instant;

/// A thousandth of the root of the gradients' mean square over rows.
fn small_gradient(gradients: &RowGradients) -> f32 {
    let square: f64 = (gradients.values.iter())
        .map(|v| f64::from(*v) * f64::from(*v))
        .sum();
    1e-3 * (square / gradients.rows.len() as f64).sqrt() as f32
}

#[test]
#[ignore = "needs 11 GB of GPU memory; run with --ignored splat::full"]
fn a_view_of_49_million_rows_takes_1_5_gb_and_has_the_gradients_of_its_visible_rows() {
    const ROWS: u64 = 49_000_000;
    // The other rows are behind the camera.
    let shows = |row: u64| row % 64 == 7;
    let Some(gpu) = cuda() else { return };
    warm(&gpu);
    let before = free(&gpu);
    let sizes = SplatSizes::new(ROWS, 0, FULL_HD);
    let mut device = CudaSplat::allocate(&gpu, sizes).expect("a map");
    let beside = before - free(&gpu) - device.layout().bytes();
    assert!(beside <= 1_500_000_000, "{beside}");

    let camera = synthetic::camera(FULL_HD);
    let visible: Vec<u32> = (0..ROWS as u32).filter(|r| shows(u64::from(*r))).collect();
    let count = visible.len();
    let mut seen = RowBlock::new(count, 0, BlockContent::Parameters);
    let mut next = 0;
    fill(
        &mut device,
        ROWS,
        BlockContent::Parameters,
        |block, first| {
            for row in 0..block.rows() {
                let number = first + row as u64;
                place(block, row, number, &camera, shows(number));
                if shows(number) {
                    copy_row((block, row), (&mut seen, next));
                    next += 1;
                }
            }
        },
    );
    assert_eq!(next, count);

    let image = vec![100; 3 * camera.pixels()];
    let view = View {
        camera,
        image: &image,
        depth: None,
    };
    let weights = LossWeights::COLOR_ONLY;
    let clock = Instant::now();
    let (loss, asked) = memory_stays(&gpu, || {
        device.gradients(&view, &weights).expect("gradients")
    });
    let took = clock.elapsed();
    assert_eq!(loss.visible, count as u64);
    let mut found = RowGradients::default();
    device.read_gradients(&mut found).expect("gradients");
    assert!(found.values.iter().all(|v| v.is_finite()));
    assert!(found.rows == visible, "gradients of other rows");

    // The CPU has the visible rows alone.
    let mut cpu = CpuSplat::new(count as u64, 0).expect("a map");
    cpu.append(&seen).expect("room");
    let reference = cpu.gradients(&view, &weights).expect("gradients");
    let mut expected = RowGradients::default();
    cpu.read_gradients(&mut expected).expect("gradients");
    assert_eq!(expected.rows.len(), count);
    expected.rows = visible;
    let error = (loss.total - reference.total).abs();
    assert!(error < 1e-4, "{loss:?} instead of {reference:?}");
    let apart = rows_apart(&found, &expected, small_gradient(&expected));
    assert!(apart * 100 <= count, "{apart} of {count}");

    memory_stays(&gpu, || device.step(&STEP).expect("a step"));
    let middle = ROWS / 2;
    let block = read(&mut device, middle, 1 << 16, BlockContent::State);
    for (row, seen) in (middle..).zip(&block.seen) {
        assert_eq!(*seen, u32::from(shows(row)), "row {row}");
    }
    device.verify().expect("canaries");
    println!(
        "{ROWS} rows, {count} visible: {beside} bytes beside the pool, free memory the same {asked} times; {apart} \
         gradients apart from the CPU's; loss {:.6}; {took:.1?}",
        loss.total
    );
}

#[test]
#[ignore = "needs 2 GB of GPU memory; run with --ignored splat::full"]
fn a_view_with_more_entries_than_there_is_room_for_is_the_same_in_bands() {
    const ROWS: u64 = 1_000_000;
    let Some(gpu) = cuda() else { return };
    let camera = synthetic::camera(FULL_HD);
    let sizes = SplatSizes {
        entries: 24_000_000,
        ..SplatSizes::new(ROWS, 0, FULL_HD)
    };
    let filled = |sizes| {
        let mut device = allocate(&gpu, sizes);
        fill(
            &mut device,
            ROWS,
            BlockContent::Parameters,
            |block, first| {
                for row in 0..block.rows() {
                    place(block, row, first + row as u64, &camera, true);
                }
            },
        );
        device
    };
    let mut whole = filled(sizes);
    let drawn = whole.forward(&camera).expect("an image");
    assert_eq!(drawn.visible, ROWS);
    assert!(drawn.entries <= sizes.entries as u64, "{drawn:?}");
    // A row of tiles has about a sixtieth of the entries.
    let entries = drawn.entries as usize / 10;
    let mut banded = filled(SplatSizes { entries, ..sizes });
    assert_eq!(banded.forward(&camera).expect("an image"), drawn);

    let (mut a, mut b) = (Rendering::default(), Rendering::default());
    whole.render(&camera, &mut a).expect("an image");
    banded.render(&camera, &mut b).expect("an image");
    assert_same_bits("colour", &b.color, &a.color);
    assert_same_bits("depth", &b.depth, &a.depth);
    assert_same_bits("silhouette", &b.silhouette, &a.silhouette);
    assert!(a.silhouette.iter().any(|s| *s > 0.9));

    let image = vec![100; 3 * camera.pixels()];
    let view = View {
        camera,
        image: &image,
        depth: None,
    };
    let weights = LossWeights::COLOR_ONLY;
    let gradients = |device: &mut CudaSplat| {
        let loss = device.gradients(&view, &weights).expect("gradients");
        let mut gradients = RowGradients::default();
        device.read_gradients(&mut gradients).expect("gradients");
        device.verify().expect("canaries");
        (loss.total, gradients)
    };
    let (a, b) = (gradients(&mut whole), gradients(&mut banded));
    assert!((a.0 - b.0).abs() < 1e-9, "{} {}", a.0, b.0);
    // Sums over pixels are added in another order.
    let apart = rows_apart(&b.1, &a.1, small_gradient(&a.1));
    assert!(apart * 1000 <= ROWS as usize, "{apart}");
    println!(
        "{} entries with room for {entries}: the same image, {apart} gradients apart",
        drawn.entries
    );
}
