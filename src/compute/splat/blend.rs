//! Blending of projected rows into an image, front to back, and its derivative (docs/algorithm.md, Gaussian map).

use super::camera::Camera;
use super::constants::{BACKGROUND, MAX_ALPHA, MIN_ALPHA, MIN_TRANSMITTANCE, TILE};
use super::projection::{Projected, ProjectedGradient};
use nalgebra::{Vector2, Vector3};
use rayon::prelude::*;

/// The rows that a camera sees, by tile and depth.
#[derive(Debug, Clone, Default)]
pub struct Frame {
    width: usize,
    height: usize,
    /// Visible rows, ascending.
    pub rows: Vec<u32>,
    /// Their projections.
    pub projected: Vec<Projected>,
    /// Start of each tile's part of `items`, and the end of the last one.
    offsets: Vec<usize>,
    /// Indices into `rows`, front to back within each tile.
    items: Vec<u32>,
}

/// An image in double precision; see [`Rendering`](super::camera::Rendering).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Image {
    pub color: Vec<f64>,
    pub depth: Vec<f64>,
    pub silhouette: Vec<f64>,
}

/// What one row adds to a pixel.
struct Step {
    item: u32,
    /// exp(−½ δᵀ K δ).
    fall: f64,
    alpha: f64,
    /// Transmittance in front of the row.
    transmittance: f64,
    /// Mean minus pixel.
    delta: Vector2<f64>,
}

impl Frame {
    /// Sorts the visible rows into tiles. `rows` must be ascending.
    pub fn new(camera: &Camera, rows: Vec<u32>, projected: Vec<Projected>) -> Self {
        let mut order: Vec<u32> = (0..rows.len() as u32).collect();
        // Positive floats sort like their bits. Rows of one depth keep their order.
        order.par_sort_by_key(|&i| (projected[i as usize].depth as f32).to_bits());
        let columns = camera.width.div_ceil(TILE as usize);
        let tiles = columns * camera.height.div_ceil(TILE as usize);
        let reached = |p: &Projected| {
            let [x0, x1, y0, y1] = p.tiles.map(|t| t as usize);
            (y0..=y1).flat_map(move |y| (x0..=x1).map(move |x| y * columns + x))
        };
        let mut offsets = vec![0; tiles + 1];
        for p in &projected {
            reached(p).for_each(|tile| offsets[tile + 1] += 1);
        }
        for tile in 0..tiles {
            offsets[tile + 1] += offsets[tile];
        }
        let mut next = offsets.clone();
        let mut items = vec![0; offsets[tiles]];
        for &i in &order {
            for tile in reached(&projected[i as usize]) {
                items[next[tile]] = i;
                next[tile] += 1;
            }
        }
        Self {
            width: camera.width,
            height: camera.height,
            rows,
            projected,
            offsets,
            items,
        }
    }

    /// Number of pairs of a row and a tile.
    pub fn intersections(&self) -> usize {
        self.items.len()
    }

