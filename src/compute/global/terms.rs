//! Results of a linearisation: normal equations of each edge and each factor.

use super::PoseFactor;
use super::factor::LeftJacobian;
use crate::compute::residual::Matrix7;
use crate::geometry::{Sim3, Tangent};

/// Normal equations of an edge (both directions together) or a factor, for left perturbations of the
/// world poses. The Jacobians satisfy `J_i = −J_j` (docs/algorithm.md, Global optimisation), so
/// that one matrix serves four blocks: `H` on both diagonals, `−H` off the diagonal; the gradient
/// is `g` at `j`, `−g` at `i`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Term {
    pub(crate) i: usize,
    pub(crate) j: usize,
    pub(crate) hessian: Matrix7,
    pub(crate) gradient: Tangent,
}

impl Term {
    /// Equations of nothing, between two keyframes.
    pub(crate) fn zero(i: usize, j: usize) -> Self {
        Self {
            i,
            j,
            hessian: Matrix7::zeros(),
            gradient: Tangent::zeros(),
        }
    }
}

/// Normal equations of a single keyframe.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnaryTerm {
    pub(crate) k: usize,
    pub(crate) hessian: Matrix7,
    pub(crate) gradient: Tangent,
}

impl UnaryTerm {
    /// Equations of nothing.
    pub(crate) fn zero(k: usize) -> Self {
        Self {
            k,
            hessian: Matrix7::zeros(),
            gradient: Tangent::zeros(),
        }
    }
}

/// Normal equations between two keyframes whose Jacobians have no relation to each other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BinaryTerm {
    pub(crate) i: usize,
    pub(crate) j: usize,
    pub(crate) hessian_ii: Matrix7,
    /// Rows of `i`, columns of `j`; the fourth block is its transpose.
    pub(crate) hessian_ij: Matrix7,
    pub(crate) hessian_jj: Matrix7,
    pub(crate) gradient_i: Tangent,
    pub(crate) gradient_j: Tangent,
}

impl From<&Term> for BinaryTerm {
    fn from(term: &Term) -> Self {
        Self {
            i: term.i,
            j: term.j,
            hessian_ii: term.hessian,
            hessian_ij: -term.hessian,
            hessian_jj: term.hessian,
            gradient_i: -term.gradient,
            gradient_j: term.gradient,
        }
    }
}

/// A problem linearised at a set of poses.
#[derive(Debug, Clone, Default)]
pub(crate) struct Linearised {
    /// One term per edge, in the order of the edges, then one per factor.
    pub(crate) terms: Vec<Term>,
    /// Terms of the priors of single keyframes.
    pub(crate) unary: Vec<UnaryTerm>,
    /// Terms of the priors between two keyframes, in order.
    pub(crate) binary: Vec<BinaryTerm>,
    /// Robust cost and number of matches in use of each edge, both directions together.
    pub(crate) edges: Vec<(f64, u64)>,
    /// Total robust cost.
    pub(crate) robust: f64,
}

impl Linearised {
    pub(crate) fn clear(&mut self) {
        self.terms.clear();
        self.unary.clear();
        self.binary.clear();
        self.edges.clear();
        self.robust = 0.0;
    }

    /// Number of matches in use.
    pub(crate) fn used(&self) -> u64 {
        self.edges.iter().map(|(_, matches)| matches).sum()
    }

    pub(crate) fn is_finite(&self) -> bool {
        // No early exit, which would prevent vectorisation.
        let finite = |values: &[f64]| values.iter().fold(true, |ok, v| ok & v.is_finite());
        let mut terms = self.terms.iter();
        let mut unary = self.unary.iter();
        let mut binary = self.binary.iter();
        self.robust.is_finite()
            && terms.all(|t| finite(t.hessian.as_slice()) & finite(t.gradient.as_slice()))
            && unary.all(|t| finite(t.hessian.as_slice()) & finite(t.gradient.as_slice()))
            && binary.all(|t| {
                let blocks = [&t.hessian_ii, &t.hessian_ij, &t.hessian_jj];
                let gradients = finite(t.gradient_i.as_slice()) & finite(t.gradient_j.as_slice());
                blocks
                    .iter()
                    .fold(gradients, |ok, block| ok & finite(block.as_slice()))
            })
    }

    pub(crate) fn push_unary(&mut self, term: UnaryTerm, cost: f64) {
        self.unary.push(term);
        self.robust += cost;
    }

    pub(crate) fn push_binary(&mut self, term: BinaryTerm, cost: f64) {
        self.binary.push(term);
        self.robust += cost;
    }

    pub(crate) fn push_edge(&mut self, term: Term, robust: f64, matches: u64) {
        self.terms.push(term);
        self.edges.push((robust, matches));
        self.robust += robust;
    }

    /// Adds the equations of the factors, after those of all edges.
    pub(crate) fn push_factors(&mut self, terms: &[Term], cost: f64) {
        self.terms.extend_from_slice(terms);
        self.robust += cost;
    }
}

/// Appends the equations of every factor; returns their cost.
pub(crate) fn factor_terms(factors: &[PoseFactor], poses: &[Sim3], out: &mut Vec<Term>) -> f64 {
    let mut total = 0.0;
    for factor in factors {
        let (relative, cost) = factor_term(factor, &(poses[factor.i].inverse() * poses[factor.j]));
        let mut term = Term::zero(factor.i, factor.j);
        relative.add_to(&poses[factor.i], 1.0, &mut term);
        out.push(term);
        total += cost;
    }
    total
}

/// Normal equations for a left perturbation of `T_ij = T_i⁻¹·T_j`.
pub(crate) struct Relative {
    pub(crate) hessian: Matrix7,
    pub(crate) gradient: Tangent,
}

impl Relative {
    /// Transforms to world poses: with `A = Ad(T_i⁻¹)` and `J_j = row·A`, `H` and `g` become `AᵀHA`
    /// and `Aᵀg`. `sign` is −1 if this `j` is the term's `i`.
    pub(crate) fn add_to(&self, pose_i: &Sim3, sign: f64, term: &mut Term) {
        let a = pose_i.inverse().adjoint();
        term.hessian += a.transpose() * self.hessian * a;
        term.gradient += a.transpose() * self.gradient * sign;
    }
}

/// Residual `e = log(T_ij·M⁻¹)` at `relative` = `T_ij`, whose derivative for a left perturbation of `T_ij` is the inverse
/// of the group's left Jacobian at `e`; also returns the cost.
pub(super) fn factor_term(factor: &PoseFactor, relative: &Sim3) -> (Relative, f64) {
    let e = (*relative * factor.i_from_j.inverse()).log();
    let weighted = factor.information * e;
    // NaN if it cannot be inverted; the caller checks for that.
    let row = LeftJacobian::at(&e).inverse();
    let row = row.map_or(Matrix7::repeat(f64::NAN), LeftJacobian::to_matrix);
    let term = Relative {
        hessian: row.transpose() * factor.information * row,
        gradient: row.transpose() * weighted,
    };
    (term, 0.5 * e.dot(&weighted))
}
