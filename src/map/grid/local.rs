//! The part of the floor that one keyframe shows.

use super::overhang::Obstacles;
use super::polar::PolarSweep;
use super::{FloorPose, GridOptions};
use crate::geometry::Intrinsics;
use crate::map::KeyframeView;
use crate::map::cloud::camera_points;
use nalgebra::{Isometry3, Vector2, Vector3};
use rustc_hash::FxHashMap;

/// A ray clears only what it passes at most this far above `min_height`: what is lower than the ray may
/// be out of the camera's view.
const CLEARANCE: f64 = 0.3;
/// An obstacle whose lowest point is at least this far above `min_height` may hang, as a table's top does: rays below it
/// say nothing about it.
const HANGING: f64 = 0.2;
/// Points at most this far below `min_height` are the floor; lower ones are a step down, or an error.
const FLOOR_DEPTH: f64 = 0.25;
/// Width in cells on which an obstacle hangs over rays: the means of the points in neighbouring cells are up to two
/// cells apart, and no ray passes between them.
const OVERHANG_WIDTH: f64 = 2.0;
/// Points in a cell that make an obstacle: a single one may be an error of the depth.
const MIN_POINTS: u32 = 2;

/// Free cells and obstacles around one keyframe, in the upright frame below it.
#[derive(Debug, Clone, PartialEq)]
pub struct LocalGrid {
    /// Scale at which the points were measured, and its number of steps.
    scale: f64,
    steps: i64,
    resolution: f64,
    /// Lower corner of the cells, as a cell's index.
    corner: [i32; 2],
    columns: usize,
    rows: usize,
    /// Bits, row after row: cells that rays have cleared.
    free: Vec<u64>,
    /// The same for rays that passed at the height of a hanging obstacle.
    through: Vec<u64>,
    obstacles: Vec<Obstacle>,
}

/// Points in one cell.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Obstacle {
    /// Their mean position in metres.
    at: [f32; 2],
    hangs: bool,
}

/// What rays show of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cleared {
    /// No ray cleared it.
    Not,
    /// Only rays below a hanging obstacle did.
    Below,
    /// One at the height of a hanging obstacle did.
    Through,
}

/// Points that fell into a cell.
struct Pile {
    sum: Vector2<f64>,
    points: u32,
    /// Slope of the steepest ray to one of them.
    slope: f64,
    /// Height of the lowest one, in metres.
    lowest: f64,
}

impl Default for Pile {
    fn default() -> Self {
        Self {
            sum: Vector2::zeros(),
            points: 0,
            slope: f64::NEG_INFINITY,
            lowest: f64::INFINITY,
        }
    }
}

impl Pile {
    fn add(&mut self, point: &Vector2<f64>, ray: &Ray) {
        self.sum += point;
        self.points += 1;
        self.slope = self.slope.max(ray.slope());
        self.lowest = self.lowest.min(ray.height);
    }

    fn mean(&self) -> Vector2<f64> {
        self.sum / f64::from(self.points)
    }
}

impl LocalGrid {
    /// Traces the rays of a keyframe's points at its scale, rounded to whole steps. `upright_from_camera` is the camera
    /// in a frame with z up and the floor at z = 0, in metres.
    pub fn trace(
        (view, scale): (KeyframeView, f64),
        intrinsics: Option<&Intrinsics>,
        upright_from_camera: &Isometry3<f64>,
        options: &GridOptions,
    ) -> Self {
        let steps = scale_steps(scale, options);
        let scale = (steps as f64 * scale_step(options)).exp();
        let camera = upright_from_camera.translation.vector;
        let turn = upright_from_camera.rotation.to_rotation_matrix();
        let metric = turn.matrix() * scale;
        let mut sweep = PolarSweep::new(options.max_range, options.resolution);
        let mut through = sweep.clone();
        let mut piles: FxHashMap<[i32; 2], Pile> = FxHashMap::default();
        let mut cleared = Vec::new();
        for (_, p, _) in camera_points(view, intrinsics, options.min_confidence) {
            if p.z <= 0.0 {
                continue;
            }
            let ray = Ray::new(&camera, &(metric * p));
            if ray.is_obstacle(options) {
                let end = camera.xy() + ray.flat;
                let cell = cell_of(&end, options.resolution);
                piles.entry(cell).or_default().add(&end, &ray);
            }
            if let Some(all) = ray.clears(options) {
                let direction = sweep.direction(&ray.flat);
                let high = ray.clears_hanging(options);
                cleared.push((direction, ray.slope(), all, high));
            }
        }
        piles.retain(|_, pile| pile.points >= MIN_POINTS);
        let mut obstacles = Obstacles::new(sweep.directions());
        for pile in piles.values() {
            let offset = pile.mean() - camera.xy();
            let distance = offset.norm();
            for direction in sweep.directions_of(&offset, OVERHANG_WIDTH * options.resolution) {
                obstacles.add(direction, pile.slope, distance);
            }
        }
        let above = obstacles.overhangs();
        for (direction, slope, (from, to), high) in cleared {
            let end = above.nearest(direction, slope);
            sweep.clear(direction, from, to.min(end));
            if let Some((from, to)) = high {
                through.clear(direction, from, to.min(end));
            }
        }
        let sweeps = [&sweep, &through];
        Self::collect((scale, steps), options, &camera.xy(), sweeps, &piles)
    }

