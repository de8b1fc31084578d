//! Damped Gauss-Newton over the poses of a graph, generic over the code that sums up the matches.

use super::prior::Priors;
use super::system::{Hold, Layout, System};
use super::terms::Linearised;
use super::{GlobalReport, PoseFactor};
use crate::compute::cancel::CancelToken;
use crate::compute::residual::{SolveError, is_progress_within};
use crate::config::GlobalOptConfig;
use crate::geometry::Sim3;
use nalgebra::DVector;

/// Initial damping after a failed plain step, relative to the diagonal.
const FIRST_DAMPING: f64 = 1e-6;
/// Maximum number of steps tried per linearisation: plain, then with damping from 1e-6 to 1e3.
const TRIES: usize = 11;
/// Minimum number of matches for an edge to connect its keyframes: fewer cannot determine seven
/// parameters.
pub const CONNECTING: u64 = 7;
/// If even a step shorter than this does not lower the cost, the cost is at its minimum.
const STALLED: f64 = 1e-6;

/// Sums up the matches of a graph at given poses.
pub(crate) trait Lineariser {
    type Error: From<SolveError>;

    /// Selects the usable matches once for all linearisations; called before the first one.
    fn select(&mut self) -> Result<(), Self::Error>;

    /// Computes the equations of every edge with `active` set (zero for the others), then of every
    /// factor. If only the cost is wanted, the equations may be zero.
    fn linearise(
        &mut self,
        poses: &[Sim3],
        active: &[bool],
        wanted: Wanted,
        out: &mut Linearised,
    ) -> Result<(), Self::Error>;

    /// The relative difference between costs near `robust`, over `used` matches, that is attributed
    /// to rounding.
    fn rounding(&self, robust: f64, used: u64) -> f64;
}

/// The requested results of a linearisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// The normal equations and the cost.
    Equations,
    /// The robust cost and its number of matches, bit-identical to those of [`Wanted::Equations`].
    Cost,
}

/// Structure of the graph.
pub(crate) struct Graph<'a> {
    /// Keyframe indices of each edge.
    pub(crate) links: &'a [(usize, usize)],
    pub(crate) factors: &'a [PoseFactor],
    pub(crate) priors: Priors<'a>,
}

impl Graph<'_> {
    /// Checks the graph against `start`, the poses of the keyframes.
    pub(crate) fn validate(&self, start: impl Iterator<Item = Sim3>) -> Result<(), SolveError> {
        let mut count = 0;
        for pose in start {
            count += 1;
            if !pose.is_finite() {
                let what = "a keyframe's pose";
                return Err(SolveError::NotFinite { what });
            }
        }
        let joins = |what, i, j| match i != j && i < count && j < count {
            true => Ok(()),
            false => Err(SolveError::Keyframe { what, i, j, count }),
        };
        for &(i, j) in self.links {
            joins("an edge", i, j)?;
        }
        for p in self.factors {
            joins("a factor", p.i, p.j)?;
            if !p.i_from_j.is_finite() {
                let what = "a factor's pose";
                return Err(SolveError::NotFinite { what });
            }
            if !p.is_semidefinite() {
                return Err(SolveError::Information { i: p.i, j: p.j });
            }
        }
        self.priors.validate(count)
    }
}

/// Optimises `poses` until the cost is at its minimum, `max_iters` is reached or the token is
/// cancelled. The poses are unchanged if an error is returned.
pub(crate) fn descend<L: Lineariser>(
    lineariser: &mut L,
    graph: &Graph<'_>,
    params: &GlobalOptConfig,
    cancel: &CancelToken,
    poses: &mut Vec<Sim3>,
) -> Result<GlobalReport, L::Error> {
    let mut report = GlobalReport {
        converged: true,
        ..GlobalReport::default()
    };
    let (links, factors, priors) = (graph.links, graph.factors, &graph.priors);
    let no_priors = priors.scales.is_empty() && priors.motions.is_empty();
    if no_priors && (poses.len() <= params.pin || (links.is_empty() && factors.is_empty())) {
        return Ok(report);
    }
    if cancel.is_cancelled() {
        report.converged = false;
        return Ok(report);
    }
    let mut active = vec![true; links.len()];
    let mut at = Linearised::default();
    lineariser.select()?;
    lineariser.linearise(poses, &active, Wanted::Equations, &mut at)?;
    if !at.is_finite() {
        let what = "the normal matrix";
        return Err(SolveError::NotFinite { what }.into());
    }
    let groups = groups(graph, poses.len(), &at);
    let (holds, loose_groups) = holds(&groups, params.pin, priors, poses);
    report.loose_groups = loose_groups;
    // Edges too weak to connect two groups must not influence them either.
    for (active, (i, j)) in active.iter_mut().zip(links) {
        *active = groups[*i] == groups[*j];
    }
    if active.contains(&false) {
        lineariser.linearise(poses, &active, Wanted::Equations, &mut at)?;
    }
    priors.linearise(poses, &mut at);
    report.initial_cost = at.robust;
    report.final_cost = at.robust;
    report.matches = at.used();
    let all: Vec<_> = links
        .iter()
        .copied()
        .chain(factors.iter().map(|p| (p.i, p.j)))
        .chain(priors.motions.iter().map(|p| (p.i, p.j)))
        .collect();
    let layout = Layout::new(&holds, &all)?;
    report.free = layout.free();
    if layout.free() > 0 {
        let mut current = poses.clone();
        iterate(
            lineariser,
            &active,
            priors,
            &layout,
            at,
            &mut current,
            params,
            cancel,
            &mut report,
        )?;
        *poses = current;
    }
    Ok(report)
}

