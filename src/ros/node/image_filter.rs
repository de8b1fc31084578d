//! Filters images by stamp and format.

use super::moment::Moment;
use crate::image::encoding::ImageFormat;
use crate::time::Stamp;

/// The decision about an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Process it.
    Take,
    /// Skip it because of `max_rate`.
    Skip,
    /// Reject it, with a reason.
    Refuse(&'static str),
    /// Start a new map with it, because it belongs to another run; with a reason.
    Restart(String),
}

/// A stamp that is later than the previous one by more than this is suspect, unless the camera is
/// that slow, or the image arrived that much later: images in between may have been dropped.
const LEAP_NANOS: i64 = 1_000_000_000;
/// Number of camera periods that may be missing before a stamp is suspect.
const LEAP_PERIODS: i64 = 10;
/// Number of consecutive suspect images, each later than the previous one, after which a jump
/// forward is accepted: the camera paused.
const FORWARD_IN_A_ROW: usize = 3;
/// Number of consecutive deviating images after which they are accepted and the map is ended.
const IN_A_ROW: usize = 10;
/// Tolerance for jitter: an image may be early by this fraction of the requested period.
const EARLY: f64 = 0.25;

/// Checks stamps. An image whose stamp jumps, forward or back, is rejected until several
/// consecutive images confirm the jump: a single corrupt stamp, or a second publisher with another
/// clock, must not end a map.
#[derive(Debug, Clone, Default)]
pub struct StampGate {
    /// The last image taken, and when it arrived.
    last: Option<(Stamp, Moment)>,
    /// Time between the last two images in order.
    period: Option<i64>,
    suspect: Option<Suspect>,
}

/// Consecutive images whose stamps do not follow the previous ones.
#[derive(Debug, Clone, Copy)]
struct Suspect {
    last: Stamp,
    count: usize,
    period: Option<i64>,
}

impl StampGate {
    /// The verdict on an image with this stamp that arrived at `arrived`, at most `max_rate` per second (0 for no
    /// limit).
    pub fn check(&mut self, stamp: Stamp, arrived: Moment, max_rate: f64) -> Verdict {
        if stamp.nanos <= 0 {
            return Verdict::Refuse("the stamp is zero; the driver must set stamps");
        }
        let Some((last, before)) = self.last else {
            return self.take(stamp, arrived, None);
        };
        let ahead = stamp.nanos.saturating_sub(last.nanos);
        if ahead == 0 {
            return Verdict::Refuse("the stamp equals that of the previous image");
        }
        let slow = self.period.map_or(0, |p| p.saturating_mul(LEAP_PERIODS));
        let waited = arrived.since(&before).as_nanos();
        let waited = i64::try_from(waited).unwrap_or(i64::MAX);
        let usual = LEAP_NANOS.max(slow);
        if ahead < 0 || ahead > usual.saturating_add(waited) {
            return self.leap(stamp, arrived, ahead);
        }
        self.suspect = None;
        if max_rate > 0.0 && (ahead as f64) < (1.0 - EARLY) * 1e9 / max_rate {
            return Verdict::Skip;
        }
        // A gap that was waited for is not the camera's period.
        self.take(stamp, arrived, Some(ahead).filter(|ahead| *ahead <= usual))
    }

    fn leap(&mut self, stamp: Stamp, arrived: Moment, ahead: i64) -> Verdict {
        let before = self.suspect;
        let since = before.map(|s| stamp.nanos.saturating_sub(s.last.nanos));
        // Two alternating clocks do not confirm each other.
        let follows = since.is_some_and(|nanos| nanos > 0);
        let suspect = Suspect {
            last: stamp,
            count: before.filter(|_| follows).map_or(1, |s| s.count + 1),
            period: since.filter(|_| follows),
        };
        self.suspect = Some(suspect);
        if ahead < 0 {
            if suspect.count < IN_A_ROW {
                return Verdict::Refuse("it is older than the previous image");
            }
            self.take(stamp, arrived, suspect.period);
            return Verdict::Restart(format!(
                "time jumped back by {:.3} s",
                -(ahead as f64) * 1e-9
            ));
        }
        if suspect.count < FORWARD_IN_A_ROW {
            return Verdict::Refuse("the stamp is far ahead of the previous image");
        }
        self.take(stamp, arrived, suspect.period)
    }

    fn take(&mut self, stamp: Stamp, arrived: Moment, period: Option<i64>) -> Verdict {
        self.last = Some((stamp, arrived));
        self.period = period.or(self.period);
        self.suspect = None;
        Verdict::Take
    }
}

/// Checks formats.
#[derive(Debug, Clone, Default)]
pub struct FormatGate {
    current: Option<ImageFormat>,
    other: Option<ImageFormat>,
    in_a_row: usize,
}

