//! Renders the map: points as small discs with a depth buffer, viewed obliquely from above.
//!
//! Each point is part of a surface seen by its keyframe, so its normal follows from its neighbours
//! in the pointmap. Surfaces that face away are culled, so that rooms are visible from above
//! through ceilings and walls.

use crate::geometry::{Intrinsics, Sim3};
use crate::map::cloud;
use crate::map::content::count_points;
use crate::map::{KeyframeRecord, MapSnapshot};
use nalgebra::{Matrix3, Vector3};
use std::sync::Arc;

/// Image size in pixels.
pub(super) const SIZE: (usize, usize) = (1000, 880);
/// Samples per pixel along each axis.
const OVERSAMPLING: usize = 2;
/// Tangent of half the vertical field of view (40°).
const HALF_VIEW: f64 = 0.364;
/// Elevation of the camera above the horizon, in degrees.
const ELEVATION: f64 = 42.0;
/// Neighbouring pixels further apart than their range times this factor, divided by the number of
/// columns, are not on one surface: about 12 pixel widths, or a surface seen at 5°.
const EDGE: f64 = 16.0;
/// Maximum number of points to draw; more are subsampled evenly.
const MAX_POINTS: usize = 6_000_000;
/// Margin around the points, as a factor of the distance.
const MARGIN: f64 = 1.08;
/// Maximum number of points used to fit the view.
const FIT_POINTS: usize = 40_000;
/// Fraction of points that may lie outside the image.
const OUTSIDE: f64 = 0.005;

/// A point with its surface normal, in the world frame.
struct Surfel {
    position: Vector3<f32>,
    normal: Vector3<f32>,
    /// Half the distance to the neighbouring point.
    radius: f32,
    color: [u8; 3],
}

impl Surfel {
    fn faces(&self, eye: &Vector3<f64>) -> bool {
        let to_eye = eye - self.position.cast::<f64>();
        self.normal.cast::<f64>().dot(&to_eye) > 0.0
    }
}

/// A perspective camera.
struct View {
    eye: Vector3<f64>,
    /// Rows: right, down, forward.
    axes: Matrix3<f64>,
    /// Samples per unit of slope.
    focal: f64,
}

impl View {
    /// Horizontal and vertical sample coordinates from the corner, and depth; `None` behind the
    /// camera.
    fn project(&self, p: &Vector3<f64>) -> Option<(f64, f64, f64)> {
        let c = self.axes * (p - self.eye);
        let (w, h) = samples();
        (c.z > 1e-6).then(|| {
            (
                self.focal * c.x / c.z + w as f64 / 2.0,
                self.focal * c.y / c.z + h as f64 / 2.0,
                c.z,
            )
        })
    }
}

fn samples() -> (usize, usize) {
    (SIZE.0 * OVERSAMPLING, SIZE.1 * OVERSAMPLING)
}

/// Renders `SIZE` RGBA pixels on a transparent background; `None` if there are no points. `path` is
/// drawn over the points.
pub(super) fn render(
    snapshot: &MapSnapshot,
    submap: u32,
    min_confidence: f32,
    path: &[Vec<Vector3<f64>>],
) -> Option<Vec<u8>> {
    let keyframes: Vec<&KeyframeRecord> = snapshot
        .keyframes
        .iter()
        .filter(|k| k.submap == submap && k.world_from_camera.is_finite())
        .collect();
    let total = count_points(&keyframes);
    let stride = total.div_ceil(MAX_POINTS).max(1);
    let surfels = |every: usize| {
        keyframes
            .iter()
            .flat_map(move |k| surfels(k, snapshot.intrinsics.as_ref(), min_confidence, every))
    };
    let sample: Vec<Surfel> = surfels(total.div_ceil(FIT_POINTS).max(1)).collect();
    let view = fit_view(&keyframes, &sample)?;
    let (w, h) = samples();
    let mut depth = vec![f32::INFINITY; w * h];
    let mut color = vec![[0u8; 4]; w * h];
    for s in surfels(stride) {
        if !s.faces(&view.eye) {
            continue;
        }
        let Some((x, y, z)) = view.project(&s.position.cast()) else {
            continue;
        };
        let radius =
            (f64::from(s.radius) * view.focal / z * (stride as f64).sqrt()).clamp(0.7, 16.0);
        let [r, g, b] = s.color;
        disc(w, h, x, y, radius, |i| {
            if (z as f32) < depth[i] {
                depth[i] = z as f32;
                color[i] = [r, g, b, 255];
            }
        });
    }
    draw_path(&view, path, &mut color);
    Some(shrink(&color))
}

