//! A furnished room, ray-cast exactly: the output of a perfect network for cameras in it.

use crate::geometry::{Intrinsics, Sim3};
use crate::inference::ViewOutput;
use nalgebra::Vector3;
use rayon::prelude::*;
use std::f64::consts::TAU;

/// Opposite corners, metres; y points down. The first is the room, seen from inside.
const BOXES: [([f64; 3], [f64; 3]); 7] = [
    ([-4.0, -1.6, -4.0], [4.0, 1.4, 4.0]),
    ([-0.8, 0.2, -0.8], [0.8, 1.4, 0.8]),
    ([3.1, -0.2, -1.0], [4.0, 1.4, 0.7]),
    ([-4.0, -0.9, 1.0], [-3.2, 1.4, 2.6]),
    ([-1.5, 0.3, 3.2], [1.2, 1.4, 4.0]),
    ([0.5, -0.5, -4.0], [2.5, 1.4, -3.4]),
    ([-3.6, 0.6, -3.5], [-2.6, 1.4, -2.4]),
];

/// Pixels matched farther apart than this are different surfaces, metres.
const SAME: f64 = 0.1;

/// The room for images of one size.
#[derive(Debug, Clone)]
pub struct Scene {
    /// Pixels of a row.
    pub width: usize,
    /// Image height in pixels.
    pub height: usize,
    /// Channels of a descriptor.
    pub channels: usize,
    /// Intrinsics of the camera.
    pub intrinsics: Intrinsics,
    /// A direction and a frequency for each pair of channels.
    waves: Vec<(Vector3<f64>, f64)>,
}

/// Numbers that look random and are always the same: splitmix64.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Uniform in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A normal deviate of mean 0 and variance 1.
    pub fn normal(&mut self) -> f64 {
        let (a, b) = (self.uniform().max(1e-300), self.uniform());
        (-2.0 * a.ln()).sqrt() * (TAU * b).cos()
    }
}

impl Scene {
    /// A scene for images of `width × height` with `channels` channels per descriptor.
    pub fn new(width: usize, height: usize, channels: usize) -> Self {
        let mut random = Random(77);
        let mut component = || random.uniform() - 0.5;
        let waves = (0..channels.div_ceil(2))
            .map(|k| {
                let direction = Vector3::new(component(), component(), component());
                (direction.normalize(), 2.0 + 2.5 * k as f64)
            })
            .collect();
        let focal = 0.7 * width as f64;
        Self {
            width,
            height,
            channels,
            intrinsics: Intrinsics {
                fx: focal,
                fy: focal,
                cx: (width as f64 - 1.0) / 2.0,
                cy: (height as f64 - 1.0) / 2.0,
            },
            waves,
        }
    }

    /// Pixels of an image.
    pub fn pixels(&self) -> usize {
        self.width * self.height
    }

    /// `count` cameras on a way around the middle, `step` radians apart.
    pub fn walk(count: usize, step: f64) -> Vec<Sim3> {
        (0..count)
            .map(|k| {
                let a = step * k as f64;
                let eye = Vector3::new(2.2 * a.cos(), 0.08 * (3.0 * a).sin(), 2.2 * a.sin());
                let look = Vector3::new(
                    -(a + 0.35).sin() + 0.6 * a.cos(),
                    0.05,
                    (a + 0.35).cos() + 0.6 * a.sin(),
                );
                Sim3::look_at(eye, eye + look, Vector3::new(0.0, 1.0, 0.0))
            })
            .collect()
    }

    /// Pointmap of the visible surface in the camera frame.
    pub fn points(&self, world_from_camera: &Sim3) -> Vec<Vector3<f64>> {
        (0..self.pixels())
            .into_par_iter()
            .map(|n| {
                let (u, v) = (n % self.width, n / self.width);
                let ray = self.intrinsics.ray(u as f64, v as f64);
                let direction = world_from_camera.rotation * ray;
                ray * distance(&world_from_camera.translation, &direction)
            })
            .collect()
    }

    /// Simulated network output for `view` in the camera frame of `reference`, with noise added to the points,
    /// of relative size `noise`.
    pub fn output(&self, reference: &Sim3, view: &Sim3, noise: f64, seed: u64) -> ViewOutput {
        let relative = reference.inverse() * *view;
        let seen = self.points(view);
        let n = self.pixels();
        let mut out = ViewOutput {
            points: vec![0.0; 3 * n],
            confidence: vec![0.0; n],
            descriptors: vec![0.0; self.channels * n],
            descriptor_confidence: vec![0.0; n],
        };
        (
            out.points.par_chunks_exact_mut(3),
            &mut out.confidence,
            out.descriptors.par_chunks_exact_mut(self.channels),
            &mut out.descriptor_confidence,
            seen,
        )
            .into_par_iter()
            .enumerate()
            .for_each(|(n, (point, confidence, descriptor, quality, seen))| {
                let mut random = Random(seed.wrapping_mul(0x9e37_79b9).wrapping_add(n as u64));
                let measured = relative.transform(&(seen * (1.0 + noise * random.normal())));
                for (out, value) in point.iter_mut().zip(measured.iter()) {
                    *out = *value as f32;
                }
                *confidence = (2.0 + 4.0 * random.uniform()) as f32;
                *quality = (2.0 + 4.0 * random.uniform()) as f32;
                self.describe(&view.transform(&seen), descriptor);
            });
        out
    }

