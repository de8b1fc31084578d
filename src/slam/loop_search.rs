//! Where to look for loops beside what place recognition proposes: around loops that wait for witnesses, and again at
//! places whose pair was refused (docs/algorithm.md, Factor graph and loop closure).

use super::graph::Graph;
use super::nearness::Nearness;
use super::witnesses::{LOCAL_HOPS, Loop, MAX_APART, PATIENCE};
use crate::geometry::Sim3;

/// Maximum number of places at which a keyframe looks, beside those that look like it: place recognition proposes a
/// place once in a few keyframes, and each place costs an edge.
const SOUGHT: usize = 3;
/// Maximum number of keyframes around the place of a loop that waits at which one keyframe looks.
const AROUND: usize = 2;
/// Maximum number of hops from the place to these: farther ones see something else.
const AROUND_HOPS: usize = 5;
/// Number of later keyframes that look again at a place whose pair was refused.
const LOOKS: u32 = 2;
/// Maximum number of refused pairs that are remembered: more than the candidates of [`PATIENCE`] keyframes.
const MAX_REFUSED: usize = 32;

/// A far place that was proposed to a keyframe, and whose pair was refused.
#[derive(Debug, Clone, Copy)]
struct Refused {
    place: u32,
    query: u32,
    /// Number of keyframes that may still look there.
    looks: u32,
}

/// Pairs that were refused lately.
#[derive(Debug, Default)]
pub struct LoopSearch {
    refused: Vec<Refused>,
}

impl LoopSearch {
    /// Notes that the matches of keyframe `query` with `place` were refused. That says little about the place: other
    /// keyframes there and the next keyframes here see nearly the same. Ignored if the place is near in the graph, if
    /// it is known already, or if one of the loops `waiting` leads there.
    pub fn note_refused<'a>(
        &mut self,
        graph: &Graph,
        waiting: impl IntoIterator<Item = &'a Loop>,
        (place, query): (u32, u32),
    ) {
        let waits = waiting.into_iter().any(|of| of.place == place);
        let known = self.refused.iter().any(|pair| pair.place == place);
        let full = self.refused.len() == MAX_REFUSED;
        if !(waits || known || full || graph.are_near(place, query, LOCAL_HOPS)) {
            let looks = LOOKS;
            self.refused.push(Refused {
                place,
                query,
                looks,
            });
        }
    }

    /// Places at which keyframe `query`, whose pose by tracking is `camera`, may be a witness of one of the loops
    /// `waiting`, or may succeed where an earlier keyframe was refused. They count as looked at.
    pub fn sought<'a>(
        &mut self,
        graph: &Graph,
        waiting: impl IntoIterator<Item = &'a Loop>,
        query: u32,
        camera: &Sim3,
    ) -> Vec<u32> {
        let mut places = Vec::with_capacity(SOUGHT);
        let soon = |of: u32| (1..=MAX_APART).contains(&query.saturating_sub(of));
        for of in waiting.into_iter().filter(|of| soon(of.query)) {
            add(&mut places, of.place);
            if places.len() == SOUGHT {
                return places;
            }
            for place in around(graph, of, camera).into_iter().take(AROUND) {
                add(&mut places, place);
            }
        }
        for pair in &mut self.refused {
            if pair.looks > 0 && soon(pair.query) && add(&mut places, pair.place) {
                pair.looks -= 1;
            }
        }
        places
    }

    /// Further places at which keyframe `query` looks at once, when its loops are among those `waiting` or were refused;
    /// `tried` are the places at which it has looked.
    pub fn further<'a>(
        &self,
        graph: &Graph,
        waiting: impl IntoIterator<Item = &'a Loop>,
        query: u32,
        tried: &[u32],
    ) -> Vec<u32> {
        let mut places = Vec::with_capacity(SOUGHT);
        let untried = |place: &u32| !tried.contains(place);
        let camera = graph.pose_of(query);
        for of in waiting.into_iter().filter(|of| of.query == query) {
            let near = around(graph, of, &camera).into_iter().filter(untried);
            for place in near.take(AROUND) {
                add(&mut places, place);
            }
        }
        for pair in self.refused.iter().filter(|pair| pair.query == query) {
            let mut beside: Vec<(u32, f32)> = graph
                .edges_of(pair.place)
                .map(|(other, edge)| (other, edge.match_fraction))
                .collect();
            beside.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            if let Some(place) = beside.into_iter().map(|(other, _)| other).find(untried) {
                add(&mut places, place);
            }
        }
        places
    }

    /// Forgets pairs that were refused long before keyframe `newest`.
    pub fn expire(&mut self, newest: u32) {
        self.refused
            .retain(|pair| pair.query.saturating_add(PATIENCE) >= newest);
    }
}

/// Adds `place` unless it is there already or [`SOUGHT`] are; returns whether it did.
fn add(places: &mut Vec<u32>, place: u32) -> bool {
    let adds = places.len() < SOUGHT && !places.contains(&place);
    if adds {
        places.push(place);
    }
    adds
}

