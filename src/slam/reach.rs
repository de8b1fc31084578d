//! Distances in the factor graph, in edges and factors, and what holds it together.

use super::graph::Graph;

/// Pairs of keyframes that something joins, as indices.
pub type Links = Vec<(usize, usize)>;

impl Graph {
    /// Whether at most `hops` edges or factors lead from keyframe `a` to keyframe `b`.
    pub fn are_near(&self, a: u32, b: u32, hops: usize) -> bool {
        self.path(a, b, hops).is_some()
    }

    /// Keyframes that at most `hops` edges or factors separate from keyframe `id`, without itself, ascending.
    pub fn within(&self, id: u32, hops: usize) -> Vec<u32> {
        let Some(start) = self.index_of(id) else {
            return Vec::new();
        };
        let from = self.reach(&self.joined_indices(), start, hops, None);
        let ids = self.keyframes().iter().map(|k| k.info.id);
        let reached = ids.zip(from);
        let reached = reached.filter(|(other, from)| from.is_some() && *other != id);
        reached.map(|(other, _)| other).collect()
    }

    /// A path of the fewest edges and factors, at most `hops`, from keyframe `a` to keyframe `b`, both included.
    pub fn path(&self, a: u32, b: u32, hops: usize) -> Option<Vec<u32>> {
        let (start, end) = (self.index_of(a)?, self.index_of(b)?);
        let from = self.reach(&self.joined_indices(), start, hops, Some(end));
        let mut path = vec![b];
        let mut index = end;
        while index != start {
            index = from[index]?;
            path.push(self.keyframes().get(index)?.info.id);
        }
        path.reverse();
        Some(path)
    }

    /// For each keyframe the one from which it is reached first from `start` by at most `hops` of `links`, as indices.
    /// Ends when `end` is reached.
    fn reach(
        &self,
        links: &[(usize, usize)],
        start: usize,
        hops: usize,
        end: Option<usize>,
    ) -> Vec<Option<usize>> {
        let mut from = vec![None; self.keyframes().len()];
        from[start] = Some(start);
        for _ in 0..hops {
            if end.is_some_and(|end| from[end].is_some()) {
                break;
            }
            let reached: Vec<bool> = from.iter().map(Option::is_some).collect();
            for &(i, j) in links {
                for (i, j) in [(i, j), (j, i)] {
                    if reached[i] && from[j].is_none() {
                        from[j] = Some(i);
                    }
                }
            }
        }
        from
    }

    /// Whether edges and factors connect the neighbours of keyframe `id` without it.
    pub fn holds_together_without(&self, id: u32) -> bool {
        let by_edge = self.edges_of(id).map(|(other, _)| other);
        let by_factor = self.factors_of(id).map(|(other, _)| other);
        let others: Vec<u32> = by_edge.chain(by_factor).collect();
        let Some(first) = others.first().and_then(|id| self.index_of(*id)) else {
            return true;
        };
        let own = self.index_of(id);
        let mut links = self.joined_indices();
        links.retain(|&(i, j)| Some(i) != own && Some(j) != own);
        let mut reached = vec![false; self.keyframes().len()];
        reached[first] = true;
        loop {
            let before = links.len();
            links.retain(|&(i, j)| {
                let grows = reached[i] || reached[j];
                if grows {
                    (reached[i], reached[j]) = (true, true);
                }
                !grows
            });
            if links.len() == before {
                break;
            }
        }
        let mut others = others.iter().filter_map(|id| self.index_of(*id));
        others.all(|index| reached[index])
    }

    /// The pairs of keyframes that overlap by at least `min_fraction`, by the edges between them or by those that were
    /// removed.
    pub fn overlaps(&self, min_fraction: f32) -> Links {
        let edges = self.edges().iter();
        let edges = edges.map(|edge| ((edge.i, edge.j), edge.match_fraction));
        let all = edges.chain(self.known_overlaps().pairs());
        let strong = all.filter(|(_, fraction)| *fraction >= min_fraction);
        self.indices(strong.map(|(pair, _)| pair))
    }

    /// Whether the map shows what keyframe `id` shows without it: at least two others overlap it, so that it is not the
    /// end of a path, and a camera gets from one of them to all others by at most `hops` of `overlaps`, past other
    /// keyframes.
    pub fn overlaps_without(&self, id: u32, overlaps: &[(usize, usize)], hops: usize) -> bool {
        let Some(own) = self.index_of(id) else {
            return false;
        };
        let (beside, rest): (Links, Links) =
            overlaps.iter().partition(|(i, j)| [*i, *j].contains(&own));
        let other = |&(i, j): &(usize, usize)| if i == own { j } else { i };
        let Some(start) = beside.iter().map(other).min() else {
            return false;
        };
        let alone = beside.iter().all(|link| other(link) == start);
        let from = self.reach(&rest, start, hops, None);
        !alone && beside.iter().all(|link| from[other(link)].is_some())
    }

    /// Indices of the keyframes that an edge or a factor joins.
    fn joined_indices(&self) -> Links {
        self.indices(self.joined())
    }

    fn indices(&self, pairs: impl Iterator<Item = (u32, u32)>) -> Links {
        let indices = pairs.filter_map(|(i, j)| Some((self.index_of(i)?, self.index_of(j)?)));
        indices.collect()
    }
}
