//! The map's keyframes for readers.

use super::graph::{Graph, GraphKeyframe};
use crate::compute::device::{DeviceError, MappingDevice};
use crate::geometry::Sim3;
use crate::map::{Content, KeyframeRecord, KeyframeView};

/// The keyframes with ids in `wanted`, in their current state, each with this content.
pub fn listed(
    graph: &Graph,
    wanted: impl Fn(u32) -> bool,
    mut content: impl FnMut(u32) -> Content,
) -> Vec<KeyframeRecord> {
    let record = |(k, pose): (&GraphKeyframe, &Sim3)| KeyframeRecord {
        id: k.info.id,
        frame_index: k.info.frame_index,
        stamp: k.info.stamp,
        submap: k.submap,
        world_from_camera: *pose,
        content: content(k.info.id),
    };
    let all = graph.keyframes().iter().zip(graph.poses());
    let wanted = all.filter(|(k, _)| wanted(k.info.id));
    wanted.map(record).collect()
}

/// Copies of the keyframes with ids in `wanted`. A keyframe that the device can no longer read has its pose, but no
/// image and no points.
pub fn keyframes(
    graph: &Graph,
    device: &dyn MappingDevice,
    wanted: impl Fn(u32) -> bool,
) -> Vec<KeyframeRecord> {
    let mut failure = None;
    let records = listed(graph, wanted, |id| {
        let view = view(device, id).unwrap_or_else(|error| {
            failure.get_or_insert(error);
            KeyframeView::default()
        });
        view.into()
    });
    if let Some(error) = failure {
        tracing::error!("cannot read the points of some keyframes: {error}");
    }
    records
}

/// Image and points of a keyframe.
pub fn view(device: &dyn MappingDevice, id: u32) -> Result<KeyframeView, DeviceError> {
    let bulk = device.read_keyframe(id)?;
    Ok(KeyframeView {
        image: bulk.image,
        points: bulk.points,
        confidence: bulk.confidence,
    })
}
