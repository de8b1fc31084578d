//! Priors in metres: what a sensor says about the scale of a keyframe, or about the motion between two
//! (docs/algorithm.md, Metric scale).

use super::terms::{BinaryTerm, Linearised, UnaryTerm};
use crate::compute::residual::SolveError;
use crate::geometry::Sim3;
use nalgebra::{Isometry3, Matrix3, Matrix6, SMatrix, UnitQuaternion, Vector3, Vector6};

/// Minimum information about the log scale, in the solver's units, with which priors together fix the
/// scale of a map: less than one match at one sigma says nothing.
const FIXES_SCALE: f64 = 1.0;
/// Tolerance of the test for a symmetric positive semidefinite information, relative to its trace.
const SEMIDEFINITE: f64 = 1e-9;

/// A measurement of a keyframe's scale: metres per unit of its pointmap. The cost is `½ w e²` with
/// `e = log s_k − log_scale`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScalePrior {
    /// Index of the keyframe.
    pub k: usize,
    /// Mean of `log s_k`.
    pub log_scale: f64,
    /// `w`: inverse variance in the solver's units ([`solver_units`]).
    pub information: f64,
}

/// A measurement of the motion between two keyframes in metres of the world, with no statement about
/// their scales. The cost is `½ eᵀ·information·e` with `e = [e_p, e_R]`,
///
/// ```text
/// e_p = R_iᵀ (t_j − t_i) − p        e_R = Log(Rᵀ R_iᵀ R_j)        (p, R) = i_from_j
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MetricPrior {
    /// Index of the first keyframe.
    pub i: usize,
    /// Index of the second keyframe.
    pub j: usize,
    /// Mean of the pose of camera `j` in camera `i`, translation in metres.
    pub i_from_j: Isometry3<f64>,
    /// Inverse covariance of `[e_p, e_R]`, metres in the frame of `i` and radians in the frame of `j`, in
    /// the solver's units ([`solver_units`]): symmetric and positive semidefinite.
    pub information: Matrix6<f64>,
}

/// The priors of a graph.
#[derive(Debug, Clone, Copy, Default)]
pub struct Priors<'a> {
    /// Scales of keyframes, in any order and number.
    pub scales: &'a [ScalePrior],
    /// Motions between keyframes.
    pub motions: &'a [MetricPrior],
    /// Whether the scales of the pinned keyframes are free, if their group has priors that fix its scale;
    /// rotation and translation stay pinned. Not so in a window whose border is pinned.
    pub frees_pinned_scales: bool,
}

impl Priors<'_> {
    /// Checks the priors of a graph of `count` keyframes.
    pub(super) fn validate(&self, count: usize) -> Result<(), SolveError> {
        for p in self.scales {
            let (what, i) = ("a scale prior", p.k);
            if p.k >= count {
                return Err(SolveError::Keyframe {
                    what,
                    i,
                    j: i,
                    count,
                });
            }
            if !p.is_valid() {
                return Err(SolveError::Prior { what, i, j: i });
            }
        }
        for p in self.motions {
            let (what, i, j) = ("a metric prior", p.i, p.j);
            if i == j || i.max(j) >= count {
                return Err(SolveError::Keyframe { what, i, j, count });
            }
            if !p.is_valid() {
                return Err(SolveError::Prior { what, i, j });
            }
        }
        Ok(())
    }

    /// Adds the equations of every prior at `poses`.
    pub(super) fn linearise(&self, poses: &[Sim3], out: &mut Linearised) {
        for p in self.scales {
            let (term, cost) = p.term(&poses[p.k]);
            out.push_unary(term, cost);
        }
        for p in self.motions {
            let (term, cost) = p.term(&poses[p.i], &poses[p.j]);
            out.push_binary(term, cost);
        }
    }

    /// For each group of keyframes, named by its first one, whether the priors fix its scale; `groups` names
    /// the group of each keyframe.
    pub(super) fn fix_scales_of(&self, groups: &[usize]) -> Vec<bool> {
        let mut about = vec![0.0; groups.len()];
        for p in self.scales {
            about[groups[p.k]] += p.information;
        }
        for p in self.motions.iter().filter(|p| groups[p.i] == groups[p.j]) {
            about[groups[p.i]] += p.about_scale();
        }
        about.iter().map(|w| *w >= FIXES_SCALE).collect()
    }
}

/// The factor by which an inverse covariance is multiplied before it stands beside matches.
///
/// The normal matrix `H` of matches counts every pixel at its σ. Neighbouring pixels of a network err
/// together, so what `H` honestly says is `H / (κ s²)`: `κ` = `pixels_per_patch`, and the residual variance
/// `s²` of the last solve, which is at least 1 here: exact data say nothing about how a network errs.
pub fn solver_units(pixels_per_patch: f64, variance: f64) -> f64 {
    // `max` also replaces NaN, the variance of no matches.
    pixels_per_patch.max(1.0) * variance.max(1.0)
}

impl ScalePrior {
    /// Whether every number is finite and the information not negative.
    pub(super) fn is_valid(&self) -> bool {
        self.log_scale.is_finite() && self.information.is_finite() && self.information >= 0.0
    }

    /// `e` at the keyframe's pose.
    pub fn error(&self, pose: &Sim3) -> f64 {
        pose.scale.ln() - self.log_scale
    }

