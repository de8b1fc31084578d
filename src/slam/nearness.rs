//! Which keyframes are nearest to a camera.

use crate::geometry::Sim3;

/// Measures distances and angles from a camera, each relative to its mean between a keyframe and the neighbours of
/// that keyframe in the graph, so that they can be added. All poses are world from camera.
pub struct Nearness {
    camera: Sim3,
    distance: f64,
    angle: f64,
}

impl Nearness {
    /// The measure from `camera`, around a keyframe at `around` with these `neighbours`.
    pub fn new(camera: Sim3, around: &Sim3, neighbours: impl IntoIterator<Item = Sim3>) -> Self {
        let (mut distances, mut angles, mut count) = (0.0, 0.0, 0);
        for neighbour in neighbours {
            let (distance, angle) = around.apart(&neighbour);
            distances += distance;
            angles += angle;
            count += 1;
        }
        let mean = |sum: f64| (sum / f64::from(count.max(1))).max(1e-9);
        Self {
            camera,
            distance: mean(distances),
            angle: mean(angles),
        }
    }

    /// How far a keyframe at `pose` is from the camera.
    pub fn cost(&self, pose: &Sim3) -> f64 {
        let (distance, angle) = self.camera.apart(pose);
        distance / self.distance + angle / self.angle
    }

    /// `keyframes`, by id and pose, with their costs, the nearest first.
    pub fn sorted(&self, keyframes: impl IntoIterator<Item = (u32, Sim3)>) -> Vec<(u32, f64)> {
        let keyframes = keyframes.into_iter();
        let costs = keyframes.map(|(id, pose)| (id, self.cost(&pose)));
        let mut sorted: Vec<(u32, f64)> = costs.collect();
        sorted.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
        sorted
    }
}
