//! A depth image as planes, which noise and gaps do not stop.
//!
//! A plane is fitted to the window about each block of pixels. On a plane `1/z = a + b u + c v`. The fit minimises
//!
//! ```text
//! Σ z (a + b u + c v − 1/z)²,   so that   Σ z x xᵀ θ = Σ x   with   x = [1, u, v]
//! ```
//!
//! over the measured pixels: with the weight `z` its equations are linear in `z`, so that noise of mean zero leaves no
//! bias. A window is the block alone if that suffices; windows of 3 × 3 blocks average noise, and those of up to 5 × 5
//! bridge gaps, but corners and edges of the scene are in more of them. There, blocks as a whole are off the plane,
//! which shows what single pixels hide in their noise.

use crate::geometry::Intrinsics;
use crate::image::depth::DepthLimits;
use nalgebra::{Matrix2, Matrix3, Matrix3x2, Vector2, Vector3};
use std::ops::Add;

/// Minimum number of measured pixels of a window.
const MIN_PIXELS: f64 = 6.0;
/// Minimum variance of a window's measured pixels along each axis, in squares of its side; a full window has 1/12.
const MIN_SPREAD: f64 = 1.0 / 45.0;
/// Maximum square of the correlation of the two axes: beyond it the pixels lie along a line.
const MAX_CORRELATION: f64 = 0.9;
/// A window whose relative variance is above `ROUGH` times the median, which is noise, by more than that of `RELIEF` has
/// an edge in it.
const ROUGH: f64 = 2.0;
const RELIEF: f64 = 0.002;
/// A plane is refused if the squares of its blocks' errors have a sum that is beyond its mean by so many standard
/// deviations.
const UNEVEN: f64 = 2.0;
/// Maximum number of blocks on each side of a window's middle one.
const MAX_RADIUS: usize = 2;
/// Within so many standard deviations of a limit of depth, noise takes pixels beyond it. If they are missing, the others
/// are too near or too far.
const TRUNCATED: f64 = 3.0;
/// Standard deviation of a window's mean depth, as a part of the depth, above which noise is averaged over more blocks.
const FINE: f64 = 5e-4;

/// The plane of a window.
#[derive(Debug, Clone, Copy)]
pub struct Plane {
    /// Its point amid the measured pixels, in metres in the camera's frame.
    pub point: Vector3<f64>,
    /// Unit vector, away from the camera.
    pub normal: Vector3<f64>,
    /// `normal · P = distance` holds for its points `P`.
    pub distance: f64,
    /// Covariance of the normal, by the noise of the pixels.
    pub tilt: Matrix3<f64>,
    /// Variance of the pixels' depth about the plane, over the depth.
    variance: f64,
}

/// `1/z = offset + slope · x` at the pixel `x` from the principal point.
#[derive(Debug, Clone, Copy)]
struct InverseDepth {
    offset: f64,
    slope: Vector2<f64>,
}

impl InverseDepth {
    /// Whether the blocks of a window lie on the plane as far as noise of this variance lets them. `e = Σ (z/ẑ − 1)` over
    /// the `n` pixels of a block has the variance `n σ²`, so that `Σ e²/(n σ²)` over the blocks is χ² with three degrees of
    /// freedom less than blocks. Three blocks in a row show a bend, but not a step in the middle of the second.
    fn fits<'a>(&self, variance: f64, blocks: impl Iterator<Item = &'a Sums>) -> bool {
        let (mut squares, mut freedom) = (0.0, -3.0_f64);
        for block in blocks.filter(|block| block.n > 0.0) {
            let off = self.offset * block.z + self.slope.dot(&block.zx) - block.n;
            squares += off * off / block.n;
            freedom += 1.0;
        }
        let max = freedom + UNEVEN * (2.0 * freedom).sqrt();
        freedom < 1.0 || squares <= max * variance.max(RELIEF.powi(2))
    }
}