#[allow(clippy::too_many_arguments)]
fn iterate<L: Lineariser>(
    lineariser: &mut L,
    active: &[bool],
    priors: &Priors<'_>,
    layout: &Layout,
    mut at: Linearised,
    poses: &mut Vec<Sim3>,
    params: &GlobalOptConfig,
    cancel: &CancelToken,
    report: &mut GlobalReport,
) -> Result<(), L::Error> {
    let mut system = System::new(layout);
    let mut damping = 0.0;
    let mut step = DVector::zeros(0);
    let mut next = Linearised::default();
    let mut next_poses = Vec::with_capacity(poses.len());
    report.converged = false;
    while report.iterations < params.max_iters && !report.converged && !cancel.is_cancelled() {
        // The equations at the final poses are not needed.
        let wanted = match report.iterations + 1 < params.max_iters {
            true => Wanted::Equations,
            false => Wanted::Cost,
        };
        system.assemble(layout, &at);
        let rounding = lineariser.rounding(at.robust, at.used());
        let (mut accepted, mut shortest) = (None, None);
        for _ in 0..TRIES {
            if system.solve(layout, damping, &mut step) {
                layout.retract(poses, &step, &mut next_poses);
                shortest = Some(step.norm());
                if next_poses.iter().all(Sim3::is_finite) {
                    lineariser.linearise(&next_poses, active, wanted, &mut next)?;
                    priors.linearise(&next_poses, &mut next);
                    let (old, new) = ((at.robust, at.used()), (next.robust, next.used()));
                    if next.is_finite() && is_progress_within(rounding, old, new) {
                        accepted = Some(step.norm());
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
        let Some(length) = accepted else {
            // No step lowers the cost. If that holds for a short step with little damping, this is
            // a minimum.
            match shortest {
                Some(step) => {
                    report.converged =
                        step < params.delta_norm.max(STALLED) && damping <= FIRST_DAMPING;
                }
                None if report.iterations == 0 => {
                    let poses = layout.free();
                    return Err(SolveError::Factorisation { poses }.into());
                }
                None => {}
            }
            break;
        };
        let fall = (at.robust - next.robust) / at.robust;
        report.converged = length < params.delta_norm
            || at.robust == 0.0
            // Same tolerance as in `is_progress_within`.
            || (-rounding..params.rel_error).contains(&fall);
        report.damping_used = report.damping_used.max(damping);
        damping = if damping > FIRST_DAMPING {
            damping * 0.1
        } else {
            0.0
        };
        std::mem::swap(poses, &mut next_poses);
        std::mem::swap(&mut at, &mut next);
        report.iterations += 1;
        report.final_cost = at.robust;
        report.matches = at.used();
    }
    Ok(())
}

/// For each keyframe, the first one of its group. A group is connected by edges with matches, and by
/// factors and metric priors with information.
fn groups(graph: &Graph<'_>, keyframes: usize, at: &Linearised) -> Vec<usize> {
    fn root(parent: &mut [usize], mut k: usize) -> usize {
        while parent[k] != k {
            parent[k] = parent[parent[k]];
            k = parent[k];
        }
        k
    }
    let mut parent: Vec<usize> = (0..keyframes).collect();
    let matched = graph.links.iter().zip(&at.edges);
    let by_edge = matched.filter(|(_, (_, used))| *used >= CONNECTING);
    let by_factor = graph.factors.iter();
    let by_factor = by_factor.filter(|p| p.information.diagonal().iter().any(|v| *v > 0.0));
    let connected = by_edge
        .map(|(link, _)| *link)
        .chain(by_factor.map(|p| (p.i, p.j)));
    let by_prior = graph.priors.motions.iter().filter(|p| p.connects());
    let connected = connected.chain(by_prior.map(|p| (p.i, p.j)));
    for (i, j) in connected {
        // The lower index becomes the root, so that a root is the first keyframe of its group.
        let (a, b) = (root(&mut parent, i), root(&mut parent, j));
        parent[a.max(b)] = a.min(b);
    }
    (0..parent.len()).map(|k| root(&mut parent, k)).collect()
}

/// What each keyframe may do, and the number of groups without a pinned keyframe: fixed are the pinned ones
/// and the first of each such group. Where priors fix the scale, only rotation and translation are.
fn holds(groups: &[usize], pin: usize, priors: &Priors<'_>, poses: &[Sim3]) -> (Vec<Hold>, usize) {
    let is_first = |k: usize| groups[k] == k;
    let fixes_scale = priors.fix_scales_of(groups);
    let hold = |k: usize| match (k < pin, is_first(k)) {
        (false, false) => Hold::Free,
        (pinned, _) if fixes_scale[groups[k]] && (!pinned || priors.frees_pinned_scales) => {
            Hold::Pose(poses[k].translation)
        }
        _ => Hold::All,
    };
    let loose = (pin.min(groups.len())..groups.len()).filter(|&k| is_first(k));
    ((0..groups.len()).map(hold).collect(), loose.count())
}
