//! What the node knows of itself: counters, times, state; and how it tells.

use crate::ros::messages::Header;
use crate::ros::messages::diagnostic::{
    DiagnosticArray, DiagnosticStatus, ERROR, KeyValue, OK, WARN,
};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Counts events.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// One more.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes this value.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// How many so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Durations that are kept for percentiles: half a minute of a camera.
const KEPT: usize = 1024;

/// The last durations of something.
#[derive(Debug, Default)]
pub struct Times(Mutex<Ring>);

#[derive(Debug, Default)]
struct Ring {
    millis: Vec<f32>,
    next: usize,
}

impl Times {
    /// Takes one more. Allocates only while the first ones come.
    pub fn add(&self, time: Duration) {
        let mut ring = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let millis = time.as_secs_f32() * 1e3;
        if ring.millis.len() < KEPT {
            ring.millis.push(millis);
            return;
        }
        let at = ring.next;
        ring.next = (at + 1) % KEPT;
        if let Some(slot) = ring.millis.get_mut(at) {
            *slot = millis;
        }
    }

    /// The times, in milliseconds, that half and 99 % of them do not exceed; `None` without any.
    pub fn percentiles(&self) -> Option<(f32, f32)> {
        let mut millis = self
            .0
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .millis
            .clone();
        millis.sort_by(f32::total_cmp);
        let at = |share: f64| {
            let rank = (millis.len() as f64 * share).ceil() as usize;
            millis.get(rank.saturating_sub(1)).copied()
        };
        Some((at(0.5)?, at(0.99)?))
    }
}

/// What the node is doing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum State {
    /// Not active, or paused.
    #[default]
    Idle,
    /// Needs something that is not there.
    Waiting(String),
    /// Knows where the camera is.
    Tracking,
    /// Does not.
    Lost,
    /// Cannot go on without `~/reset`.
    Failed(String),
}

/// Everything that is counted.
#[derive(Debug, Default)]
pub struct Status {
    /// Image messages that came.
    pub images: Counter,
    /// Images that SLAM has processed.
    pub frames: Counter,
    /// Images that were replaced by newer ones before SLAM was ready for them.
    pub dropped: Counter,
    /// Images left out for `max_rate`.
    pub skipped: Counter,
    /// Images that could not be used.
    pub refused: Counter,
    /// Frames that were not tracked.
    pub lost: Counter,
    /// Times that tracking was lost.
    pub losses: Counter,
    /// Maps begun.
    pub maps: Counter,
    /// Keyframes of the map.
    pub keyframes: Counter,
    /// Edges of the map that close loops.
    pub loops: Counter,
    /// Poses that were not published because the output was behind.
    pub unpublished: Counter,
    /// Messages that the middleware did not take.
    pub unsent: Counter,
    /// From the image's message to SLAM.
    pub intake: Times,
    /// SLAM itself.
    pub slam: Times,
    /// From SLAM's pose to its messages.
    pub output: Times,
    state: Mutex<State>,
    said: Mutex<HashMap<&'static str, Instant>>,
}

/// How often the same thing is said at most.
const SAID_EVERY: Duration = Duration::from_secs(5);

impl Status {
    /// Changes the state; gives the one before.
    pub fn enter(&self, state: State) -> State {
        let mut current = self.state.lock().unwrap_or_else(|e| e.into_inner());
        std::mem::replace(&mut current, state)
    }

    /// The state.
    pub fn state(&self) -> State {
        self.state.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// Warns of something; of the same `what` at most every five seconds.
    pub fn warn(&self, what: &'static str, message: impl FnOnce() -> String) {
        let mut said = self.said.lock().unwrap_or_else(|e| e.into_inner());
        let now = Instant::now();
        let recently = said
            .get(what)
            .is_some_and(|at| now.duration_since(*at) < SAID_EVERY);
        if !recently {
            said.insert(what, now);
            tracing::warn!("{}", message());
        }
    }

    /// The message; `rate` is frames per second since the last one.
    pub fn diagnostics(
        &self,
        header: Header,
        node: &str,
        rate: f64,
        extra: &[(&str, String)],
    ) -> DiagnosticArray {
        let (level, message) = match self.state() {
            State::Idle => (OK, "idle".to_owned()),
            State::Waiting(what) => (WARN, format!("waiting: {what}")),
            State::Tracking => (OK, "tracking".into()),
            State::Lost => (WARN, "lost".into()),
            State::Failed(why) => (ERROR, format!("failed: {why}")),
        };
        let times = |times: &Times| match times.percentiles() {
            Some((p50, p99)) => format!("p50 {p50:.2} ms, p99 {p99:.2} ms"),
            None => "none yet".into(),
        };
        let count = |counter: &Counter| counter.get().to_string();
        let own = [
            ("rate", format!("{rate:.1} Hz")),
            ("images received", count(&self.images)),
            ("frames processed", count(&self.frames)),
            (
                "images dropped (a newer one came first)",
                count(&self.dropped),
            ),
            ("images skipped (max_rate)", count(&self.skipped)),
            ("images refused", count(&self.refused)),
            ("frames lost", count(&self.lost)),
            ("times lost", count(&self.losses)),
            ("maps begun", count(&self.maps)),
            ("keyframes", count(&self.keyframes)),
            ("loop edges", count(&self.loops)),
            (
                "poses not published (output behind)",
                count(&self.unpublished),
            ),
            ("messages not sent", count(&self.unsent)),
            ("time from message to SLAM", times(&self.intake)),
            ("time in SLAM", times(&self.slam)),
            ("time from pose to message", times(&self.output)),
        ];
        let value = |(key, value): (&str, String)| KeyValue {
            key: key.into(),
            value,
        };
        let extra = extra.iter().map(|(key, v)| value((key, v.clone())));
        DiagnosticArray {
            header,
            status: vec![DiagnosticStatus {
                level,
                name: format!("{node}: SLAM"),
                message,
                hardware_id: String::new(),
                values: own.into_iter().map(value).chain(extra).collect(),
            }],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_last_times() {
        let times = Times::default();
        assert_eq!(times.percentiles(), None);
        for k in 1..=100 {
            times.add(Duration::from_millis(k));
        }
        let (p50, p99) = times.percentiles().unwrap();
        assert!(
            (p50 - 50.0).abs() < 1e-3 && (p99 - 99.0).abs() < 1e-3,
            "{p50} {p99}"
        );
        for _ in 0..KEPT {
            times.add(Duration::from_millis(1000));
        }
        assert_eq!(times.percentiles(), Some((1000.0, 1000.0)));
    }

    #[test]
    fn diagnostics_tell_the_state_and_its_gravity() {
        let status = Status::default();
        for (state, level, text) in [
            (State::Idle, OK, "idle"),
            (
                State::Waiting("camera_info".into()),
                WARN,
                "waiting: camera_info",
            ),
            (State::Lost, WARN, "lost"),
            (
                State::Failed("no device".into()),
                ERROR,
                "failed: no device",
            ),
        ] {
            status.enter(state);
            let message =
                status.diagnostics(Header::default(), "/slam", 30.0, &[("extra", "1".into())]);
            let only = &message.status[0];
            assert_eq!((only.level, only.message.as_str()), (level, text));
            assert_eq!(only.values.last().unwrap().key, "extra");
        }
    }
}
