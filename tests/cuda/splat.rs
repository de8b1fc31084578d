//! The Gaussian map on the GPU against that on the CPU.

use super::cuda;
use mast3r_slam::compute::cuda::splat::{CudaSplat, SplatSizes};
use mast3r_slam::compute::splat::block::{BlockContent, RowBlock};
use mast3r_slam::compute::splat::camera::{Camera, Pointmap, Rendering, View};
use mast3r_slam::compute::splat::device::{
    AdamStep, AnchorMove, LossWeights, RefineRules, RefineStatus, RelocateRules, RowGradients,
    SeedRules, SplatDevice,
};
use mast3r_slam::compute::splat::layout::{FIELDS, Field};
use mast3r_slam::compute::splat::rng::{Purpose, words};
use mast3r_slam::compute::splat::{CpuSplat, SplatError};
use mast3r_slam::geometry::{Intrinsics, Sim3};
use mast3r_slam::gpu::{Context, allocations};
use nalgebra::{UnitQuaternion, Vector3};

const SIZE: (usize, usize) = (160, 112);

/// Numbers from 0 to 1 for a row.
fn unit(row: usize, k: u32) -> [f32; 4] {
    words(77, row as u32, k, 0, Purpose::Order).map(|word| word as f32 / 4_294_967_296.0)
}

/// Rows in front of the camera and around it, some invalid, with statistics that make all kinds of outcomes.
fn rows(count: usize, degree: u8) -> RowBlock {
    let mut block = RowBlock::new(count, degree, BlockContent::State);
    for row in 0..count {
        let ([x, y, z, o], [a, b, c, d]) = (unit(row, 0), unit(row, 1));
        let z = 1.0 + 4.0 * z;
        let p = &mut block.parameters;
        let mean = [(2.0 * x - 1.0) * z, (1.4 * y - 0.7) * z, z];
        p.row_mut(Field::Mean, degree, row).copy_from_slice(&mean);
        let scale = [a, b, c].map(|v| -5.5 + 3.0 * v);
        p.row_mut(Field::Scale, degree, row).copy_from_slice(&scale);
        let rotation = [d - 0.5, a - 0.5, b - 0.5, c - 0.5];
        p.row_mut(Field::Rotation, degree, row)
            .copy_from_slice(&rotation);
        p.row_mut(Field::Opacity, degree, row)[0] = 8.0 * o - 5.5;
        let colour = [a, c, d].map(|v| 3.0 * v - 1.5);
        p.row_mut(Field::Dc, degree, row).copy_from_slice(&colour);
        for (k, value) in p.row_mut(Field::Rest, degree, row).iter_mut().enumerate() {
            *value = 0.6 * unit(row, 2 + k as u32 / 4)[k % 4] - 0.3;
        }
        for (k, field) in (20..).zip(Field::ALL) {
            let first = block.first.row_mut(field, degree, row);
            first.fill(unit(row, k)[0] * 1e-3);
            let second = block.second.row_mut(field, degree, row);
            second.fill(unit(row, k)[1] * 1e-5);
        }
        block.anchor[row] = (row % 5) as u32;
        block.gradient_sum[row] = 8e-4 * unit(row, 30)[0];
        block.seen[row] = words(1, row as u32, 0, 0, Purpose::Order)[0] % 4;
        block.observed[row] = row as u32;
    }
    for row in (0..count).step_by(101) {
        let p = &mut block.parameters;
        match row % 4 {
            0 => p.row_mut(Field::Mean, degree, row)[1] = f32::NAN,
            1 => p.row_mut(Field::Rotation, degree, row).fill(1e-6),
            2 => p.row_mut(Field::Scale, degree, row)[0] = f32::INFINITY,
            _ => block.gradient_sum[row] = f32::NAN,
        }
    }
    block
}

/// The same rows on both devices, in a map of `capacity` rows.
fn both(context: &Context, block: &RowBlock, capacity: u64) -> [Box<dyn SplatDevice>; 2] {
    let degree = block.degree();
    let sizes = SplatSizes::new(capacity, degree, SIZE);
    let gpu = CudaSplat::allocate(context, sizes).expect("a map");
    let cpu = CpuSplat::new(capacity, degree).expect("a map");
    let mut devices: [Box<dyn SplatDevice>; 2] = [Box::new(gpu), Box::new(cpu)];
    for device in &mut devices {
        assert_eq!(device.append(block).expect("appended"), 0);
    }
    devices
}

fn state(device: &mut dyn SplatDevice) -> RowBlock {
    let degree = device.layout().degree();
    let rows = device.counts().rows as usize;
    let mut block = RowBlock::new(rows, degree, BlockContent::State);
    device.read(0, &mut block).expect("rows");
    device.verify().expect("canaries");
    block
}