/// Calls `paint` with the index of each sample within `radius` of (x, y).
fn disc(w: usize, h: usize, x: f64, y: f64, radius: f64, mut paint: impl FnMut(usize)) {
    let rows = (y - radius).ceil().max(0.0)..=(y + radius).floor().min(h as f64 - 1.0);
    let columns = (x - radius).ceil().max(0.0)..=(x + radius).floor().min(w as f64 - 1.0);
    if rows.is_empty() || columns.is_empty() {
        // Smaller than a sample: paint the sample that contains it.
        if x >= 0.0 && y >= 0.0 && x < w as f64 && y < h as f64 {
            paint(y as usize * w + x as usize);
        }
        return;
    }
    for row in *rows.start() as usize..=*rows.end() as usize {
        for column in *columns.start() as usize..=*columns.end() as usize {
            let (dx, dy) = (column as f64 - x, row as f64 - y);
            if dx * dx + dy * dy <= radius * radius {
                paint(row * w + column);
            }
        }
    }
}

/// Every n-th point of a keyframe whose right and lower neighbours are on the same surface.
fn surfels(
    k: &KeyframeRecord,
    intrinsics: Option<&Intrinsics>,
    min_confidence: f32,
    every: usize,
) -> impl Iterator<Item = Surfel> {
    let view = k.view();
    let (width, height) = (view.image.width, view.image.height);
    let scale = k.world_from_camera.scale;
    let m = k.world_from_camera.scaled_rotation();
    let t = k.world_from_camera.translation;
    let (image, points) = (Arc::clone(&view.image), Arc::clone(&view.points));
    let point = move |i: usize| -> Option<Vector3<f64>> {
        let p = points.get(3 * i..3 * i + 3)?;
        let p = Vector3::new(f64::from(p[0]), f64::from(p[1]), f64::from(p[2]));
        let p = match intrinsics {
            Some(camera) => camera.ray((i % width) as f64, (i / width) as f64) * p.z,
            None => p,
        };
        p.iter().all(|v| v.is_finite()).then_some(p)
    };
    cloud::camera_points(view, intrinsics, min_confidence)
        .step_by(every)
        .filter_map(move |(i, p, _)| {
            if i % width + 1 >= width || i / width + 1 >= height {
                return None;
            }
            let (right, down) = (point(i + 1)? - p, point(i + width)? - p);
            let far = EDGE / width as f64 * p.norm();
            if right.norm() > far || down.norm() > far {
                return None;
            }
            let mut normal = right.cross(&down);
            if normal.dot(&p) > 0.0 {
                normal = -normal;
            }
            let world = m * p + t;
            let spacing = right.norm().max(down.norm()) * scale;
            let color = image.data.get(3 * i..3 * i + 3)?;
            Some(Surfel {
                position: world.cast(),
                normal: (m * normal).try_normalize(1e-12)?.cast(),
                radius: (0.6 * spacing) as f32,
                color: [color[0], color[1], color[2]],
            })
        })
}

