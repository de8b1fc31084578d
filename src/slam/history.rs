//! The frames so far: all of them for a sequence, the newest for a camera that never ends.

use super::keyframe::Anchor;
use super::system::Pace;
use crate::map::FrameRecord;
use std::collections::VecDeque;

/// Frames of a sequence that are recorded without allocating; then the record doubles, so that a frame that
/// allocates for it becomes ever rarer.
const FIRST: usize = 4096;
/// Frames that are kept of a camera that never ends: 36 minutes at 30 Hz, some 20 MB that are taken at the start.
const NEWEST: usize = 1 << 16;

/// A frame and where it is.
pub struct Entry {
    /// What became of it.
    pub record: FrameRecord,
    /// Where it is, relative to a keyframe; `None` while lost.
    pub anchor: Option<Anchor>,
}

/// The frames in order.
pub struct History {
    entries: VecDeque<Entry>,
    /// Frames before the first entry.
    forgotten: usize,
    /// Entries that are kept.
    most: usize,
}

impl History {
    /// Keeps every frame of a sequence, or the newest of a camera.
    pub fn new(pace: Pace) -> Self {
        match pace {
            Pace::EveryFrame => Self::of(FIRST, usize::MAX),
            Pace::Live => Self::of(NEWEST, NEWEST),
        }
    }

    fn of(room: usize, most: usize) -> Self {
        Self {
            entries: VecDeque::with_capacity(room),
            forgotten: 0,
            most,
        }
    }

    /// Adds a frame; the oldest is forgotten where there are too many.
    pub fn push(&mut self, entry: Entry) {
        if self.entries.len() >= self.most {
            self.entries.pop_front();
            self.forgotten += 1;
        }
        self.entries.push_back(entry);
    }

    /// Number of the newest frame, counted from 0 since the last [`History::clear`].
    pub fn newest(&self) -> Option<usize> {
        (self.forgotten + self.entries.len()).checked_sub(1)
    }

    /// The newest frame.
    pub fn last_mut(&mut self) -> Option<&mut Entry> {
        self.entries.back_mut()
    }

    /// The frame before the newest.
    pub fn before_last(&self) -> Option<&Entry> {
        self.entries.iter().nth_back(1)
    }

    /// Frame `number`, unless it is forgotten.
    pub fn get(&self, number: usize) -> Option<&Entry> {
        self.entries.get(number.checked_sub(self.forgotten)?)
    }

    /// Frame `number`, unless it is forgotten.
    pub fn get_mut(&mut self, number: usize) -> Option<&mut Entry> {
        self.entries.get_mut(number.checked_sub(self.forgotten)?)
    }

    /// The frames that are kept.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Entry> {
        self.entries.iter()
    }

    /// The frames that are kept.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.entries.iter_mut()
    }

    /// Forgets them all.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.forgotten = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Sim3;

    fn entry(index: usize) -> Entry {
        Entry {
            record: FrameRecord::lost(index, Default::default(), Sim3::identity()),
            anchor: None,
        }
    }

    fn kept(history: &History) -> Vec<usize> {
        history.iter().map(|e| e.record.index).collect()
    }

    #[test]
    fn the_newest_stay_under_their_numbers_and_nothing_grows() {
        let mut history = History::of(3, 3);
        assert_eq!(history.newest(), None);
        let room = history.entries.capacity();
        for index in 0..1000 {
            history.push(entry(index));
            assert_eq!(history.newest(), Some(index));
        }
        assert_eq!(history.entries.capacity(), room);
        assert_eq!(kept(&history), [997, 998, 999]);
        let at = |history: &mut History, n| history.get_mut(n).map(|e| e.record.index);
        assert_eq!(at(&mut history, 998), Some(998));
        assert_eq!(at(&mut history, 996), None);
        assert_eq!(at(&mut history, 1000), None);
        assert_eq!(history.before_last().map(|e| e.record.index), Some(998));
        history.clear();
        history.push(entry(7));
        assert_eq!((history.newest(), kept(&history)), (Some(0), vec![7]));
    }

    #[test]
    fn a_camera_s_record_is_fixed_and_a_sequence_s_whole() {
        let mut live = History::new(Pace::Live);
        let room = live.entries.capacity();
        let mut whole = History::new(Pace::EveryFrame);
        for index in 0..NEWEST + 10 {
            live.push(entry(index));
            whole.push(entry(index));
        }
        assert_eq!((live.iter().len(), live.entries.capacity()), (NEWEST, room));
        assert_eq!(live.iter().next().map(|e| e.record.index), Some(10));
        assert_eq!(whole.iter().len(), NEWEST + 10);
    }
}
