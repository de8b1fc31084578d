//! Finds the floor of a map whose camera has no known mount.

use crate::geometry::Intrinsics;
use crate::map::KeyframeRecord;
use crate::map::cloud::camera_points;
use crate::map::content::count_points;
use nalgebra::{Isometry3, Matrix3, Rotation3, UnitQuaternion, Vector3};

/// Points that are looked at, of all keyframes together.
const SAMPLES: usize = 20_000;
/// Planes that are tried.
const TRIES: usize = 1000;
/// They are tried through the lowest points, this fraction of all: most points are on walls.
const LOW: f64 = 0.4;
/// A point belongs to a plane within this distance, metres.
const THICKNESS: f64 = 0.04;
/// The floor's normal is within this angle of the first camera's upward direction, as a cosine: people
/// and robots hold cameras roughly upright.
const UPRIGHT: f64 = 0.7;
/// The same for a direction that was measured (10 degrees).
const MEASURED_UPRIGHT: f64 = 0.985;
/// At most this fraction of the points may be below the floor.
const BELOW: f64 = 0.03;
/// At least this fraction of the points must be on it.
const ON: f64 = 0.03;
/// Without a floor, this fraction of the points is below its height.
const LOWEST: f64 = 0.02;

/// Where the floor comes from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Floor {
    /// Transform into a frame with z up and the floor at z = 0; the first camera is above its origin and
    /// looks along x.
    pub level_from_world: Isometry3<f64>,
    /// Whether a plane was found; otherwise, up is as measured or the first camera's, and the lowest points are the
    /// floor.
    pub found: bool,
}

/// The lowest large plane below the keyframes' cameras; `None` without points. `measured` is up in the world, if it was
/// measured: the plane is then within 10 degrees of it.
pub fn find(
    keyframes: &[&KeyframeRecord],
    intrinsics: Option<&Intrinsics>,
    min_confidence: f32,
    measured: Option<&Vector3<f64>>,
) -> Option<Floor> {
    let first = keyframes.first()?.world_from_camera.rigid();
    let points = sample(keyframes, intrinsics, min_confidence);
    let (up, upright) = match measured {
        Some(up) => (*up, MEASURED_UPRIGHT),
        None => (-(first.rotation * Vector3::y()), UPRIGHT),
    };
    let low = lowest(&points, &up);
    let plane = (0..TRIES)
        .filter_map(|k| candidate(&low, k, &up, upright))
        .filter_map(|plane| Some((rate(&points, &plane)?, plane)))
        // The first of equals, so that the result repeats.
        .reduce(|best, other| if other.0 > best.0 { other } else { best });
    let (normal, height) = match plane {
        Some((_, plane)) => refined(&points, &plane, &up),
        None => (up, height_above(&points, &up, LOWEST)?),
    };
    Some(Floor {
        level_from_world: level(&normal, height, &first),
        found: plane.is_some(),
    })
}

/// The height that a fraction of the points is below.
fn height_above(points: &[Vector3<f64>], up: &Vector3<f64>, fraction: f64) -> Option<f64> {
    let mut heights: Vec<f64> = points.iter().map(|p| up.dot(p)).collect();
    heights.sort_unstable_by(f64::total_cmp);
    let rank = (heights.len() as f64 * fraction) as usize;
    heights.get(rank).copied()
}

/// The lowest points, in their order.
fn lowest(points: &[Vector3<f64>], up: &Vector3<f64>) -> Vec<Vector3<f64>> {
    let limit = height_above(points, up, LOW).unwrap_or(f64::INFINITY);
    let low = points.iter().filter(|p| up.dot(p) <= limit);
    low.copied().collect()
}

/// Points of all keyframes in the world, evenly spaced.
fn sample(
    keyframes: &[&KeyframeRecord],
    intrinsics: Option<&Intrinsics>,
    min_confidence: f32,
) -> Vec<Vector3<f64>> {
    let step = count_points(keyframes).div_ceil(SAMPLES).max(1);
    let mut points = Vec::with_capacity(SAMPLES);
    for keyframe in keyframes {
        let placed = camera_points(keyframe.view(), intrinsics, min_confidence)
            // Steps over rows and columns alike.
            .filter(|(pixel, _, _)| pixel.wrapping_mul(7919) % step == 0)
            .map(|(_, p, _)| keyframe.world_from_camera.transform(&p));
        points.extend(placed.filter(|p| p.iter().all(|v| v.is_finite())));
    }
    points
}

type Plane = (Vector3<f64>, f64);

/// The plane through three points that depend on `k` only, if it could be a floor.
fn candidate(points: &[Vector3<f64>], k: usize, up: &Vector3<f64>, upright: f64) -> Option<Plane> {
    let pick = |n: usize| points.get(mixed((3 * k + n) as u64) as usize % points.len().max(1));
    let (a, b, c) = (pick(0)?, pick(1)?, pick(2)?);
    let normal = (b - a).cross(&(c - a)).try_normalize(1e-9)?;
    let normal = normal * normal.dot(up).signum();
    (normal.dot(up) >= upright).then(|| (normal, normal.dot(a)))
}

/// Points on the plane; `None` if it has too few, or too many are below it.
fn rate(points: &[Vector3<f64>], (normal, height): &Plane) -> Option<usize> {
    let (mut on, mut below) = (0, 0);
    for point in points {
        let above = normal.dot(point) - height;
        on += usize::from(above.abs() < THICKNESS);
        below += usize::from(above < -2.0 * THICKNESS);
    }
    let share = |count: usize| count as f64 / points.len().max(1) as f64;
    (share(on) >= ON && share(below) <= BELOW).then_some(on)
}

/// The least-squares plane through the points on `plane`.
fn refined(points: &[Vector3<f64>], plane: &Plane, up: &Vector3<f64>) -> Plane {
    let (normal, height) = plane;
    let on = || {
        let near = |p: &&Vector3<f64>| (normal.dot(p) - height).abs() < THICKNESS;
        points.iter().filter(near)
    };
    let count = on().count().max(1) as f64;
    let mean = on().sum::<Vector3<f64>>() / count;
    let spread = |sum: Matrix3<f64>, p: &Vector3<f64>| sum + (p - mean) * (p - mean).transpose();
    let eigen = on().fold(Matrix3::zeros(), spread).symmetric_eigen();
    let thin = eigen
        .eigenvectors
        .column(eigen.eigenvalues.imin())
        .into_owned();
    let thin = thin * thin.dot(up).signum();
    match thin.dot(normal) > 0.99 {
        true => (thin, thin.dot(&mean)),
        false => *plane,
    }
}

fn level(normal: &Vector3<f64>, height: f64, first: &Isometry3<f64>) -> Isometry3<f64> {
    let ahead = first.rotation * Vector3::z();
    let ahead = ahead - normal * normal.dot(&ahead);
    let x = ahead
        .try_normalize(1e-3)
        .unwrap_or_else(|| first.rotation * Vector3::x());
    let x = (x - normal * normal.dot(&x)).normalize();
    let y = normal.cross(&x);
    let level_from_world = Matrix3::from_rows(&[x.transpose(), y.transpose(), normal.transpose()]);
    let rotation =
        UnitQuaternion::from_rotation_matrix(&Rotation3::from_matrix_unchecked(level_from_world));
    let below =
        first.translation.vector - normal * (normal.dot(&first.translation.vector) - height);
    Isometry3::from_parts((-(rotation * below)).into(), rotation)
}

/// A number that looks random (SplitMix64).
fn mixed(k: u64) -> u64 {
    let mut z = k.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