    /// The normal equations at the keyframe's pose for a left perturbation, whose last entry adds to the log
    /// scale exactly, and the cost.
    fn term(&self, pose: &Sim3) -> (UnaryTerm, f64) {
        let e = self.error(pose);
        let mut term = UnaryTerm::zero(self.k);
        term.hessian[(6, 6)] = self.information;
        term.gradient[6] = self.information * e;
        (term, 0.5 * self.information * e * e)
    }
}

impl MetricPrior {
    /// Whether every number is finite and the information symmetric and positive semidefinite.
    pub(super) fn is_valid(&self) -> bool {
        let pose = self.i_from_j.to_homogeneous();
        let information = &self.information;
        if !pose.iter().chain(information.iter()).all(|v| v.is_finite()) {
            return false;
        }
        let size = SEMIDEFINITE * information.trace();
        let asymmetry = (information - information.transpose()).abs().max();
        size >= 0.0 && asymmetry <= size && information.symmetric_eigenvalues().min() >= -size
    }

    /// Whether it connects two keyframes.
    pub(super) fn connects(&self) -> bool {
        self.information.diagonal().iter().any(|v| *v > 0.0)
    }

    /// Information about the log scale of a map whose keyframes `i` and `j` are joined by matches: that of
    /// the distance between both, `pᵀ Ω_p p`. Zero for a camera at rest.
    pub(super) fn about_scale(&self) -> f64 {
        let p = self.i_from_j.translation.vector;
        let of_position: Matrix3<f64> = self.information.fixed_view::<3, 3>(0, 0).into_owned();
        p.dot(&(of_position * p))
    }

    /// `[e_p, e_R]` at the poses `T_i` and `T_j`.
    pub fn error(&self, pose_i: &Sim3, pose_j: &Sim3) -> Vector6<f64> {
        let back = pose_i.rotation.inverse();
        let e_p =
            back * (pose_j.translation - pose_i.translation) - self.i_from_j.translation.vector;
        let e_r = rotation_error(&self.i_from_j.rotation, &(back * pose_j.rotation));
        Vector6::new(e_p.x, e_p.y, e_p.z, e_r.x, e_r.y, e_r.z)
    }

    /// The normal equations at the poses `T_i` and `T_j` for left perturbations, and the cost:
    ///
    /// ```text
    /// ∂e_p = R_iᵀ (τ_j − τ_i − t_j^ φ_j + t_j^ φ_i + σ_j t_j − σ_i t_i)
    /// ∂e_R = Jr⁻¹(e_R) R_jᵀ (φ_j − φ_i)
    /// ```
    fn term(&self, pose_i: &Sim3, pose_j: &Sim3) -> (BinaryTerm, f64) {
        let e = self.error(pose_i, pose_j);
        let back = pose_i.rotation.inverse().to_rotation_matrix().into_inner();
        let turn = right_jacobian_inverse(&e.fixed_rows::<3>(3).into_owned())
            * pose_j.rotation.inverse().to_rotation_matrix().into_inner();
        let lever = back * pose_j.translation.cross_matrix();
        let rows = |sign: f64, at: &Vector3<f64>| {
            let mut rows = SMatrix::<f64, 6, 7>::zeros();
            rows.fixed_view_mut::<3, 3>(0, 0).copy_from(&(back * sign));
            rows.fixed_view_mut::<3, 3>(0, 3)
                .copy_from(&(lever * -sign));
            rows.fixed_view_mut::<3, 1>(0, 6)
                .copy_from(&(back * at * sign));
            rows.fixed_view_mut::<3, 3>(3, 3).copy_from(&(turn * sign));
            rows
        };
        let (of_i, of_j) = (
            rows(-1.0, &pose_i.translation),
            rows(1.0, &pose_j.translation),
        );
        let weighted = self.information * e;
        let term = BinaryTerm {
            i: self.i,
            j: self.j,
            hessian_ii: of_i.transpose() * self.information * of_i,
            hessian_jj: of_j.transpose() * self.information * of_j,
            hessian_ij: of_i.transpose() * self.information * of_j,
            gradient_i: of_i.transpose() * weighted,
            gradient_j: of_j.transpose() * weighted,
        };
        (term, 0.5 * e.dot(&weighted))
    }
}

fn rotation_error(mean: &UnitQuaternion<f64>, found: &UnitQuaternion<f64>) -> Vector3<f64> {
    let log = Sim3 {
        rotation: mean.inverse() * found,
        ..Sim3::identity()
    }
    .log();
    Vector3::new(log[3], log[4], log[5])
}

/// `Jr⁻¹(φ) = I + φ^/2 + (1/θ² − (1 + cos θ)/(2θ sin θ)) φ^²`, `θ = |φ|` (Solà, Deray, Atchuthan: A micro Lie
/// theory for state estimation in robotics, equation 144).
fn right_jacobian_inverse(phi: &Vector3<f64>) -> Matrix3<f64> {
    let (hat, angle) = (phi.cross_matrix(), phi.norm());
    // The closed form loses its digits for small angles; the next term of the series is θ⁴/30240.
    let square = match angle < 0.03 {
        true => 1.0 / 12.0 + angle * angle / 720.0,
        false => 1.0 / (angle * angle) - 0.5 / (angle * (0.5 * angle).tan()),
    };
    Matrix3::identity() + hat * 0.5 + hat * hat * square
}

#[cfg(test)]
mod tests;
