//! The map's keyframes for those who look at it.

use super::mapper::{MapKeyframe, Mapper};
use crate::compute::device::KeyframeBulk;
use crate::geometry::Sim3;
use crate::map::KeyframeRecord;

impl Mapper {
    /// Keyframe records of the map as it stands. One that the device cannot give back any more has
    /// its pose, and no image and no points.
    pub fn records(&self) -> Vec<KeyframeRecord> {
        self.records_of(|_| true)
    }

    /// Those of [`Mapper::records`] whose id is `wanted`.
    pub fn records_of(&self, wanted: impl Fn(u32) -> bool) -> Vec<KeyframeRecord> {
        let mut failure = None;
        let record = |(k, pose): (&MapKeyframe, &Sim3)| {
            let bulk = self.device.read_keyframe(k.info.id);
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
        let all = self.keyframes.iter().zip(&self.poses);
        let wanted = all.filter(|(k, _)| wanted(k.info.id));
        let records = wanted.map(record).collect();
        if let Some(error) = failure {
            tracing::error!("keyframes are saved without their points: {error}");
        }
        records
    }
}
