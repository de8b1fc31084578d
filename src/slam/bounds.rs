//! Bounds of the graph: a keyframe has a limited number of edges and of factors. An edge beyond it
//! becomes a factor, which moves nothing (docs/algorithm.md, Global optimisation).

use super::factors::Measured;
use super::graph::{Edge, Graph};
use super::skeleton;
use crate::compute::device::{DeviceError, MappingDevice};
use crate::config::{Config, GlobalOptConfig};
use crate::map::EdgeKind;
use std::collections::BTreeMap;

/// A factor is removed only if its keyframes are at most this many edges and factors apart without
/// it.
const DETOUR: usize = 3;

/// Edges of the newest keyframes are demoted last: a solve may still move them, and matches follow
/// better than a factor.
const SETTLING: usize = 10;

/// The limits, each 0 for none.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// Maximum edges of a keyframe.
    edges: usize,
    /// Maximum edges of the graph, if keyframes are limited.
    total: usize,
    /// Maximum factors of a keyframe.
    factors: usize,
    params: GlobalOptConfig,
}

impl Bounds {
    /// The limits of `config`.
    pub fn new(config: &Config) -> Self {
        Self {
            edges: config.local_opt.max_edges,
            total: config.memory.edges,
            factors: config.local_opt.max_factors,
            params: config.local_opt.clone(),
        }
    }

    /// Replaces edges beyond the limits by factors, then removes factors beyond theirs; returns the
    /// number of edges that became factors. Call it after a solve that converged.
    pub fn enforce(
        &self,
        device: &mut dyn MappingDevice,
        graph: &mut Graph,
    ) -> Result<usize, DeviceError> {
        let demoted = self.demote(device, graph)?;
        if self.factors > 0 {
            self.thin(graph);
        }
        Ok(demoted)
    }

    fn demote(
        &self,
        device: &mut dyn MappingDevice,
        graph: &mut Graph,
    ) -> Result<usize, DeviceError> {
        let keyframes = graph.keyframes();
        let first = keyframes.get(keyframes.len().saturating_sub(SETTLING));
        let settling = first.map_or(0, |k| k.info.id);
        let chosen = self.excess(graph.edges(), settling);
        if chosen.is_empty() {
            return Ok(0);
        }
        let Some(found) = skeleton::equations(device, graph, &chosen, &self.params)? else {
            return Ok(0);
        };
        let edges: Vec<Edge> = chosen
            .iter()
            .filter_map(|&e| graph.edges().get(e).copied())
            .collect();
        for (edge, equations) in edges.iter().zip(found) {
            let linearised = skeleton::linearised(graph, edge, equations);
            if let Some(Measured { factor, .. }) = linearised.condensed() {
                let [pose_i, pose_j] = &linearised.poses;
                graph.factors_mut().add(factor, pose_i, pose_j);
            }
            graph.remove_edge(edge.id);
            device.drop_edge(edge.id);
        }
        tracing::debug!("{} edges became factors", edges.len());
        Ok(edges.len())
    }

    /// Places of the edges to demote, ascending: the weakest of each keyframe with too many (last the consecutive ones,
    /// and before these the edges of keyframes from id `settling` on), then the oldest of the graph.
    fn excess(&self, edges: &[Edge], settling: u32) -> Vec<usize> {
        if self.edges == 0 {
            return Vec::new();
        }
        let mut of: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (e, edge) in edges.iter().enumerate() {
            of.entry(edge.i).or_default().push(e);
            of.entry(edge.j).or_default().push(e);
        }
        let keeps = |edge: &Edge| {
            let young = edge.i.max(edge.j) >= settling;
            (edge.kind == EdgeKind::Consecutive, young)
        };
        let mut gone = vec![false; edges.len()];
        for own in of.values() {
            let mut left: Vec<usize> = own.iter().copied().filter(|&e| !gone[e]).collect();
            left.sort_by(|&a, &b| {
                let (a, b) = (&edges[a], &edges[b]);
                let strength = a.match_fraction.total_cmp(&b.match_fraction);
                keeps(a).cmp(&keeps(b)).then(strength)
            });
            let over = left.len().saturating_sub(self.edges);
            left[..over].iter().for_each(|&e| gone[e] = true);
        }
        let left = gone.iter().filter(|gone| !**gone).count();
        let over = left.saturating_sub(self.total.max(1));
        let mut oldest: Vec<usize> = (0..edges.len()).filter(|&e| !gone[e]).collect();
        oldest.sort_by_key(|&e| keeps(&edges[e]));
        oldest[..over].iter().for_each(|&e| gone[e] = true);
        (0..edges.len()).filter(|&e| gone[e]).collect()
    }

