//! What a network's pass gets wrong about depth, as a smooth factor over the image (docs/algorithm.md, Metric scale).
//!
//! A network errs by more than one scale: it bends walls and floors, and has near objects too far or too near. Where a
//! sensor measures the frame, the log ratios of depth and points are averaged robustly in the cells of a coarse grid
//! over the image and over depth, and the grid, interpolated, multiplies the points of the pass, along the rays of the
//! frame's camera. What is left of a pixel's own ratio corrects its point, as far as the sensor's noise lets it.

use super::pixels::{NEIGHBOURS, OfPixels, Pairs};
use super::smooth::Smoother;
use super::{SIGMA_OVER_MAD, ratio};
use crate::geometry::Intrinsics;

/// Cells along the longer side of an image.
pub(crate) const CELLS: usize = 16;
/// Layers of cells over depth, each for depths twice those of the one before.
pub(crate) const LAYERS: usize = 4;

/// Depth of the first layer's cells, metres.
pub(crate) const FIRST_LAYER: f32 = 0.7;

/// Minimum number of pixels along a cell's side: a cell averages the sensor's noise.
const LEAST_SIDE: usize = 16;
/// A ratio counts less the farther it is from the pass's scale, and nothing beyond so many standard deviations, of at
/// least [`super::MIN_SIGMA`].
pub(crate) const REACH: f32 = 5.0;
/// Sum of the weights of a cell's pixels with which the cell counts as a whole measurement.
pub(crate) const FULL_CELL: f32 = 32.0;
/// Weight of the difference between two neighbours, against a whole measurement.
pub(crate) const STIFFNESS: f32 = 0.02;
/// Weight of the pass's scale in each cell: what cells far from any depth come back to.
pub(crate) const RETURN: f32 = 0.001;
/// Number of Jacobi sweeps. The grid's longest way is crossed twice.
pub(crate) const SWEEPS: usize = 32;

/// How an image is divided into square cells, in each of [`LAYERS`] layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Columns of the image.
    pub width: usize,
    /// Rows of the image.
    pub height: usize,
    /// Columns of cells, 1 to 16.
    pub columns: usize,
    /// Rows of cells, 1 to 16.
    pub rows: usize,
    /// Pixels along a cell's side; the last column and row may have fewer.
    pub side: usize,
}

impl Layout {
    /// The cells of an image of `width × height`.
    pub fn of(width: usize, height: usize) -> Self {
        let side = width.max(height).div_ceil(CELLS).max(LEAST_SIDE);
        Self {
            width,
            height,
            columns: width.div_ceil(side).max(1),
            rows: height.div_ceil(side).max(1),
            side,
        }
    }

    /// Number of cells.
    pub fn cells(&self) -> usize {
        self.columns * self.rows * LAYERS
    }

    /// Column, row and layer of a cell.
    fn place(&self, cell: usize) -> [usize; 3] {
        let row = cell / self.columns;
        [cell % self.columns, row % self.rows, row / self.rows]
    }
}

/// The place of a depth in metres between the layers.
fn layer_of(depth: f32) -> f32 {
    (depth / FIRST_LAYER).log2()
}

/// The two of `count` centres between which `at` lies, and how far it is on the way from the first to the second. 0
/// for NaN.
fn between(at: f32, count: usize) -> (usize, usize, f32) {
    let at = at.max(0.0).min((count - 1) as f32);
    let low = at as usize;
    (low, (low + 1).min(count - 1), at - low as f32)
}

/// The distance from the pass's scale at which a log ratio no longer counts, for ratios with this median absolute
/// deviation.
pub(crate) fn reach(mad: f64) -> f32 {
    REACH * (SIGMA_OVER_MAD * mad).max(super::MIN_SIGMA) as f32
}

/// The field of the newest pass that has one; 0 everywhere before.
#[derive(Debug)]
pub struct DepthField {
    layout: Layout,
    camera: Intrinsics,
    /// Natural logarithms of the factor, at the cells' centres.
    values: Vec<f32>,
    next: Vec<f32>,
    /// Means of the cells, and their weights.
    means: Vec<f32>,
    weights: Vec<f32>,
    sums: Vec<[f64; 2]>,
    /// By the newest fit.
    of_pixels: OfPixels,
    /// Minimum confidence of points that agree with their depth.
    confidence: f32,
    smoother: Smoother,
}

