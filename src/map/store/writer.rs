//! The file of a running map, for the map: a queue that never makes it wait.

use super::StoreError;
use super::hand_over::{Job, Key, Monitor, Shared, State, lock};
use super::work::Work;
use crate::map::saved::Header;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

/// Keyframes and edges that may wait to be written: about 50 MB at 512×384. What finds no room stays with the map
/// and is written later.
const QUEUE: usize = 12;

/// The file of a running map. Dropping it writes what is waiting and closes the file.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    header: Header,
    crashed: bool,
    shared: Arc<Shared>,
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Opens a map to continue it.
    ///
    /// # Errors
    /// If the file is not a map, is in use or damaged, or cannot be written to.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let shared = Arc::new(Shared::default());
        let (mut work, crashed) = Work::new(path, &shared)?;
        let header = work.header().clone();
        let (jobs, inbox) = sync_channel(QUEUE);
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("map-file".into())
            .spawn(move || {
                if catch_unwind(AssertUnwindSafe(|| work.run(&inbox))).is_err() {
                    let what =
                        "the thread that writes the map panicked; its file keeps what it has";
                    tracing::error!("{what}");
                    *lock(&of_thread.failure) = Some(what.to_owned());
                    of_thread.failing.store(true, Ordering::Release);
                }
            })
            .map_err(|cause| StoreError::Open {
                path: path.to_owned(),
                cause,
            })?;
        Ok(Self {
            path: path.to_owned(),
            header,
            crashed,
            shared,
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }

    /// The description of the map.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the last session ended without closing the file.
    pub fn crashed(&self) -> bool {
        self.crashed
    }

    /// What others may ask about the file.
    pub fn monitor(&self) -> Monitor {
        Monitor {
            path: self.path.clone(),
            shared: Arc::clone(&self.shared),
        }
    }

    /// Whether content can be sent at present.
    pub fn has_room(&self) -> bool {
        !self.is_failing() && self.shared.waiting.load(Ordering::Acquire) < QUEUE
    }

    /// Whether the file cannot be written at present; it is tried again.
    pub fn is_failing(&self) -> bool {
        self.shared.failing.load(Ordering::Acquire)
    }

    /// Sets the newest state, which replaces one that was not written yet. Content is sent after the state that
    /// holds it.
    pub fn set_state(&self, state: State) {
        *lock(&self.shared.state) = Some(state);
    }

    /// Sends a job. Never waits: returns `false` if there is no room.
    pub fn send(&self, job: Job) -> bool {
        let Some(jobs) = &self.jobs else {
            return false;
        };
        self.shared.waiting.fetch_add(1, Ordering::AcqRel);
        let sent = match jobs.try_send(job) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        };
        if !sent {
            self.shared.waiting.fetch_sub(1, Ordering::AcqRel);
        }
        sent
    }

    /// Appends what could not be written, to be sent again.
    pub fn take_returned(&self, dst: &mut Vec<Key>) {
        dst.append(&mut lock(&self.shared.returned));
    }

    /// Waits until everything that was sent is on the disk.
    ///
    /// # Errors
    /// Why it is not.
    pub fn flush(&self) -> Result<(), String> {
        let ended = || StoreError::Ended.to_string();
        let jobs = self.jobs.as_ref().ok_or_else(ended)?;
        let (reply, answer) = sync_channel(1);
        self.shared.waiting.fetch_add(1, Ordering::AcqRel);
        jobs.send(Job::Flush(reply)).map_err(|_| ended())?;
        answer.recv().map_err(|_| ended())?
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic was reported by the thread.
            let _ = thread.join();
        }
    }
}
