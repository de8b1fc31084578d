//! Believed uncertainty of relative poses: of an edge from its matches, and of a path through the map from its steps
//! (docs/algorithm.md, Factor graph and loop closure).

use super::consistency::StepSigma;
use super::graph::Graph;
use crate::compute::global::{Matrix7, PoseFactor};
use crate::geometry::{Sim3, Tangent};
use std::collections::BTreeMap;

/// Upper 50 % and 99.9 % points of χ² with seven degrees of freedom.
pub const CHI2_HALF: f64 = 6.35;
/// See [`CHI2_HALF`].
pub const CHI2_LIMIT: f64 = 24.3;

/// Minimum standard deviation of a step's length, in metres, for a camera that turns on the spot.
const STEP_FLOOR: f64 = 0.005;
/// Standard deviation of the log-scale between two views of a metric network, as for tracked poses.
const LOG_SCALE_SIGMA: f64 = 0.05;
/// Bias of every step of a path, in standard deviations of a step: a network errs alike in views that are alike, which
/// the edges between them do not show.
const BIAS: f64 = 0.5;
/// Covariance of an edge's relative pose, from its information: the pixels of a patch err together,
/// so `Ω/(κ·s²)` with `κ` pixels per patch, and scale is known to 5 %.
pub fn edge_covariance(information: &Matrix7, variance: f64, pixels_per_patch: f64) -> Matrix7 {
    let mut believed = information / (variance * pixels_per_patch);
    believed[(6, 6)] += LOG_SCALE_SIGMA.powi(-2);
    // A direction that was not measured has a large covariance instead of none.
    for k in 0..7 {
        believed[(k, k)] += 1e-6;
    }
    scaled_inverse(&believed).unwrap_or(Matrix7::identity() * 1e6)
}

/// The information of a relative pose whose two directions, solved separately, differ by `around`, the logarithm of
/// their product. `of` is that of its matches, whose covariance is `scale` times the inverse. If each direction
/// errs by `σ`, they differ by `√2·σ` and their mean errs by `σ/√2`: half of `around` is added, as a standard deviation.
pub fn doubted(of: &Matrix7, scale: f64, around: &Tangent) -> Matrix7 {
    let doubt = Matrix7::from_diagonal(&around.map(|d| (d / 2.0).powi(2)));
    let covariance = scaled_inverse(&(of / scale));
    let doubted = covariance.and_then(|covariance| information(&(covariance + doubt)));
    // Matches that leave a direction undetermined have no covariance.
    doubted.map_or(*of, |information| information * scale)
}

/// Covariance of one step of the map whose length is that of `step`, before its first pose.
pub fn step_covariance(step: &Sim3, sigma: &StepSigma) -> Matrix7 {
    let length = sigma.length * step.translation.norm() + STEP_FLOOR;
    let (t, r, s) = (length * length, sigma.turn.powi(2), sigma.log_scale.powi(2));
    Matrix7::from_diagonal(&Tangent::from_column_slice(&[t, t, t, r, r, r, s]))
}

/// `eᵀΣ⁻¹e`; infinite if the covariance is not positive definite.
pub fn chi2(error: &Tangent, covariance: &Matrix7) -> f64 {
    let inverse = scaled_inverse(covariance);
    let found = inverse.map(|inverse| (inverse * error).dot(error));
    found.filter(|v| v.is_finite()).unwrap_or(f64::INFINITY)
}

/// The largest of the seven errors in units of its standard deviation.
pub fn worst(error: &Tangent, covariance: &Matrix7) -> f64 {
    let sigmas = covariance.diagonal().map(f64::sqrt);
    let each = error.component_div(&sigmas).abs();
    match each.iter().all(|v| v.is_finite()) {
        true => each.max(),
        false => f64::INFINITY,
    }
}

/// The residual of a factor between keyframes at these poses.
pub fn error(factor: &PoseFactor, pose_i: &Sim3, pose_j: &Sim3) -> Tangent {
    (pose_i.inverse() * *pose_j * factor.i_from_j.inverse()).log()
}

/// The information of a covariance; `None` if it is not positive definite.
pub fn information(covariance: &Matrix7) -> Option<Matrix7> {
    let inverse = scaled_inverse(covariance)?;
    Some((inverse + inverse.transpose()) / 2.0)
}

