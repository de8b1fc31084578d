//! The projection of a row into a camera, and its derivative (docs/algorithm.md, Gaussian map).

use super::camera::Camera;
use super::constants::{FIELD_MARGIN, LOW_PASS, MAX_SIGMAS, MIN_ALPHA, NEAR, TILE};
use super::layout::coefficients;
use super::row::{Row, rotation_gradient, rotation_matrix, sigmoid};
use super::sh::{MAX_COEFFICIENTS, basis, basis_gradient};
use nalgebra::{Matrix2, Matrix2x3, Matrix3, Vector2, Vector3, Vector4};

/// A row as the blending sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Projected {
    /// Projected mean, pixels.
    pub pixel: Vector2<f64>,
    /// Inverse of the projected covariance: xx, xy, yy; 1/square pixels.
    pub conic: [f64; 3],
    /// z in the camera frame, metres.
    pub depth: f64,
    pub opacity: f64,
    pub color: Vector3<f64>,
    /// Tiles that the row may reach: first and last column, first and last row of tiles.
    pub tiles: [u32; 4],
}

/// Gradient of the loss by a [`Projected`].
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ProjectedGradient {
    pub pixel: Vector2<f64>,
    /// By the conic as a symmetric matrix: xx, xy, yy (the entry yx equals xy).
    pub conic: [f64; 3],
    pub depth: f64,
    pub opacity: f64,
    pub color: Vector3<f64>,
}

impl std::ops::AddAssign for ProjectedGradient {
    fn add_assign(&mut self, other: Self) {
        self.pixel += other.pixel;
        for (a, b) in self.conic.iter_mut().zip(other.conic) {
            *a += b;
        }
        self.depth += other.depth;
        self.opacity += other.opacity;
        self.color += other.color;
    }
}

/// Gradient of the loss by a [`Row`]'s parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowGradient {
    pub mean: Vector3<f64>,
    pub scale: Vector3<f64>,
    pub rotation: Vector4<f64>,
    pub logit: f64,
    pub sh: [Vector3<f64>; MAX_COEFFICIENTS],
    /// By ξ = (ρ, φ) of exp(ξ)·camera_from_world.
    pub pose: [f64; 6],
}

/// What both directions compute.
struct Chain {
    /// Mean in the camera frame.
    p: Vector3<f64>,
    /// x/z and y/z as the Jacobian takes them, and whether they are those of the mean.
    slope: Vector2<f64>,
    inside: [bool; 2],
    /// q/|q| and |q|.
    unit: Vector4<f64>,
    norm: f64,
    turn: Matrix3<f64>,
    sigmas: Vector3<f64>,
    covariance: Matrix3<f64>,
    /// J R.
    m: Matrix2x3<f64>,
    projected: Matrix2<f64>,
}

impl Chain {
    fn new(row: &Row, camera: &Camera) -> Self {
        let k = &camera.intrinsics;
        let p = camera.rotation * row.mean + camera.translation;
        let limit = |size: usize, c: f64, f: f64| {
            f64::from(FIELD_MARGIN) * (c + 0.5).max(size as f64 - 0.5 - c).max(0.5) / f
        };
        let limits = [
            limit(camera.width, k.cx, k.fx),
            limit(camera.height, k.cy, k.fy),
        ];
        let raw = [p.x / p.z, p.y / p.z];
        let inside = [raw[0].abs() <= limits[0], raw[1].abs() <= limits[1]];
        let slope = Vector2::new(
            raw[0].clamp(-limits[0], limits[0]),
            raw[1].clamp(-limits[1], limits[1]),
        );
        let j = Matrix2x3::new(
            k.fx / p.z,
            0.0,
            -k.fx * slope.x / p.z,
            0.0,
            k.fy / p.z,
            -k.fy * slope.y / p.z,
        );
        let norm = row.rotation.norm();
        let unit = row.rotation / norm;
        let turn = rotation_matrix(&unit);
        let sigmas = row.scale.map(f64::exp);
        let l = turn * Matrix3::from_diagonal(&sigmas);
        let covariance = l * l.transpose();
        let m = j * camera.rotation;
        let projected =
            m * covariance * m.transpose() + Matrix2::from_diagonal_element(f64::from(LOW_PASS));
        Self {
            p,
            slope,
            inside,
            unit,
            norm,
            turn,
            sigmas,
            covariance,
            m,
            projected,
        }
    }
}

