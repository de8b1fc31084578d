//! Motions between keyframes whose lengths contradict the map's, as those of wheels that slip.
//!
//! A motion is compared with the camera's when its keyframe is made ([`super::slip`]). Slip is noticed there after some
//! motions, and where the network's scale changes as well it is not noticed at all. The solved map is more rigid: slip
//! moves the scale of all of it, and stands out in the ratios of lengths, all of which are compared again after each
//! solve.

use super::robust::median_and_sigma;

/// Added to both lengths of a ratio, in metres, so that those of a robot that hardly moves are about equal.
const FLOOR: f64 = 0.05;
/// Maximum number of motions in a row that are judged together.
const RUN: usize = 8;
/// Minimum number of motions from which the usual ratio and its scatter are read.
const MIN_MOTIONS: usize = 8;
/// Minimum standard deviation of a map's log lengths.
const MIN_SCATTER: f64 = 0.02;
/// Standard deviations from which the excess of a run stands out. The farthest of 400 runs of independent motions is off by
/// 3.5; those of a map are not independent.
const LIMIT: f64 = 4.0;
/// Maximum excess: e times as long, or as short.
const MAX_EXCESS: f64 = 1.0;

/// The length of a motion, in metres.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Length {
    /// As a sensor measured it.
    pub measured: f64,
    /// Standard deviation of `measured`.
    pub sigma: f64,
    /// Between the poses of the map.
    pub of_map: f64,
}

impl Length {
    fn log_ratio(&self) -> f64 {
        ((self.measured + FLOOR) / (self.of_map + FLOOR)).ln()
    }

    fn variance(&self) -> f64 {
        (self.sigma / (self.measured + FLOOR)).powi(2)
    }
}

/// Consecutive motions that are too long or too short together.
struct Run {
    start: usize,
    count: usize,
    /// Their mean excess, in standard deviations.
    deviations: f64,
}

/// By how much the logarithm of each motion's length exceeds that of the others, for motions that stand out; `None` for
/// the others. `lengths` are in the order in which they were driven.
///
/// The usual log ratio of measured lengths to the map's is the median, and its scatter the median absolute deviation. The
/// run of at most [`RUN`] motions that is farthest from the median stands out if it is farther than [`LIMIT`]; then the
/// next one, among the motions that are left.
pub fn excesses(lengths: &[Length]) -> Vec<Option<f64>> {
    let mut found = vec![None; lengths.len()];
    let mut left: Vec<usize> = (0..lengths.len()).collect();
    while left.len() >= MIN_MOTIONS.max(lengths.len().div_ceil(2)) {
        let of_left: Vec<Length> = left.iter().map(|&k| lengths[k]).collect();
        let mut ratios: Vec<f64> = of_left.iter().map(Length::log_ratio).collect();
        let Some((usual, sigma)) = median_and_sigma(&mut ratios) else {
            break;
        };
        let Some(run) = farthest_run(&of_left, usual, sigma.max(MIN_SCATTER)) else {
            break;
        };
        for k in left.drain(run.start..run.start + run.count) {
            let excess = lengths[k].log_ratio() - usual;
            found[k] = Some(excess.clamp(-MAX_EXCESS, MAX_EXCESS));
        }
    }
    found
}

/// The run that is farthest from the usual ratio, if it stands out.
fn farthest_run(lengths: &[Length], usual: f64, sigma: f64) -> Option<Run> {
    let mut farthest: Option<Run> = None;
    for start in 0..lengths.len() {
        let (mut sum, mut variance) = (0.0, 0.0);
        for (k, length) in lengths[start..].iter().take(RUN).enumerate() {
            sum += length.log_ratio() - usual;
            variance += sigma * sigma + length.variance();
            let deviations = f64::abs(sum) / f64::sqrt(variance);
            if farthest.as_ref().is_none_or(|f| deviations > f.deviations) {
                farthest = Some(Run {
                    start,
                    count: k + 1,
                    deviations,
                });
            }
        }
    }
    farthest.filter(|run| run.deviations > LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::random::Random;

    /// Motions of a map whose lengths scatter by `scatter`, from wheels that are 2 % too large and measure `wrong(k)` as
    /// much.
    fn motions(count: usize, scatter: f64, seed: u64, wrong: impl Fn(usize) -> f64) -> Vec<Length> {
        let mut random = Random(2 * seed + 1);
        let lengths = (0..count).map(|k| Length {
            measured: 0.3 * 1.02 * wrong(k),
            sigma: 0.005,
            of_map: 0.3 * (scatter * random.normal()).exp(),
        });
        lengths.collect()
    }

    fn marked(lengths: &[Length]) -> Vec<usize> {
        let found = excesses(lengths).into_iter().enumerate();
        found.filter_map(|(k, excess)| excess.map(|_| k)).collect()
    }

    #[test]
    fn slip_and_standing_wheels_stand_out() {
        let mut others = 0;
        for seed in 0..50 {
            let slip = |k: usize| if (10..15).contains(&k) { 1.2 } else { 1.0 };
            let slipped = marked(&motions(24, 0.02, seed, slip));
            assert!((10..15).all(|k| slipped.contains(&k)), "{slipped:?}");
            let stuck = |k: usize| if (3..6).contains(&k) { 0.0 } else { 1.0 };
            let lengths = motions(24, 0.05, seed, stuck);
            let found = excesses(&lengths);
            assert!(found[3..6].iter().all(|e| *e == Some(-MAX_EXCESS)));
            others += slipped.len() - 5 + marked(&lengths).len() - 3;
        }
        assert!(others < 25, "{others} sound motions of 2,000 stand out");
    }

    #[test]
    fn a_bad_map_shows_most_of_a_longer_slip() {
        // 20 % in a map whose lengths scatter by 5 %.
        let slip = |k: usize| if (10..17).contains(&k) { 1.2 } else { 1.0 };
        let (mut right, mut wrong) = (0, 0);
        for seed in 0..100 {
            for k in marked(&motions(40, 0.05, seed, slip)) {
                *if (10..17).contains(&k) {
                    &mut right
                } else {
                    &mut wrong
                } += 1;
            }
        }
        assert!(right > 600 && wrong < 100, "{right} of 700, and {wrong}");
    }

    #[test]
    fn noise_hardly_ever_stands_out() {
        let runs = (0..1000).filter(|&seed| !marked(&motions(50, 0.05, seed, |_| 1.0)).is_empty());
        let count = runs.count();
        assert!(count < 50, "in {count} of 1,000 maps");
    }

    #[test]
    fn a_constant_ratio_is_no_slip_and_few_motions_say_nothing() {
        assert!(marked(&motions(30, 0.02, 1, |_| 0.5)).is_empty());
        let slip = |k: usize| if k > 3 { 1.5 } else { 1.0 };
        assert!(marked(&motions(MIN_MOTIONS - 1, 0.0, 1, slip)).is_empty());
        assert!(excesses(&[]).is_empty());
        // Half of the motions is no exception.
        let half = |k: usize| if k % 16 < 8 { 1.0 } else { 2.0 };
        let found = marked(&motions(32, 0.01, 1, half));
        assert!(found.len() <= 24, "{found:?}");
        // A robot that stands still.
        let still = Length {
            measured: 0.0,
            sigma: 0.002,
            of_map: 1e-3,
        };
        assert!(excesses(&[still; 20]).iter().all(Option::is_none));
    }
}
