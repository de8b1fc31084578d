//! The occupancy grid: what a robot that moves on a floor needs of the map.
//!
//! Each keyframe has a [`LocalGrid`], ray-traced from its points in a frame that stands upright on the floor.
//! The [`GlobalGrid`] is the sum of local grids at their keyframes' poses; it takes a local grid off its old
//! place and adds it at the new one when a pose changes. Counts are integers, and scales and places are rounded,
//! so that the grid depends neither on the order nor on the history of changes: that of a running node is the
//! one that is saved.

mod file;
mod floor;
mod global;
mod local;
mod overhang;
mod polar;
mod snapshot;

pub use file::{GridFiles, files_at, write};
pub use global::{GlobalGrid, Lack, OccupancyMap, Window};
pub use local::{Cleared, LocalGrid};
pub use snapshot::{Upright, of_snapshot};

use crate::config::GridConfig;
use nalgebra::{Isometry3, Matrix2, Rotation2, UnitQuaternion, Vector2, Vector3};

/// Cells of a local grid on either side of its keyframe: a larger `grid.max_range` is cut, so that a
/// small cell cannot take memory without end.
const MAX_RANGE_CELLS: f64 = 1000.0;

/// What becomes of a point by its height and distance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GridOptions {
    /// Edge of a cell in metres.
    pub resolution: f64,
    /// Points from here on are obstacles, metres above the floor.
    pub min_height: f64,
    /// Points above this are ignored.
    pub max_height: f64,
    /// Points beyond this horizontal distance from their camera are ignored.
    pub max_range: f64,
    /// Maximum number of cells of the global grid.
    pub max_cells: usize,
    /// Points must have a higher confidence than this.
    pub min_confidence: f32,
}

impl GridOptions {
    /// The options of a configuration, with ranges that memory can hold.
    pub fn new(config: &GridConfig, min_confidence: f32) -> Self {
        let resolution = config.resolution.max(1e-3);
        Self {
            resolution,
            min_height: config.min_height,
            max_height: config.max_height.max(config.min_height),
            max_range: config.max_range.min(MAX_RANGE_CELLS * resolution),
            max_cells: config.max_cells,
            min_confidence,
        }
    }
}

/// A place on the floor: where a local grid's origin lies, and its heading.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FloorPose {
    /// Metres.
    pub at: Vector2<f64>,
    /// Radians, counterclockwise.
    pub heading: f64,
    /// Scale of the keyframe's points.
    pub scale: f64,
}

impl FloorPose {
    fn turn(&self) -> Matrix2<f64> {
        Rotation2::new(self.heading).into_inner()
    }

    /// The place of a robot's frame (z up) in the map, which may be slightly tilted.
    pub fn of_robot(map_from_base: &Isometry3<f64>, scale: f64) -> Self {
        let ahead = map_from_base.rotation * Vector3::x();
        Self {
            at: map_from_base.translation.vector.xy(),
            heading: ahead.y.atan2(ahead.x),
            scale,
        }
    }

    /// The place below a camera, and the camera in the upright frame there, from the camera's pose in a
    /// frame with z up and the floor at z = 0.
    pub fn below_camera(level_from_camera: &Isometry3<f64>, scale: f64) -> (Self, Isometry3<f64>) {
        let (forward, right) = (
            level_from_camera.rotation * Vector3::z(),
            level_from_camera.rotation * Vector3::x(),
        );
        // A camera that looks straight down has no heading of its own.
        let heading = match forward.xy().norm() > 0.1 {
            true => forward.y.atan2(forward.x),
            false => right.x.atan2(-right.y),
        };
        let at = level_from_camera.translation.vector.xy();
        let floor = Isometry3::from_parts(
            Vector3::new(at.x, at.y, 0.0).into(),
            UnitQuaternion::from_axis_angle(&Vector3::z_axis(), heading),
        );
        let here = Self { at, heading, scale };
        (here, floor.inverse() * level_from_camera)
    }
}
