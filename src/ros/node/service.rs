//! The node as a service of systemd: it says when it is ready, and feeds the watchdog as long as tracking makes
//! progress.

mod notify;

use notify::Notifier;
use std::time::{Duration, Instant};

/// Time for one start of SLAM or one transition: an engine that is built on the robot takes up to this.
const MAX_START: Duration = Duration::from_secs(45 * 60);

/// The current work of the tracking thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The node is not configured, so nothing tracks.
    Unconfigured,
    /// The node changes its state.
    Transition,
    /// SLAM is loaded for the first image, since this long.
    Starting(Duration),
    /// Number of tasks that the tracking thread has begun; without images too it begins one every 100 ms.
    Works(u64),
}

/// The connection to systemd; without one nothing is sent.
pub struct Service {
    notifier: Option<Notifier>,
    feeding: Option<Feeding>,
}

/// Decides when the watchdog is fed.
#[derive(Debug)]
struct Feeding {
    /// Interval between two notifications.
    period: Duration,
    last: Option<Instant>,
    works: Option<u64>,
    transition: Option<Instant>,
}

impl Service {
    /// The service that started this process, if any.
    pub fn from_environment() -> Self {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let notifier = variable("NOTIFY_SOCKET").and_then(|name| match Notifier::new(&name) {
            Ok(notifier) => Some(notifier),
            Err(error) => {
                tracing::warn!("cannot notify the service manager at {name}: {error}");
                None
            }
        });
        let period = period(
            variable("WATCHDOG_USEC").as_deref(),
            variable("WATCHDOG_PID").as_deref(),
        );
        let feeding = period.filter(|_| notifier.is_some()).map(Feeding::new);
        Self { notifier, feeding }
    }

    /// Whether a service manager supervises the node, and restarts it when it fails.
    pub fn supervised(&self) -> bool {
        self.notifier.is_some()
    }

    /// Says that the node has started.
    pub fn ready(&self) {
        self.send("READY=1\nSTATUS=the node runs");
    }

    /// Says that the node ends.
    pub fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=the node ends");
    }

    /// Feeds the watchdog if it is time to, and tracking makes progress.
    pub fn feed(&mut self, progress: Progress, now: Instant) {
        let due = self
            .feeding
            .as_mut()
            .is_some_and(|feeding| feeding.feeds(progress, now));
        if due {
            self.send("WATCHDOG=1");
        }
    }

    fn send(&self, state: &str) {
        if let Some(notifier) = &self.notifier
            && let Err(error) = notifier.send(state)
        {
            tracing::warn!("cannot notify the service manager: {error}");
        }
    }
}

/// A quarter of the watchdog's time, if it watches this process.
fn period(micros: Option<&str>, process: Option<&str>) -> Option<Duration> {
    let other = process.is_some_and(|id| id != std::process::id().to_string());
    let micros: u64 = micros?.parse().ok().filter(|_| !other)?;
    (micros > 0).then(|| Duration::from_micros(micros) / 4)
}

impl Feeding {
    fn new(period: Duration) -> Self {
        Self {
            period,
            last: None,
            works: None,
            transition: None,
        }
    }

    fn feeds(&mut self, progress: Progress, now: Instant) -> bool {
        let since = match progress {
            Progress::Transition => *self.transition.get_or_insert(now),
            _ => {
                self.transition = None;
                now
            }
        };
        if self
            .last
            .is_some_and(|last| now.saturating_duration_since(last) < self.period)
        {
            return false;
        }
        let moves = match progress {
            Progress::Unconfigured => true,
            Progress::Transition => now.saturating_duration_since(since) < MAX_START,
            Progress::Starting(since) => since < MAX_START,
            Progress::Works(count) => self.works.replace(count) != Some(count),
        };
        if moves {
            self.last = Some(now);
        }
        moves
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_is_fed_while_tracking_moves_and_not_when_it_stands() {
        let mut feeding = Feeding::new(Duration::from_secs(5));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(feeding.feeds(Progress::Works(1), at(0)));
        // Not more often than needed.
        assert!(!feeding.feeds(Progress::Works(40), at(4)));
        assert!(feeding.feeds(Progress::Works(50), at(5)));
        assert!((6..60).all(|seconds| !feeding.feeds(Progress::Works(50), at(seconds))));
        assert!(feeding.feeds(Progress::Works(51), at(60)));
    }

    #[test]
    fn starts_and_transitions_have_their_own_limit() {
        let mut feeding = Feeding::new(Duration::from_secs(5));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(
            feeding.feeds(Progress::Unconfigured, at(0))
                && feeding.feeds(Progress::Unconfigured, at(5))
        );
        assert!(feeding.feeds(Progress::Starting(Duration::from_secs(600)), at(10)));
        assert!(!feeding.feeds(Progress::Starting(MAX_START), at(15)));
        assert!(feeding.feeds(Progress::Transition, at(20)));
        assert!(feeding.feeds(Progress::Transition, at(2000)));
        assert!(!feeding.feeds(Progress::Transition, at(20 + MAX_START.as_secs())));
        assert!(feeding.feeds(Progress::Works(1), at(4000)));
        assert!(feeding.feeds(Progress::Transition, at(5000)));
    }

    #[test]
    fn the_period_is_a_quarter_of_the_watchdogs_own_time() {
        let own = std::process::id().to_string();
        assert_eq!(
            period(Some("30000000"), Some(&own)),
            Some(Duration::from_millis(7500))
        );
        assert_eq!(
            period(Some("30000000"), None),
            Some(Duration::from_millis(7500))
        );
        for (micros, process) in [
            (None, None),
            (Some("0"), None),
            (Some("x"), None),
            (Some("1000"), Some("1")),
        ] {
            assert_eq!(period(micros, process), None, "{micros:?} {process:?}");
        }
    }
}
