//! Copies of the map's keyframes for readers.

use super::graph::{Graph, GraphKeyframe};
use crate::compute::device::{KeyframeBulk, MappingDevice};
use crate::geometry::Sim3;
use crate::map::KeyframeRecord;

/// The keyframes with ids in `wanted`, in their current state. A keyframe that the device can no
/// longer read has its pose, but no image and no points.
pub fn keyframes(
    graph: &Graph,
    device: &dyn MappingDevice,
    wanted: impl Fn(u32) -> bool,
) -> Vec<KeyframeRecord> {
    let mut failure = None;
    let record = |(k, pose): (&GraphKeyframe, &Sim3)| {
        let bulk = device.read_keyframe(k.info.id);
        let bulk = bulk.unwrap_or_else(|error| {
            failure.get_or_insert(error);
            KeyframeBulk::default()
        });
        KeyframeRecord {
            id: k.info.id,
            frame_index: k.info.frame_index,
            stamp: k.info.stamp,
            submap: k.submap,
            world_from_camera: *pose,
            image: bulk.image,
            points: bulk.points,
            confidence: bulk.confidence,
        }
    };
    let all = graph.keyframes().iter().zip(graph.poses());
    let wanted = all.filter(|(k, _)| wanted(k.info.id));
    let records = wanted.map(record).collect();
    if let Some(error) = failure {
        tracing::error!("cannot read the points of some keyframes: {error}");
    }
    records
}
