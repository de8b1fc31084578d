//! The part of a large graph that a global solve moves (docs/reference-defects.md, B51).

use crate::config::GlobalOptConfig;
use std::collections::BTreeSet;

/// Maximum number of edges between two keyframes that count as near each other.
const NEAR: usize = 2;
/// Number of keyframes around the older ends of new loops that move after a solve of the skeleton,
/// if the limits allow.
const AROUND_LOOPS: usize = 40;

/// How much of a graph one solve covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Number of newest keyframes that move, once there are more; 0: always everything.
    pub newest: usize,
    /// Maximum keyframes of a solve that does not move everything, fixed ones included; 0: no limit.
    pub keyframes: usize,
    /// Maximum edges of such a solve; 0: no limit.
    pub edges: usize,
}

impl Limits {
    /// The limits of the configuration.
    pub fn of(config: &GlobalOptConfig) -> Self {
        Self {
            newest: config.window,
            keyframes: config.window_keyframes,
            edges: config.window_edges,
        }
    }

    /// Whether a graph of `count` keyframes is larger than what always moves.
    pub fn exceeded_by(&self, count: usize) -> bool {
        self.newest > 0 && count > self.newest
    }

    /// Keyframes between two full solves while a known path is being revisited.
    fn between_loops(&self) -> usize {
        (self.newest / 8).max(1)
    }

    fn hold(&self, window: &Window) -> bool {
        let within = |count: usize, max: usize| max == 0 || count <= max;
        within(window.keyframes.len(), self.keyframes) && within(window.edges.len(), self.edges)
    }
}

/// A part of the graph: the keyframes of a solve, fixed ones first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// Keyframes, fixed ones first and each part ascending; a solve's indices count in this list.
    pub keyframes: Vec<usize>,
    /// Number of fixed keyframes: the `pin` of the solve.
    pub fixed: usize,
    /// Edges with a free end, in order of creation.
    pub edges: Vec<usize>,
    /// Whether the window is the whole graph.
    pub whole: bool,
}

impl Window {
    /// Chooses the window after the last of `edges` were added, those from `new_edges` on. `edges` are pairs
    /// of keyframes below `count`, of which the first `pin` never move.
    ///
    /// Free are the newest keyframes and the older ends of new edges; fixed are the keyframes that an edge or a prior
    /// joins with these. Everything moves while there are no more than `limits.newest` keyframes, and when a new edge
    /// leads to a keyframe that is not near any that edges already joined with the newest: it closes a loop, and its
    /// error belongs to everything between both ends. So a camera that stays in a known place pays once for coming back
    /// to it. A camera that follows a known path meets the next old keyframe each time: where that one is near a
    /// keyframe that was met before, everything moves only every few keyframes.
    ///
    /// The newest keyframes of a place that was seen often have many edges: fewer of them are free then, as
    /// many as the limits allow, so that a solve costs no more however long the camera stays.
    pub fn choose(
        count: usize,
        edges: &[(usize, usize)],
        new_edges: usize,
        priors: &[(usize, usize)],
        pin: usize,
        limits: Limits,
    ) -> Self {
        let oldest = count.saturating_sub(limits.newest);
        if limits.newest == 0 || oldest == 0 {
            return Self::whole(count, edges.len(), pin);
        }
        let (known, added) = edges.split_at(new_edges.min(edges.len()));
        // Older keyframes connected to the newest ones by edges or priors.
        let border = |links: &[(usize, usize)]| -> BTreeSet<usize> {
            let across = links.iter().filter(|(a, b)| (*a < oldest) != (*b < oldest));
            across.map(|(a, b)| *a.min(b)).collect()
        };
        let met: BTreeSet<usize> = &border(known) | &border(priors);
        let ends: BTreeSet<usize> = added.iter().flat_map(|(a, b)| [*a, *b]).collect();
        let old_ends = || ends.range(..oldest);
        let closes = match count % limits.between_loops() {
            0 => old_ends().any(|end| !met.contains(end)),
            _ => {
                let near = Self::near(&met, known);
                old_ends().any(|end| !near.contains(end))
            }
        };
        if closes {
            return Self::whole(count, edges.len(), pin);
        }
        Self::fitting(count, &ends, edges, priors, pin, limits)
    }

    /// The window in which `ends` and the newest keyframes move, as many as the limits allow.
    fn fitting(
        count: usize,
        ends: &BTreeSet<usize>,
        edges: &[(usize, usize)],
        priors: &[(usize, usize)],
        pin: usize,
        limits: Limits,
    ) -> Self {
        let mut newest = limits.newest;
        loop {
            let free = ends.iter().copied().chain(count - newest..count);
            let free = free.filter(|&k| k >= pin).collect();
            let window = Self::around(free, edges, priors);
            if newest == 1 || limits.hold(&window) {
                return window;
            }
            newest -= (newest / 8).max(1);
        }
    }

