//! Where the mapper runs: inline, or in a thread behind a bounded queue.

use super::keyframe::Anchor;
use super::mapper::{
    Finished, KeyframeEvent, KeyframeInfo, Mapper, RelocaliseReply, RelocaliseRequest,
};
use super::system::SlamError;
use crate::compute::device::HAND_OVERS;
use crate::compute::stop::Stop;
use crate::time::millis;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Instant;

/// Keyframes that may wait for the mapper before a live tracker postpones the next.
const QUEUE: usize = HAND_OVERS - 4;

enum Job {
    Keyframe(KeyframeEvent),
    Relocalise(RelocaliseRequest),
    Lend(KeyframeInfo, Anchor),
    Finish(Option<Finished>),
    Change(Change),
    /// Forget the map. What was sent before is not wanted any more.
    Reset,
    /// Somebody wants to look, and there may be no other job.
    Look,
}

impl Job {
    /// For the log.
    fn name(&self) -> &'static str {
        match self {
            Self::Keyframe(_) => "a keyframe",
            Self::Relocalise(_) => "a lost frame",
            Self::Lend(..) => "a keyframe lent",
            Self::Finish(_) => "the end",
            Self::Change(_) => "a change of the map",
            Self::Reset => "a reset",
            Self::Look => "a look at the map",
        }
    }
}

/// Looks at the map where it is kept.
pub type Look = Box<dyn FnOnce(&Mapper) + Send>;

/// Changes the map where it is kept, between two jobs.
pub type Change = Box<dyn FnOnce(&mut Mapper) + Send>;

/// The mapper's side of the system.
pub enum Mapping {
    /// In the caller's thread: every call returns when the map is up to date.
    Inline(Box<Mapper>),
    /// In a thread of its own.
    Thread(MapperThread),
    /// After a failure: the map as the thread left it. It takes nothing more.
    Ended(Option<Box<Mapper>>),
}

/// A running mapper thread.
pub struct MapperThread {
    /// Both ends of what it hears and says; gone once it is to end.
    ends: Option<(SyncSender<Job>, Receiver<RelocaliseReply>)>,
    handle: Option<JoinHandle<Ended>>,
    waiting: Arc<AtomicUsize>,
    looks: Looks,
    /// Asked for while nobody is interested in the map as it is.
    stop: Stop,
}

impl Drop for MapperThread {
    /// Jobs that wait are left out; the one under way is asked to stop and waited for: the process must not
    /// end, and the GPU not go, under it.
    fn drop(&mut self) {
        self.stop.ask();
        self.ends = None;
        if let Some(handle) = self.handle.take() {
            // What it ended with is told to nobody.
            let _ = handle.join();
        }
    }
}

/// Those who want to look; served after each job.
type Looks = Arc<Mutex<Vec<Look>>>;

/// Looks that may wait.
const LOOKS: usize = 16;

impl Mapping {
    /// Moves `mapper` into a thread.
    pub fn spawn(mut mapper: Mapper) -> Result<Self, SlamError> {
        let (jobs, inbox) = sync_channel::<Job>(QUEUE);
        let (outbox, replies) = sync_channel(1);
        let waiting = Arc::new(AtomicUsize::new(0));
        let left = Arc::clone(&waiting);
        let looks = Looks::default();
        let wanted = Arc::clone(&looks);
        let stop = mapper.stop();
        let stopped = stop.clone();
        let handle = std::thread::Builder::new()
            .name("mapping".into())
            .spawn(move || {
                for job in inbox {
                    let last = matches!(job, Job::Finish(_));
                    let (name, start) = (job.name(), Instant::now());
                    // A panic must not take the map with it. The mapper stays whole: it is changed
                    // only between the calls that could panic.
                    let all = AssertUnwindSafe(|| {
                        if stopped.is_asked() {
                            leave_out(&mut mapper, job, &outbox)?;
                        } else {
                            work(&mut mapper, job, &outbox)?;
                        }
                        let looks = std::mem::take(&mut *lock(&wanted));
                        looks.into_iter().for_each(|look| look(&mapper));
                        Ok(())
                    });
                    let done = catch_unwind(all)
                        .unwrap_or_else(|payload| Err(SlamError::Thread(words(payload.as_ref()))));
                    let waiting = left.fetch_sub(1, Ordering::AcqRel).saturating_sub(1);
                    tracing::debug!("{name}: {:.1} ms, {waiting} jobs wait", millis(start));
                    if last || done.is_err() {
                        return (mapper, done);
                    }
                }
                (mapper, Ok(()))
            })
            .map_err(|e| SlamError::Thread(e.to_string()))?;
        Ok(Self::Thread(MapperThread {
            ends: Some((jobs, replies)),
            handle: Some(handle),
            waiting,
            looks,
            stop,
        }))
    }

