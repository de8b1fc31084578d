//! Maps and cameras made from random numbers.

use mast3r_slam::compute::splat::CpuSplat;
use mast3r_slam::compute::splat::block::{BlockContent, RowBlock};
use mast3r_slam::compute::splat::camera::Camera;
use mast3r_slam::compute::splat::device::SplatDevice;
use mast3r_slam::compute::splat::layout::Field;
use mast3r_slam::geometry::{Intrinsics, Sim3};
use nalgebra::{UnitQuaternion, Vector3};

/// A generator that needs no crate (Marsaglia's xorshift64*).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn within(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.word() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.word() >> 33) as usize % n
    }
}

/// What random rows are made of.
#[derive(Clone, Copy)]
pub struct Ranges {
    pub depth: (f64, f64),
    /// Half width of the volume at a depth of 1.
    pub side: f64,
    pub ln_scale: (f64, f64),
    pub logit: (f64, f64),
}

/// Rows all of which reach every pixel of a small image, none of them opaque: the image is a smooth function of them.
pub const SMOOTH: Ranges = Ranges {
    depth: (1.5, 3.0),
    side: 0.3,
    ln_scale: (-0.5, 0.3),
    logit: (-1.0, 1.0),
};

/// Rows of all kinds, some behind the camera or outside of the image.
pub const MIXED: Ranges = Ranges {
    depth: (-0.5, 4.0),
    side: 0.8,
    ln_scale: (-4.5, -1.0),
    logit: (-6.0, 4.0),
};

pub fn rows(n: usize, degree: u8, seed: u64, ranges: Ranges) -> RowBlock {
    let mut random = Random::new(seed);
    let mut block = RowBlock::new(n, degree, BlockContent::Parameters);
    for row in 0..n {
        let z = random.within(ranges.depth.0, ranges.depth.1);
        let side = ranges.side * z.abs().max(0.5);
        let mean = [random.within(-side, side), random.within(-side, side), z];
        let p = &mut block.parameters;
        for (to, from) in p.row_mut(Field::Mean, degree, row).iter_mut().zip(mean) {
            *to = from as f32;
        }
        for (field, (low, high)) in [
            (Field::Scale, ranges.ln_scale),
            (Field::Rotation, (-1.0, 1.0)),
            (Field::Opacity, ranges.logit),
            (Field::Dc, (-0.5, 1.5)),
            (Field::Rest, (-0.2, 0.2)),
        ] {
            for to in p.row_mut(field, degree, row) {
                *to = random.within(low, high) as f32;
            }
        }
        block.anchor[row] = (row % 7) as u32;
    }
    block
}

pub fn map(block: &RowBlock, capacity: u64) -> CpuSplat {
    let mut map = CpuSplat::new(capacity, block.degree()).expect("a map");
    map.append(block).expect("room");
    map
}

/// A camera near the origin that looks along z, a little turned.
pub fn camera(width: usize, height: usize) -> Camera {
    let f = 0.9 * width as f64;
    let intrinsics = Intrinsics {
        fx: f,
        fy: 1.1 * f,
        cx: 0.48 * width as f64,
        cy: 0.53 * height as f64,
    };
    let pose = Sim3 {
        translation: Vector3::new(0.05, -0.03, 0.1),
        rotation: UnitQuaternion::from_scaled_axis(Vector3::new(0.05, -0.08, 0.1)),
        scale: 1.0,
    };
    Camera::new(intrinsics, (width, height), &pose)
}

pub fn image(camera: &Camera, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..3 * camera.pixels())
        .map(|_| random.word() as u8)
        .collect()
}

/// All rows with their state.
pub fn state(map: &mut dyn SplatDevice) -> RowBlock {
    let (rows, degree) = (map.counts().rows as usize, map.layout().degree());
    let mut block = RowBlock::new(rows, degree, BlockContent::State);
    map.read(0, &mut block).expect("the rows");
    block
}
