//! Real spherical harmonics up to degree 3, in the order and with the signs of 3D Gaussian splatting.

use super::constants::{SH_C0, SH_C1, SH_C2, SH_C3};
use nalgebra::{DMatrix, Matrix3, Vector3};

/// Maximum number of coefficients of a colour channel.
pub const MAX_COEFFICIENTS: usize = 16;

/// Values of the basis functions at a unit direction.
pub fn basis(d: &Vector3<f64>) -> [f64; MAX_COEFFICIENTS] {
    let (x, y, z) = (d.x, d.y, d.z);
    let (xx, yy, zz) = (x * x, y * y, z * z);
    let c1 = f64::from(SH_C1);
    let (c2, c3) = (SH_C2.map(f64::from), SH_C3.map(f64::from));
    [
        f64::from(SH_C0),
        -c1 * y,
        c1 * z,
        -c1 * x,
        c2[0] * x * y,
        -c2[1] * y * z,
        c2[2] * (2.0 * zz - xx - yy),
        -c2[3] * x * z,
        c2[4] * (xx - yy),
        -c3[0] * y * (3.0 * xx - yy),
        c3[1] * x * y * z,
        -c3[2] * y * (4.0 * zz - xx - yy),
        c3[3] * z * (2.0 * zz - 3.0 * xx - 3.0 * yy),
        -c3[4] * x * (4.0 * zz - xx - yy),
        c3[5] * z * (xx - yy),
        -c3[6] * x * (xx - 3.0 * yy),
    ]
}

/// Derivatives of [`basis`] by x, y and z.
pub fn basis_gradient(d: &Vector3<f64>) -> [Vector3<f64>; MAX_COEFFICIENTS] {
    let (x, y, z) = (d.x, d.y, d.z);
    let (xx, yy, zz) = (x * x, y * y, z * z);
    let c1 = f64::from(SH_C1);
    let (c2, c3) = (SH_C2.map(f64::from), SH_C3.map(f64::from));
    let v = Vector3::new;
    [
        v(0.0, 0.0, 0.0),
        v(0.0, -c1, 0.0),
        v(0.0, 0.0, c1),
        v(-c1, 0.0, 0.0),
        v(y, x, 0.0) * c2[0],
        v(0.0, z, y) * -c2[1],
        v(-2.0 * x, -2.0 * y, 4.0 * z) * c2[2],
        v(z, 0.0, x) * -c2[3],
        v(2.0 * x, -2.0 * y, 0.0) * c2[4],
        v(6.0 * x * y, 3.0 * xx - 3.0 * yy, 0.0) * -c3[0],
        v(y * z, x * z, x * y) * c3[1],
        v(-2.0 * x * y, 4.0 * zz - xx - 3.0 * yy, 8.0 * y * z) * -c3[2],
        v(-6.0 * x * z, -6.0 * y * z, 6.0 * zz - 3.0 * xx - 3.0 * yy) * c3[3],
        v(4.0 * zz - 3.0 * xx - yy, -2.0 * x * y, 8.0 * x * z) * -c3[4],
        v(2.0 * x * z, -2.0 * y * z, xx - yy) * c3[5],
        v(3.0 * xx - 3.0 * yy, -6.0 * x * y, 0.0) * -c3[6],
    ]
}

/// How a rotation acts on the coefficients of bands 1 to 3: the colour seen along R d becomes the one that was seen
/// along d.
#[derive(Debug, Clone, PartialEq)]
pub struct BandRotation {
    /// Row-major matrices of 3×3, 5×5 and 7×7 values, one after the other.
    matrices: [f32; 9 + 25 + 49],
}

/// Directions at which the bands are compared; more than the seven functions of the third band.
const DIRECTIONS: usize = 24;

impl BandRotation {
    /// The action of a rotation matrix.
    pub fn new(rotation: &Matrix3<f64>) -> Self {
        // A spiral over the sphere: no band vanishes on it.
        let directions: Vec<Vector3<f64>> = (0..DIRECTIONS)
            .map(|i| {
                let z = 1.0 - (2 * i + 1) as f64 / DIRECTIONS as f64;
                let (angle, r) = (2.399_963_229_728_653 * i as f64, (1.0 - z * z).sqrt());
                Vector3::new(r * angle.cos(), r * angle.sin(), z)
            })
            .collect();
        let inverse = rotation.transpose();
        let mut matrices = [0.0; 83];
        let mut offset = 0;
        for degree in 1..=3_usize {
            let (first, n) = (degree * degree, 2 * degree + 1);
            let at = |turn: &Matrix3<f64>| {
                DMatrix::from_fn(DIRECTIONS, n, |i, k| {
                    basis(&(turn * directions[i]))[first + k]
                })
            };
            let (here, there) = (at(&Matrix3::identity()), at(&inverse));
            // Least squares of here·M = there, which has an exact solution: a band is closed under rotation.
            let normal = here.transpose() * &here;
            let solved = normal.try_inverse().map(|m| m * here.transpose() * there);
            for row in 0..n {
                for column in 0..n {
                    let value = solved.as_ref().map_or(f64::NAN, |m| m[(row, column)]);
                    matrices[offset + row * n + column] = value as f32;
                }
            }
            offset += n * n;
        }
        Self { matrices }
    }

