//! Similarity transforms in f64 (in f32 the closed forms suffer from cancellation for small steps).

use nalgebra::{Isometry3, Matrix3, Matrix4, SMatrix, SVector, Unit, UnitQuaternion, Vector3};

/// `[τ(3), φ(3), σ(1)]`: translation, rotation and log-scale parts of a tangent vector.
pub type Tangent = SVector<f64, 7>;

/// `p ↦ s·R·p + t`. `world_from_camera` maps points from the camera frame to the world frame.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sim3 {
    /// t
    pub translation: Vector3<f64>,
    /// R
    pub rotation: UnitQuaternion<f64>,
    /// s > 0
    pub scale: f64,
}

/// Below this norm of `σI + φ^`, the power series of W is used.
const SERIES_LIMIT: f64 = 0.5;
/// Coefficients `1/(k+1)` for the terms `k ≥ 1` of the series; the remainder is below 1e-17.
const SERIES: [f64; 16] = {
    let mut shares = [0.0; 16];
    let mut k = 0;
    while k < shares.len() {
        shares[k] = 1.0 / (k + 2) as f64;
        k += 1;
    }
    shares
};

impl From<&Isometry3<f64>> for Sim3 {
    /// The rigid motion, of scale 1.
    fn from(pose: &Isometry3<f64>) -> Self {
        Self {
            translation: pose.translation.vector,
            rotation: pose.rotation,
            scale: 1.0,
        }
    }
}

impl Default for Sim3 {
    fn default() -> Self {
        Self::identity()
    }
}

impl Sim3 {
    /// The identity transform.
    pub fn identity() -> Self {
        Self {
            translation: Vector3::zeros(),
            rotation: UnitQuaternion::identity(),
            scale: 1.0,
        }
    }

    /// The motion without its scale: a camera's pose in metres, where the scale is only that of a keyframe's points.
    pub fn rigid(&self) -> Isometry3<f64> {
        Isometry3::from_parts(self.translation.into(), self.rotation)
    }

    /// From `[tx ty tz qx qy qz qw s]`; the quaternion is normalised.
    pub fn from_array(a: [f64; 8]) -> Self {
        let q = nalgebra::Quaternion::new(a[6], a[3], a[4], a[5]);
        Self {
            translation: Vector3::new(a[0], a[1], a[2]),
            rotation: UnitQuaternion::from_quaternion(q),
            scale: a[7],
        }
    }

    /// `[tx ty tz qx qy qz qw s]`.
    pub fn to_array(&self) -> [f64; 8] {
        let (t, q) = (&self.translation, self.rotation.quaternion());
        [t.x, t.y, t.z, q.i, q.j, q.k, q.w, self.scale]
    }

    /// Whether every component is finite and the scale positive.
    pub fn is_finite(&self) -> bool {
        self.to_array().iter().all(|v| v.is_finite()) && self.scale > 0.0
    }

    /// Distance between two cameras, in the unit of the translations, and the angle in radians by which they are turned
    /// against each other.
    pub(crate) fn apart(&self, other: &Self) -> (f64, f64) {
        let distance = (self.translation - other.translation).norm();
        (distance, self.rotation.angle_to(&other.rotation))
    }

    /// `s·R·p + t`.
    pub fn transform(&self, p: &Vector3<f64>) -> Vector3<f64> {
        self.rotation * p * self.scale + self.translation
    }

    /// `(−s⁻¹Rᵀt, Rᵀ, s⁻¹)`.
    pub fn inverse(&self) -> Self {
        let rotation = self.rotation.inverse();
        let scale = 1.0 / self.scale;
        Self {
            translation: -(rotation * self.translation) * scale,
            rotation,
            scale,
        }
    }

    /// `s·R` as a matrix.
    pub fn scaled_rotation(&self) -> Matrix3<f64> {
        self.rotation.to_rotation_matrix().into_inner() * self.scale
    }

    /// The 4×4 homogeneous matrix.
    pub fn to_matrix(&self) -> Matrix4<f64> {
        let mut m = Matrix4::identity();
        m.fixed_view_mut::<3, 3>(0, 0)
            .copy_from(&self.scaled_rotation());
        m.fixed_view_mut::<3, 1>(0, 3).copy_from(&self.translation);
        m
    }

    /// The exponential map: `R = exp(φ^)`, `s = e^σ`, `t = W τ`.
    pub fn exp(xi: &Tangent) -> Self {
        let tau = Vector3::new(xi[0], xi[1], xi[2]);
        let phi = Vector3::new(xi[3], xi[4], xi[5]);
        let sigma = xi[6];
        Self {
            translation: w_times(&phi, sigma, &tau),
            rotation: UnitQuaternion::from_scaled_axis(phi),
            scale: sigma.exp(),
        }
    }