    /// The error that ended the thread, if it has ended: so it is told at the next frame, whether or
    /// not that frame has something for the mapper.
    pub fn check(&mut self) -> Result<(), SlamError> {
        match self {
            Self::Thread(MapperThread {
                handle: Some(handle),
                ..
            }) if handle.is_finished() => Err(self.failure()),
            Self::Ended(_) => Err(SlamError::Thread(ENDED.into())),
            _ => Ok(()),
        }
    }

    /// Whether a keyframe can be handed over without waiting.
    pub fn has_room(&self) -> bool {
        match self {
            Self::Thread(t) => t.waiting.load(Ordering::Acquire) < QUEUE,
            Self::Inline(_) | Self::Ended(_) => true,
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

    /// Asks for the keyframe that `anchor` names, for a frame that is there; answered as
    /// [`Mapping::relocalise`] is.
    pub fn lend(
        &mut self,
        info: KeyframeInfo,
        anchor: Anchor,
    ) -> Result<Option<RelocaliseReply>, SlamError> {
        match self {
            Self::Inline(mapper) => Ok(Some(mapper.lend(info, anchor)?)),
            _ => self.send(Job::Lend(info, anchor)).map(|()| None),
        }
    }

    /// The thread's answer: waits for it, or only looks.
    pub fn reply(&mut self, wait: bool) -> Result<Option<RelocaliseReply>, SlamError> {
        let Self::Thread(MapperThread {
            ends: Some((_, replies)),
            ..
        }) = self
        else {
            return Ok(None);
        };
        let got = if wait {
            replies.recv().map_err(|_| TryRecvError::Disconnected)
        } else {
            replies.try_recv()
        };
        match got {
            Ok(reply) => Ok(Some(reply)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(self.failure()),
        }
    }

    /// Forgets the map. What the thread has not begun yet is left out, and what it is at ends as soon as it
    /// can; a frame that was asked about is answered as not found.
    pub fn reset(&mut self) -> Result<(), SlamError> {
        match self {
            Self::Inline(mapper) => {
                mapper.reset();
                Ok(())
            }
            Self::Thread(thread) => {
                thread.stop.ask();
                self.send(Job::Reset)
            }
            Self::Ended(_) => self.send(Job::Reset),
        }
    }

    /// Whether the thread has not got to the last [`Mapping::reset`] yet.
    pub fn is_resetting(&self) -> bool {
        match self {
            Self::Thread(thread) => thread.stop.is_asked(),
            Self::Inline(_) | Self::Ended(_) => false,
        }
    }

    /// Has `change` called with the mapper; the caller may have to wait for room in the queue.
    pub fn change(&mut self, change: Change) -> Result<(), SlamError> {
        match self {
            Self::Inline(mapper) => {
                change(mapper);
                Ok(())
            }
            _ => self.send(Job::Change(change)),
        }
    }

    /// Has `look` called with the mapper, at the latest when the job that it is at is done. Never waits:
    /// `false` if too many want to look or there is no mapper any more.
    pub fn look(&mut self, look: Look) -> bool {
        match self {
            Self::Inline(mapper) | Self::Ended(Some(mapper)) => look(mapper),
            Self::Ended(None) => return false,
            Self::Thread(thread) => {
                let mut looks = lock(&thread.looks);
                if looks.len() >= LOOKS {
                    return false;
                }
                looks.push(look);
                drop(looks);
                // With a full queue there are jobs enough after which it is served.
                thread.waiting.fetch_add(1, Ordering::AcqRel);
                let sent = |(jobs, _): &(SyncSender<Job>, _)| jobs.try_send(Job::Look).is_ok();
                if !thread.ends.as_ref().is_some_and(sent) {
                    thread.waiting.fetch_sub(1, Ordering::AcqRel);
                }
            }
        }
        true
    }

    /// Waits until all is done (B34) and brings the mapper back into the caller's thread.
    pub fn finish(&mut self, finished: Option<Finished>) -> Result<(), SlamError> {
        let ended = match self {
            Self::Thread(_) => self.check(),
            _ => Ok(()),
        };
        match self {
            Self::Inline(mapper) | Self::Ended(Some(mapper)) => {
                let taken = finished.map_or(Ok(()), |f| mapper.finish_keyframe(f));
                return ended.and(taken.map_err(SlamError::from));
            }
            _ => {}
        }
        self.send(Job::Finish(finished))?;
        let (mapper, result) = self.take_back()?;
        *self = match result {
            Ok(()) => Self::Inline(mapper),
            Err(_) => Self::Ended(Some(mapper)),
        };
        result
    }

    /// The mapper, when it is in this thread.
    pub fn mapper(&self) -> Option<&Mapper> {
        match self {
            Self::Inline(mapper) | Self::Ended(Some(mapper)) => Some(mapper),
            _ => None,
        }
    }

    fn send(&mut self, job: Job) -> Result<(), SlamError> {
        let Self::Thread(MapperThread {
            ends: Some((jobs, _)),
            waiting,
            ..
        }) = self
        else {
            return Err(SlamError::Thread(ENDED.into()));
        };
        waiting.fetch_add(1, Ordering::AcqRel);
        if jobs.send(job).is_err() {
            return Err(self.failure());
        }
        Ok(())
    }

    /// The error that ended the thread (B35: nobody waits for a dead one). The map that it had is kept.
    fn failure(&mut self) -> SlamError {
        match self.take_back() {
            Ok((mapper, result)) => {
                *self = Self::Ended(Some(mapper));
                result
                    .err()
                    .unwrap_or_else(|| SlamError::Thread("it ended early".into()))
            }
            Err(error) => error,
        }
    }

    /// Waits for the thread's end; leaves [`Mapping::Ended`] without a map.
    fn take_back(&mut self) -> Result<(Box<Mapper>, Done), SlamError> {
        let Self::Thread(mut thread) = std::mem::replace(self, Self::Ended(None)) else {
            return Err(SlamError::Thread(ENDED.into()));
        };
        thread.ends = None;
        let Some(handle) = thread.handle.take() else {
            return Err(SlamError::Thread(ENDED.into()));
        };
        let (mapper, result) = handle
            .join()
            .map_err(|payload| SlamError::Thread(words(payload.as_ref())))?;
        Ok((Box::new(mapper), result))
    }
}

/// Said to whoever goes on after a failure, which was told before.
const ENDED: &str = "it has ended; an earlier call told why";

fn work(mapper: &mut Mapper, job: Job, replies: &SyncSender<RelocaliseReply>) -> Done {
    match job {
        Job::Keyframe(event) => mapper.add_keyframe(event)?,
        Job::Relocalise(request) => {
            // Nobody listens only when the system is being dropped.
            let _ = replies.send(mapper.relocalise(request)?);
        }
        Job::Lend(info, anchor) => {
            let _ = replies.send(mapper.lend(info, anchor)?);
        }
        Job::Finish(Some(finished)) => mapper.finish_keyframe(finished)?,
        Job::Finish(None) => {}
        Job::Change(change) => change(mapper),
        Job::Reset => {
            mapper.reset();
            mapper.stop().answer();
        }
        Job::Look => {}
    }
    Ok(())
}

/// What becomes of a job while somebody asks to stop: work for the map that is about to be forgotten is not
/// done.
fn leave_out(mapper: &mut Mapper, job: Job, replies: &SyncSender<RelocaliseReply>) -> Done {
    let info = match job {
        Job::Keyframe(_) => return Ok(()),
        Job::Relocalise(request) => request.info,
        Job::Lend(info, _) => info,
        job => return work(mapper, job, replies),
    };
    let found = None;
    let _ = replies.send(RelocaliseReply { info, found });
    Ok(())
}

fn lock(looks: &Mutex<Vec<Look>>) -> MutexGuard<'_, Vec<Look>> {
    // A list is whole whoever panicked.
    looks.lock().unwrap_or_else(|e| e.into_inner())
}

/// What a panic said.
fn words(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    text.map_or("it panicked".into(), |text| format!("it panicked: {text}"))
}

type Done = Result<(), SlamError>;

/// The mapper as its thread left it.
type Ended = (Mapper, Done);
