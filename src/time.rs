//! Time stamps as exact integers.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time stamp of an image in nanoseconds. An integer, so that a stamp read from a file is written
/// back unchanged and can be compared exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Stamp {
    /// Nanoseconds since the source's epoch.
    pub nanos: i64,
}

/// The text is not a decimal number of seconds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a time in seconds such as 1305031102.175304, found {0:?}")]
pub struct ParseStampError(pub String);

impl Stamp {
    /// This machine's time: nanoseconds since 1970.
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let nanos = since.map_or(0, |d| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX));
        Self { nanos }
    }

    /// The stamp `seconds` after the epoch, rounded to a nanosecond.
    pub fn from_seconds(seconds: f64) -> Self {
        Self {
            nanos: (seconds * 1e9).round() as i64,
        }
    }

    /// Seconds since the epoch (an f64 holds today's Unix times to about 0.2 µs).
    pub fn seconds(self) -> f64 {
        let whole = self.nanos.div_euclid(1_000_000_000);
        let rest = self.nanos.rem_euclid(1_000_000_000);
        whole as f64 + rest as f64 * 1e-9
    }

    /// Seconds from this stamp to another one; negative if that is earlier.
    pub fn seconds_to(self, other: Self) -> f64 {
        (i128::from(other.nanos) - i128::from(self.nanos)) as f64 * 1e-9
    }
}

impl fmt::Display for Stamp {
    /// Seconds with six decimals, or nine when the stamp needs them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.nanos < 0 { "-" } else { "" };
        let nanos = self.nanos.unsigned_abs();
        let (whole, rest) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
        if rest.is_multiple_of(1000) {
            write!(f, "{sign}{whole}.{:06}", rest / 1000)
        } else {
            write!(f, "{sign}{whole}.{rest:09}")
        }
    }
}

impl FromStr for Stamp {
    type Err = ParseStampError;

    /// Parses a plain decimal exactly; other floats (`1.3e9`) go through f64.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || ParseStampError(text.to_owned());
        let trimmed = text.trim();
        let (negative, digits) = match trimmed.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, trimmed),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let plain = !whole.is_empty()
            && whole.bytes().all(|b| b.is_ascii_digit())
            && fraction.bytes().all(|b| b.is_ascii_digit());
        if !plain {
            let seconds: f64 = trimmed.parse().map_err(|_| fail())?;
            if !seconds.is_finite() || seconds.abs() > 9e9 {
                return Err(fail());
            }
            return Ok(Self::from_seconds(seconds));
        }
        let whole: i64 = whole.parse().map_err(|_| fail())?;
        let mut rest = 0i64;
        for k in 0..9 {
            let digit = fraction
                .as_bytes()
                .get(k)
                .map_or(0, |b| i64::from(b - b'0'));
            rest = rest * 10 + digit;
        }
        let nanos = whole
            .checked_mul(1_000_000_000)
            .and_then(|w| w.checked_add(rest))
            .ok_or_else(fail)?;
        Ok(Self {
            nanos: if negative { -nanos } else { nanos },
        })
    }
}

