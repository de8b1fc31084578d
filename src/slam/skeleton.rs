//! The skeleton of a map: every edge condensed to a factor, so that a solve over the whole map costs
//! no matches (docs/algorithm.md, Global optimisation).

use super::edges::relative_poses;
use super::factors::{Linearised, Measured, indexed};
use super::graph::{Edge, Graph};
use crate::compute::cancel::CancelToken;
use crate::compute::device::{DeviceError, GraphEdge, MappingDevice, PoseGraph};
use crate::compute::global::{EdgeEquations, PoseFactor, Priors, solve_factors};
use crate::config::GlobalOptConfig;
use crate::geometry::Sim3;
use rustc_hash::FxHashMap;

/// Maximum steps of a solve over factors: they cost little, and a large loop needs more of them than
/// a window.
const MAX_STEPS: usize = 50;

/// Solves the relative pose of an edge's keyframes from its matches in both directions, and nothing
/// else. `None` if they do not determine it.
pub fn rest(
    device: &mut dyn MappingDevice,
    edge: &mut Edge,
    params: &GlobalOptConfig,
) -> Result<Option<Measured>, DeviceError> {
    let ways = relative_poses(device, edge)?;
    let back = ways.j_from_i.map(|pose| pose.inverse());
    let Some(start) = ways.i_from_j.or(back) else {
        return Ok(None);
    };
    let keyframes = [edge.i, edge.j];
    let edges = [GraphEdge {
        id: edge.id,
        i: 0,
        j: 1,
    }];
    let params = GlobalOptConfig {
        pin: 1,
        ..params.clone()
    };
    let start = [Sim3::identity(), start];
    let mut problem = PoseGraph {
        keyframes: &keyframes,
        start: &start,
        edges: &edges,
        factors: &[],
        priors: Priors::default(),
        params: &params,
    };
    let mut poses = start;
    if device.solve(&problem, &mut poses)?.is_err() {
        return Ok(None);
    }
    problem.start = &poses;
    let mut found = Vec::new();
    if device.equations(&problem, &mut found)?.is_err() {
        return Ok(None);
    }
    let linearised = found.pop().map(|equations| Linearised {
        ends: keyframes,
        poses,
        equations,
    });
    Ok(linearised.and_then(|linearised| linearised.condensed()))
}

/// The normal equations of these edges of the graph, by their places in it, at the present poses;
/// `None` if they cannot be computed.
pub fn equations(
    device: &mut dyn MappingDevice,
    graph: &Graph,
    edges: &[usize],
    params: &GlobalOptConfig,
) -> Result<Option<Vec<EdgeEquations>>, DeviceError> {
    let index = index_of(graph);
    let mut places: FxHashMap<usize, usize> = FxHashMap::default();
    let (mut keyframes, mut start) = (Vec::new(), Vec::new());
    let mut place = |id: u32| {
        let at = *index.get(&id)?;
        Some(*places.entry(at).or_insert_with(|| {
            keyframes.push(id);
            start.push(graph.pose_of(id));
            keyframes.len() - 1
        }))
    };
    let mut terms = Vec::with_capacity(edges.len());
    for edge in edges.iter().filter_map(|&e| graph.edges().get(e)) {
        if let (Some(i), Some(j)) = (place(edge.i), place(edge.j)) {
            terms.push(GraphEdge { id: edge.id, i, j });
        }
    }
    let problem = PoseGraph {
        keyframes: &keyframes,
        start: &start,
        edges: &terms,
        factors: &[],
        priors: Priors::default(),
        params,
    };
    let mut found = Vec::new();
    match device.equations(&problem, &mut found)? {
        Ok(()) if found.len() == edges.len() => Ok(Some(found)),
        Ok(()) => Ok(None),
        Err(error) => {
            tracing::warn!("edges are not condensed: {error}");
            Ok(None)
        }
    }
}

/// An edge with its normal equations at the present poses.
pub fn linearised(graph: &Graph, edge: &Edge, equations: EdgeEquations) -> Linearised {
    Linearised {
        ends: [edge.i, edge.j],
        poses: [graph.pose_of(edge.i), graph.pose_of(edge.j)],
        equations,
    }
}

/// Condenses these edges of the graph at the present poses.
pub fn condense(
    device: &mut dyn MappingDevice,
    graph: &mut Graph,
    edges: &[usize],
    params: &GlobalOptConfig,
) -> Result<(), DeviceError> {
    let Some(found) = equations(device, graph, edges, params)? else {
        return Ok(());
    };
    for (&e, equations) in edges.iter().zip(found) {
        if let Some(edge) = graph.edges().get(e).copied() {
            let linearised = linearised(graph, &edge, equations);
            graph.factors_mut().condense(edge.id, linearised);
        }
    }
    Ok(())
}

