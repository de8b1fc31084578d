//! Judges the mount and the unit of a gyroscope by what the camera sees between keyframes.

use super::directions::Directions;
use crate::geometry::rotation_log;
use nalgebra::{UnitQuaternion, Vector3};

/// Radians turned after which the gyro is judged, and the minimum number of turns.
const JUDGED: f64 = 1.5;
const TURNS: usize = 5;
/// Smaller turns have no clear axis, in radians.
const TURNED: f64 = 0.08;
/// A mount is refused if axes are off by more than this on average, in radians (30 degrees).
const WRONG: f64 = 0.524;
/// A unit is refused if the gyro turns more than this times as far as the camera, or as little.
const RATIO: f64 = 2.0;

/// A gyroscope that contradicts the camera.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum WrongGyro {
    /// The axes of rotation differ.
    #[error(
        "expected the camera to turn as the gyro and its mount say, found axes that are {degrees:.0} degrees off (they \
         agree best after a turn of the mount by [{:.0} {:.0} {:.0}] degrees about the camera's axes): check the transform \
         from the camera to the IMU; the gyro is not used", turn.x, turn.y, turn.z
    )]
    Mount {
        /// Mean angle between the axes, in degrees.
        degrees: f64,
        /// Rotation vector of the turn that fits best, in degrees about the camera's axes.
        turn: Vector3<f64>,
    },
    /// The angles differ.
    #[error(
        "expected the gyro to turn as far as the camera, found {ratio:.2} times as far: check that its rates are in rad/s; \
         the gyro is not used"
    )]
    Unit {
        /// Angle by the gyro over the angle by the camera.
        ratio: f64,
    },
}

/// Compares axes and angles of the camera's rotations with those by gyro and mount.
#[derive(Debug, Default)]
pub struct GyroMountTest {
    directions: Directions,
    /// Sum of angles between axes, and their number.
    off: f64,
    axes: usize,
    turns: usize,
    /// Radians turned.
    by_gyro: f64,
    by_camera: f64,
}

impl GyroMountTest {
    /// Adds a rotation between two keyframes, by the gyro in the camera's frame and as the camera saw it, and judges the
    /// gyro every 1.5 rad.
    ///
    /// # Errors
    /// Mount or unit do not fit.
    pub fn add(
        &mut self,
        gyro: &UnitQuaternion<f64>,
        seen: &UnitQuaternion<f64>,
    ) -> Result<(), WrongGyro> {
        let (gyro, seen) = (rotation_log(gyro), rotation_log(seen));
        if gyro.norm().max(seen.norm()) < TURNED {
            return Ok(());
        }
        self.by_gyro += gyro.norm();
        self.by_camera += seen.norm();
        if let Some(off) = self.directions.add(&gyro, &seen, TURNED) {
            self.off += off;
            self.axes += 1;
        }
        self.turns += 1;
        if self.by_gyro.max(self.by_camera) < JUDGED || self.turns < TURNS {
            return Ok(());
        }
        let judged = std::mem::take(self);
        let ratio = judged.by_gyro / judged.by_camera;
        if !(RATIO.recip()..=RATIO).contains(&ratio) {
            return Err(WrongGyro::Unit { ratio });
        }
        let off = judged.off / judged.axes.max(1) as f64;
        match off > WRONG {
            true => Err(WrongGyro::Mount {
                degrees: off.to_degrees(),
                turn: judged.directions.best_turn().map(f64::to_degrees),
            }),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::random::Random;

    /// Rotations of a camera that turns in every direction, and what a gyro says that is mounted `by`, with noise, and
    /// `factor` times as far.
    fn judged(by: Vector3<f64>, factor: f64) -> Result<(), WrongGyro> {
        let mut random = Random(7);
        let mut test = GyroMountTest::default();
        for _ in 0..60 {
            let mut vector = |sigma: f64| Vector3::from_fn(|_, _| sigma * random.normal());
            let (seen, noise) = (vector(0.15), vector(0.01));
            let turn = UnitQuaternion::from_scaled_axis(by);
            let gyro = turn.inverse() * (seen * factor) + noise;
            test.add(
                &UnitQuaternion::from_scaled_axis(gyro),
                &UnitQuaternion::from_scaled_axis(seen),
            )?;
        }
        Ok(())
    }

    #[test]
    fn a_gyro_that_fits_roughly_is_used() {
        assert_eq!(judged(Vector3::zeros(), 1.0), Ok(()));
        assert_eq!(judged(Vector3::new(0.05, -0.1, 0.1), 1.1), Ok(()));
    }

    #[test]
    fn a_gyro_that_is_turned_or_counts_in_degrees_is_refused() {
        let quarter = Vector3::new(0.0, std::f64::consts::FRAC_PI_2, 0.0);
        let Err(WrongGyro::Mount { degrees, turn }) = judged(quarter, 1.0) else {
            panic!("expected a refusal");
        };
        assert!((35.0..100.0).contains(&degrees), "{degrees}");
        // The turn that the mount lacks.
        assert!((turn - quarter.map(f64::to_degrees)).norm() < 8.0, "{turn}");
        let small = judged(Vector3::zeros(), 0.4).expect_err("a refusal");
        assert!(matches!(small, WrongGyro::Unit { ratio } if ratio < 0.5));
        let dead = judged(Vector3::zeros(), 0.0).expect_err("a refusal");
        assert!(matches!(dead, WrongGyro::Unit { ratio } if ratio < 0.2));
        let large = judged(Vector3::zeros(), 57.3).expect_err("a refusal");
        assert!(matches!(large, WrongGyro::Unit { ratio } if ratio > 2.0));
    }
}
