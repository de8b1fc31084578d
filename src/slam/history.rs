//! The record of frames: all frames of a sequence, or the newest ones of a live camera.

use super::frame::{Pace, Place};
use super::pose_table::Anchor;
use crate::geometry::Sim3;
use crate::map::{FrameRecord, TrackingState};
use crate::time::{StageTimes, Stamp};
use std::collections::VecDeque;

/// Initial capacity for a sequence, recorded without allocation. The capacity then grows by as much, later by
/// [`GROWTH`]: doubling would hold up to as much again unused.
const FIRST: usize = 4096;
/// Part of the frames by which the capacity grows at least: allocations become ever rarer.
const GROWTH: usize = 8;
/// Number of frames kept for a live camera: 36 minutes at 30 Hz, about 10 MB allocated at the
/// start.
const NEWEST: usize = 1 << 16;

/// A recorded frame, in less than half of a [`FrameRecord`]'s memory: there are many.
struct Entry {
    stamp: Stamp,
    index: usize,
    place: Recorded,
    /// Milliseconds of [`StageTimes`].
    times: [f32; 8],
    match_fraction: f32,
    unique_fraction: f32,
    iterations: u32,
    submap: u32,
    keyframe: Option<u32>,
    state: TrackingState,
}

/// Where a frame was.
enum Recorded {
    /// Relative to a keyframe, whose pose may change; and where that was, should the map lose the keyframe.
    At(Anchor, [f32; 8]),
    /// The last known pose, while lost.
    Last(Sim3),
}

fn rounded(pose: &Sim3) -> [f32; 8] {
    pose.to_array().map(|v| v as f32)
}

impl Entry {
    fn new(record: &FrameRecord, anchor: Option<Anchor>) -> Self {
        let t = &record.times;
        let times = [
            t.preprocess,
            t.encode,
            t.decode,
            t.matching,
            t.tracking,
            t.fusion,
            t.mapping,
            t.total,
        ];
        Self {
            stamp: record.stamp,
            index: record.index,
            place: match anchor {
                Some(anchor) => Recorded::At(anchor, rounded(&record.world_from_camera)),
                None => Recorded::Last(record.world_from_camera),
            },
            times: times.map(|ms| ms as f32),
            match_fraction: record.match_fraction,
            unique_fraction: record.unique_fraction,
            iterations: record.iterations,
            submap: record.submap,
            keyframe: record.keyframe,
            state: record.state,
        }
    }

    /// The record; with an anchor, its pose is rounded to `f32`.
    fn unpacked(&self) -> (FrameRecord, Option<Anchor>) {
        let (world_from_camera, anchor) = match &self.place {
            Recorded::At(anchor, pose) => (Sim3::from_array(pose.map(f64::from)), Some(*anchor)),
            Recorded::Last(pose) => (*pose, None),
        };
        let [
            preprocess,
            encode,
            decode,
            matching,
            tracking,
            fusion,
            mapping,
            total,
        ] = self.times.map(f64::from);
        let record = FrameRecord {
            index: self.index,
            stamp: self.stamp,
            state: self.state,
            world_from_camera,
            keyframe: self.keyframe,
            submap: self.submap,
            match_fraction: self.match_fraction,
            unique_fraction: self.unique_fraction,
            iterations: self.iterations,
            times: StageTimes {
                preprocess,
                encode,
                decode,
                matching,
                tracking,
                fusion,
                mapping,
                total,
            },
        };
        (record, anchor)
    }
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
    pub fn record(&mut self, record: &FrameRecord, anchor: Option<Anchor>) {
        if self.entries.len() >= self.max {
            self.entries.pop_front();
            self.forgotten += 1;
        }
        if self.entries.len() == self.entries.capacity() {
            let more = FIRST.max(self.entries.len() / GROWTH);
            self.entries.reserve_exact(more);
        }
        self.entries.push_back(Entry::new(record, anchor));
    }

    /// Number of the next frame, counted from 0 since the last [`History::clear`].
    pub fn next_number(&self) -> usize {
        self.forgotten + self.entries.len()
    }

    /// Time of frame `number`, if it is kept.
    pub fn stamp_of(&self, number: usize) -> Option<Stamp> {
        let index = number.checked_sub(self.forgotten)?;
        self.entries.get(index).map(|entry| entry.stamp)
    }

    /// Records that frame `number` was relocalised at `place` after it had been recorded as lost.
    pub fn relocalised(&mut self, number: usize, place: Place) {
        let index = number.checked_sub(self.forgotten);
        if let Some(entry) = index.and_then(|index| self.entries.get_mut(index)) {
            entry.state = TrackingState::Relocalised;
            entry.keyframe = place.keyframe;
            let last = match &entry.place {
                Recorded::At(_, pose) => *pose,
                Recorded::Last(pose) => rounded(pose),
            };
            entry.place = Recorded::At(place.anchor, last);
        }
    }

    /// Records that no frame so far has a place any more, because the map is gone.
    pub fn all_lost(&mut self) {
        for entry in &mut self.entries {
            let (last, _) = entry.unpacked();
            entry.place = Recorded::Last(last.world_from_camera);
            entry.keyframe = None;
            entry.state = TrackingState::Lost;
        }
    }

    /// Records of the frames that are kept, in order, and their places relative to keyframes, if they have one: their
    /// own poses are then rounded.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (FrameRecord, Option<Anchor>)> {
        self.entries.iter().map(Entry::unpacked)
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

    fn record(history: &mut History, index: usize) {
        let record = FrameRecord::lost(index, Default::default(), Sim3::identity());
        history.record(&record, None);
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
        let found = |(record, anchor): (FrameRecord, Option<Anchor>)| {
            (record.keyframe, record.state, anchor)
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
        let spare = whole.entries.capacity() - whole.entries.len();
        assert!(
            spare <= FIRST.max(NEWEST / GROWTH),
            "{spare} entries are unused"
        );
    }
}
