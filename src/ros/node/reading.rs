//! How the threads for clouds and grids read keyframes from the mapping side.

use super::inbox::Order;
use super::shared::Shared;
use crate::map::MapSnapshot;
use crate::time::Pulse;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// Number of keyframes read at once: each has several megabytes.
pub const BATCH: usize = 4;
/// How often the reader looks whether the node closes.
const TICK: Duration = Duration::from_millis(50);
/// Maximum time to wait for the mapping side.
const PATIENCE: Duration = Duration::from_secs(60);

/// Reads keyframes; `None` if the mapping side is too busy or the node closes. `pulse` is that of the
/// reading thread.
pub fn keyframes(shared: &Shared, pulse: &Pulse, ids: Vec<u32>) -> Option<MapSnapshot> {
    let (sender, receiver) = sync_channel(1);
    let reply = Box::new(move |map| {
        // The receiver is gone when the node closes.
        let _ = sender.send(map);
    });
    // Dropped on return, so that a request that was given up keeps no room.
    let asked = Arc::new(());
    let order = Order::Keyframes(ids, Arc::downgrade(&asked), reply);
    if !shared.inbox.order(order) {
        return None;
    }
    // On a CPU, the mapping side may need many seconds per keyframe.
    let deadline = Instant::now() + PATIENCE;
    loop {
        pulse.begin();
        let closing = shared.closing.load(Ordering::Acquire);
        match receiver.recv_timeout(TICK) {
            Ok(map) => return Some(map),
            Err(RecvTimeoutError::Timeout) if !closing && Instant::now() < deadline => {}
            Err(_) => return None,
        }
    }
}
