//! Global Gauss-Newton over keyframe poses (spec 6.4 to 6.7): every match of every edge, in both
//! directions, against absolute poses, with damping where a plain step does not help.

mod cholesky;
pub(crate) mod descent;
mod edges;
mod system;
pub(crate) mod terms;

use super::residual::{Model, Noise, View};
use crate::compute::stop::Stop;
use crate::config::{LocalOptConfig, ResidualChoice};
use crate::geometry::{Intrinsics, Sim3, Tangent};
pub use descent::Wanted;
use descent::{Graph, Lineariser};
use edges::Problem;
use terms::Linearised;

pub use super::residual::{Matrix7, SolveError};

/// A keyframe as the solve sees it; N = `width·height` of the call.
#[derive(Debug, Clone, Copy)]
pub struct Keyframe<'a> {
    /// N×3, the pointmap in the keyframe's own camera. For [`GlobalResidual::Calibrated`] only its
    /// depths are read: points are put on their pixels' rays.
    pub points: &'a [f32],
    /// N average confidences; a gate, not a weight.
    pub confidence: &'a [f32],
    /// Where the solve starts from.
    pub world_from_camera: Sim3,
}

/// Two matched keyframes, both directions. `i` and `j` count in the slice of keyframes; their
/// order means nothing.
#[derive(Debug, Clone, Copy)]
pub struct Edge<'a> {
    /// One keyframe.
    pub i: usize,
    /// The other.
    pub j: usize,
    /// N: for each pixel of `j` its pixel of `i`.
    pub index_i_from_j: &'a [u32],
    /// N: not 0 where that match holds.
    pub valid_j: &'a [u8],
    /// N: its quality.
    pub quality_j: &'a [f32],
    /// N: for each pixel of `i` its pixel of `j`.
    pub index_j_from_i: &'a [u32],
    /// N: not 0 where that match holds.
    pub valid_i: &'a [u8],
    /// N: its quality.
    pub quality_i: &'a [f32],
}

/// A weak belief about two keyframes' relative pose: costs `½ eᵀ·diag(information)·e` with
/// `e = log(T_i⁻¹·T_j·i_from_j⁻¹)`. It keeps a keyframe in place whose matches do not.
#[derive(Debug, Clone, Copy)]
pub struct PosePrior {
    /// One keyframe.
    pub i: usize,
    /// The other.
    pub j: usize,
    /// The believed `T_i⁻¹·T_j`.
    pub i_from_j: Sim3,
    /// Inverse variances of `[τ, φ, σ]`, in the frame of `i`; not negative.
    pub information: Tangent,
}

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GlobalResidual {
    /// Directions and distances of points.
    Rays,
    /// Pixels and log-depths; the intrinsics are those of the pointmaps' image.
    Calibrated(Intrinsics),
    /// Points.
    Points,
}

impl GlobalResidual {
    /// What the configuration asks for, for a camera of these intrinsics if they are known.
    pub fn of(choice: ResidualChoice, intrinsics: Option<Intrinsics>) -> Self {
        match (choice, intrinsics) {
            (ResidualChoice::Points, _) => Self::Points,
            (ResidualChoice::Camera, Some(k)) => Self::Calibrated(k),
            (ResidualChoice::Camera, None) => Self::Rays,
        }
    }
}

/// How a solve went.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct GlobalReport {
    /// Steps taken.
    pub iterations: usize,
    /// Robust cost (Huber's function of the whitened residuals, and the priors) at the start.
    pub initial_cost: f64,
    /// Robust cost at the end.
    pub final_cost: f64,
    /// Whether a stop rule held before `max_iters`; also if there was nothing to solve.
    pub converged: bool,
    /// Largest damping of a step that was taken, relative to the diagonal; 0: plain Gauss-Newton.
    pub damping_used: f64,
    /// Steps thrown away for a cost that rose, a factorisation that failed or a result that was
    /// not finite.
    pub rejected_steps: usize,
    /// Directed matches that passed every gate at the end.
    pub matches: u64,
    /// Keyframes that were free to move.
    pub free: usize,
    /// Groups of keyframes that nothing connects with a pinned one; each keeps the pose of its
    /// first keyframe.
    pub loose_groups: usize,
}

/// Solves for keyframe poses; holds the scratch memory that this takes.
#[derive(Default)]
pub struct GlobalSolver {
    scratch: edges::Scratch,
    stop: Stop,
}

impl GlobalSolver {
    /// Without memory; it grows with the first problem.
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on a solve ends when `stop` is asked for, with the poses that it then has.
    pub fn heed(&mut self, stop: &Stop) {
        self.stop = stop.clone();
    }

    /// Moves the poses so that the edges agree; writes them all to `poses` (as long as
    /// `keyframes`; what was in it is not read). The first `pin` keyframes come out as they went
    /// in, bit for bit, and so does the first of each group that is connected with none of them.
    ///
    /// The same input gives the same bits for any number of threads.
    ///
    /// # Errors
    /// Arrays of the wrong length, matches outside the image, edges between keyframes that are not
    /// there, poses or priors that are not finite, a problem that stays without a solution under
    /// any damping. `poses` is then left as it was.
    #[allow(clippy::too_many_arguments)]
    pub fn solve(
        &mut self,
        keyframes: &[Keyframe<'_>],
        edges: &[Edge<'_>],
        priors: &[PosePrior],
        residual: GlobalResidual,
        width: usize,
        height: usize,
        params: &LocalOptConfig,
        poses: &mut [Sim3],
    ) -> Result<GlobalReport, SolveError> {
        let (model, noise) = model(residual, width, height, params);
        let mut problem = Problem {
            keyframes,
            edges,
            priors,
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
            priors,
        };
        problem.expect_lengths(poses.len())?;
        graph.validate(keyframes.iter().map(|k| k.world_from_camera))?;
        let mut current: Vec<Sim3> = keyframes.iter().map(|k| k.world_from_camera).collect();
        let report = descent::descend(&mut problem, &graph, params, &self.stop, &mut current)?;
        poses.copy_from_slice(&current);
        Ok(report)
    }

    /// The normal equations of every edge at the keyframes' poses: what a device is checked against.
    ///
    /// # Errors
    /// As [`GlobalSolver::solve`].
    pub fn equations(
        &mut self,
        keyframes: &[Keyframe<'_>],
        edges: &[Edge<'_>],
        residual: GlobalResidual,
        width: usize,
        height: usize,
        params: &LocalOptConfig,
    ) -> Result<Vec<EdgeEquations>, SolveError> {
        let (model, noise) = model(residual, width, height, params);
        let mut problem = Problem {
            keyframes,
            edges,
            priors: &[],
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
            priors: &[],
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

/// The normal equations of an edge, both directions together, by left perturbations of the world poses:
/// `H` on both diagonal blocks and `−H` between them, `g` at `j` and `−g` at `i`.
#[derive(Debug, Clone, PartialEq)]
pub struct EdgeEquations {
    /// H.
    pub hessian: Matrix7,
    /// g.
    pub gradient: Tangent,
    /// Huber's function of the whitened residuals.
    pub robust: f64,
    /// Matches that passed every gate.
    pub matches: u64,
}

/// What `residual` compares, and how it weighs it.
pub(crate) fn model(
    residual: GlobalResidual,
    width: usize,
    height: usize,
    p: &LocalOptConfig,
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
    let huber = p.huber;
    (model, Noise { sigma, huber })
}

#[cfg(test)]
mod tests;
