//! Weights, means and medians where there may be outliers.

use crate::compute::depth::SIGMA_OVER_MAD;

/// Residuals beyond this many standard deviations count less.
const HUBER: f64 = 1.345;

/// Huber's weight of a residual in standard deviations.
pub fn huber_weight(residual: f64) -> f64 {
    HUBER / residual.abs().max(HUBER)
}

/// The upper median; `None` without a value. The values are sorted.
pub fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Median of values, and their standard deviation by the median absolute deviation from it; `None` without a value. The
/// values are replaced.
pub fn median_and_sigma(values: &mut [f64]) -> Option<(f64, f64)> {
    let middle = median(values)?;
    for value in &mut *values {
        *value = (*value - middle).abs();
    }
    Some((middle, SIGMA_OVER_MAD * median(values)?))
}

/// Rounds of reweighting.
const ROUNDS: usize = 5;

/// A mean and its standard deviation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mean {
    pub value: f64,
    pub sigma: f64,
}

/// The mean of pairs of a value and its information, weighted by the information and Huber's function; its standard
/// deviation grows with the scatter if that is more than the information says (Birge's ratio). `None` without information.
pub fn mean<I: Iterator<Item = (f64, f64)>>(pairs: impl Fn() -> I) -> Option<Mean> {
    let weight = |(value, information): (f64, f64), mean: f64| {
        information * huber_weight((value - mean) * information.sqrt())
    };
    let (mut mean, mut information) = (0.0, 0.0);
    for _ in 0..ROUNDS {
        information = pairs().map(|pair| weight(pair, mean)).sum();
        let sum: f64 = pairs().map(|pair| weight(pair, mean) * pair.0).sum();
        mean = sum / information;
    }
    let count = pairs().count();
    let square = |pair: (f64, f64)| weight(pair, mean) * (pair.0 - mean).powi(2);
    let chi2: f64 = pairs().map(square).sum();
    let birge = (chi2 / count.saturating_sub(1).max(1) as f64).max(1.0);
    let sigma = (birge / information).sqrt();
    (mean.is_finite() && sigma.is_finite()).then_some(Mean { value: mean, sigma })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outliers_do_not_move_a_median_and_its_deviation() {
        assert_eq!(median_and_sigma(&mut []), None);
        assert_eq!(median_and_sigma(&mut [3.0]), Some((3.0, 0.0)));
        let found = median_and_sigma(&mut [9e9, 1.0, 3.0, 2.0, 4.0]);
        assert_eq!(found, Some((3.0, SIGMA_OVER_MAD)));
    }

    #[test]
    fn a_mean_is_weighted_and_outliers_hardly_move_it() {
        let of = |pairs: &[(f64, f64)]| mean(|| pairs.iter().copied());
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[(1.0, 0.0)]), None);
        assert_eq!(of(&[(f64::NAN, 1.0), (1.0, 1.0)]), None);
        let one = of(&[(0.3, 4.0)]).expect("a mean");
        assert_eq!((one.value, one.sigma), (0.3, 0.5));
        // Values that agree: 1/√(3 + 1).
        let two = of(&[(0.0, 3.0), (0.4, 1.0)]).expect("a mean");
        assert!(
            (two.value - 0.1).abs() < 1e-12 && (two.sigma - 0.5).abs() < 1e-12,
            "{two:?}"
        );
        let many: Vec<(f64, f64)> = (0..20).map(|k| (f64::from(k % 2) * 0.2, 100.0)).collect();
        let inside = of(&many).expect("a mean");
        let outlier = of(&[&many[..], &[(50.0, 100.0)]].concat()).expect("a mean");
        assert!((inside.value - 0.1).abs() < 1e-12, "{inside:?}");
        assert!((outlier.value - 0.1).abs() < 0.01, "{outlier:?}");
        assert!(
            outlier.sigma > 2.0 * inside.sigma,
            "it is seen in the deviation"
        );
    }
}