    /// The matrices of bands 1, 2 and 3, row-major, one after the other.
    pub fn matrices(&self) -> &[f32; 83] {
        &self.matrices
    }

    /// Rotates the higher bands of a row: coefficients of R, G, B, `3 × 3`, `8 × 3` or `15 × 3` of them, or none.
    pub fn apply(&self, rest: &mut [f32]) {
        let (mut offset, mut first) = (0, 0);
        for degree in 1..=3_usize {
            let n = 2 * degree + 1;
            let Some(band) = rest.get_mut(3 * first..3 * (first + n)) else {
                return;
            };
            let mut old = [0.0; 21];
            old[..3 * n].copy_from_slice(band);
            for row in 0..n {
                for channel in 0..3 {
                    let terms =
                        (0..n).map(|k| self.matrices[offset + row * n + k] * old[3 * k + channel]);
                    band[3 * row + channel] = terms.sum();
                }
            }
            offset += n * n;
            first += n;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nalgebra::UnitQuaternion;
    use proptest::prelude::*;

    fn direction() -> impl Strategy<Value = Vector3<f64>> {
        proptest::array::uniform3(-1.0..1.0f64)
            .prop_filter("not the origin", |d| Vector3::from(*d).norm() > 0.1)
            .prop_map(|d| Vector3::from(d).normalize())
    }

    proptest! {
        #[test]
        fn the_gradient_is_that_of_central_differences(d in direction()) {
            let gradient = basis_gradient(&d);
            for axis in 0..3 {
                let h = Vector3::ith(axis, 1e-6);
                let (plus, minus) = (basis(&(d + h)), basis(&(d - h)));
                let pairs = plus.iter().zip(minus).zip(gradient);
                for ((plus, minus), gradient) in pairs {
                    let numeric = (plus - minus) / 2e-6;
                    prop_assert!((numeric - gradient[axis]).abs() < 1e-8);
                }
            }
        }

        #[test]
        fn a_rotated_row_has_the_old_color_along_the_rotated_direction(
            d in direction(),
            axis in proptest::array::uniform3(-3.0..3.0f64),
            rest in proptest::collection::vec(-1.0..1.0f32, 45),
        ) {
            let r = UnitQuaternion::from_scaled_axis(Vector3::from(axis));
            let color = |rest: &[f32], d: &Vector3<f64>, channel: usize| -> f64 {
                let y = basis(d);
                (1..16).map(|k| y[k] * f64::from(rest[3 * (k - 1) + channel])).sum()
            };
            let mut turned = rest.clone();
            BandRotation::new(&r.to_rotation_matrix().into_inner()).apply(&mut turned);
            for channel in 0..3 {
                let (old, new) = (color(&rest, &d, channel), color(&turned, &(r * d), channel));
                prop_assert!((old - new).abs() < 1e-4, "{} {}", old, new);
            }
        }
    }

    #[test]
    fn the_basis_is_orthonormal_over_the_sphere() {
        let n = 20_000;
        let mut gram = [[0.0; 16]; 16];
        for i in 0..n {
            let z = 1.0 - f64::from(2 * i + 1) / f64::from(n);
            let (angle, r) = (2.399_963_229_728_653 * f64::from(i), (1.0 - z * z).sqrt());
            let y = basis(&Vector3::new(r * angle.cos(), r * angle.sin(), z));
            for (a, ya) in y.iter().enumerate() {
                for (b, yb) in y.iter().enumerate() {
                    gram[a][b] += ya * yb * 4.0 * std::f64::consts::PI / f64::from(n);
                }
            }
        }
        for (a, row) in gram.iter().enumerate() {
            for (b, value) in row.iter().enumerate() {
                let expected = if a == b { 1.0 } else { 0.0 };
                assert!((value - expected).abs() < 1e-3, "{a} {b} {value}");
            }
        }
    }
}
