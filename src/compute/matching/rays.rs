//! The ray image: unit rays of view 1 and their image gradients (docs/algorithm.md, Matching).

use rayon::prelude::*;

/// Floats per pixel: `[R(3), 0, Gu(3), 0, Gv(3), 0]`. Each group is padded to four for vector
/// loads.
pub(super) const STRIDE: usize = 12;

/// `X / max(‖X‖, 1e-12)`.
#[inline(always)]
pub(super) fn unit(p: [f32; 3]) -> [f32; 3] {
    let norm = (p[0] * p[0] + p[1] * p[1] + p[2] * p[2]).sqrt().max(1e-12);
    [p[0] / norm, p[1] / norm, p[2] / norm]
}

/// Index of a neighbour with reflection at the border: -1 becomes 1, `n` becomes `n - 2`. `n >= 2`.
#[inline(always)]
pub(super) fn reflect(i: isize, n: usize) -> usize {
    let last = n as isize - 1;
    (if i < 0 {
        -i
    } else if i > last {
        2 * last - i
    } else {
        i
    }) as usize
}

/// Scharr derivative with unit response per pixel: 3/32 and 10/32 of the differences across the
/// centre; `plus` and `minus` are the three samples on either side, the middle one second.
#[inline(always)]
pub(super) fn scharr(plus: [f32; 3], minus: [f32; 3]) -> f32 {
    (3.0 * (plus[0] - minus[0]) + 10.0 * (plus[1] - minus[1]) + 3.0 * (plus[2] - minus[2]))
        * (1.0 / 32.0)
}

/// Fills `out` (`N × 12`) from `points` (`N × 3`); `width` and `height` must be at least 3.
pub(super) fn build(points: &[f32], width: usize, height: usize, out: &mut [f32]) {
    out.par_chunks_exact_mut(width * STRIDE)
        .enumerate()
        .for_each(|(v, row)| {
            let above = reflect(v as isize - 1, height);
            let below = reflect(v as isize + 1, height);
            let ray = |u: usize, v: usize| unit(super::point(points, v * width + u));
            let column = |u: usize| [ray(u, above), ray(u, v), ray(u, below)];
            // A window of three columns of normalised rays slides along the row.
            let mut left = column(1);
            let mut here = column(0);
            for (u, pixel) in row.chunks_exact_mut(STRIDE).enumerate() {
                let right = if u + 1 < width { column(u + 1) } else { left };
                for c in 0..3 {
                    pixel[c] = here[1][c];
                    pixel[4 + c] = scharr(
                        [right[0][c], right[1][c], right[2][c]],
                        [left[0][c], left[1][c], left[2][c]],
                    );
                    pixel[8 + c] = scharr(
                        [left[2][c], here[2][c], right[2][c]],
                        [left[0][c], here[0][c], right[0][c]],
                    );
                }
                left = here;
                here = right;
            }
        });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with Scharr's 3×3 kernels in f64, on an explicitly padded image.
    #[test]
    fn gradients_are_the_scharr_kernels_of_the_padded_ray_image() {
        let kernel = [[-3.0, 0.0, 3.0], [-10.0, 0.0, 10.0], [-3.0, 0.0, 3.0]];
        for (width, height) in [(3, 3), (7, 4), (5, 9)] {
            let points: Vec<f32> = (0..3 * width * height)
                .map(|i| ((i * i * 7 + i * 3) % 23) as f32 - 10.3)
                .collect();
            let mut image = vec![0.0; width * height * STRIDE];
            build(&points, width, height, &mut image);

            let ray = |u: usize, v: usize, c: usize| {
                let p = &points[3 * (v * width + u)..][..3];
                let norm = p.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
                f64::from(p[c]) / norm
            };
            // One extra row and column on each side, repeating the second one: 1 | 0 1 2 … n-1 |
            // n-2.
            let order = |n: usize| -> Vec<usize> {
                std::iter::once(1).chain(0..n).chain([n - 2]).collect()
            };
            let (columns, rows) = (order(width), order(height));
            for v in 0..height {
                for u in 0..width {
                    let pixel = &image[(v * width + u) * STRIDE..][..STRIDE];
                    for c in 0..3 {
                        let (mut gu, mut gv) = (0.0, 0.0);
                        for (y, weights) in kernel.iter().enumerate() {
                            for (x, weight) in weights.iter().enumerate() {
                                gu += weight / 32.0 * ray(columns[u + x], rows[v + y], c);
                                gv += weight / 32.0 * ray(columns[u + y], rows[v + x], c);
                            }
                        }
                        // About ten f32 roundings of numbers up to 1.
                        for (found, expected) in [
                            (pixel[c], ray(u, v, c)),
                            (pixel[4 + c], gu),
                            (pixel[8 + c], gv),
                        ] {
                            assert!(
                                (f64::from(found) - expected).abs() < 1e-6,
                                "({u}, {v}) channel {c}: {found} for {expected}"
                            );
                        }
                    }
                }
            }
        }
    }
}