    /// The window after a solve of the whole skeleton: the newest keyframes and those around the older
    /// ends of the new edges, at most [`AROUND_LOOPS`] of these, and fewer if the limits require it.
    /// The arguments are those of [`Window::choose`], and `count` exceeds `limits.newest`.
    pub fn around_loops(
        count: usize,
        edges: &[(usize, usize)],
        new_edges: usize,
        priors: &[(usize, usize)],
        pin: usize,
        limits: Limits,
    ) -> Self {
        let (known, added) = edges.split_at(new_edges.min(edges.len()));
        let ends: BTreeSet<usize> = added.iter().flat_map(|(a, b)| [*a, *b]).collect();
        let oldest = count.saturating_sub(limits.newest);
        let old: Vec<usize> = ends.range(..oldest).copied().collect();
        let mut around = AROUND_LOOPS;
        loop {
            let mut free = ends.clone();
            free.extend(Self::nearest(&old, known, around));
            let window = Self::fitting(count, &free, edges, priors, pin, limits);
            if around == 0 || limits.hold(&window) {
                return window;
            }
            around /= 2;
        }
    }

    /// Up to `most` keyframes in order of their distance in edges from `places`.
    fn nearest(places: &[usize], edges: &[(usize, usize)], most: usize) -> Vec<usize> {
        let mut reached: BTreeSet<usize> = places.iter().copied().collect();
        let (mut order, mut layer) = (Vec::new(), reached.clone());
        while order.len() < most && !layer.is_empty() {
            let links = edges.iter().flat_map(|&(a, b)| [(a, b), (b, a)]);
            let next = links.filter(|(a, _)| layer.contains(a)).map(|(_, b)| b);
            let next: BTreeSet<usize> = next.filter(|b| !reached.contains(b)).collect();
            order.extend(next.iter().copied());
            reached.extend(next.iter().copied());
            layer = next;
        }
        order.truncate(most);
        order
    }

    /// `places` and the keyframes that at most [`NEAR`] edges join with them.
    fn near(places: &BTreeSet<usize>, edges: &[(usize, usize)]) -> BTreeSet<usize> {
        let mut near = places.clone();
        for _ in 0..NEAR {
            let links = edges.iter().flat_map(|&(a, b)| [(a, b), (b, a)]);
            let beside = links.filter(|(a, _)| near.contains(a));
            let beside: Vec<usize> = beside.map(|(_, b)| b).collect();
            near.extend(beside);
        }
        near
    }