    /// Cells from the swept directions; where points are, nothing is free.
    fn collect(
        (scale, steps): (f64, i64),
        options: &GridOptions,
        camera: &Vector2<f64>,
        [sweep, through]: [&PolarSweep; 2],
        piles: &FxHashMap<[i32; 2], Pile>,
    ) -> Self {
        let resolution = options.resolution;
        let reach = Vector2::repeat(options.max_range);
        let corner = cell_of(&(camera - reach), resolution);
        let far = cell_of(&(camera + reach), resolution);
        let side = |k: usize| usize::try_from(far[k] - corner[k] + 1).unwrap_or(0);
        let mut grid = Self {
            scale,
            steps,
            resolution,
            corner,
            columns: side(0),
            rows: side(1),
            free: vec![0; (side(0) * side(1)).div_ceil(64)],
            through: vec![0; (side(0) * side(1)).div_ceil(64)],
            obstacles: Vec::with_capacity(piles.len()),
        };
        for row in 0..grid.rows {
            for column in 0..grid.columns {
                let cell = [corner[0] + column as i32, corner[1] + row as i32];
                let centre = Vector2::new(f64::from(cell[0]) + 0.5, f64::from(cell[1]) + 0.5);
                let offset = centre * resolution - camera;
                if sweep.is_clear(&offset) && !piles.contains_key(&cell) {
                    let bit = row * grid.columns + column;
                    set(&mut grid.free, bit);
                    if through.is_clear(&offset) {
                        set(&mut grid.through, bit);
                    }
                }
            }
        }
        let mut cells: Vec<_> = piles.iter().collect();
        // The map's order is arbitrary.
        cells.sort_unstable_by_key(|(cell, _)| **cell);
        let obstacles = cells.into_iter().map(|(_, pile)| {
            let mean = pile.mean();
            Obstacle {
                at: [mean.x as f32, mean.y as f32],
                hangs: pile.lowest >= options.min_height + HANGING,
            }
        });
        grid.obstacles.extend(obstacles);
        grid
    }

    /// Whether a keyframe of this scale is traced like this.
    pub fn fits(&self, scale: f64, options: &GridOptions) -> bool {
        scale_steps(scale, options) == self.steps
    }

    /// Scale at which the points were measured.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// Metres from the origin within which all of it lies.
    pub fn reach(&self) -> f64 {
        let corner = |k: usize, size: usize| {
            let low = f64::from(self.corner[k]);
            low.abs().max((low + size as f64).abs()) * self.resolution
        };
        corner(0, self.columns).hypot(corner(1, self.rows))
    }

    /// Obstacles at `place`, in metres, and whether they hang.
    pub fn obstacles_at(&self, place: &FloorPose) -> impl Iterator<Item = (Vector2<f64>, bool)> {
        let (turn, at) = (place.turn() * (place.scale / self.scale), place.at);
        let turned = move |o: &Obstacle| {
            let [x, y] = o.at.map(f64::from);
            (turn * Vector2::new(x, y) + at, o.hangs)
        };
        self.obstacles.iter().map(turned)
    }