    /// The inverse of [`Sim3::exp`] for rotations below π.
    pub fn log(&self) -> Tangent {
        let phi = rotation_log(&self.rotation);
        let sigma = self.scale.ln();
        let w = w_matrix(&phi, sigma);
        // For |φ| < 2π, W is a convergent average of invertible matrices; it can only be singular
        // for non-finite input, and the result is then NaN.
        let tau = w
            .try_inverse()
            .map_or(Vector3::repeat(f64::NAN), |inv| inv * self.translation);
        Tangent::from_column_slice(&[tau.x, tau.y, tau.z, phi.x, phi.y, phi.z, sigma])
    }

    /// `Exp(ξ)·self`, with the quaternion renormalised.
    pub fn retract(&self, xi: &Tangent) -> Self {
        let mut out = Self::exp(xi) * *self;
        out.rotation = UnitQuaternion::new_normalize(out.rotation.into_inner());
        out
    }

    /// `Ad(T)` with `T·Exp(ξ) = Exp(Ad(T)ξ)·T`: `[[sR, t^R, −t], [0, R, 0], [0, 0, 1]]`.
    pub fn adjoint(&self) -> SMatrix<f64, 7, 7> {
        let r = self.rotation.to_rotation_matrix().into_inner();
        let mut ad = SMatrix::<f64, 7, 7>::zeros();
        ad.fixed_view_mut::<3, 3>(0, 0).copy_from(&(r * self.scale));
        ad.fixed_view_mut::<3, 3>(0, 3)
            .copy_from(&(self.translation.cross_matrix() * r));
        ad.fixed_view_mut::<3, 1>(0, 6)
            .copy_from(&(-self.translation));
        ad.fixed_view_mut::<3, 3>(3, 3).copy_from(&r);
        ad[(6, 6)] = 1.0;
        ad
    }
}

impl std::ops::Mul for Sim3 {
    type Output = Sim3;

    /// `(t₁ + s₁R₁t₂, q₁q₂, s₁s₂)`.
    fn mul(self, rhs: Sim3) -> Sim3 {
        Sim3 {
            translation: self.transform(&rhs.translation),
            rotation: self.rotation * rhs.rotation,
            scale: self.scale * rhs.scale,
        }
    }
}

/// Rotation vector in radians, accurate near the identity where `acos` is not.
pub fn rotation_log(q: &UnitQuaternion<f64>) -> Vector3<f64> {
    let (mut w, mut v) = (q.w, q.imag());
    if w < 0.0 {
        w = -w;
        v = -v;
    }
    let n = v.norm();
    if n < 1e-12 {
        return v * 2.0;
    }
    v * (2.0 * n.atan2(w) / n)
}

/// `W·τ`. Within the range of the series, which covers every solver step, Horner's rule is used:
/// matrix products would take nearly all the time of an exponential.
fn w_times(phi: &Vector3<f64>, sigma: f64, tau: &Vector3<f64>) -> Vector3<f64> {
    let size = phi.norm() + sigma.abs();
    if size < SERIES_LIMIT {
        // (1/16)⁹/10! is also below 1e-17.
        let terms = if size < 0.0625 { 8 } else { SERIES.len() };
        let shares = SERIES[..terms].iter().rev();
        return shares.fold(*tau, |t, share| tau + (phi.cross(&t) + t * sigma) * *share);
    }
    w_matrix(phi, sigma) * tau
}

/// `W = ∫₀¹ exp(t(σI + φ^)) dt`, which maps τ to the translation.
fn w_matrix(phi: &Vector3<f64>, sigma: f64) -> Matrix3<f64> {
    let hat = phi.cross_matrix();
    let theta = phi.norm();
    if theta + sigma.abs() < SERIES_LIMIT {
        let x = hat + Matrix3::identity() * sigma;
        let (mut term, mut sum) = (Matrix3::identity(), Matrix3::identity());
        for share in SERIES {
            term = term * x * share;
            sum += term;
        }
        return sum;
    }
    let s = sigma.exp();
    let c0 = if sigma.abs() < 1e-12 {
        1.0
    } else {
        sigma.exp_m1() / sigma
    };
    let (a_coef, b_coef) = if theta < 1e-6 {
        // Here |σ| ≥ 0.5.
        let s2 = sigma * sigma;
        (
            ((sigma - 1.0) * s + 1.0) / s2,
            (s * s2 * 0.5 + s - 1.0 - sigma * s) / (s2 * sigma),
        )
    } else {
        let (a, b) = (s * theta.sin(), s * theta.cos());
        let c = theta * theta + sigma * sigma;
        (
            (a * sigma + (1.0 - b) * theta) / (theta * c),
            (c0 - ((b - 1.0) * sigma + a * theta) / c) / (theta * theta),
        )
    };
    Matrix3::identity() * c0 + hat * a_coef + hat * hat * b_coef
}

