//! Global optimisation: selects the part of the graph to move and solves it.

use super::factors::indexed;
use super::graph::Graph;
use super::skeleton;
use super::window::{Limits, Window};
use crate::compute::device::{DeviceError, GraphEdge, MappingDevice, PoseGraph};
use crate::compute::global::{MetricPrior, PoseFactor, Priors, ScalePrior, solver_units};
use crate::config::GlobalOptConfig;
use crate::geometry::Sim3;

/// Solves for the poses of a graph's keyframes.
pub struct Optimiser {
    params: GlobalOptConfig,
    /// Residual variance of the matches at the end of the last solve, at least 1.
    variance: f64,
}

impl Optimiser {
    /// An optimiser with the gates, weights and limits of `params`.
    pub fn new(params: &GlobalOptConfig) -> Self {
        Self {
            params: params.clone(),
            variance: 1.0,
        }
    }

    /// Solves once, over the window required by the newest edges. Returns `false` if the solve
    /// failed numerically, in which case no pose changes.
    pub fn solve(
        &mut self,
        device: &mut dyn MappingDevice,
        graph: &mut Graph,
    ) -> Result<bool, DeviceError> {
        let index = skeleton::index_of(graph);
        let place = |id: u32| index.get(&id).copied();
        let edges = graph.edges().iter();
        let links: Vec<_> = edges
            .map(|e| (place(e.i).unwrap_or(0), place(e.j).unwrap_or(0)))
            .collect();
        let mut factors = graph.priors(self.params.min_match_frac);
        let left = graph.factors().list().iter();
        factors.extend(left.filter_map(|factor| indexed(factor, place)));
        let units = solver_units(device.shape().pixels_per_patch(), self.variance);
        let scales = graph.scale_priors(units);
        let mut motions = graph.motions().priors(units, place);
        motions.extend(graph.depth_motions().priors(units, place));
        let held = factors.iter().map(|f| (f.i, f.j));
        let held: Vec<_> = held.chain(motions.iter().map(|m| (m.i, m.j))).collect();
        let (count, solved) = (graph.keyframes().len(), graph.solved_edges());
        let limits = Limits::of(&self.params);
        let (pin, old) = (self.params.pin, graph.poses().to_vec());
        let window = Window::choose(count, &links, solved, &held, pin, limits);
        let by_skeleton = self.params.skeleton && window.whole && limits.exceeded_by(count);
        let (window, start) = match by_skeleton {
            true => {
                skeleton::condense_missing(device, graph, &self.params)?;
                let all = skeleton::all_factors(graph, &self.params);
                let all: Vec<PoseFactor> = all.iter().map(|m| m.factor).collect();
                let priors = Priors {
                    scales: &scales,
                    motions: &motions,
                    frees_pinned_scales: true,
                };
                // Poses on the way to the minimum are a better start than the old ones, and without a skeleton the window
                // is still solved: what it cannot reach stays for the next solve.
                let solution = skeleton::solve(&all, priors, &self.params, old.clone());
                let start = solution.map_or(old, |solution| solution.poses);
                let window = Window::around_loops(count, &links, solved, &held, pin, limits);
                (window, start)
            }
            false => (window, old),
        };
        let priors = (scales.as_slice(), motions.as_slice());
        let Some(poses) = self.over_matches(device, graph, &window, &start, (&factors, priors))?
        else {
            return Ok(false);
        };
        let mut solved = start;
        for (&k, pose) in window.keyframes.iter().zip(poses) {
            solved[k] = pose;
        }
        graph.set_solved(solved.into_iter().enumerate());
        graph.compare_lengths(window.keyframes.get(window.fixed..).unwrap_or_default());
        if self.params.skeleton || self.params.judge_loops {
            skeleton::condense(device, graph, &window.edges, &self.params)?;
        }
        Ok(true)
    }

    /// Solves over the matches and factors of a window, from the poses `start` of all keyframes;
    /// returns the poses of the window's keyframes. `factors` and priors name keyframes by index.
    fn over_matches(
        &mut self,
        device: &mut dyn MappingDevice,
        graph: &Graph,
        window: &Window,
        start: &[Sim3],
        (factors, (scales, motions)): (&[PoseFactor], (&[ScalePrior], &[MetricPrior])),
    ) -> Result<Option<Vec<Sim3>>, DeviceError> {
        let count = graph.keyframes().len();
        let index = skeleton::index_of(graph);
        let places = window.places(count);
        let place = |k: usize| places.get(k).copied().flatten();
        let keyframes: Vec<u32> = window.of(graph.keyframes()).map(|k| k.info.id).collect();
        let start: Vec<Sim3> = window.of(start).copied().collect();
        let edges = window.edges.iter().filter_map(|&e| {
            let edge = graph.edges().get(e)?;
            let (i, j) = (index.get(&edge.i)?, index.get(&edge.j)?);
            let (i, j) = (place(*i)?, place(*j)?);
            Some(GraphEdge { id: edge.id, i, j })
        });
        let edges: Vec<GraphEdge> = edges.collect();
        let factors = factors.iter().filter_map(|f| {
            let (i, j) = (place(f.i)?, place(f.j)?);
            Some(PoseFactor { i, j, ..*f })
        });
        let motions = motions.iter().filter_map(|m| {
            let (i, j) = (place(m.i)?, place(m.j)?);
            Some(MetricPrior { i, j, ..*m })
        });
        let motions: Vec<MetricPrior> = motions.collect();
        let scales = scales.iter().filter_map(|p| {
            let k = place(p.k)?;
            Some(ScalePrior { k, ..*p })
        });
        let scales: Vec<ScalePrior> = scales.collect();
        let problem = PoseGraph {
            keyframes: &keyframes,
            start: &start,
            edges: &edges,
            factors: &factors.collect::<Vec<_>>(),
            priors: Priors {
                scales: &scales,
                motions: &motions,
                frees_pinned_scales: window.whole,
            },
            params: &GlobalOptConfig {
                pin: window.fixed,
                ..self.params.clone()
            },
        };
        let mut poses = start.clone();
        match device.solve(&problem, &mut poses)? {
            Ok(report) => {
                // Three residuals for each match; seven parameters are nothing beside them.
                let residuals = 3.0 * report.matches.max(1) as f64;
                self.variance = (2.0 * report.final_cost / residuals).max(1.0);
                tracing::debug!(
                    ?report,
                    keyframes = keyframes.len(),
                    of = count,
                    edges = edges.len(),
                    "global solve"
                );
                Ok(Some(poses))
            }
            Err(error) => {
                tracing::warn!("global optimisation failed, poses are unchanged: {error}");
                Ok(None)
            }
        }
    }
}
