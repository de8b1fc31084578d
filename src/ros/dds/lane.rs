//! Threads that read topics and call their handlers.

use super::raw::RawReader;
use crate::ros::priority::RaisedPriority;
use crate::wire::Payload;
use rustdds::{GUID, SampleIdentity, SequenceNumber};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::task::{Wake, Waker};
use std::thread::JoinHandle;

/// A received message with its origin.
pub struct Sample {
    pub payload: Payload,
    pub writer: GUID,
    /// Sequence number assigned by the writer.
    pub number: SequenceNumber,
    /// The request it relates to, if any.
    pub related: Option<SampleIdentity>,
}

pub type OnSample = Box<dyn FnMut(Sample) + Send>;

enum Job {
    Add(u64, Box<RawReader>, OnSample),
    Replace(u64, Box<RawReader>),
    Remove(u64),
    Look(u64),
    Stop,
}

/// The thread. Dropping it waits for the running handler to return.
pub struct Lane {
    jobs: SyncSender<Job>,
    next: AtomicU64,
    thread: Option<JoinHandle<()>>,
}

/// Jobs that may wait for a lane: each of its topics (about forty) waits once at most, and readers come and go by
/// the dozen when the node is configured.
const JOBS: usize = 512;

/// Gives a lane a job. The lane's own thread may do so too, so this never waits.
fn post(jobs: &SyncSender<Job>, job: Job) -> bool {
    match jobs.try_send(job) {
        Ok(()) => true,
        // The lane has ended.
        Err(TrySendError::Disconnected(_)) => true,
        Err(TrySendError::Full(_)) => {
            tracing::error!("a thread that reads topics is {JOBS} jobs behind; one is dropped");
            false
        }
    }
}

/// Stops reading a topic when dropped.
pub struct Handle {
    jobs: SyncSender<Job>,
    id: u64,
}

impl Handle {
    /// Switches to another reader and keeps the handler.
    pub fn replace(&self, reader: RawReader) {
        post(&self.jobs, Job::Replace(self.id, Box::new(reader)));
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        post(&self.jobs, Job::Remove(self.id));
    }
}

impl Lane {
    /// Starts a thread; `raised` raises its priority.
    pub fn start(name: &str, raised: bool) -> std::io::Result<Self> {
        let (jobs, inbox) = sync_channel(JOBS);
        let own = jobs.clone();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let _priority = raised.then(RaisedPriority::new);
                run(&inbox, &own);
            })?;
        Ok(Self {
            jobs,
            next: AtomicU64::new(0),
            thread: Some(thread),
        })
    }

    /// Reads a topic until the handle is dropped.
    pub fn add(&self, reader: RawReader, handler: OnSample) -> Handle {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        post(&self.jobs, Job::Add(id, Box::new(reader), handler));
        Handle {
            jobs: self.jobs.clone(),
            id,
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        post(&self.jobs, Job::Stop);
        if let Some(thread) = self.thread.take() {
            // A handler may hold the last reference to the client, so that this runs on the lane's
            // own thread.
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("a thread that reads topics panicked");
            }
        }
    }
}

/// Queues a reader for reading; at most once until it is read.
struct Bell {
    id: u64,
    jobs: SyncSender<Job>,
    rung: AtomicBool,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            // The next message wakes again if this one could not.
            if !post(&self.jobs, Job::Look(self.id)) {
                self.rung.store(false, Ordering::Release);
            }
        }
    }
}

struct Entry {
    reader: Box<RawReader>,
    handler: OnSample,
    bell: Arc<Bell>,
}

fn run(inbox: &Receiver<Job>, jobs: &SyncSender<Job>) {
    let mut entries: BTreeMap<u64, Entry> = BTreeMap::new();
    for job in inbox {
        match job {
            Job::Add(id, reader, handler) => {
                let bell = Arc::new(Bell {
                    id,
                    jobs: jobs.clone(),
                    rung: AtomicBool::new(false),
                });
                let entry = Entry {
                    reader,
                    handler,
                    bell,
                };
                look(entries.entry(id).or_insert(entry));
            }
            Job::Replace(id, reader) => {
                if let Some(entry) = entries.get_mut(&id) {
                    entry.reader = reader;
                    look(entry);
                }
            }
            Job::Remove(id) => drop(entries.remove(&id)),
            Job::Look(id) => {
                if let Some(entry) = entries.get_mut(&id) {
                    entry.bell.rung.store(false, Ordering::Release);
                    look(entry);
                }
            }
            Job::Stop => return,
        }
    }
}

/// Maximum number of messages read from one topic before other topics of the lane are served.
const TURN: usize = 64;

/// Reads all available messages. On return, the bell is armed or has rung already.
fn look(entry: &mut Entry) {
    let mut armed = false;
    entry.reader.drain_read_notifications();
    for _ in 0..TURN {
        match entry.reader.try_take_one() {
            Ok(Some(taken)) => {
                let sample = Sample {
                    writer: taken.writer_guid,
                    number: taken.sequence_number,
                    related: taken.related_sample_identity(),
                    payload: taken.sample,
                };
                let handler = AssertUnwindSafe(|| (entry.handler)(sample));
                // A panicking handler must not affect other topics of the lane.
                if catch_unwind(handler).is_err() {
                    tracing::error!("the handler of a message panicked; the message is dropped");
                }
            }
            // Messages may have arrived between the last read and arming the bell: read once more.
            Ok(None) if armed => return,
            Ok(None) => {
                entry
                    .reader
                    .set_waker(Some(Waker::from(Arc::clone(&entry.bell))));
                armed = true;
            }
            Err(error) => tracing::warn!("cannot read a message: {error}"),
        }
    }
    Arc::clone(&entry.bell).wake();
}