fn camera() -> Camera {
    let intrinsics = Intrinsics {
        fx: 90.0,
        fy: 95.0,
        cx: 80.3,
        cy: 54.6,
    };
    let pose = Sim3 {
        translation: Vector3::new(0.1, -0.05, -0.2),
        rotation: UnitQuaternion::from_euler_angles(0.05, -0.1, 0.02),
        scale: 1.0,
    };
    Camera::new(intrinsics, SIZE, &pose)
}

/// The largest difference, relative to `1 +` the expected value; not finite ones must be equal.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().zip(expected);
    pairs
        .filter(|(a, b)| a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan()))
        .map(|(a, b)| (a - b).abs() / (1.0 + b.abs()))
        .fold(
            0.0,
            |worst, d| if d > worst || d.is_nan() { d } else { worst },
        )
}

fn assert_close(what: &str, found: &RowBlock, expected: &RowBlock, limit: f32) {
    assert_eq!(found.rows(), expected.rows(), "{what}");
    for field in Field::ALL {
        for (part, a, b) in [
            ("", &found.parameters, &expected.parameters),
            ("'s first moment", &found.first, &expected.first),
            ("'s second moment", &found.second, &expected.second),
        ] {
            let d = difference(a.get(field), b.get(field));
            assert!(d <= limit, "{what}: {field:?}{part} differs by {d}");
        }
    }
    assert_eq!(found.anchor, expected.anchor, "{what}");
    assert_eq!(found.observed, expected.observed, "{what}");
    assert_eq!(found.seen, expected.seen, "{what}");
}

fn refine_rules() -> RefineRules {
    RefineRules {
        seed: 0x1234_5678_9abc,
        step: 7,
        hot: 2e-4,
        ln_small: -4.0,
        ln_prune: -2.7,
        logit_prune: -5.0,
        ln_shrink: 1.6_f32.ln(),
        revised_opacity: 0,
        reserved: 0,
    }
}

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

/// Values with other bits.
fn difference_bits(a: &RowBlock, b: &RowBlock) -> usize {
    let fields = |block: &RowBlock| -> Vec<u32> {
        let planes = [&block.parameters, &block.first, &block.second];
        let floats = Field::ALL
            .into_iter()
            .flat_map(|field| planes.map(|plane| plane.get(field)));
        let floats = floats.chain([block.gradient_sum.as_slice()]);
        let words = [&block.anchor, &block.seen, &block.observed];
        (floats.flatten().map(|v| v.to_bits()))
            .chain(words.into_iter().flatten().copied())
            .collect()
    };
    let (a, b) = (fields(a), fields(b));
    assert_eq!(a.len(), b.len());
    a.iter().zip(&b).filter(|(a, b)| a != b).count()
}