    /// Removes the weakest factors of keyframes with too many, where a short detour remains.
    fn thin(&self, graph: &mut Graph) {
        let mut of: BTreeMap<usize, usize> = BTreeMap::new();
        for factor in graph.factors().list() {
            for id in [factor.i, factor.j] {
                *of.entry(id).or_default() += 1;
            }
        }
        let full = of.into_iter().filter(|(_, count)| *count > self.factors);
        for (id, _) in full {
            let factors = graph.factors().list();
            let own = factors.iter().filter(|f| f.i == id || f.j == id);
            let mut own: Vec<(f64, (usize, usize))> =
                own.map(|f| (f.information.trace(), (f.i, f.j))).collect();
            let mut over = own.len().saturating_sub(self.factors);
            own.sort_by(|(a, _), (b, _)| a.total_cmp(b));
            for (_, (i, j)) in own {
                if over == 0 {
                    break;
                }
                if has_detour(graph, i, j) {
                    graph.factors_mut().remove(i, j);
                    over -= 1;
                }
            }
        }
    }
}

/// Whether at most [`DETOUR`] edges and factors connect two keyframes, without the factor between
/// them.
fn has_detour(graph: &Graph, i: usize, j: usize) -> bool {
    let edges = graph.edges().iter().map(|e| (e.i as usize, e.j as usize));
    let factors = graph.factors().list().iter().map(|f| (f.i, f.j));
    let factors = factors.filter(|&pair| pair != (i, j));
    let links: Vec<(usize, usize)> = edges.chain(factors).collect();
    let mut reached = vec![i];
    for _ in 0..DETOUR {
        let mut next = reached.clone();
        for &(a, b) in &links {
            for (from, to) in [(a, b), (b, a)] {
                if reached.contains(&from) && !next.contains(&to) {
                    next.push(to);
                }
            }
        }
        reached = next;
    }
    reached.contains(&j)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::device::EdgeId;

    fn edge(i: u32, j: u32, match_fraction: f32) -> Edge {
        Edge {
            id: EdgeId(100 * i + j),
            i,
            j,
            kind: match j == i + 1 {
                true => EdgeKind::Consecutive,
                false => EdgeKind::Loop,
            },
            match_fraction,
            poses: None,
        }
    }

    fn bounds(edges: usize, total: usize) -> Bounds {
        Bounds {
            edges,
            total,
            factors: 0,
            params: GlobalOptConfig::default(),
        }
    }

    #[test]
    fn the_weakest_go_and_the_chain_stays() {
        let edges = [
            edge(0, 1, 0.1),
            edge(0, 2, 0.5),
            edge(0, 3, 0.3),
            edge(0, 4, 0.4),
            edge(3, 4, 0.2),
        ];
        assert!(bounds(0, 1).excess(&edges, u32::MAX).is_empty(), "no limit");
        assert!(bounds(4, 100).excess(&edges, u32::MAX).is_empty());
        assert_eq!(bounds(3, 100).excess(&edges, u32::MAX), [2]);
        assert_eq!(bounds(2, 100).excess(&edges, u32::MAX), [2, 3]);
        // The chain's own edge goes only if nothing else is left.
        assert_eq!(bounds(1, 100).excess(&edges, u32::MAX), [1, 2, 3]);
        assert_eq!(bounds(8, 3).excess(&edges, u32::MAX), [1, 2]);
        // Keyframe 3 is too young while there are others.
        assert_eq!(bounds(3, 100).excess(&edges, 3), [1]);
    }

    #[test]
    fn no_keyframe_and_no_graph_is_above_its_limit() {
        let mut edges = Vec::new();
        for i in 0..12 {
            edges.extend((i + 1..12).map(|j| edge(i, j, 1.0 / (1 + i + j) as f32)));
        }
        for limit in 1..8 {
            let gone = bounds(limit, 20).excess(&edges, u32::MAX);
            let left = (0..edges.len()).filter(|e| !gone.contains(e));
            let left: Vec<&Edge> = left.map(|e| &edges[e]).collect();
            assert!(left.len() <= 20);
            for k in 0..12 {
                let degree = left.iter().filter(|e| e.i == k || e.j == k).count();
                assert!(degree <= limit, "{limit}: keyframe {k} has {degree}");
            }
        }
    }
}
