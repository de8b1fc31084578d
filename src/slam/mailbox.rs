//! The mapping thread's queue: events, readers of the map, a reset, and the replies.

use super::error::SlamError;
use super::events::Event;
use super::frame::Pace;
use super::mapper::Mapper;
use super::relocaliser::Reply;
use crate::compute::cancel::CancelToken;
use crate::compute::device::HAND_OVERS;
use crate::time::Pulse;
use heapless::Deque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Maximum number of waiting events before a live tracker postpones the next keyframe. The device
/// has room for [`HAND_OVERS`] pointmaps between its halves; four of them are not in the queue:
/// those of the event being handled, of the active keyframe, of the previous one, and of a lost
/// frame.
const QUEUE: usize = HAND_OVERS - 4;

/// Maximum number of waiting readers of the map: the node's clouds, a save, an export and a report,
/// several times over. Further ones are rejected.
const LOOKS: usize = 16;

/// Message of every call after the one that returned the thread's error.
pub const ENDED: &str = "it has ended; an earlier call returned the cause";

/// Reads the map between two events. A save may first have to make what the map lacks.
pub struct Look {
    read: Box<dyn FnOnce(&mut Mapper) + Send>,
    /// Dropped by a reader that has given up; without it, the reader waits for as long as it takes.
    asked: Option<Weak<()>>,
}

impl Look {
    /// A reader that waits until the map is read.
    pub fn new(read: impl FnOnce(&mut Mapper) + Send + 'static) -> Self {
        Self {
            read: Box::new(read),
            asked: None,
        }
    }

    /// A reader that has given up once every other reference to `asked` is dropped.
    pub fn while_asked(asked: Weak<()>, read: impl FnOnce(&mut Mapper) + Send + 'static) -> Self {
        Self {
            read: Box::new(read),
            asked: Some(asked),
        }
    }

    /// Reads the map.
    pub fn read(self, mapper: &mut Mapper) {
        (self.read)(mapper);
    }

    fn is_stale(&self) -> bool {
        self.asked.as_ref().is_some_and(|a| a.strong_count() == 0)
    }
}

/// The state that both threads share.
#[derive(Default)]
pub struct Mailbox {
    inner: Mutex<Inner>,
    /// Whether requests are served after a failure, which [`Mailbox::take_failure`] returns;
    /// otherwise every call returns an error.
    serves_on: bool,
    pulse: Arc<Pulse>,
    /// Notified when there is work for the mapper.
    work: Condvar,
    /// Notified when the mapper has completed something.
    done: Condvar,
}

#[derive(Default)]
struct Inner {
    events: Deque<Event, QUEUE>,
    looks: Deque<Look, LOOKS>,
    /// The map to start before the next event.
    reset: Option<u64>,
    /// Whether an event is being handled.
    busy: bool,
    /// Whether the thread ends when no events are left.
    closing: bool,
    reply: Option<Reply>,
    /// Whether an event has failed, so that no further events are accepted.
    failed: bool,
    /// The error, until a call has returned it.
    error: Option<SlamError>,
}

/// The next thing for the mapper to do.
pub enum Task {
    Reset(u64),
    Event(Box<Event>),
    Look(Look),
    /// Nothing has come for a while.
    Tick,
    End,
}

impl Mailbox {
    /// An empty mailbox. For a live camera, requests are served after a failure.
    pub fn new(pace: Pace) -> Self {
        Self {
            serves_on: pace == Pace::Live,
            ..Self::default()
        }
    }

    /// The thread's work.
    pub fn pulse(&self) -> Arc<Pulse> {
        Arc::clone(&self.pulse)
    }

    /// The failure after which requests are still served; returned once.
    pub fn take_failure(&self) -> Option<SlamError> {
        let mut inner = self.lock();
        self.serves_on.then(|| inner.error.take()).flatten()
    }

    /// Whether an event has failed, and the error if no call has returned it.
    pub fn outcome(&self) -> (bool, Option<SlamError>) {
        let mut inner = self.lock();
        (inner.failed, inner.error.take())
    }

    /// Whether an event has failed.
    pub fn failed(&self) -> bool {
        self.lock().failed
    }