/// Sums over the measured pixels of a block or a window, with `x = [u, v]` from the principal point.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    n: f64,
    x: Vector2<f64>,
    z: f64,
    zx: Vector2<f64>,
    zxx: Matrix2<f64>,
    inverse: f64,
}

impl Add for Sums {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            n: self.n + other.n,
            x: self.x + other.x,
            z: self.z + other.z,
            zx: self.zx + other.zx,
            zxx: self.zxx + other.zxx,
            inverse: self.inverse + other.inverse,
        }
    }
}

/// Sums over the measured pixels of each column of a row of blocks, with `v` from its first row of pixels.
#[derive(Debug)]
struct Columns {
    n: Vec<f32>,
    v: Vec<f32>,
    z: Vec<f32>,
    zv: Vec<f32>,
    zvv: Vec<f32>,
    inverse: Vec<f32>,
}

impl Columns {
    fn new(width: usize) -> Self {
        let zeros = || vec![0.0; width];
        Self {
            n: zeros(),
            v: zeros(),
            z: zeros(),
            zv: zeros(),
            zvv: zeros(),
            inverse: zeros(),
        }
    }

    /// Sums the rows of `pixels`.
    fn sum(&mut self, pixels: &[f32]) {
        let width = self.n.len();
        let Self {
            n,
            v,
            z,
            zv,
            zvv,
            inverse,
        } = self;
        for sums in [&mut *n, v, z, zv, zvv, inverse] {
            sums.fill(0.0);
        }
        // Slices of one length, so that the compiler uses vectors.
        let (n, v, z) = (&mut n[..width], &mut v[..width], &mut z[..width]);
        let (zv, zvv, inverse) = (&mut zv[..width], &mut zvv[..width], &mut inverse[..width]);
        for (row, pixels) in pixels.chunks_exact(width).enumerate() {
            let (row, pixels) = (row as f32, &pixels[..width]);
            for u in 0..width {
                // False for NaN as well.
                let is_measured = pixels[u] > 0.0 && pixels[u] < f32::INFINITY;
                let one = if is_measured { 1.0 } else { 0.0 };
                let depth = if is_measured { pixels[u] } else { 0.0 };
                n[u] += one;
                v[u] += one * row;
                z[u] += depth;
                zv[u] += depth * row;
                zvv[u] += depth * row * row;
                inverse[u] += if is_measured { 1.0 / pixels[u] } else { 0.0 };
            }
        }
    }

    /// The sums over the columns from `left` to before `right` of which the first row is `top`.
    fn block(&self, (left, right): (usize, usize), top: usize, camera: &Intrinsics) -> Sums {
        let mut sums = Sums::default();
        let top = top as f64 - camera.cy;
        for column in left..right {
            let get = |of: &[f32]| f64::from(of[column]);
            let u = column as f64 - camera.cx;
            let (n, z, zv) = (get(&self.n), get(&self.z), get(&self.zv));
            let z_of_v = zv + top * z;
            sums.n += n;
            sums.x += Vector2::new(u * n, get(&self.v) + top * n);
            sums.z += z;
            sums.zx += Vector2::new(u * z, z_of_v);
            let vv = get(&self.zvv) + 2.0 * top * zv + top * top * z;
            sums.zxx += Matrix2::new(u * u * z, u * z_of_v, u * z_of_v, vv);
            sums.inverse += get(&self.inverse);
        }
        sums
    }
}

/// The planes of a depth image. All memory is allocated in the beginning.
#[derive(Debug)]
pub struct Surface {
    camera: Intrinsics,
    limits: DepthLimits,
    width: usize,
    block: usize,
    /// Columns and rows of blocks.
    blocks: (usize, usize),
    columns: Columns,
    /// Minimum and maximum of the measured depth, and of the limits if that is farther.
    range: (f64, f64),
    /// Sums of each block; then of the blocks of a window in its row.
    sums: [Vec<Sums>; 2],
    planes: Vec<Option<Plane>>,
    sorted: Vec<f64>,
}

