//! Rows and a camera made from random numbers, for benchmarks and tests of large maps.

use super::block::{BlockContent, RowBlock};
use super::camera::Camera;
use super::layout::Field;
use super::rng::{Purpose, words};
use crate::geometry::{Intrinsics, Sim3};

/// Rows all around the origin, 1 to 20 m away, about 0.4 % of that in size, without moments. Each has a mean gradient
/// of 1.
pub fn block(rows: usize, degree: u8, seed: u64) -> RowBlock {
    let mut block = RowBlock::new(rows, degree, BlockContent::State);
    for row in 0..rows {
        let unit = |child: u32| {
            let random = words(seed, row as u32, 0, child, Purpose::Order);
            random.map(|word| word as f32 / 4_294_967_296.0)
        };
        let [z, turn, far, o] = unit(0);
        let distance = 1.0 + 19.0 * far;
        let (z, turn) = (2.0 * z - 1.0, std::f32::consts::TAU * turn);
        let flat = (1.0 - z * z).sqrt();
        let mean = [flat * turn.cos(), flat * turn.sin(), z].map(|v| v * distance);
        let p = &mut block.parameters;
        p.row_mut(Field::Mean, degree, row).copy_from_slice(&mean);
        let [a, b, c, d] = unit(1);
        let size = (0.004 * distance).ln();
        let scale = [a, b, c].map(|v| size + v - 0.5);
        p.row_mut(Field::Scale, degree, row).copy_from_slice(&scale);
        let rotation = [1.0 - a, b - 0.5, c - 0.5, d - 0.5];
        p.row_mut(Field::Rotation, degree, row)
            .copy_from_slice(&rotation);
        p.row_mut(Field::Opacity, degree, row)[0] = 4.0 * o - 2.0;
        p.row_mut(Field::Dc, degree, row)
            .copy_from_slice(&[a - 0.5, b - 0.5, c - 0.5]);
        for (k, value) in p.row_mut(Field::Rest, degree, row).iter_mut().enumerate() {
            *value = 0.1 * [a, b, c, d][k % 4] - 0.05;
        }
        block.gradient_sum[row] = 1.0;
        block.seen[row] = 1;
    }
    block
}

/// A camera at the origin that looks along z and sees 80° of an image's width.
pub fn camera(size: (usize, usize)) -> Camera {
    let (width, height) = (size.0 as f64, size.1 as f64);
    let intrinsics = Intrinsics {
        fx: 0.6 * width,
        fy: 0.6 * width,
        cx: width / 2.0 - 0.5,
        cy: height / 2.0 - 0.5,
    };
    Camera::new(intrinsics, size, &Sim3::identity())
}
