//! Global Gauss-Newton over keyframe poses (docs/algorithm.md, Global optimisation): all matches of
//! all edges, in both directions, with absolute poses, and damping if a plain step does not reduce
//! the cost.

mod cholesky;
pub(crate) mod descent;
mod edges;
mod factor;
mod factor_solve;
mod prior;
mod system;
pub(crate) mod terms;

use super::depth::MEASURED_SIGMA;
use super::residual::{Model, Noise, View};
use crate::compute::cancel::CancelToken;
use crate::config::{GlobalOptConfig, ResidualChoice};
use crate::geometry::{Intrinsics, Sim3, Tangent};
pub use descent::{CONNECTING, Wanted};
use descent::{Graph, Lineariser};
use edges::Problem;
pub use factor::{PoseFactor, parallel_sum};
pub use factor_solve::solve_factors;
pub use prior::{MetricPrior, Priors, ScalePrior, solver_units};
use terms::Linearised;

pub use super::residual::{Matrix7, SolveError};

/// Input of the solve for one keyframe; N = `width·height`.
#[derive(Debug, Clone, Copy)]
pub struct Keyframe<'a> {
    /// N×3, the pointmap in the keyframe's own camera frame. For [`GlobalResidual::Calibrated`]
    /// only its depths are used: points are moved onto their pixels' rays.
    pub points: &'a [f32],
    /// N average confidences, used as a gate, not as a weight.
    pub confidence: &'a [f32],
    /// Initial pose.
    pub world_from_camera: Sim3,
}

/// Two matched keyframes, both directions. `i` and `j` index the slice of keyframes, in any order. Quality 0 means no
/// match.
#[derive(Debug, Clone, Copy)]
pub struct Edge<'a> {
    pub i: usize,
    pub j: usize,
    /// N: for each pixel of `j`, the matched pixel of `i`.
    pub index_i_from_j: &'a [u32],
    /// N: quality of the match.
    pub quality_j: &'a [f32],
    /// N: for each pixel of `i`, the matched pixel of `j`.
    pub index_j_from_i: &'a [u32],
    /// N: quality of the match.
    pub quality_i: &'a [f32],
}

/// The residual to minimise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GlobalResidual {
    /// Difference of ray directions and of distances.
    Rays,
    /// Pixel and log-depth; the intrinsics are those of the pointmaps' images.
    Calibrated(Intrinsics),
    Points,
}

impl GlobalResidual {
    /// The configured residual, for a camera with these intrinsics if known.
    pub fn of(choice: ResidualChoice, intrinsics: Option<Intrinsics>) -> Self {
        match (choice, intrinsics) {
            (ResidualChoice::Points, _) => Self::Points,
            (ResidualChoice::Camera, Some(k)) => Self::Calibrated(k),
            (ResidualChoice::Camera, None) => Self::Rays,
        }
    }
}

/// Statistics of a solve.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct GlobalReport {
    /// Number of steps taken.
    pub iterations: usize,
    /// Initial robust cost: Huber function of the whitened residuals, plus the cost of the factors.
    pub initial_cost: f64,
    /// Final robust cost.
    pub final_cost: f64,
    /// Whether a stopping criterion was met before `max_iters`, or there was nothing to solve.
    pub converged: bool,
    /// Largest damping of an accepted step, relative to the diagonal; 0 means plain Gauss-Newton.
    pub damping_used: f64,
    /// Number of steps rejected because the cost rose, the factorisation failed or the result was
    /// not finite.
    pub rejected_steps: usize,
    /// Directed matches that passed every gate at the final poses.
    pub matches: u64,
    /// Number of keyframes free to move.
    pub free: usize,
    /// Number of keyframe groups not connected to a pinned keyframe; the first keyframe of each
    /// group keeps its pose.
    pub loose_groups: usize,
}

/// Solves for keyframe poses. Owns the scratch memory.
#[derive(Default)]
pub struct GlobalSolver {
    scratch: edges::Scratch,
    cancel: CancelToken,
}

impl GlobalSolver {
    /// A solver without scratch memory, which is allocated by the first problem.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the cancellation token. When it is cancelled, a solve ends early with its current
    /// poses.
    pub fn set_cancel(&mut self, cancel: &CancelToken) {
        self.cancel = cancel.clone();
    }

