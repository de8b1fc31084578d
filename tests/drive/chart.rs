//! The occupancy grid compared with the plan.

use crate::errors::Errors;
use mast3r_slam::geometry::Intrinsics;
use mast3r_slam::wire::messages::nav::OccupancyGrid;
use nalgebra::{Isometry3, Point3};
use std::collections::HashSet;
use std::fmt;
use testkit::flat::{Flat, GRID_HEIGHTS, ROBOT_HEIGHTS, View};

/// Metres by which a cell may be wrong.
const TOLERANCE: f64 = 0.15;
/// Side of the squares in which the floor is counted, in metres.
const SQUARE: f64 = 0.1;
/// Distance up to which the grid takes free space from an image, in metres (`config/nav2/slam.yaml`).
const RANGE: f64 = 5.0;

/// Squares of the floor.
pub type Floor = HashSet<[i64; 2]>;

fn square(x: f64, y: f64) -> [i64; 2] {
    [x, y].map(|v| (v / SQUARE).floor() as i64)
}

/// Adds the squares of the floor that an image shows.
pub fn see(floor: &mut Floor, view: &View, camera: &Intrinsics, pose: &Isometry3<f64>) {
    let width = view.image.width;
    for (index, &depth) in view.depth.iter().enumerate() {
        let z = f64::from(depth);
        let ray = camera.ray((index % width) as f64, (index / width) as f64);
        let point = pose * Point3::from(ray * z);
        if z < RANGE && point.z < 0.01 {
            floor.insert(square(point.x, point.y));
        }
    }
}

/// What is right and wrong in a grid.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Occupied cells.
    pub occupied: usize,
    /// Occupied cells that are far from everything solid, in metres of the world.
    pub astray: Vec<[f64; 2]>,
    /// Free cells.
    pub free: usize,
    /// Free cells that are deep inside of something that the robot would touch, in metres of the world.
    pub inside: Vec<[f64; 2]>,
    /// Squares of the floor that the camera saw.
    pub floor: usize,
    /// Those of them that are free in the grid.
    pub covered: usize,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} occupied cells, {} of them astray: {:.2?}; {} free cells, {} of them inside of something: {:.2?}; {} of {} \
             squares of the floor that was seen are free",
            self.occupied,
            self.astray.len(),
            self.astray.iter().take(8).collect::<Vec<_>>(),
            self.free,
            self.inside.len(),
            self.inside.iter().take(8).collect::<Vec<_>>(),
            self.covered,
            self.floor
        )
    }
}

/// Compares each cell of a grid with the plan.
pub fn judge(grid: &OccupancyGrid, errors: &Errors, flat: &Flat, floor: &Floor) -> Verdict {
    let origin = grid.info.origin.isometry().expect("an origin");
    let world_from_grid = errors.world_from_map() * origin;
    let resolution = f64::from(grid.info.resolution);
    let mut verdict = Verdict {
        floor: floor.len(),
        ..Verdict::default()
    };
    let mut free = Floor::new();
    for (index, &value) in grid.data.iter().enumerate() {
        let width = grid.info.width as usize;
        let cell = [index % width, index / width].map(|k| (k as f64 + 0.5) * resolution);
        let at = world_from_grid * Point3::new(cell[0], cell[1], 0.0);
        match value {
            0 => {
                verdict.free += 1;
                free.insert(square(at.x, at.y));
                if flat.is_deep_inside([at.x, at.y], TOLERANCE, ROBOT_HEIGHTS) {
                    verdict.inside.push([at.x, at.y]);
                }
            }
            50..=100 => {
                verdict.occupied += 1;
                let far = flat.distance([at.x, at.y], GRID_HEIGHTS) > TOLERANCE;
                if far {
                    verdict.astray.push([at.x, at.y]);
                }
            }
            _ => {}
        }
    }
    verdict.covered = floor.intersection(&free).count();
    verdict
}
