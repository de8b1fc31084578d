//! Measurements of wheels or of a gyro that wait for the tracking thread.

use super::moment::Moment;
use crate::source::motion_message::{Measured, MotionMessageError};
use crate::time::Stamp;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Measurements that wait: those of two seconds at 1 kHz. Further ones replace the oldest.
pub const WAITING: usize = 2048;
/// A sensor that sends nothing for this long is reported; another one may then take its place.
pub const QUIET: Duration = Duration::from_secs(1);

/// A measurement.
#[derive(Debug, Clone, Copy)]
pub struct Reading<T> {
    pub stamp: Stamp,
    /// Time of arrival.
    pub at: Moment,
    pub value: T,
}

/// The frames of the measurements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frames {
    /// Empty for rates.
    pub parent: String,
    /// The frame that moves.
    pub frame: String,
}

#[derive(Debug)]
struct State<T> {
    waiting: VecDeque<Reading<T>>,
    frames: Option<Arc<Frames>>,
    newest: Option<Moment>,
    /// When the last unused message arrived, and why it was refused.
    refused: Option<(Moment, String)>,
}

/// The measurements since the last frame.
#[derive(Debug)]
pub struct MotionInbox<T>(Mutex<State<T>>);

impl<T> Default for MotionInbox<T> {
    fn default() -> Self {
        Self(Mutex::new(State {
            waiting: VecDeque::with_capacity(WAITING),
            frames: None,
            newest: None,
            refused: None,
        }))
    }
}

impl<T: Copy> MotionInbox<T> {
    /// Stores a measurement that arrived at `at`; the oldest one is dropped if too many wait. Those of other frames are
    /// refused while the first source sends.
    ///
    /// # Errors
    /// The reason why the message is not used.
    pub fn put(
        &self,
        measured: Result<Measured<T>, MotionMessageError>,
        at: Moment,
    ) -> Result<(), String> {
        let mut state = self.lock();
        let taken = measured
            .map_err(|error| error.to_string())
            .and_then(|measured| state.take(measured, at));
        if let Err(why) = &taken {
            state.refused = Some((at, why.clone()));
        }
        taken
    }

    /// Appends the measurements that wait to `dst`, the oldest first; returns their frames.
    pub fn take(&self, dst: &mut Vec<Reading<T>>) -> Option<Arc<Frames>> {
        let mut state = self.lock();
        dst.extend(state.waiting.drain(..));
        state.frames.clone()
    }

    /// The frames of the measurements; `None` before the first.
    pub fn frames(&self) -> Option<Arc<Frames>> {
        self.lock().frames.clone()
    }

    /// The reason why there is no measurement since [`QUIET`] at `now`, if so; `topic` is where they come from.
    pub fn silence(&self, topic: &str, now: &Moment) -> Option<String> {
        let state = self.lock();
        if state.newest.is_some_and(|at| now.since(&at) <= QUIET) {
            return None;
        }
        let refused = state.refused.as_ref();
        if let Some((_, why)) = refused.filter(|(at, _)| now.since(at) <= QUIET) {
            return Some(why.clone());
        }
        Some(match state.newest.or(refused.map(|(at, _)| *at)) {
            Some(at) => {
                let age = now.since(&at).as_secs_f64();
                format!("the last message on {topic} arrived {age:.1} s ago")
            }
            None => format!("no message received; check the topic (remap {topic})"),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> State<T> {
    fn take(&mut self, measured: Measured<T>, at: Moment) -> Result<(), String> {
        let Measured {
            stamp,
            parent,
            frame,
            value,
        } = measured;
        let other = |known: &&Arc<Frames>| known.parent != parent || known.frame != frame;
        if let Some(known) = self.frames.as_ref().filter(other) {
            if self.newest.is_some_and(|newest| at.since(&newest) <= QUIET) {
                return Err(format!(
                    "expected measurements of {} as before, found {}: do two sources publish on this topic?",
                    shown(&known.parent, &known.frame),
                    shown(&parent, &frame)
                ));
            }
            self.waiting.clear();
            self.frames = None;
        }
        if self.frames.is_none() {
            self.frames = Some(Arc::new(Frames { parent, frame }));
        }
        if self.waiting.len() >= WAITING {
            self.waiting.pop_front();
        }
        self.waiting.push_back(Reading { stamp, at, value });
        self.newest = Some(at);
        Ok(())
    }
}

fn shown(parent: &str, frame: &str) -> String {
    match parent {
        "" => format!("{frame:?}"),
        parent => format!("{parent:?} -> {frame:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn now() -> Moment {
        Instant::now().into()
    }

    fn measured(nanos: i64, frame: &str) -> Result<Measured<i64>, MotionMessageError> {
        Ok(Measured {
            stamp: Stamp { nanos },
            parent: "odom".into(),
            frame: frame.into(),
            value: nanos,
        })
    }

    #[test]
    fn the_newest_wait_in_order_and_the_oldest_gives_way() {
        let inbox = MotionInbox::default();
        for k in 0..WAITING as i64 + 3 {
            inbox.put(measured(k, "base"), now()).expect("room");
        }
        let mut taken = Vec::new();
        let frames = inbox.take(&mut taken).expect("frames");
        assert_eq!(
            (frames.parent.as_str(), frames.frame.as_str()),
            ("odom", "base")
        );
        let values: Vec<i64> = taken.iter().map(|r| r.value).collect();
        assert_eq!(values, (3..WAITING as i64 + 3).collect::<Vec<_>>());
        taken.clear();
        inbox.take(&mut taken);
        assert!(taken.is_empty());
    }

    #[test]
    fn a_second_source_and_a_broken_message_are_refused() {
        let inbox = MotionInbox::default();
        assert!(
            inbox
                .silence("odom", &now())
                .is_some_and(|why| why.contains("remap odom"))
        );
        inbox
            .put(Err(MotionMessageError::NoStamp), now())
            .expect_err("no stamp");
        assert!(
            inbox
                .silence("odom", &now())
                .is_some_and(|why| why.contains("stamp"))
        );
        inbox.put(measured(1, "base"), now()).expect("the first");
        assert_eq!(inbox.silence("odom", &now()), None);
        let why = inbox
            .put(measured(2, "wheel"), now())
            .expect_err("another frame");
        assert!(
            why.contains("\"base\"") && why.contains("\"wheel\""),
            "{why}"
        );
        inbox
            .put(measured(3, "base"), now())
            .expect("the first again");
        // Once the first one is silent, the other takes its place.
        if let Some(long_ago) = Instant::now().checked_sub(Duration::from_secs(5)) {
            inbox.lock().newest = Some(long_ago.into());
            assert!(
                inbox
                    .silence("odom", &now())
                    .is_some_and(|why| why.contains("\"wheel\"")),
                "the refusal of a moment ago is the reason"
            );
            inbox.lock().refused = None;
            assert!(
                inbox
                    .silence("odom", &now())
                    .is_some_and(|why| why.contains("5.0 s ago"))
            );
            inbox.put(measured(4, "wheel"), now()).expect("its turn");
            let mut taken = Vec::new();
            assert_eq!(
                inbox.take(&mut taken).map(|f| f.frame.clone()),
                Some("wheel".into())
            );
            assert_eq!(taken.len(), 1);
        }
    }
}
