//! Relative-pose factors: measurements of a relative pose with a full information matrix
//! (docs/algorithm.md, Global optimisation).

use crate::compute::residual::Matrix7;
use crate::geometry::{Sim3, Tangent};
use nalgebra::{Matrix3, Vector3};

/// Tolerance of the test for a symmetric positive semidefinite information, relative to a unit
/// diagonal: sums and products of such matrices round at 1e-15.
const SEMIDEFINITE: f64 = 1e-9;
/// Eigenvalues below this fraction of the largest, with a unit diagonal, count as no information:
/// the normal equations of matches are sums of f32 products.
const NO_INFORMATION: f64 = 1e-9;
/// Limit, in radians and in log-scale, of a residual that [`PoseFactor::at`] gives to a factor.
/// Beyond it the linearisation says nothing about where the rest pose is.
const MAX_RESIDUAL: f64 = 1.0;

/// A measurement of the relative pose of two keyframes, with cost `½ eᵀ·information·e` and `e =
/// log(T_i⁻¹·T_j·i_from_j⁻¹)`: a weak prior from tracking, or what remains of matches that were
/// removed (docs/algorithm.md, Global optimisation).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PoseFactor {
    /// Index of the first keyframe.
    pub i: usize,
    /// Index of the second keyframe.
    pub j: usize,
    /// Mean of `T_i⁻¹·T_j`.
    pub i_from_j: Sim3,
    /// Information about `[τ, φ, σ]` in the frame of `i`: symmetric and positive semidefinite.
    pub information: Matrix7,
}

impl PoseFactor {
    /// The factor that has these normal equations at the poses `T_i` and `T_j`: `hessian` is `H`
    /// and `gradient` the gradient at `j`, both for left perturbations of the world poses. So a
    /// factor can replace a sum of terms in a converged graph, and no pose moves.
    ///
    /// With `Ω = JᵀHJ` for the left Jacobian `J` at the residual `e = H⁺g` both are met exactly,
    /// because `J·e = e`. Pulls in directions without information are dropped. A residual beyond
    /// one radian or one unit of log-scale is shortened to that.
    pub fn at(
        (i, pose_i): (usize, &Sim3),
        (j, pose_j): (usize, &Sim3),
        hessian: &Matrix7,
        gradient: &Tangent,
    ) -> Self {
        let adjoint = pose_i.adjoint();
        let local = symmetric(&(adjoint.transpose() * hessian * adjoint));
        let mut residual = pseudo_solve(&local, &(adjoint.transpose() * gradient));
        let turn = residual.fixed_rows::<3>(3).norm().max(residual[6].abs());
        if turn > MAX_RESIDUAL {
            residual *= MAX_RESIDUAL / turn;
        }
        let jacobian = LeftJacobian::at(&residual).to_matrix();
        Self {
            i,
            j,
            i_from_j: Sim3::exp(&-residual) * (pose_i.inverse() * *pose_j),
            information: symmetric(&(jacobian.transpose() * local * jacobian)),
        }
    }

    /// Whether the information is symmetric and positive semidefinite, within rounding.
    pub(super) fn is_semidefinite(&self) -> bool {
        let information = &self.information;
        let diagonal = information.diagonal();
        let finite = information.iter().all(|v| v.is_finite());
        if !finite || diagonal.iter().any(|v| *v < 0.0) {
            return false;
        }
        let scale = unit_scale(&diagonal);
        let mut unit = scaled(information, &scale);
        let asymmetry = (unit - unit.transpose()).abs().max();
        for k in 0..7 {
            unit[(k, k)] += SEMIDEFINITE;
        }
        asymmetry <= SEMIDEFINITE && unit.cholesky().is_some()
    }
}

/// `(A⁻¹ + B⁻¹)⁻¹` of two positive semidefinite matrices: the information that two measurements in
/// series give about their sum. Zero in directions in which either is.
pub fn parallel_sum(a: &Matrix7, b: &Matrix7) -> Matrix7 {
    let sum = a + b;
    // Subtracting from the smaller one cancels less.
    let small = if a.trace() <= b.trace() { a } else { b };
    let inverse = pseudo_inverse(&sum);
    symmetric(&(small - small * inverse * small))
}

