//! How far results may be from the recorded ones, derived from the precision.

use super::report::Check;
use crate::inference::PairOutput;
use crate::inference::compare;
use crate::network::onnx::Precision;

/// Maximum errors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Median distance between points, relative to the point's distance from the camera.
    points: f64,
    /// Median of one minus the cosine between descriptors.
    descriptors: f64,
    /// Increase of the ATE in metres.
    ate: f64,
}

/// Errors of points in units of the precision's unit roundoff. Measured with the bundled network: 0.27 in fp16 and 0.34
/// in fp8 (docs/records/2026-11-22-tensorrt.md), so that a correct engine has six times that to spare.
const POINTS: f64 = 2.0;
/// Errors of descriptors in units of its square, as one minus a cosine is half of a squared angle. Measured: 1.7 and 1.
const DESCRIPTORS: f64 = 16.0;
/// In fp32, sums in another order differ by more than the unit roundoff.
const FLOOR: (f64, f64) = (1e-4, 1e-6);
/// CPU and GPU decide differently on single pixels, whatever the precision.
const ATE: f64 = 0.005;
/// Distance of the bundled room's points from the camera in metres, by which relative errors of points become metres.
const DISTANCE: f64 = 3.0;
/// Maximum ATE without recorded figures, six times that of the bundled network.
const MAX_ATE: f64 = 0.25;

impl Limits {
    /// The limits of a precision.
    pub fn of(precision: Precision) -> Self {
        // Half of the distance between 1 and the next number.
        let unit = match precision {
            Precision::F32 => f64::powi(2.0, -24),
            Precision::F16 => f64::powi(2.0, -11),
            Precision::Bf16 => f64::powi(2.0, -8),
            Precision::Fp8 => f64::powi(2.0, -4),
        };
        let points = (POINTS * unit).max(FLOOR.0);
        Self {
            points,
            descriptors: (DESCRIPTORS * unit * unit).max(FLOOR.1),
            ate: ATE + points * DISTANCE,
        }
    }

    /// Compares the network's outputs.
    pub fn compare(
        &self,
        expected: &PairOutput,
        found: &PairOutput,
        descriptor_dim: usize,
    ) -> Vec<Check> {
        let views = compare::outputs(expected, found, descriptor_dim);
        let checks = (1..).zip(&views).flat_map(|(number, view)| {
            let parts = [
                view.points,
                view.confidence,
                view.descriptors,
                view.descriptor_confidence,
            ];
            let broken: usize = parts.iter().map(|errors| errors.broken).sum();
            [
                Check::at_most(
                    format!("points of view {number}, relative"),
                    view.points.median,
                    self.points,
                ),
                Check::at_most(
                    format!("descriptors of view {number}, 1 - cosine"),
                    view.descriptors.median,
                    self.descriptors,
                ),
                Check::at_most(format!("not finite in view {number}"), broken as f64, 0.0),
            ]
        });
        checks.collect()
    }

    /// Compares the ATE with the recorded one.
    pub fn ate(&self, found: f64, recorded: Option<f64>) -> Check {
        let limit = recorded.map_or(MAX_ATE, |recorded| recorded + self.ate);
        Check::at_most("ATE, metres", found, limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_grow_with_the_roundoff_and_leave_room_for_what_was_measured() {
        let all = Precision::ALL.map(Limits::of);
        let [fp32, fp16, _, fp8] = all;
        assert!(
            all.windows(2)
                .all(|pair| pair[0].points < pair[1].points && pair[0].ate < pair[1].ate)
        );
        // The record of 2026-11-22.
        for (limits, points, descriptors) in [(fp16, 1.3e-4, 4e-7), (fp8, 2.1e-2, 4e-3)] {
            assert!(
                (4.0..10.0).contains(&(limits.points / points)),
                "{limits:?}"
            );
            assert!(
                (4.0..20.0).contains(&(limits.descriptors / descriptors)),
                "{limits:?}"
            );
        }
        assert!(fp32.points < 1.3e-4, "fp16 must not pass for fp32");
    }

    #[test]
    fn an_engine_with_other_outputs_fails() {
        let view = |shift: f32| crate::inference::ViewOutput {
            points: [1.0, 0.0, 2.0 + shift].repeat(9),
            confidence: vec![2.0; 9],
            descriptors: [1.0, shift].repeat(9),
            descriptor_confidence: vec![1.0; 9],
        };
        let pair = |shift| PairOutput {
            view1: view(0.0),
            view2: view(shift),
        };
        let failed = |found: &PairOutput, precision| {
            let checks = Limits::of(precision).compare(&pair(0.0), found, 2);
            checks
                .into_iter()
                .filter(|check| !check.passed)
                .map(|check| check.name)
                .collect::<Vec<_>>()
        };
        assert!(failed(&pair(0.0), Precision::F32).is_empty());
        assert!(failed(&pair(1e-3), Precision::F16).is_empty());
        assert_eq!(failed(&pair(1e-2), Precision::F16).len(), 2);
        let mut broken = pair(0.0);
        broken.view1.confidence[4] = f32::NAN;
        assert_eq!(failed(&broken, Precision::F32), ["not finite in view 1"]);
        // One minus the cosine is half of the squared angle.
        let descriptors = Limits::of(Precision::F16).compare(&pair(0.0), &pair(1e-3), 2);
        assert!(
            (descriptors[4].found - 5e-7).abs() < 1e-8,
            "{descriptors:?}"
        );
    }
}
