//! Least-squares alignment of one point set to another by rotation, translation and scale.

use crate::geometry::Sim3;
use nalgebra::{Matrix3, Matrix4, Quaternion, SymmetricEigen, UnitQuaternion, Vector3};

/// Minimises `Σ |yᵢ − (s R xᵢ + t)|²`, Umeyama's problem ("Least-squares estimation of
/// transformation parameters between two point patterns", 1991), solved for R by Horn's quaternion
/// (1987): the eigenvector of the largest eigenvalue of a symmetric 4×4 matrix, which is a rotation
/// by construction. `s = 1` unless `with_scale`. `None` if the rotation is not determined (all
/// points in one place or exactly on one line) or the input is not finite.
pub fn align(x: &[Vector3<f64>], y: &[Vector3<f64>], with_scale: bool) -> Option<Sim3> {
    let n = x.len().min(y.len());
    if n == 0 {
        return None;
    }
    let (x, y) = (&x[..n], &y[..n]);
    let mean = |p: &[Vector3<f64>]| p.iter().sum::<Vector3<f64>>() / n as f64;
    let (mean_x, mean_y) = (mean(x), mean(y));
    let mut covariance = Matrix3::zeros();
    let mut variance = 0.0;
    for (a, b) in x.iter().zip(y) {
        let (a, b) = (a - mean_x, b - mean_y);
        covariance += a * b.transpose();
        variance += a.norm_squared();
    }
    let s = covariance / n as f64;
    let variance = variance / n as f64;
    if s.iter().any(|v| !v.is_finite()) || !variance.is_finite() {
        return None;
    }
    #[rustfmt::skip]
    let horn = Matrix4::new(
        s.trace(), s.m23 - s.m32, s.m31 - s.m13, s.m12 - s.m21,
        s.m23 - s.m32, s.m11 - s.m22 - s.m33, s.m12 + s.m21, s.m31 + s.m13,
        s.m31 - s.m13, s.m12 + s.m21, s.m22 - s.m11 - s.m33, s.m23 + s.m32,
        s.m12 - s.m21, s.m31 + s.m13, s.m23 + s.m32, s.m33 - s.m11 - s.m22,
    );
    let eigen = SymmetricEigen::try_new(horn, f64::EPSILON, 1000)?;
    let mut order = [0, 1, 2, 3];
    order.sort_by(|&a, &b| eigen.eigenvalues[b].total_cmp(&eigen.eigenvalues[a]));
    let largest = eigen.eigenvalues[order[0]];
    // Half the gap equals d₂ ± d₃, the singular values of the covariance; evo requires d₂ to exceed
    // epsilon.
    if (largest - eigen.eigenvalues[order[1]]) * 0.5 <= f64::EPSILON {
        return None;
    }
    let q = eigen.eigenvectors.column(order[0]);
    let rotation = UnitQuaternion::from_quaternion(Quaternion::new(q[0], q[1], q[2], q[3]));
    // The largest eigenvalue equals trace(D S) in Umeyama's formula.
    let scale = if with_scale { largest / variance } else { 1.0 };
    let aligned = Sim3 {
        translation: mean_y - rotation * mean_x * scale,
        rotation,
        scale,
    };
    aligned.is_finite().then_some(aligned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Tangent;
    use proptest::prelude::*;

    fn points(n: usize) -> impl Strategy<Value = Vec<Vector3<f64>>> {
        proptest::collection::vec(proptest::array::uniform3(-5.0..5.0f64), n)
            .prop_map(|v| v.into_iter().map(Vector3::from).collect())
    }

    fn error(t: &Sim3, x: &[Vector3<f64>], y: &[Vector3<f64>]) -> f64 {
        let pairs = x.iter().zip(y);
        pairs
            .map(|(a, b)| (b - t.transform(a)).norm_squared())
            .sum()
    }

    proptest! {
        #[test]
        fn a_similarity_is_found_again(
            x in points(12),
            xi in proptest::collection::vec(-1.5..1.5f64, 7),
        ) {
            let truth = Sim3::exp(&Tangent::from_column_slice(&xi));
            let y: Vec<_> = x.iter().map(|p| truth.transform(p)).collect();
            let found = align(&x, &y, true).unwrap();
            // Twelve random points span the space: the condition number is far below 1e4.
            prop_assert!((found.to_matrix() - truth.to_matrix()).norm() < 1e-10);
        }

        #[test]
        fn no_small_step_does_better(
            x in points(8),
            y in points(8),
            with_scale: bool,
            xi in proptest::collection::vec(-1.0..1.0f64, 7),
        ) {
            let best = align(&x, &y, with_scale).unwrap();
            let mut xi = Tangent::from_column_slice(&xi) * 1e-3;
            if !with_scale {
                prop_assert_eq!(best.scale, 1.0);
                xi[6] = 0.0;
            }
            let other = best.retract(&xi);
            prop_assert!(error(&other, &x, &y) >= error(&best, &x, &y) * (1.0 - 1e-12));
        }
    }

    #[test]
    fn mirrored_points_give_a_rotation_all_the_same() {
        let x: Vec<_> = [[0., 0., 0.], [1., 0., 0.], [0., 2., 0.], [0., 0., 3.]]
            .map(Vector3::from)
            .to_vec();
        let y: Vec<_> = x.iter().map(|p| Vector3::new(-p.x, p.y, p.z)).collect();
        let t = align(&x, &y, true).unwrap();
        let det = t.rotation.to_rotation_matrix().matrix().determinant();
        assert!((det - 1.0).abs() < 1e-12 && t.scale > 0.0);
    }

    #[test]
    fn undetermined_rotations_are_refused() {
        let here = vec![Vector3::new(1.0, 2.0, 3.0); 5];
        let line: Vec<_> = (0..5).map(|k| Vector3::x() * f64::from(k)).collect();
        let broken = vec![Vector3::new(f64::NAN, 0.0, 0.0); 5];
        let huge: Vec<_> = (0..5)
            .map(|k| Vector3::x() * f64::from(k) * 1e200)
            .collect();
        for x in [&here, &line, &broken, &huge, &vec![]] {
            assert!(align(x, x, true).is_none());
        }
    }
}
