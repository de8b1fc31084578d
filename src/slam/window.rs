//! Which part of a large graph a global solve moves (B51).

use std::collections::BTreeSet;

/// A part of the graph: the keyframes that a solve needs, the fixed ones first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// Keyframes, fixed ones first and each part ascending: what a solve's indices count in.
    pub keyframes: Vec<usize>,
    /// How many of them are fixed: the `pin` of the solve.
    pub fixed: usize,
    /// Edges with a free end, in their order.
    pub edges: Vec<usize>,
    /// Whether this is everything.
    pub whole: bool,
}

impl Window {
    /// What moves after the last of `edges` were added, those from `new_edges` on. `edges` are pairs of
    /// keyframes below `count`, of which the first `pin` never move; `size` of 0 has no limit.
    ///
    /// Free are the newest `size` keyframes and the older ends of new edges; fixed, what an edge or a
    /// prior joins with these. Everything moves while there are no more than `size` keyframes, and when a
    /// new edge leads to a keyframe that the newest did not know: it closes a loop, and its error belongs
    /// to all that lies between. So a camera that stays in a known place pays once for coming back to it.
    pub fn choose(
        count: usize,
        edges: &[(usize, usize)],
        new_edges: usize,
        priors: &[(usize, usize)],
        pin: usize,
        size: usize,
    ) -> Self {
        let oldest = count.saturating_sub(size);
        if size == 0 || oldest == 0 {
            return Self::whole(count, edges.len(), pin);
        }
        let (known, added) = edges.split_at(new_edges.min(edges.len()));
        // Keyframes before the newest that edges or priors join with these.
        let border = |links: &[(usize, usize)]| -> BTreeSet<usize> {
            let across = links.iter().filter(|(a, b)| (*a < oldest) != (*b < oldest));
            across.map(|(a, b)| *a.min(b)).collect()
        };
        let known_border: BTreeSet<usize> = &border(known) | &border(priors);
        let ends = added.iter().flat_map(|(a, b)| [*a, *b]);
        let old_ends: BTreeSet<usize> = ends.filter(|&k| k < oldest).collect();
        if !old_ends.is_subset(&known_border) {
            return Self::whole(count, edges.len(), pin);
        }
        let free: BTreeSet<usize> = old_ends
            .into_iter()
            .chain(oldest..count)
            .filter(|&k| k >= pin)
            .collect();
        let touches = |(a, b): &(usize, usize)| free.contains(a) || free.contains(b);
        let chosen: Vec<usize> = (0..edges.len()).filter(|&e| touches(&edges[e])).collect();
        let links = chosen.iter().map(|&e| &edges[e]);
        let around = links.chain(priors.iter().filter(|link| touches(link)));
        let around: BTreeSet<usize> = around.flat_map(|(a, b)| [*a, *b]).collect();
        let mut keyframes: Vec<usize> = around.difference(&free).copied().collect();
        let fixed = keyframes.len();
        keyframes.extend(free);
        Self {
            keyframes,
            fixed,
            edges: chosen,
            whole: false,
        }
    }

    fn whole(count: usize, edges: usize, pin: usize) -> Self {
        Self {
            keyframes: (0..count).collect(),
            fixed: pin.min(count),
            edges: (0..edges).collect(),
            whole: true,
        }
    }

    /// What the window's keyframes have in a list of all keyframes.
    pub fn of<'a, T>(&'a self, all: &'a [T]) -> impl Iterator<Item = &'a T> {
        self.keyframes.iter().filter_map(|&k| all.get(k))
    }

