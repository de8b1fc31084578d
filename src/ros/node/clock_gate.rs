//! Distinguishes a clock that was set back from two publishers of `/clock`.

use std::time::{Duration, Instant};

/// `/clock` jumps if it goes back, or ahead, by more than this.
const JUMP_NANOS: i64 = 1_000_000_000;
/// Two clocks alternate faster than this, in real time; and a clock that has been silent for this long has ended.
const ALTERNATION: Duration = Duration::from_secs(2);
/// A message continues a clock if it is ahead of that clock's last one by at most this.
const STEP_NANOS: i64 = 10_000_000_000;

/// The decision about a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is the time.
    Take,
    /// It is the time, which was set back by this many nanoseconds.
    Back(i64),
    /// It is the time. A moment ago another clock, this many nanoseconds behind, was followed: there are two.
    Ahead(i64),
    /// It comes from the other of two clocks, this many nanoseconds behind the one that is followed.
    Other(i64),
}

/// A clock by its last message, and when that arrived.
#[derive(Debug, Clone, Copy)]
struct Seen {
    nanos: i64,
    at: Instant,
}

impl Seen {
    /// Whether a message of `nanos` may be this clock's next one.
    fn continues(&self, nanos: i64) -> bool {
        let step = nanos.saturating_sub(self.nanos);
        (-JUMP_NANOS..=STEP_NANOS).contains(&step)
    }

    fn is_recent(&self, at: Instant) -> bool {
        at.saturating_duration_since(self.at) < ALTERNATION
    }
}

/// Follows `/clock`. A clock that goes back begins anew. If it then soon goes on from where it was before, two
/// publishers alternate: the later clock is followed, and the other one ignored while both are heard.
#[derive(Debug, Default)]
pub struct ClockGate {
    last: Option<Seen>,
    /// The clock before it went back.
    left: Option<Seen>,
    /// The other of two clocks.
    other: Option<Seen>,
}

impl ClockGate {
    /// The verdict on a message of `nanos` that arrived at `at`.
    pub fn check(&mut self, nanos: i64, at: Instant) -> Verdict {
        let seen = Seen { nanos, at };
        let Some(last) = self.last else {
            self.last = Some(seen);
            return Verdict::Take;
        };
        let ahead = nanos.saturating_sub(last.nanos);
        if ahead < -JUMP_NANOS {
            let other = self.other.as_mut().filter(|other| other.continues(nanos));
            if let Some(other) = other.filter(|_| last.is_recent(at)) {
                *other = seen;
                return Verdict::Other(ahead.saturating_neg());
            }
            (self.last, self.left, self.other) = (Some(seen), Some(last), None);
            return Verdict::Back(ahead.saturating_neg());
        }
        self.last = Some(seen);
        let left = self.left.filter(|left| left.is_recent(at));
        if ahead > JUMP_NANOS && left.is_some_and(|left| left.continues(nanos)) {
            (self.left, self.other) = (None, Some(last));
            return Verdict::Ahead(ahead);
        }
        Verdict::Take
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    /// A gate and the time at which messages arrive, ten a second.
    struct Clocks(ClockGate, Instant);

    impl Clocks {
        fn new() -> Self {
            Self(ClockGate::default(), Instant::now())
        }

        fn hear(&mut self, nanos: i64) -> Verdict {
            self.1 += Duration::from_millis(100);
            self.0.check(nanos, self.1)
        }
    }

    #[test]
    fn a_bag_that_is_played_again_and_again_begins_anew_each_time() {
        // Bags of 30 s, and of half a second more than what a clock may go back by; at real speed, and ten times as fast.
        for (length, rate) in [(30 * SECOND, 1), (3 * SECOND / 2, 1), (30 * SECOND, 10)] {
            let mut clocks = Clocks::new();
            let step = rate * SECOND / 10;
            for round in 0..4 {
                for nanos in (0..=length).step_by(step as usize) {
                    let expected = match (round, nanos) {
                        (1.., 0) => Verdict::Back(length),
                        _ => Verdict::Take,
                    };
                    assert_eq!(
                        clocks.hear(1000 * SECOND + nanos),
                        expected,
                        "{round} {nanos}"
                    );
                }
            }
        }
    }

    #[test]
    fn of_two_clocks_the_later_one_is_followed_and_at_most_one_jump_counts() {
        // How many messages of the one clock lie between two of the other.
        for (many, few) in [(1, 1), (7, 1), (1, 7)] {
            let mut clocks = Clocks::new();
            let (mut jumps, mut conflicts, mut time) = (0, 0, 0);
            for round in 0..50 {
                for (offset, count) in [(0, many), (-60 * SECOND, few)] {
                    for _ in 0..count {
                        time += SECOND / 10;
                        let verdict = clocks.hear(1000 * SECOND + time + offset);
                        jumps += usize::from(matches!(verdict, Verdict::Back(_)));
                        conflicts += usize::from(!matches!(verdict, Verdict::Take));
                        let settled = round > 0 && offset == 0;
                        let followed = matches!(verdict, Verdict::Take | Verdict::Ahead(_));
                        assert!(!settled || followed, "{verdict:?}");
                    }
                }
            }
            assert_eq!(jumps, 1, "{many} {few}");
            assert!(conflicts >= 50, "{conflicts}");
        }
    }

    #[test]
    fn the_other_clock_is_followed_once_it_is_the_only_one() {
        let mut clocks = Clocks::new();
        for k in 0..10 {
            clocks.hear(100 * SECOND + k * SECOND / 10);
            clocks.hear(20 * SECOND + k * SECOND / 10);
        }
        let verdicts: Vec<Verdict> = (10..50)
            .map(|k| clocks.hear(20 * SECOND + k * SECOND / 10))
            .collect();
        let back = verdicts.iter().position(|v| matches!(v, Verdict::Back(_)));
        assert_eq!(
            back,
            Some(18),
            "two seconds after the last message of the first clock"
        );
        assert!(verdicts[19..].iter().all(|v| *v == Verdict::Take));
    }

    #[test]
    fn a_jump_to_another_time_counts_beside_two_clocks_too() {
        let mut clocks = Clocks::new();
        for nanos in [100 * SECOND, 20 * SECOND] {
            clocks.hear(nanos);
        }
        assert_eq!(clocks.hear(100 * SECOND), Verdict::Ahead(80 * SECOND));
        assert_eq!(
            clocks.hear(20 * SECOND + 1),
            Verdict::Other(80 * SECOND - 1)
        );
        assert_eq!(clocks.hear(5 * SECOND), Verdict::Back(95 * SECOND));
        // A jump ahead alone is a pause of the bag.
        assert_eq!(clocks.hear(500 * SECOND), Verdict::Take);
        assert_eq!(clocks.hear(i64::MIN), Verdict::Back(i64::MAX));
        assert_eq!(clocks.hear(i64::MAX), Verdict::Take);
    }
}
