//! Damped Gauss-Newton over the poses of a graph, for whoever adds up its matches.

use super::system::{Layout, System};
use super::terms::Linearised;
use super::{GlobalReport, PosePrior};
use crate::compute::residual::{SolveError, is_progress_within};
use crate::compute::stop::Stop;
use crate::config::LocalOptConfig;
use crate::geometry::Sim3;
use nalgebra::DVector;

/// First damping, relative to the diagonal, after a plain step failed.
const FIRST_DAMPING: f64 = 1e-6;
/// Steps tried at one linearisation: plain, then damping from 1e-6 to 1e3.
const TRIES: usize = 11;
/// Matches that make an edge a connection: fewer cannot determine seven numbers.
const CONNECTING: u64 = 7;
/// Steps below this that do not lower the cost say that it is at its minimum.
const STALLED: f64 = 1e-6;

/// Adds up the matches of a graph at given poses.
pub(crate) trait Lineariser {
    /// What can go wrong.
    type Error: From<SolveError>;

    /// Finds the matches that count, once for all linearisations: called before the first of them.
    fn select(&mut self) -> Result<(), Self::Error>;

    /// The equations of every edge whose `active` is set (zero for the others), then of every prior. Where
    /// only the cost is wanted they may all be zero.
    fn linearise(
        &mut self,
        poses: &[Sim3],
        active: &[bool],
        wanted: Wanted,
        out: &mut Linearised,
    ) -> Result<(), Self::Error>;

    /// The relative difference of two costs near `robust`, of `used` matches, that says nothing.
    fn rounding(&self, robust: f64, used: u64) -> f64;
}

/// What somebody wants to know of a problem at some poses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// The normal equations and the cost.
    Equations,
    /// The robust cost and how many matches it is of, the same to the last bit.
    Cost,
}

/// What hangs together with what.
pub(crate) struct Graph<'a> {
    /// The keyframes of each edge.
    pub(crate) links: &'a [(usize, usize)],
    pub(crate) priors: &'a [PosePrior],
}

impl Graph<'_> {
    /// Refuses what does not fit `start`, the poses of the keyframes.
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
        for p in self.priors {
            joins("a prior", p.i, p.j)?;
            let information_ok = p.information.iter().all(|v| v.is_finite() && *v >= 0.0);
            if !(p.i_from_j.is_finite() && information_ok) {
                let what = "a prior's pose or information";
                return Err(SolveError::NotFinite { what });
            }
        }
        Ok(())
    }
}

/// Moves `poses` down the cost, until it is at its minimum, `max_iters` are over or somebody asks to stop. They
/// are left as they were where an error is returned.
pub(crate) fn descend<L: Lineariser>(
    lineariser: &mut L,
    graph: &Graph<'_>,
    params: &LocalOptConfig,
    stop: &Stop,
    poses: &mut Vec<Sim3>,
) -> Result<GlobalReport, L::Error> {
    let mut report = GlobalReport {
        converged: true,
        ..GlobalReport::default()
    };
    let (links, priors) = (graph.links, graph.priors);
    if poses.len() <= params.pin || (links.is_empty() && priors.is_empty()) {
        return Ok(report);
    }
    if stop.is_asked() {
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
    let (fixed, loose_groups) = fixed_poses(&groups, params.pin);
    report.loose_groups = loose_groups;
    // What is too weak to connect two groups must not pull at them either.
    for (active, (i, j)) in active.iter_mut().zip(links) {
        *active = groups[*i] == groups[*j];
    }
    if active.contains(&false) {
        lineariser.linearise(poses, &active, Wanted::Equations, &mut at)?;
    }
    report.initial_cost = at.robust;
    report.final_cost = at.robust;
    report.matches = at.used();
    let all: Vec<_> = links
        .iter()
        .copied()
        .chain(priors.iter().map(|p| (p.i, p.j)))
        .collect();
    let layout = Layout::new(&fixed, &all)?;
    report.free = layout.free();
    if layout.free() > 0 {
        let mut current = poses.clone();
        iterate(
            lineariser,
            &active,
            &layout,
            at,
            &mut current,
            params,
            stop,
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
    layout: &Layout,
    mut at: Linearised,
    poses: &mut Vec<Sim3>,
    params: &LocalOptConfig,
    stop: &Stop,
    report: &mut GlobalReport,
) -> Result<(), L::Error> {
    let mut system = System::new(layout);
    let mut damping = 0.0;
    let mut step = DVector::zeros(0);
    let mut next = Linearised::default();
    let mut next_poses = Vec::with_capacity(poses.len());
    report.converged = false;
    while report.iterations < params.max_iters && !report.converged && !stop.is_asked() {
        // Nobody asks for the equations at the last poses.
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
            // Nothing lowers the cost. If that was said of a short step with little damping, this
            // is a minimum.
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
            // The slack is that of `is_progress_within`.
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

/// For each keyframe the first one of its group. A group is what edges with matches and priors
/// with information connect.
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
    let by_prior = graph.priors.iter();
    let by_prior = by_prior.filter(|p| p.information.iter().any(|v| *v > 0.0));
    let connected = by_edge
        .map(|(link, _)| *link)
        .chain(by_prior.map(|p| (p.i, p.j)));
    for (i, j) in connected {
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
    let loose = (pin.min(groups.len())..groups.len()).filter(|&k| is_first(k));
    (fixed, loose.count())
}
