use super::super::fixtures::at;
use super::*;

fn info(id: u32) -> KeyframeInfo {
    KeyframeInfo {
        id,
        frame_index: 10 * id as usize,
        stamp: Stamp::default(),
    }
}

fn edge(i: u32, j: u32, match_fraction: f32) -> Edge {
    Edge {
        id: EdgeId(100 * i + j),
        i,
        j,
        kind: EdgeKind::Consecutive,
        match_fraction,
        poses: None,
    }
}

/// Keyframes one metre apart, each tracked against the one before, in these submaps.
fn chain(submaps: &[u32]) -> Graph {
    let mut graph = Graph::default();
    for (k, &submap) in submaps.iter().enumerate() {
        let id = k as u32;
        let back = Anchor {
            keyframe: id.wrapping_sub(1),
            keyframe_from_camera: at(1.0),
        };
        let chain = (k > 0 && submaps[k - 1] == submap).then_some(back);
        graph.insert(info(id), at(k as f64), submap, chain);
    }
    graph
}

#[test]
fn every_keyframe_has_a_pose_and_a_submap() {
    let graph = chain(&[0, 0, 1]);
    assert_eq!(graph.keyframes().len(), graph.poses().len());
    for (k, keyframe) in graph.keyframes().iter().enumerate() {
        let id = k as u32;
        assert_eq!(keyframe.info, info(id));
        assert_eq!(graph.submap_of(id), Some(keyframe.submap));
        assert_eq!(graph.pose_of(id), at(k as f64));
    }
    assert_eq!((graph.submap_of(3), graph.pose_of(3)), (None, at(0.0)));
}

#[test]
fn a_chain_leads_to_another_keyframe_or_is_dropped() {
    let mut graph = chain(&[0]);
    let itself = Anchor::at(1);
    graph.insert(info(1), at(1.0), 0, Some(itself));
    assert_eq!(graph.keyframes()[1].chain, None);
}

#[test]
fn an_edge_joins_two_keyframes_of_the_graph_or_is_refused() {
    let mut graph = chain(&[0, 0]);
    assert!(graph.connect(edge(0, 1, 0.5)));
    for (i, j) in [(1, 1), (0, 2), (2, 0), (u32::MAX, 0)] {
        assert!(!graph.connect(edge(i, j, 0.5)), "{i} {j}");
    }
    assert_eq!(graph.edges().len(), 1);
    let table = graph.table(7);
    assert_eq!((table.map, table.poses.len(), table.edges.len()), (7, 2, 1));
}

#[test]
fn the_newer_submap_moves_as_a_whole_whichever_end_it_is() {
    for (i, j) in [(1, 2), (2, 1)] {
        let mut graph = chain(&[0, 0, 1, 1]);
        // Keyframe 2 is 5 m ahead of keyframe 1, not 1 m.
        let ahead = if i == 1 { at(5.0) } else { at(-5.0) };
        let merged = graph.merge_submaps(i, j, &ahead);
        let (kept, moved) = (0, 1);
        assert_eq!(merged, Some(Merged { kept, moved }));
        let x: Vec<f64> = graph.poses().iter().map(|p| p.translation.x).collect();
        assert_eq!(x, [0.0, 1.0, 6.0, 7.0]);
        assert!(graph.keyframes().iter().all(|k| k.submap == 0));
        assert_eq!(graph.merge_submaps(i, j, &ahead), None, "one submap");
        assert_eq!(graph.merge_submaps(i, 9, &ahead), None, "no keyframe");
    }
}

#[test]
fn new_submaps_have_numbers_of_their_own() {
    assert_eq!(Graph::default().next_submap(), 0);
    assert_eq!(chain(&[0, 3]).next_submap(), 4);
    // A map file may hold any number.
    assert_eq!(chain(&[0, 1, u32::MAX]).next_submap(), 2);
}

#[test]
fn a_prior_stands_in_for_a_weak_or_missing_edge_only() {
    let mut graph = chain(&[0, 0, 0, 1]);
    let priors = |graph: &Graph| -> Vec<(usize, usize)> {
        graph.priors(0.1).iter().map(|p| (p.i, p.j)).collect()
    };
    assert_eq!(priors(&graph), [(0, 1), (1, 2)]);
    assert!(graph.connect(edge(1, 0, 0.1)));
    assert!(graph.connect(edge(1, 2, 0.09)));
    assert!(graph.connect(edge(0, 2, 0.9)));
    assert_eq!(priors(&graph), [(1, 2)]);
}

