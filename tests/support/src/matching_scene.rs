//! Two cameras before a smooth surface: exact points of both views in camera 1's frame, and
//! descriptors that depend on the place, not on the view. Shared by the matching tests and benches.
use mast3r_slam::compute::matching::View;

/// A small repeatable generator (SplitMix64).
pub struct Random(pub u64);

impl Random {
    #[expect(clippy::should_implement_trait, reason = "an iterator would never end")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in [-1, 1).
    pub fn signed(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

pub struct Scene {
    pub width: usize,
    pub height: usize,
    pub dim: usize,
    pub focal: f64,
    pub points1: Vec<f32>,
    pub points2: Vec<f32>,
    pub descriptors1: Vec<f32>,
    pub descriptors2: Vec<f32>,
    /// Exact position of each pixel of view 2 in image 1.
    pub projections: Vec<[f64; 2]>,
}

impl Scene {
    /// Camera 2 stands at `centre2` in camera 1's frame, with the same orientation. Descriptors get
    /// uniform noise of amplitude `noise` on each channel before normalisation.
    pub fn new(width: usize, height: usize, dim: usize, centre2: [f64; 3], noise: f64) -> Self {
        let focal = 0.85 * width as f64;
        let (cx, cy) = (width as f64 / 2.0 - 0.5, height as f64 / 2.0 - 0.5);
        let depth = |x: f64, y: f64| 2.0 + 0.25 * (1.3 * x + 0.4).sin() * (1.1 * y - 0.2).cos();
        let mut random = Random(7);
        // One wave a channel, 10 to 40 pixels long.
        let waves: Vec<[f64; 3]> = (0..dim)
            .map(|_| {
                let angle = std::f64::consts::PI * random.signed();
                let pixels = 25.0 + 15.0 * random.signed();
                let k = std::f64::consts::TAU * focal / 2.0 / pixels;
                [
                    k * angle.cos(),
                    k * angle.sin(),
                    std::f64::consts::PI * random.signed(),
                ]
            })
            .collect();
        let n = width * height;
        let mut scene = Self {
            width,
            height,
            dim,
            focal,
            points1: Vec::with_capacity(3 * n),
            points2: Vec::with_capacity(3 * n),
            descriptors1: Vec::with_capacity(dim * n),
            descriptors2: Vec::with_capacity(dim * n),
            projections: Vec::with_capacity(n),
        };
        for view in 0..2 {
            let c = if view == 0 { [0.0; 3] } else { centre2 };
            for pixel in 0..n {
                let ray = [
                    ((pixel % width) as f64 - cx) / focal,
                    ((pixel / width) as f64 - cy) / focal,
                ];
                // Fixed point of the depth along the ray; the slope is far below 1.
                let mut z = 2.0 - c[2];
                for _ in 0..60 {
                    z = depth(c[0] + ray[0] * z, c[1] + ray[1] * z) - c[2];
                }
                let x = [c[0] + ray[0] * z, c[1] + ray[1] * z, c[2] + z];
                let mut d: Vec<f64> = waves
                    .iter()
                    .map(|w| (w[0] * x[0] + w[1] * x[1] + w[2]).sin() + noise * random.signed())
                    .collect();
                let norm = d.iter().map(|d| d * d).sum::<f64>().sqrt();
                d.iter_mut().for_each(|d| *d /= norm);
                let (points, descriptors) = if view == 0 {
                    (&mut scene.points1, &mut scene.descriptors1)
                } else {
                    scene
                        .projections
                        .push([focal * x[0] / x[2] + cx, focal * x[1] / x[2] + cy]);
                    (&mut scene.points2, &mut scene.descriptors2)
                };
                points.extend(x.map(|x| x as f32));
                descriptors.extend(d.iter().map(|&d| d as f32));
            }
        }
        scene
    }

    pub fn view1(&self) -> View<'_> {
        View {
            points: &self.points1,
            descriptors: &self.descriptors1,
        }
    }

    pub fn view2(&self) -> View<'_> {
        View {
            points: &self.points2,
            descriptors: &self.descriptors2,
        }
    }

    pub fn pixels(&self) -> usize {
        self.width * self.height
    }
}
