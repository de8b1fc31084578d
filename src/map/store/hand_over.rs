//! What a map hands over to the thread that writes its file, and what that thread answers.

use super::rows::{EdgeRow, KeyframeRow, RemovedRow, Rest};
use crate::compute::device::{EdgeContent, KeyframeContent};
use crate::compute::global::PoseFactor;
use nalgebra::Isometry3;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The numbers of a map: all but the content of its keyframes and edges.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// Number of the map in this file: see [`Job::Clear`].
    pub epoch: u64,
    pub keyframes: Vec<KeyframeRow>,
    pub edges: Vec<EdgeRow>,
    pub factors: Vec<PoseFactor>,
    pub removed: Arc<Vec<RemovedRow>>,
    pub rest: Rest,
}

/// Something to write.
#[derive(Debug)]
pub enum Job {
    /// A keyframe's content; without `whole`, only its points and confidences.
    Keyframe {
        id: u32,
        whole: bool,
        content: Box<KeyframeContent>,
    },
    /// An edge's matches.
    Edge {
        number: u64,
        content: Box<EdgeContent>,
    },
    /// The file's map is discarded, and map number `epoch` begins.
    Clear(u64),
    /// The state that was set is to be written at once.
    Wake,
    /// Everything before this is made to last; then the answer is sent.
    Flush(SyncSender<Result<(), String>>),
}

/// Content that could not be written and is to be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// As in [`Job::Keyframe`].
    Keyframe { id: u32, whole: bool },
    /// An edge's number.
    Edge(u64),
}

/// What both threads share.
#[derive(Debug, Default)]
pub struct Shared {
    /// The newest state that was not written yet.
    pub state: Mutex<Option<State>>,
    /// Bounded by what was sent since the last commit and by the queue.
    pub returned: Mutex<Vec<Key>>,
    pub failure: Mutex<Option<String>>,
    pub failing: AtomicBool,
    pub waiting: AtomicUsize,
    pub detached: AtomicBool,
    pub placed: Mutex<Option<Isometry3<f64>>>,
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics in the middle of a change while holding the lock.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What others may ask about the file of a running map.
#[derive(Debug, Clone)]
pub struct Monitor {
    pub path: PathBuf,
    pub shared: Arc<Shared>,
}

impl Monitor {
    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Why the file cannot be written at present, or was not closed.
    pub fn failure(&self) -> Option<String> {
        lock(&self.shared.failure).clone()
    }

    /// Sets the pose at which a ROS node has put the map's world frame in its map frame.
    pub fn place(&self, map_from_world: Option<Isometry3<f64>>) {
        *lock(&self.shared.placed) = map_from_world;
    }

    /// See [`Monitor::place`].
    pub fn placed(&self) -> Option<Isometry3<f64>> {
        *lock(&self.shared.placed)
    }

    /// The map that is being made is no longer that of the file, which keeps what it has.
    pub fn detach(&self) {
        self.shared.detached.store(true, Ordering::Release);
    }

    /// Whether the file was detached.
    pub fn is_detached(&self) -> bool {
        self.shared.detached.load(Ordering::Acquire)
    }
}
