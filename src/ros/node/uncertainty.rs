//! Covariances of poses and velocities in the form of messages.

use crate::slam::Covariance6;
use crate::wire::messages::geometry::Covariance;
use nalgebra::{UnitQuaternion, Vector3};

/// Minimum standard deviation of a position, metres: residuals do not show the network's own error.
const POSITION_FLOOR: f64 = 0.001;
/// The same of an orientation, radians.
const ORIENTATION_FLOOR: f64 = 0.0005;
/// Standard deviation of a position without a solve: a map's first frame, and one that was found again.
const POSITION_SIGMA: f64 = 0.02;
/// The same of an orientation, radians.
const ORIENTATION_SIGMA: f64 = 0.01;
/// How much the standard deviations grow in each second that tracking is lost.
const LOST_GROWTH: f64 = 10.0;

fn diagonal(position: f64, orientation: f64) -> Covariance6 {
    let variance = |k: usize| {
        if k < 3 {
            position.powi(2)
        } else {
            orientation.powi(2)
        }
    };
    Covariance6::from_fn(|r, c| if r == c { variance(r) } else { 0.0 })
}

/// The covariance of a frame without a solve.
pub fn unknown() -> Covariance6 {
    diagonal(POSITION_SIGMA, ORIENTATION_SIGMA)
}

/// The covariance of a point that is fixed to the camera, at `lever` from it (both about the world's axes), of at least
/// the minimum standard deviations: `δp' = δp + δθ × lever`.
pub fn carried(of_camera: &Covariance6, lever: &Vector3<f64>) -> Covariance6 {
    let mut carry = Covariance6::identity();
    carry
        .fixed_view_mut::<3, 3>(0, 3)
        .copy_from(&-lever.cross_matrix());
    symmetric(carry * of_camera * carry.transpose()) + diagonal(POSITION_FLOOR, ORIENTATION_FLOOR)
}

/// The same covariance about other axes.
pub fn turned(covariance: &Covariance6, to_from_axes: &UnitQuaternion<f64>) -> Covariance6 {
    let rotation = to_from_axes.to_rotation_matrix();
    let mut turn = Covariance6::zeros();
    for at in [0, 3] {
        turn.fixed_view_mut::<3, 3>(at, at)
            .copy_from(rotation.matrix());
    }
    symmetric(turn * covariance * turn.transpose())
}

/// Covariance of the velocity between two frames that were tracked alike, `seconds` apart.
pub fn of_velocity(covariance: &Covariance6, seconds: f64) -> Covariance6 {
    match seconds > 0.0 {
        true => covariance * (2.0 / (seconds * seconds)),
        false => *covariance,
    }
}

/// Covariance of a camera that was lost `seconds` ago.
pub fn lost(covariance: &Covariance6, seconds: f64) -> Covariance6 {
    covariance * (1.0 + LOST_GROWTH * seconds.max(0.0)).powi(2)
}

/// Row after row.
pub fn message(covariance: &Covariance6) -> Covariance {
    std::array::from_fn(|r| std::array::from_fn(|c| covariance[(r, c)]))
}

/// Products leave the two halves apart in their last bits.
fn symmetric(covariance: Covariance6) -> Covariance6 {
    (covariance + covariance.transpose()) * 0.5
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn numbers<const N: usize>() -> impl Strategy<Value = [f64; N]> {
        proptest::collection::vec(-1.0_f64..1.0, N).prop_map(|v| std::array::from_fn(|k| v[k]))
    }

    proptest! {
        #[test]
        fn what_is_carried_and_turned_stays_a_covariance_and_moves_as_a_body_does(
            some in numbers::<36>(), lever in numbers::<3>(), axis in numbers::<3>(),
        ) {
            let root = Covariance6::from_row_slice(&some);
            let covariance = symmetric(root * root.transpose());
            let lever = Vector3::from(lever);
            let turn = UnitQuaternion::from_scaled_axis(Vector3::from(axis));
            let found = turned(&carried(&covariance, &lever), &turn);
            prop_assert_eq!(found, found.transpose());
            prop_assert!(found.symmetric_eigenvalues().min() > 0.0);
            // Each column of the root is a displacement of the camera: what it does to the point.
            let mut expected = Covariance6::zeros();
            for column in root.column_iter() {
                let (p, t) = (column.fixed_rows::<3>(0).into_owned(), column.fixed_rows::<3>(3).into_owned());
                let (p, t) = (turn * (p + t.cross(&lever)), turn * t);
                let moved = nalgebra::SVector::<f64, 6>::from_iterator(p.iter().chain(t.iter()).copied());
                expected += moved * moved.transpose();
            }
            expected += turned(&diagonal(POSITION_FLOOR, ORIENTATION_FLOOR), &turn);
            prop_assert!((found - expected).norm() < 1e-12 * (1.0 + expected.norm()));
        }

        #[test]
        fn it_grows_while_lost(some in numbers::<36>(), seconds in 0.001_f64..100.0) {
            let root = Covariance6::from_row_slice(&some);
            let before = carried(&symmetric(root * root.transpose()), &Vector3::zeros());
            let after = lost(&before, seconds);
            prop_assert!((after - before).symmetric_eigenvalues().min() > 0.0);
            prop_assert_eq!(lost(&before, -1.0), before);
        }
    }

    #[test]
    fn the_message_is_row_after_row() {
        let mut covariance = unknown();
        covariance[(0, 5)] = 7.0;
        let message = message(&covariance);
        assert_eq!(message[0][5], 7.0);
        assert_eq!(message[5][0], 0.0);
        assert_eq!(message[2][2], POSITION_SIGMA * POSITION_SIGMA);
        assert_eq!(message[3][3], ORIENTATION_SIGMA * ORIENTATION_SIGMA);
    }
}
