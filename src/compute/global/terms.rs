//! What a linearisation gives: normal equations for each edge and each prior.

use super::PosePrior;
use crate::compute::residual::Matrix7;
use crate::geometry::{Sim3, Tangent};

/// An edge, both directions together, or a prior, by left perturbations of world poses. The rows of
/// its residuals by pose `i` are those by pose `j` with the sign turned (spec 6.5), so that one matrix
/// serves four blocks: `H` on both diagonals, `−H` between them; the gradient is `g` at `j`, `−g` at `i`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Term {
    pub(crate) i: usize,
    pub(crate) j: usize,
    pub(crate) hessian: Matrix7,
    pub(crate) gradient: Tangent,
}

/// The problem at a set of poses.
#[derive(Debug, Clone, Default)]
pub(crate) struct Linearised {
    /// One for each edge, in the edges' order, then one for each prior.
    pub(crate) terms: Vec<Term>,
    /// Robust cost and matches in use of each edge, both directions together.
    pub(crate) edges: Vec<(f64, u64)>,
    /// Robust cost of everything.
    pub(crate) robust: f64,
}

impl Linearised {
    pub(crate) fn clear(&mut self) {
        self.terms.clear();
        self.edges.clear();
        self.robust = 0.0;
    }

    /// Matches in use.
    pub(crate) fn used(&self) -> u64 {
        self.edges.iter().map(|(_, matches)| matches).sum()
    }

    pub(crate) fn is_finite(&self) -> bool {
        // Without a way out in the middle, which would keep it from being vectors.
        let finite = |values: &[f64]| values.iter().fold(true, |ok, v| ok & v.is_finite());
        let mut terms = self.terms.iter();
        self.robust.is_finite()
            && terms.all(|t| finite(t.hessian.as_slice()) & finite(t.gradient.as_slice()))
    }

    /// Adds the next edge's equations.
    pub(crate) fn push_edge(&mut self, term: Term, robust: f64, matches: u64) {
        self.terms.push(term);
        self.edges.push((robust, matches));
        self.robust += robust;
    }

    /// Adds the priors' equations, which come after all edges'.
    pub(crate) fn push_priors(&mut self, terms: &[Term], cost: f64) {
        self.terms.extend_from_slice(terms);
        self.robust += cost;
    }
}

/// Appends every prior's equations; their cost.
pub(crate) fn prior_terms(priors: &[PosePrior], poses: &[Sim3], out: &mut Vec<Term>) -> f64 {
    let mut total = 0.0;
    for prior in priors {
        let (relative, cost) = prior_term(prior, poses);
        let mut term = Term {
            i: prior.i,
            j: prior.j,
            hessian: Matrix7::zeros(),
            gradient: Tangent::zeros(),
        };
        relative.add_to(&poses[prior.i], 1.0, &mut term);
        out.push(term);
        total += cost;
    }
    total
}

/// Normal equations by a left perturbation of `T_ij = T_i⁻¹·T_j`.
pub(crate) struct Relative {
    pub(crate) hessian: Matrix7,
    pub(crate) gradient: Tangent,
}

impl Relative {
    /// Into world poses: with `A = Ad(T_i⁻¹)`, `J_j = row·A` makes `AᵀHA` and `Aᵀg` of `H` and `g`.
    /// `sign` is −1 where this one's `j` is the term's `i`.
    pub(crate) fn add_to(&self, pose_i: &Sim3, sign: f64, term: &mut Term) {
        let a = pose_i.inverse().adjoint();
        term.hessian += a.transpose() * self.hessian * a;
        term.gradient += a.transpose() * self.gradient * sign;
    }
}

/// `e = log(T_ij·M⁻¹)`, whose derivative by a left perturbation of `T_ij` is the inverse of the
/// left Jacobian of the group at `e`; and the cost.
pub(super) fn prior_term(prior: &PosePrior, poses: &[Sim3]) -> (Relative, f64) {
    let relative = poses[prior.i].inverse() * poses[prior.j];
    let e = (relative * prior.i_from_j.inverse()).log();
    let weighted = prior.information.component_mul(&e);
    // NaN where it cannot be inverted, which the caller tests for.
    let row = left_jacobian(&e)
        .try_inverse()
        .unwrap_or(Matrix7::repeat(f64::NAN));
    let term = Relative {
        hessian: row.transpose() * Matrix7::from_diagonal(&prior.information) * row,
        gradient: row.transpose() * weighted,
    };
    (term, 0.5 * e.dot(&weighted))
}

/// `Σ ad(e)ᵏ/(k+1)!`, with `ad(e) = [[φ^ + σI, τ^, −τ], [0, φ^, 0], [0, 0, 0]]`.
fn left_jacobian(e: &Tangent) -> Matrix7 {
    let tau = e.fixed_rows::<3>(0).into_owned();
    let hat = e.fixed_rows::<3>(3).into_owned().cross_matrix();
    let mut ad = Matrix7::zeros();
    let scaled = hat + nalgebra::Matrix3::identity() * e[6];
    ad.fixed_view_mut::<3, 3>(0, 0).copy_from(&scaled);
    ad.fixed_view_mut::<3, 3>(0, 3)
        .copy_from(&tau.cross_matrix());
    ad.fixed_view_mut::<3, 1>(0, 6).copy_from(&-tau);
    ad.fixed_view_mut::<3, 3>(3, 3).copy_from(&hat);
    let (mut term, mut sum) = (Matrix7::identity(), Matrix7::identity());
    // A rotation is at most π, so 4^k/(k+1)! bounds the terms for moderate e: below 1e-16 at 30.
    for k in 1..=30 {
        term = term * ad / f64::from(k + 1);
        sum += term;
    }
    sum
}
