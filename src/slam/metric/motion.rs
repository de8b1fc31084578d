//! A camera's motion between two times as a sensor measures it, with its covariance.

use crate::geometry::{Sim3, rotation_log};
use nalgebra::{Cholesky, Isometry3, Matrix3, Matrix6, UnitQuaternion, Vector3, Vector6};
use std::fmt;

/// The camera's motion from time `i` to time `j`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CameraMotion {
    /// The camera's pose at `j` in its frame at `i`, in metres.
    pub i_from_j: Isometry3<f64>,
    /// Covariance of the residual of [`CameraMotion::residual`], in m² and rad².
    pub covariance: Matrix6<f64>,
    /// Length of the path driven in between, in metres.
    pub driven: f64,
    /// Time in between.
    pub seconds: f64,
}

/// Length and rotation of a motion, for messages.
pub struct Extent<'a>(pub &'a Isometry3<f64>);

impl fmt::Display for Extent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let metres = self.0.translation.vector.norm();
        let degrees = self.0.rotation.angle().to_degrees();
        write!(f, "{metres:.2} m and {degrees:.1} degrees")
    }
}

impl CameraMotion {
    /// `[e_p, e_R]` of another estimate `i_from_j = (p, R)` of the same motion: `e_p = p − p_m` in metres and
    /// `e_R = Log(R_mᵀ R)` in radians, where `(p_m, R_m)` is the measurement.
    pub fn residual(&self, i_from_j: &Isometry3<f64>) -> Vector6<f64> {
        let shift = i_from_j.translation.vector - self.i_from_j.translation.vector;
        let turn = rotation_log(&(self.i_from_j.rotation.inverse() * i_from_j.rotation));
        Vector6::new(shift.x, shift.y, shift.z, turn.x, turn.y, turn.z)
    }

    /// Squared Mahalanobis distance of another estimate, whose own error has the covariance `of_other`. `None` if the
    /// sum of the covariances is not positive definite.
    pub fn chi2(&self, i_from_j: &Isometry3<f64>, of_other: &Matrix6<f64>) -> Option<f64> {
        let e = self.residual(i_from_j);
        let cholesky = Cholesky::new(self.covariance + of_other)?;
        Some(e.dot(&cholesky.solve(&e))).filter(|chi2| chi2.is_finite())
    }

    /// Inverse of the covariance; `None` if it is not positive definite.
    pub fn information(&self) -> Option<Matrix6<f64>> {
        let inverse = Cholesky::new(self.covariance)?.inverse();
        inverse.iter().all(|v| v.is_finite()).then_some(inverse)
    }
}

/// Standard deviation of a position that was not measured, in metres: its information is below what a scale is read
/// from.
const UNMEASURED: f64 = 1e4;

impl CameraMotion {
    /// A rotation whose standard deviation about each axis is `sigma`, with a translation that is not known.
    pub fn turn_alone(i_from_j: UnitQuaternion<f64>, sigma: f64, seconds: f64) -> Self {
        let mut covariance = Matrix6::identity() * UNMEASURED.powi(2);
        covariance
            .fixed_view_mut::<3, 3>(3, 3)
            .copy_from(&(Matrix3::identity() * sigma.powi(2)));
        Self {
            i_from_j: Isometry3::from_parts(Vector3::zeros().into(), i_from_j),
            covariance,
            driven: 0.0,
            seconds,
        }
    }

    /// A motion that is known to this part of its way and of its turn.
    pub fn known_to(part: f64, i_from_j: Isometry3<f64>) -> Self {
        let way = (part * i_from_j.translation.vector.norm()).powi(2);
        let turn = (part * i_from_j.rotation.angle()).powi(2);
        Self {
            i_from_j,
            covariance: Matrix6::from_diagonal(&Vector6::new(way, way, way, turn, turn, turn)),
            driven: 0.0,
            seconds: 0.0,
        }
    }