/// A view from above and behind the dominant viewing direction of the cameras, at the smallest
/// distance at which the points fit.
fn fit_view(keyframes: &[&KeyframeRecord], surfels: &[Surfel]) -> Option<View> {
    let mean = |axis: Vector3<f64>| -> Vector3<f64> {
        let axes = keyframes
            .iter()
            .map(|k| k.world_from_camera.rotation * axis);
        axes.sum()
    };
    let fallback = Sim3::identity().rotation;
    let up = (-mean(Vector3::y()))
        .try_normalize(1e-6)
        .unwrap_or(fallback * -Vector3::y());
    let ahead = mean(Vector3::z());
    let level = |v: Vector3<f64>| (v - up * up.dot(&v)).try_normalize(1e-3);
    // If the mean viewing direction vanishes, use that of the first camera, then any.
    let ahead = level(ahead / keyframes.len().max(1) as f64)
        .or_else(|| level(keyframes.first()?.world_from_camera.rotation * Vector3::z()))
        .or_else(|| level(Vector3::z()))
        .or_else(|| level(Vector3::x()))?;
    // Rotated about the vertical: an oblique view shows two sides of objects.
    let side = ahead.cross(&up);
    let azimuth = 32f64.to_radians();
    let level_forward = ahead * azimuth.cos() + side * azimuth.sin();
    let elevation = ELEVATION.to_radians();
    let forward = level_forward * elevation.cos() - up * elevation.sin();
    let right = forward.cross(&up).normalize();
    let down = forward.cross(&right);
    let axes = Matrix3::from_rows(&[right.transpose(), down.transpose(), forward.transpose()]);
    let all: Vec<Vector3<f64>> = surfels.iter().map(|s| s.position.cast()).collect();
    let mut eye = fit_eye(&axes, &all)?;
    // Culled surfels need no room; culling depends slightly on the eye position.
    for _ in 0..2 {
        let facing = surfels.iter().filter(|s| s.faces(&eye));
        let facing: Vec<Vector3<f64>> = facing.map(|s| s.position.cast()).collect();
        match fit_eye(&axes, &facing) {
            Some(better) => eye = better,
            None => break,
        }
    }
    Some(View {
        eye,
        axes,
        focal: samples().1 as f64 / (2.0 * HALF_VIEW),
    })
}

/// The closest eye position with these axes that sees the points, except a few, centred in the
/// image.
fn fit_eye(axes: &Matrix3<f64>, points: &[Vector3<f64>]) -> Option<Vector3<f64>> {
    if points.is_empty() {
        return None;
    }
    let local: Vec<Vector3<f64>> = points.iter().map(|p| axes * p).collect();
    let quantiles = |value: &dyn Fn(&Vector3<f64>) -> f64| {
        let mut values: Vec<f64> = local.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        let at = |q: f64| values[((values.len() - 1) as f64 * q).round() as usize];
        (at(OUTSIDE), at(1.0 - OUTSIDE))
    };
    let middle = |(lo, hi): (f64, f64)| 0.5 * (lo + hi);
    let mut center = Vector3::from_fn(|a, _| middle(quantiles(&|p| p[a])));
    let aspect = SIZE.0 as f64 / SIZE.1 as f64;
    let mut distance = 0.0;
    for _ in 0..6 {
        // A point at (x, y, z) relative to the centre is inside from distance d if |x| ≤ (z +
        // d)·slope.
        let needed = |p: &Vector3<f64>| {
            let p = p - center;
            (p.x.abs() / (HALF_VIEW * aspect)).max(p.y.abs() / HALF_VIEW) - p.z
        };
        distance = (quantiles(&needed).1 * MARGIN).max(1e-3);
        // Closer points appear larger, so the centre of the image is not the centre of the points.
        let slope = |a: usize| {
            let depth = |p: &Vector3<f64>| (p.z - center.z + distance).max(0.1 * distance);
            middle(quantiles(&|p| (p[a] - center[a]) / depth(p)))
        };
        let shift = Vector3::new(slope(0), slope(1), 0.0) * distance;
        center += shift;
    }
    Some(axes.transpose() * (center - Vector3::z() * distance))
}

/// Draws the camera path on top of everything.
fn draw_path(view: &View, path: &[Vec<Vector3<f64>>], color: &mut [[u8; 4]]) {
    let (w, h) = samples();
    for (radius, rgba) in [(4.6, [255, 255, 255, 255]), (3.0, [234, 88, 12, 255])] {
        for piece in path {
            for pair in piece.windows(2) {
                let (Some(a), Some(b)) = (view.project(&pair[0]), view.project(&pair[1])) else {
                    continue;
                };
                let length = (b.0 - a.0).hypot(b.1 - a.1);
                // A segment longer than the image is far outside, or due to an invalid pose.
                if !length.is_finite() || length > (w + h) as f64 {
                    continue;
                }
                let steps = length.ceil().max(1.0);
                for s in 0..=steps as usize {
                    let u = s as f64 / steps;
                    let (x, y) = (a.0 + (b.0 - a.0) * u, a.1 + (b.1 - a.1) * u);
                    disc(w, h, x, y, radius, |i| color[i] = rgba);
                }
            }
        }
    }
}

