//! Moments on the node's clock.

use std::time::{Duration, Instant};

/// A moment on the node's clock: that of `/clock` with `use_sim_time`, once it has begun, otherwise a monotonic one.
/// Ages of messages are differences of these, because a simulation or a bag may be slower or faster than real time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    real: Instant,
    /// Nanoseconds of `/clock`.
    simulated: Option<i64>,
}

impl Moment {
    /// A moment of real time at which `/clock` says `simulated`, in nanoseconds.
    pub fn new(real: Instant, simulated: Option<i64>) -> Self {
        Self { real, simulated }
    }

    /// Time since `earlier`; zero if the clock was set back.
    pub fn since(&self, earlier: &Self) -> Duration {
        match (self.simulated, earlier.simulated) {
            (Some(now), Some(then)) => {
                let nanos = now.saturating_sub(then);
                Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
            }
            _ => self.real.saturating_duration_since(earlier.real),
        }
    }

    /// Real time since then, for the node's own speed.
    pub fn elapsed(&self) -> Duration {
        self.real.elapsed()
    }
}

impl From<Instant> for Moment {
    fn from(real: Instant) -> Self {
        Self::new(real, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_those_of_the_simulated_clock_once_it_runs() {
        let start = Instant::now();
        let later = start + Duration::from_secs(10);
        let second = Duration::from_secs(1);
        let [real, before] = [later, start].map(Moment::from);
        assert_eq!(real.since(&before), 10 * second);
        assert_eq!(before.since(&real), Duration::ZERO);
        // A clock at a tenth of real time.
        let now = Moment::new(later, Some(6_000_000_000));
        assert_eq!(now.since(&Moment::new(start, Some(5_000_000_000))), second);
        // It was set back, or had not begun.
        assert_eq!(
            now.since(&Moment::new(start, Some(i64::MAX))),
            Duration::ZERO
        );
        assert_eq!(now.since(&before), 10 * second);
    }
}