/// Milliseconds elapsed since `start`.
pub(crate) fn millis(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

/// Since when a thread has been at work on one thing; readable from other threads.
#[derive(Debug)]
pub struct Pulse {
    epoch: Instant,
    /// Microseconds from `epoch` to the start of the work; [`IDLE`] between two works.
    since: AtomicU64,
    works: AtomicU64,
}

/// The thread waits for work.
const IDLE: u64 = u64::MAX;

impl Default for Pulse {
    fn default() -> Self {
        Self {
            epoch: Instant::now(),
            since: AtomicU64::new(IDLE),
            works: AtomicU64::new(0),
        }
    }
}

impl Pulse {
    /// The thread begins its next work.
    pub fn begin(&self) {
        self.begin_at(Instant::now());
    }

    fn begin_at(&self, now: Instant) {
        let since = now.saturating_duration_since(self.epoch).as_micros();
        let since = u64::try_from(since).unwrap_or(IDLE - 1);
        self.works.fetch_add(1, Ordering::Relaxed);
        self.since.store(since, Ordering::Release);
    }

    /// Number of works begun.
    pub fn works(&self) -> u64 {
        self.works.load(Ordering::Relaxed)
    }

    /// The thread waits for work.
    pub fn end(&self) {
        self.since.store(IDLE, Ordering::Release);
    }

    /// The thread begins its next work, which ends when the guard is dropped, also by a panic.
    #[must_use]
    pub fn work(&self) -> Working<'_> {
        self.begin();
        Working(self)
    }

    /// How long the work under way has taken by `now`; `None` while the thread waits.
    pub fn busy_for(&self, now: Instant) -> Option<Duration> {
        let since = self.since.load(Ordering::Acquire);
        let start = self.epoch.checked_add(Duration::from_micros(since))?;
        (since != IDLE).then(|| now.saturating_duration_since(start))
    }
}

/// Work under way, see [`Pulse::work`].
#[derive(Debug)]
pub struct Working<'a>(&'a Pulse);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Milliseconds spent on one frame, by stage. Zero where a stage did not run.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StageTimes {
    /// Resizing, cropping and undistortion.
    pub preprocess: f64,
    /// Running the encoder.
    pub encode: f64,
    /// Running the decoder and its heads.
    pub decode: f64,
    /// Projective search and descriptor refinement.
    pub matching: f64,
    /// Solving for the relative pose.
    pub tracking: f64,
    /// Pointmap fusion and the keyframe decision.
    pub fusion: f64,
    /// Retrieval, edges and global optimisation (only what this frame waited for).
    pub mapping: f64,
    /// Total for the frame.
    pub total: f64,
}

impl StageTimes {
    /// Names and durations of the stages in order, without the total.
    pub fn stages(&self) -> [(&'static str, f64); 7] {
        [
            ("preprocess", self.preprocess),
            ("encode", self.encode),
            ("decode", self.decode),
            ("matching", self.matching),
            ("tracking", self.tracking),
            ("fusion", self.fusion),
            ("mapping", self.mapping),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pulse_tells_for_how_long_one_work_has_lasted() {
        let pulse = Pulse::default();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(pulse.busy_for(after(60)), None);
        pulse.begin_at(after(1));
        let busy = pulse.busy_for(after(8)).expect("at work");
        assert_eq!(busy.as_millis().next_multiple_of(1000), 7000);
        assert_eq!(pulse.busy_for(start), Some(Duration::ZERO));
        pulse.begin_at(after(8));
        assert!(pulse.busy_for(after(9)).expect("at work") < Duration::from_secs(2));
        pulse.end();
        assert_eq!((pulse.busy_for(after(9)), pulse.works()), (None, 2));
        let working = pulse.work();
        assert!(pulse.busy_for(after(9)).is_some());
        drop(working);
        assert_eq!(pulse.busy_for(after(9)), None);
    }

    #[test]
    fn text_survives_a_round_trip() {
        for text in [
            "1305031102.175304",
            "0.000000",
            "-1.500000",
            "1403636579.763555584",
        ] {
            assert_eq!(
                text.parse::<Stamp>().map(|s| s.to_string()),
                Ok(text.to_owned())
            );
        }
    }

    #[test]
    fn nonsense_is_refused_with_the_text() {
        for text in [
            "",
            "abc",
            "nan",
            "inf",
            "1.2.3",
            "--1",
            "99999999999999999999",
        ] {
            assert_eq!(
                text.parse::<Stamp>(),
                Err(ParseStampError(text.to_owned())),
                "{text}"
            );
        }
        assert_eq!(
            "1.5e1".parse::<Stamp>().map(|s| s.nanos),
            Ok(15_000_000_000)
        );
    }
}
