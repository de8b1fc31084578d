//! The grid of a finished map.

use super::{FloorPose, GlobalGrid, GridOptions, LocalGrid, OccupancyMap, floor};
use crate::geometry::Sim3;
use crate::map::{KeyframeRecord, MapSnapshot};
use nalgebra::{Isometry3, Vector3};

/// How the camera stands above the floor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Upright {
    /// On a robot whose frame has z up and the floor at z = 0.
    Robot {
        base_from_camera: Isometry3<f64>,
        /// SLAM's world in the map frame.
        map_from_world: Isometry3<f64>,
    },
    /// Above a floor at z = 0 of the level frame.
    Level { level_from_world: Isometry3<f64> },
}

impl Upright {
    /// Where a keyframe's local grid lies, and the camera in its upright frame.
    pub fn of(&self, world_from_camera: &Sim3) -> (FloorPose, Isometry3<f64>) {
        let camera = world_from_camera.rigid();
        match self {
            Self::Robot {
                base_from_camera,
                map_from_world,
            } => {
                let map_from_base = map_from_world * camera * base_from_camera.inverse();
                let place = FloorPose::of_robot(&map_from_base, world_from_camera.scale);
                (place, *base_from_camera)
            }
            Self::Level { level_from_world } => {
                FloorPose::below_camera(&(level_from_world * camera), world_from_camera.scale)
            }
        }
    }

    /// Finds the floor of a submap; the second value is whether a plane was found. `None` without
    /// points.
    pub fn find(
        snapshot: &MapSnapshot,
        submap: u32,
        options: &GridOptions,
    ) -> Option<(Self, bool)> {
        Self::find_below(snapshot, submap, None, options)
    }

    /// Like [`Upright::find`], with up in the world, if an accelerometer measured it.
    pub fn find_below(
        snapshot: &MapSnapshot,
        submap: u32,
        up: Option<&Vector3<f64>>,
        options: &GridOptions,
    ) -> Option<(Self, bool)> {
        let intrinsics = snapshot.intrinsics.as_ref();
        let own: Vec<&KeyframeRecord> = usable(snapshot, submap).collect();
        let found = floor::find(&own, intrinsics, options.min_confidence, up)?;
        let level_from_world = found.level_from_world;
        Some((Self::Level { level_from_world }, found.found))
    }
}

/// The keyframes of a submap.
fn usable(snapshot: &MapSnapshot, submap: u32) -> impl Iterator<Item = &KeyframeRecord> {
    let usable = move |k: &&KeyframeRecord| k.submap == submap && k.world_from_camera.is_finite();
    snapshot.keyframes.iter().filter(usable)
}

/// The grid of a submap; the second value is whether it is cut off at `max_cells`.
pub fn of_snapshot(
    snapshot: &MapSnapshot,
    submap: u32,
    upright: &Upright,
    options: &GridOptions,
) -> (OccupancyMap, bool) {
    let mut grid = GlobalGrid::new(options);
    for keyframe in usable(snapshot, submap) {
        let (place, upright_from_camera) = upright.of(&keyframe.world_from_camera);
        let intrinsics = snapshot.intrinsics.as_ref();
        let view = keyframe.view();
        if view.points.is_empty() {
            continue;
        }
        let scale = keyframe.world_from_camera.scale;
        let local = LocalGrid::trace((view, scale), intrinsics, &upright_from_camera, options);
        grid.insert(keyframe.id, local, 0, place);
    }
    while !grid.update() {}
    (grid.map(), grid.is_full())
}