#[test]
fn a_keyframe_goes_with_its_edges_and_what_hung_on_it_hangs_on_another() {
    let mut graph = chain(&[0, 0, 0, 0]);
    for (i, j) in [(0, 1), (1, 2), (2, 3), (0, 2)] {
        assert!(graph.connect(edge(i, j, 0.5)));
    }
    graph.set_solved([].into_iter());
    graph.restore_solved_edges(3);
    let place = |keyframe, x| Anchor {
        keyframe,
        keyframe_from_camera: at(x),
    };
    for (id, place) in [(2, place(2, 0.0)), (2, place(9, 0.0)), (9, place(0, 0.0))] {
        assert!(graph.remove(id, place).is_none());
    }
    let gone = graph.remove(2, place(1, 1.0)).expect("a keyframe");
    let ends: Vec<_> = gone.iter().map(|e| (e.i, e.j)).collect();
    assert_eq!(ends, [(1, 2), (2, 3), (0, 2)]);
    assert_eq!((graph.edges().len(), graph.solved_edges()), (1, 1));
    assert_eq!(graph.index_of(3), Some(2));
    assert_eq!((graph.index_of(2), graph.pose_of(3)), (None, at(3.0)));
    assert_eq!(graph.keyframes()[2].chain, Some(place(1, 2.0)));
    assert_eq!(graph.resolve(place(2, 0.5)), Some(place(1, 1.5)));
    assert_eq!(graph.resolve(place(3, 0.5)), Some(place(3, 0.5)));
    assert_eq!(graph.resolve(place(7, 0.5)), None);
    // The prior stands for the lost edge.
    let priors = graph.priors(0.1);
    assert_eq!(priors.len(), 1);
    assert_eq!((priors[0].i, priors[0].j), (1, 2));
    assert_eq!(priors[0].i_from_j, at(2.0));
    // A new keyframe has a new id.
    graph.insert(info(4), at(4.0), 0, Some(place(2, 0.0)));
    assert_eq!(graph.keyframes()[3].chain, None, "its keyframe is gone");
    assert_eq!(graph.table(0).ids, [0, 1, 3, 4]);
}

#[test]
fn factors_join_keyframes_and_go_with_them() {
    let mut graph = chain(&[0, 0, 0]);
    let mut add = |i: usize, j: usize| {
        let factor = PoseFactor {
            i,
            j,
            i_from_j: at(1.0),
            information: Matrix7::identity(),
        };
        let poses = [i, j].map(|id| at(id as f64));
        graph.factors_mut().add(factor, &poses[0], &poses[1]);
    };
    add(0, 1);
    add(1, 2);
    assert!(graph.are_near(0, 2, 2) && !graph.holds_together_without(1));
    let place = Anchor {
        keyframe: 2,
        keyframe_from_camera: at(-2.0),
    };
    assert!(graph.remove(0, place).is_some());
    assert_eq!(graph.joined().collect::<Vec<_>>(), [(1, 2)]);
    let others: Vec<u32> = graph.factors_of(1).map(|(other, _)| other).collect();
    assert_eq!(others, [2]);
}

#[test]
fn hops_are_counted_and_a_keyframe_that_joins_two_parts_is_known() {
    let mut graph = chain(&[0; 6]);
    // In an order in which one pass over the edges would reach further than one hop.
    for (i, j) in [(0, 1), (1, 2), (2, 3), (3, 4)] {
        assert!(graph.connect(edge(i, j, 0.5)));
    }
    assert!(graph.are_near(0, 2, 2) && !graph.are_near(0, 3, 2) && graph.are_near(3, 0, 3));
    assert_eq!(graph.path(3, 1, 2), Some(vec![3, 2, 1]));
    assert!(graph.are_near(4, 4, 0) && !graph.are_near(0, 5, 99) && !graph.are_near(0, 9, 9));
    assert!(!graph.holds_together_without(2), "0 and 1 would be apart");
    assert!(graph.holds_together_without(0) && graph.holds_together_without(5));
    assert!(graph.connect(edge(0, 4, 0.5)));
    assert!((0..6).all(|id| graph.holds_together_without(id)), "a ring");
}

#[test]
fn a_solve_moves_its_keyframes_and_knows_every_edge() {
    let mut graph = chain(&[0, 0, 0]);
    assert!(graph.connect(edge(0, 1, 0.5)) && graph.connect(edge(1, 2, 0.5)));
    graph.set_solved([(2, at(9.0)), (5, at(1.0))].into_iter());
    assert_eq!((graph.pose_of(1), graph.pose_of(2)), (at(1.0), at(9.0)));
    assert_eq!(graph.solved_edges(), 2);
    graph.restore_solved_edges(1);
    assert_eq!(graph.solved_edges(), 1);
    graph.restore_solved_edges(8);
    assert_eq!(graph.solved_edges(), 2);
}

#[test]
fn a_keyframe_is_dispensable_between_others_that_overlap_and_not_at_an_end() {
    let mut graph = chain(&[0; 5]);
    for k in 0..4 {
        assert!(graph.connect(edge(k, k + 1, 0.4)));
    }
    let without = |graph: &Graph, id, hops| {
        let overlaps = graph.overlaps(0.3);
        graph.overlaps_without(id, &overlaps, hops)
    };
    assert!((0..5).all(|id| !without(&graph, id, 9)), "a chain");
    // Too weak, and then the same again but strong.
    assert!(graph.connect(edge(1, 3, 0.29)));
    assert!(!without(&graph, 2, 9));
    assert!(graph.connect(edge(1, 3, 0.3)));
    assert!(without(&graph, 2, 1));
    assert!(!without(&graph, 1, 9), "0 would be apart");
    assert!(!without(&graph, 0, 9), "the end of a path");
    // Two edges to one neighbour are one.
    assert!(graph.connect(edge(4, 3, 0.9)));
    assert!(!without(&graph, 4, 9));
    // Round a ring, as long a way as is allowed.
    assert!(graph.connect(edge(4, 0, 0.4)));
    assert!(without(&graph, 0, 2) && !without(&graph, 0, 1));
    assert!(!without(&graph, 77, 9));
}
