//! A synthetic room and matches in it, shared by the tests and benches of the solvers.

use crate::camera::centred;
pub use crate::random::Random;
use mast3r_slam::compute::global::{Edge, Keyframe};
use mast3r_slam::compute::pose_solver::{Correspondences, MeasuredDepths};
use mast3r_slam::geometry::{Intrinsics, Sim3, Tangent};
use nalgebra::Vector3;

impl Random {
    /// Tangent with components up to `limit`.
    pub fn tangent(&mut self, limit: f64) -> Tangent {
        Tangent::from_fn(|_, _| (2.0 * self.uniform() - 1.0) * limit)
    }
}

/// 60° wide.
pub fn intrinsics(width: usize, height: usize) -> Intrinsics {
    centred(0.866, (width, height))
}

/// Points on every pixel's ray, 1 m to 5 m deep, uneven on all scales.
pub fn room(width: usize, height: usize) -> Vec<Vector3<f64>> {
    let k = intrinsics(width, height);
    let mut random = Random(7);
    let mut out = Vec::with_capacity(width * height);
    for v in 0..height {
        for u in 0..width {
            let (x, y) = (u as f64 / width as f64, v as f64 / height as f64);
            let waves = (9.0 * x).sin() + (7.0 * y + 2.0 * x).cos();
            let z = 3.0 + 0.8 * waves + 0.4 * (random.uniform() - 0.5);
            out.push(k.ray(u as f64, v as f64) * z);
        }
    }
    out
}

/// As the solvers want it.
pub fn flat(points: &[Vector3<f64>]) -> Vec<f32> {
    points
        .iter()
        .flat_map(|p| [p.x, p.y, p.z])
        .map(|v| v as f32)
        .collect()
}

/// A permutation of the pixels that keeps neighbours near, as real matches do.
pub fn shuffled(count: usize, seed: u64) -> Vec<u32> {
    let mut random = Random(seed);
    let mut out: Vec<u32> = (0..count as u32).collect();
    for k in 1..count {
        let back = (random.uniform() * 40.0) as usize;
        out.swap(k, k - back.min(k));
    }
    out
}

/// A frame matched with a keyframe.
#[derive(Clone)]
pub struct Pair {
    pub frame_points: Vec<f32>,
    pub keyframe_points: Vec<f32>,
    pub index: Vec<u32>,
    pub quality: Vec<f32>,
    pub width: usize,
    pub height: usize,
    pub keyframe_from_frame: Sim3,
    /// Depths of a sensor in the frame and in the keyframe.
    pub measured: Option<[Vec<f32>; 2]>,
}

impl Pair {
    /// Exact but for the rounding of points to f32.
    pub fn exact(width: usize, height: usize, keyframe_from_frame: Sim3) -> Self {
        let room = room(width, height);
        let index = shuffled(room.len(), 3);
        let inverse = keyframe_from_frame.inverse();
        let mut frame = vec![Vector3::zeros(); room.len()];
        for (n, p) in room.iter().enumerate() {
            frame[index[n] as usize] = inverse.transform(p);
        }
        let mut random = Random(11);
        Self {
            frame_points: flat(&frame),
            keyframe_points: flat(&room),
            quality: room.iter().map(|_| 1.6 + random.uniform() as f32).collect(),
            index,
            width,
            height,
            keyframe_from_frame,
            measured: None,
        }
    }

    /// With depths that a sensor measured for two of three pixels of either end.
    pub fn with_depth(mut self) -> Self {
        let depths = |points: &[f32], gap: usize| {
            let z = points.chunks_exact(3).map(|p| p[2]).enumerate();
            z.map(|(n, z)| if n % 3 == gap { 0.0 } else { z }).collect()
        };
        self.measured = Some([
            depths(&self.frame_points, 0),
            depths(&self.keyframe_points, 1),
        ]);
        self
    }

    /// With Gaussian noise of `sigma` times each point's distance on both pointmaps.
    pub fn noisy(mut self, sigma: f64) -> Self {
        let mut random = Random(23);
        for points in [&mut self.frame_points, &mut self.keyframe_points] {
            for p in points.chunks_exact_mut(3) {
                let d = p.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
                for v in p {
                    *v += (random.normal() * sigma * d) as f32;
                }
            }
        }
        self
    }

    /// With a fraction of matches that mean nothing.
    pub fn with_outliers(mut self, fraction: f64) -> Self {
        let mut random = Random(29);
        let count = self.index.len();
        for m in &mut self.index {
            if random.uniform() < fraction {
                *m = (random.uniform() * count as f64) as u32;
            }
        }
        self
    }