/// The left Jacobian `Σ ad(e)ᵏ/(k+1)!` of the group, with `ad(e) = [[φ^ + σI, τ^, −τ], [0, φ^, 0], [0, 0, 0]]`, or its
/// inverse. Both are `[[scaled, mixed, shift], [0, turned, 0], [0, 0, 1]]`: products of 7×7 matrices would cost six
/// times as much, and a solve needs one for each factor in each of its steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LeftJacobian {
    scaled: Matrix3<f64>,
    mixed: Matrix3<f64>,
    shift: Vector3<f64>,
    turned: Matrix3<f64>,
}

impl LeftJacobian {
    /// At `e = [τ, φ, σ]`.
    pub(super) fn at(e: &Tangent) -> Self {
        let tau = e.fixed_rows::<3>(0).into_owned();
        let turn = e.fixed_rows::<3>(3).into_owned().cross_matrix();
        let scaled_turn = turn + Matrix3::identity() * e[6];
        let across = tau.cross_matrix();
        let mut term = Self {
            scaled: Matrix3::identity(),
            mixed: Matrix3::zeros(),
            shift: Vector3::zeros(),
            turned: Matrix3::identity(),
        };
        let mut sum = term;
        // Rotations are at most π, so 4^k/(k+1)! bounds the terms for moderate e: below 1e-16 at 30.
        for k in 1..=30 {
            let part = 1.0 / f64::from(k + 1);
            term = Self {
                scaled: term.scaled * scaled_turn * part,
                mixed: (term.scaled * across + term.mixed * turn) * part,
                shift: term.scaled * tau * -part,
                turned: term.turned * turn * part,
            };
            let next = Self {
                scaled: sum.scaled + term.scaled,
                mixed: sum.mixed + term.mixed,
                shift: sum.shift + term.shift,
                turned: sum.turned + term.turned,
            };
            if next == sum {
                break;
            }
            sum = next;
        }
        sum
    }

    /// `None` if it is singular.
    pub(super) fn inverse(&self) -> Option<Self> {
        let (scaled, turned) = (self.scaled.try_inverse()?, self.turned.try_inverse()?);
        Some(Self {
            scaled,
            mixed: -(scaled * self.mixed * turned),
            shift: -(scaled * self.shift),
            turned,
        })
    }

    pub(super) fn to_matrix(self) -> Matrix7 {
        let mut whole = Matrix7::zeros();
        whole.fixed_view_mut::<3, 3>(0, 0).copy_from(&self.scaled);
        whole.fixed_view_mut::<3, 3>(0, 3).copy_from(&self.mixed);
        whole.fixed_view_mut::<3, 1>(0, 6).copy_from(&self.shift);
        whole.fixed_view_mut::<3, 3>(3, 3).copy_from(&self.turned);
        whole[(6, 6)] = 1.0;
        whole
    }
}

fn symmetric(m: &Matrix7) -> Matrix7 {
    (m + m.transpose()) * 0.5
}

/// The scales that give a matrix a unit diagonal, whatever its units; 1 where it is zero.
fn unit_scale(diagonal: &Tangent) -> Tangent {
    diagonal.map(|d| if d > 0.0 { 1.0 / d.sqrt() } else { 1.0 })
}

fn scaled(m: &Matrix7, scale: &Tangent) -> Matrix7 {
    Matrix7::from_fn(|r, c| m[(r, c)] * scale[r] * scale[c])
}

/// The inverse of a positive semidefinite matrix within its range, with a unit diagonal as metric.
fn pseudo_inverse(m: &Matrix7) -> Matrix7 {
    let scale = unit_scale(&m.diagonal());
    let unit = scaled(m, &scale);
    if !unit.iter().all(|v| v.is_finite()) {
        return Matrix7::repeat(f64::NAN);
    }
    let eigen = unit.symmetric_eigen();
    let least = NO_INFORMATION * eigen.eigenvalues.max();
    let inverse = eigen
        .eigenvalues
        .map(|v| if v > least { 1.0 / v } else { 0.0 });
    let vectors = &eigen.eigenvectors;
    let unit = vectors * Matrix7::from_diagonal(&inverse) * vectors.transpose();
    scaled(&unit, &scale)
}

fn pseudo_solve(m: &Matrix7, b: &Tangent) -> Tangent {
    pseudo_inverse(m) * b
}
