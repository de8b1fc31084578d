//! The dense coloured point cloud used by the PLY file, COLMAP and the report.

use super::{KeyframeView, MapSnapshot};
use crate::files::export::ExportError;
use crate::geometry::{Intrinsics, Sim3};
use nalgebra::Vector3;
use rustc_hash::FxHashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// Selection of map points for the cloud.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CloudOptions {
    /// Points must have a higher average confidence than this.
    pub min_confidence: f32,
    /// Voxel edge in metres; the most confident point of each voxel is kept. A value of 0 (or any
    /// value that is not a positive number) keeps every point.
    pub voxel_size: f32,
}

impl Default for CloudOptions {
    /// The reference's choice: confidence above 1.5, every point.
    fn default() -> Self {
        Self {
            min_confidence: 1.5,
            voxel_size: 0.0,
        }
    }
}

/// A point of the cloud.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CloudPoint {
    /// Position in the world frame, in metres.
    pub position: [f32; 3],
    /// R, G, B of the point's pixel.
    pub color: [u8; 3],
    pub confidence: f32,
}

/// Rejects a snapshot in which a keyframe's arrays do not match its image size.
pub fn check(snapshot: &MapSnapshot) -> Result<(), ExportError> {
    for k in &snapshot.keyframes {
        let view = k.view();
        let (width, height) = (view.image.width, view.image.height);
        let n = width * height;
        for (what, expected, found) in [
            ("image bytes", 3 * n, view.image.data.len()),
            ("point coordinates", 3 * n, view.points.len()),
            ("confidences", n, view.confidence.len()),
        ] {
            if found != expected {
                return Err(ExportError::Keyframe {
                    id: k.id,
                    what,
                    width,
                    height,
                    expected,
                    found,
                });
            }
        }
    }
    Ok(())
}

/// A keyframe's points in its camera frame (before scale) with pixel indices and confidences,
/// limited to points above the confidence threshold. With intrinsics, points are projected onto
/// their pixel's ray, `z·K⁻¹[u, v, 1]ᵀ`. Non-finite points and confidences are skipped.
pub fn camera_points(
    view: KeyframeView,
    intrinsics: Option<&Intrinsics>,
    min_confidence: f32,
) -> impl Iterator<Item = (usize, Vector3<f64>, f32)> {
    let width = view.image.width.max(1);
    (0..view.confidence.len()).filter_map(move |i| {
        let c = view.confidence[i];
        if !(c > min_confidence && c.is_finite()) {
            return None;
        }
        let p = view.points.get(3 * i..3 * i + 3)?;
        let mut p = Vector3::new(f64::from(p[0]), f64::from(p[1]), f64::from(p[2]));
        if let Some(k) = intrinsics {
            // Checked before the ray constraint: a NaN in x or y marks a point that was never
            // measured.
            if !(p.x.is_finite() && p.y.is_finite()) {
                return None;
            }
            p = k.ray((i % width) as f64, (i / width) as f64) * p.z;
        }
        p.iter().all(|v| v.is_finite()).then_some((i, p, c))
    })
}

/// A keyframe's part of the cloud: [`camera_points`] transformed by its full Sim(3).
pub fn keyframe_points(
    view: KeyframeView,
    world_from_camera: &Sim3,
    intrinsics: Option<&Intrinsics>,
    min_confidence: f32,
) -> impl Iterator<Item = CloudPoint> {
    let m = world_from_camera.scaled_rotation();
    let t = world_from_camera.translation;
    let image = Arc::clone(&view.image);
    camera_points(view, intrinsics, min_confidence).filter_map(move |(i, p, confidence)| {
        let world = m * p + t;
        let position = [world.x as f32, world.y as f32, world.z as f32];
        let color = *image.data.as_chunks::<3>().0.get(i)?;
        position
            .iter()
            .all(|v| v.is_finite())
            .then_some(CloudPoint {
                position,
                color,
                confidence,
            })
    })
}