    /// This motion with another measurement of its rotation, of standard deviation `sigma` about each axis; the errors
    /// of the two are independent. With `e = Log(Rᵀ R')` and the gain `K = P Hᵀ (H P Hᵀ + σ² I)⁻¹` for `H = [0 I]`,
    /// `p += K_p e`, `R ← R·Exp(K_R e)`, `P ← P − K H P` (a Kalman filter's update). Unchanged if the covariance is not
    /// positive definite.
    #[must_use]
    pub fn with_turn(&self, i_from_j: &UnitQuaternion<f64>, sigma: f64) -> Self {
        let by_turn = self.covariance.fixed_view::<6, 3>(0, 3).into_owned();
        let of_turn =
            self.covariance.fixed_view::<3, 3>(3, 3) + Matrix3::identity() * sigma.powi(2);
        let Some(of_turn) = Cholesky::new(of_turn) else {
            return *self;
        };
        let gain = by_turn * of_turn.inverse();
        let change = gain * rotation_log(&(self.i_from_j.rotation.inverse() * i_from_j));
        let shift = self.i_from_j.translation.vector + change.fixed_rows::<3>(0);
        let turn = UnitQuaternion::from_scaled_axis(change.fixed_rows::<3>(3).into_owned());
        let covariance = self.covariance - gain * by_turn.transpose();
        Self {
            i_from_j: Isometry3::from_parts(shift.into(), self.i_from_j.rotation * turn),
            covariance: (covariance + covariance.transpose()) * 0.5,
            ..*self
        }
    }

    /// This motion from `i` to `k` followed by `next` from `k` to `j`; their errors are independent. With
    /// `p = p₁ + R₁ p₂` and `R = R₁ R₂`, `δp = δp₁ − R₁ [p₂]× δθ₁ + R₁ δp₂` and `δθ = R₂ᵀ δθ₁ + δθ₂`.
    #[must_use]
    pub fn then(&self, next: &Self) -> Self {
        let matrix = |q: &UnitQuaternion<f64>| q.to_rotation_matrix().into_inner();
        let first = matrix(&self.i_from_j.rotation);
        let lever = first * next.i_from_j.translation.vector.cross_matrix();
        let mut by_first = Matrix6::identity();
        by_first.fixed_view_mut::<3, 3>(0, 3).copy_from(&-lever);
        by_first
            .fixed_view_mut::<3, 3>(3, 3)
            .copy_from(&matrix(&next.i_from_j.rotation).transpose());
        let mut by_next = Matrix6::identity();
        by_next.fixed_view_mut::<3, 3>(0, 0).copy_from(&first);
        Self {
            i_from_j: self.i_from_j * next.i_from_j,
            covariance: by_first * self.covariance * by_first.transpose()
                + by_next * next.covariance * by_next.transpose(),
            driven: self.driven + next.driven,
            seconds: self.seconds + next.seconds,
        }
    }
}

