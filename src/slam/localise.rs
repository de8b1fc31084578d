//! Tracking in a map that does not grow: from one of its keyframes to the next.

use super::keyframe::{Anchor, PoseTable};
use super::mapper::KeyframeInfo;
use super::system::{Active, Pace, SlamError, System};
use crate::geometry::Sim3;

/// A keyframe must be nearer than the one in use by this factor, so that a camera between two keyframes does not
/// go to and fro.
const NEARER: f64 = 0.8;

impl System {
    /// A frame that shows little of the active keyframe asks for another keyframe of the map, if one is nearer.
    pub(super) fn look_for_nearer(
        &mut self,
        info: KeyframeInfo,
        anchor: &Anchor,
    ) -> Result<(), SlamError> {
        let free =
            self.asked.is_none() && (self.pace == Pace::EveryFrame || self.mapping.has_room());
        let table = self.table.load();
        let nearer = nearest(&table, anchor).filter(|_| free);
        let Some(keyframe) = nearer else {
            return Ok(());
        };
        let Some(pose) = table.poses.get(keyframe as usize) else {
            return Ok(());
        };
        let keyframe_from_camera = pose.inverse() * self.world_from(anchor);
        let there = Anchor {
            keyframe,
            keyframe_from_camera,
        };
        drop(table);
        self.asked = self.entries.newest();
        match self.mapping.lend(info, there)? {
            Some(reply) => self.take_reply(reply),
            None if self.pace == Pace::EveryFrame => self.collect_reply(true),
            None => Ok(()),
        }
    }

    /// Frames are tracked against the keyframe of `there` from now on, which is where frame `asked` was. If
    /// frames came since, the newest is carried along as it was tracked, so that the next step starts there.
    pub(super) fn go_over(&mut self, asked: Option<usize>, there: Anchor) {
        self.active = Some(Active::new(there.keyframe, true));
        let then = asked.and_then(|k| self.entries.get(k)?.anchor);
        let Some(entry) = self.entries.last_mut() else {
            return;
        };
        let (Some(then), Some(now)) = (then, entry.anchor) else {
            return;
        };
        if then.keyframe == now.keyframe {
            let since = then.keyframe_from_camera.inverse() * now.keyframe_from_camera;
            entry.anchor = Some(Anchor {
                keyframe_from_camera: there.keyframe_from_camera * since,
                ..there
            });
        }
    }
}

/// The keyframe that shares an edge with that of `anchor` and is nearest to the camera, if it is nearer than that
/// one. Near is what lies and looks alike: distances and angles count in units of those between the keyframe and
/// its neighbours.
fn nearest(table: &PoseTable, anchor: &Anchor) -> Option<u32> {
    let active = table.poses.get(anchor.keyframe as usize)?;
    let camera = *active * anchor.keyframe_from_camera;
    let of = |id: u32| table.poses.get(id as usize).map(|pose| (id, pose));
    let other = |e: &crate::map::MapEdge| match anchor.keyframe {
        i if i == e.i => Some(e.j),
        j if j == e.j => Some(e.i),
        _ => None,
    };
    let neighbours: Vec<(u32, &Sim3)> = table
        .edges
        .iter()
        .filter_map(other)
        .filter_map(of)
        .collect();
    let apart = |a: &Sim3, b: &Sim3| {
        let distance = (a.translation - b.translation).norm();
        (distance, a.rotation.angle_to(&b.rotation))
    };
    let count = neighbours.len().max(1) as f64;
    let sum = neighbours.iter().fold((0.0, 0.0), |sum, (_, pose)| {
        let (distance, angle) = apart(active, pose);
        (sum.0 + distance, sum.1 + angle)
    });
    let unit = ((sum.0 / count).max(1e-9), (sum.1 / count).max(1e-9));
    let cost = |pose: &Sim3| {
        let (distance, angle) = apart(&camera, pose);
        distance / unit.0 + angle / unit.1
    };
    let best = neighbours
        .iter()
        .map(|(id, pose)| (*id, cost(pose)))
        .min_by(|a, b| a.1.total_cmp(&b.1))?;
    (best.1 < NEARER * cost(active)).then_some(best.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::{EdgeKind, MapEdge};
    use nalgebra::Vector3;

    fn at(x: f64) -> Sim3 {
        Sim3 {
            translation: Vector3::new(x, 0.0, 0.0),
            ..Sim3::identity()
        }
    }

    #[test]
    fn the_nearest_neighbour_is_taken_if_it_is_nearer() {
        let edge = |i, j| MapEdge {
            i,
            j,
            kind: EdgeKind::Consecutive,
        };
        let table = PoseTable {
            // 3 lies at the camera's way, but nothing connects it with 1.
            poses: [0.0, 1.0, 2.0, 1.5].map(at).to_vec(),
            edges: vec![edge(0, 1), edge(2, 1)],
            ..Default::default()
        };
        let nearest = |x: f64| {
            let anchor = Anchor {
                keyframe: 1,
                keyframe_from_camera: at(x - 1.0),
            };
            super::nearest(&table, &anchor)
        };
        assert_eq!(nearest(1.0), None);
        assert_eq!(nearest(1.5), None, "as near to both");
        assert_eq!(nearest(1.7), Some(2));
        assert_eq!(nearest(0.2), Some(0));
        let alone = Anchor {
            keyframe: 3,
            keyframe_from_camera: at(9.0),
        };
        assert_eq!(super::nearest(&table, &alone), None);
    }
}