/// Condenses every edge that is not yet: new ones, which no solve has held, at their own rest poses,
/// the others at the present poses.
pub fn condense_missing(
    device: &mut dyn MappingDevice,
    graph: &mut Graph,
    params: &GlobalOptConfig,
) -> Result<(), DeviceError> {
    let missing = (0..graph.edges().len()).filter(|&e| {
        let edge = graph.edges().get(e);
        edge.is_some_and(|edge| graph.factors().condensed(edge.id).is_none())
    });
    let (old, new): (Vec<usize>, Vec<usize>) = missing.partition(|&e| e < graph.solved_edges());
    for e in new {
        if let Some(mut edge) = graph.edges().get(e).copied() {
            let measured = rest(device, &mut edge, params)?;
            graph.factors_mut().set_condensed(edge.id, measured);
        }
    }
    if old.is_empty() {
        return Ok(());
    }
    condense(device, graph, &old, params)
}

/// Everything that connects keyframes, by index: condensed edges, factors, and chain priors.
pub fn all_factors(graph: &Graph, params: &GlobalOptConfig) -> Vec<Measured> {
    let index = index_of(graph);
    let index = |id: u32| index.get(&id).copied();
    let edges = graph.edges().iter();
    let condensed = edges.filter_map(|edge| graph.factors().condensed(edge.id).flatten());
    let known = |factor| Measured {
        factor,
        variance: 1.0,
    };
    let left = graph.factors().list().iter().copied().map(known);
    let by_id = condensed.copied().chain(left).filter_map(|m| {
        let factor = indexed(&m.factor, index)?;
        Some(Measured { factor, ..m })
    });
    let priors = graph.priors(params.min_match_frac).into_iter().map(known);
    by_id.chain(priors).collect()
}

/// The poses that a solve over factors found.
#[derive(Debug, PartialEq)]
pub struct Solution {
    /// `world_from_camera` of the graph's keyframes, in order.
    pub poses: Vec<Sim3>,
    /// Whether they are at the minimum. Otherwise they are on the way there: no step of a solve raises the cost.
    pub converged: bool,
}

/// Solves for `poses`, of the graph's keyframes in order, over factors and priors by index. `None` if no step can be
/// computed.
pub fn solve(
    factors: &[PoseFactor],
    priors: Priors<'_>,
    params: &GlobalOptConfig,
    poses: Vec<Sim3>,
) -> Option<Solution> {
    let params = GlobalOptConfig {
        max_iters: params.max_iters.max(MAX_STEPS),
        ..params.clone()
    };
    solve_within(factors, priors, &params, poses)
}

/// The same with the maximum number of steps of `params`.
fn solve_within(
    factors: &[PoseFactor],
    priors: Priors<'_>,
    params: &GlobalOptConfig,
    mut poses: Vec<Sim3>,
) -> Option<Solution> {
    match solve_factors(factors, priors, params, &CancelToken::default(), &mut poses) {
        Ok(report) => {
            tracing::debug!(?report, factors = factors.len(), "skeleton solve");
            let converged = report.converged;
            Some(Solution { poses, converged })
        }
        Err(error) => {
            tracing::warn!("the skeleton cannot be solved: {error}");
            None
        }
    }
}

/// Indices of the graph's keyframes by id.
pub fn index_of(graph: &Graph) -> FxHashMap<u32, usize> {
    let keyframes = graph.keyframes().iter().enumerate();
    keyframes
        .map(|(k, keyframe)| (keyframe.info.id, k))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::global::Matrix7;
    use crate::geometry::Tangent;

    fn turned(angle: f64) -> Sim3 {
        Sim3::exp(&Tangent::from_column_slice(&[
            1.0, 0.0, 0.0, 0.0, 0.0, angle, 0.0,
        ]))
    }

    /// A chain that a loop bends by a quarter of a turn, and the angle by which its end is off after the solve.
    fn bent(max_iters: usize) -> (Solution, f64) {
        let factor = |i, j, i_from_j| PoseFactor {
            i,
            j,
            i_from_j,
            information: Matrix7::identity() * 1e4,
        };
        let mut poses = vec![Sim3::identity()];
        for k in 0..20 {
            poses.push(poses[k] * turned(0.05));
        }
        let mut factors: Vec<PoseFactor> =
            (0..20).map(|k| factor(k, k + 1, turned(0.05))).collect();
        let end = poses[20] * turned(1.5);
        factors.push(factor(0, 20, end));
        let params = GlobalOptConfig {
            max_iters,
            pin: 1,
            ..GlobalOptConfig::default()
        };
        let solution = solve_within(&factors, Priors::default(), &params, poses).expect("steps");
        let (_, angle) = solution.poses[20].apart(&end);
        (solution, angle)
    }

    #[test]
    fn a_solve_that_is_not_at_its_minimum_is_on_the_way_there() {
        let ((none, before), (one, after), (whole, end)) = (bent(0), bent(1), bent(MAX_STEPS));
        assert!(!none.converged && !one.converged && whole.converged);
        assert!(after < before && end < before, "{before} {after} {end}");
    }

    #[test]
    fn factors_that_say_nothing_sensible_have_no_solution() {
        let mut factor = PoseFactor {
            i: 0,
            j: 1,
            i_from_j: turned(0.1),
            information: Matrix7::identity(),
        };
        factor.i_from_j.scale = f64::NAN;
        let poses = vec![Sim3::identity(); 2];
        let params = GlobalOptConfig::default();
        assert_eq!(solve(&[factor], Priors::default(), &params, poses), None);
    }
}
