//! Where frames and keyframes are by the poses that mapping has published.

use super::keyframe::Anchor;
use super::system::System;
use crate::geometry::Sim3;

impl System {
    /// The submap of a keyframe.
    pub(super) fn submap_of(&self, keyframe: u32) -> u32 {
        let table = self.table.load();
        let mut id = keyframe;
        // A pending keyframe belongs where its anchor belongs; anchors always point to older ones.
        while table.submaps.get(id as usize).is_none() {
            match self.pending.iter().find(|(k, _)| *k == id) {
                Some((_, anchor)) if anchor.keyframe < id => id = anchor.keyframe,
                _ => return 0,
            }
        }
        table.submaps.get(id as usize).copied().unwrap_or(0)
    }

    /// An anchored camera in the world.
    pub(super) fn world_from(&self, anchor: &Anchor) -> Sim3 {
        let table = self.table.load();
        let mut pose = anchor.keyframe_from_camera;
        let mut id = anchor.keyframe;
        loop {
            if let Some(world) = table.poses.get(id as usize) {
                return *world * pose;
            }
            match self.pending.iter().find(|(k, _)| *k == id) {
                Some((_, a)) if a.keyframe < id => {
                    pose = a.keyframe_from_camera * pose;
                    id = a.keyframe;
                }
                _ => return self.last_pose,
            }
        }
    }
}