impl DepthField {
    /// A field of zeros for images of this camera, of `width × height`; points that agree with their depth get at least
    /// this confidence. It allocates no more later.
    pub fn new((width, height): (usize, usize), camera: Intrinsics, confidence: f32) -> Self {
        let layout = Layout::of(width, height);
        let zeros = vec![0.0; layout.cells()];
        Self {
            layout,
            camera,
            values: zeros.clone(),
            next: zeros.clone(),
            means: zeros.clone(),
            weights: zeros,
            sums: vec![[0.0; 2]; layout.cells()],
            of_pixels: OfPixels::default(),
            confidence,
            smoother: Smoother::new(width, width * height),
        }
    }

    /// How far a pixel's own depth corrects its point, by the newest fit.
    pub fn of_pixels(&self) -> OfPixels {
        self.of_pixels
    }

    /// Logarithms of the factor at the cells' centres, row by row, layer by layer.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Fits the field to a pass with this scale and median absolute deviation of the log ratios, whose keys are `keys`
    /// ([`super::DepthMeter::keys`]). `points` and `metres` are those of [`super::DepthMeter::measure`]; depths become
    /// averages as far as the sensor's noise asks for it.
    ///
    /// With the offsets `o = log(Z/z) − log_scale` of a cell's pixels and `w = (1 − (o/R)²)²` for `|o| < R`, else 0,
    /// the values minimise `Σ min(Σw/32, 1)·(f − Σwo/Σw)² + 0.02·Σ (f − f')² + 0.001·Σ f²`, with the sum of the second
    /// term over neighbours; by 32 sweeps of Jacobi from zero.
    pub fn fit(
        &mut self,
        points: &[f32],
        keys: &[u16],
        (log_scale, mad): (f64, f64),
        metres: &mut [f32],
    ) {
        let Layout {
            width,
            columns,
            rows,
            side,
            ..
        } = self.layout;
        let factor = log_scale.exp() as f32;
        let (scale, reach) = (log_scale as f32, reach(mad));
        let off = |key: u16| ratio::log(key) - scale;
        // Positive if the ratio counts.
        let rest = |key: u16| {
            let of_reach = off(key) / reach;
            match key {
                ratio::NOTHING => 0.0,
                _ => 1.0 - of_reach * of_reach,
            }
        };
        self.sums.fill([0.0; 2]);
        let mut of_pairs = Pairs::default();
        let mut measured = 0;
        // The nearest measured pixel to the left.
        let mut left: Option<(usize, u16)> = None;
        for (n, (p, key)) in points.chunks_exact(3).zip(keys).enumerate() {
            let (u, key) = (n % width, *key);
            if u == 0 {
                left = None;
            }
            if key == ratio::NOTHING {
                continue;
            }
            measured += 1;
            let before = left.replace((u, key));
            let rest_of_key = rest(key);
            if rest_of_key > 0.0 {
                let before = before.filter(|(at, key)| u - at <= NEIGHBOURS && rest(*key) > 0.0);
                if let Some((_, before)) = before {
                    of_pairs.differences += u64::from(key.abs_diff(before));
                    of_pairs.count += 1;
                }
                let cell = n / width / side * columns + u / side;
                let (near, far, share) = between(layer_of(p[2] * factor), LAYERS);
                for (layer, share) in [(near, 1.0 - share), (far, share)] {
                    let sums = self.sums.get_mut(layer * rows * columns + cell);
                    if let Some([sum, weight]) = sums {
                        let w = share * rest_of_key * rest_of_key;
                        *sum += f64::from(w * off(key));
                        *weight += f64::from(w);
                    }
                }
            }
        }
        let cells = self.means.iter_mut().zip(&mut self.weights);
        for ((mean, weight), [sum, of_pixels]) in cells.zip(&self.sums) {
            *mean = match *of_pixels > 0.0 {
                true => (*sum / *of_pixels) as f32,
                false => 0.0,
            };
            *weight = (*of_pixels as f32 / FULL_CELL).min(1.0);
        }
        let fraction = f64::from(measured) / keys.len().max(1) as f64;
        self.of_pixels = OfPixels::new(of_pairs, mad, (reach, self.confidence), fraction);
        self.smooth();
        let average = self.of_pixels.average;
        if average.radius > 0 {
            let counts = |key: u16| rest(key) > 0.0;
            self.smoother.run(points, keys, average, counts, metres);
        }
    }

