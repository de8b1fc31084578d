//! Time stamps, as exact integers.

use std::fmt;
use std::str::FromStr;
use std::time::Instant;

/// An image's time in nanoseconds. Integer, so that a stamp read from a file is written back
/// unchanged and can be compared exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Stamp {
    /// Nanoseconds since the source's epoch.
    pub nanos: i64,
}

/// A text that is no decimal number of seconds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a time in seconds such as 1305031102.175304, found {0:?}")]
pub struct ParseStampError(pub String);

impl Stamp {
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

    /// Reads a plain decimal exactly; other floats (`1.3e9`) through f64.
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

/// Milliseconds since `start`.
pub(crate) fn millis(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

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