/// The keyframes around the loop's place, without itself; first those nearest to where the loop puts a camera whose
/// pose by the map is `camera`.
fn around(graph: &Graph, of: &Loop, camera: &Sim3) -> Vec<u32> {
    let exists = |id: u32| graph.submap_of(id).is_some();
    if !exists(of.query) || !exists(of.place) {
        return Vec::new();
    }
    let from_query = graph.pose_of(of.query).inverse() * *camera;
    let expected = graph.pose_of(of.place) * of.factor.i_from_j * from_query;
    let place = graph.pose_of(of.place);
    let nearness = Nearness::new(expected, &place, graph.neighbour_poses(of.place));
    let others = graph.within(of.place, AROUND_HOPS).into_iter();
    let sorted = nearness.sorted(others.map(|id| (id, graph.pose_of(id))));
    sorted.into_iter().map(|(id, _)| id).collect()
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{self, at};
    use super::*;
    use crate::compute::global::{Matrix7, PoseFactor};

    /// 40 keyframes a metre apart; keyframe `k` shares less with the next one the larger `k` is.
    fn chain() -> Graph {
        let poses = (0..40).map(|k| at(f64::from(k)));
        fixtures::chain(poses, |k| 0.9 - 0.01 * k as f32)
    }

    /// A loop that finds the camera of `query` at `x` metres in the frame of `place`.
    fn found(place: u32, query: u32, x: f64) -> Loop {
        Loop {
            place,
            query,
            factor: PoseFactor {
                i: place as usize,
                j: query as usize,
                i_from_j: at(x),
                information: Matrix7::identity(),
            },
            covariance: Matrix7::identity(),
            variance: 1.0,
        }
    }

    #[test]
    fn witnesses_are_sought_at_the_place_and_where_the_loop_puts_the_camera() {
        let graph = chain();
        let mut search = LoopSearch::default();
        let waits = [found(10, 36, 1.1)];
        // Keyframe 36 is at 11.1 m by the loop; the camera is 2 m on.
        assert_eq!(search.sought(&graph, &waits, 37, &at(38.0)), [10, 13, 14]);
        assert_eq!(search.sought(&graph, &waits, 37, &at(36.0)), [10, 11, 12]);
        // The newest loop comes first.
        let both = [found(3, 37, 0.0), waits[0]];
        assert_eq!(search.sought(&graph, &both, 38, &at(38.0)), [3, 4, 5]);
        // Neither at the keyframe itself nor long after.
        assert!(search.sought(&graph, &waits, 36, &at(36.0)).is_empty());
        assert!(search.sought(&graph, &waits, 42, &at(36.0)).is_empty());
        // A keyframe that was removed has no pose to go by.
        let gone = [found(10, 90, 1.1)];
        assert_eq!(search.sought(&graph, &gone, 91, &at(38.0)), [10]);
    }

    #[test]
    fn the_keyframe_itself_looks_around_the_place_at_once() {
        let graph = chain();
        let search = LoopSearch::default();
        let waits = [found(10, 36, 1.1), found(20, 35, 0.0)];
        assert_eq!(search.further(&graph, &waits, 36, &[10]), [11, 12]);
        assert_eq!(search.further(&graph, &waits, 36, &[10, 11]), [12, 13]);
    }

    #[test]
    fn a_refused_place_gets_a_neighbour_at_once_and_two_looks_later() {
        let graph = chain();
        let mut search = LoopSearch::default();
        let none: [Loop; 0] = [];
        search.note_refused(&graph, &none, (10, 36));
        // 9 shares more with 10 than 11 does.
        assert_eq!(search.further(&graph, &none, 36, &[10]), [9]);
        assert!(search.further(&graph, &none, 37, &[]).is_empty());
        let mut look = |query| search.sought(&graph, &none, query, &at(0.0));
        assert_eq!([look(37), look(38), look(39)], [vec![10], vec![10], vec![]]);
        // Refused again: it is known, until it is forgotten.
        search.note_refused(&graph, &none, (10, 38));
        assert!(search.sought(&graph, &none, 39, &at(0.0)).is_empty());
        search.expire(36 + PATIENCE + 1);
        search.note_refused(&graph, &none, (10, 39));
        assert_eq!(search.sought(&graph, &none, 40, &at(0.0)), [10]);
    }

    #[test]
    fn near_places_and_those_of_waiting_loops_get_no_second_look_and_their_number_is_bounded() {
        let graph = chain();
        let mut search = LoopSearch::default();
        let waits = [found(10, 36, 1.1)];
        search.note_refused(&graph, &waits, (10, 37));
        search.note_refused(&graph, &waits, (30, 37));
        assert!(search.refused.is_empty());
        for query in 0..3 {
            for place in 100..100 + MAX_REFUSED as u32 {
                search.note_refused(&graph, &waits, (place, query));
            }
        }
        assert_eq!(search.refused.len(), MAX_REFUSED);
    }
}
