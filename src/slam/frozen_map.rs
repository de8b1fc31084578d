//! Tracking in a frozen map: selection of the keyframe to track against.

use super::nearness::Nearness;
use super::pose_table::{Anchor, PoseTable};
use crate::geometry::Sim3;

/// A keyframe must be nearer than the current one by this factor, so that a camera between two
/// keyframes does not switch back and forth.
const NEARER: f64 = 0.8;

/// The place of a camera at `anchor` and `world_from_camera`, relative to a nearer keyframe than
/// that of `anchor`, if there is one.
pub fn nearer(table: &PoseTable, anchor: &Anchor, world_from_camera: &Sim3) -> Option<Anchor> {
    let keyframe = nearest(table, anchor)?;
    let pose = table.pose_of(keyframe)?;
    Some(Anchor {
        keyframe,
        keyframe_from_camera: pose.inverse() * *world_from_camera,
    })
}

/// The keyframe nearest to the camera among those that share an edge with the keyframe of `anchor`,
/// if it is nearer than that one. Distances and angles are measured relative to the mean distance
/// and angle between the keyframe and its neighbours.
fn nearest(table: &PoseTable, anchor: &Anchor) -> Option<u32> {
    let pose_of = |id: u32| table.poses.get(table.index_of(id)?);
    let active = pose_of(anchor.keyframe)?;
    let camera = *active * anchor.keyframe_from_camera;
    let of = |id: u32| Some((id, pose_of(id)?));
    let other = |e: &crate::map::MapEdge| match anchor.keyframe {
        i if i == e.i => Some(e.j),
        j if j == e.j => Some(e.i),
        _ => None,
    };
    let neighbours = || table.edges.iter().filter_map(other).filter_map(of);
    let nearness = Nearness::new(camera, active, neighbours().map(|(_, pose)| *pose));
    let best = neighbours()
        .map(|(id, pose)| (id, nearness.cost(pose)))
        .min_by(|a, b| a.1.total_cmp(&b.1))?;
    (best.1 < NEARER * nearness.cost(active)).then_some(best.0)
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::at;
    use super::*;
    use crate::map::{EdgeKind, MapEdge};

    #[test]
    fn the_nearest_neighbour_is_taken_if_it_is_nearer() {
        let edge = |i, j| MapEdge {
            i,
            j,
            kind: EdgeKind::Consecutive,
        };
        let table = PoseTable {
            ids: vec![0, 1, 2, 3],
            // Keyframe 3 lies on the camera's path, but no edge connects it to 1.
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
