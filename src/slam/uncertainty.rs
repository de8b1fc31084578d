//! Covariance of a tracked pose.

use crate::compute::device::Fit;
use crate::geometry::Sim3;
use nalgebra::{Cholesky, SMatrix, Vector3};

/// Covariance of a position in metres and an orientation in radians: `x, y, z`, rotations about the
/// fixed axes `x, y, z`.
pub type Covariance6 = SMatrix<f64, 6, 6>;

/// Number of independent measurements per correspondence: a direction or a pixel (2), and a
/// distance or depth (1).
const MEASUREMENTS: f64 = 3.0;

/// Standard deviation of the logarithm of the ratio of a frame's scale to its keyframe's, before anything was
/// matched: a metric network predicts both. For true pairs the bundled network's scales agree to within 5 %.
const LOG_SCALE_SIGMA: f64 = 0.05;

/// Minimum residual variance, for exact data, in units of the σs.
const MIN_VARIANCE: f64 = 1e-12;

/// Covariance of a camera tracked against a keyframe, about the world axes. The keyframe's own pose
/// and scale are taken as exact.
///
/// Least squares leaves `Cov(ξ) = s²·H⁻¹` for the perturbation `ξ = [τ, φ, σ]` of `keyframe_from_frame` from the
/// left, with the residual variance `s² = Σ ρ w² / (3·used − 7)` (Hartley and Zisserman, Multiple View Geometry,
/// 2nd edition, section 5.2), if residuals are independent. A network's are not: its pixels err patch by patch.
/// So the information counts once for each patch instead of each pixel, `H / (κ·s²)` with
/// `κ = pixels_per_patch`. Matched directions alone leave scale open, and with it how far the camera went; the
/// network's distances have so little weight beside them that one `s²` for both ignores them. The knowledge that
/// both views are metric is therefore added to the information about `σ`, as a prior: with the standard deviation of
/// the map's measured scale, `scale_sigma`, or of 5 % if no sensor measures it.
///
/// The camera, at `q` in the keyframe's frame, moves by `δp = s·R·(τ + φ×q + σ·q)` and rotates by
/// `δθ = R·φ`, with scale and rotation of `world_from_keyframe`.
///
/// `None` if the normal equations do not determine all directions.
pub fn covariance_of_camera(
    fit: &Fit,
    pixels_per_patch: f64,
    scale_sigma: Option<f64>,
    keyframe_from_frame: &Sim3,
    world_from_keyframe: &Sim3,
) -> Option<Covariance6> {
    let freedom = (MEASUREMENTS * fit.used as f64 - 7.0).max(1.0);
    let variance = (2.0 * fit.cost / freedom).max(MIN_VARIANCE);
    let mut information = fit.hessian / (variance * pixels_per_patch);
    information[(6, 6)] += scale_sigma.unwrap_or(LOG_SCALE_SIGMA).powi(-2);
    // Metres and radians have different magnitudes; after scaling, the matrix is far from singular.
    let scale = information.diagonal().map(|d| 1.0 / d.sqrt());
    let scaled = SMatrix::<f64, 7, 7>::from_fn(|r, c| information[(r, c)] * scale[r] * scale[c]);
    let inverse = Cholesky::new(scaled)?.inverse();
    let of_step = SMatrix::<f64, 7, 7>::from_fn(|r, c| inverse[(r, c)] * scale[r] * scale[c]);
    let rotation = world_from_keyframe.rotation.to_rotation_matrix();
    let (r, sr) = (rotation.matrix(), world_from_keyframe.scaled_rotation());
    let q: Vector3<f64> = keyframe_from_frame.translation;
    let mut jacobian = SMatrix::<f64, 6, 7>::zeros();
    jacobian.fixed_view_mut::<3, 3>(0, 0).copy_from(&sr);
    jacobian
        .fixed_view_mut::<3, 3>(0, 3)
        .copy_from(&(-sr * q.cross_matrix()));
    jacobian.fixed_view_mut::<3, 1>(0, 6).copy_from(&(sr * q));
    jacobian.fixed_view_mut::<3, 3>(3, 3).copy_from(r);
    let covariance = jacobian * of_step * jacobian.transpose();
    let symmetric = (covariance + covariance.transpose()) * 0.5;
    symmetric.iter().all(|v| v.is_finite()).then_some(symmetric)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Tangent;
    use nalgebra::UnitQuaternion;
    use proptest::prelude::*;

    fn pose(t: [f64; 3], axis: [f64; 3], scale: f64) -> Sim3 {
        Sim3 {
            translation: t.into(),
            rotation: UnitQuaternion::from_scaled_axis(Vector3::from(axis)),
            scale,
        }
    }

    /// A normal matrix of `rows` random rows.
    fn hessian(rows: &[[f64; 7]]) -> SMatrix<f64, 7, 7> {
        let mut h = SMatrix::zeros();
        for row in rows {
            let row = Tangent::from_column_slice(row);
            h += row * row.transpose();
        }
        h
    }

    fn rows() -> impl Strategy<Value = Vec<[f64; 7]>> {
        let row = proptest::array::uniform7(-1.0_f64..1.0);
        proptest::collection::vec(row, 20..60)
    }

    fn place() -> impl Strategy<Value = ([f64; 3], [f64; 3], f64)> {
        let three = || proptest::array::uniform3(-2.0_f64..2.0);
        (three(), three(), 0.3_f64..3.0)
    }

    proptest! {
        #[test]
        fn it_is_a_covariance_and_grows_with_the_cost(
            rows in rows(), frame in place(), keyframe in place(), cost in 1e-3_f64..1e3, used in 10_usize..100_000,
        ) {
            let (frame, keyframe) = (pose(frame.0, frame.1, frame.2), pose(keyframe.0, keyframe.1, keyframe.2));
            let fit = Fit { hessian: hessian(&rows), cost, used };
            let some = covariance_of_camera(&fit, 256.0, None, &frame, &keyframe).expect("regular");
            prop_assert!(some.iter().all(|v| v.is_finite()));
            prop_assert_eq!(some, some.transpose());
            // Positive definite: seven parameters determine six.
            let d = some.diagonal().map(|v| 1.0 / v.sqrt());
            let correlation = Covariance6::from_fn(|r, c| some[(r, c)] * d[r] * d[c]);
            prop_assert!(correlation.symmetric_eigenvalues().min() > 0.0);
            let twice = covariance_of_camera(&Fit { cost: 2.0 * cost, ..fit }, 256.0, None, &frame, &keyframe).expect("regular");
            let growth = (twice - some).symmetric_eigenvalues().min();
            prop_assert!(growth > -1e-9 * twice.norm(), "{growth}");
            prop_assert!(twice.trace() > some.trace());
        }

        /// A perturbation of the solved pose moves the camera as given by the Jacobian: with a
        /// normal matrix that leaves only one direction loose, the covariance is the square of that
        /// direction.
        #[test]
        fn it_follows_the_camera(
            direction in proptest::array::uniform7(-1.0_f64..1.0), frame in place(), keyframe in place(),
        ) {
            let (frame, keyframe) = (pose(frame.0, frame.1, frame.2), pose(keyframe.0, keyframe.1, keyframe.2));
            let xi = Tangent::from_column_slice(&direction);
            prop_assume!(xi.norm() > 0.3);
            let unit = xi.normalize();
            let loose = unit * unit.transpose();
            let stiff = 1e8;
            // The prior of the scale is added to this.
            let mut hessian = SMatrix::identity() * stiff - loose * (stiff - 1.0);
            hessian[(6, 6)] -= LOG_SCALE_SIGMA.powi(-2);
            let fit = Fit {
                hessian,
                // Chosen such that s² = 1.
                cost: 0.5,
                used: 0,
            };
            let found = covariance_of_camera(&fit, 1.0, None, &frame, &keyframe).expect("regular");
            let step = 1e-5;
            let there = keyframe * frame.retract(&(unit * step));
            let here = keyframe * frame;
            let moved = (there.translation - here.translation) / step;
            let turned = (there.rotation * here.rotation.inverse()).scaled_axis() / step;
            let mut expected = SMatrix::<f64, 6, 1>::zeros();
            expected.fixed_rows_mut::<3>(0).copy_from(&moved);
            expected.fixed_rows_mut::<3>(3).copy_from(&turned);
            let expected = expected * expected.transpose();
            // Stiff directions add up to a hundred-thousandth of the camera's lever arms, squared.
            prop_assert!((found - expected).norm() < 1e-3 * (1.0 + expected.norm()), "{found} {expected}");
        }
    }

    #[test]
    fn an_open_direction_has_no_covariance() {
        let fit = Fit {
            hessian: SMatrix::zeros(),
            cost: 1.0,
            used: 100,
        };
        let here = Sim3::identity();
        assert_eq!(covariance_of_camera(&fit, 256.0, None, &here, &here), None);
    }
}
