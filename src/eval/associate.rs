//! Association of two trajectories by nearest stamp within a tolerance. Ties are resolved as in
//! `evo` (`sync.associate_trajectories`).

use crate::time::Stamp;

/// The stamp as the f64 nearest to its decimal text, which is the value that a float parser
/// compares. (`Stamp::seconds` may be off in the last bit, and that bit decides ties.)
pub(super) fn seconds(stamp: Stamp) -> f64 {
    let sign = if stamp.nanos < 0 { "-" } else { "" };
    let nanos = stamp.nanos.unsigned_abs();
    let (whole, rest) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    format!("{sign}{whole}.{rest:09}")
        .parse()
        .unwrap_or_else(|_| stamp.seconds())
}

/// Index pairs `(estimate, ground truth)`. Each pose of the shorter trajectory (the estimate if
/// equal) is paired with its nearest in the other, whose poses may be used several times. `offset`
/// is added to the estimate's stamps.
pub(super) fn associate(
    estimate: &[f64],
    ground_truth: &[f64],
    tolerance: f64,
    offset: f64,
) -> Vec<(usize, usize)> {
    if estimate.len() > ground_truth.len() {
        nearest(ground_truth, estimate, tolerance, offset)
            .into_iter()
            .map(|(g, e)| (e, g))
            .collect()
    } else {
        nearest(estimate, ground_truth, tolerance, -offset)
    }
}

/// For each element of `short`, the nearest element of `long + offset` within the tolerance.
fn nearest(short: &[f64], long: &[f64], tolerance: f64, offset: f64) -> Vec<(usize, usize)> {
    let long: Vec<f64> = long.iter().map(|s| s + offset).collect();
    let sorted = long.is_sorted();
    let find = |s: f64| {
        if sorted {
            nearest_sorted(s, &long, tolerance)
        } else {
            nearest_linear(s, &long, tolerance)
        }
    };
    let found = short.iter().enumerate();
    found.filter_map(|(i, &s)| Some((i, find(s)?))).collect()
}

/// Among equally near stamps the earlier one; among equal stamps the last.
fn nearest_sorted(s: f64, long: &[f64], tolerance: f64) -> Option<usize> {
    let (first, last) = (*long.first()?, *long.last()?);
    if s < first - tolerance || s > last + tolerance {
        return None;
    }
    let after = long.partition_point(|&l| l <= s).min(long.len() - 1);
    let ahead = long[after] - s;
    let behind = match after {
        0 => f64::INFINITY,
        _ => s - long[after - 1],
    };
    if ahead <= tolerance && ahead < behind {
        Some(after)
    } else if behind <= tolerance && behind <= ahead {
        Some(after - 1)
    } else {
        None
    }
}

/// The first of the nearest stamps.
fn nearest_linear(s: f64, long: &[f64], tolerance: f64) -> Option<usize> {
    let distances = long.iter().map(|l| (l - s).abs()).enumerate();
    let (index, distance) = distances.min_by(|a, b| a.1.total_cmp(&b.1))?;
    (distance <= tolerance).then_some(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_read_as_the_nearest_double() {
        for text in [
            "1305031102.175304",
            "1000.033333",
            "-0.1",
            "1403636579.763555584",
        ] {
            let stamp: Stamp = text.parse().unwrap();
            assert_eq!(seconds(stamp), text.parse::<f64>().unwrap(), "{text}");
        }
    }

    #[test]
    fn the_tolerance_is_inclusive_and_ties_go_back_in_time() {
        let long = [0.0, 1.0, 2.0];
        assert_eq!(nearest(&[0.5], &long, 0.5, 0.0), [(0, 0)]);
        assert_eq!(nearest(&[2.25], &long, 0.25, 0.0), [(0, 2)]);
        assert_eq!(nearest(&[2.26], &long, 0.25, 0.0), []);
        assert_eq!(nearest(&[-0.25, 1.75], &long, 0.25, 0.0), [(0, 0), (1, 2)]);
    }

    #[test]
    fn the_shorter_trajectory_asks_and_pairs_keep_their_sides() {
        let (estimate, truth) = ([0.0, 0.1, 0.2, 0.3], [0.11, 0.31]);
        let pairs = [(1, 0), (3, 1)];
        assert_eq!(associate(&estimate, &truth, 0.02, 0.0), pairs);
        assert_eq!(associate(&estimate, &truth, 0.02, 0.1), [(0, 0), (2, 1)]);
        let swapped = [(0, 1), (1, 3)];
        assert_eq!(associate(&truth, &estimate, 0.02, 0.0), swapped);
    }

    #[test]
    fn stamps_out_of_order_are_searched_one_by_one() {
        assert_eq!(nearest(&[1.0], &[2.0, 1.0, 1.0], 0.1, 0.0), [(0, 1)]);
        assert_eq!(nearest(&[1.0], &[1.0, 1.0, 2.0], 0.1, 0.0), [(0, 1)]);
        assert_eq!(nearest(&[1.0], &[], 0.1, 0.0), []);
    }
}