impl Surface {
    /// For depth images of `width × height` of this camera, with depth between these limits, and at most `blocks` blocks
    /// along the longer side.
    pub fn new(
        (width, height): (usize, usize),
        camera: Intrinsics,
        limits: DepthLimits,
        blocks: usize,
    ) -> Self {
        let block = width.max(height).div_ceil(blocks);
        let block = block.min(width.min(height)).max(1);
        let (across, down) = (width / block, height / block);
        Self {
            camera,
            limits,
            width,
            block,
            blocks: (across, down),
            columns: Columns::new(width),
            range: (limits.min, limits.max),
            sums: [0, 1].map(|_| vec![Sums::default(); across * down]),
            planes: vec![None; across * down],
            sorted: Vec::with_capacity(across * down),
        }
    }

    /// Maximum number of planes.
    pub fn capacity(&self) -> usize {
        self.planes.len()
    }

    /// The planes, where there are any.
    pub fn planes(&self) -> impl Iterator<Item = &Plane> {
        self.planes.iter().flatten()
    }

    /// The plane of the window about a point in the camera's frame.
    pub fn plane_at(&self, point: &Vector3<f64>) -> Option<&Plane> {
        let at = self.camera.project(point);
        let (column, row) = (
            (at.x + 0.5) / self.block as f64,
            (at.y + 0.5) / self.block as f64,
        );
        // False for NaN as well.
        let inside = point.z > 0.0
            && column >= 0.0
            && row >= 0.0
            && column < self.blocks.0 as f64
            && row < self.blocks.1 as f64;
        let at = || row as usize * self.blocks.0 + column as usize;
        self.planes.get(inside.then(at)?)?.as_ref()
    }

    /// Fits planes to an image in metres, with a value for each pixel; what is not above zero or not finite was not
    /// measured.
    pub fn fit(&mut self, metres: &[f32]) {
        self.sum(metres);
        for radius in 0..=MAX_RADIUS {
            let variance = self.fit_windows(radius);
            let is_dense = 2 * self.planes().count() > self.capacity();
            if is_dense && (radius > 0 || variance < FINE.powi(2)) {
                return;
            }
        }
    }

    /// The limits of depth, widened to what was measured beyond them: there, no pixels are missing.
    fn range_of(&self, metres: &[f32]) -> (f64, f64) {
        let limits = (self.limits.min as f32, self.limits.max as f32);
        let (near, far) = metres.iter().fold(limits, |(near, far), &z| {
            let is_measured = z > 0.0 && z < f32::INFINITY;
            let (nearer, farther) = (near.min(z), far.max(z));
            (
                if is_measured { nearer } else { near },
                if is_measured { farther } else { far },
            )
        });
        (near.into(), far.into())
    }

    /// Sums over the pixels of every block.
    fn sum(&mut self, metres: &[f32]) {
        self.range = self.range_of(metres);
        let (block, [sums, _]) = (self.block, &mut self.sums);
        let lines = metres.chunks_exact(self.width * block);
        let lines = lines.zip(sums.chunks_exact_mut(self.blocks.0));
        for (line, (pixels, sums)) in lines.enumerate() {
            self.columns.sum(pixels);
            for (column, sums) in sums.iter_mut().enumerate() {
                let left = column * block;
                let columns = (left, left + block);
                *sums = self.columns.block(columns, line * block, &self.camera);
            }
        }
    }

