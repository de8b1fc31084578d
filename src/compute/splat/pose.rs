//! Corrections of views' poses. Poses of SLAM are off by centimetres, and views that disagree blur the map: while rows
//! are trained, each view's pose moves by its gradient too. A view that is not trained on is aligned with the finished
//! map the same way.

use super::SplatError;
use super::camera::{Camera, View};
use super::constants::{BETA1, BETA2, EPSILON, MAX_SHIFT, MAX_TURN};
use super::device::{LossWeights, SplatDevice};
use crate::geometry::{Sim3, Tangent};

/// How a view's pose differs from the one that it was given, and the state of its optimiser.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PoseCorrection {
    /// `camera_from_world = moved · given camera_from_world`; its scale is 1.
    pub moved: Sim3,
    /// Adam's first moments of ξ = (ρ, φ).
    pub first: [f64; 6],
    /// Adam's second moments.
    pub second: [f64; 6],
    /// Number of steps.
    pub steps: u32,
}

impl Default for PoseCorrection {
    fn default() -> Self {
        Self {
            moved: Sim3::identity(),
            first: [0.0; 6],
            second: [0.0; 6],
            steps: 0,
        }
    }
}

impl PoseCorrection {
    /// The camera at the corrected pose.
    pub fn apply(&self, given: &Camera) -> Camera {
        let rotation = self.moved.rotation.to_rotation_matrix().into_inner();
        Camera {
            rotation: rotation * given.rotation,
            translation: rotation * given.translation + self.moved.translation,
            ..*given
        }
    }

    /// A step of Adam against the gradient by ξ at 0 in exp(ξ)·camera_from_world. `rate` is in radians, and for
    /// positions in units of `extent` metres. The correction stays below [`MAX_SHIFT`] extents and [`MAX_TURN`] radians.
    /// A gradient that is not finite changes nothing.
    pub fn step(&mut self, gradient: &[f64; 6], rate: f64, extent: f64) {
        if !gradient.iter().all(|g| g.is_finite()) {
            return;
        }
        self.steps = self.steps.saturating_add(1);
        let t = i32::try_from(self.steps).unwrap_or(i32::MAX);
        let bias = [BETA1, BETA2].map(|beta| 1.0 - f64::from(beta).powi(t));
        let mut xi = Tangent::zeros();
        for (k, g) in gradient.iter().enumerate() {
            let (b1, b2) = (f64::from(BETA1), f64::from(BETA2));
            self.first[k] = b1 * self.first[k] + (1.0 - b1) * g;
            self.second[k] = b2 * self.second[k] + (1.0 - b2) * g * g;
            let unit = if k < 3 { extent } else { 1.0 };
            let root = (self.second[k] / bias[1]).sqrt() + f64::from(EPSILON);
            xi[k] = -rate * unit * (self.first[k] / bias[0]) / root;
        }
        let mut moved = self.moved.retract(&xi);
        moved.scale = 1.0;
        let shift = moved.translation.norm();
        if shift > MAX_SHIFT * extent {
            moved.translation *= MAX_SHIFT * extent / shift;
        }
        let turn = moved.rotation.angle();
        if turn > MAX_TURN {
            moved.rotation = moved.rotation.powf(MAX_TURN / turn);
        }
        if moved.is_finite() {
            self.moved = moved;
        }
    }
}

/// Moves the pose of a view to where the loss against the map as it is, is least: `steps` steps of Adam from the present
/// correction on, whose rate falls from `rate` to a hundredth of it. `given` has the pose without the correction. Rows and
/// statistics stay as they are.
///
/// # Errors
/// Those of [`SplatDevice::gradients`].
pub fn align(
    device: &mut dyn SplatDevice,
    given: &View<'_>,
    correction: &mut PoseCorrection,
    weights: &LossWeights,
    (steps, rate, extent): (usize, f64, f64),
) -> Result<(), SplatError> {
    let weights = LossWeights {
        statistics: false,
        ..*weights
    };
    let mut moving = PoseCorrection {
        moved: correction.moved,
        ..PoseCorrection::default()
    };
    let mut best: Option<(f64, Sim3)> = None;
    for k in 0..=steps {
        let view = View {
            camera: moving.apply(&given.camera),
            ..*given
        };
        let loss = device.gradients(&view, &weights)?;
        if best.is_none_or(|(least, _)| loss.total < least) {
            best = Some((loss.total, moving.moved));
        }
        let part = k as f64 / steps.max(1) as f64;
        moving.step(&loss.pose, rate * 0.01_f64.powf(part), extent);
    }
    *correction = PoseCorrection {
        moved: best.map_or(moving.moved, |(_, moved)| moved),
        ..PoseCorrection::default()
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_correction_follows_its_gradient_and_is_bounded() {
        let mut correction = PoseCorrection::default();
        let gradient = [1.0, 0.0, -2.0, 0.0, 3.0, 0.0];
        correction.step(&gradient, 0.01, 2.0);
        let moved = correction.moved;
        assert!((moved.translation.x + 0.02).abs() < 1e-3);
        assert!((moved.translation.z - 0.02).abs() < 1e-3);
        assert!((moved.rotation.scaled_axis().y + 0.01).abs() < 1e-9);
        let before = correction;
        correction.step(&[f64::NAN; 6], 0.01, 2.0);
        assert_eq!(correction, before);
        for _ in 0..1000 {
            correction.step(&gradient, 0.01, 2.0);
        }
        assert!(correction.moved.translation.norm() <= MAX_SHIFT * 2.0 + 1e-9);
        assert!(correction.moved.rotation.angle() <= MAX_TURN + 1e-9);
        assert_eq!(correction.moved.scale, 1.0);
    }
}
