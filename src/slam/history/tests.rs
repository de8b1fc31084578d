use super::*;
use crate::geometry::Sim3;
use crate::map::TrackingState;
use std::fs::File;

fn record(history: &mut History, index: usize) {
    let stamp = Stamp {
        nanos: index as i64,
    };
    let record = FrameRecord::lost(index, stamp, Sim3::identity());
    history.record(&record, None, index as u32 / 10);
}

fn kept(history: &History) -> Vec<usize> {
    history.iter().map(|(record, _)| record.index).collect()
}

type Found = (Option<u32>, TrackingState, Option<Anchor>);
const LOST: Found = (None, TrackingState::Lost, None);

fn found(history: &History) -> Vec<Found> {
    let found = history.iter();
    found.map(|(r, a)| (r.keyframe, r.state, a)).collect()
}

#[test]
fn the_newest_stay_under_their_numbers_and_nothing_grows() {
    let mut history = History::with_room(Older::Dropped, 3);
    assert_eq!((history.next_number(), history.oldest_made()), (0, 0));
    let room = history.entries.capacity();
    for index in 0..1000 {
        record(&mut history, index);
        assert_eq!(history.next_number(), index + 1);
    }
    assert_eq!(history.entries.capacity(), room);
    assert_eq!(kept(&history), [997, 998, 999]);
    assert_eq!(history.oldest_made(), 99);
    // A frame that was dropped, one that is kept, and one that does not exist yet.
    for number in [996, 998, 1000] {
        history.relocalised(number, Place::of_keyframe(4));
    }
    let there = (Some(4), TrackingState::Relocalised, Some(Anchor::at(4)));
    assert_eq!(found(&history), [LOST, there, LOST]);
    history.all_lost();
    assert_eq!(found(&history), [LOST; 3]);
    assert_eq!(history.oldest_made(), 0);
    history.clear();
    record(&mut history, 7);
    assert_eq!((history.next_number(), kept(&history)), (1, vec![7]));
}

#[test]
fn a_camera_s_record_is_fixed_and_a_sequence_s_whole_but_not_in_memory() {
    let mut live = History::new(Pace::Live);
    let mut whole = History::new(Pace::EveryFrame);
    let room = [live.entries.capacity(), whole.entries.capacity()];
    for index in 0..NEWEST + 10 {
        record(&mut live, index);
        record(&mut whole, index);
    }
    let after = [live.entries.capacity(), whole.entries.capacity()];
    assert_eq!((room, room[1]), (after, IN_MEMORY + BLOCK));
    assert_eq!(kept(&live), Vec::from_iter(10..NEWEST + 10));
    assert_eq!(kept(&whole), Vec::from_iter(0..NEWEST + 10));
    // Frames refer to every keyframe, the removed ones too.
    assert_eq!(whole.oldest_made(), 0);
}

#[test]
fn frames_in_the_file_are_as_those_in_memory() {
    let mut history = History::new(Pace::EveryFrame);
    let count = IN_MEMORY + 3 * BLOCK;
    (0..count).for_each(|index| record(&mut history, index));
    let in_file = history.file().map(Archive::count);
    assert_eq!(in_file, Some(2 * BLOCK));
    let place = Place::of_keyframe(4);
    let there = (Some(4), TrackingState::Relocalised, Some(Anchor::at(4)));
    let changed = [0, 1000, 1100, count - 1];
    for number in changed {
        history.relocalised(number, place);
        let stamp = history.stamp_of(number);
        assert_eq!(stamp.map(|s| s.nanos), Some(number as i64));
    }
    assert_eq!(history.stamp_of(count), None);
    let expected = |number| {
        if changed.contains(&number) {
            there
        } else {
            LOST
        }
    };
    assert_eq!(found(&history), Vec::from_iter((0..count).map(expected)));
    history.all_lost();
    // What is found in the next map is not lost with the one before.
    (count..count + BLOCK).for_each(|index| record(&mut history, index));
    history.relocalised(count, place);
    let expected = |number| if number == count { there } else { LOST };
    let all = Vec::from_iter((0..count + BLOCK).map(expected));
    assert_eq!(found(&history), all);
    history.clear();
    record(&mut history, 7);
    assert_eq!((history.next_number(), kept(&history)), (1, vec![7]));
}

#[test]
fn without_a_file_every_frame_stays_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("read-only");
    std::fs::write(&path, "").unwrap();
    // Every write fails, as on a full disk.
    let refuses = Archive::of(File::open(&path).unwrap().into());
    let mut history = History::new(Pace::EveryFrame);
    history.older = Older::Filed(Some(refuses));
    let count = 3 * IN_MEMORY;
    for index in 0..count {
        record(&mut history, index);
        assert_eq!(history.next_number(), index + 1);
    }
    assert_eq!(kept(&history), Vec::from_iter(0..count));
    let spare = history.entries.capacity() - count;
    assert!(spare <= BLOCK.max(count / GROWTH), "{spare} are unused");
    history.relocalised(5, Place::of_keyframe(4));
    assert_eq!(found(&history)[5].0, Some(4));
    // The next sequence tries again.
    history.clear();
    assert!(matches!(history.older, Older::Filed(None)));
}