    /// What rays show of a point, for the grid at `place`.
    pub fn cleared_at(&self, place: &FloorPose) -> impl Fn(&Vector2<f64>) -> Cleared {
        let per_cell = self.scale / (place.scale * self.resolution);
        let (back, at) = (place.turn().transpose() * per_cell, place.at);
        let corner = Vector2::new(f64::from(self.corner[0]), f64::from(self.corner[1]));
        move |point: &Vector2<f64>| {
            let cell = back * (point - at) - corner;
            if cell.x < 0.0 || cell.y < 0.0 {
                return Cleared::Not;
            }
            let (column, row) = (cell.x as usize, cell.y as usize);
            if column >= self.columns || row >= self.rows {
                return Cleared::Not;
            }
            let bit = row * self.columns + column;
            match (is_set(&self.free, bit), is_set(&self.through, bit)) {
                (false, _) => Cleared::Not,
                (true, false) => Cleared::Below,
                (true, true) => Cleared::Through,
            }
        }
    }
}

fn set(bits: &mut [u64], bit: usize) {
    if let Some(word) = bits.get_mut(bit / 64) {
        *word |= 1 << (bit % 64);
    }
}

fn is_set(bits: &[u64], bit: usize) -> bool {
    let word = bits.get(bit / 64);
    word.is_some_and(|word| word >> (bit % 64) & 1 == 1)
}

/// Step of the log scale at which keyframes are traced: heights and ranges are at most half a cell off at
/// `grid.max_range`.
fn scale_step(options: &GridOptions) -> f64 {
    options.resolution / options.max_range
}

fn scale_steps(scale: f64, options: &GridOptions) -> i64 {
    (scale.ln() / scale_step(options)).round() as i64
}

/// A ray from the camera to a point.
struct Ray {
    /// Its horizontal part.
    flat: Vector2<f64>,
    length: f64,
    /// By how much it rises.
    rise: f64,
    /// Heights of its start and its end.
    start: f64,
    height: f64,
}

impl Ray {
    fn new(camera: &Vector3<f64>, ray: &Vector3<f64>) -> Self {
        Self {
            flat: ray.xy(),
            length: ray.xy().norm(),
            rise: ray.z,
            start: camera.z,
            height: camera.z + ray.z,
        }
    }

    /// Metres up for each metre ahead.
    fn slope(&self) -> f64 {
        self.rise / self.length
    }

    /// Whether it ends at an obstacle.
    fn is_obstacle(&self, options: &GridOptions) -> bool {
        let heights = options.min_height..=options.max_height;
        heights.contains(&self.height) && self.length <= options.max_range
    }

    /// Horizontal distances between which it is above the floor and low enough to clear what it passes.
    fn clears(&self, options: &GridOptions) -> Option<(f64, f64)> {
        let low = options.min_height;
        let (from, to) = self.between(low, ceiling(options));
        // Where the floor itself is seen, it is free.
        let to = match (low - FLOOR_DEPTH..low).contains(&self.height) && from <= 1.0 {
            true => 1.0,
            false => to,
        };
        self.distances((from, to), options)
    }

    /// The part of these in which it is as high as an obstacle that hangs.
    fn clears_hanging(&self, options: &GridOptions) -> Option<(f64, f64)> {
        let part = self.between(options.min_height + HANGING, ceiling(options));
        self.distances(part, options)
    }

    /// Where it is between two heights, in parts of the ray, 0 to 1.
    fn between(&self, low: f64, high: f64) -> (f64, f64) {
        let crossing = |z: f64| (z - self.start) / self.rise;
        match self.rise {
            z if z < -1e-9 => (crossing(high).max(0.0), crossing(low).min(1.0)),
            z if z > 1e-9 => (crossing(low).max(0.0), crossing(high).min(1.0)),
            _ if (low..=high).contains(&self.start) => (0.0, 1.0),
            _ => (1.0, 0.0),
        }
    }

    fn distances(&self, (from, to): (f64, f64), options: &GridOptions) -> Option<(f64, f64)> {
        let end = (to * self.length).min(options.max_range);
        (from < to && self.length > 0.0).then_some((from * self.length, end))
    }
}

/// The height up to which rays clear.
fn ceiling(options: &GridOptions) -> f64 {
    options.max_height.min(options.min_height + CLEARANCE)
}

/// The cell that a point lies in; far ones saturate.
pub(super) fn cell_of(point: &Vector2<f64>, resolution: f64) -> [i32; 2] {
    [point.x, point.y].map(|v| (v / resolution).floor() as i32)
}