    /// The window in which the keyframes `free` move.
    fn around(free: BTreeSet<usize>, edges: &[(usize, usize)], priors: &[(usize, usize)]) -> Self {
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

    /// The entries of the window's keyframes in a list of all keyframes.
    pub fn of<'a, T>(&'a self, all: &'a [T]) -> impl Iterator<Item = &'a T> {
        self.keyframes.iter().filter_map(|&k| all.get(k))
    }

    /// The place in the window of each of `count` keyframes.
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

    fn newest(newest: usize) -> Limits {
        Limits {
            newest,
            keyframes: 0,
            edges: 0,
        }
    }

    fn chain(count: usize) -> Vec<(usize, usize)> {
        (1..count).map(|k| (k - 1, k)).collect()
    }

    #[test]
    fn small_graphs_and_no_limit_move_everything() {
        for (count, size) in [(5, 0), (5, 5), (5, 9), (1, 1), (0, 3)] {
            let edges = chain(count);
            let window = Window::choose(count, &edges, 0, &[], 1, newest(size));
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
        let window = Window::choose(20, &edges, 18, &[], 1, newest(4));
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
        assert!(Window::choose(20, &edges, 18, &[], 1, newest(4)).whole);
        // The next keyframe sees the same place, which the newest ones already know.
        edges.extend([(19, 20), (3, 20)]);
        let window = Window::choose(21, &edges, 20, &[], 1, newest(4));
        // 3 is free, its neighbours are fixed, and so is 16, just before the newest four.
        assert_eq!(window.keyframes, [2, 4, 16, 3, 17, 18, 19, 20]);
        assert_eq!((window.fixed, window.whole), (3, false));
        assert_eq!(window.edges, [2, 3, 16, 17, 18, 19, 20, 21]);
        // A place next to it is a new one.
        edges.pop();
        edges.push((5, 20));
        assert!(Window::choose(21, &edges, 20, &[], 1, newest(4)).whole);
    }

    #[test]
    fn along_a_known_way_everything_moves_now_and_then() {
        let limits = newest(40);
        let mut edges = chain(100);
        edges.push((3, 99));
        // Each keyframe meets the successor of the keyframe that the previous one met.
        for count in 101..140 {
            let solved = edges.len();
            edges.push((count - 2, count - 1));
            edges.push((count - 97, count - 1));
            let window = Window::choose(count, &edges, solved, &[], 1, limits);
            assert_eq!(window.whole, count % 5 == 0, "{count} keyframes");
            assert!(window.keyframes[window.fixed..].contains(&(count - 97)));
        }
        // Three further on it is a new place, at any time.
        let solved = edges.len();
        edges.push((138, 139));
        edges.push((46, 139));
        assert!(Window::choose(141, &edges, solved, &[], 1, limits).whole);
    }

    #[test]
    fn what_is_pinned_stays_and_priors_hold() {
        let mut edges = chain(10);
        edges.extend([(0, 9), (0, 8)]);
        let window = Window::choose(10, &edges, 10, &[], 1, newest(3));
        assert_eq!(
            (&window.keyframes[..window.fixed], window.whole),
            (&[0, 6][..], false)
        );
        // Only a prior connects the newest ones to 6.
        let mut edges = chain(10);
        edges.remove(6);
        let window = Window::choose(10, &edges, 7, &[(6, 7)], 1, newest(3));
        assert_eq!(window.keyframes, [6, 7, 8, 9]);
        assert_eq!(window.fixed, 1);
    }

    /// A camera moving in circles: the newest keyframes are connected to many old ones.
    #[test]
    fn where_much_was_seen_fewer_move_and_no_solve_is_larger_than_allowed() {
        let count = 400;
        let mut edges = chain(count);
        for k in 60..count {
            edges.extend((1..=3).map(|back| (k - 50 - back * 3, k)));
        }
        edges.sort_by_key(|(_, newer)| *newer);
        let solved = edges.len() - 4;
        let loose = Window::choose(count, &edges, solved, &[], 1, newest(120));
        assert!(!loose.whole && loose.keyframes.len() > 150 && loose.edges.len() > 400);
        let limits = Limits {
            keyframes: 120,
            edges: 320,
            ..newest(120)
        };
        let tight = Window::choose(count, &edges, solved, &[], 1, limits);
        assert!(limits.hold(&tight) && !tight.whole);
        // No fewer than necessary: an eighth more would not fit.
        let free = &tight.keyframes[tight.fixed..];
        assert!(free.len() > 40, "{}", free.len());
        for (a, b) in &edges[solved..] {
            assert!(free.contains(a) && free.contains(b));
        }
    }

    #[test]
    fn after_a_skeleton_solve_the_ends_of_loops_move_within_the_limits() {
        let count = 300;
        let mut edges = chain(count);
        edges.push((50, 299));
        let limits = Limits {
            keyframes: 60,
            edges: 70,
            ..newest(40)
        };
        let window = Window::around_loops(count, &edges, count - 2, &[], 1, limits);
        assert!(limits.hold(&window) && !window.whole);
        let free = &window.keyframes[window.fixed..];
        for k in [50, 51, 49, 40, 60, 299, 298] {
            assert!(free.contains(&k), "{k} of {free:?}");
        }
        assert!(!free.contains(&150) && !free.contains(&0));
        assert_eq!(Window::nearest(&[50], &edges, 4), [49, 51, 299, 48]);
        let wide = Window::around_loops(count, &edges, count - 2, &[], 1, newest(40));
        let free = &wide.keyframes[wide.fixed..];
        assert_eq!(free.len(), 1 + AROUND_LOOPS + 40, "{free:?}");
    }

    proptest! {
        #[test]
        fn every_edge_of_a_free_keyframe_is_there(
            count in 1_usize..30,
            edges in proptest::collection::vec((0_usize..30, 0_usize..30), 0..60),
            new in 0_usize..60,
            pin in 1_usize..4,
            size in 0_usize..12,
            keyframes in 0_usize..20,
            most_edges in 0_usize..40,
        ) {
            let fits = |(a, b): &(usize, usize)| a != b && *a.max(b) < count;
            let edges: Vec<_> = edges.into_iter().filter(fits).collect();
            let limits = Limits { newest: size, keyframes, edges: most_edges };
            let window = Window::choose(count, &edges, new, &[], pin, limits);
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
                let all_newest =
                    (count.saturating_sub(size)..count).all(|k| k < pin || free.contains(&k));
                // Fewer only because of the limits, and always at least the last one.
                prop_assert!(all_newest || limits.hold(&window) || free.len() <= 1 + 2 * edges.len());
                prop_assert!(all_newest || keyframes + most_edges > 0);
                prop_assert!(count - 1 < pin || free.contains(&(count - 1)));
            }
        }
    }
}
