//! The record of frames: all frames of a sequence, or the newest ones of a live camera.

use super::frame::{Pace, Place};
use super::pose_table::Anchor;
use crate::map::{FrameRecord, TrackingState};
use std::collections::VecDeque;

/// Initial capacity for a sequence, recorded without allocation; the capacity then doubles, so that
/// allocations become ever rarer.
const FIRST: usize = 4096;
/// Number of frames kept for a live camera: 36 minutes at 30 Hz, about 20 MB allocated at the
/// start.
const NEWEST: usize = 1 << 16;

/// A recorded frame.
struct Entry {
    record: FrameRecord,
    /// Its place relative to a keyframe; `None` while lost.
    anchor: Option<Anchor>,
}

/// The frames in order.
pub struct History {
    entries: VecDeque<Entry>,
    /// Number of frames dropped before the first entry.
    forgotten: usize,
    /// Maximum number of entries.
    max: usize,
}

impl History {
    /// Keeps every frame of a sequence, or the newest ones of a live camera.
    pub fn new(pace: Pace) -> Self {
        match pace {
            Pace::EveryFrame => Self::with_limits(FIRST, usize::MAX),
            Pace::Live => Self::with_limits(NEWEST, NEWEST),
        }
    }

    fn with_limits(room: usize, max: usize) -> Self {
        Self {
            entries: VecDeque::with_capacity(room),
            forgotten: 0,
            max,
        }
    }

    /// Appends a frame; drops the oldest beyond the maximum.
    pub fn record(&mut self, record: FrameRecord, anchor: Option<Anchor>) {
        if self.entries.len() >= self.max {
            self.entries.pop_front();
            self.forgotten += 1;
        }
        self.entries.push_back(Entry { record, anchor });
    }

    /// Number of the next frame, counted from 0 since the last [`History::clear`].
    pub fn next_number(&self) -> usize {
        self.forgotten + self.entries.len()
    }

    /// Records that frame `number` was relocalised at `place` after it had been recorded as lost.
    pub fn relocalised(&mut self, number: usize, place: Place) {
        let index = number.checked_sub(self.forgotten);
        if let Some(entry) = index.and_then(|index| self.entries.get_mut(index)) {
            entry.record.state = TrackingState::Relocalised;
            entry.record.keyframe = place.keyframe;
            entry.anchor = Some(place.anchor);
        }
    }

    /// Records that no frame so far has a place any more, because the map is gone.
    pub fn all_lost(&mut self) {
        for entry in &mut self.entries {
            entry.anchor = None;
            entry.record.keyframe = None;
            entry.record.state = TrackingState::Lost;
        }
    }

    /// Records of the frames that are kept, in order, with their places.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&FrameRecord, Option<&Anchor>)> {
        let entries = self.entries.iter();
        entries.map(|entry| (&entry.record, entry.anchor.as_ref()))
    }

    /// Forgets every frame.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.forgotten = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Sim3;

    fn record(history: &mut History, index: usize) {
        let record = FrameRecord::lost(index, Default::default(), Sim3::identity());
        history.record(record, None);
    }

    fn kept(history: &History) -> Vec<usize> {
        history.iter().map(|(record, _)| record.index).collect()
    }

    #[test]
    fn the_newest_stay_under_their_numbers_and_nothing_grows() {
        let mut history = History::with_limits(3, 3);
        assert_eq!(history.next_number(), 0);
        let room = history.entries.capacity();
        for index in 0..1000 {
            record(&mut history, index);
            assert_eq!(history.next_number(), index + 1);
        }
        assert_eq!(history.entries.capacity(), room);
        assert_eq!(kept(&history), [997, 998, 999]);
        // A frame that was dropped, one that is kept, and one that does not exist yet.
        for number in [996, 998, 1000] {
            history.relocalised(number, Place::of_keyframe(4));
        }
        let found = |(record, anchor): (&FrameRecord, Option<&Anchor>)| {
            (record.keyframe, record.state, anchor.copied())
        };
        let lost = (None, TrackingState::Lost, None);
        let there = (Some(4), TrackingState::Relocalised, Some(Anchor::at(4)));
        assert!(history.iter().map(found).eq([lost, there, lost]));
        history.all_lost();
        assert!(history.iter().map(found).eq([lost; 3]));
        history.clear();
        record(&mut history, 7);
        assert_eq!((history.next_number(), kept(&history)), (1, vec![7]));
    }

    #[test]
    fn a_camera_s_record_is_fixed_and_a_sequence_s_whole() {
        let mut live = History::new(Pace::Live);
        let room = live.entries.capacity();
        let mut whole = History::new(Pace::EveryFrame);
        for index in 0..NEWEST + 10 {
            record(&mut live, index);
            record(&mut whole, index);
        }
        assert_eq!((live.iter().len(), live.entries.capacity()), (NEWEST, room));
        assert_eq!(live.iter().next().map(|(r, _)| r.index), Some(10));
        assert_eq!(whole.iter().len(), NEWEST + 10);
    }
}