#[test]
fn refinement_gives_the_rows_of_the_cpu_in_the_same_places() {
    let Some(gpu) = cuda() else { return };
    for (degree, count) in [(0, 31), (1, 2047), (3, 20_000), (2, 65_537)] {
        for (capacity, revised) in [(2 * count, 0), (count, 0), (count + count / 10, 1)] {
            let what = format!("degree {degree}, {count} rows, capacity {capacity}");
            let block = rows(count, degree);
            let [mut device, mut cpu] = both(&gpu, &block, capacity as u64);
            let rules = RefineRules {
                revised_opacity: revised,
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
            assert_close(&what, &a, &b, if revised == 0 { 2e-6 } else { 2e-5 });
            for field in [Field::Rotation, Field::Dc, Field::Rest, Field::Scale] {
                let d = difference(a.parameters.get(field), b.parameters.get(field));
                assert_eq!(d, 0.0, "{what}: {field:?}");
            }
        }
    }
}

#[test]
fn a_view_looks_as_on_the_cpu_and_gives_its_gradients() {
    let Some(gpu) = cuda() else { return };
    for degree in [0, 3] {
        let block = rows(3000, degree);
        let [mut device, mut cpu] = both(&gpu, &block, 3000);
        let camera = camera();
        let (mut found, mut expected) = (Rendering::default(), Rendering::default());
        device.render(&camera, &mut found).expect("an image");
        cpu.render(&camera, &mut expected).expect("an image");
        for (what, a, b, limit) in [
            ("colour", &found.color, &expected.color, 1e-4),
            ("depth", &found.depth, &expected.depth, 1e-3),
            ("silhouette", &found.silhouette, &expected.silhouette, 1e-4),
        ] {
            let d = difference(a, b);
            assert!(d < limit, "{what} differs by {d}");
        }
        let covered: f32 = expected.silhouette.iter().sum();
        let part = covered / expected.silhouette.len() as f32;
        assert!(part > 0.05, "{part} of the image is covered");

        let pixels = camera.pixels();
        let image: Vec<u8> = (0..3 * pixels).map(|i| (i * 7 % 251) as u8).collect();
        let depth: Vec<f32> = (0..pixels)
            .map(|i| {
                if i % 9 == 0 {
                    f32::NAN
                } else {
                    1.0 + (i % 40) as f32 * 0.1
                }
            })
            .collect();
        let view = View {
            camera,
            image: &image,
            depth: Some(&depth),
        };
        let weights = LossWeights {
            ssim: 0.2,
            depth: 0.1,
            statistics: true,
        };
        let a = device.gradients(&view, &weights).expect("gradients");
        let b = cpu.gradients(&view, &weights).expect("gradients");
        assert_eq!(a.visible, b.visible);
        for (what, a, b) in [
            ("total", a.total, b.total),
            ("l1", a.l1, b.l1),
            ("ssim", a.ssim, b.ssim),
            ("depth", a.depth, b.depth),
            ("mse", a.mse, b.mse),
        ] {
            assert!((a - b).abs() < 1e-4, "{what}: {a} instead of {b}");
        }
        let largest = b.pose.iter().fold(0.0_f64, |a, v| a.max(v.abs()));
        for (a, b) in a.pose.iter().zip(b.pose) {
            assert!((a - b).abs() < 1e-2 * largest, "pose: {a} instead of {b}");
        }
        let (mut a, mut b) = (RowGradients::default(), RowGradients::default());
        device.read_gradients(&mut a).expect("gradients");
        cpu.read_gradients(&mut b).expect("gradients");
        assert_eq!(a.rows, b.rows);
        let floats = a.values.len() / a.rows.len();
        // The sign of a difference that is almost 0 may differ, so a few rows may be further apart.
        let norm = |v: &[f32]| v.iter().map(|v| v * v).sum::<f32>().sqrt();
        let apart = (a.values.chunks(floats).zip(b.values.chunks(floats)))
            .filter(|(a, b)| {
                let d: Vec<f32> = a.iter().zip(*b).map(|(a, b)| a - b).collect();
                norm(&d) > 1e-2 * norm(b) + 1e-7
            })
            .count();
        assert!(apart * 100 <= a.rows.len(), "{apart} of {}", a.rows.len());

        let step = AdamStep {
            rates: [1e-3; FIELDS],
            bias1: 0.1,
            bias2: 0.001,
            opacity_weight: 0.01,
            scale_weight: 0.01,
            noise: 0.5,
            seed: 5,
            step: 3,
        };
        device.step(&step).expect("a step");
        cpu.step(&step).expect("a step");
        assert!(matches!(device.step(&step), Err(SplatError::NoGradients)));
        let (a, b) = (state(device.as_mut()), state(cpu.as_mut()));
        assert_eq!((&a.seen, &a.observed), (&b.seen, &b.observed));
        let width = Field::Dc.width(degree);
        let dc = (a.parameters.get(Field::Dc), b.parameters.get(Field::Dc));
        let apart = (dc.0.chunks(width).zip(dc.1.chunks(width)))
            .filter(|(a, b)| difference(a, b) > 1e-4)
            .count();
        assert!(apart * 100 <= a.rows(), "{apart} rows of {}", a.rows());
    }
}

#[test]
fn training_lowers_the_loss_without_allocating() {
    let Some(gpu) = cuda() else { return };
    let target = rows(2000, 0);
    let [mut device, _] = both(&gpu, &target, 4000);
    let camera = camera();
    let mut rendering = Rendering::default();
    device.render(&camera, &mut rendering).expect("an image");
    let image: Vec<u8> = (rendering.color.iter())
        .map(|v| (255.0 * v.clamp(0.0, 1.0)).round() as u8)
        .collect();
    let mut start = target.clone();
    for value in start.parameters.get_mut(Field::Dc) {
        *value *= 0.3;
    }
    // The moments of `rows` are so large that they would keep the first steps small.
    for field in Field::ALL {
        start.first.get_mut(field).fill(0.0);
        start.second.get_mut(field).fill(0.0);
    }
    device.clear().expect("cleared");
    device.append(&start).expect("appended");
    let view = View {
        camera,
        image: &image,
        depth: None,
    };
    let weights = LossWeights {
        ssim: 0.2,
        depth: 0.0,
        statistics: true,
    };
    let before = allocations();
    let mut losses = Vec::new();
    for t in 1..=60 {
        losses.push(device.gradients(&view, &weights).expect("gradients").total);
        let step = AdamStep {
            rates: [1e-5, 1e-4, 1e-4, 1e-3, 3e-2, 1e-3],
            bias1: 1.0 - 0.9_f32.powi(t),
            bias2: 1.0 - 0.999_f32.powi(t),
            opacity_weight: 0.0,
            scale_weight: 0.0,
            noise: 0.0,
            seed: 0,
            step: t as u32,
        };
        device.step(&step).expect("a step");
    }
    assert_eq!(allocations(), before);
    let (first, last) = (losses[0], losses[59]);
    assert!(last < 0.5 * first, "{first} -> {last}");
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
