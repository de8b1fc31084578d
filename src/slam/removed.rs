//! Places of removed keyframes relative to keyframes that still exist.

use crate::geometry::Sim3;
use std::sync::Arc;

/// Maximum number of removed keyframes that are remembered; the older half is forgotten beyond it. A frame
/// makes at most one keyframe, and a keyframe is removed after the last frame that was tracked against it, so half
/// of this covers the 65,536 frames that are kept for a live camera. 11 MB.
const MAX_REMOVED: usize = 1 << 17;

/// Number of ids whose entries are shared as a whole by the tables that refer to them: a removal copies one block, not
/// everything that was ever removed.
const BLOCK: u32 = 128;

/// Maximum number of keyframes that tracking has made and mapping does not yet have, with room to spare.
const UNDER_WAY: u32 = 64;

/// Number of keyframes after which those that can be forgotten are looked for again.
const SWEEP: u32 = 128;

/// Removed keyframes, each with its place relative to a keyframe that exists. Ids are never reused.
#[derive(Debug, Clone, Default)]
pub struct Removed {
    /// Ascending by id; none is empty.
    blocks: Vec<Block>,
    /// Number of entries.
    len: usize,
    /// Number of removals so far.
    count: u64,
    /// Number of keyframes at which those that can be forgotten are looked for next.
    next_sweep: u32,
}

/// The entries with ids from `BLOCK * number`, ascending.
#[derive(Debug, Clone)]
struct Block {
    number: u32,
    entries: Arc<Vec<Entry>>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    id: u32,
    /// A keyframe that exists, and this one's pose in its frame.
    keyframe: u32,
    pose: Sim3,
    /// Number of removals before this one.
    order: u64,
    /// The newest keyframe at that time.
    newest: u32,
}

impl Removed {
    /// Records that keyframe `id` was removed, which is at `pose` in the frame of `keyframe`, an existing one, while
    /// `newest` was the newest one. Places relative to `id` become relative to that one, so that a lookup never follows
    /// a chain.
    pub fn insert(&mut self, id: u32, keyframe: u32, pose: Sim3, newest: u32) {
        self.insert_bounded((id, newest), (keyframe, pose), MAX_REMOVED);
    }

    fn insert_bounded(
        &mut self,
        (id, newest): (u32, u32),
        (keyframe, pose): (u32, Sim3),
        max: usize,
    ) {
        for block in &mut self.blocks {
            if block.entries.iter().any(|e| e.keyframe == id) {
                let entries = Arc::make_mut(&mut block.entries).iter_mut();
                for entry in entries.filter(|e| e.keyframe == id) {
                    entry.keyframe = keyframe;
                    entry.pose = pose * entry.pose;
                }
            }
        }
        if self.len >= max {
            let kept = self.count.saturating_sub(max as u64 / 2);
            self.retain(|entry| entry.order >= kept);
        }
        let order = self.count;
        self.count += 1;
        self.put(Entry {
            id,
            keyframe,
            pose,
            order,
            newest,
        });
    }

    fn put(&mut self, entry: Entry) {
        let number = entry.id / BLOCK;
        let at = match self.blocks.binary_search_by_key(&number, |b| b.number) {
            Ok(at) => at,
            Err(at) => {
                let entries = Arc::default();
                self.blocks.insert(at, Block { number, entries });
                at
            }
        };
        let Some(block) = self.blocks.get_mut(at) else {
            return;
        };
        let entries = Arc::make_mut(&mut block.entries);
        match entries.binary_search_by_key(&entry.id, |e| e.id) {
            Ok(at) => entries[at] = entry,
            Err(at) => {
                entries.insert(at, entry);
                self.len += 1;
            }
        }
    }

    fn retain(&mut self, keep: impl Fn(&Entry) -> bool) {
        for block in &mut self.blocks {
            if !block.entries.iter().all(&keep) {
                let entries = Arc::make_mut(&mut block.entries);
                entries.retain(&keep);
                entries.shrink_to_fit();
            }
        }
        self.blocks.retain(|block| !block.entries.is_empty());
        self.len = self.blocks.iter().map(|b| b.entries.len()).sum();
    }

    /// Whether [`Removed::forget`] is due, when `made` keyframes had been made at the oldest frame that is kept.
    pub fn has_to_forget(&self, made: u32) -> bool {
        self.len > 0 && made >= self.next_sweep
    }

    /// Forgets keyframes that were removed before the oldest frame that is kept, when `made` keyframes had been made: no
    /// frame refers to them any more.
    pub fn forget(&mut self, made: u32) {
        self.retain(|entry| entry.newest.saturating_add(UNDER_WAY) >= made);
        self.next_sweep = made.saturating_add(SWEEP);
    }

