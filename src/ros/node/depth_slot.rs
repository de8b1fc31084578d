//! Where the tracking thread leaves pointmaps for the depth thread.

use crate::compute::device::FramePoints;
use crate::geometry::Intrinsics;
use crate::time::Stamp;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// A tracked frame's pointmap.
#[derive(Debug, Default)]
pub struct DepthFrame {
    /// The image's time.
    pub stamp: Stamp,
    /// The camera's optical frame.
    pub camera_frame: Arc<str>,
    /// Columns and rows of the network's image.
    pub size: (usize, usize),
    /// Intrinsics of the network's image, if they are known.
    pub intrinsics: Option<Intrinsics>,
    /// Scale of the frame's pose.
    pub scale: f64,
    /// Before the scale is applied.
    pub points: FramePoints,
}

/// A slot for one frame, which a newer one replaces.
#[derive(Debug, Default)]
pub struct DepthSlot {
    wanted: AtomicBool,
    frames: Mutex<Frames>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Frames {
    newest: Option<DepthFrame>,
    /// Used again, so that no frame allocates.
    spare: heapless::Vec<DepthFrame, FRAMES>,
}

/// Frames that exist at once: one waits, one is sent, one is filled.
const FRAMES: usize = 3;

impl DepthSlot {
    /// Sets whether a frame is wanted.
    pub fn want(&self, wanted: bool) {
        self.wanted.store(wanted, Ordering::Relaxed);
    }

    /// Whether a frame is wanted: the topic has a subscription.
    pub fn wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// A frame to fill.
    pub fn empty(&self) -> DepthFrame {
        self.lock().spare.pop().unwrap_or_default()
    }

    /// Puts a frame in; one that was not sent yet is dropped.
    pub fn put(&self, frame: DepthFrame) {
        let mut frames = self.lock();
        let old = frames.newest.replace(frame);
        keep(&mut frames, old);
        drop(frames);
        self.changed.notify_one();
    }

    /// Gives a frame back that was not filled or was sent.
    pub fn give_back(&self, frame: DepthFrame) {
        keep(&mut self.lock(), Some(frame));
    }

    /// The newest frame, once there is one; `None` after `patience`.
    pub fn next(&self, patience: Duration) -> Option<DepthFrame> {
        let empty = |frames: &mut Frames| frames.newest.is_none();
        let waited = self
            .changed
            .wait_timeout_while(self.lock(), patience, empty);
        let (mut frames, _) = waited.unwrap_or_else(|e| e.into_inner());
        frames.newest.take()
    }

    fn lock(&self) -> MutexGuard<'_, Frames> {
        self.frames.lock().unwrap_or_else(|e| e.into_inner())
    }
}

fn keep(frames: &mut Frames, frame: Option<DepthFrame>) {
    if let Some(frame) = frame {
        // One too many is dropped.
        let _ = frames.spare.push(frame);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_frame_wins_and_places_are_used_again() {
        let slot = DepthSlot::default();
        for k in 0..10 {
            let mut frame = slot.empty();
            frame.stamp = Stamp { nanos: k };
            slot.put(frame);
        }
        let newest = slot.next(Duration::ZERO).expect("a frame");
        assert_eq!(newest.stamp.nanos, 9);
        assert!(slot.next(Duration::ZERO).is_none());
        slot.give_back(newest);
        assert!(slot.lock().spare.len() <= FRAMES);
    }
}
