//! Scores of descriptor candidates: f32 sums with bit-identical AVX2 and portable implementations.

/// Maximum number of candidates scored together.
pub(super) const GROUP: usize = 8;

/// Up to [`GROUP`] candidates in one column of view 1.
#[derive(Clone, Copy)]
pub(super) struct Column {
    pub top: usize,
    /// Distance between consecutive candidates, in pixels.
    pub stride: usize,
    /// Number of candidates, `1..=GROUP`.
    pub count: usize,
}

impl Column {
    /// Candidate `l`; the last one if `l` is beyond the end.
    #[inline(always)]
    pub fn pixel(self, l: usize) -> usize {
        self.top + l.min(self.count - 1) * self.stride
    }
}

/// Scores candidates for a pixel.
pub(super) trait Scorer {
    /// Dot products of the descriptor of pixel `n` of view 2 with those of `column`. Beyond the end
    /// of the column, the score is that of the last candidate or zero: neither beats an earlier
    /// candidate.
    fn scores(&self, n: usize, column: Column, out: &mut [f32; GROUP]);
}

/// Scorers of the descriptors as they are, and of [`rounded`] ones.
#[derive(Clone, Copy)]
pub(super) struct Scorers<S> {
    pub rounded: S,
    pub exact: S,
}

impl<S> Scorers<S> {
    /// Applies `make` to both; `None` if it fails.
    pub fn map<T>(self, make: impl Fn(S) -> Option<T>) -> Option<Scorers<T>> {
        Some(Scorers {
            rounded: make(self.rounded)?,
            exact: make(self.exact)?,
        })
    }
}

/// A channel of a descriptor in 127ths, which a device stores in 8 bits. Values that no unit vector has, NaN and those
/// beyond ±1, become 0: they would win against every match around. f32 adds the products, up to 127², of 1040 channels
/// without an error.
pub(super) fn rounded(x: f32) -> f32 {
    // In f32 the sum with 1.5·2²³ is rounded to a whole number, half to even, and vectorises, unlike libm's `rintf`.
    const WHOLE: f32 = 12_582_912.0;
    let rounded = (x * 127.0 + WHOLE) - WHOLE;
    if rounded.abs() <= 127.0 { rounded } else { 0.0 }
}

/// Descriptors of both views with `dim` channels, a multiple of eight; portable implementation.
#[derive(Clone, Copy)]
pub(super) struct Single<'a> {
    pub target: &'a [f32],
    pub query: &'a [f32],
    pub dim: usize,
}

impl Scorer for Single<'_> {
    #[inline(always)]
    fn scores(&self, n: usize, column: Column, out: &mut [f32; GROUP]) {
        let query = &self.query[n * self.dim..(n + 1) * self.dim];
        *out = [0.0; GROUP];
        for (l, out) in out.iter_mut().enumerate().take(column.count) {
            let pixel = column.pixel(l);
            *out = dot(
                query,
                &self.target[pixel * self.dim..(pixel + 1) * self.dim],
            );
        }
    }
}