/// Direction from the camera to the row and their distance.
fn direction(row: &Row, camera: &Camera) -> (Vector3<f64>, f64) {
    let v = row.mean - camera.centre();
    let distance = v.norm();
    (v / distance, distance)
}

/// The colour before it is limited to 0 and above.
fn raw_color(row: &Row, camera: &Camera, bands: usize) -> Vector3<f64> {
    let y = basis(&direction(row, camera).0);
    let terms = (0..bands).map(|k| row.sh[k] * y[k]);
    terms.fold(Vector3::repeat(0.5), |sum, term| sum + term)
}

/// Whether a channel is not limited to 0. One that is not finite is drawn as 0.
fn is_drawn(channel: f64) -> bool {
    channel > 0.0 && channel.is_finite()
}

/// Projects a row whose shape's values are finite and whose quaternion can be normalised. `None` if it does not reach the
/// image.
pub fn project(row: &Row, camera: &Camera) -> Option<Projected> {
    let opacity = sigmoid(row.logit);
    let z = (camera.rotation * row.mean + camera.translation).z;
    // Written so that NaN is not drawn.
    if !(z >= f64::from(NEAR) && opacity >= f64::from(MIN_ALPHA)) {
        return None;
    }
    let chain = Chain::new(row, camera);
    let cov = &chain.projected;
    let det = cov[(0, 0)] * cov[(1, 1)] - cov[(0, 1)] * cov[(0, 1)];
    if !(det.is_finite() && det > 0.0) {
        return None;
    }
    let k = &camera.intrinsics;
    let p = &chain.p;
    let pixel = Vector2::new(k.fx * p.x / p.z + k.cx, k.fy * p.y / p.z + k.cy);
    let sigmas = (2.0 * (opacity / f64::from(MIN_ALPHA)).ln())
        .max(0.0)
        .sqrt()
        .min(f64::from(MAX_SIGMAS));
    let reach = [sigmas * cov[(0, 0)].sqrt(), sigmas * cov[(1, 1)].sqrt()];
    let columns = tile_range(pixel.x, reach[0], camera.width)?;
    let rows = tile_range(pixel.y, reach[1], camera.height)?;
    let bands = coefficients(camera.degree.min(super::layout::MAX_DEGREE));
    Some(Projected {
        pixel,
        conic: [cov[(1, 1)] / det, -cov[(0, 1)] / det, cov[(0, 0)] / det],
        depth: p.z,
        opacity,
        color: raw_color(row, camera, bands).map(|c| if is_drawn(c) { c } else { 0.0 }),
        tiles: [columns.0, columns.1, rows.0, rows.1],
    })
}

/// First and last tile with a pixel centre within `reach` of `centre`.
fn tile_range(centre: f64, reach: f64, size: usize) -> Option<(u32, u32)> {
    let first = (centre - reach).ceil().max(0.0);
    let last = (centre + reach).floor().min(size as f64 - 1.0);
    // Written so that NaN is not drawn.
    if first <= last {
        Some((first as u32 / TILE, last as u32 / TILE))
    } else {
        None
    }
}

