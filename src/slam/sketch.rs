//! Coarse pointmaps of keyframes: what one shows of another by their poses alone (docs/algorithm.md, Map economy).

use super::metric::robust::median;
use crate::geometry::{Intrinsics, LineFit, Sim3};
use nalgebra::{Vector2, Vector3};

/// Approximate number of points in a row of a sketch.
const COLUMNS: usize = 24;
/// Maximum difference of two depths, over the farther one, of the same surface: more than the error of the network's
/// points at the same place with a depth camera.
const SAME: f64 = 0.1;
/// Minimum ratio of a point's distance from its own camera to that from another one whose image shows it as well: a pixel
/// then covers at most 1.5 times the length on the surface.
const MIN_RATIO: f64 = 0.67;
/// Points that are nearer to the camera's plane, in units of the pointmap, say nothing about the camera.
const MIN_DEPTH: f64 = 1e-3;

/// Every n-th point of a pointmap, and the camera that made it.
#[derive(Debug)]
pub struct Sketch {
    columns: usize,
    /// Row-major, in the keyframe's camera frame; NaN where there is none.
    points: Vec<Vector3<f32>>,
    /// The pinhole that projects points to columns and rows of the sketch; `None` if the points do not determine it.
    camera: Option<Intrinsics>,
    /// Median depth.
    depth: f64,
}

impl Sketch {
    /// A sketch of `points` (`N × 3`) of an image of this width.
    pub fn of(points: &[f32], width: usize) -> Self {
        let step = width.div_ceil(COLUMNS).max(1);
        let columns = width.saturating_sub(step / 2).div_ceil(step);
        let rows = points.chunks_exact(3 * width.max(1));
        let rows = rows.skip(step / 2).step_by(step);
        let kept = rows.flat_map(|row| row.chunks_exact(3).skip(step / 2).step_by(step));
        let points: Vec<Vector3<f32>> = kept
            .map(
                |p| match p.iter().all(|v| v.is_finite()) && f64::from(p[2]) > MIN_DEPTH {
                    true => Vector3::new(p[0], p[1], p[2]),
                    false => Vector3::repeat(f32::NAN),
                },
            )
            .collect();
        let mut lines = [LineFit::default(); 2];
        let mut depths = Vec::with_capacity(points.len());
        for (cell, p) in points.iter().enumerate().filter(|(_, p)| !p.z.is_nan()) {
            lines[0].add(f64::from(p.x / p.z), (cell % columns) as f64);
            lines[1].add(f64::from(p.y / p.z), (cell / columns) as f64);
            depths.push(f64::from(p.z));
        }
        let camera = lines[0].rising().zip(lines[1].rising());
        Self {
            columns,
            points,
            camera: camera.map(|((fx, cx), (fy, cy))| Intrinsics { fx, fy, cx, cy }),
            depth: median(&mut depths).unwrap_or(0.0),
        }
    }

    /// Median depth, in units of the pointmap; 0 without points.
    pub fn depth(&self) -> f64 {
        self.depth
    }

    /// Number of points.
    pub fn count(&self) -> usize {
        self.points.iter().filter(|p| !p.z.is_nan()).count()
    }

    /// Number of places, each of which has a point or none.
    pub fn places(&self) -> usize {
        self.points.len()
    }

    /// The fraction of the points that `other` shows as well, with nothing in front of them. `seen`, one for each place,
    /// becomes true for those whose distance is at least [`MIN_RATIO`] of that from the other camera.
    pub fn shown_by(&self, other: &Sketch, other_from_self: &Sim3, seen: &mut [bool]) -> f64 {
        let Some(k) = &other.camera else {
            return 0.0;
        };
        let turn = other_from_self.scaled_rotation();
        let (mut count, mut shown) = (0_u32, 0_u32);
        for (point, seen) in self.points.iter().zip(seen) {
            if point.z.is_nan() {
                continue;
            }
            count += 1;
            let p = turn * point.cast::<f64>() + other_from_self.translation;
            if p.z > MIN_DEPTH && other.has_depth_at(k.project(&p), p.z) {
                shown += 1;
                let own = other_from_self.scale * f64::from(point.norm());
                *seen |= own >= MIN_RATIO * p.norm();
            }
        }
        f64::from(shown) / f64::from(count.max(1))
    }