/// Sum of products over eight lanes, in the order that [`super::Refinement::Single`] defines.
#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 8];
    for (a, b) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        for l in 0..8 {
            lanes[l] += a[l] * b[l];
        }
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + b) + (c + d)) + ((e + f) + (g + h))
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use super::{Column, GROUP, Scorer, Single};
    use std::arch::x86_64::*;

    /// AVX2 version of [`Single`]: one vector holds the eight lanes of a candidate, and the lanes
    /// of eight candidates are added together. `DIM` is the number of channels, or 0 if it is not
    /// known at compile time.
    #[derive(Clone, Copy)]
    pub struct Avx2<'a, const DIM: usize = 0>(Single<'a>);

    impl<'a> Avx2<'a> {
        /// `None` if the processor does not support AVX2.
        pub fn new(single: Single<'a>) -> Option<Self> {
            std::arch::is_x86_feature_detected!("avx2").then_some(Self(single))
        }

        /// Fixes the number of channels at compile time, if it equals `DIM`.
        pub fn with_dim<const DIM: usize>(self) -> Option<Avx2<'a, DIM>> {
            (self.0.dim == DIM).then_some(Avx2(self.0))
        }
    }

    impl<const DIM: usize> Scorer for Avx2<'_, DIM> {
        #[inline(always)]
        fn scores(&self, n: usize, column: Column, out: &mut [f32; GROUP]) {
            if column.count == 7 {
                // A whole column of the default radius.
                self.sums::<7>(n, column, out);
            } else {
                self.sums::<GROUP>(n, column, out);
            }
        }
    }

    impl<const DIM: usize> Avx2<'_, DIM> {
        /// Scores the first `COUNT` candidates, repeating the last one beyond the column's end.
        #[inline(always)]
        fn sums<const COUNT: usize>(&self, n: usize, column: Column, out: &mut [f32; GROUP]) {
            let Single { target, query, dim } = self.0;
            let dim = if DIM > 0 { DIM } else { dim };
            let query = &query[n * dim..(n + 1) * dim];
            // Both ends are in range, so everything between is too.
            let target = &target[column.top * dim..(column.pixel(GROUP - 1) + 1) * dim];
            // SAFETY: the value exists only if AVX2 is available. Candidate `l` of the column
            // starts at float `(column.pixel(l) - top) * dim` of `target`, whose last `dim` floats
            // belong to the last candidate; `query` has `dim` floats, `k + 8 <= dim`, and `out` has
            // eight.
            unsafe {
                let mut lanes = [_mm256_setzero_ps(); GROUP];
                let mut k = 0;
                while k + 8 <= dim {
                    let q = _mm256_loadu_ps(query.as_ptr().add(k));
                    for (l, lanes) in lanes.iter_mut().enumerate().take(COUNT) {
                        let step = if COUNT == GROUP {
                            l.min(column.count - 1)
                        } else {
                            l
                        };
                        let at = step * column.stride * dim + k;
                        let product = _mm256_mul_ps(q, _mm256_loadu_ps(target.as_ptr().add(at)));
                        *lanes = if k == 0 {
                            product
                        } else {
                            _mm256_add_ps(*lanes, product)
                        };
                    }
                    k += 8;
                }
                let [a, b, c, d, e, f, g, h] = lanes;
                // For four candidates at a time: (0+1)+(2+3) in the low half, (4+5)+(6+7) in the
                // high half.
                let first = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
                let second = _mm256_hadd_ps(_mm256_hadd_ps(e, f), _mm256_hadd_ps(g, h));
                let low = _mm256_permute2f128_ps::<0x20>(first, second);
                let high = _mm256_permute2f128_ps::<0x31>(first, second);
                _mm256_storeu_ps(out.as_mut_ptr(), _mm256_add_ps(low, high));
            }
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::x86::Avx2;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn channels_are_rounded_half_to_even_and_invalid_ones_become_0() {
        for step in -2600..=2600 {
            // From -130 to 130 127ths, halves among them.
            let x = step as f32 / 20.0 / 127.0;
            let whole = (x * 127.0).round_ties_even();
            let expected = if whole.abs() <= 127.0 { whole } else { 0.0 };
            assert_eq!(rounded(x), expected, "{x}");
        }
        for x in [f32::NAN, f32::INFINITY, -f32::INFINITY, f32::MAX, -1e5, 3e4] {
            assert_eq!(rounded(x), 0.0, "{x}");
        }
        assert_eq!(rounded(f32::MIN_POSITIVE), 0.0);
    }

    proptest! {
        /// Both f32 scorers agree bit for bit wherever a score could win; NaN payloads may differ.
        #[test]
        fn avx2_equals_portable(
            blocks in 0usize..6,
            top in 0usize..5,
            stride in 1usize..4,
            count in 1usize..=GROUP,
            bits in prop::collection::vec(any::<u32>(), 2 * 40 * 40),
            ordinary in any::<bool>(),
        ) {
            let dim = 8 * blocks;
            let value = |&bits: &u32| if ordinary {
                bits as f32 / 2f32.powi(31) - 1.0
            } else {
                f32::from_bits(bits)
            };
            let values: Vec<f32> = bits.iter().map(value).collect();
            let (target, query) = values.split_at(40 * 40);
            let single = Single { target, query, dim };
            let column = Column { top, stride, count };
            let Some(avx2) = Avx2::new(single) else {
                return Ok(());
            };
            let mut expected = [0.0; GROUP];
            single.scores(1, column, &mut expected);
            let mut known = vec![[0.0; GROUP]];
            avx2.scores(1, column, &mut known[0]);
            if let Some(avx2) = avx2.with_dim::<24>() {
                known.push([0.0; GROUP]);
                avx2.scores(1, column, &mut known[1]);
            }
            for found in known {
                for l in 0..GROUP {
                    if l < count {
                        let same = found[l] == expected[l]
                            || found[l].is_nan() && expected[l].is_nan();
                        prop_assert!(same, "{l}: {} for {}", found[l], expected[l]);
                    } else {
                        let last = found[count - 1];
                        prop_assert!(found[l] == 0.0 || found[l] == last || last.is_nan());
                    }
                }
            }
        }
    }
}
