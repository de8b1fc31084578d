//! Poses and graphs that several tests start from.

use super::graph::{Edge, Graph, KeyframeInfo};
use crate::compute::device::EdgeId;
use crate::geometry::Sim3;
use crate::map::EdgeKind;
use nalgebra::Vector3;

/// A camera at `x` metres on the x axis, in the world's orientation and scale.
pub fn at(x: f64) -> Sim3 {
    Sim3 {
        translation: Vector3::new(x, 0.0, 0.0),
        ..Sim3::identity()
    }
}

/// Keyframes 0, 1, … at `poses`, each with an edge to the one before that matches the part `match_fraction(id)`.
pub fn chain(poses: impl IntoIterator<Item = Sim3>, match_fraction: impl Fn(u32) -> f32) -> Graph {
    let mut graph = Graph::default();
    for (id, pose) in (0..).zip(poses) {
        let info = KeyframeInfo {
            id,
            frame_index: id as usize,
            stamp: Default::default(),
        };
        graph.insert(info, pose, 0, None);
        if let Some(i) = id.checked_sub(1) {
            let edge = Edge {
                id: EdgeId(id),
                i,
                j: id,
                kind: EdgeKind::Consecutive,
                match_fraction: match_fraction(id),
                poses: None,
            };
            assert!(graph.connect(edge));
        }
    }
    graph
}
