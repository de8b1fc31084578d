//! How much of the time training may take beside SLAM.

use std::time::Duration;

/// Maximum time that is saved up while there is nothing to train.
const SAVED: Duration = Duration::from_millis(200);

/// An account into which every second pays `ms_per_second`, and from which work is paid after it was done. Time comes
/// from the caller.
#[derive(Debug, Clone, PartialEq)]
pub struct Budget {
    /// Milliseconds of work in a second.
    rate: f64,
    /// Milliseconds that may be used now; negative after a long piece of work.
    balance: f64,
    last: Option<Duration>,
}

impl Budget {
    /// An empty account.
    pub fn new(ms_per_second: f32) -> Self {
        Self {
            rate: f64::from(ms_per_second).clamp(0.0, 1000.0),
            balance: 0.0,
            last: None,
        }
    }

    /// Whether work may start at `now`, a time since any fixed moment.
    pub fn may_start(&mut self, now: Duration) -> bool {
        let passed = now.saturating_sub(self.last.unwrap_or(now));
        self.last = Some(now);
        let saved = SAVED.as_secs_f64() * self.rate;
        self.balance = (self.balance + passed.as_secs_f64() * self.rate).min(saved);
        self.balance > 0.0
    }

    /// Pays for work.
    pub fn pay(&mut self, work: Duration) {
        self.balance -= work.as_secs_f64() * 1000.0;
    }

    /// Time after which [`Budget::may_start`] will be true; `None` if never.
    pub fn wait(&self) -> Option<Duration> {
        if self.rate <= 0.0 {
            return None;
        }
        // A microsecond more, so that the balance is positive then.
        let seconds = (-self.balance).max(0.0) / self.rate + 1e-6;
        Some(Duration::from_secs_f64(seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Milliseconds worked in `seconds` with pieces of `piece` ms.
    fn worked(rate: f32, piece: u64, seconds: u64) -> u64 {
        let mut budget = Budget::new(rate);
        let (mut now, mut sum) = (Duration::ZERO, 0);
        while now < Duration::from_secs(seconds) {
            if budget.may_start(now) {
                now += Duration::from_millis(piece);
                budget.pay(Duration::from_millis(piece));
                sum += piece;
            } else {
                match budget.wait() {
                    Some(wait) => now += wait,
                    None => break,
                }
            }
        }
        sum
    }

    #[test]
    fn work_takes_the_part_of_the_time_that_it_may() {
        for (rate, piece) in [(200.0, 3), (200.0, 50), (900.0, 7), (20.0, 500)] {
            let part = worked(rate, piece, 100) as f32 / 100.0;
            assert!((part - rate).abs() < 0.1 * rate, "{rate} {piece}: {part}");
        }
        assert_eq!(worked(0.0, 3, 100), 0);
    }

    #[test]
    fn a_pause_saves_up_no_more_than_a_fifth_of_a_second_s_budget() {
        let mut budget = Budget::new(500.0);
        assert!(!budget.may_start(Duration::ZERO));
        assert!(budget.may_start(Duration::from_secs(1000)));
        budget.pay(Duration::from_millis(101));
        assert!(!budget.may_start(Duration::from_secs(1000)));
    }
}
