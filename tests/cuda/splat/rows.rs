//! What changes rows: refinement, relocation, moves, seeding.

use super::common::{
    SIZE, assert_close, both, camera, difference, difference_bits, refine_rules, rows, state,
};
use crate::cuda;
use mast3r_slam::compute::cuda::splat::{CudaSplat, SplatSizes};
use mast3r_slam::compute::splat::SplatError;
use mast3r_slam::compute::splat::block::{BlockContent, RowBlock};
use mast3r_slam::compute::splat::camera::{Pointmap, Rendering};
use mast3r_slam::compute::splat::device::{
    AnchorMove, RefineRules, RefineStatus, RelocateRules, SeedRules, SplatDevice,
};
use mast3r_slam::compute::splat::layout::Field;
use mast3r_slam::geometry::Sim3;
use mast3r_slam::gpu::{Context, allocations};
use nalgebra::{UnitQuaternion, Vector3};

#[test]
fn rows_are_read_back_as_they_were_appended() {
    let Some(gpu) = cuda() else { return };
    for degree in 0..=3 {
        let block = rows(2049, degree);
        let [mut device, _] = both(&gpu, &block, 5000);
        let read = state(device.as_mut());
        assert_eq!(difference_bits(&read, &block), 0);
        let mut part = RowBlock::new(100, degree, BlockContent::Parameters);
        device.read(77, &mut part).expect("rows");
        let width = Field::Dc.width(degree);
        let from = &block.parameters.get(Field::Dc)[77 * width..177 * width];
        assert_eq!(part.parameters.get(Field::Dc), from);
        let full = device.append(&rows(3000, degree));
        assert!(matches!(full, Err(SplatError::Full { held: 2049, .. })));
        assert!(device.read(2000, &mut part).is_err());
    }
}

#[test]
fn refinement_gives_the_rows_of_the_cpu_in_the_same_places() {
    let Some(gpu) = cuda() else { return };
    for (degree, count) in [(0, 31), (1, 2047), (3, 20_000), (2, 65_537)] {
        for (capacity, revised) in [(2 * count, 0), (count, 0), (count + count / 10, 1)] {
            refined_as_on_the_cpu(&gpu, (degree, count), capacity, revised);
        }
    }
}

/// Compares a refinement of `count` rows with that of the CPU.
pub fn refined_as_on_the_cpu(
    gpu: &Context,
    (degree, count): (u8, usize),
    capacity: usize,
    revised_opacity: u32,
) {
    let what = format!("degree {degree}, {count} rows, capacity {capacity}");
    let block = rows(count, degree);
    let [mut device, mut cpu] = both(gpu, &block, capacity as u64);
    let rules = RefineRules {
        revised_opacity,
        ..refine_rules()
    };
    let before = allocations();
    let found = device.refine(&rules).expect("refined");
    assert_eq!(allocations(), before, "{what}");
    let expected = cpu.refine(&rules).expect("refined");
    assert_eq!(found, expected, "{what}");
    let limited = matches!(found.status(), RefineStatus::Limited { .. });
    assert_eq!(limited, capacity < 2 * count, "{what}: {found:?}");
    let (a, b) = (state(device.as_mut()), state(cpu.as_mut()));
    // Offsets and revised opacities are rounded differently.
    let limit = if revised_opacity == 0 { 2e-6 } else { 2e-5 };
    assert_close(&what, &a, &b, limit);
    for field in [Field::Rotation, Field::Dc, Field::Rest, Field::Scale] {
        let d = difference(a.parameters.get(field), b.parameters.get(field));
        assert_eq!(d, 0.0, "{what}: {field:?}");
    }
    for field in Field::ALL {
        for (a, b) in [(&a.first, &b.first), (&a.second, &b.second)] {
            let d = difference(a.get(field), b.get(field));
            assert_eq!(d, 0.0, "{what}: moments of {field:?}");
        }
    }
}

#[test]
fn dead_rows_move_as_on_the_cpu() {
    let Some(gpu) = cuda() else { return };
    let block = rows(20_000, 1);
    let [mut device, mut cpu] = both(&gpu, &block, 20_500);
    let rules = RelocateRules {
        seed: 9,
        step: 4,
        logit_dead: -3.0,
        growth: 0.05,
    };
    let found = device.relocate(&rules).expect("relocated");
    let expected = cpu.relocate(&rules).expect("relocated");
    assert_eq!(found, expected);
    assert!(found.moved > 1000 && found.added == 500, "{found:?}");
    let (a, b) = (state(device.as_mut()), state(cpu.as_mut()));
    // An opacity that is rounded differently changes what is drawn afterwards, for a few rows.
    let width = Field::Dc.width(1);
    let dc = (a.parameters.get(Field::Dc), b.parameters.get(Field::Dc));
    let apart = (dc.0.chunks(width).zip(dc.1.chunks(width)))
        .filter(|(a, b)| a != b)
        .count();
    assert!(apart * 1000 <= a.rows(), "{apart} of {}", a.rows());
    assert!(a.gradient_sum.iter().all(|v| *v == 0.0));
    assert!(a.seen.iter().all(|v| *v == 0));
}

