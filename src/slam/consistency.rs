//! How well relative poses of this network on these images agree with the map: the believed precision of a path through
//! the map, or of a match.

use super::graph::{Edge, Graph};
use crate::geometry::Sim3;

/// Minimum standard deviations: a fraction of the distance, an angle in radians (0.5°), and a logarithm of scale. Those
/// of the official model.
const FLOOR: StepSigma = StepSigma {
    length: 0.02,
    turn: 0.0087,
    log_scale: 0.02,
};

/// Maximum standard deviations: beyond that, edges say nothing about the map.
const CEILING: StepSigma = StepSigma {
    length: 0.5,
    turn: 0.15,
    log_scale: 0.3,
};

/// Number of newest edges that are looked at, and the number of them below which the minimum counts.
const EDGES: usize = 64;
const MIN_EDGES: usize = 8;

/// Medians of the norm of three, and of one, normally distributed numbers, in standard deviations.
const MEDIAN_OF_THREE: f64 = 1.5382;
const MEDIAN_OF_ONE: f64 = 0.6745;

/// Standard deviations of the relative pose of neighbouring keyframes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepSigma {
    /// That of each coordinate, as a fraction of the distance.
    pub length: f64,
    /// That of the rotation about each axis, in radians.
    pub turn: f64,
    /// That of the logarithm of scale.
    pub log_scale: f64,
}

impl Default for StepSigma {
    /// The minimum.
    fn default() -> Self {
        FLOOR
    }
}

impl StepSigma {
    /// Those of a map's newest edges: the medians of the differences between each edge alone and the whole map. A
    /// network whose pointmaps vary more from pair to pair contradicts a map that it has made itself more often.
    pub fn of(graph: &Graph) -> Self {
        let solved = graph.edges().iter().take(graph.solved_edges());
        let errors = solved.rev().filter_map(|edge| error(graph, edge));
        let errors: Vec<[f64; 3]> = errors.take(EDGES).collect();
        if errors.len() < MIN_EDGES {
            return FLOOR;
        }
        let sigma = |part: usize, of_one: f64| {
            let mut values: Vec<f64> = errors.iter().map(|e| e[part]).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2] / of_one
        };
        Self {
            length: sigma(0, MEDIAN_OF_THREE).clamp(FLOOR.length, CEILING.length),
            turn: sigma(1, MEDIAN_OF_THREE).clamp(FLOOR.turn, CEILING.turn),
            log_scale: sigma(2, MEDIAN_OF_ONE).clamp(FLOOR.log_scale, CEILING.log_scale),
        }
    }
}

/// The difference between an edge's own relative pose and the map's: a distance as a fraction of that between its
/// keyframes, an angle, and a logarithm of scale.
fn error(graph: &Graph, edge: &Edge) -> Option<[f64; 3]> {
    let measured = edge.poses?.i_from_j?;
    let believed = graph.pose_of(edge.i).inverse() * graph.pose_of(edge.j);
    let length = believed.translation.norm();
    let [distance, angle, log_scale] = parts(&(believed.inverse() * measured));
    let error = [distance * believed.scale / length, angle, log_scale];
    error.iter().all(|v| v.is_finite()).then_some(error)
}

/// Norms of the translation, the rotation and the logarithm of scale.
pub fn parts(pose: &Sim3) -> [f64; 3] {
    [
        pose.translation.norm(),
        pose.rotation.angle(),
        pose.scale.ln().abs(),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::at;
    use super::super::graph::KeyframeInfo;
    use super::*;
    use crate::compute::device::{EdgeId, TwoWay};
    use crate::map::EdgeKind;
    use nalgebra::{UnitQuaternion, Vector3};

    /// A metre between keyframes, of which each edge says this much more.
    fn chain(count: u32, more: impl Fn(u32) -> Sim3) -> Graph {
        let mut graph = Graph::default();
        for id in 0..count {
            let info = KeyframeInfo {
                id,
                frame_index: 0,
                stamp: Default::default(),
            };
            graph.insert(info, at(f64::from(id)), 0, None);
            let poses = TwoWay {
                i_from_j: Some(at(1.0) * more(id)),
                j_from_i: None,
            };
            graph.connect(Edge {
                id: EdgeId(id),
                i: id.wrapping_sub(1),
                j: id,
                kind: EdgeKind::Consecutive,
                match_fraction: 0.5,
                poses: Some(poses),
            });
        }
        graph.set_solved(std::iter::empty());
        graph
    }

    #[test]
    fn exact_edges_and_too_few_of_them_give_the_minimum() {
        assert_eq!(StepSigma::of(&chain(40, |_| Sim3::identity())), FLOOR);
        assert_eq!(StepSigma::of(&chain(8, |_| at(0.3))), FLOOR);
        assert_eq!(StepSigma::of(&Graph::default()), FLOOR);
    }

    #[test]
    fn the_median_edge_counts_and_a_few_wrong_ones_do_not() {
        let more = |id: u32| Sim3 {
            translation: Vector3::new(0.0, if id.is_multiple_of(5) { 30.0 } else { 0.1 }, 0.0),
            rotation: UnitQuaternion::from_euler_angles(0.0, 0.05, 0.0),
            scale: 1.1,
        };
        let sigma = StepSigma::of(&chain(60, more));
        assert!((sigma.length - 0.1 / MEDIAN_OF_THREE).abs() < 1e-9);
        assert!((sigma.turn - 0.05 / MEDIAN_OF_THREE).abs() < 1e-9);
        assert!((sigma.log_scale - 1.1_f64.ln() / MEDIAN_OF_ONE).abs() < 1e-9);
    }

    #[test]
    fn edges_that_contradict_the_map_altogether_have_a_limit() {
        let sigma = StepSigma::of(&chain(40, |_| Sim3 {
            scale: 9.0,
            rotation: UnitQuaternion::from_euler_angles(0.0, 1.0, 0.0),
            ..at(50.0)
        }));
        assert_eq!(sigma, CEILING);
        let invalid = StepSigma::of(&chain(40, |_| at(f64::NAN)));
        assert_eq!(invalid, FLOOR);
    }
}