    fn tiles(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Pixels of a tile, row by row.
    fn pixels(&self, tile: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let side = TILE as usize;
        let columns = self.width.div_ceil(side);
        let (x0, y0) = (tile % columns * side, tile / columns * side);
        let (x1, y1) = ((x0 + side).min(self.width), (y0 + side).min(self.height));
        (y0..y1).flat_map(move |y| (x0..x1).map(move |x| (x, y)))
    }

    /// What the rows of a tile add to a pixel, front to back. Returns the transmittance behind them.
    fn walk(&self, tile: usize, x: usize, y: usize, mut add: impl FnMut(usize, Step)) -> f64 {
        let mut transmittance = 1.0;
        let (start, end) = (self.offsets[tile], self.offsets[tile + 1]);
        for position in start..end {
            let item = self.items[position];
            let p = &self.projected[item as usize];
            let delta = Vector2::new(p.pixel.x - x as f64, p.pixel.y - y as f64);
            let [a, b, c] = p.conic;
            let power =
                -0.5 * (a * delta.x * delta.x + c * delta.y * delta.y) - b * delta.x * delta.y;
            let fall = power.min(0.0).exp();
            let alpha = (p.opacity * fall).min(f64::from(MAX_ALPHA));
            if alpha < f64::from(MIN_ALPHA) {
                continue;
            }
            let behind = transmittance * (1.0 - alpha);
            if behind < f64::from(MIN_TRANSMITTANCE) {
                break;
            }
            let step = Step {
                item,
                fall,
                alpha,
                transmittance,
                delta,
            };
            add(position, step);
            transmittance = behind;
        }
        transmittance
    }

    /// Renders into `dst`.
    pub fn forward(&self, dst: &mut Image) {
        let n = self.width * self.height;
        dst.color.resize(3 * n, 0.0);
        dst.depth.resize(n, 0.0);
        dst.silhouette.resize(n, 0.0);
        let background = Vector3::from(BACKGROUND.map(f64::from));
        let tiles: Vec<Vec<(Vector3<f64>, f64, f64)>> = (0..self.tiles())
            .into_par_iter()
            .map(|tile| {
                let one = |(x, y)| {
                    let (mut color, mut depth) = (Vector3::zeros(), 0.0);
                    let rest = self.walk(tile, x, y, |_, step| {
                        let p = &self.projected[step.item as usize];
                        let weight = step.alpha * step.transmittance;
                        color += p.color * weight;
                        depth += p.depth * weight;
                    });
                    (color + background * rest, depth, 1.0 - rest)
                };
                self.pixels(tile).map(one).collect()
            })
            .collect();
        for (tile, values) in tiles.iter().enumerate() {
            for ((x, y), (color, depth, silhouette)) in self.pixels(tile).zip(values) {
                let pixel = y * self.width + x;
                dst.color[3 * pixel..3 * pixel + 3].copy_from_slice(color.as_slice());
                dst.depth[pixel] = *depth;
                dst.silhouette[pixel] = *silhouette;
            }
        }
    }

    /// Gradients by the projected rows, in the order of `rows`, from those by the image.
    pub fn backward(&self, by: &Image) -> Vec<ProjectedGradient> {
        let background = Vector3::from(BACKGROUND.map(f64::from));
        let tiles: Vec<Vec<ProjectedGradient>> = (0..self.tiles())
            .into_par_iter()
            .map(|tile| {
                let start = self.offsets[tile];
                let count = self.offsets[tile + 1] - start;
                let mut sums = vec![ProjectedGradient::default(); count];
                let mut steps: Vec<(usize, Step)> = Vec::new();
                for (x, y) in self.pixels(tile) {
                    steps.clear();
                    let rest = self.walk(tile, x, y, |position, step| {
                        steps.push((position - start, step));
                    });
                    let pixel = y * self.width + x;
                    let by_color = Vector3::from_column_slice(&by.color[3 * pixel..3 * pixel + 3]);
                    let (by_depth, by_silhouette) = (by.depth[pixel], by.silhouette[pixel]);
                    // Colour and depth of what is behind the row.
                    let (mut color, mut depth) = (background, 0.0);
                    for (index, step) in steps.iter().rev() {
                        let p = &self.projected[step.item as usize];
                        let (alpha, front) = (step.alpha, step.transmittance);
                        let sum = &mut sums[*index];
                        sum.color += by_color * (alpha * front);
                        sum.depth += by_depth * (alpha * front);
                        let by_alpha = front
                            * ((p.color - color).dot(&by_color) + (p.depth - depth) * by_depth)
                            + by_silhouette * rest / (1.0 - alpha);
                        color = p.color * alpha + color * (1.0 - alpha);
                        depth = p.depth * alpha + depth * (1.0 - alpha);
                        if p.opacity * step.fall > f64::from(MAX_ALPHA) {
                            continue;
                        }
                        sum.opacity += step.fall * by_alpha;
                        let by_power = p.opacity * by_alpha * step.fall;
                        let [a, b, c] = p.conic;
                        let d = step.delta;
                        sum.pixel -= Vector2::new(a * d.x + b * d.y, b * d.x + c * d.y) * by_power;
                        sum.conic[0] -= 0.5 * by_power * d.x * d.x;
                        sum.conic[1] -= 0.5 * by_power * d.x * d.y;
                        sum.conic[2] -= 0.5 * by_power * d.y * d.y;
                    }
                }
                sums
            })
            .collect();
        let mut sums = vec![ProjectedGradient::default(); self.rows.len()];
        // In the order of tiles, so that the sums do not depend on threads.
        for (&item, value) in self.items.iter().zip(tiles.iter().flatten()) {
            sums[item as usize] += *value;
        }
        sums
    }
}