/// Gradient by a row that [`project`] drew.
pub fn project_backward(row: &Row, camera: &Camera, g: &ProjectedGradient) -> RowGradient {
    let chain = Chain::new(row, camera);
    let k = &camera.intrinsics;
    let (p, r) = (&chain.p, &camera.rotation);
    let conic = chain.projected.try_inverse().unwrap_or_default();
    let by_conic = Matrix2::new(g.conic[0], g.conic[1], g.conic[1], g.conic[2]);
    let a = -(conic * by_conic * conic);
    let by_covariance = chain.m.transpose() * a * chain.m;
    let by_m = (a * chain.m * chain.covariance) * 2.0;
    let by_j = by_m * r.transpose();

    let (z, z2) = (p.z, p.z * p.z);
    let (j02, j12) = (by_j[(0, 2)], by_j[(1, 2)]);
    let mut by_p = Vector3::new(
        k.fx / z * g.pixel.x,
        k.fy / z * g.pixel.y,
        -(k.fx * p.x * g.pixel.x + k.fy * p.y * g.pixel.y) / z2
            - (k.fx * by_j[(0, 0)] + k.fy * by_j[(1, 1)]) / z2
            + g.depth,
    );
    for (axis, (f, by)) in [(k.fx, j02), (k.fy, j12)].into_iter().enumerate() {
        // J₀₂ = −f·slope/z; the slope is x/z within the field and constant outside.
        by_p.z += f * chain.slope[axis] / z2 * by;
        if chain.inside[axis] {
            by_p[axis] -= f / z2 * by;
            by_p.z += f * p[axis] / (z2 * z) * by;
        }
    }

    let bands = coefficients(camera.degree.min(super::layout::MAX_DEGREE));
    let raw = raw_color(row, camera, bands);
    let by_color = g
        .color
        .zip_map(&raw, |g, c| if is_drawn(c) { g } else { 0.0 });
    let (d, distance) = direction(row, camera);
    let (y, slopes) = (basis(&d), basis_gradient(&d));
    let mut sh = [Vector3::zeros(); MAX_COEFFICIENTS];
    let mut by_direction = Vector3::zeros();
    let terms = sh.iter_mut().zip(y).zip(slopes).zip(&row.sh);
    for (((sh, y), slope), old) in terms.take(bands) {
        *sh = by_color * y;
        // A channel without gradient may have coefficients that are not finite.
        for (old, by) in old
            .iter()
            .zip(by_color.iter())
            .filter(|(_, by)| **by != 0.0)
        {
            by_direction += slope * (old * by);
        }
    }
    let by_view = (by_direction - d * d.dot(&by_direction)) / distance;

    let l = chain.turn * Matrix3::from_diagonal(&chain.sigmas);
    let by_l = (by_covariance * l) * 2.0;
    let scale = Vector3::from_fn(|axis, _| {
        by_l.column(axis).dot(&chain.turn.column(axis)) * chain.sigmas[axis]
    });
    let by_turn = by_l * Matrix3::from_diagonal(&chain.sigmas);
    let by_unit = rotation_gradient(&chain.unit, &by_turn);
    let rotation = (by_unit - chain.unit * chain.unit.dot(&by_unit)) / chain.norm;

    let by_view_rotation = j_transposed(&chain, camera) * by_m;
    let q = by_view_rotation * r.transpose();
    let rho = by_p + r * by_view;
    let phi = p.cross(&by_p)
        + Vector3::new(
            q[(2, 1)] - q[(1, 2)],
            q[(0, 2)] - q[(2, 0)],
            q[(1, 0)] - q[(0, 1)],
        );
    let opacity = sigmoid(row.logit);
    RowGradient {
        mean: r.transpose() * by_p + by_view,
        scale,
        rotation,
        logit: g.opacity * opacity * (1.0 - opacity),
        sh,
        pose: [rho.x, rho.y, rho.z, phi.x, phi.y, phi.z],
    }
}

/// Jᵀ: M Rᵀ is J.
fn j_transposed(chain: &Chain, camera: &Camera) -> nalgebra::Matrix3x2<f64> {
    (chain.m * camera.rotation.transpose()).transpose()
}