/// Averages blocks of samples; colours are averaged over covered samples.
fn shrink(color: &[[u8; 4]]) -> Vec<u8> {
    let (w, _) = samples();
    let mut out = Vec::with_capacity(SIZE.0 * SIZE.1 * 4);
    for y in 0..SIZE.1 {
        for x in 0..SIZE.0 {
            let (mut sum, mut covered) = ([0u32; 3], 0u32);
            for dy in 0..OVERSAMPLING {
                for dx in 0..OVERSAMPLING {
                    let c = color[(y * OVERSAMPLING + dy) * w + x * OVERSAMPLING + dx];
                    if c[3] > 0 {
                        covered += 1;
                        for (s, v) in sum.iter_mut().zip(c) {
                            *s += u32::from(v);
                        }
                    }
                }
            }
            let all = (OVERSAMPLING * OVERSAMPLING) as u32;
            out.extend(sum.map(|s| (s / covered.max(1)) as u8));
            out.push((255 * covered / all) as u8);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::RgbImage;
    use crate::map::KeyframeView;
    use crate::time::Stamp;

    /// A camera one metre above a green floor and one below a red ceiling (y is down).
    fn corridor() -> MapSnapshot {
        let (width, height) = (40, 41);
        let camera = Intrinsics {
            fx: 20.0,
            fy: 20.0,
            cx: 19.5,
            cy: 20.0,
        };
        let mut image = RgbImage::new(width, height);
        let (mut points, mut confidence) = (Vec::new(), Vec::new());
        for i in 0..width * height {
            let ray = camera.ray((i % width) as f64, (i / width) as f64);
            let p = ray / ray.y.abs();
            points.extend([p.x as f32, p.y as f32, p.z as f32]);
            // The horizon has no points, and anything near it is far away.
            confidence.push(if ray.y.abs() > 0.2 { 2.0 } else { 0.0 });
            let color = if ray.y > 0.0 {
                [0, 200, 0]
            } else {
                [200, 0, 0]
            };
            image.data[3 * i..3 * i + 3].copy_from_slice(&color);
        }
        MapSnapshot {
            keyframes: vec![KeyframeRecord {
                id: 0,
                frame_index: 0,
                stamp: Stamp::default(),
                submap: 0,
                world_from_camera: Sim3::identity(),
                content: KeyframeView {
                    image: Arc::new(image),
                    points: Arc::new(points),
                    confidence: Arc::new(confidence),
                }
                .into(),
            }],
            ..MapSnapshot::default()
        }
    }

    #[test]
    fn the_floor_is_seen_through_the_ceiling() {
        let pixels = render(&corridor(), 0, 1.0, &[]).unwrap();
        let count = |color: [u8; 4]| pixels.chunks_exact(4).filter(|p| **p == color).count();
        // At least a tenth of the image: the view is fitted to the floor.
        assert!(count([0, 200, 0, 255]) * 10 > SIZE.0 * SIZE.1);
        assert_eq!(count([200, 0, 0, 255]), 0);
    }

    #[test]
    fn the_way_is_drawn_over_it_and_far_poses_are_left_out() {
        let near = vec![Vector3::new(-0.5, 0.5, 2.0), Vector3::new(0.5, 0.5, 2.0)];
        let far = vec![Vector3::zeros(), Vector3::new(1e300, 0.0, 1.0)];
        let pixels = render(&corridor(), 0, 1.0, &[near, far]).unwrap();
        let orange = pixels.chunks_exact(4).filter(|p| **p == [234, 88, 12, 255]);
        assert!(orange.count() > 100);
    }

    #[test]
    fn nothing_confident_is_no_picture() {
        assert!(render(&corridor(), 0, 2.0, &[]).is_none());
        assert!(render(&corridor(), 1, 0.0, &[]).is_none());
    }
}
