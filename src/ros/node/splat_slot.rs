//! Where the tracking thread leaves the camera's pose for the splats thread.

use crate::geometry::Sim3;
use crate::time::Stamp;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// A tracked camera.
#[derive(Debug, Clone)]
pub struct SplatCamera {
    /// The image's time.
    pub stamp: Stamp,
    /// The camera's optical frame.
    pub camera_frame: Arc<str>,
    /// Columns and rows of the network's image.
    pub size: (usize, usize),
    pub world_from_camera: Sim3,
}

/// A slot for one camera, which a newer one replaces.
#[derive(Debug, Default)]
pub struct SplatSlot {
    wanted: AtomicBool,
    newest: Mutex<Option<SplatCamera>>,
    changed: Condvar,
}

impl SplatSlot {
    /// Sets whether a camera is wanted.
    pub fn want(&self, wanted: bool) {
        self.wanted.store(wanted, Ordering::Relaxed);
    }

    /// Whether a camera is wanted: the topic has a subscription.
    pub fn wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Puts a camera in.
    pub fn put(&self, camera: SplatCamera) {
        *self.lock() = Some(camera);
        self.changed.notify_one();
    }

    /// The newest camera, once there is one; `None` after `patience`.
    pub fn next(&self, patience: Duration) -> Option<SplatCamera> {
        let empty = |newest: &mut Option<SplatCamera>| newest.is_none();
        let waited = self
            .changed
            .wait_timeout_while(self.lock(), patience, empty);
        let (mut newest, _) = waited.unwrap_or_else(|e| e.into_inner());
        newest.take()
    }

    fn lock(&self) -> MutexGuard<'_, Option<SplatCamera>> {
        self.newest.lock().unwrap_or_else(|e| e.into_inner())
    }
}
