//! Pointmaps whose depth was measured by a camera elsewhere than assumed (docs/algorithm.md, Depth).

use super::field::DepthField;
use super::moved::{DepthMotion, move_depth};
use super::pixels::OfPixels;
use super::{DepthMeter, Trust};
use crate::geometry::{Intrinsics, Sim3};

/// Log ratio of two surfaces that a small motion does not make of one.
const ANOTHER_SURFACE: f32 = 0.1;

/// How a pixel's moved depth corrects its point, after the field: as a whole, because both are of one pointmap and have no
/// noise apart, unless it belongs to another surface.
pub(crate) fn of_moved_pixels(fitted: OfPixels) -> OfPixels {
    OfPixels {
        own: 1.0,
        reach: ANOTHER_SURFACE,
        surfaces: false,
        ..fitted
    }
}

/// Corrects pointmaps of one size. It allocates no more later.
#[derive(Debug)]
pub struct PointmapMover {
    size: (usize, usize),
    camera: Intrinsics,
    meter: DepthMeter,
    field: DepthField,
    ranks: Vec<u64>,
    moved: Vec<f32>,
}

impl PointmapMover {
    /// For pointmaps of `width × height` of this camera.
    pub fn new(width: usize, height: usize, camera: Intrinsics) -> Self {
        let pixels = width * height;
        Self {
            size: (width, height),
            camera,
            meter: DepthMeter::new(pixels),
            field: DepthField::new((width, height), camera, 0.0),
            ranks: vec![0; pixels],
            moved: vec![0.0; pixels],
        }
    }

    /// Corrects points (`N × 3`), which are seen where they are after `motion`: their depths are moved as a depth image
    /// is; the scale and the field that these give, and then the depths themselves, correct the points along their rays.
    /// Returns `false`, with the points unchanged, if the moved depths do not fit them.
    pub fn run(&mut self, points: &mut [f32], confidence: &[f32], motion: &Sim3) -> bool {
        let motion = &DepthMotion::new(motion, &self.camera);
        let (size, moved) = (self.size, &mut self.moved);
        let depths = points.chunks_exact(3).map(|p| p[2]);
        move_depth(depths, motion, size, &mut self.ranks, moved);
        let trust = &mut Trust::default();
        let found = self.meter.measure(points, confidence, moved, size.0, trust);
        let Ok(scale) = found else { return false };
        let of_scale = (scale.log_scale, self.meter.mad());
        self.field.fit(points, self.meter.keys(), of_scale, moved);
        self.field.apply(points, scale.log_scale.exp() as f32);
        of_moved_pixels(self.field.of_pixels()).approach(points, &mut [], moved, size.0);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nalgebra::Vector6;

    const SIZE: (usize, usize) = (256, 192);
    const PIXELS: usize = SIZE.0 * SIZE.1;
    const CAMERA: Intrinsics = Intrinsics {
        fx: 200.0,
        fy: 208.0,
        cx: 124.0,
        cy: 96.0,
    };

    /// What a camera after `camera` sees of a wall aslant and a nearer one: points on its rays.
    fn seen(camera: &Sim3) -> Vec<f32> {
        let far = nalgebra::Vector3::new(0.1, -0.05, 0.4);
        let wall = |n: nalgebra::Vector3<f64>| {
            let turned = camera.rotation.inverse() * n;
            turned / (1.0 - n.dot(&camera.translation))
        };
        let (far, near) = (wall(far), wall(nalgebra::Vector3::z()));
        let points = (0..PIXELS).flat_map(|n| {
            let ray = CAMERA.ray((n % SIZE.0) as f64, (n / SIZE.0) as f64);
            // The near wall covers what is left of x = −0.2 m on it.
            let z = 1.0 / near.dot(&ray);
            let on_near = camera.transform(&(ray * z));
            let z = if on_near.x < -0.2 {
                z
            } else {
                1.0 / far.dot(&ray)
            };
            <[f64; 3]>::from(ray * z).map(|v| v as f32)
        });
        points.collect()
    }

    fn motion(twist: [f64; 6]) -> Sim3 {
        Sim3::exp(&Vector6::from(twist).push(0.0))
    }

    /// Medians and 90 % of the absolute log ratios of two pointmaps' depths.
    fn off(points: &[f32], truth: &[f32]) -> [f32; 2] {
        let depths = points.chunks_exact(3).zip(truth.chunks_exact(3));
        let mut logs: Vec<f32> = depths.map(|(p, q)| (p[2] / q[2]).ln().abs()).collect();
        logs.sort_unstable_by(f32::total_cmp);
        [logs[PIXELS / 2], logs[PIXELS * 9 / 10]]
    }

    #[test]
    fn a_pointmap_of_another_moment_becomes_that_of_its_own() {
        let confidence = vec![1.5; PIXELS];
        let mut mover = PointmapMover::new(SIZE.0, SIZE.1, CAMERA);
        for twist in [
            [0.0, 0.0, -0.03, 0.0, 0.0, 0.0],
            [0.02, -0.01, 0.03, 0.01, -0.02, 0.01],
            [-0.004, 0.002, 0.003, 0.002, 0.001, -0.002],
        ] {
            // The keyframe's camera is the origin; depth was measured from `elsewhere`, and taken for the keyframe's.
            let elsewhere = motion(twist);
            let (mut points, truth) = (seen(&elsewhere), seen(&Sim3::identity()));
            let [before, _] = off(&points, &truth);
            assert!(mover.run(&mut points, &confidence, &elsewhere));
            let [after, most] = off(&points, &truth);
            assert!(after < 0.1 * before, "{twist:?}: {before} to {after}");
            assert!(most < before, "{twist:?}: {before}, 90 % {most}");
            let rays = points.chunks_exact(3).enumerate().all(|(n, p)| {
                let ray = CAMERA.ray((n % SIZE.0) as f64, (n / SIZE.0) as f64);
                (f64::from(p[0] / p[2]) - ray.x).abs() < 1e-5
            });
            assert!(rays, "points stay on their rays");
        }
    }

    #[test]
    fn what_does_not_fit_stays() {
        let mut mover = PointmapMover::new(SIZE.0, SIZE.1, CAMERA);
        let confidence = vec![1.5; PIXELS];
        let behind = motion([0.0, 0.0, -50.0, 0.0, 0.0, 0.0]);
        let unknown = motion([f64::NAN; 6]);
        let still = Sim3::identity();
        let mut points = seen(&Sim3::identity());
        let before = points.clone();
        for wrong in [&behind, &unknown] {
            assert!(!mover.run(&mut points, &confidence, wrong));
            assert_eq!(points, before);
        }
        // Hidden points do not count, nor do invalid ones.
        assert!(!mover.run(&mut points, &vec![0.0; PIXELS], &still));
        assert_eq!(points, before);
        let mut invalid = vec![f32::NAN; 3 * PIXELS];
        assert!(!mover.run(&mut invalid, &confidence, &still));
        // Without a motion nothing moves by more than the steps of log ratios.
        assert!(mover.run(&mut points, &confidence, &still));
        let [_, most] = off(&points, &before);
        assert!(most < 3e-4, "{most}");
    }
}
