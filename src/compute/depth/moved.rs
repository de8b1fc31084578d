//! Depth moved by the camera's motion: for stamps that are off, and for frames without depth of their own
//! (docs/algorithm.md, Depth).

use crate::geometry::{Intrinsics, Sim3};
use nalgebra::{Matrix3, Vector3};

/// The depth of a frame.
#[derive(Debug, Clone, Copy)]
pub enum NextDepth<'a> {
    /// A measurement.
    Measured {
        /// Metres along z for each of the network image's pixels, row by row; 0: not measured.
        metres: &'a [f32],
        /// From the camera that measured to that of the frame; `None` if both are the same.
        motion: Option<DepthMotion>,
    },
    /// The newest measurement, moved from the camera that measured to that of the frame.
    Carried(DepthMotion),
}

/// What a device makes the depth of the next frame.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum Next {
    #[default]
    None,
    /// The measurement that has just come, moved if a motion is given.
    Measured(Option<DepthMotion>),
    /// The newest measurement, moved.
    Carried(DepthMotion),
}

/// How the pixels of a depth image move: the point of column `u`, row `v` and depth `z` moves to
/// `((first + v·down) + u·right)·z + shift`. Every device computes it in `f32` and in this order.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct DepthMotion {
    first: [f32; 3],
    down: [f32; 3],
    right: [f32; 3],
    shift: [f32; 3],
    focal: [f32; 2],
    /// Principal point, and half a pixel more, so that rounding down gives the nearest pixel.
    centre: [f32; 2],
}

impl DepthMotion {
    /// The motion `to_from_depth`, between two images of one camera.
    pub fn new(to_from_depth: &Sim3, camera: &Intrinsics) -> Self {
        let turned: Matrix3<f64> = to_from_depth.scaled_rotation();
        let f32s = |v: Vector3<f64>| <[f32; 3]>::from(v.map(|v| v as f32));
        Self {
            first: f32s(turned * camera.ray(0.0, 0.0)),
            down: f32s(turned.column(1) / camera.fy),
            right: f32s(turned.column(0) / camera.fx),
            shift: f32s(to_from_depth.translation),
            focal: [camera.fx as f32, camera.fy as f32],
            centre: [(camera.cx + 0.5) as f32, (camera.cy + 0.5) as f32],
        }
    }

    /// Where a pixel's point is seen in an image of `width × height`; `None` outside of it, and without a depth.
    #[inline(always)]
    pub fn pixel(
        &self,
        (u, v): (usize, usize),
        z: f32,
        (width, height): (usize, usize),
    ) -> Option<Candidate> {
        let along = |k: usize| {
            let ray = (self.first[k] + v as f32 * self.down[k]) + u as f32 * self.right[k];
            ray * z + self.shift[k]
        };
        let depth = along(2);
        let inverse = 1.0 / depth;
        let x = along(0) * inverse * self.focal[0] + self.centre[0];
        let y = along(1) * inverse * self.focal[1] + self.centre[1];
        // False for a point that is not finite.
        let inside = x >= 0.0 && y >= 0.0 && x < width as f32 && y < height as f32;
        if !(z > 0.0 && depth > 0.0 && inside) {
            return None;
        }
        let (column, row) = (x as usize, y as usize);
        let off = [x - column as f32 - 0.5, y - row as f32 - 0.5];
        // At most half a pixel squared, in 23 bits.
        let off = (off[0] * off[0] + off[1] * off[1]) * 8_388_608.0;
        let bits = u64::from(depth.to_bits());
        Some(Candidate {
            pixel: row * width + column,
            rank: (bits >> 22) << 55 | (off as u64) << 32 | bits,
        })
    }
}

/// A point that falls on a pixel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Index of the pixel.
    pub pixel: usize,
    /// The point with the smallest rank counts: first by half octave of depth, which tells surfaces apart, then by the
    /// distance from the pixel's centre. The nearest of all points would be the one with the largest error of a noisy
    /// sensor. The low 32 bits are those of the depth.
    pub rank: u64,
}

/// The rank of a pixel on which no point falls.
const NOTHING: u64 = u64::MAX;

