//! One Gaussian, in double precision.

use super::constants::MIN_NORM2;
use super::sh::MAX_COEFFICIENTS;
use nalgebra::{Matrix3, Vector3, Vector4};

/// The parameters of a row as they are stored, and its colour's coefficients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    pub mean: Vector3<f64>,
    /// Natural logarithms.
    pub scale: Vector3<f64>,
    /// w, x, y, z.
    pub rotation: Vector4<f64>,
    /// Opacity.
    pub logit: f64,
    /// Coefficients of R, G, B; those of bands that the map does not have are 0.
    pub sh: [Vector3<f64>; MAX_COEFFICIENTS],
}

/// 1/(1 + e⁻ˣ).
pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// ln(p/(1 − p)).
pub fn logit(p: f64) -> f64 {
    (p / (1.0 - p)).ln()
}

/// The squared norm of a stored quaternion, in this order and without fused operations: devices must agree on it.
pub fn norm2(q: &[f32]) -> f32 {
    match q {
        [w, x, y, z] => ((w * w + x * x) + y * y) + z * z,
        _ => 0.0,
    }
}

/// Whether a quaternion can be normalised.
pub fn is_rotation(q: &[f32]) -> bool {
    norm2(q) >= MIN_NORM2
}

/// Rotation matrix of a unit quaternion w, x, y, z.
pub fn rotation_matrix(q: &Vector4<f64>) -> Matrix3<f64> {
    let (w, x, y, z) = (q[0], q[1], q[2], q[3]);
    Matrix3::new(
        1.0 - 2.0 * (y * y + z * z),
        2.0 * (x * y - w * z),
        2.0 * (x * z + w * y),
        2.0 * (x * y + w * z),
        1.0 - 2.0 * (x * x + z * z),
        2.0 * (y * z - w * x),
        2.0 * (x * z - w * y),
        2.0 * (y * z + w * x),
        1.0 - 2.0 * (x * x + y * y),
    )
}

/// Gradient by the quaternion of which [`rotation_matrix`] was made, from that by the matrix.
pub fn rotation_gradient(q: &Vector4<f64>, g: &Matrix3<f64>) -> Vector4<f64> {
    let (w, x, y, z) = (q[0], q[1], q[2], q[3]);
    let antisymmetric = [
        g[(2, 1)] - g[(1, 2)],
        g[(0, 2)] - g[(2, 0)],
        g[(1, 0)] - g[(0, 1)],
    ];
    let symmetric = [
        g[(2, 1)] + g[(1, 2)],
        g[(0, 2)] + g[(2, 0)],
        g[(1, 0)] + g[(0, 1)],
    ];
    let [a, b, c] = antisymmetric;
    let [p, q, r] = symmetric;
    let (d0, d1, d2) = (g[(0, 0)], g[(1, 1)], g[(2, 2)]);
    Vector4::new(
        2.0 * (x * a + y * b + z * c),
        2.0 * (w * a + y * r + z * q - 2.0 * x * (d1 + d2)),
        2.0 * (w * b + x * r + z * p - 2.0 * y * (d0 + d2)),
        2.0 * (w * c + x * q + y * p - 2.0 * z * (d0 + d1)),
    )
}