    /// A unit descriptor that changes smoothly over the surfaces and repeats nowhere near.
    fn describe(&self, p: &Vector3<f64>, out: &mut [f32]) {
        let mut sum = 0.0;
        for (pair, (direction, frequency)) in out.chunks_mut(2).zip(&self.waves) {
            let (sin, cos) = (direction.dot(p) * frequency).sin_cos();
            for (out, value) in pair.iter_mut().zip([cos as f32, sin as f32]) {
                *out = value;
                sum += value * value;
            }
        }
        let scale = sum.sqrt().recip();
        out.iter_mut().for_each(|value| *value *= scale);
    }

    /// For each point, seen from `from`, the pixel of `to` where it lies, if that pixel shows the same
    /// surface; `to_points` are what `to` sees.
    pub fn matches(
        &self,
        from: (&Sim3, &[Vector3<f64>]),
        to: (&Sim3, &[Vector3<f64>]),
    ) -> Vec<Option<u32>> {
        let relative = to.0.inverse() * *from.0;
        let k = &self.intrinsics;
        from.1
            .par_iter()
            .map(|p| {
                let q = relative.transform(p);
                if q.z <= 0.0 {
                    return None;
                }
                let (u, v) = (
                    (k.fx * q.x / q.z + k.cx).round(),
                    (k.fy * q.y / q.z + k.cy).round(),
                );
                let inside =
                    (0.0..self.width as f64).contains(&u) && (0.0..self.height as f64).contains(&v);
                let pixel = if inside {
                    v as usize * self.width + u as usize
                } else {
                    return None;
                };
                let there = to.1.get(pixel)?;
                ((there - q).norm() < SAME).then_some(pixel as u32)
            })
            .collect()
    }
}

/// Distance from `eye` along `ray` to the first surface.
fn distance(eye: &Vector3<f64>, ray: &Vector3<f64>) -> f64 {
    let slab = |(low, high): &([f64; 3], [f64; 3])| {
        let (mut near, mut far) = (f64::NEG_INFINITY, f64::INFINITY);
        for k in 0..3 {
            let (a, b) = ((low[k] - eye[k]) / ray[k], (high[k] - eye[k]) / ray[k]);
            near = near.max(a.min(b));
            far = far.min(a.max(b));
        }
        (near, far)
    };
    let (room, furniture) = (slab(&BOXES[0]).1, &BOXES[1..]);
    furniture.iter().map(slab).fold(room, |best, (near, far)| {
        if near < far && near > 0.0 {
            best.min(near)
        } else {
            best
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_cameras_see_the_same_surfaces() {
        let scene = Scene::new(64, 48, 24);
        let poses = Scene::walk(3, 0.05);
        let points: Vec<_> = poses.iter().map(|pose| scene.points(pose)).collect();
        // Every ray ends on a surface of the room, and where it ends lies on its pixel.
        for (n, p) in points[0].iter().enumerate() {
            assert!(
                p.iter().all(|v| v.is_finite()) && p.z > 0.0,
                "pixel {n}: {p}"
            );
            let w = poses[0].transform(p);
            let on_a_wall = BOXES.iter().any(|(low, high)| {
                (0..3).any(|k| (w[k] - low[k]).abs() < 1e-9 || (w[k] - high[k]).abs() < 1e-9)
            });
            assert!(on_a_wall, "pixel {n}: {w}");
        }
        let itself = scene.matches((&poses[0], &points[0]), (&poses[0], &points[0]));
        assert!(itself.iter().enumerate().all(|(n, m)| *m == Some(n as u32)));
        let next = scene.matches((&poses[0], &points[0]), (&poses[1], &points[1]));
        let matched = next.iter().flatten().count();
        assert!(
            matched * 2 > next.len() && matched < next.len(),
            "{matched}"
        );
        // A match has nearly the same descriptor; another pixel has not.
        let (a, b) = (
            scene.output(&poses[0], &poses[0], 0.0, 1),
            scene.output(&poses[0], &poses[1], 0.0, 2),
        );
        let dot = |n: usize, m: usize| -> f32 {
            let row = |v: &'_ ViewOutput, n: usize| v.descriptors[24 * n..][..24].to_vec();
            row(&a, n).iter().zip(row(&b, m)).map(|(x, y)| x * y).sum()
        };
        let (mut same, mut other, mut count) = (0.0, 0.0, 0.0);
        for (n, m) in next.iter().enumerate() {
            if let Some(m) = m {
                same += dot(n, *m as usize);
                other += dot(n, next.len() - 1 - *m as usize);
                count += 1.0;
            }
        }
        assert!(
            same / count > 0.8 && other / count < 0.3,
            "{same} {other} {count}"
        );
    }
}