    /// Optimises the poses and writes all of them to `poses` (as long as `keyframes`; its previous
    /// content is not read). The first `pin` keyframes keep their poses bit for bit, and so does
    /// the first keyframe of each group not connected to any of them.
    ///
    /// The same input gives the same bits for any number of threads.
    ///
    /// # Errors
    /// Arrays of the wrong length, matches outside the image, edges between unknown keyframes,
    /// non-finite poses or factors, or a problem that cannot be solved with any damping. `poses` is
    /// then unchanged.
    #[allow(clippy::too_many_arguments)]
    pub fn solve(
        &mut self,
        keyframes: &[Keyframe<'_>],
        edges: &[Edge<'_>],
        factors: &[PoseFactor],
        priors: Priors<'_>,
        residual: GlobalResidual,
        width: usize,
        height: usize,
        params: &GlobalOptConfig,
        poses: &mut [Sim3],
    ) -> Result<GlobalReport, SolveError> {
        let (model, noise) = model(residual, width, height, params);
        let mut problem = Problem {
            keyframes,
            edges,
            factors,
            model,
            noise,
            pixels: width * height,
            c_conf: params.c_conf,
            q_conf: params.q_conf,
            scratch: &mut self.scratch,
        };
        let links: Vec<_> = edges.iter().map(|e| (e.i, e.j)).collect();
        let graph = Graph {
            links: &links,
            factors,
            priors,
        };
        problem.expect_lengths(poses.len())?;
        graph.validate(keyframes.iter().map(|k| k.world_from_camera))?;
        let mut current: Vec<Sim3> = keyframes.iter().map(|k| k.world_from_camera).collect();
        let report = descent::descend(&mut problem, &graph, params, &self.cancel, &mut current)?;
        poses.copy_from_slice(&current);
        Ok(report)
    }

    /// The normal equations of every edge at the keyframes' poses.
    ///
    /// # Errors
    /// See [`GlobalSolver::solve`].
    pub fn equations(
        &mut self,
        keyframes: &[Keyframe<'_>],
        edges: &[Edge<'_>],
        residual: GlobalResidual,
        width: usize,
        height: usize,
        params: &GlobalOptConfig,
    ) -> Result<Vec<EdgeEquations>, SolveError> {
        let (model, noise) = model(residual, width, height, params);
        let mut problem = Problem {
            keyframes,
            edges,
            factors: &[],
            model,
            noise,
            pixels: width * height,
            c_conf: params.c_conf,
            q_conf: params.q_conf,
            scratch: &mut self.scratch,
        };
        let links: Vec<_> = edges.iter().map(|e| (e.i, e.j)).collect();
        let graph = Graph {
            links: &links,
            factors: &[],
            priors: Priors::default(),
        };
        problem.expect_lengths(keyframes.len())?;
        graph.validate(keyframes.iter().map(|k| k.world_from_camera))?;
        problem.select()?;
        let poses: Vec<Sim3> = keyframes.iter().map(|k| k.world_from_camera).collect();
        let mut at = Linearised::default();
        problem.linearise(&poses, &vec![true; edges.len()], Wanted::Equations, &mut at)?;
        let each = at.terms.iter().zip(at.edges);
        let equations = each.map(|(t, (robust, matches))| EdgeEquations {
            hessian: t.hessian,
            gradient: t.gradient,
            robust,
            matches,
        });
        Ok(equations.collect())
    }
}

/// The normal equations of an edge, both directions together, for left perturbations of the world
/// poses: `H` on both diagonal blocks and `−H` off the diagonal, `g` at `j` and `−g` at `i`.
#[derive(Debug, Clone, PartialEq)]
pub struct EdgeEquations {
    /// H
    pub hessian: Matrix7,
    /// g
    pub gradient: Tangent,
    /// Huber function of the whitened residuals.
    pub robust: f64,
    /// Number of matches that passed every gate.
    pub matches: u64,
}

/// The model for `residual` with its weights.
pub(crate) fn model(
    residual: GlobalResidual,
    width: usize,
    height: usize,
    p: &GlobalOptConfig,
) -> (Model, Noise) {
    let (model, sigma) = match residual {
        GlobalResidual::Rays => (Model::Rays, (p.sigma_ray, p.sigma_dist)),
        GlobalResidual::Points => (Model::Points, (p.sigma_point, 1.0)),
        GlobalResidual::Calibrated(intrinsics) => {
            let view = View {
                intrinsics,
                width,
                height,
                border: p.pixel_border,
                depth_eps: p.depth_eps,
            };
            (Model::Calibrated(view), (p.sigma_pixel, p.sigma_depth))
        }
    };
    let noise = Noise {
        sigma,
        measured: MEASURED_SIGMA,
        huber: p.huber,
        fits: f64::INFINITY,
    };
    (model, noise)
}

#[cfg(test)]
mod tests;