    /// A keyframe that exists, and the pose of removed keyframe `id` in its frame; `None` if that was not removed, or
    /// is forgotten.
    pub fn place_of(&self, id: u32) -> Option<(u32, Sim3)> {
        let number = id / BLOCK;
        let block = self.blocks.binary_search_by_key(&number, |b| b.number);
        let entries = &self.blocks.get(block.ok()?)?.entries;
        let at = entries.binary_search_by_key(&id, |e| e.id).ok()?;
        let entry = entries.get(at)?;
        Some((entry.keyframe, entry.pose))
    }

    /// The removed keyframes, ascending by id, each with a keyframe that exists and its pose in the frame of that.
    pub fn iter(&self) -> impl Iterator<Item = (u32, (u32, Sim3))> {
        let entries = self.blocks.iter().flat_map(|b| b.entries.iter());
        entries.map(|e| (e.id, (e.keyframe, e.pose)))
    }
}

/// Those with the highest ids, up to the bound. Each must lead to a keyframe that exists.
impl FromIterator<(u32, (u32, Sim3))> for Removed {
    fn from_iter<I: IntoIterator<Item = (u32, (u32, Sim3))>>(removed: I) -> Self {
        let mut list = Vec::from_iter(removed);
        list.sort_by_key(|(id, _)| *id);
        list.dedup_by_key(|(id, _)| *id);
        list.drain(..list.len().saturating_sub(MAX_REMOVED));
        let newest = list.last().map_or(0, |(id, _)| *id);
        let mut removed = Self::default();
        for (id, (keyframe, pose)) in list {
            let order = removed.count;
            removed.count += 1;
            removed.put(Entry {
                id,
                keyframe,
                pose,
                order,
                newest,
            });
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::at;
    use super::*;

    fn found(removed: &Removed, id: u32) -> Option<(u32, f64)> {
        let (keyframe, pose) = removed.place_of(id)?;
        Some((keyframe, pose.translation.x))
    }

    #[test]
    fn a_place_relative_to_a_keyframe_that_goes_becomes_relative_to_its_successor() {
        let mut removed = Removed::default();
        removed.insert(4, 3, at(1.0), 9);
        removed.insert(3, 1, at(2.0), 9);
        assert_eq!(found(&removed, 4), Some((1, 3.0)));
        assert_eq!(found(&removed, 3), Some((1, 2.0)));
        assert_eq!(found(&removed, 1), None);
    }

    #[test]
    fn the_oldest_removals_are_forgotten_and_the_newest_half_is_kept() {
        let mut removed = Removed::default();
        for id in (0..1000).rev() {
            removed.insert_bounded((id, 5000), (5000, at(f64::from(id))), 100);
            assert!(removed.len <= 100 && removed.iter().count() == removed.len);
        }
        for id in 0..50 {
            assert_eq!(found(&removed, id), Some((5000, f64::from(id))));
        }
        assert_eq!(found(&removed, 999), None);
        assert!(removed.iter().is_sorted_by_key(|(id, _)| id));
        let again = Removed::from_iter(removed.iter());
        assert!(again.iter().eq(removed.iter()));
    }

    #[test]
    fn a_copy_shares_what_a_removal_does_not_change() {
        let mut removed = Removed::default();
        for id in 0..1000 {
            removed.insert(id, 5000, at(0.0), 5000);
        }
        let table = removed.clone();
        let copied = |removed: &Removed| -> Vec<u32> {
            let pairs = table.blocks.iter().zip(&removed.blocks);
            let copied = pairs.filter(|(a, b)| !Arc::ptr_eq(&a.entries, &b.entries));
            copied.map(|(a, _)| a.number).collect()
        };
        removed.insert(3000, 5000, at(1.0), 5000);
        assert!(copied(&removed).is_empty());
        removed.insert(130, 5000, at(1.0), 5000);
        assert_eq!(copied(&removed), [1]);
        assert_eq!(
            (found(&table, 130), found(&removed, 130)),
            (Some((5000, 0.0)), Some((5000, 1.0)))
        );
    }

    #[test]
    fn what_no_frame_refers_to_any_more_is_forgotten() {
        let mut removed = Removed::default();
        assert!(!removed.has_to_forget(u32::MAX));
        for id in 0..1000 {
            // Each is removed when there are ten younger ones.
            removed.insert(id, 5000, at(0.0), id + 10);
        }
        assert!(removed.has_to_forget(500));
        removed.forget(500);
        // Tracking may have made 64 keyframes that mapping did not know.
        assert_eq!(removed.iter().next().map(|(id, _)| id), Some(426));
        assert_eq!(found(&removed, 425), None);
        assert!(!removed.has_to_forget(627) && removed.has_to_forget(628));
        removed.forget(0);
        assert_eq!(removed.len, 574);
    }
}
