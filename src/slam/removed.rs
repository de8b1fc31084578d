//! Places of removed keyframes relative to keyframes that still exist.

use crate::geometry::Sim3;

/// Maximum number of removed keyframes that are remembered; the older half is forgotten beyond it. A frame
/// makes at most one keyframe, and a keyframe is removed after the last frame that was tracked against it, so half
/// of this covers the 65,536 frames that are kept for a live camera. 12 MB.
const MAX_REMOVED: usize = 1 << 17;

/// Removed keyframes, each with its place relative to a keyframe that exists. Ids are never reused.
#[derive(Debug, Clone, Default)]
pub struct Removed {
    /// Ascending by id.
    entries: Vec<Entry>,
    /// Number of removals so far.
    count: u64,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    id: u32,
    /// Number of removals before this one.
    order: u64,
    /// A keyframe that exists, and this one's pose in its frame.
    keyframe: u32,
    pose: Sim3,
}

impl Removed {
    /// Records that keyframe `id` was removed, which is at `pose` in the frame of `keyframe`, an existing one. Places
    /// relative to `id` become relative to that one, so that a lookup never follows a chain.
    pub fn insert(&mut self, id: u32, keyframe: u32, pose: Sim3) {
        self.insert_bounded(id, (keyframe, pose), MAX_REMOVED);
    }

    fn insert_bounded(&mut self, id: u32, (keyframe, pose): (u32, Sim3), max: usize) {
        for entry in self.entries.iter_mut().filter(|e| e.keyframe == id) {
            entry.keyframe = keyframe;
            entry.pose = pose * entry.pose;
        }
        if self.entries.len() >= max {
            let kept = self.count.saturating_sub(max as u64 / 2);
            self.entries.retain(|entry| entry.order >= kept);
        }
        let order = self.count;
        self.count += 1;
        let entry = Entry {
            id,
            order,
            keyframe,
            pose,
        };
        match self.entries.binary_search_by_key(&id, |e| e.id) {
            Ok(at) => self.entries[at] = entry,
            Err(at) => self.entries.insert(at, entry),
        }
    }

    /// A keyframe that exists, and the pose of removed keyframe `id` in its frame; `None` if that was not removed, or
    /// so long ago that it is forgotten.
    pub fn place_of(&self, id: u32) -> Option<(u32, Sim3)> {
        let at = self.entries.binary_search_by_key(&id, |e| e.id).ok()?;
        let entry = self.entries.get(at)?;
        Some((entry.keyframe, entry.pose))
    }

    /// The removed keyframes, ascending by id, each with a keyframe that exists and its pose in the frame of that.
    pub fn iter(&self) -> impl Iterator<Item = (u32, (u32, Sim3))> {
        self.entries.iter().map(|e| (e.id, (e.keyframe, e.pose)))
    }
}

/// Those with the highest ids, up to the bound. Each must lead to a keyframe that exists.
impl FromIterator<(u32, (u32, Sim3))> for Removed {
    fn from_iter<I: IntoIterator<Item = (u32, (u32, Sim3))>>(removed: I) -> Self {
        let mut entries = Vec::from_iter(removed.into_iter().map(|(id, (keyframe, pose))| Entry {
            id,
            order: 0,
            keyframe,
            pose,
        }));
        entries.sort_by_key(|entry| entry.id);
        entries.dedup_by_key(|entry| entry.id);
        entries.drain(..entries.len().saturating_sub(MAX_REMOVED));
        for (entry, order) in entries.iter_mut().zip(0..) {
            entry.order = order;
        }
        let count = entries.len() as u64;
        Self { entries, count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nalgebra::Vector3;

    fn at(x: f64) -> Sim3 {
        Sim3 {
            translation: Vector3::new(x, 0.0, 0.0),
            ..Sim3::identity()
        }
    }

    fn found(removed: &Removed, id: u32) -> Option<(u32, f64)> {
        let (keyframe, pose) = removed.place_of(id)?;
        Some((keyframe, pose.translation.x))
    }

    #[test]
    fn a_place_relative_to_a_keyframe_that_goes_becomes_relative_to_its_successor() {
        let mut removed = Removed::default();
        removed.insert(4, 3, at(1.0));
        removed.insert(3, 1, at(2.0));
        assert_eq!(found(&removed, 4), Some((1, 3.0)));
        assert_eq!(found(&removed, 3), Some((1, 2.0)));
        assert_eq!(found(&removed, 1), None);
    }

    #[test]
    fn the_oldest_removals_are_forgotten_and_the_newest_half_is_kept() {
        let mut removed = Removed::default();
        for id in (0..1000).rev() {
            removed.insert_bounded(id, (5000, at(f64::from(id))), 100);
            assert!(removed.entries.len() <= 100);
        }
        for id in 0..50 {
            assert_eq!(found(&removed, id), Some((5000, f64::from(id))));
        }
        assert_eq!(found(&removed, 999), None);
    }
}
