//! A thread that reads topics and calls their handlers.

use super::raw::RawReader;
use crate::ros::middleware::Payload;
use crate::ros::priority::First;
use rustdds::{GUID, SampleIdentity, SequenceNumber};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Wake, Waker};
use std::thread::JoinHandle;

/// A message and where it is from.
pub struct Sample {
    /// The message.
    pub payload: Payload,
    /// Its writer.
    pub writer: GUID,
    /// Its number among the writer's.
    pub number: SequenceNumber,
    /// What it says it belongs to.
    pub related: Option<SampleIdentity>,
}

/// Called for each message.
pub type OnSample = Box<dyn FnMut(Sample) + Send>;

enum Job {
    Add(u64, Box<RawReader>, OnSample),
    Replace(u64, Box<RawReader>),
    Remove(u64),
    Look(u64),
    Stop,
}

/// The thread. Dropped, it ends after the handler that is running.
pub struct Lane {
    jobs: Sender<Job>,
    next: AtomicU64,
    thread: Option<JoinHandle<()>>,
}

/// Ends the reading of one topic when dropped.
pub struct Ticket {
    jobs: Sender<Job>,
    id: u64,
}

impl Ticket {
    /// Reads from another reader from now on; the handler stays.
    pub fn replace(&self, reader: RawReader) {
        // The lane may have ended before.
        let _ = self.jobs.send(Job::Replace(self.id, Box::new(reader)));
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // The lane may have ended before.
        let _ = self.jobs.send(Job::Remove(self.id));
    }
}

impl Lane {
    /// A thread of this name; `first`: before others.
    pub fn start(name: &str, first: bool) -> std::io::Result<Self> {
        let (jobs, inbox) = channel();
        let own = jobs.clone();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let _first = first.then(First::new);
                run(&inbox, &own);
            })?;
        Ok(Self {
            jobs,
            next: AtomicU64::new(0),
            thread: Some(thread),
        })
    }

    /// Reads a topic until the ticket is dropped.
    pub fn add(&self, reader: RawReader, handler: OnSample) -> Ticket {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        // The thread lives as long as `self`.
        let _ = self.jobs.send(Job::Add(id, Box::new(reader), handler));
        Ticket {
            jobs: self.jobs.clone(),
            id,
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let _ = self.jobs.send(Job::Stop);
        if let Some(thread) = self.thread.take() {
            // A handler may hold the last reference to the client, and so end up here itself.
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("a thread that reads topics panicked");
            }
        }
    }
}

/// Puts the reader on the lane's list, once until it is looked at.
struct Bell {
    id: u64,
    jobs: Sender<Job>,
    rung: AtomicBool,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            let _ = self.jobs.send(Job::Look(self.id));
        }
    }
}

struct Entry {
    reader: Box<RawReader>,
    handler: OnSample,
    bell: Arc<Bell>,
}

fn run(inbox: &Receiver<Job>, jobs: &Sender<Job>) {
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

/// Messages in a row after which other topics of the lane get their turn.
const TURN: usize = 64;

/// Takes what is there. When it returns, the bell is set or already rung.
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
                // One broken handler must not take the others of the lane with it.
                if catch_unwind(handler).is_err() {
                    tracing::error!("the handler of a message panicked; the message is dropped");
                }
            }
            // Messages may have come between the last look and the bell: look once more.
            Ok(None) if armed => return,
            Ok(None) => {
                entry
                    .reader
                    .set_waker(Some(Waker::from(Arc::clone(&entry.bell))));
                armed = true;
            }
            Err(error) => tracing::warn!("a message could not be taken: {error}"),
        }
    }
    Arc::clone(&entry.bell).wake();
}