    /// Jacobi sweeps from zero.
    fn smooth(&mut self) {
        let layout = self.layout;
        let Layout { columns, rows, .. } = layout;
        let layer = columns * rows;
        self.values.fill(0.0);
        for _ in 0..SWEEPS {
            let old = &self.values;
            for (cell, out) in self.next.iter_mut().enumerate() {
                let [column, row, depth] = layout.place(cell);
                let neighbours = [
                    (column > 0, cell.wrapping_sub(1)),
                    (column + 1 < columns, cell + 1),
                    (row > 0, cell.wrapping_sub(columns)),
                    (row + 1 < rows, cell + columns),
                    (depth > 0, cell.wrapping_sub(layer)),
                    (depth + 1 < LAYERS, cell + layer),
                ];
                let (mut sum, mut count) = (0.0, 0.0);
                for (_, other) in neighbours.into_iter().filter(|(inside, _)| *inside) {
                    sum += old.get(other).copied().unwrap_or(0.0);
                    count += 1.0;
                }
                let (mean, weight) = (self.means[cell], self.weights[cell]);
                let inverse = 1.0 / (weight + STIFFNESS * count + RETURN);
                *out = (weight * mean + STIFFNESS * sum) * inverse;
            }
            std::mem::swap(&mut self.values, &mut self.next);
        }
    }

    /// Multiplies the points (`N × 3`) of the frame's own view by `factor` and the field.
    pub fn apply(&self, points: &mut [f32], factor: f32) {
        let width = self.layout.width;
        for (n, p) in points.chunks_exact_mut(3).enumerate() {
            let place = [(n % width) as f32, (n / width) as f32];
            self.multiply(p, Some(place), factor);
        }
    }

    /// Multiplies points (`N × 3`) of another view, in the frame's camera, by `factor` and the field where the frame
    /// sees them; outside its image the field is that of the border, behind the camera there is none.
    pub fn apply_to_other(&self, points: &mut [f32], factor: f32) {
        let k = &self.camera;
        let focal = [k.fx as f32, k.fy as f32];
        let principal = [k.cx as f32, k.cy as f32];
        for p in points.chunks_exact_mut(3) {
            let [x, y, z] = [p[0], p[1], p[2]];
            let place = [
                x / z * focal[0] + principal[0],
                y / z * focal[1] + principal[1],
            ];
            self.multiply(p, (z > 0.0).then_some(place), factor);
        }
    }

    #[inline(always)]
    fn multiply(&self, point: &mut [f32], place: Option<[f32; 2]>, factor: f32) {
        let scale = match place {
            Some(place) => factor * self.at(place, point[2] * factor).exp(),
            None => factor,
        };
        for v in point {
            *v *= scale;
        }
    }

