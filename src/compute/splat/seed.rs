//! New rows from a keyframe's pointmap: one for each confident pixel on a grid that the map does not show yet.

use super::blend::Image;
use super::block::{BlockContent, RowBlock};
use super::camera::Pointmap;
use super::constants::{NEAR, SH_C0};
use super::device::{SeedRules, Seeded};
use super::layout::Field;
use nalgebra::{Matrix3, Rotation3, UnitQuaternion, Vector3};

/// Minimum cosine between normal and ray, which limits how long a row on a slanted surface gets.
const MIN_COSINE: f64 = 0.2;
/// Standard deviation along the normal, of that across the ray.
const FLATNESS: f64 = 0.2;
/// Neighbours whose depths differ by more than this fraction belong to another surface and give no normal.
const MAX_STEP: f64 = 0.1;

/// A pixel that becomes a row.
struct Surfel {
    pixel: usize,
    /// In the camera frame in world metres.
    point: Vector3<f64>,
    axes: Matrix3<f64>,
    sigmas: Vector3<f64>,
}

/// The point of a pixel in the camera frame in world metres, if it is usable.
fn point(map: &Pointmap<'_>, pixel: usize) -> Option<Vector3<f64>> {
    let p = map.points.get(3 * pixel..3 * pixel + 3)?;
    let p = Vector3::new(p[0], p[1], p[2]).map(f64::from) * map.world_from_camera.scale;
    (p.iter().all(|v| v.is_finite()) && p.z >= f64::from(NEAR)).then_some(p)
}

/// Whether the map, rendered from the pointmap's camera, lacks a pixel of depth `z`.
fn is_new(image: &Image, pixel: usize, z: f64, rules: &SeedRules) -> bool {
    let silhouette = image.silhouette[pixel];
    if silhouette.is_nan() || silhouette < f64::from(rules.max_silhouette) {
        return true;
    }
    image.depth[pixel] / silhouette > z * (1.0 + f64::from(rules.depth_margin))
}

/// Normal of the surface at a pixel, towards the camera, from differences to its neighbours.
fn normal(map: &Pointmap<'_>, x: usize, y: usize, p: &Vector3<f64>) -> Option<Vector3<f64>> {
    let (width, height) = (map.camera.width, map.camera.height);
    let difference = |a: (usize, usize), b: (usize, usize)| {
        let (a, b) = (
            point(map, a.1 * width + a.0)?,
            point(map, b.1 * width + b.0)?,
        );
        let near = (a.z - p.z).abs().max((b.z - p.z).abs()) <= MAX_STEP * p.z;
        near.then(|| b - a)
    };
    let across = difference((x.saturating_sub(1), y), ((x + 1).min(width - 1), y))?;
    let down = difference((x, y.saturating_sub(1)), (x, (y + 1).min(height - 1)))?;
    let n = down.cross(&across).try_normalize(1e-12)?;
    Some(if n.dot(p) > 0.0 { -n } else { n })
}

fn surfel(map: &Pointmap<'_>, x: usize, y: usize, rules: &SeedRules) -> Option<Surfel> {
    let pixel = y * map.camera.width + x;
    let confidence = map.confidence[pixel];
    if confidence.is_nan() || confidence <= rules.min_confidence {
        return None;
    }
    let p = point(map, pixel)?;
    let ray = p.normalize();
    let n = normal(map, x, y, &p).unwrap_or(-ray);
    let cosine = n.dot(&ray).abs().max(MIN_COSINE);
    let k = &map.camera.intrinsics;
    let across = f64::from(rules.spread) * f64::from(rules.stride) * p.z * 2.0 / (k.fx + k.fy);
    // Along the slant, in the surface; any direction of the surface will do where there is no slant.
    let slant = (ray - n * n.dot(&ray)).try_normalize(1e-6);
    let slant = slant.or_else(|| n.cross(&Vector3::x()).try_normalize(0.5));
    let slant = slant.unwrap_or_else(|| n.cross(&Vector3::y()).normalize());
    Some(Surfel {
        pixel,
        point: p,
        axes: Matrix3::from_columns(&[slant, n.cross(&slant), n]),
        sigmas: Vector3::new(across / cosine, across, across * FLATNESS),
    })
}

/// Rows of `degree` for the pixels that `image`, the map rendered from the pointmap's camera, does not show: at most
/// `free` of them, and how many there would be.
pub fn rows(
    map: &Pointmap<'_>,
    image: &Image,
    rules: &SeedRules,
    (free, degree): (u64, u8),
) -> (RowBlock, Seeded) {
    let stride = rules.stride.max(1) as usize;
    let ys = (stride / 2..map.camera.height).step_by(stride);
    let pixels = ys.flat_map(|y| {
        let xs = (stride / 2..map.camera.width).step_by(stride);
        xs.map(move |x| (x, y))
    });
    let surfels = pixels.filter_map(|(x, y)| {
        let surfel = surfel(map, x, y, rules)?;
        is_new(image, surfel.pixel, surfel.point.z, rules).then_some(surfel)
    });
    let surfels: Vec<Surfel> = surfels.collect();
    let wanted = surfels.len() as u64;
    let added = wanted.min(free);
    let mut block = RowBlock::new(added as usize, degree, BlockContent::Parameters);
    let turn = map.world_from_camera.rotation;
    let taken = (0..wanted)
        .zip(&surfels)
        .filter(|(k, _)| wanted <= free || (k + 1) * free / wanted != k * free / wanted);
    for (row, (_, surfel)) in taken.enumerate() {
        let mean = turn * surfel.point + map.world_from_camera.translation;
        let axes = Rotation3::from_matrix_unchecked(surfel.axes);
        let q = turn * UnitQuaternion::from_rotation_matrix(&axes);
        let rgb = &map.image[3 * surfel.pixel..3 * surfel.pixel + 3];
        let dc: Vec<f64> = rgb
            .iter()
            .map(|c| (f64::from(*c) / 255.0 - 0.5) / f64::from(SH_C0))
            .collect();
        let scales = surfel.sigmas.map(f64::ln);
        let mut set = |field, values: &[f64]| {
            let to = block.parameters.row_mut(field, degree, row);
            to.iter_mut()
                .zip(values)
                .for_each(|(to, from)| *to = *from as f32);
        };
        set(Field::Mean, &[mean.x, mean.y, mean.z]);
        set(Field::Scale, scales.as_slice());
        set(Field::Rotation, &[q.w, q.i, q.j, q.k]);
        set(Field::Opacity, &[f64::from(rules.logit)]);
        set(Field::Dc, &dc);
        block.anchor[row] = map.anchor;
    }
    (block, Seeded { wanted, added })
}