/// The motion between two cameras at these poses of the map, in the map's metres.
pub fn visual_motion(world_from_i: &Sim3, world_from_j: &Sim3) -> Isometry3<f64> {
    let back = world_from_i.rotation.inverse();
    let shift = back * (world_from_j.translation - world_from_i.translation);
    Isometry3::from_parts(shift.into(), back * world_from_j.rotation)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn motion(p: [f64; 3], turn: [f64; 3]) -> CameraMotion {
        let spread = Vector6::new(1e-4, 4e-4, 9e-4, 2e-4, 1e-4, 3e-4);
        CameraMotion {
            i_from_j: Isometry3::new(p.into(), turn.into()),
            covariance: Matrix6::from_diagonal(&spread),
            driven: 1.0,
            seconds: 2.0,
        }
    }

    #[test]
    fn a_message_names_the_length_and_the_rotation() {
        let motion = motion([0.3, 0.0, -0.4], [0.0, 0.2, 0.0]).i_from_j;
        assert_eq!(Extent(&motion).to_string(), "0.50 m and 11.5 degrees");
    }

    /// Finite differences: each error of either motion moves the residual of the whole as its covariance says.
    #[test]
    fn the_covariance_of_two_motions_is_that_of_their_errors() {
        let (one, two) = (
            motion([0.3, -0.2, 1.0], [0.1, 0.5, -0.3]),
            motion([-0.4, 0.1, 0.7], [0.3, -0.2, 0.6]),
        );
        let both = one.then(&two);
        let step = 1e-6;
        let moved = |of: &CameraMotion, k: usize| {
            let mut e = Vector6::zeros();
            e[k] = step * of.covariance[(k, k)].sqrt();
            let (p, r) = (
                e.fixed_rows::<3>(0).into_owned(),
                e.fixed_rows::<3>(3).into_owned(),
            );
            let turn = of.i_from_j.rotation * UnitQuaternion::from_scaled_axis(r);
            Isometry3::from_parts((of.i_from_j.translation.vector + p).into(), turn)
        };
        let mut expected = Matrix6::zeros();
        for k in 0..6 {
            let by_one = both.residual(&(moved(&one, k) * two.i_from_j)) / step;
            let by_two = both.residual(&(one.i_from_j * moved(&two, k))) / step;
            expected += by_one * by_one.transpose() + by_two * by_two.transpose();
        }
        assert!(
            (both.covariance - expected).norm() < 1e-7,
            "{}",
            both.covariance - expected
        );
        assert_eq!((both.driven, both.seconds), (2.0, 4.0));
    }

    #[test]
    fn a_better_rotation_moves_the_position_that_depends_on_it() {
        // A heading error swings the end of a straight way of 2 m: 0.1 rad is 0.1 m at its middle's lever.
        let mut wheels = motion([2.0, 0.0, 0.0], [0.0, 0.0, 0.0]);
        wheels.covariance = Matrix6::identity() * 1e-6;
        let (yaw, sigma) = (5, 0.2_f64);
        wheels.covariance[(yaw, yaw)] = sigma.powi(2);
        wheels.covariance[(1, 1)] += sigma.powi(2);
        wheels.covariance[(1, yaw)] = sigma.powi(2);
        wheels.covariance[(yaw, 1)] = sigma.powi(2);
        let seen = UnitQuaternion::from_scaled_axis(Vector3::z() * 0.1);
        let both = wheels.with_turn(&seen, 1e-3);
        assert!((both.i_from_j.translation.y - 0.1).abs() < 1e-4, "{both:?}");
        assert!(both.i_from_j.rotation.angle_to(&seen) < 1e-4, "{both:?}");
        let variance = both.covariance[(yaw, yaw)];
        assert!((variance / 1e-6 - 1.0).abs() < 1e-3, "{variance}");
        assert!(both.covariance[(1, 1)] < 3e-6, "{}", both.covariance);
        assert!(both.information().is_some());
        // One that knows nothing changes nothing.
        let same = wheels.with_turn(&seen, 1e3);
        assert!((same.covariance - wheels.covariance).norm() < 1e-8);
        assert!(same.i_from_j.translation.y.abs() < 1e-7);
    }

    #[test]
    fn a_turn_alone_says_nothing_of_the_way() {
        let turn = UnitQuaternion::from_scaled_axis(Vector3::y() * 0.3);
        let alone = CameraMotion::turn_alone(turn, 2e-3, 0.5);
        let far = Isometry3::from_parts(Vector3::new(9.0, -4.0, 2.0).into(), turn);
        assert!(alone.chi2(&far, &Matrix6::zeros()).expect("definite") < 1e-5);
        let off = Isometry3::from_parts(
            Vector3::zeros().into(),
            turn * UnitQuaternion::from_scaled_axis(Vector3::x() * 6e-3),
        );
        let chi2 = alone.chi2(&off, &Matrix6::zeros()).expect("definite");
        assert!((chi2 - 9.0).abs() < 1e-6, "{chi2}");
        let information = alone.information().expect("definite");
        assert!((information[(4, 4)] * 4e-6 - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_motion_fits_itself_and_not_one_that_is_four_sigmas_off() {
        let one = motion([0.3, -0.2, 1.0], [0.1, 0.5, -0.3]);
        let none = Matrix6::zeros();
        assert!(one.chi2(&one.i_from_j, &none).expect("definite") < 1e-12);
        let mut off = one.i_from_j;
        off.translation.vector.y += 0.08;
        let chi2 = one.chi2(&off, &none).expect("definite");
        assert!((chi2 - 16.0).abs() < 1e-9, "{chi2}");
        let halved = one.chi2(&off, &one.covariance).expect("definite");
        assert!((halved - 8.0).abs() < 1e-9, "{halved}");
    }
}
