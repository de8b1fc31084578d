//! Runs the mapper inline, or on its own thread with a bounded queue.

use super::error::SlamError;
use super::events::{DepthNews, Event, Finished, Work};
use super::frame::Pace;
use super::mailbox::{ENDED, Look, Mailbox, Task};
use super::mapper::Mapper;
use super::relocaliser::{RelocaliseRequest, Reply};
use crate::compute::cancel::CancelToken;
use crate::config::Threads;
use crate::time::Pulse;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

/// A mapper, inline or on a thread.
pub enum MapperHandle {
    /// On the caller's thread: every call returns when the map is up to date.
    Inline(Box<Mapper>),
    /// On its own thread.
    Thread(MapperThread),
    /// The map left behind by a failed thread; accepts no more events.
    Ended(Option<Box<Mapper>>),
}

impl MapperHandle {
    /// Runs `mapper` inline or on a new thread. After a failure, the thread of a live camera goes on
    /// to serve requests that leave the map as it is.
    pub fn new(mapper: Mapper, threads: Threads, pace: Pace) -> Result<Self, SlamError> {
        Ok(match threads {
            Threads::Single => Self::Inline(Box::new(mapper)),
            Threads::Pipelined => Self::Thread(MapperThread::spawn(mapper, pace)?),
        })
    }

    /// The mapping thread's work; `None` inline.
    pub fn pulse(&self) -> Option<Arc<Pulse>> {
        match self {
            Self::Thread(thread) => Some(thread.mailbox.pulse()),
            Self::Inline(_) | Self::Ended(_) => None,
        }
    }

    /// The failure after which the thread of a live camera serves requests only; returned once.
    pub fn take_failure(&mut self) -> Option<SlamError> {
        match self {
            Self::Thread(thread) => thread.mailbox.take_failure(),
            Self::Inline(_) | Self::Ended(_) => None,
        }
    }

    /// Whether an event can be sent without waiting.
    pub fn has_room(&self) -> bool {
        match self {
            Self::Thread(thread) => thread.mailbox.has_room(),
            Self::Inline(_) | Self::Ended(_) => true,
        }
    }

    /// Sends an event; waits while the queue is full. Returns the reply if it is available
    /// immediately.
    pub fn send(&mut self, event: Event) -> Result<Option<Reply>, SlamError> {
        match self {
            Self::Inline(mapper) => Ok(mapper.handle(event)?),
            Self::Thread(thread) => thread.mailbox.send(event).map(|()| None),
            Self::Ended(_) => Err(SlamError::Thread(ENDED.into())),
        }
    }

    /// The reply to the last request, if available, or the error that ended the thread.
    pub fn poll(&mut self) -> Result<Option<Reply>, SlamError> {
        match self {
            Self::Inline(mapper) => {
                mapper.keep();
                Ok(None)
            }
            Self::Thread(thread) => thread.mailbox.poll(),
            Self::Ended(_) => Err(SlamError::Thread(ENDED.into())),
        }
    }

    /// Waits for the reply to the last request.
    pub fn wait_for_reply(&mut self) -> Result<Option<Reply>, SlamError> {
        match self {
            Self::Thread(thread) => thread.mailbox.wait_for_reply().map(Some),
            Self::Inline(_) => Ok(None),
            Self::Ended(_) => self.poll(),
        }
    }

    /// Discards the map and starts map number `map`. Never waits: events that the thread has not
    /// started are dropped, and the current one ends as soon as possible.
    pub fn reset(&mut self, map: u64) -> Result<(), SlamError> {
        match self {
            Self::Inline(mapper) => mapper.reset(map),
            Self::Thread(thread) => thread.mailbox.reset(map, &thread.cancel)?,
            Self::Ended(_) => return Err(SlamError::Thread(ENDED.into())),
        }
        Ok(())
    }

    /// Calls `look` with the mapper, at the latest after the current event. Never waits: returns
    /// `false` if too many readers are waiting, or if there is no map any more. The map of a failed
    /// mapper remains readable.
    pub fn look(&mut self, look: Look) -> bool {
        match self {
            Self::Inline(mapper) | Self::Ended(Some(mapper)) => look.read(mapper),
            Self::Ended(None) => return false,
            Self::Thread(thread) => return thread.mailbox.look(look),
        }
        true
    }

    /// Waits until all events are handled, moves the mapper to the caller's thread, and gives it
    /// the final pointmap of the active keyframe, and what depth has shown since the last event.
    pub fn finish(
        &mut self,
        finished: Option<Finished>,
        depth: DepthNews,
    ) -> Result<(), SlamError> {
        let ended = match std::mem::replace(self, Self::Ended(None)) {
            Self::Thread(thread) => {
                let (mapper, ended) = thread.join();
                *self = match (mapper, &ended) {
                    (Some(mapper), Ok(true)) => Self::Inline(mapper),
                    (mapper, _) => Self::Ended(mapper),
                };
                ended.map(|_| ())
            }
            other => {
                *self = other;
                Ok(())
            }
        };
        let mut taken = match (&mut *self, finished) {
            (Self::Inline(mapper) | Self::Ended(Some(mapper)), Some(finished)) => {
                mapper.finish_keyframe(finished)
            }
            _ => Ok(()),
        };
        if let (Self::Inline(mapper), Ok(())) = (&mut *self, &taken) {
            taken = mapper
                .note_depth(depth)
                .and_then(|()| mapper.remove_waiting());
        }
        if let Self::Inline(mapper) | Self::Ended(Some(mapper)) = self {
            mapper.finish_keeping();
        }
        ended.and(taken.map_err(SlamError::from))
    }