/// All points of a submap, keyframe by keyframe, without the voxel filter. Call [`check`] first.
pub fn points(
    snapshot: &MapSnapshot,
    submap: u32,
    min_confidence: f32,
) -> impl Iterator<Item = CloudPoint> + '_ {
    let keyframes = snapshot
        .keyframes
        .iter()
        .filter(move |k| k.submap == submap);
    keyframes.flat_map(move |k| {
        let intrinsics = snapshot.intrinsics.as_ref();
        keyframe_points(k.view(), &k.world_from_camera, intrinsics, min_confidence)
    })
}

/// The cloud of a submap, voxel-filtered if `options` say so.
pub fn collect(
    snapshot: &MapSnapshot,
    submap: u32,
    options: &CloudOptions,
) -> Result<Vec<CloudPoint>, ExportError> {
    check(snapshot)?;
    let all = points(snapshot, submap, options.min_confidence);
    if options.voxel_size > 0.0 {
        Ok(voxel_filter(all, options.voxel_size))
    } else {
        Ok(all.collect())
    }
}

/// Keeps the most confident point of each cube with edge `edge` (in metres, aligned with the
/// origin); the first among equals. Output order is the order in which cubes are first seen, so the
/// result is deterministic.
pub fn voxel_filter(points: impl Iterator<Item = CloudPoint>, edge: f32) -> Vec<CloudPoint> {
    let per_metre = 1.0 / f64::from(edge);
    let mut index_of: FxHashMap<[i64; 3], usize> = FxHashMap::default();
    let mut kept: Vec<CloudPoint> = Vec::new();
    // Neighbouring pixels mostly share a cube, so the last cube is cached.
    let mut last: Option<([i64; 3], usize)> = None;
    for point in points {
        // The cast saturates: anything beyond 2^63 cubes falls into the outermost cube.
        let key = point
            .position
            .map(|v| (f64::from(v) * per_metre).floor() as i64);
        let index = match last {
            Some((same, index)) if same == key => index,
            _ => match index_of.entry(key) {
                Entry::Vacant(slot) => {
                    slot.insert(kept.len());
                    kept.push(point);
                    kept.len() - 1
                }
                Entry::Occupied(slot) => *slot.get(),
            },
        };
        last = Some((key, index));
        if point.confidence > kept[index].confidence {
            kept[index] = point;
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn point() -> impl Strategy<Value = CloudPoint> {
        (proptest::array::uniform3(-2.0..2.0f32), 0.0..9.0f32).prop_map(|(position, confidence)| {
            CloudPoint {
                position,
                color: [0; 3],
                confidence,
            }
        })
    }

    fn cube(p: &CloudPoint, edge: f32) -> [i64; 3] {
        p.position
            .map(|v| (f64::from(v) / f64::from(edge)).floor() as i64)
    }

    proptest! {
        #[test]
        fn each_cube_keeps_its_most_confident_point(
            points in proptest::collection::vec(point(), 0..200),
            edge in prop::sample::select(vec![0.25f32, 0.5, 1.0]),
        ) {
            let kept = voxel_filter(points.iter().copied(), edge);
            let cubes: HashSet<_> = kept.iter().map(|p| cube(p, edge)).collect();
            prop_assert_eq!(cubes.len(), kept.len());
            let occupied: HashSet<_> = points.iter().map(|p| cube(p, edge)).collect();
            prop_assert_eq!(occupied, cubes);
            for k in &kept {
                let rivals = points.iter().filter(|p| cube(p, edge) == cube(k, edge));
                prop_assert!(rivals.map(|p| p.confidence).fold(0.0, f32::max) <= k.confidence);
                prop_assert!(points.contains(k));
            }
            prop_assert_eq!(&voxel_filter(points.iter().copied(), edge), &kept);
            prop_assert_eq!(voxel_filter(kept.iter().copied(), edge), kept);
        }
    }

    #[test]
    fn a_tiny_edge_saturates_instead_of_failing() {
        let far = CloudPoint {
            position: [3e38, -3e38, 0.0],
            color: [1, 2, 3],
            confidence: 2.0,
        };
        assert_eq!(voxel_filter([far].into_iter(), 1e-30), [far]);
    }
}