fn scaled_inverse(m: &Matrix7) -> Option<Matrix7> {
    let scale = m.diagonal().map(|d| 1.0 / d.sqrt());
    let unit = Matrix7::from_fn(|r, c| m[(r, c)] * scale[r] * scale[c]);
    let inverse = unit.cholesky()?.inverse();
    Some(Matrix7::from_fn(|r, c| {
        inverse[(r, c)] * scale[r] * scale[c]
    }))
}

/// The map as odometry: paths along its edges and factors.
pub struct Odometry<'a> {
    graph: &'a Graph,
    beside: BTreeMap<u32, Vec<u32>>,
    sigma: StepSigma,
}

/// A path through the map.
#[derive(Debug, Clone, Copy)]
pub struct Path {
    /// Number of edges and factors.
    pub hops: usize,
    /// Pose of the end in the frame of the start.
    pub relative: Sim3,
    /// Covariance of `relative`, of a perturbation from the left, if the steps err independently.
    pub covariance: Matrix7,
    /// What is added to it if they have a bias in common: it grows with the square of their number.
    pub drift: Matrix7,
}

impl<'a> Odometry<'a> {
    /// The paths of a graph.
    pub fn new(graph: &'a Graph) -> Self {
        let edges = graph.edges().iter().map(|e| (e.i, e.j));
        let factors = graph.factors().list().iter();
        let factors =
            factors.filter_map(|f| Some((u32::try_from(f.i).ok()?, u32::try_from(f.j).ok()?)));
        let mut beside: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (i, j) in edges.chain(factors) {
            beside.entry(i).or_default().push(j);
            beside.entry(j).or_default().push(i);
        }
        let sigma = StepSigma::of(graph);
        Self {
            graph,
            beside,
            sigma,
        }
    }

    /// A path of the fewest hops between two keyframes; `None` if there is none.
    pub fn path(&self, from: u32, to: u32) -> Option<Path> {
        let mut before: BTreeMap<u32, u32> = BTreeMap::from([(from, from)]);
        let mut layer = vec![from];
        while !before.contains_key(&to) && !layer.is_empty() {
            let mut next = Vec::new();
            for at in layer {
                for &beside in self.beside.get(&at).into_iter().flatten() {
                    before.entry(beside).or_insert_with(|| {
                        next.push(beside);
                        at
                    });
                }
            }
            layer = next;
        }
        let mut keyframes = vec![to];
        let mut at = to;
        while at != from {
            at = *before.get(&at)?;
            keyframes.push(at);
        }
        keyframes.reverse();
        let start = self.graph.pose_of(from).inverse();
        let (mut covariance, mut bias) = (Matrix7::zeros(), Matrix7::zeros());
        for pair in keyframes.windows(2) {
            let [a, b] = [pair[0], pair[1]].map(|id| start * self.graph.pose_of(id));
            let carried = a.adjoint();
            let of_step = step_covariance(&(a.inverse() * b), &self.sigma);
            covariance += carried * of_step * carried.transpose();
            let sigmas = Matrix7::from_diagonal(&of_step.diagonal().map(f64::sqrt));
            bias += carried * (sigmas * BIAS);
        }
        Some(Path {
            hops: keyframes.len() - 1,
            relative: start * self.graph.pose_of(to),
            covariance,
            drift: bias * bias.transpose(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_that_differ_make_a_factor_doubtful_by_half_of_their_difference() {
        // Each of the seven numbers is known to 0.2, times a scale of 4.
        let scale = 4.0;
        let information = Matrix7::identity() * (scale / 0.04);
        let same = doubted(&information, scale, &Tangent::zeros());
        assert!((same - information).norm() < 1e-9 * information.norm());
        let mut around = Tangent::zeros();
        around[4] = -0.6;
        let found = doubted(&information, scale, &around);
        let mut expected = information;
        expected[(4, 4)] = scale / (0.04 + 0.09);
        assert!((found - expected).norm() < 1e-9 * expected.norm());
        // Nothing can be added to no covariance.
        let mut flat = information;
        flat[(2, 2)] = 0.0;
        assert_eq!(doubted(&flat, scale, &around), flat);
        assert_eq!(
            doubted(&information, scale, &Tangent::repeat(f64::NAN)),
            information
        );
    }
}