impl FormatGate {
    /// The verdict on an image with this format.
    pub fn check(&mut self, format: ImageFormat) -> Verdict {
        let Some(current) = self.current else {
            self.current = Some(format);
            return Verdict::Take;
        };
        if format == current {
            self.in_a_row = 0;
            return Verdict::Take;
        }
        self.in_a_row = match self.other == Some(format) {
            true => self.in_a_row + 1,
            false => 1,
        };
        self.other = Some(format);
        if self.in_a_row < IN_A_ROW {
            return Verdict::Refuse(
                "its size or encoding differs from previous images; is there a second publisher?",
            );
        }
        (self.current, self.in_a_row) = (Some(format), 0);
        Verdict::Restart(format!(
            "the image format changed to {}×{} {:?} from {}×{} {:?}",
            format.width,
            format.height,
            format.encoding,
            current.width,
            current.height,
            current.encoding
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::encoding::Encoding;
    use std::time::{Duration, Instant};

    fn at(millis: i64) -> Stamp {
        Stamp {
            nanos: millis * 1_000_000,
        }
    }

    /// A gate whose images all arrive at one moment.
    struct Burst(StampGate, Moment);

    impl Default for Burst {
        fn default() -> Self {
            Self(StampGate::default(), Instant::now().into())
        }
    }

    impl Burst {
        fn check(&mut self, stamp: Stamp, max_rate: f64) -> Verdict {
            self.0.check(stamp, self.1, max_rate)
        }
    }

    #[test]
    fn a_gap_that_was_waited_for_is_no_leap() {
        let (mut gate, start) = (StampGate::default(), Instant::now());
        let after = |seconds: f64| Moment::from(start + Duration::from_secs_f64(seconds));
        assert_eq!(gate.check(at(1_000), after(0.0), 0.0), Verdict::Take);
        // The node was busy for eight seconds, and images in between were dropped.
        assert_eq!(gate.check(at(9_000), after(8.0), 0.0), Verdict::Take);
        let leap = gate.check(at(11_500), after(8.1), 0.0);
        assert!(matches!(leap, Verdict::Refuse(_)), "{leap:?}");
    }

    #[test]
    fn stamps_that_make_no_sense_are_refused_and_change_nothing() {
        let mut gate = Burst::default();
        assert!(matches!(gate.check(at(0), 0.0), Verdict::Refuse(_)));
        assert_eq!(gate.check(at(1000), 0.0), Verdict::Take);
        assert!(matches!(gate.check(at(1000), 0.0), Verdict::Refuse(_)));
        assert!(matches!(gate.check(at(-5), 0.0), Verdict::Refuse(_)));
        assert!(matches!(gate.check(at(970), 0.0), Verdict::Refuse(_)));
        assert_eq!(gate.check(at(1033), 0.0), Verdict::Take);
    }

    #[test]
    fn time_that_goes_back_for_good_begins_a_new_map() {
        for back in [2_000, 99_500] {
            let mut gate = Burst::default();
            gate.check(at(100_000), 0.0);
            let verdicts: Vec<_> = (0..10)
                .map(|k| gate.check(at(back + 33 * k), 0.0))
                .collect();
            assert!(
                verdicts[..9]
                    .iter()
                    .all(|v| matches!(v, Verdict::Refuse(_)))
            );
            assert!(matches!(verdicts[9], Verdict::Restart(_)));
            assert_eq!(gate.check(at(back + 400), 0.0), Verdict::Take);
        }
    }

    #[test]
    fn one_stamp_of_another_time_changes_nothing() {
        let mut gate = Burst::default();
        gate.check(at(100_000), 0.0);
        for (k, odd) in (1..=20).zip([3_700_000, 5, 102_000, 98_000].into_iter().cycle()) {
            assert!(matches!(gate.check(at(odd), 0.0), Verdict::Refuse(_)));
            assert_eq!(gate.check(at(100_000 + 33 * k), 0.0), Verdict::Take);
        }
        // Two other clocks alternating, without the camera's own in between.
        for _ in 0..20 {
            for odd in [3_700_000, 5] {
                assert!(matches!(gate.check(at(odd), 0.0), Verdict::Refuse(_)));
            }
        }
    }

    #[test]
    fn a_camera_that_paused_goes_on_after_three_images_and_a_slow_one_at_once() {
        let mut gate = Burst::default();
        gate.check(at(1_000), 0.0);
        let verdicts: Vec<_> = (0..4)
            .map(|k| gate.check(at(9_000 + 33 * k), 0.0))
            .collect();
        assert!(matches!(
            verdicts[..],
            [
                Verdict::Refuse(_),
                Verdict::Refuse(_),
                Verdict::Take,
                Verdict::Take
            ]
        ));
        // One image every two seconds.
        let mut gate = Burst::default();
        let taken = (1..=20).filter(|k| gate.check(at(2_000 * k), 0.0) == Verdict::Take);
        assert_eq!(taken.count(), 18);
    }

    #[test]
    fn max_rate_leaves_images_out_by_their_stamps() {
        let mut gate = Burst::default();
        let taken = (1..=300)
            .filter(|k| gate.check(at(k * 33), 10.0) == Verdict::Take)
            .count();
        // Every third image at 30 Hz.
        assert_eq!(taken, 100);
        let mut gate = Burst::default();
        let taken = (1..=300)
            .filter(|k| gate.check(at(k * 33), 30.0) == Verdict::Take)
            .count();
        assert_eq!(taken, 300);
    }

    #[test]
    fn one_odd_image_is_refused_and_a_new_format_is_believed() {
        let format = |width| ImageFormat {
            encoding: Encoding::Rgb8,
            width,
            height: 480,
            stride: 3 * width,
        };
        let mut gate = FormatGate::default();
        assert_eq!(gate.check(format(640)), Verdict::Take);
        for _ in 0..20 {
            assert!(matches!(gate.check(format(320)), Verdict::Refuse(_)));
            assert_eq!(gate.check(format(640)), Verdict::Take);
        }
        let verdicts: Vec<_> = (0..10).map(|_| gate.check(format(320))).collect();
        assert!(
            verdicts[..9]
                .iter()
                .all(|v| matches!(v, Verdict::Refuse(_)))
        );
        assert!(matches!(verdicts[9], Verdict::Restart(_)));
        assert_eq!(gate.check(format(320)), Verdict::Take);
    }
}
