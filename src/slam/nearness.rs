//! Which keyframes are nearest to a camera.

use super::graph::Graph;
use crate::geometry::Sim3;

/// Measures distances and angles from a camera, each relative to its mean between a keyframe and the neighbours of
/// that keyframe in the graph, so that they can be added.
pub struct Nearness {
    distance: f64,
    angle: f64,
}

impl Nearness {
    /// The measure around keyframe `around`.
    pub fn new(graph: &Graph, around: u32) -> Self {
        let pose = graph.pose_of(around);
        let (mut distances, mut angles, mut count) = (0.0, 0.0, 0);
        for (other, _) in graph.edges_of(around) {
            let (distance, angle) = pose.apart(&graph.pose_of(other));
            distances += distance;
            angles += angle;
            count += 1;
        }
        let mean = |sum: f64| (sum / f64::from(count.max(1))).max(1e-9);
        Self {
            distance: mean(distances),
            angle: mean(angles),
        }
    }

    /// How far a camera at `pose` is from `camera`, both as world from camera.
    pub fn cost(&self, camera: &Sim3, pose: &Sim3) -> f64 {
        let (distance, angle) = camera.apart(pose);
        distance / self.distance + angle / self.angle
    }

    /// `keyframes` with their costs from `camera`, the nearest first.
    pub fn sorted(
        &self,
        graph: &Graph,
        camera: &Sim3,
        keyframes: impl IntoIterator<Item = u32>,
    ) -> Vec<(u32, f64)> {
        let keyframes = keyframes.into_iter();
        let costs = keyframes.map(|id| (id, self.cost(camera, &graph.pose_of(id))));
        let mut sorted: Vec<(u32, f64)> = costs.collect();
        sorted.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
        sorted
    }
}
