//! Removal of a keyframe: what connects it to its neighbours becomes factors between these ([`super::fold`]), and
//! its frames get a place relative to the neighbour that shares most with it.

use super::fold::Fold;
use super::graph::Graph;
use super::pose_table::Anchor;
use crate::compute::device::{DeviceError, GraphEdge, MappingDevice, PoseGraph};
use crate::compute::global::{Matrix7, PoseFactor, Priors};
use crate::config::GlobalOptConfig;
use crate::geometry::Tangent;

/// Removes keyframe `id` from the graph and the device. Returns the keyframe beside which its frames are now; `None`,
/// without a change, if it has no edges, or if they cannot be folded at the present poses.
pub fn remove(
    device: &mut dyn MappingDevice,
    graph: &mut Graph,
    params: &GlobalOptConfig,
    id: u32,
) -> Result<Option<u32>, DeviceError> {
    let Some(place) = place_beside_best(graph, id) else {
        return Ok(None);
    };
    let Some(factors) = fold(device, graph, params, id)? else {
        return Ok(None);
    };
    let Some(edges) = graph.remove(id, place) else {
        return Ok(None);
    };
    for factor in factors {
        let [pose_i, pose_j] = [factor.i, factor.j].map(|id| graph.pose_of(id as u32));
        graph.factors_mut().add(factor, &pose_i, &pose_j);
    }
    for edge in edges {
        device.drop_edge(edge.id);
    }
    device.drop_keyframe(id);
    Ok(Some(place.keyframe))
}

/// The place of keyframe `id` relative to its best neighbour, that of the edge with the largest match fraction.
fn place_beside_best(graph: &Graph, id: u32) -> Option<Anchor> {
    let neighbours = graph.edges_of(id);
    let (best, _) = neighbours.max_by(|(a, e), (b, f)| {
        let fraction = e.match_fraction.total_cmp(&f.match_fraction);
        fraction.then(b.cmp(a))
    })?;
    Some(Anchor {
        keyframe: best,
        keyframe_from_camera: graph.pose_of(best).inverse() * graph.pose_of(id),
    })
}

/// The factors between its neighbours that replace keyframe `id`, with ids; `None` if its equations are not finite.
fn fold(
    device: &mut dyn MappingDevice,
    graph: &Graph,
    params: &GlobalOptConfig,
    id: u32,
) -> Result<Option<Vec<PoseFactor>>, DeviceError> {
    // The keyframe itself is the first.
    let mut keyframes = vec![id];
    let others = graph.edges_of(id).map(|(other, _)| other);
    keyframes.extend(others.chain(graph.factors_of(id).map(|(other, _)| other)));
    keyframes[1..].sort_unstable();
    keyframes.dedup();
    let place = |id: u32| keyframes.iter().position(|k| *k == id);
    let poses: Vec<_> = keyframes.iter().map(|id| graph.pose_of(*id)).collect();
    let edges: Vec<GraphEdge> = graph
        .edges_of(id)
        .filter_map(|(_, edge)| {
            let (i, j) = (place(edge.i)?, place(edge.j)?);
            Some(GraphEdge { id: edge.id, i, j })
        })
        .collect();
    let problem = PoseGraph {
        keyframes: &keyframes,
        start: &poses,
        edges: &edges,
        factors: &[],
        priors: Priors::default(),
        params,
    };
    let mut equations = Vec::new();
    if let Err(error) = device.equations(&problem, &mut equations)? {
        tracing::warn!("keyframe {id} stays: its edges have no equations: {error}");
        return Ok(None);
    }
    let mut fold = Fold::new(poses[0]);
    let mut add = |i: usize, j: usize, hessian: &Matrix7, gradient: &Tangent| {
        // The gradient is that at `j`; at `i` it is the opposite.
        match (i, j) {
            (0, other) => fold.add(other, &poses[other], hessian, gradient),
            (other, _) => fold.add(other, &poses[other], hessian, &-*gradient),
        }
    };
    for (edge, of_it) in edges.iter().zip(&equations) {
        add(edge.i, edge.j, &of_it.hessian, &of_it.gradient);
    }
    for (_, factor) in graph.factors_of(id) {
        let (Some(i), Some(j)) = (place(factor.i as u32), place(factor.j as u32)) else {
            continue;
        };
        let of_it = factor.equations(&poses[i], &poses[j]);
        add(i, j, &of_it.hessian, &of_it.gradient);
    }
    let joined: Vec<(usize, usize)> = graph
        .joined()
        .filter_map(|(a, b)| Some((place(a)?, place(b)?)))
        .filter(|(a, b)| *a > 0 && *b > 0)
        .collect();
    let factors = match fold.factors(&joined) {
        Ok(factors) => factors,
        Err(error) => {
            tracing::warn!("keyframe {id} stays: {error}");
            return Ok(None);
        }
    };
    let with_ids = |f: PoseFactor| {
        let (i, j) = (*keyframes.get(f.i)?, *keyframes.get(f.j)?);
        Some(PoseFactor {
            i: i as usize,
            j: j as usize,
            ..f
        })
    };
    Ok(Some(factors.into_iter().filter_map(with_ids).collect()))
}
