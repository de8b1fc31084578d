//! Global Gauss-Newton over keyframe poses (spec 6.4 to 6.7): every match of every edge, in both
//! directions, against absolute poses, with damping where a plain step does not help.

mod edges;
mod system;

use super::residual::{Model, Noise, ROUNDING, View, is_progress};
use crate::config::LocalOptConfig;
use crate::geometry::{Intrinsics, Sim3, Tangent};
use edges::{Linearised, Problem};
use system::{Layout, System};

pub use super::residual::SolveError;

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

/// First damping, relative to the diagonal, after a plain step failed.
const FIRST_DAMPING: f64 = 1e-6;
/// Steps tried at one linearisation: plain, then damping from 1e-6 to 1e3.
const TRIES: usize = 11;
/// Matches that make an edge a connection: fewer cannot determine seven numbers.
const CONNECTING: u64 = 7;

/// Solves for keyframe poses; holds the scratch memory that this takes.
#[derive(Default)]
pub struct GlobalSolver {
    scratch: edges::Scratch,
}

impl GlobalSolver {
    /// Without memory; it grows with the first problem.
    pub fn new() -> Self {
        Self::default()
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
            active: vec![true; edges.len()],
            model,
            noise,
            pixels: width * height,
            c_conf: params.c_conf,
            q_conf: params.q_conf,
        };
        problem.validate(poses.len())?;
        let mut current: Vec<Sim3> = keyframes.iter().map(|k| k.world_from_camera).collect();
        let mut report = GlobalReport {
            converged: true,
            ..GlobalReport::default()
        };
        if keyframes.len() > params.pin && !(edges.is_empty() && priors.is_empty()) {
            problem.select(&mut self.scratch)?;
            let mut at = problem.linearise(&current, &mut self.scratch);
            if !at.is_finite() {
                let what = "the normal matrix";
                return Err(SolveError::NotFinite { what });
            }
            let groups = groups(&problem, &at);
            let (fixed, loose_groups) = fixed_poses(&groups, params.pin);
            report.loose_groups = loose_groups;
            // What is too weak to connect two groups must not pull at them either.
            for (active, e) in problem.active.iter_mut().zip(edges) {
                *active = groups[e.i] == groups[e.j];
            }
            if problem.active.contains(&false) {
                at = problem.linearise(&current, &mut self.scratch);
            }
            report.initial_cost = at.robust;
            report.final_cost = at.robust;
            report.matches = at.used;
            let layout = Layout::new(&fixed, edges, priors)?;
            report.free = layout.free();
            if layout.free() > 0 {
                self.iterate(&problem, &layout, at, &mut current, params, &mut report)?;
            }
        }
        poses.copy_from_slice(&current);
        Ok(report)
    }

    fn iterate(
        &mut self,
        problem: &Problem<'_>,
        layout: &Layout,
        mut at: Linearised,
        poses: &mut Vec<Sim3>,
        params: &LocalOptConfig,
        report: &mut GlobalReport,
    ) -> Result<(), SolveError> {
        let mut system = System::new(layout);
        let mut damping = 0.0;
        report.converged = false;
        while report.iterations < params.max_iters && !report.converged {
            system.assemble(layout, poses, &at);
            let (mut accepted, mut shortest) = (None, None);
            for _ in 0..TRIES {
                if let Some(step) = system.solve(layout, damping) {
                    let next_poses = layout.retract(poses, &step);
                    shortest = Some(step.norm());
                    if next_poses.iter().all(Sim3::is_finite) {
                        let next = problem.linearise(&next_poses, &mut self.scratch);
                        if next.is_finite()
                            && is_progress((at.robust, at.used), (next.robust, next.used))
                        {
                            accepted = Some((step.norm(), next_poses, next));
                            break;
                        }
                    }
                }
                report.rejected_steps += 1;
                if shortest.is_some_and(|step| step < params.delta_norm.max(STALLED)) {
                    break;
                }
                damping = (damping * 10.0_f64).max(FIRST_DAMPING);
            }
            let Some((step, next_poses, next)) = accepted else {
                // Nothing lowers the cost. If that was said of a short step with little damping, this
                // is a minimum.
                match shortest {
                    Some(step) => {
                        report.converged =
                            step < params.delta_norm.max(STALLED) && damping <= FIRST_DAMPING;
                    }
                    None if report.iterations == 0 => {
                        let poses = layout.free();
                        return Err(SolveError::Factorisation { poses });
                    }
                    None => {}
                }
                break;
            };
            let fall = (at.robust - next.robust) / at.robust;
            report.converged = step < params.delta_norm
                || at.robust == 0.0
                // The slack is that of `is_progress`.
                || (-ROUNDING..params.rel_error).contains(&fall);
            report.damping_used = report.damping_used.max(damping);
            damping = if damping > FIRST_DAMPING {
                damping * 0.1
            } else {
                0.0
            };
            *poses = next_poses;
            at = next;
            report.iterations += 1;
            report.final_cost = at.robust;
            report.matches = at.used;
        }
        Ok(())
    }
}

/// Steps below this that do not lower the cost say that it is at its minimum.
const STALLED: f64 = 1e-6;

fn model(
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

/// For each keyframe the first one of its group. A group is what edges with matches and priors
/// with information connect.
fn groups(problem: &Problem<'_>, at: &Linearised) -> Vec<usize> {
    fn root(parent: &mut [usize], mut k: usize) -> usize {
        while parent[k] != k {
            parent[k] = parent[parent[k]];
            k = parent[k];
        }
        k
    }
    let mut parent: Vec<usize> = (0..problem.keyframes.len()).collect();
    let matched = problem.edges.iter().zip(at.edge_matches());
    let by_edge = matched.filter(|(_, used)| *used >= CONNECTING);
    let by_prior = problem.priors.iter();
    let by_prior = by_prior.filter(|p| p.information.iter().any(|v| *v > 0.0));
    let links = by_edge
        .map(|(e, _)| (e.i, e.j))
        .chain(by_prior.map(|p| (p.i, p.j)));
    for (i, j) in links {
        // The lower index becomes the root, so that a root is its group's first keyframe.
        let (a, b) = (root(&mut parent, i), root(&mut parent, j));
        parent[a.max(b)] = a.min(b);
    }
    (0..parent.len()).map(|k| root(&mut parent, k)).collect()
}

/// Which poses stay: the pinned ones, and the first of each group without one; and the number of
/// these groups.
fn fixed_poses(groups: &[usize], pin: usize) -> (Vec<bool>, usize) {
    let is_first = |k: usize| groups[k] == k;
    let fixed = (0..groups.len()).map(|k| k < pin || is_first(k)).collect();
    (fixed, (pin..groups.len()).filter(|&k| is_first(k)).count())
}

#[cfg(test)]
mod tests;