/// Moves the depths of an image of `width × height`, row by row. A pixel on which several points fall has the one of
/// [`Candidate::rank`], and one on which none does has the depth 0. `ranks` is memory, a number for each pixel.
pub fn move_depth(
    depths: impl IntoIterator<Item = f32>,
    motion: &DepthMotion,
    (width, height): (usize, usize),
    ranks: &mut [u64],
    moved: &mut [f32],
) {
    ranks.fill(NOTHING);
    for (n, z) in depths.into_iter().enumerate() {
        let at = (n % width.max(1), n / width.max(1));
        if let Some(found) = motion.pixel(at, z, (width, height))
            && let Some(rank) = ranks.get_mut(found.pixel)
        {
            *rank = found.rank.min(*rank);
        }
    }
    for (depth, rank) in moved.iter_mut().zip(ranks) {
        *depth = match *rank {
            NOTHING => 0.0,
            rank => f32::from_bits(rank as u32),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nalgebra::{UnitQuaternion, Vector6};

    const SIZE: (usize, usize) = (128, 96);
    const CAMERA: Intrinsics = Intrinsics {
        fx: 100.0,
        fy: 104.0,
        cx: 63.5,
        cy: 47.5,
    };

    fn motion(twist: [f64; 6]) -> Sim3 {
        Sim3::exp(&Vector6::from(twist).push(0.0))
    }

    fn moved_by(motion: &DepthMotion, metres: &[f32]) -> Vec<f32> {
        let (mut ranks, mut moved) = (vec![0; metres.len()], vec![7.0; metres.len()]);
        let depths = metres.iter().copied();
        move_depth(depths, motion, SIZE, &mut ranks, &mut moved);
        moved
    }

    #[test]
    fn a_pixel_moves_as_its_point() {
        let motion = motion([0.1, -0.05, 0.2, 0.05, -0.1, 0.2]);
        let moving = DepthMotion::new(&motion, &CAMERA);
        let mut seen = 0;
        for n in 0..SIZE.0 * SIZE.1 {
            let (u, v) = (n % SIZE.0, n / SIZE.0);
            let z = 1.5 + (n as f64 * 0.37).sin();
            let point = motion.transform(&(CAMERA.ray(u as f64, v as f64) * z));
            let at = CAMERA.project(&point);
            let Some(found) = moving.pixel((u, v), z as f32, SIZE) else {
                let inside = at.x > -0.49
                    && at.y > -0.49
                    && at.x < SIZE.0 as f64 - 0.51
                    && at.y < SIZE.1 as f64 - 0.51;
                assert!(!inside, "{u} {v}: {at}");
                continue;
            };
            seen += 1;
            let (x, y) = (found.pixel % SIZE.0, found.pixel / SIZE.0);
            let depth = f32::from_bits(found.rank as u32);
            assert!((f64::from(depth) - point.z).abs() < 1e-5 * point.z);
            assert!((at.x - x as f64).abs() < 0.501 && (at.y - y as f64).abs() < 0.501);
        }
        assert!(seen > SIZE.0 * SIZE.1 / 2, "{seen}");
    }

    #[test]
    fn the_nearest_surface_at_a_pixel_counts() {
        let mut metres = vec![2.0; SIZE.0 * SIZE.1];
        let pixel = SIZE.0 * 40 + 64;
        metres[pixel] = 1.0;
        // 2 cm are two pixels at 1 m, and one at 2 m: the wall beside it falls on the same pixel, later or before.
        for (shift, to) in [(0.02, pixel + 2), (-0.02, pixel - 2)] {
            let motion = DepthMotion::new(&motion([shift, 0.0, 0.0, 0.0, 0.0, 0.0]), &CAMERA);
            let moved = moved_by(&motion, &metres);
            assert_eq!(moved[to], 1.0);
            let has = moved.iter().filter(|z| **z > 0.0).count();
            assert!(has < metres.len() && has > metres.len() * 9 / 10, "{has}");
            assert!(moved.iter().all(|z| [0.0, 1.0, 2.0].contains(z)));
        }
    }

    /// The camera goes back, so that 1.7 points fall on a pixel.
    #[test]
    fn noise_brings_a_surface_no_nearer() {
        let mut random = 1_u32;
        let mut noise = || {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f64::from(random >> 8) / f64::from(1_u32 << 24) - 0.5
        };
        let metres: Vec<f32> = (0..SIZE.0 * SIZE.1)
            .map(|_| (1.25 * (1.0 + 0.2 * noise())) as f32)
            .collect();
        let motion = DepthMotion::new(&motion([0.0, 0.0, 0.4, 0.0, 0.0, 0.0]), &CAMERA);
        let moved = moved_by(&motion, &metres);
        let seen: Vec<f64> = moved
            .iter()
            .filter(|z| **z > 0.0)
            .map(|z| f64::from(*z))
            .collect();
        let mean = seen.iter().sum::<f64>() / seen.len() as f64;
        assert!(seen.len() < metres.len() * 7 / 10, "{}", seen.len());
        // Noise of 7 cm in 4,000 points and more.
        assert!((mean - 1.65).abs() < 0.01, "{mean}");
    }

    #[test]
    fn depth_that_is_no_distance_moves_nowhere() {
        let turn = Sim3 {
            rotation: UnitQuaternion::from_euler_angles(0.0, 0.0, 0.3),
            ..Sim3::identity()
        };
        let motion = DepthMotion::new(&turn, &CAMERA);
        for z in [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(motion.pixel((60, 40), z, SIZE), None, "{z}");
        }
        assert!(motion.pixel((60, 40), f32::MIN_POSITIVE, SIZE).is_some());
        let behind = DepthMotion::new(&motion_back(3.0), &CAMERA);
        assert_eq!(behind.pixel((60, 40), 2.0, SIZE), None);
        let unknown = DepthMotion::new(&motion_back(f64::NAN), &CAMERA);
        assert_eq!(unknown.pixel((60, 40), 2.0, SIZE), None);
    }

    fn motion_back(metres: f64) -> Sim3 {
        Sim3 {
            translation: Vector3::new(0.0, 0.0, -metres),
            ..Sim3::identity()
        }
    }
}