    /// Whether an event can be sent without waiting.
    pub fn has_room(&self) -> bool {
        let inner = self.lock();
        inner.events.len() + usize::from(inner.busy) < QUEUE
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No code panics in the middle of a change while holding the lock.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, condition: &Condvar, inner: MutexGuard<'a, Inner>) -> MutexGuard<'a, Inner> {
        condition
            .wait(inner)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends an event; waits while the queue is full.
    pub fn send(&self, event: Event) -> Result<(), SlamError> {
        let mut inner = self.lock();
        let mut event = event;
        loop {
            if !self.serves_on {
                inner.check()?;
            }
            match inner.events.push_back(event) {
                Ok(()) => break,
                Err(full) => event = full,
            }
            inner = self.wait(&self.done, inner);
        }
        self.work.notify_all();
        Ok(())
    }

    /// The reply to the last request, if available.
    pub fn poll(&self) -> Result<Option<Reply>, SlamError> {
        self.lock().poll(self.serves_on)
    }

    /// Waits for the reply to the last request.
    pub fn wait_for_reply(&self) -> Result<Reply, SlamError> {
        let mut inner = self.lock();
        loop {
            if let Some(reply) = inner.poll(self.serves_on)? {
                return Ok(reply);
            }
            inner = self.wait(&self.done, inner);
        }
    }

    /// Drops the events that have not started, cancels the current one, and has map number `map`
    /// started before the next one. The thread acknowledges `cancel` after each reset.
    pub fn reset(&self, map: u64, cancel: &CancelToken) -> Result<(), SlamError> {
        let mut inner = self.lock();
        inner.check()?;
        if inner.reset.replace(map).is_none() {
            // Under the lock: a thread that carried out the reset first would acknowledge it before it is cancelled,
            // and every later event would be cancelled.
            cancel.cancel();
        }
        inner.events.clear();
        inner.reply = None;
        self.work.notify_all();
        Ok(())
    }

    /// Adds a reader; `false` if too many wait. Those that have given up make room.
    pub fn look(&self, look: Look) -> bool {
        let mut inner = self.lock();
        if inner.looks.is_full() {
            inner.looks.retain(|look| !look.is_stale());
        }
        let added = inner.looks.push_back(look).is_ok();
        self.work.notify_all();
        added
    }

    /// Has the thread end when no events are left, or after the current one.
    pub fn close(&self, at_once: bool) {
        let mut inner = self.lock();
        inner.closing = true;
        if at_once {
            inner.events.clear();
        }
        self.work.notify_all();
    }

    /// Waits for the next task, at most for `tick` if that is given. Readers have priority, so that they wait for at
    /// most one event.
    pub fn next(&self, tick: Option<Duration>) -> Task {
        let mut inner = self.lock();
        loop {
            if let Some(look) = inner.looks.pop_front() {
                if look.is_stale() {
                    continue;
                }
                self.pulse.begin();
                return Task::Look(look);
            }
            if let Some(map) = inner.reset.take() {
                inner.busy = true;
                self.pulse.begin();
                return Task::Reset(map);
            }
            if let Some(event) = inner.events.pop_front() {
                inner.busy = true;
                self.pulse.begin();
                // The queue has room for another event.
                self.done.notify_all();
                return Task::Event(Box::new(event));
            }
            if inner.closing {
                return Task::End;
            }
            self.pulse.end();
            let Some(tick) = tick else {
                inner = self.wait(&self.work, inner);
                continue;
            };
            let waited = self.work.wait_timeout(inner, tick);
            let (woken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            if timeout.timed_out() && woken.is_idle() {
                return Task::Tick;
            }
            inner = woken;
        }
    }

    /// Records the end of a task.
    pub fn finish(&self, done: Result<Option<Reply>, SlamError>) {
        let mut inner = self.lock();
        inner.busy = false;
        match done {
            // After a reset the request is void.
            Ok(reply) if inner.reset.is_none() => inner.reply = reply.or(inner.reply.take()),
            Ok(_) => {}
            Err(error) if self.serves_on && inner.failed => {
                tracing::warn!("mapping, which has failed before: {error}");
                inner.reply = Some(Reply { found: None });
            }
            Err(error) => {
                inner.failed = true;
                inner.error = Some(error);
                inner.events.clear();
                // A request among the dropped events must not stay open.
                inner.reply = self.serves_on.then_some(Reply { found: None });
            }
        }
        self.done.notify_all();
    }
}

impl Inner {
    /// Whether there is nothing to do.
    fn is_idle(&self) -> bool {
        self.looks.is_empty() && self.events.is_empty() && self.reset.is_none() && !self.closing
    }

    /// The error that ended mapping the first time, then a message that it was returned.
    fn check(&mut self) -> Result<(), SlamError> {
        match (self.failed, self.error.take()) {
            (false, _) => Ok(()),
            (true, Some(error)) => Err(error),
            (true, None) => Err(SlamError::Thread(ENDED.into())),
        }
    }

    fn poll(&mut self, serves_on: bool) -> Result<Option<Reply>, SlamError> {
        if !serves_on {
            self.check()?;
        }
        Ok(self.reply.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_cancels_nothing_that_comes_after_it() {
        let (mailbox, cancel) = (Mailbox::new(Pace::Live), CancelToken::default());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while let Task::Reset(_) = mailbox.next(None) {
                    cancel.acknowledge();
                    mailbox.finish(Ok(None));
                }
            });
            for map in 0..20_000 {
                mailbox.reset(map, &cancel).expect("nothing has failed");
            }
            mailbox.close(false);
        });
        assert!(!cancel.is_cancelled());
    }
}
