//! Depth messages that wait for the image of their time.

use super::moment::Moment;
use crate::newest;
use crate::time::Stamp;
use crate::wire::messages::{Header, Message};
use crate::wire::{Payload, cdr};
use heapless::Deque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A depth image belongs to an image if their stamps differ by at most this.
const TOLERANCE_NANOS: u64 = 20_000_000;
/// Depth images that wait for their image, which may arrive later; further ones replace the oldest.
const WAITING: usize = 4;
/// Maximum time that an image waits for its depth image, while depth images arrive: drivers send them a few
/// milliseconds later.
const PATIENCE: Duration = Duration::from_millis(15);
/// Without usable depth for this long, the reason is reported.
pub(super) const QUIET: Duration = Duration::from_secs(1);

/// A depth message that no image has used.
#[derive(Debug)]
struct Waiting {
    stamp: Stamp,
    payload: Payload,
}

#[derive(Debug, Default)]
struct State {
    waiting: Deque<Waiting, WAITING>,
    /// Stamp and arrival of the newest message.
    newest: Option<(Stamp, Moment)>,
    /// The last message without a readable header.
    broken: Option<String>,
}

/// The newest depth messages.
#[derive(Debug, Default)]
pub struct DepthInbox {
    state: Mutex<State>,
    arrived: Condvar,
}

impl DepthInbox {
    /// Stores a message that arrived at `at`; the oldest one is dropped if too many wait.
    pub fn put(&self, payload: Payload, at: Moment) {
        let header = cdr::decode::<Header>(Header::TYPE, &payload);
        let mut state = self.lock();
        match header {
            Ok(header) => {
                let stamp = Stamp::from(&header.stamp);
                newest::push(&mut state.waiting, Waiting { stamp, payload });
                state.newest = Some((stamp, at));
            }
            Err(error) => state.broken = Some(error.to_string()),
        }
        drop(state);
        self.arrived.notify_one();
    }

    /// Takes the message nearest in time to an image, waiting for it a moment if it may still arrive at `now`, and drops
    /// older ones. Otherwise returns the reason why there is none.
    pub(super) fn take(&self, image: Stamp, now: Moment) -> Result<Payload, String> {
        let mut state = self.lock();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || !state.may_come(image, &now) {
                break;
            }
            let waited = self.arrived.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let distance = |waiting: &&Waiting| waiting.stamp.nanos.abs_diff(image.nanos);
        let nearest = state.waiting.iter().min_by_key(distance);
        let nearest = nearest.filter(|w| distance(w) <= TOLERANCE_NANOS);
        let Some(stamp) = nearest.map(|w| w.stamp) else {
            return Err(state.explain(image, &now));
        };
        while let Some(waiting) = state.waiting.pop_front() {
            if waiting.stamp == stamp {
                return Ok(waiting.payload);
            }
        }
        Err(state.explain(image, &now))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether the depth image of an image may still arrive: they do arrive, and the newest is before it.
    fn may_come(&self, image: Stamp, now: &Moment) -> bool {
        self.newest.is_some_and(|(stamp, at)| {
            let behind = image.nanos.saturating_sub(stamp.nanos);
            let late = u64::try_from(behind).unwrap_or(0);
            // One that is seconds behind will not catch up.
            (1..QUIET.as_nanos() as u64).contains(&late) && now.since(&at) < QUIET
        })
    }

    fn explain(&self, image: Stamp, now: &Moment) -> String {
        let Some((stamp, at)) = self.newest else {
            return match &self.broken {
                Some(error) => error.clone(),
                None => "no depth images received; check the topic (remap depth), depth_transport and image_qos".into(),
            };
        };
        let age = now.since(&at);
        if age > QUIET {
            let age = age.as_secs_f64();
            return format!("the last depth image arrived {age:.1} s ago");
        }
        let apart = stamp.nanos.saturating_sub(image.nanos) as f64 * 1e-9;
        format!(
            "the newest depth image is {:.3} s {} the image, expected at most 0.02 s: are both stamped by one clock, at \
             the time of exposure?",
            apart.abs(),
            if apart < 0.0 { "before" } else { "after" },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::messages::sensor::Image;
    use serde_bytes::Bytes;

    const MILLI: i64 = 1_000_000;

    fn now() -> Moment {
        Instant::now().into()
    }

    fn message(millis: i64) -> Payload {
        let stamp = Stamp {
            nanos: millis * MILLI,
        };
        let image = Image {
            header: Header::new(stamp, "depth"),
            height: 1,
            width: 1,
            encoding: "16UC1".to_owned(),
            is_bigendian: 0,
            step: 2,
            data: Bytes::new(&[1, 2]),
        };
        image.encode().unwrap().into()
    }

    fn taken(inbox: &DepthInbox, millis: i64) -> Result<i64, String> {
        let at = Stamp {
            nanos: millis * MILLI,
        };
        let payload = inbox.take(at, now())?;
        let header = cdr::decode::<Header>(Header::TYPE, &payload).unwrap();
        Ok(Stamp::from(&header.stamp).nanos / MILLI)
    }

    #[test]
    fn an_image_takes_the_depth_nearest_in_time_once() {
        let inbox = DepthInbox::default();
        for millis in [1000, 1033, 1066, 1100] {
            inbox.put(message(millis), now());
        }
        assert_eq!(taken(&inbox, 1030), Ok(1033));
        // The one before is gone, and this one too.
        let none = taken(&inbox, 1030).unwrap_err();
        assert!(none.contains("0.070 s after"), "{none}");
        assert_eq!(taken(&inbox, 1086), Ok(1100));
        assert!(taken(&inbox, 1100).is_err());
    }

    #[test]
    fn the_oldest_gives_way_and_strays_are_explained() {
        let inbox = DepthInbox::default();
        assert!(taken(&inbox, 1).unwrap_err().contains("remap depth"));
        inbox.put(Payload::from(bytes::Bytes::from_static(&[1, 2, 3])), now());
        assert!(!taken(&inbox, 1).unwrap_err().contains("remap depth"));
        for k in 0..10 {
            inbox.put(message(1000 + 100 * k), now());
        }
        assert_eq!(inbox.lock().waiting.len(), WAITING);
        assert!(taken(&inbox, 1000).is_err());
        assert_eq!(taken(&inbox, 1600), Ok(1600));
        let late = taken(&inbox, 5000).unwrap_err();
        assert!(late.contains("3.100 s before"), "{late}");
    }

    #[test]
    fn an_image_waits_for_depth_that_is_on_its_way() {
        let inbox = std::sync::Arc::new(DepthInbox::default());
        inbox.put(message(967), now());
        let other = std::sync::Arc::clone(&inbox);
        let sender = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(2));
            other.put(message(1000), now());
        });
        // It may come too late on a busy machine, and then the next image of this stamp finds it.
        let first = taken(&inbox, 1000);
        sender.join().unwrap();
        assert_eq!(first.or_else(|_| taken(&inbox, 1000)), Ok(1000));
    }
}
