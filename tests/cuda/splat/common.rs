//! Rows, cameras and comparisons that several tests share.

use mast3r_slam::compute::cuda::splat::{CudaSplat, SplatSizes};
use mast3r_slam::compute::splat::CpuSplat;
use mast3r_slam::compute::splat::block::{BlockContent, RowBlock};
use mast3r_slam::compute::splat::camera::Camera;
use mast3r_slam::compute::splat::device::{RefineRules, RowGradients, SplatDevice};
use mast3r_slam::compute::splat::layout::Field;
use mast3r_slam::compute::splat::rng::{Purpose, words};
use mast3r_slam::geometry::{Intrinsics, Sim3};
use mast3r_slam::gpu::Context;
use nalgebra::{UnitQuaternion, Vector3};

pub const SIZE: (usize, usize) = (160, 112);

/// Numbers from 0 to 1 for a row.
pub fn unit(row: usize, k: u32) -> [f32; 4] {
    words(77, row as u32, k, 0, Purpose::Order).map(|word| word as f32 / 4_294_967_296.0)
}

/// Rows in front of the camera and around it, some invalid, with statistics that make all kinds of outcomes.
pub fn rows(count: usize, degree: u8) -> RowBlock {
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
pub fn both(context: &Context, block: &RowBlock, capacity: u64) -> [Box<dyn SplatDevice>; 2] {
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

pub fn state(device: &mut dyn SplatDevice) -> RowBlock {
    let degree = device.layout().degree();
    let rows = device.counts().rows as usize;
    let mut block = RowBlock::new(rows, degree, BlockContent::State);
    device.read(0, &mut block).expect("rows");
    device.verify().expect("canaries");
    block
}

pub fn camera() -> Camera {
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
pub fn difference(found: &[f32], expected: &[f32]) -> f32 {
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

pub fn assert_close(what: &str, found: &RowBlock, expected: &RowBlock, limit: f32) {
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

pub fn refine_rules() -> RefineRules {
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

/// Values with other bits.
pub fn difference_bits(a: &RowBlock, b: &RowBlock) -> usize {
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

/// Rows whose gradients are further apart than 1 % and `absolute`. The sign of a colour's difference that is almost 0
/// may differ between devices, so a few may be.
pub fn rows_apart(a: &RowGradients, b: &RowGradients, absolute: f32) -> usize {
    assert_eq!(a.rows, b.rows);
    let floats = a.values.len() / a.rows.len().max(1);
    let norm = |v: &[f32]| v.iter().map(|v| v * v).sum::<f32>().sqrt();
    (a.values.chunks(floats).zip(b.values.chunks(floats)))
        .filter(|(a, b)| {
            let d: Vec<f32> = a.iter().zip(*b).map(|(a, b)| a - b).collect();
            let apart = norm(&d);
            apart.is_nan() || apart > 1e-2 * norm(b) + absolute
        })
        .count()
}
