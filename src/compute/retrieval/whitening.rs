//! Whitens encoder features into local descriptors (docs/algorithm.md, Place recognition, steps 1
//! and 2).

use multiversion::multiversion;
use multiversion::target::match_target;
use rayon::prelude::*;

/// Block size of the kernel.
const ROWS: usize = 4;
const COLUMNS: usize = 8;
/// Rows per parallel task; a multiple of `ROWS`.
const TASK_ROWS: usize = 16;

/// `dst = (features − mean) · projection` in f64, rounded to f32 at the end, as in the reference.
///
/// `features` and `dst` are `T × C`, `mean` is `C`, `projection` is `C × C` and applied from the
/// right, where `C` is `mean.len()`.
///
/// # Panics
/// If the lengths do not match; callers validate external data.
pub fn whiten(features: &[f32], mean: &[f64], projection: &[f64], dst: &mut [f32]) {
    let dim = mean.len();
    assert_eq!(projection.len(), dim * dim, "projection is C × C");
    assert_eq!(features.len(), dst.len(), "features and dst are both T × C");
    if dim == 0 {
        return;
    }
    assert_eq!(features.len() % dim, 0, "features are T × C");
    features
        .par_chunks(TASK_ROWS * dim)
        .zip(dst.par_chunks_mut(TASK_ROWS * dim))
        .for_each_init(
            || (vec![0.0; TASK_ROWS * dim], vec![[0.0; COLUMNS]; dim]),
            |(centred, panel), (features, dst)| {
                // In a shorter last task, the unused rows keep stale values that are never read.
                for (row, centred) in features
                    .chunks_exact(dim)
                    .zip(centred.chunks_exact_mut(dim))
                {
                    for ((c, &f), &m) in centred.iter_mut().zip(row).zip(mean) {
                        *c = f64::from(f) - m;
                    }
                }
                project(centred, projection, panel, dst);
            },
        );
}

/// `dst[r] = centred[r] · projection` for the rows of `dst`, at most `TASK_ROWS`. `panel` is
/// scratch memory with as many entries as a row.
#[multiversion(targets("x86_64+avx2+fma"))]
fn project(centred: &[f64], projection: &[f64], panel: &mut [[f64; COLUMNS]], dst: &mut [f32]) {
    match_target! {
        "x86_64+avx2+fma" => project_generic::<true>(centred, projection, panel, dst),
        "aarch64" => project_generic::<true>(centred, projection, panel, dst),
        _ => project_generic::<false>(centred, projection, panel, dst),
    }
}

#[inline(always)]
fn project_generic<const FMA: bool>(
    centred: &[f64],
    projection: &[f64],
    panel: &mut [[f64; COLUMNS]],
    dst: &mut [f32],
) {
    let dim = panel.len();
    for start in (0..dim).step_by(COLUMNS) {
        // A packed block of columns stays in the cache for all rows; in a narrower last block, the
        // unused columns hold stale values that are never read.
        let width = COLUMNS.min(dim - start);
        for (packed, line) in panel.iter_mut().zip(projection.chunks_exact(dim)) {
            packed[..width].copy_from_slice(&line[start..start + width]);
        }
        for (dst, centred) in dst
            .chunks_mut(ROWS * dim)
            .zip(centred.chunks_exact(ROWS * dim))
        {
            let rows = std::array::from_fn(|r| &centred[r * dim..(r + 1) * dim]);
            let sums = products::<FMA>(&rows, panel);
            for (row, sums) in dst.chunks_exact_mut(dim).zip(&sums) {
                for (d, &sum) in row[start..start + width].iter_mut().zip(sums) {
                    *d = sum as f32;
                }
            }
        }
    }
}

/// Scalar products of `ROWS` rows with the `COLUMNS` columns of a panel.
#[inline(always)]
fn products<const FMA: bool>(
    rows: &[&[f64]; ROWS],
    panel: &[[f64; COLUMNS]],
) -> [[f64; COLUMNS]; ROWS] {
    let rows = rows.map(|row| &row[..panel.len()]);
    let mut sums = [[0.0; COLUMNS]; ROWS];
    for (c, line) in panel.iter().enumerate() {
        for (sums, row) in sums.iter_mut().zip(rows) {
            let y = row[c];
            for (sum, &p) in sums.iter_mut().zip(line) {
                *sum = if FMA {
                    y.mul_add(p, *sum)
                } else {
                    *sum + y * p
                };
            }
        }
    }
    sums
}

/// Ascending indices of the up to `keep` rows of `rows` (`T × dim`) with the largest L2 norm; ties
/// go to the lower index.
pub fn strongest(rows: &[f32], dim: usize, keep: usize, dst: &mut Vec<u32>) {
    dst.clear();
    if dim == 0 {
        return;
    }
    let count = rows.len() / dim;
    dst.extend(0..count as u32);
    if count <= keep {
        return;
    }
    let norm = |index: &u32| -> f64 {
        let start = *index as usize * dim;
        rows[start..start + dim]
            .iter()
            .map(|&v| f64::from(v) * f64::from(v))
            .sum()
    };
    dst.sort_by_cached_key(|index| {
        // Squared norms are non-negative, and for such floats the bit patterns are ordered like the
        // values.
        (std::cmp::Reverse(norm(index).to_bits()), *index)
    });
    dst.truncate(keep);
    dst.sort_unstable();
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use testkit::random::Random;

    fn naive(features: &[f32], mean: &[f64], projection: &[f64]) -> Vec<f64> {
        let dim = mean.len();
        let mut out = Vec::new();
        for row in features.chunks_exact(dim) {
            for j in 0..dim {
                out.push(
                    (0..dim)
                        .map(|c| (f64::from(row[c]) - mean[c]) * projection[c * dim + j])
                        .sum(),
                );
            }
        }
        out
    }

    proptest! {
        #[test]
        fn whitening_equals_the_formula(
            count in 0usize..40, dim in 1usize..23, seed in any::<u32>(),
        ) {
            let mut random = Random(u64::from(seed) + 1);
            let mut next = || 2.0 * f64::from(random.centred());
            let features: Vec<f32> = (0..count * dim).map(|_| next() as f32).collect();
            let mean: Vec<f64> = (0..dim).map(|_| next()).collect();
            let projection: Vec<f64> = (0..dim * dim).map(|_| next()).collect();
            let mut dst = vec![f32::NAN; count * dim];
            whiten(&features, &mean, &projection, &mut dst);
            for (&got, want) in dst.iter().zip(naive(&features, &mean, &projection)) {
                // One f32 rounding (6e-8 relative) of a sum below 46, plus f64 rounding.
                prop_assert!((f64::from(got) - want).abs() <= 6.0e-8 * want.abs() + 1e-13);
            }
        }
    }

    #[test]
    fn strongest_rows_ties_to_the_lower_index() {
        let rows = [1.0, 0.0, 3.0, 0.0, 0.0, 3.0, 2.0, 0.0, -3.0, 0.0];
        let mut kept = vec![9];
        for (keep, want) in [
            (0, &[][..]),
            (1, &[1]),
            (2, &[1, 2]),
            (3, &[1, 2, 4]),
            (4, &[1, 2, 3, 4]),
            (5, &[0, 1, 2, 3, 4]),
            (99, &[0, 1, 2, 3, 4]),
        ] {
            strongest(&rows, 2, keep, &mut kept);
            assert_eq!(kept, want, "{keep}");
        }
        strongest(&[], 2, 3, &mut kept);
        assert!(kept.is_empty());
    }
}
