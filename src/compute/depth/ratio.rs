//! Ratios of measured and predicted depth, as logarithms in whole steps: medians of integers are found in one pass over
//! a histogram, and a GPU that counts in the same steps finds the same.

/// Steps of a log ratio of 1: a step is a ratio of 0.024 %.
pub(crate) const STEPS: f32 = 4096.0;
/// The largest log ratio of either sign, in steps: a factor of 2,980. Larger ones count as that.
pub(crate) const LARGEST: i16 = i16::MAX;

/// `ln(metres / depth)` in steps; `None` if the ratio is not positive, not finite or not a normal number, or the depth
/// is not positive. The logarithm is that of the exponent and, of the rest `m` between 2/3 and 4/3, `ln m = 2 artanh s`
/// with `s = (m − 1)/(m + 1)`, as a series up to `s⁷`, whose error is 1e-7.
pub(crate) fn of(metres: f32, depth: f32) -> Option<i16> {
    let ratio = metres / depth;
    let bits = ratio.to_bits() as i32;
    let mut exponent = bits >> 23;
    if !(depth > 0.0 && (1..255).contains(&exponent)) {
        return None;
    }
    exponent -= 127;
    let mut m = f32::from_bits((bits as u32 & 0x007f_ffff) | 0x3f80_0000);
    if m > 4.0 / 3.0 {
        m *= 0.5;
        exponent += 1;
    }
    let s = (m - 1.0) / (m + 1.0);
    let q = s * s;
    let series = 1.0 + q * (1.0 / 3.0 + q * (0.2 + q * (1.0 / 7.0)));
    let log = exponent as f32 * std::f32::consts::LN_2 + 2.0 * s * series;
    let largest = f32::from(LARGEST);
    Some((log * STEPS).round_ties_even().clamp(-largest, largest) as i16)
}

/// The key of a pixel without a log ratio.
pub(crate) const NOTHING: u16 = u16::MAX;

/// A log ratio as a number that is not negative, for histograms; [`NOTHING`] without.
pub(crate) fn key(steps: Option<i16>) -> u16 {
    steps.map_or(NOTHING, |steps| steps.wrapping_add(LARGEST) as u16)
}

/// The steps of a key that is not [`NOTHING`].
pub(crate) fn steps(key: u16) -> i16 {
    key.wrapping_sub(LARGEST as u16) as i16
}

/// The log ratio of a key that is not [`NOTHING`].
pub(crate) fn log(key: u16) -> f32 {
    f32::from(steps(key)) * (1.0 / STEPS)
}

/// How often each value has occurred, of those that 16 bits hold.
#[derive(Debug)]
pub(crate) struct Histogram {
    counts: Vec<u32>,
}

impl Histogram {
    pub fn new() -> Self {
        Self {
            counts: vec![0; 1 << 16],
        }
    }

    /// The upper median; 0 without values.
    pub fn median(&mut self, values: impl Iterator<Item = u16>) -> u16 {
        self.counts.fill(0);
        let mut total = 0_u32;
        for value in values {
            self.counts[usize::from(value)] += 1;
            total += 1;
        }
        let mut below = 0;
        let reaches = |count: &u32| {
            below += *count;
            below > total / 2
        };
        let median = self.counts.iter().position(reaches);
        median.and_then(|at| u16::try_from(at).ok()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_ratios_are_those_of_the_logarithm_to_a_step() {
        for k in -4000..4000 {
            let ratio = f64::exp(f64::from(k) / 600.0);
            let found = of(ratio as f32, 1.0).unwrap();
            let exact = f64::from(k) / 600.0 * f64::from(STEPS);
            assert!((f64::from(found) - exact).abs() < 0.51, "{k}: {found}");
            assert_eq!(of(1.0, ratio as f32).map(|v| v.abs()), Some(found.abs()));
        }
        assert_eq!(of(2.0, 2.0), Some(0));
        assert_eq!(of(1e9, 1e-9), Some(LARGEST));
        assert_eq!(of(1e-9, 1e9), Some(-LARGEST));
    }

    #[test]
    fn ratios_of_what_is_no_depth_are_none() {
        for bad in [0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(of(bad, 1.0), None, "{bad}");
            assert_eq!(of(1.0, bad), None, "{bad}");
        }
        assert_eq!(of(f32::MAX, f32::MIN_POSITIVE), None);
        assert_eq!(of(f32::MIN_POSITIVE, f32::MAX), None);
        assert_eq!(of(-1.0, -1.0), None);
    }

    #[test]
    fn medians_are_the_upper_ones() {
        let mut histogram = Histogram::new();
        assert_eq!(histogram.median([].into_iter()), 0);
        assert_eq!(histogram.median([7].into_iter()), 7);
        assert_eq!(histogram.median([1, 9].into_iter()), 9);
        assert_eq!(histogram.median([65535, 0, 3].into_iter()), 3);
    }
}