    /// Whether one of the four points around a place has that depth.
    fn has_depth_at(&self, place: Vector2<f64>, depth: f64) -> bool {
        let (u, v) = (place.x, place.y);
        let rows = self.points.len() / self.columns.max(1);
        let inside = |place: f64, count: usize| place > -0.5 && place < count as f64 - 0.5;
        if !inside(u, self.columns) || !inside(v, rows) {
            return false;
        }
        let last = |place: f64, count: usize| (place.max(0.0) as usize).min(count - 1);
        let near =
            [0.0, 1.0].map(|k| (last(u.floor() + k, self.columns), last(v.floor() + k, rows)));
        near.iter().any(|(column, _)| {
            near.iter().any(|(_, row)| {
                let z = f64::from(self.points[row * self.columns + column].z);
                (z - depth).abs() <= SAME * z.max(depth)
            })
        })
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use nalgebra::UnitQuaternion;

    const WIDTH: usize = 96;
    const HEIGHT: usize = 72;

    /// A pointmap whose depth depends on the column and the row, in a camera of 90° to 74°.
    pub fn seen_at(depth: impl Fn(usize, usize) -> f32) -> Sketch {
        let pixels = (0..HEIGHT).flat_map(|v| (0..WIDTH).map(move |u| (u, v)));
        let points: Vec<f32> = pixels
            .flat_map(|(u, v)| {
                let z = depth(u, v);
                [
                    (u as f32 - 47.5) / 48.0 * z,
                    (v as f32 - 35.5) / 48.0 * z,
                    z,
                ]
            })
            .collect();
        Sketch::of(&points, WIDTH)
    }

    fn moved(x: f64, z: f64) -> Sim3 {
        Sim3 {
            translation: Vector3::new(x, 0.0, z),
            ..Sim3::identity()
        }
    }

    fn shown(own: &Sketch, other: &Sketch, other_from_own: &Sim3) -> f64 {
        own.shown_by(other, other_from_own, &mut vec![false; own.places()])
    }

    #[test]
    fn a_camera_shows_what_is_in_its_image() {
        let wall = seen_at(|_, _| 2.0);
        assert_eq!((wall.places(), wall.count()), (24 * 18, 24 * 18));
        assert_eq!(wall.depth(), 2.0);
        assert_eq!(shown(&wall, &wall, &Sim3::identity()), 1.0);
        // The wall is 4 m wide in the image.
        for metres in [1.0, -1.0, 2.0, 3.0] {
            let found = shown(&wall, &wall, &moved(metres, 0.0));
            assert!(
                (found - (1.0 - f64::abs(metres) / 4.0)).abs() < 0.03,
                "{metres} m: {found}"
            );
        }
        assert_eq!(shown(&wall, &wall, &moved(4.2, 0.0)), 0.0);
        let behind = UnitQuaternion::from_euler_angles(0.0, 3.0, 0.0);
        let behind = Sim3 {
            rotation: behind,
            ..Sim3::identity()
        };
        assert_eq!(shown(&wall, &wall, &behind), 0.0);
    }

    #[test]
    fn from_twice_as_far_a_camera_shows_all_and_is_shown_a_quarter() {
        let (near, far) = (seen_at(|_, _| 2.0), seen_at(|_, _| 4.0));
        let far_from_near = moved(0.0, 2.0);
        assert_eq!(shown(&near, &far, &far_from_near), 1.0);
        let back = shown(&far, &near, &far_from_near.inverse());
        assert!((back - 0.25).abs() < 0.03, "{back}");
    }

    #[test]
    fn points_seen_from_too_far_do_not_count_as_seen() {
        let wall = seen_at(|_, _| 2.0);
        for (back, count) in [(0.0, 24 * 18), (0.9, 24 * 18), (1.1, 0)] {
            let other = seen_at(|_, _| 2.0 + back);
            let mut seen = vec![false; wall.places()];
            let far_from_near = moved(0.0, f64::from(back));
            assert_eq!(wall.shown_by(&other, &far_from_near, &mut seen), 1.0);
            // Towards the corners, the ratio of the distances is nearer to 1.
            let centre = seen[9 * 24 + 12];
            assert_eq!(centre, count > 0, "{back} m");
            assert!(
                seen.iter().filter(|seen| **seen).count() >= count,
                "{back} m"
            );
        }
    }

    #[test]
    fn what_is_in_front_hides_and_scales_are_compared_in_metres() {
        let wall = seen_at(|_, _| 2.0);
        let half_hidden = seen_at(|u, _| if u < WIDTH / 2 { 1.0 } else { 2.1 });
        let mut seen = vec![false; wall.places()];
        let found = wall.shown_by(&half_hidden, &Sim3::identity(), &mut seen);
        // A point at an edge has the depth of either side.
        assert!((0.5..=13.0 / 24.0).contains(&found), "{found}");
        assert!(!seen[0] && seen[23]);
        let in_half_metres = seen_at(|_, _| 4.0);
        let scale = Sim3 {
            scale: 2.0,
            ..Sim3::identity()
        };
        assert_eq!(shown(&wall, &in_half_metres, &scale), 1.0);
        assert_eq!(shown(&wall, &in_half_metres, &Sim3::identity()), 0.0);
    }

    #[test]
    fn without_points_nothing_is_shown() {
        let wall = seen_at(|_, _| 2.0);
        let nan = seen_at(|_, _| f32::NAN);
        let behind = seen_at(|_, _| -2.0);
        let few = seen_at(|u, v| if (u, v) == (2, 2) { 2.0 } else { f32::INFINITY });
        assert_eq!([nan.count(), behind.count(), few.count()], [0, 0, 1]);
        for other in [nan, behind, few, Sketch::of(&[], WIDTH), Sketch::of(&[], 0)] {
            assert_eq!(shown(&wall, &other, &Sim3::identity()), 0.0);
            assert_eq!(shown(&other, &other, &Sim3::identity()), 0.0);
        }
        let constant = Sketch::of(&vec![1.0; 3 * WIDTH * HEIGHT], WIDTH);
        assert_eq!(shown(&wall, &constant, &Sim3::identity()), 0.0);
        // Rows of an image whose width is no multiple of the step.
        assert_eq!(Sketch::of(&vec![1.0; 3 * 103 * 7], 103).places(), 21);
    }
}
