//! The keyframes' points for pages: read from mapping while a page is open, a few at a time, and kept as messages.

use super::feed::{Feed, Request, Scene};
use crate::map::MapSnapshot;
use crate::page::{Cloud, MAX_POINTS, messages};
use crate::slam::PoseTable;
use axum::body::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};

/// Maximum number of keyframes whose points a page shows: two million points. A larger map is shown by every second
/// keyframe, or third, and so on.
const MAX_KEYFRAMES: usize = 400;
/// Number of keyframes read at once: each has several megabytes.
const BATCH: usize = 2;

/// A keyframe's points, and how often they were read.
#[derive(Debug, Clone)]
pub struct Kept {
    pub revision: u32,
    pub message: Bytes,
    /// Whether tracking may still change the keyframe.
    open: bool,
}

#[cfg(test)]
impl Kept {
    /// Points that stay as they are.
    pub fn closed(revision: u32, message: Bytes) -> Self {
        Self {
            revision,
            message,
            open: false,
        }
    }
}

/// A request under way.
struct Asked {
    /// Dropped to withdraw it.
    _alive: Arc<()>,
    reply: Receiver<MapSnapshot>,
    newest: u32,
}

/// The points of one map.
#[derive(Default)]
pub struct Clouds {
    kept: BTreeMap<u32, Kept>,
    asked: Option<Asked>,
}

/// The keyframes whose points are shown, at most [`MAX_KEYFRAMES`].
pub fn shown(table: &PoseTable) -> BTreeSet<u32> {
    every(table, MAX_KEYFRAMES)
}

/// At most `max` of the map's keyframes, evenly.
pub fn every(table: &PoseTable, max: usize) -> BTreeSet<u32> {
    let stride = table.ids.len().div_ceil(max).max(1) as u32;
    let chosen = table.ids.iter().rev().filter(|id| *id % stride == 0);
    chosen.take(max).copied().collect()
}

impl Clouds {
    /// Forgets the map.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// The points that are known.
    pub fn kept(&self) -> &BTreeMap<u32, Kept> {
        &self.kept
    }

    /// Takes what mapping has replied, and asks for what is missing.
    pub fn look(&mut self, feed: &Feed, scene: &Scene, table: &PoseTable) {
        let shown = shown(table);
        self.kept.retain(|id, _| shown.contains(id));
        if let Some(asked) = self.asked.take() {
            match asked.reply.try_recv() {
                Ok(map) => self.take(&map, asked.newest, scene.min_confidence),
                Err(TryRecvError::Empty) => return self.asked = Some(asked),
                // Mapping is too busy: it is asked again.
                Err(TryRecvError::Disconnected) => {}
            }
        }
        let Some(newest) = table.newest() else {
            return;
        };
        let lacks = |id: &u32| match self.kept.get(id) {
            Some(kept) => kept.open && *id < newest,
            None => true,
        };
        // The newest first: that is where the camera is.
        let ids: Vec<u32> = shown
            .iter()
            .rev()
            .copied()
            .filter(lacks)
            .take(BATCH)
            .collect();
        if ids.is_empty() {
            return;
        }
        let (sender, reply) = sync_channel(1);
        let alive = Arc::new(());
        feed.request(Request {
            ids,
            asked: Arc::downgrade(&alive),
            reply: sender,
        });
        self.asked = Some(Asked {
            _alive: alive,
            reply,
            newest,
        });
    }

    /// Adds keyframes that were read; tracking may still change those from `newest` on.
    pub fn take(&mut self, map: &MapSnapshot, newest: u32, min_confidence: f32) {
        for keyframe in &map.keyframes {
            let intrinsics = map.intrinsics.as_ref();
            let points = Cloud::of(&keyframe.view(), intrinsics, min_confidence, MAX_POINTS);
            let before = self.kept.get(&keyframe.id);
            let revision = before.map_or(1, |kept| kept.revision.wrapping_add(1));
            let kept = Kept {
                revision,
                message: messages::cloud(keyframe.id, revision, &points).into(),
                open: keyframe.id >= newest,
            };
            self.kept.insert(keyframe.id, kept);
        }
    }

    /// Completes the points from a map that no longer changes.
    pub fn complete(&mut self, map: &MapSnapshot, table: &PoseTable, min_confidence: f32) {
        let shown = shown(table);
        let lacks = |id: u32| shown.contains(&id) && self.kept.get(&id).is_none_or(|k| k.open);
        let lacking = map.keyframes.iter().filter(|k| lacks(k.id));
        let lacking: Vec<_> = lacking.cloned().collect();
        for keyframe in lacking {
            let one = MapSnapshot {
                intrinsics: map.intrinsics,
                keyframes: vec![keyframe],
                ..MapSnapshot::default()
            };
            self.take(&one, u32::MAX, min_confidence);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_large_map_keyframes_are_shown_evenly_and_never_too_many() {
        let table = |ids: Vec<u32>| PoseTable {
            ids,
            ..PoseTable::default()
        };
        assert_eq!(shown(&table((0..399).collect())).len(), 399);
        let large = shown(&table((0..10_000).collect()));
        assert!(large.len() <= MAX_KEYFRAMES && large.len() >= MAX_KEYFRAMES - 1);
        assert!(large.contains(&0));
        // Removed keyframes leave gaps.
        let even = shown(&table((0..10_000).map(|id| id * 50).collect()));
        assert_eq!(even.len(), MAX_KEYFRAMES);
        assert!(shown(&PoseTable::default()).is_empty());
    }
}