    pub fn correspondences(&self) -> Correspondences<'_> {
        Correspondences {
            frame_points: &self.frame_points,
            keyframe_points: &self.keyframe_points,
            index: &self.index,
            quality: &self.quality,
            width: self.width,
            height: self.height,
            measured: self
                .measured
                .as_ref()
                .map(|[frame, keyframe]| MeasuredDepths { frame, keyframe }),
            min_fit: 0.0,
        }
    }
}

/// Matches of two keyframes in both directions; quality 0 means no match.
pub struct Match {
    pub i: usize,
    pub j: usize,
    pub index_i_from_j: Vec<u32>,
    pub index_j_from_i: Vec<u32>,
    pub quality_j: Vec<f32>,
    pub quality_i: Vec<f32>,
}

/// Keyframes that see the same room from different places.
pub struct Graph {
    pub width: usize,
    pub height: usize,
    pub points: Vec<Vec<f32>>,
    pub confidence: Vec<f32>,
    pub truth: Vec<Sim3>,
    pub start: Vec<Sim3>,
    pub matches: Vec<Match>,
}

impl Graph {
    /// Keyframe `k` at `truth[k]`, started `off` (per tangent component) away but for the first.
    pub fn new(
        width: usize,
        height: usize,
        count: usize,
        pairs: &[(usize, usize)],
        off: f64,
    ) -> Self {
        let room = room(width, height);
        let mut random = Random(5);
        let truth: Vec<Sim3> = (0..count)
            .map(|_| Sim3::exp(&random.tangent(0.15)))
            .collect();
        let start = truth
            .iter()
            .enumerate()
            .map(|(k, t)| match k {
                0 => *t,
                _ => t.retract(&random.tangent(off)),
            })
            .collect();
        let orders: Vec<Vec<u32>> = (0..count)
            .map(|k| shuffled(room.len(), 100 + k as u64))
            .collect();
        let points = truth
            .iter()
            .zip(&orders)
            .map(|(t, order)| {
                let inverse = t.inverse();
                let mut out = vec![Vector3::zeros(); room.len()];
                for (p, &at) in room.iter().zip(order) {
                    out[at as usize] = inverse.transform(p);
                }
                flat(&out)
            })
            .collect();
        let matches = pairs
            .iter()
            .map(|&(i, j)| {
                let mut index_i_from_j = vec![0; room.len()];
                let mut index_j_from_i = vec![0; room.len()];
                for (&a, &b) in orders[i].iter().zip(&orders[j]) {
                    index_i_from_j[b as usize] = a;
                    index_j_from_i[a as usize] = b;
                }
                let mut quality =
                    || -> Vec<f32> { room.iter().map(|_| 1.6 + random.uniform() as f32).collect() };
                Match {
                    i,
                    j,
                    index_i_from_j,
                    index_j_from_i,
                    quality_j: quality(),
                    quality_i: quality(),
                }
            })
            .collect();
        Self {
            width,
            height,
            points,
            confidence: vec![2.0; room.len()],
            truth,
            start,
            matches,
        }
    }

    /// A chain with loops back, `edges` in all.
    pub fn chain(count: usize, edges: usize) -> Vec<(usize, usize)> {
        let mut out: Vec<_> = (1..count).map(|k| (k - 1, k)).collect();
        let mut span = 2;
        while out.len() < edges && span < count {
            for k in (0..count - span).step_by(2) {
                if out.len() < edges {
                    out.push((k, k + span));
                }
            }
            span += 1;
        }
        out
    }

    pub fn keyframes(&self) -> Vec<Keyframe<'_>> {
        self.points
            .iter()
            .zip(&self.start)
            .map(|(points, &world_from_camera)| Keyframe {
                points,
                confidence: &self.confidence,
                world_from_camera,
            })
            .collect()
    }

    pub fn edges(&self) -> Vec<Edge<'_>> {
        self.matches
            .iter()
            .map(|m| Edge {
                i: m.i,
                j: m.j,
                index_i_from_j: &m.index_i_from_j,
                quality_j: &m.quality_j,
                index_j_from_i: &m.index_j_from_i,
                quality_i: &m.quality_i,
            })
            .collect()
    }
}

/// Length of the tangent between two poses.
pub fn distance(a: &Sim3, b: &Sim3) -> f64 {
    (*a * b.inverse()).log().norm()
}