impl Sim3 {
    /// `world_from_camera` of a camera (z forward, x right, y down) at `eye`, looking at `target`.
    pub fn look_at(eye: Vector3<f64>, target: Vector3<f64>, down: Vector3<f64>) -> Self {
        let z = Unit::new_normalize(target - eye).into_inner();
        let x = Unit::new_normalize(down.cross(&z)).into_inner();
        let y = z.cross(&x);
        let r = nalgebra::Rotation3::from_matrix_unchecked(Matrix3::from_columns(&[x, y, z]));
        Self {
            translation: eye,
            rotation: UnitQuaternion::from_rotation_matrix(&r),
            scale: 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tangent(limit: f64) -> impl Strategy<Value = Tangent> {
        proptest::collection::vec(-limit..limit, 7).prop_map(|v| Tangent::from_column_slice(&v))
    }

    /// Matrix exponential of the 4×4 generator by scaling and squaring: an independent definition.
    fn exp_matrix(xi: &Tangent) -> Matrix4<f64> {
        let mut g = Matrix4::zeros();
        let hat = Vector3::new(xi[3], xi[4], xi[5]).cross_matrix();
        g.fixed_view_mut::<3, 3>(0, 0)
            .copy_from(&(hat + Matrix3::identity() * xi[6]));
        for k in 0..3 {
            g[(k, 3)] = xi[k];
        }
        g.exp()
    }

    proptest! {
        #[test]
        fn exp_is_the_matrix_exponential(xi in tangent(1.5)) {
            prop_assert!((Sim3::exp(&xi).to_matrix() - exp_matrix(&xi)).norm() < 1e-10);
        }

        #[test]
        fn tiny_steps_keep_full_precision(xi in tangent(1.0), k in 1..14i32) {
            let xi = xi * 10f64.powi(-k);
            let t = Sim3::exp(&xi);
            prop_assert!((t.log() - xi).norm() <= 1e-13 * (1.0 + xi.norm()));
            let back = t.translation - Vector3::new(xi[0], xi[1], xi[2]);
            prop_assert!(back.norm() <= xi.norm() * xi.norm() + 1e-300);
        }

        #[test]
        fn log_inverts_exp(xi in tangent(1.2)) {
            prop_assert!((Sim3::exp(&xi).log() - xi).norm() < 1e-9);
        }

        #[test]
        fn the_group_laws_hold(a in tangent(1.0), b in tangent(1.0)) {
            let (a, b) = (Sim3::exp(&a), Sim3::exp(&b));
            prop_assert!(((a * b).to_matrix() - a.to_matrix() * b.to_matrix()).norm() < 1e-12);
            prop_assert!(((a * a.inverse()).to_matrix() - Matrix4::identity()).norm() < 1e-12);
        }

        #[test]
        fn adjoint_moves_a_step_to_the_left(a in tangent(1.0), xi in tangent(0.5)) {
            let a = Sim3::exp(&a);
            let left = Sim3::exp(&(a.adjoint() * xi)) * a;
            prop_assert!((left.to_matrix() - (a * Sim3::exp(&xi)).to_matrix()).norm() < 1e-9);
        }

        #[test]
        fn the_left_jacobian_of_a_point_is_closed_form(a in tangent(1.0), p in proptest::array::uniform3(-3.0..3.0f64)) {
            let a = Sim3::exp(&a);
            let q = a.transform(&Vector3::from(p));
            let hat = q.cross_matrix();
            for k in 0..7 {
                let mut xi = Tangent::zeros();
                xi[k] = 1e-6;
                let plus = a.retract(&xi).transform(&Vector3::from(p));
                let minus = a.retract(&-xi).transform(&Vector3::from(p));
                let numeric = (plus - minus) / 2e-6;
                let closed = match k {
                    0..=2 => Vector3::ith(k, 1.0),
                    3..=5 => -hat.column(k - 3).into_owned(),
                    _ => q,
                };
                prop_assert!((numeric - closed).norm() < 1e-7);
            }
        }
    }
}