    /// Of each of `count` keyframes its place in the window.
    pub fn places(&self, count: usize) -> Vec<Option<usize>> {
        let mut places = vec![None; count];
        for (place, &k) in self.keyframes.iter().enumerate() {
            if let Some(of) = places.get_mut(k) {
                *of = Some(place);
            }
        }
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chain(count: usize) -> Vec<(usize, usize)> {
        (1..count).map(|k| (k - 1, k)).collect()
    }

    #[test]
    fn small_graphs_and_no_limit_move_everything() {
        for (count, size) in [(5, 0), (5, 5), (5, 9), (1, 1), (0, 3)] {
            let edges = chain(count);
            let window = Window::choose(count, &edges, 0, &[], 1, size);
            assert!(window.whole);
            assert_eq!(window.keyframes, (0..count).collect::<Vec<_>>());
            assert_eq!(
                (window.fixed, window.edges.len()),
                (1.min(count), edges.len())
            );
        }
    }

    #[test]
    fn a_chain_moves_its_newest_against_one_fixed() {
        let edges = chain(20);
        let window = Window::choose(20, &edges, 18, &[], 1, 4);
        assert_eq!(window.keyframes, [15, 16, 17, 18, 19]);
        assert_eq!((window.fixed, window.whole), (1, false));
        assert_eq!(window.edges, [15, 16, 17, 18]);
        let places = window.places(20);
        assert_eq!(
            (places[14], places[15], places[19]),
            (None, Some(0), Some(4))
        );
    }

    #[test]
    fn a_new_loop_moves_everything_and_a_known_one_only_its_ends() {
        let mut edges = chain(20);
        edges.push((3, 19));
        assert!(Window::choose(20, &edges, 18, &[], 1, 4).whole);
        // The next keyframe sees the same place, which the newest know by now.
        edges.extend([(19, 20), (3, 20)]);
        let window = Window::choose(21, &edges, 20, &[], 1, 4);
        // 3 is free, its neighbours are fixed, and so is 16 before the newest four.
        assert_eq!(window.keyframes, [2, 4, 16, 3, 17, 18, 19, 20]);
        assert_eq!((window.fixed, window.whole), (3, false));
        assert_eq!(window.edges, [2, 3, 16, 17, 18, 19, 20, 21]);
        // A place beside it is a new one.
        edges.pop();
        edges.push((5, 20));
        assert!(Window::choose(21, &edges, 20, &[], 1, 4).whole);
    }

    #[test]
    fn what_is_pinned_stays_and_priors_hold() {
        let mut edges = chain(10);
        edges.extend([(0, 9), (0, 8)]);
        let window = Window::choose(10, &edges, 10, &[], 1, 3);
        assert_eq!(
            (&window.keyframes[..window.fixed], window.whole),
            (&[0, 6][..], false)
        );
        // Only a prior leads from the newest to 6.
        let mut edges = chain(10);
        edges.remove(6);
        let window = Window::choose(10, &edges, 7, &[(6, 7)], 1, 3);
        assert_eq!(window.keyframes, [6, 7, 8, 9]);
        assert_eq!(window.fixed, 1);
    }

    proptest! {
        #[test]
        fn every_edge_of_a_free_keyframe_is_there(
            count in 1_usize..30,
            edges in proptest::collection::vec((0_usize..30, 0_usize..30), 0..60),
            new in 0_usize..60,
            pin in 1_usize..4,
            size in 0_usize..12,
        ) {
            let fits = |(a, b): &(usize, usize)| a != b && *a.max(b) < count;
            let edges: Vec<_> = edges.into_iter().filter(fits).collect();
            let window = Window::choose(count, &edges, new, &[], pin, size);
            let mut sorted = window.keyframes.clone();
            sorted.sort_unstable();
            sorted.dedup();
            prop_assert_eq!(sorted.len(), window.keyframes.len());
            let (fixed, free) = window.keyframes.split_at(window.fixed);
            prop_assert!(free.iter().all(|k| *k >= pin && *k < count));
            for (e, (a, b)) in edges.iter().enumerate() {
                let wanted = free.contains(a) || free.contains(b);
                prop_assert!(window.whole || window.edges.contains(&e) == wanted);
                if wanted {
                    for k in [a, b] {
                        prop_assert!(fixed.contains(k) || free.contains(k));
                    }
                }
            }
            if size > 0 {
                prop_assert!(window.whole || free.len() <= size + edges.len());
                prop_assert!((count.saturating_sub(size)..count).all(|k| k < pin || free.contains(&k)));
            }
        }
    }
}
