//! Where the mapper runs: inline, or in a thread behind a bounded queue.

use super::keyframe::Pointmap;
use super::mapper::{KeyframeEvent, Mapper, RelocaliseReply, RelocaliseRequest};
use super::system::SlamError;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;

/// Keyframes that may wait for the mapper before a live tracker postpones the next.
const QUEUE: usize = 8;

enum Job {
    Keyframe(KeyframeEvent),
    Relocalise(RelocaliseRequest),
    Finish(Option<(u32, Pointmap)>),
    Reset,
}

/// The mapper's side of the system.
pub enum Mapping {
    /// In the caller's thread: every call returns when the map is up to date.
    Inline(Box<Mapper>),
    /// In a thread of its own.
    Thread(MapperThread),
    /// After a failure; holds nothing.
    Gone,
}

/// A running mapper thread.
pub struct MapperThread {
    jobs: SyncSender<Job>,
    replies: Receiver<RelocaliseReply>,
    handle: JoinHandle<Ended>,
    waiting: Arc<AtomicUsize>,
}

impl Mapping {
    /// Moves `mapper` into a thread.
    pub fn spawn(mut mapper: Mapper) -> Result<Self, SlamError> {
        let (jobs, inbox) = sync_channel::<Job>(QUEUE);
        let (outbox, replies) = sync_channel(1);
        let waiting = Arc::new(AtomicUsize::new(0));
        let left = Arc::clone(&waiting);
        let handle = std::thread::Builder::new()
            .name("mapping".into())
            .spawn(move || {
                for job in inbox {
                    let done = match job {
                        Job::Keyframe(event) => mapper.add_keyframe(event),
                        Job::Relocalise(request) => mapper.relocalise(request).map(|reply| {
                            // Nobody listens only when the system is being dropped.
                            let _ = outbox.send(reply);
                        }),
                        Job::Finish(finished) => {
                            if let Some(finished) = finished {
                                mapper.finish_keyframe(finished);
                            }
                            break;
                        }
                        Job::Reset => {
                            mapper.reset();
                            Ok(())
                        }
                    };
                    left.fetch_sub(1, Ordering::AcqRel);
                    if let Err(error) = done {
                        return (mapper, Err(error.into()));
                    }
                }
                (mapper, Ok(()))
            })
            .map_err(|e| SlamError::Thread(e.to_string()))?;
        Ok(Self::Thread(MapperThread {
            jobs,
            replies,
            handle,
            waiting,
        }))
    }

    /// Whether a keyframe can be handed over without waiting.
    pub fn has_room(&self) -> bool {
        match self {
            Self::Thread(t) => t.waiting.load(Ordering::Acquire) < QUEUE,
            Self::Inline(_) | Self::Gone => true,
        }
    }

    /// Hands a keyframe over; waits while the queue is full.
    pub fn add_keyframe(&mut self, event: KeyframeEvent) -> Result<(), SlamError> {
        match self {
            Self::Inline(mapper) => Ok(mapper.add_keyframe(event)?),
            _ => self.send(Job::Keyframe(event)),
        }
    }

    /// Asks where a frame is. Inline the answer comes at once; from the thread through [`Mapping::reply`].
    pub fn relocalise(
        &mut self,
        request: RelocaliseRequest,
    ) -> Result<Option<RelocaliseReply>, SlamError> {
        match self {
            Self::Inline(mapper) => Ok(Some(mapper.relocalise(request)?)),
            _ => self.send(Job::Relocalise(request)).map(|()| None),
        }
    }

    /// The thread's answer: waits for it, or only looks.
    pub fn reply(&mut self, wait: bool) -> Result<Option<RelocaliseReply>, SlamError> {
        let Self::Thread(thread) = self else {
            return Ok(None);
        };
        let got = if wait {
            thread
                .replies
                .recv()
                .map_err(|_| TryRecvError::Disconnected)
        } else {
            thread.replies.try_recv()
        };
        match got {
            Ok(reply) => Ok(Some(reply)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(self.failure()),
        }
    }

    /// Forgets the map.
    pub fn reset(&mut self) -> Result<(), SlamError> {
        match self {
            Self::Inline(mapper) => {
                mapper.reset();
                Ok(())
            }
            _ => self.send(Job::Reset),
        }
    }

    /// Waits until all is done (B34) and brings the mapper back into the caller's thread.
    pub fn finish(&mut self, finished: Option<(u32, Pointmap)>) -> Result<(), SlamError> {
        if let Self::Inline(mapper) = self {
            if let Some(finished) = finished {
                mapper.finish_keyframe(finished);
            }
            return Ok(());
        }
        self.send(Job::Finish(finished))?;
        match std::mem::replace(self, Self::Gone) {
            Self::Thread(thread) => self.take_back(thread),
            _ => Err(SlamError::Thread("it was not running".into())),
        }
    }

    /// The mapper, when it is in this thread.
    pub fn mapper(&self) -> Option<&Mapper> {
        match self {
            Self::Inline(mapper) => Some(mapper),
            _ => None,
        }
    }

    fn send(&mut self, job: Job) -> Result<(), SlamError> {
        let Self::Thread(thread) = self else {
            return Err(SlamError::Thread("it has ended".into()));
        };
        thread.waiting.fetch_add(1, Ordering::AcqRel);
        if thread.jobs.send(job).is_err() {
            return Err(self.failure());
        }
        Ok(())
    }

    /// The error that ended the thread (B35: nobody waits for a dead one). The map that it had is kept.
    fn failure(&mut self) -> SlamError {
        let ended = match std::mem::replace(self, Self::Gone) {
            Self::Thread(thread) => self.take_back(thread),
            other => {
                *self = other;
                Ok(())
            }
        };
        ended
            .err()
            .unwrap_or_else(|| SlamError::Thread("it ended early".into()))
    }

    fn take_back(&mut self, thread: MapperThread) -> Result<(), SlamError> {
        drop(thread.jobs);
        let (mapper, result) = thread
            .handle
            .join()
            .map_err(|_| SlamError::Thread("it panicked".into()))?;
        *self = Self::Inline(Box::new(mapper));
        result
    }
}

/// The mapper as its thread left it.
type Ended = (Mapper, Result<(), SlamError>);
