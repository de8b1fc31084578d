//! How the thread of a Gaussian map gets keyframes from the caller of SLAM, who never waits for it.

use super::live::LiveSource;
use crate::map::MapSnapshot;
use crate::slam::{PoseTable, Slam};
use arc_swap::ArcSwap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How often the reader looks whether SLAM has ended.
const TICK: Duration = Duration::from_millis(20);
/// Maximum time to wait: on a CPU, mapping may need many seconds for a keyframe.
const PATIENCE: Duration = Duration::from_secs(60);

/// Keyframes that the thread wants to read.
struct Request {
    ids: Vec<u32>,
    /// Dropped by a request that was given up.
    asked: Weak<()>,
    reply: SyncSender<MapSnapshot>,
}

/// Shared by the caller of SLAM and the thread.
pub struct HandOver {
    poses: Arc<ArcSwap<PoseTable>>,
    wanted: Mutex<Option<Request>>,
    wants: AtomicBool,
    ended: AtomicBool,
}

impl HandOver {
    /// For one SLAM.
    pub fn new(slam: &Slam) -> Arc<Self> {
        Arc::new(Self {
            poses: slam.poses(),
            wanted: Mutex::default(),
            wants: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        })
    }

    fn wanted(&self) -> MutexGuard<'_, Option<Request>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has keyframes read that the thread wants. Call it after each frame; it neither waits nor, without a request,
    /// allocates.
    pub fn serve(&self, slam: &mut Slam) {
        if !self.wants.swap(false, Ordering::Acquire) {
            return;
        }
        if let Some(Request { ids, asked, reply }) = self.wanted().take() {
            // If this is refused, the reply is dropped, which the thread notices.
            slam.read_keyframes_while(
                asked,
                ids,
                Box::new(move |map| {
                    // There is room for the one reply.
                    let _ = reply.try_send(map);
                }),
            );
        }
    }

    /// SLAM has ended: requests are refused.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        *self.wanted() = None;
    }
}

/// The thread's side.
pub struct HandedOver(pub Arc<HandOver>);

impl LiveSource for HandedOver {
    fn table(&mut self) -> Option<(usize, Arc<PoseTable>)> {
        Some((0, self.0.poses.load_full()))
    }

    fn keyframes(&mut self, ids: Vec<u32>) -> Option<MapSnapshot> {
        let (reply, receiver) = sync_channel(1);
        let asked = Arc::new(());
        *self.0.wanted() = Some(Request {
            ids,
            asked: Arc::downgrade(&asked),
            reply,
        });
        self.0.wants.store(true, Ordering::Release);
        let deadline = Instant::now() + PATIENCE;
        loop {
            match receiver.recv_timeout(TICK) {
                Ok(map) => return Some(map),
                Err(RecvTimeoutError::Timeout)
                    if !self.0.ended.load(Ordering::Acquire) && Instant::now() < deadline => {}
                Err(_) => return None,
            }
        }
    }
}