    /// The mapper, if it is on this thread.
    pub fn mapper(&self) -> Option<&Mapper> {
        match self {
            Self::Inline(mapper) | Self::Ended(Some(mapper)) => Some(mapper),
            _ => None,
        }
    }
}

/// A running mapper thread.
pub struct MapperThread {
    mailbox: Arc<Mailbox>,
    cancel: CancelToken,
    /// `None` once joined.
    handle: Option<JoinHandle<Mapper>>,
}

impl MapperThread {
    fn spawn(mapper: Mapper, pace: Pace) -> Result<Self, SlamError> {
        let mailbox = Arc::new(Mailbox::new(pace));
        let cancel = mapper.cancel_token();
        let (inbox, cancelled) = (Arc::clone(&mailbox), cancel.clone());
        let handle = std::thread::Builder::new()
            .name("mapping".into())
            .spawn(move || run(mapper, &inbox, &cancelled))
            .map_err(|e| SlamError::Thread(e.to_string()))?;
        Ok(Self {
            mailbox,
            cancel,
            handle: Some(handle),
        })
    }

    /// Waits until all events are handled. Returns the mapper, and whether it can continue; or an
    /// error that no call has returned yet.
    fn join(mut self) -> (Option<Box<Mapper>>, Result<bool, SlamError>) {
        self.mailbox.close(false);
        let Some(handle) = self.handle.take() else {
            return (None, Ok(false));
        };
        match handle.join() {
            Ok(mapper) => {
                let (failed, error) = self.mailbox.outcome();
                (Some(Box::new(mapper)), error.map_or(Ok(!failed), Err))
            }
            Err(payload) => (None, Err(SlamError::Thread(message(payload.as_ref())))),
        }
    }
}

impl Drop for MapperThread {
    /// Drops waiting events, and cancels and waits for the current one: neither the process nor the
    /// GPU context may go away while it runs.
    fn drop(&mut self) {
        let Some(handle) = self.handle.take() else {
            return;
        };
        self.cancel.cancel();
        self.mailbox.close(true);
        // The mapper is dropped, and no caller is left to receive an error.
        let _ = handle.join();
    }
}

/// The part of an event that a mapper which has failed still handles: requests that leave the map
/// as it is.
fn frozen(mapper: &mut Mapper, event: Event) -> Option<Event> {
    if let Some(finished) = event.finished {
        let taken = catch_unwind(AssertUnwindSafe(|| mapper.finish_keyframe(finished)));
        if !matches!(taken, Ok(Ok(()))) {
            tracing::warn!("mapping, which has failed before, could not take a pointmap");
        }
    }
    let work = match event.work {
        Work::Relocalise(request) => Work::Relocalise(RelocaliseRequest {
            grows: false,
            ..request
        }),
        Work::Borrow(anchor) => Work::Borrow(anchor),
        // Makes edges, which a failed device may not; the reply is the keyframe that is tracked against.
        Work::Probe(request) => Work::Borrow(request.from),
        // A keyframe that was on its way when mapping failed.
        Work::Keyframe { .. } | Work::Load { .. } | Work::Keep(_) => return None,
    };
    let finished = None;
    Some(Event {
        finished,
        depth: DepthNews::default(),
        work,
        oldest_made: event.oldest_made,
    })
}

/// The mapper thread. After a failure it serves readers, so that the map remains readable, and for a
/// live camera also requests that leave the map as it is.
fn run(mut mapper: Mapper, mailbox: &Mailbox, cancel: &CancelToken) -> Mapper {
    loop {
        let task = mailbox.next(mapper.tick());
        // A panic must not lose the map. The mapper stays consistent because it is changed only
        // between the calls that could panic.
        match task {
            Task::End => return mapper,
            Task::Tick => {
                if catch_unwind(AssertUnwindSafe(|| mapper.keep())).is_err() {
                    tracing::error!("writing the map panicked");
                }
            }
            Task::Look(look) => {
                if catch_unwind(AssertUnwindSafe(|| look.read(&mut mapper))).is_err() {
                    tracing::error!("a reader of the map panicked");
                }
            }
            Task::Reset(map) => {
                let reset = catch_unwind(AssertUnwindSafe(|| mapper.reset(map)));
                cancel.acknowledge();
                mailbox.finish(reset.map(|()| None).map_err(panicked));
            }
            Task::Event(event) => {
                let event = match mailbox.failed() {
                    true => frozen(&mut mapper, *event),
                    false => Some(*event),
                };
                let Some(event) = event else {
                    mailbox.finish(Ok(None));
                    continue;
                };
                let handled = catch_unwind(AssertUnwindSafe(|| mapper.handle(event)));
                let handled = handled.map_err(panicked);
                mailbox.finish(handled.and_then(|done| done.map_err(SlamError::from)));
            }
        }
    }
}

fn panicked(payload: Box<dyn Any + Send>) -> SlamError {
    SlamError::Thread(message(payload.as_ref()))
}

/// The message of a panic.
fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    text.map_or("it panicked".into(), |text| format!("it panicked: {text}"))
}
