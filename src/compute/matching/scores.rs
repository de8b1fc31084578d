//! Scores of descriptor candidates: one definition of the f32 sum, one implementation for AVX2 and
//! one for everything else, equal bit for bit; and the reference's f16 sum.

use half::f16;

/// Candidates scored together.
pub(super) const GROUP: usize = 8;

/// Scores candidates for a pixel.
pub(super) trait Scorer {
    /// Dot products of the descriptor of pixel `n` of view 2 with those of the pixels in `group` of
    /// view 1.
    fn scores(&self, n: usize, group: &[usize; GROUP], out: &mut [f32; GROUP]);
}

/// Descriptors of both views with `dim` channels, a multiple of eight; plain Rust.
#[derive(Clone, Copy)]
pub(super) struct Single<'a> {
    pub target: &'a [f32],
    pub query: &'a [f32],
    pub dim: usize,
}

impl Scorer for Single<'_> {
    #[inline(always)]
    fn scores(&self, n: usize, group: &[usize; GROUP], out: &mut [f32; GROUP]) {
        let query = &self.query[n * self.dim..(n + 1) * self.dim];
        for l in 0..GROUP {
            out[l] = dot(
                query,
                &self.target[group[l] * self.dim..(group[l] + 1) * self.dim],
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

/// Descriptors of both views in f16, any number of channels. Sums are rounded to f16 after every
/// multiply and every add. An f32 operation on two f16 values followed by rounding gives the
/// correctly rounded f16 result, because 24 ≥ 2·11 + 2 bits.
#[derive(Clone, Copy)]
pub(super) struct Half<'a> {
    pub target: &'a [f16],
    pub query: &'a [f16],
    pub dim: usize,
}

impl Scorer for Half<'_> {
    fn scores(&self, n: usize, group: &[usize; GROUP], out: &mut [f32; GROUP]) {
        let round = |x: f32| f16::from_f32(x).to_f32();
        let query = &self.query[n * self.dim..(n + 1) * self.dim];
        for (out, &pixel) in out.iter_mut().zip(group) {
            let target = &self.target[pixel * self.dim..(pixel + 1) * self.dim];
            *out = query.iter().zip(target).fold(0.0, |sum, (a, b)| {
                round(sum + round(a.to_f32() * b.to_f32()))
            });
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use super::{GROUP, Scorer, Single};
    use std::arch::x86_64::*;

    /// [`Single`] where AVX2 was found: one vector holds the eight lanes of a candidate, and the
    /// lanes of eight candidates are added together. `DIM` is the number of channels, or 0 where it
    /// is not known at compile time.
    #[derive(Clone, Copy)]
    pub struct Avx2<'a, const DIM: usize = 0>(Single<'a>);

    impl<'a> Avx2<'a> {
        /// None where the processor has no AVX2.
        pub fn new(single: Single<'a>) -> Option<Self> {
            std::arch::is_x86_feature_detected!("avx2").then_some(Self(single))
        }

        /// The same for a number of channels known at compile time, if this is it.
        pub fn with_dim<const DIM: usize>(self) -> Option<Avx2<'a, DIM>> {
            (self.0.dim == DIM).then_some(Avx2(self.0))
        }
    }

    impl<const DIM: usize> Scorer for Avx2<'_, DIM> {
        #[inline(always)]
        fn scores(&self, n: usize, group: &[usize; GROUP], out: &mut [f32; GROUP]) {
            let Single { target, query, dim } = self.0;
            let dim = if DIM > 0 { DIM } else { dim };
            let query = &query[n * dim..(n + 1) * dim];
            let mut candidates = [query; GROUP];
            for l in 0..GROUP {
                candidates[l] = &target[group[l] * dim..(group[l] + 1) * dim];
            }
            // SAFETY: the value exists only where AVX2 was found. `query` and every candidate hold
            // `dim` floats and `k + 8 <= dim`; `out` holds eight.
            unsafe {
                let mut lanes = [_mm256_setzero_ps(); GROUP];
                let mut k = 0;
                while k + 8 <= dim {
                    let q = _mm256_loadu_ps(query.as_ptr().add(k));
                    for l in 0..GROUP {
                        let t = _mm256_loadu_ps(candidates[l].as_ptr().add(k));
                        lanes[l] = _mm256_add_ps(lanes[l], _mm256_mul_ps(q, t));
                    }
                    k += 8;
                }
                let [a, b, c, d, e, f, g, h] = lanes;
                // Of four candidates each: (0+1)+(2+3) in the low half, (4+5)+(6+7) in the high.
                let first = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
                let second = _mm256_hadd_ps(_mm256_hadd_ps(e, f), _mm256_hadd_ps(g, h));
                let low = _mm256_permute2f128_ps::<0x20>(first, second);
                let high = _mm256_permute2f128_ps::<0x31>(first, second);
                _mm256_storeu_ps(out.as_mut_ptr(), _mm256_add_ps(low, high));
            }
        }
    }
}
