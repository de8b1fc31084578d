//! A hint of where a lost camera is, from a user or another node.

use super::graph::Graph;
use crate::geometry::Sim3;

/// Frames that are searched for near the hint; afterwards it counts as wrong.
const TRIES: usize = 20;
/// Keyframes nearer than this to the hint may show what the camera sees, metres: a click on a map is a
/// metre off, and a keyframe's view reaches a few metres.
const RADIUS: f64 = 5.0;
/// They look the same way within this angle, as a cosine (60 degrees).
const ALIKE: f64 = 0.5;
/// Metres that count as much as looking the opposite way.
const TURN_METRES: f64 = 3.0;

/// The camera's place as given, for the next frames of a lost camera.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlaceHint {
    world_from_camera: Sim3,
    tries: usize,
}

impl PlaceHint {
    /// A new hint.
    pub fn new(world_from_camera: Sim3) -> Self {
        Self {
            world_from_camera,
            tries: TRIES,
        }
    }

    /// The hint with one frame fewer to search for; `None` once it is used up.
    pub fn used(self) -> Option<Self> {
        let tries = self.tries.checked_sub(1).filter(|tries| *tries > 0)?;
        Some(Self { tries, ..self })
    }

    /// At most `count` keyframes that look at what a camera at the hint would see, the best first.
    pub fn candidates(&self, graph: &Graph, count: usize) -> Vec<u32> {
        let ahead = |pose: &Sim3| pose.rotation * nalgebra::Vector3::z();
        let (here, look) = (
            self.world_from_camera.translation,
            ahead(&self.world_from_camera),
        );
        let mut near: Vec<(f64, u32)> = (graph.keyframes().iter().zip(graph.poses()))
            .filter_map(|(keyframe, pose)| {
                let (gap, alike) = ((pose.translation - here).norm(), look.dot(&ahead(pose)));
                let fits = gap <= RADIUS && alike >= ALIKE;
                fits.then_some((gap + 0.5 * (1.0 - alike) * TURN_METRES, keyframe.info.id))
            })
            .collect();
        near.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        near.truncate(count);
        near.into_iter().map(|(_, id)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slam::graph::KeyframeInfo;
    use crate::time::Stamp;
    use nalgebra::{UnitQuaternion, Vector3};

    fn pose(x: f64, yaw: f64) -> Sim3 {
        Sim3 {
            translation: Vector3::new(x, 0.0, 0.0),
            rotation: UnitQuaternion::from_axis_angle(&Vector3::y_axis(), yaw),
            scale: 1.0,
        }
    }

    #[test]
    fn near_keyframes_that_look_the_same_way_come_first_and_others_not_at_all() {
        let mut graph = Graph::default();
        let poses = [
            (0.0, 0.0),
            (1.0, 0.0),
            (1.2, 3.0),
            (1.1, 0.9),
            (9.0, 0.0),
            (2.0, 0.1),
        ];
        for (id, (x, yaw)) in (0..).zip(poses) {
            let info = KeyframeInfo {
                id,
                frame_index: id as usize,
                stamp: Stamp::default(),
            };
            graph.insert(info, pose(x, yaw), 0, None);
        }
        let hint = PlaceHint::new(pose(1.2, 0.1));
        assert_eq!(hint.candidates(&graph, 10), [1, 3, 5, 0]);
        assert_eq!(hint.candidates(&graph, 2), [1, 3]);
        assert!(
            PlaceHint::new(pose(50.0, 0.0))
                .candidates(&graph, 3)
                .is_empty()
        );
    }

    #[test]
    fn a_hint_is_used_up() {
        let hint = PlaceHint::new(Sim3::identity());
        let uses = std::iter::successors(Some(hint), |hint| hint.used()).count();
        assert_eq!(uses, TRIES);
    }
}
