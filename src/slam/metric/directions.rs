//! Directions as the camera and another sensor see them, and the turn between the two.

use crate::geometry::rotation_log;
use nalgebra::{Matrix3, Rotation3, UnitQuaternion, Vector3};

/// Pairs of directions: by the camera and by another sensor.
#[derive(Debug, Default)]
pub struct Directions {
    /// Σ v pᵀ over unit vectors: `v` by the camera, `p` by the other sensor.
    correlation: Matrix3<f64>,
}

impl Directions {
    /// Adds the directions of `p`, by the sensor, and `v`, by the camera, if both are longer than `shortest`; returns the
    /// angle between them in radians.
    pub fn add(&mut self, p: &Vector3<f64>, v: &Vector3<f64>, shortest: f64) -> Option<f64> {
        let (p, v) = (p.try_normalize(shortest)?, v.try_normalize(shortest)?);
        self.correlation += v * p.transpose();
        Some(p.angle(&v))
    }

    /// Rotation vector of the `R` that minimises `Σ |v − R·p|²`: `U diag(1, 1, det) Vᵀ` of `Σ v pᵀ = U S Vᵀ` (Kabsch).
    pub fn best_turn(&self) -> Vector3<f64> {
        let svd = self.correlation.svd(true, true);
        let (Some(u), Some(v_t)) = (svd.u, svd.v_t) else {
            return Vector3::zeros();
        };
        let sign = (u * v_t).determinant().signum();
        let r = u * Matrix3::from_diagonal(&Vector3::new(1.0, 1.0, sign)) * v_t;
        let r = Rotation3::from_matrix_unchecked(r);
        rotation_log(&UnitQuaternion::from_rotation_matrix(&r))
    }
}
