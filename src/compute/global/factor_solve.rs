//! Normal equations of relative-pose factors, and the solve over factors alone (docs/algorithm.md,
//! Global optimisation).

use super::descent::{self, Graph, Lineariser, Wanted};
use super::terms::{Linearised, Relative, Term, factor_term, factor_terms};
use super::{EdgeEquations, GlobalReport, PoseFactor, Priors};
use crate::compute::cancel::CancelToken;
use crate::compute::residual::{Matrix7, ROUNDING, SolveError, expect_len};
use crate::config::GlobalOptConfig;
use crate::geometry::Sim3;

impl PoseFactor {
    /// Normal equations and cost at the poses `T_i` and `T_j`; no matches are counted. NaN if the
    /// residual has no derivative there.
    pub fn equations(&self, pose_i: &Sim3, pose_j: &Sim3) -> EdgeEquations {
        let (relative, robust) = factor_term(self, &(pose_i.inverse() * *pose_j));
        let mut term = Term::zero(self.i, self.j);
        Relative::add_to(&relative, pose_i, 1.0, &mut term);
        EdgeEquations {
            hessian: term.hessian,
            gradient: term.gradient,
            robust,
            matches: 0,
        }
    }

    /// One factor in place of this one and `other`, which join the same two keyframes: with the sum
    /// of their normal equations at the poses `T_i` and `T_j` of this factor's ends.
    pub fn fused(&self, other: &Self, pose_i: &Sim3, pose_j: &Sim3) -> Self {
        let own = self.equations(pose_i, pose_j);
        let (theirs, sign) = match other.i == self.i {
            true => (other.equations(pose_i, pose_j), 1.0),
            false => (other.equations(pose_j, pose_i), -1.0),
        };
        let hessian = own.hessian + theirs.hessian;
        let gradient = own.gradient + theirs.gradient * sign;
        Self::at((self.i, pose_i), (self.j, pose_j), &hessian, &gradient)
    }

    /// Like [`PoseFactor::fused`], but no more certain than the more certain of both (by the trace of the information).
    pub fn mean(&self, other: &Self, pose_i: &Sim3, pose_j: &Sim3) -> Self {
        let nothing = Self {
            information: Matrix7::zeros(),
            ..*self
        };
        // In the same direction as this factor: a trace depends on the frame.
        let turned = nothing.fused(other, pose_i, pose_j).information.trace();
        let mut fused = self.fused(other, pose_i, pose_j);
        let both = fused.information.trace();
        if both > 0.0 {
            fused.information *= self.information.trace().max(turned) / both;
        }
        fused
    }
}

/// Optimises `poses`, from their present values, over factors and priors alone; the first `params.pin` and the
/// first of each group without one of these stay fixed, as in
/// [`GlobalSolver::solve`](super::GlobalSolver::solve).
///
/// # Errors
/// Factors between unknown poses, an invalid information, non-finite poses, or a problem that cannot
/// be solved with any damping. `poses` is then unchanged.
pub fn solve_factors(
    factors: &[PoseFactor],
    priors: Priors<'_>,
    params: &GlobalOptConfig,
    cancel: &CancelToken,
    poses: &mut [Sim3],
) -> Result<GlobalReport, SolveError> {
    let graph = Graph {
        links: &[],
        factors,
        priors,
    };
    graph.validate(poses.iter().copied())?;
    let mut solved = poses.to_vec();
    let report = descent::descend(
        &mut FactorsOnly(factors),
        &graph,
        params,
        cancel,
        &mut solved,
    )?;
    expect_len("poses", poses.len(), solved.len())?;
    poses.copy_from_slice(&solved);
    Ok(report)
}

/// A problem without matches.
struct FactorsOnly<'a>(&'a [PoseFactor]);

impl Lineariser for FactorsOnly<'_> {
    type Error = SolveError;

    fn select(&mut self) -> Result<(), SolveError> {
        Ok(())
    }

    fn linearise(
        &mut self,
        poses: &[Sim3],
        _active: &[bool],
        _wanted: Wanted,
        out: &mut Linearised,
    ) -> Result<(), SolveError> {
        out.clear();
        let mut terms = Vec::with_capacity(self.0.len());
        let cost = factor_terms(self.0, poses, &mut terms);
        out.push_factors(&terms, cost);
        Ok(())
    }

    fn rounding(&self, _robust: f64, _used: u64) -> f64 {
        ROUNDING
    }
}