    /// The field at column and row of the image and a depth in metres, linear between the cells' centres along each.
    #[inline(always)]
    fn at(&self, [u, v]: [f32; 2], depth: f32) -> f32 {
        let Layout {
            columns,
            rows,
            side,
            ..
        } = self.layout;
        let inverse = 1.0 / side as f32;
        let (left, right, a) = between((u + 0.5) * inverse - 0.5, columns);
        let (above, below, b) = between((v + 0.5) * inverse - 0.5, rows);
        let (near, far, c) = between(layer_of(depth), LAYERS);
        let blend = |low: f32, high: f32, share: f32| low + share * (high - low);
        let of_layer = |layer: usize| {
            let of_row = |row: usize| {
                let first = (layer * rows + row) * columns;
                blend(self.values[first + left], self.values[first + right], a)
            };
            blend(of_row(above), of_row(below), b)
        };
        blend(of_layer(near), of_layer(far), c)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: (usize, usize) = (256, 192);
    const PIXELS: usize = SIZE.0 * SIZE.1;

    fn camera() -> Intrinsics {
        Intrinsics {
            fx: 200.0,
            fy: 208.0,
            cx: 124.0,
            cy: 96.0,
        }
    }

    fn field() -> DepthField {
        DepthField::new(SIZE, camera(), 0.0)
    }

    /// A wall 2 m away on the camera's rays, and its depth bent by `bend` of column and row.
    fn bent(bend: impl Fn(f64, f64) -> f64) -> (Vec<f32>, Vec<f32>) {
        let places = (0..PIXELS).map(|n| ((n % SIZE.0) as f64, (n / SIZE.0) as f64));
        let points = places.clone().flat_map(|(u, v)| {
            let ray = camera().ray(u, v);
            [2.0 * ray.x as f32, 2.0 * ray.y as f32, 2.0]
        });
        let metres = places.map(|(u, v)| 2.0 * bend(u, v).exp() as f32);
        (points.collect(), metres.collect())
    }

    /// Fits to all pixels; depths become averages.
    fn fit(
        field: &mut DepthField,
        points: &[f32],
        metres: &mut [f32],
        (log_scale, mad): (f64, f64),
    ) {
        let depths = points.chunks_exact(3).map(|p| p[2]);
        let keys = depths
            .zip(metres.iter())
            .map(|(z, m)| ratio::key(ratio::of(*m, z)));
        let keys: Vec<u16> = keys.collect();
        field.fit(points, &keys, (log_scale, mad), metres);
    }

    /// Largest log ratio of depth and corrected points.
    fn left_over(points: &[f32], metres: &[f32]) -> f32 {
        let depths = points.chunks_exact(3).map(|p| p[2]);
        let logs = depths.zip(metres).map(|(p, z)| (z / p).ln().abs());
        logs.fold(0.0, f32::max)
    }

    #[test]
    fn a_smooth_bend_is_taken_out_of_both_views() {
        let bend = |u: f64, v: f64| 0.1 * (u / 120.0).sin() + 0.0005 * (v - 96.0);
        let (mut points, mut metres) = bent(bend);
        let mut field = field();
        fit(&mut field, &points, &mut metres, (0.0, 0.06));
        let mut other = points.clone();
        assert!(left_over(&points, &metres) > 0.13);
        field.apply(&mut points, 1.0);
        let left = left_over(&points, &metres);
        assert!(left < 0.03, "{left}");
        // The same points, as another view sees them, move alike.
        field.apply_to_other(&mut other, 1.0);
        for (a, b) in points.iter().zip(&other) {
            assert!((a - b).abs() < 1e-4, "{a} {b}");
        }
    }

    #[test]
    fn near_objects_and_what_is_behind_them_have_factors_of_their_own() {
        // Stripes of 8 pixels at 0.8 and 3.2 m: two of each in a cell. The network is wrong by 10 %, either way.
        let near = |n: usize| ((n % SIZE.0) / 8).is_multiple_of(2);
        let (points, mut metres): (Vec<[f32; 3]>, Vec<f32>) = (0..PIXELS)
            .map(|n| {
                let ray = camera().ray((n % SIZE.0) as f64, (n / SIZE.0) as f64);
                let (z, off) = if near(n) { (0.8, 0.1) } else { (3.2, -0.1) };
                let point = [z * ray.x as f32, z * ray.y as f32, z];
                (point, z * f32::exp(off))
            })
            .unzip();
        let mut points = points.into_flattened();
        let mut field = field();
        fit(&mut field, &points, &mut metres, (0.0, 0.1));
        field.apply(&mut points, 1.0);
        let left = left_over(&points, &metres);
        assert!(left < 0.015, "{left}");
    }

    #[test]
    fn wrong_pixels_and_gaps_bend_nothing() {
        let mut field = field();
        // An object that only the network sees wrongly: off by 60 %, a quarter of the image.
        let (points, mut metres) = bent(|u, v| if u < 128.0 && v < 96.0 { 0.6 } else { 0.0 });
        fit(&mut field, &points, &mut metres, (0.0, 0.01));
        assert!(field.values().iter().all(|v| v.abs() < 1e-3));
        // 3 % of the pixels show a bend; no cell is without a value near it.
        let (points, mut metres) = bent(|_, _| 0.1);
        for (n, z) in metres.iter_mut().enumerate() {
            if n % 37 != 0 {
                *z = 0.0;
            }
        }
        fit(&mut field, &points, &mut metres, (0.0, 0.1));
        let values = field.values();
        assert!(
            values.iter().all(|v| (0.06..0.11).contains(v)),
            "{values:?}"
        );
    }

    #[test]
    fn without_depth_the_field_is_zero_and_points_behind_the_camera_have_none() {
        let (points, _) = bent(|_, _| 0.0);
        let mut field = field();
        fit(&mut field, &points, &mut vec![0.0; PIXELS], (0.4, 0.1));
        assert!(field.values().iter().all(|v| *v == 0.0));
        let (bent, mut metres) = bent(|_, _| 0.2);
        fit(&mut field, &bent, &mut metres, (0.0, 0.2));
        let mut odd = vec![1.0, 2.0, -3.0, 0.0, 0.0, 0.0, 1e9, 0.0, 1.0];
        field.apply_to_other(&mut odd, 2.0);
        assert_eq!(odd[..6], [2.0, 4.0, -6.0, 0.0, 0.0, 0.0]);
        let border = field.at([1e9, SIZE.1 as f32 / 2.0], 2.0).exp();
        assert!((odd[8] / (2.0 * border) - 1.0).abs() < 0.01);
    }

    #[test]
    fn every_image_has_cells() {
        for (width, height) in [(1, 1), (1, 9), (512, 384), (384, 512), (4200, 20), (17, 17)] {
            let layout = Layout::of(width, height);
            assert!(
                layout.columns <= CELLS && layout.rows <= CELLS,
                "{layout:?}"
            );
            assert!((width - 1) / layout.side < layout.columns, "{layout:?}");
            assert!((height - 1) / layout.side < layout.rows, "{layout:?}");
        }
    }
}
