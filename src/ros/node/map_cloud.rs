//! The map as a single cloud, assembled from keyframes; shared by the node and by recordings.

use super::cloud::Point;
use crate::geometry::{Intrinsics, Sim3};
use crate::map::cloud::{keyframe_points, voxel_filter};
use crate::map::{CloudPoint, KeyframeRecord, MapSnapshot};
use crate::slam::PoseTable;
use nalgebra::{Isometry3, Point3};
use std::collections::HashMap;

/// Cached points of a keyframe.
struct Cached {
    /// Voxel-filtered points in the keyframe's camera frame, before scale.
    points: Vec<CloudPoint>,
    /// Voxel edge in metres.
    voxel: f64,
    /// Whether tracking may still change the keyframe.
    open: bool,
}

/// Cache of the keyframes' points, so that each keyframe is read once.
#[derive(Default)]
pub struct MapCloud {
    cached: HashMap<u32, Cached>,
}

impl MapCloud {
    /// Clears the cache for a new map.
    pub fn clear(&mut self) {
        self.cached.clear();
    }

    /// The keyframes of `submap` that must be read before [`MapCloud::points`] is complete.
    pub fn missing(&self, table: &PoseTable, submap: u32, voxel: f64) -> Vec<u32> {
        let lacking = |(id, of): &(&u32, &u32)| {
            **of == submap
                && self
                    .cached
                    .get(id)
                    .is_none_or(|c| c.open || c.voxel != voxel)
        };
        let all = table.ids.iter().zip(&table.submaps);
        all.filter(lacking).map(|(id, _)| *id).collect()
    }

    /// Drops the points of keyframes that the map no longer holds.
    pub fn forget_removed(&mut self, table: &PoseTable) {
        self.cached.retain(|id, _| table.index_of(*id).is_some());
    }

    /// Adds keyframes, with their points above `min_confidence`. Tracking may still change those
    /// from `newest` on.
    pub fn take(&mut self, map: MapSnapshot, newest: u32, voxel: f64, min_confidence: f32) {
        let own = Sim3::identity();
        for keyframe in map.keyframes {
            let scale = keyframe.world_from_camera.scale;
            let intrinsics = map.intrinsics.as_ref();
            let all = keyframe_points(keyframe.view(), &own, intrinsics, min_confidence);
            let cached = Cached {
                points: filtered(all, voxel / scale),
                voxel,
                open: keyframe.id >= newest,
            };
            self.cached.insert(keyframe.id, cached);
        }
    }

    /// The points of `submap` in the map frame; each voxel keeps its most confident point.
    pub fn points(
        &self,
        table: &PoseTable,
        submap: u32,
        map_from_world: &Isometry3<f64>,
        voxel: f64,
    ) -> Vec<Point> {
        let all = table.ids.iter().zip(&table.submaps).zip(&table.poses);
        let mut points = Vec::new();
        for ((&id, _), pose) in all.filter(|((_, of), _)| **of == submap) {
            let Some(cached) = self.cached.get(&id) else {
                continue;
            };
            points.extend(cached.points.iter().map(|p| (in_world(p, pose), id)));
        }
        merged(points, voxel)
            .into_iter()
            .map(|(point, keyframe)| Point {
                point: moved(&point, map_from_world),
                keyframe,
            })
            .collect()
    }
}

/// The cloud of a single keyframe in the map frame, voxel-filtered, with points above
/// `min_confidence`.
pub fn of_keyframe(
    keyframe: &KeyframeRecord,
    intrinsics: Option<&Intrinsics>,
    map_from_world: &Isometry3<f64>,
    voxel: f64,
    min_confidence: f32,
) -> Vec<Point> {
    let pose = &keyframe.world_from_camera;
    let all = keyframe_points(keyframe.view(), pose, intrinsics, min_confidence);
    let placed = |point: CloudPoint| Point {
        point: moved(&point, map_from_world),
        keyframe: keyframe.id,
    };
    filtered(all, voxel).into_iter().map(placed).collect()
}

fn filtered(points: impl Iterator<Item = CloudPoint>, voxel: f64) -> Vec<CloudPoint> {
    match voxel > 0.0 && voxel.is_finite() {
        true => voxel_filter(points, voxel as f32),
        false => points.collect(),
    }
}

fn in_world(point: &CloudPoint, world_from_camera: &Sim3) -> CloudPoint {
    let p = nalgebra::Vector3::from(point.position.map(f64::from));
    let p = world_from_camera.transform(&p);
    CloudPoint {
        position: [p.x as f32, p.y as f32, p.z as f32],
        ..*point
    }
}

fn moved(point: &CloudPoint, by: &Isometry3<f64>) -> CloudPoint {
    let p = by * Point3::from(point.position.map(f64::from));
    CloudPoint {
        position: [p.x as f32, p.y as f32, p.z as f32],
        ..*point
    }
}

/// Voxel filter over points of several keyframes: each voxel keeps its most confident point.
fn merged(points: Vec<(CloudPoint, u32)>, voxel: f64) -> Vec<(CloudPoint, u32)> {
    if voxel <= 0.0 || voxel.is_nan() {
        return points;
    }
    let mut kept: HashMap<[i64; 3], (CloudPoint, u32), rustc_hash::FxBuildHasher> =
        HashMap::default();
    for (point, id) in points {
        let key = point
            .position
            .map(|v| (f64::from(v) / voxel).floor() as i64);
        let entry = kept.entry(key).or_insert((point, id));
        if point.confidence > entry.0.confidence {
            *entry = (point, id);
        }
    }
    let mut kept: Vec<_> = kept.into_values().collect();
    // Sorted by keyframe, so that the same map yields the same messages.
    kept.sort_by(|a, b| {
        (a.1, a.0.position)
            .partial_cmp(&(b.1, b.0.position))
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(x: f32, confidence: f32) -> CloudPoint {
        CloudPoint {
            position: [x, 0.0, 0.0],
            color: [0; 3],
            confidence,
        }
    }

    #[test]
    fn a_voxel_seen_by_two_keyframes_keeps_the_better_point() {
        let all = vec![
            (point(0.01, 2.0), 0),
            (point(0.02, 3.0), 1),
            (point(0.2, 1.0), 0),
        ];
        let kept = merged(all.clone(), 0.1);
        assert_eq!(kept, [(point(0.2, 1.0), 0), (point(0.02, 3.0), 1)]);
        assert_eq!(merged(all.clone(), 0.0), all);
    }

    #[test]
    fn points_follow_their_keyframe_s_pose_and_scale() {
        let pose = Sim3 {
            translation: nalgebra::Vector3::new(1.0, 2.0, 3.0),
            scale: 2.0,
            ..Sim3::identity()
        };
        assert_eq!(in_world(&point(0.5, 1.0), &pose).position, [2.0, 2.0, 3.0]);
        let by = Isometry3::translation(0.0, 0.0, 1.0);
        assert_eq!(moved(&point(0.5, 1.0), &by).position, [0.5, 0.0, 1.0]);
    }
}
