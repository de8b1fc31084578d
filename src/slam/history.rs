//! The record of frames: all frames of a sequence, or the newest ones of a live camera.

mod archive;
mod entry;

use super::frame::{Pace, Place};
use super::pose_table::Anchor;
use crate::map::FrameRecord;
use crate::time::Stamp;
use archive::{Archive, BLOCK};
use entry::Entry;
use std::collections::VecDeque;
use std::io;

/// Number of frames of a sequence that stay in memory: the older ones go to a file, so that memory does not grow with
/// time. Frames that are relocalised later are among these.
const IN_MEMORY: usize = 2048;
/// Part of the frames by which the capacity grows at least if there is no file: allocations become ever rarer.
const GROWTH: usize = 8;
/// Number of frames kept for a live camera: 36 minutes at 30 Hz, about 12 MB allocated at the
/// start.
const NEWEST: usize = 1 << 16;

/// The frames in order.
pub struct History {
    /// The newest frames.
    entries: VecDeque<Entry>,
    older: Older,
    /// Number of frames before `entries`, in the file or dropped.
    before: usize,
    /// Number of first frames in the file whose map is gone.
    lost: usize,
}

/// What becomes of frames that are not among the newest.
enum Older {
    /// They are forgotten.
    Dropped,
    /// They go to a file, which is created when there are some.
    Filed(Option<Archive>),
    /// They stay in memory, after those in the file, because the file failed.
    Kept(Option<Archive>),
}

impl History {
    /// Keeps every frame of a sequence, or the newest ones of a live camera.
    pub fn new(pace: Pace) -> Self {
        let (older, room) = match pace {
            Pace::EveryFrame => (Older::Filed(None), IN_MEMORY + BLOCK),
            Pace::Live => (Older::Dropped, NEWEST),
        };
        Self::with_room(older, room)
    }

    fn with_room(older: Older, room: usize) -> Self {
        Self {
            entries: VecDeque::with_capacity(room),
            older,
            before: 0,
            lost: 0,
        }
    }

    /// Appends a frame, after which `made` keyframes have been made. If there is no room, the oldest go to the file, or
    /// the oldest one is dropped.
    pub fn record(&mut self, record: &FrameRecord, anchor: Option<Anchor>, made: u32) {
        if self.entries.len() == self.entries.capacity() {
            self.make_room();
        }
        self.entries.push_back(Entry::new(record, anchor, made));
    }

    fn make_room(&mut self) {
        match &mut self.older {
            Older::Dropped => {
                self.entries.pop_front();
                self.before += 1;
            }
            Older::Filed(file) => {
                if let Err(error) = archive(file, &self.entries) {
                    tracing::warn!(
                        "the record of frames cannot be written to a temporary file and stays in memory: {error}"
                    );
                    self.older = Older::Kept(file.take());
                    return self.make_room();
                }
                self.entries.drain(..BLOCK.min(self.entries.len()));
                self.before = file.as_ref().map_or(0, Archive::count);
            }
            Older::Kept(_) => {
                let more = BLOCK.max(self.entries.len() / GROWTH);
                self.entries.reserve_exact(more);
            }
        }
    }

    fn file(&self) -> Option<&Archive> {
        match &self.older {
            Older::Dropped => None,
            Older::Filed(file) | Older::Kept(file) => file.as_ref(),
        }
    }

    /// Number of the next frame, counted from 0 since the last [`History::clear`].
    pub fn next_number(&self) -> usize {
        self.before + self.entries.len()
    }

    /// Number of keyframes that had been made at the oldest frame that is kept.
    pub fn oldest_made(&self) -> u32 {
        match (&self.older, self.before) {
            (Older::Dropped, 1..) => self.entries.front().map_or(0, |entry| entry.made),
            _ => 0,
        }
    }

    /// Time of frame `number`, if it is kept.
    pub fn stamp_of(&self, number: usize) -> Option<Stamp> {
        match number.checked_sub(self.before) {
            Some(index) => self.entries.get(index).map(|entry| entry.stamp),
            None => Some(self.file()?.read(number).ok()?.stamp),
        }
    }

    /// Records that frame `number` was relocalised at `place` after it had been recorded as lost.
    pub fn relocalised(&mut self, number: usize, place: Place) {
        let change = |entry: &mut Entry| entry.relocalise(place.anchor, place.keyframe);
        match number.checked_sub(self.before) {
            Some(index) => self.entries.get_mut(index).into_iter().for_each(change),
            None => {
                if let Older::Filed(Some(file)) | Older::Kept(Some(file)) = &mut self.older
                    && let Err(error) = file.change(number, change)
                {
                    tracing::warn!("frame {number} stays lost in the record of frames: {error}");
                }
            }
        }
    }

    /// Records that no frame so far has a place any more, because the map is gone.
    pub fn all_lost(&mut self) {
        self.entries.iter_mut().for_each(Entry::lose);
        self.lost = self.file().map_or(0, Archive::count);
    }

    /// Records of the frames that are kept, in order, and their places relative to keyframes, if they have one: their
    /// own poses are then rounded. Frames that cannot be read from the file are left out.
    pub fn iter(&self) -> impl Iterator<Item = (FrameRecord, Option<Anchor>)> {
        let older = self.file().into_iter().flat_map(Archive::iter);
        let older = older.filter_map(|entry| match entry {
            Ok((number, mut entry)) => {
                if number < self.lost {
                    entry.lose();
                }
                Some(entry.unpacked())
            }
            Err(error) => {
                tracing::error!("some frames cannot be read from their temporary file: {error}");
                None
            }
        });
        older.chain(self.entries.iter().map(Entry::unpacked))
    }

    /// Forgets every frame.
    pub fn clear(&mut self) {
        let (older, room) = match &self.older {
            Older::Dropped => return self.forget(),
            Older::Filed(_) | Older::Kept(_) => (Older::Filed(None), IN_MEMORY + BLOCK),
        };
        self.forget();
        self.older = older;
        self.entries.shrink_to(room);
    }

    fn forget(&mut self) {
        self.entries.clear();
        (self.before, self.lost) = (0, 0);
    }
}

/// Appends the oldest [`BLOCK`] entries to the file.
fn archive(file: &mut Option<Archive>, entries: &VecDeque<Entry>) -> io::Result<()> {
    let file = match file {
        Some(file) => file,
        None => file.insert(Archive::new()?),
    };
    file.append(entries.iter().take(BLOCK))
}

#[cfg(test)]
mod tests;