#[test]
fn keyframes_take_their_rows_along() {
    let Some(gpu) = cuda() else { return };
    for degree in [0, 1, 3] {
        let block = rows(5000, degree);
        let [mut device, mut cpu] = both(&gpu, &block, 5000);
        let turn = |anchor: u32, scale| AnchorMove {
            anchor,
            new_from_old: Sim3 {
                translation: Vector3::new(1.0, -2.0, 0.5 * f64::from(anchor)),
                rotation: UnitQuaternion::from_euler_angles(0.4, f64::from(anchor), -0.3),
                scale,
            },
        };
        let moves = [turn(3, 1.1), turn(0, 0.9), turn(99, 2.0), turn(4, f64::NAN)];
        device.move_anchors(&moves).expect("moved");
        cpu.move_anchors(&moves).expect("moved");
        let (a, b) = (state(device.as_mut()), state(cpu.as_mut()));
        assert_close("moved rows", &a, &b, 1e-5);
        // Rows without a value that is not finite.
        let means = |block: &RowBlock| block.parameters.get(Field::Mean)[3..300].to_vec();
        assert_ne!(means(&a), means(&block));
        device.reset_opacity(-4.595).expect("reset");
        cpu.reset_opacity(-4.595).expect("reset");
        let (a, b) = (state(device.as_mut()), state(cpu.as_mut()));
        assert_close("reset rows", &a, &b, 1e-5);
    }
}

#[test]
fn a_keyframe_is_seeded_where_the_map_shows_nothing() {
    let Some(gpu) = cuda() else { return };
    let block = rows(300, 0);
    let [mut device, mut cpu] = both(&gpu, &block, 4000);
    let camera = camera();
    let k = camera.intrinsics;
    let pixels = camera.pixels();
    let points: Vec<f32> = (0..pixels)
        .flat_map(|i| {
            let (x, y) = ((i % SIZE.0) as f64, (i / SIZE.0) as f64);
            let z = 2.0 + 0.5 * (x * 0.05).sin();
            [(x - k.cx) / k.fx * z, (y - k.cy) / k.fy * z, z].map(|v| v as f32)
        })
        .collect();
    let confidence: Vec<f32> = (0..pixels).map(|i| (i % 5) as f32).collect();
    let pointmap = Pointmap {
        camera,
        world_from_camera: Sim3 {
            translation: Vector3::new(0.1, -0.05, -0.2),
            rotation: UnitQuaternion::from_euler_angles(0.05, -0.1, 0.02),
            scale: 1.0,
        },
        points: &points,
        confidence: &confidence,
        image: &vec![90; 3 * pixels],
        anchor: 8,
    };
    let rules = SeedRules {
        stride: 1,
        min_confidence: 1.5,
        max_silhouette: 0.5,
        depth_margin: 0.1,
        logit: 0.0,
        spread: 1.0,
    };
    let found = device.seed(&pointmap, &rules).expect("seeded");
    let expected = cpu.seed(&pointmap, &rules).expect("seeded");
    assert!(
        found.wanted.abs_diff(expected.wanted) <= 3,
        "{found:?} {expected:?}"
    );
    assert_eq!(found.added, 3700);
    assert_eq!(device.counts().rows, 4000);
}

#[test]
fn a_map_that_does_not_fit_says_how_many_rows_would() {
    let Some(gpu) = cuda() else { return };
    let sizes = SplatSizes::new(1_000_000_000, 3, SIZE);
    let error = CudaSplat::allocate(&gpu, sizes).err().expect("too large");
    let SplatError::Memory { fits, needed, .. } = error else {
        panic!("{error}")
    };
    assert!(needed > 724_000_000_000 && (1_000_000..1_000_000_000).contains(&fits));
    let crowded = SplatSizes {
        visible: 100,
        ..SplatSizes::new(3000, 0, SIZE)
    };
    let mut device = CudaSplat::allocate(&gpu, crowded).expect("a map");
    device.append(&rows(3000, 0)).expect("appended");
    let refused = device.render(&camera(), &mut Rendering::default());
    assert!(matches!(
        refused,
        Err(SplatError::Crowded { limit: 100, .. })
    ));
}
