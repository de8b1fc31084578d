//! Which images are let through, by their stamps and formats.

use super::engine::ImageFormat;
use crate::time::Stamp;

/// What is to be done with an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Look at it.
    Take,
    /// Leave it out: `max_rate`.
    Skip,
    /// It is of no use; why.
    Refuse(&'static str),
    /// It belongs to another run: begin a new map with it; why.
    Restart(String),
}

/// What may come in the wrong order by chance; further back in time it is another run.
const REORDERED_NANOS: i64 = 1_000_000_000;
/// Images in a row that differ before they are believed.
const IN_A_ROW: usize = 10;
/// A camera's period wavers; an image that comes this share of the wanted period early is in time.
const EARLY: f64 = 0.25;

/// Looks at stamps.
#[derive(Debug, Clone, Default)]
pub struct StampGate {
    last: Option<Stamp>,
    late: usize,
}

impl StampGate {
    /// The verdict on an image of this stamp, at most `max_rate` a second (0: all).
    pub fn check(&mut self, stamp: Stamp, max_rate: f64) -> Verdict {
        if stamp.nanos <= 0 {
            return Verdict::Refuse("its stamp is zero; the driver must stamp images");
        }
        let Some(last) = self.last else {
            return self.take(stamp);
        };
        let ahead = stamp.nanos.saturating_sub(last.nanos);
        if ahead == 0 {
            return Verdict::Refuse("its stamp is that of the image before");
        }
        if ahead < 0 {
            self.late += 1;
            if ahead > -REORDERED_NANOS && self.late < IN_A_ROW {
                return Verdict::Refuse("it is older than the image before");
            }
            self.take(stamp);
            return Verdict::Restart(format!("time went back by {:.3} s", -(ahead as f64) * 1e-9));
        }
        self.late = 0;
        if max_rate > 0.0 && (ahead as f64) < (1.0 - EARLY) * 1e9 / max_rate {
            return Verdict::Skip;
        }
        self.take(stamp)
    }

    fn take(&mut self, stamp: Stamp) -> Verdict {
        self.last = Some(stamp);
        self.late = 0;
        Verdict::Take
    }
}

/// Looks at formats.
#[derive(Debug, Clone, Default)]
pub struct FormatGate {
    current: Option<ImageFormat>,
    other: Option<ImageFormat>,
    in_a_row: usize,
}

impl FormatGate {
    /// The verdict on an image of this format.
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
                "its size or encoding is not that of the images before; is there a second publisher?",
            );
        }
        (self.current, self.in_a_row) = (Some(format), 0);
        Verdict::Restart(format!(
            "images are now {}×{} {:?}, they were {}×{} {:?}",
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

    fn at(millis: i64) -> Stamp {
        Stamp {
            nanos: millis * 1_000_000,
        }
    }

    #[test]
    fn stamps_that_make_no_sense_are_refused_and_change_nothing() {
        let mut gate = StampGate::default();
        assert!(matches!(gate.check(at(0), 0.0), Verdict::Refuse(_)));
        assert_eq!(gate.check(at(1000), 0.0), Verdict::Take);
        assert!(matches!(gate.check(at(1000), 0.0), Verdict::Refuse(_)));
        assert!(matches!(gate.check(at(-5), 0.0), Verdict::Refuse(_)));
        assert!(matches!(gate.check(at(970), 0.0), Verdict::Refuse(_)));
        assert_eq!(gate.check(at(1033), 0.0), Verdict::Take);
    }

    #[test]
    fn time_that_goes_back_begins_a_new_map() {
        let mut gate = StampGate::default();
        gate.check(at(100_000), 0.0);
        assert!(matches!(gate.check(at(2_000), 0.0), Verdict::Restart(_)));
        assert_eq!(gate.check(at(2_033), 0.0), Verdict::Take);
        // By little, but for good.
        let verdicts: Vec<_> = (0..10).map(|k| gate.check(at(1_500 + k), 0.0)).collect();
        assert!(
            verdicts[..9]
                .iter()
                .all(|v| matches!(v, Verdict::Refuse(_)))
        );
        assert!(matches!(verdicts[9], Verdict::Restart(_)));
        assert_eq!(gate.check(at(1_600), 0.0), Verdict::Take);
    }

    #[test]
    fn max_rate_leaves_images_out_by_their_stamps() {
        let mut gate = StampGate::default();
        let taken = (1..=300)
            .filter(|k| gate.check(at(k * 33), 10.0) == Verdict::Take)
            .count();
        // Every third of 30 Hz.
        assert_eq!(taken, 100);
        let mut gate = StampGate::default();
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