    /// Fits planes to windows of so many blocks on each side of the middle one. Returns the variance of a window's mean
    /// depth, over the depth.
    fn fit_windows(&mut self, radius: usize) -> f64 {
        let (across, down) = self.blocks;
        let [blocks, rows] = &mut self.sums;
        let about =
            |at: usize, count: usize| at.saturating_sub(radius)..(at + radius + 1).min(count);
        let lines = blocks
            .chunks_exact(across)
            .zip(rows.chunks_exact_mut(across));
        for (blocks, rows) in lines {
            for (column, sums) in rows.iter_mut().enumerate() {
                let window = blocks.get(about(column, across)).unwrap_or_default();
                *sums = window
                    .iter()
                    .fold(Sums::default(), |sum, block| sum + *block);
            }
        }
        let side = (self.block * (2 * radius + 1)) as f64;
        self.sorted.clear();
        let mut pixels = 0.0;
        for (at, plane) in self.planes.iter_mut().enumerate() {
            let (columns, lines) = (about(at % across, across), about(at / across, down));
            let window = (lines.clone()).filter_map(|row| rows.get(row * across + at % across));
            let window = window.fold(Sums::default(), |sum, row| sum + *row);
            let within = lines.filter_map(|row| blocks.get(row * across..)?.get(columns.clone()));
            *plane = plane_of(&window, side, &self.camera)
                .filter(|(plane, inverse)| inverse.fits(plane.variance, within.flatten()))
                .map(|(plane, _)| plane);
            if let Some(plane) = plane {
                self.sorted.push(plane.variance);
                pixels += window.n;
            }
        }
        let (count, middle) = (self.sorted.len(), self.sorted.len() / 2);
        if count == 0 {
            return 0.0;
        }
        let (_, median, _) = self.sorted.select_nth_unstable_by(middle, f64::total_cmp);
        let max = ROUGH * *median + RELIEF.powi(2);
        let far = TRUNCATED * median.sqrt();
        let (nearest, farthest) = self.range;
        let limits = (nearest / (1.0 - far).max(0.0), farthest / (1.0 + far));
        for plane in &mut self.planes {
            *plane = plane.filter(|plane| {
                let depth = plane.point.z;
                plane.variance <= max && limits.0 <= depth && depth <= limits.1
            });
        }
        *median * count as f64 / pixels
    }
}

/// The plane of a window of this side, in space and in the image; `None` if too little of it was measured.
fn plane_of(window: &Sums, side: f64, camera: &Intrinsics) -> Option<(Plane, InverseDepth)> {
    if window.n < MIN_PIXELS {
        return None;
    }
    // About the mean weighted by z, where the plane has the mean of z.
    let mean = window.zx / window.z;
    let moments = window.zxx - mean * mean.transpose() * window.z;
    let (spread, least) = (moments / window.z, MIN_SPREAD * side * side);
    let correlated = spread.m12 * spread.m12 > MAX_CORRELATION * spread.m11 * spread.m22;
    if spread.m11 < least || spread.m22 < least || correlated {
        return None;
    }
    let right = window.x - mean * window.n;
    let inverse_moments = moments.try_inverse()?;
    let slope = inverse_moments * right;
    let inverse = window.n / window.z;
    let squares = window.inverse - inverse * window.n - slope.dot(&right);
    let freedom = (window.n - 3.0) / window.n;
    let variance = squares.max(0.0) / window.inverse / freedom;
    let ray = camera.ray(mean.x + camera.cx, mean.y + camera.cy);
    // In the camera's frame `n · P = 1`; errors of z, over z, of this variance give M⁻¹ σ²/z̄ for the slopes.
    let offset = inverse - slope.dot(&mean);
    let n = Vector3::new(slope.x * camera.fx, slope.y * camera.fy, offset);
    let length = n.norm();
    let normal = n / length;
    let by_slope = Matrix3x2::new(camera.fx, 0.0, 0.0, camera.fy, -mean.x, -mean.y) / length;
    let turned = (Matrix3::identity() - normal * normal.transpose()) * by_slope;
    let plane = Plane {
        point: ray / inverse,
        normal,
        distance: 1.0 / length,
        tilt: turned * inverse_moments * turned.transpose() * (variance * inverse),
        variance,
    };
    let is_finite = plane.variance.is_finite();
    is_finite.then_some((plane, InverseDepth { offset, slope }))
}

#[cfg(test)]
mod tests;
