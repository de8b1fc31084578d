//! Descriptor refinement (docs/algorithm.md, Matching).

use super::scores::{Column, GROUP, Scorer, Single};
use super::{Job, point, usable};

/// Pixels refined together.
const BLOCK: usize = 128;

/// Refines a band using f32 scores; returns how many valid pixels moved.
pub(super) fn single(
    scorer: Single<'_>,
    job: &Job<'_>,
    first: usize,
    invalid_too: bool,
    index: &mut [u32],
    valid: &[u8],
) -> usize {
    #[cfg(target_arch = "x86_64")]
    if let Some(scorer) = super::scores::x86::Avx2::new(scorer) {
        // SAFETY: the scorer exists only if AVX2 is available.
        return unsafe { single_avx2(scorer, job, first, invalid_too, index, valid) };
    }
    band(scorer, job, first, invalid_too, index, valid)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn single_avx2(
    scorer: super::scores::x86::Avx2<'_>,
    job: &Job<'_>,
    first: usize,
    invalid_too: bool,
    index: &mut [u32],
    valid: &[u8],
) -> usize {
    // A constant number of channels allows the compiler to unroll the sums.
    match scorer.with_dim::<24>() {
        Some(scorer) => band(scorer, job, first, invalid_too, index, valid),
        None => band(scorer, job, first, invalid_too, index, valid),
    }
}

/// Refines a band. This function and everything below is `inline(always)` and free of closures, so
/// that it is compiled with the caller's target features.
///
/// A block of pixels passes each level together, and within a level moves in steps of that level:
/// the candidates of neighbouring pixels then mostly coincide and are still in the L1 cache.
#[inline(always)]
fn band<S: Scorer>(
    scorer: S,
    job: &Job<'_>,
    first: usize,
    invalid_too: bool,
    index: &mut [u32],
    valid: &[u8],
) -> usize {
    // Steps wider than the image would leave only the centre.
    let widest = job.params.dilation_max.min(job.width.max(job.height));
    let mut moved = 0;
    for (block, (index, valid)) in index.chunks_mut(BLOCK).zip(valid.chunks(BLOCK)).enumerate() {
        let first = first + block * BLOCK;
        let mut best = [Best::NONE; BLOCK];
        for (best, &index) in best.iter_mut().zip(index.iter()) {
            best.pixel = index as usize;
        }
        let mut step = widest;
        while step > 0 {
            for phase in 0..step.min(BLOCK) {
                let mut l = phase;
                while l < index.len() {
                    if valid[l] != 0 || invalid_too {
                        level(&scorer, job, first + l, step, &mut best[l]);
                    }
                    l += step;
                }
            }
            step -= 1;
        }
        for ((index, &valid), best) in index.iter_mut().zip(valid).zip(&best) {
            let end = best.pixel as u32;
            moved += usize::from(valid != 0 && *index != end);
            *index = end;
        }
    }
    moved
}

/// The best candidate so far.
#[derive(Clone, Copy)]
struct Best {
    score: f32,
    pixel: usize,
}

impl Best {
    const NONE: Self = Self {
        score: 0.0,
        pixel: 0,
    };

    /// Considers the candidates of `column` from the top; only a strictly better one replaces the
    /// best.
    #[inline(always)]
    fn take<S: Scorer>(&mut self, scorer: &S, job: &Job<'_>, n: usize, column: Column) {
        let mut scores = [0.0; GROUP];
        scorer.scores(n, column, &mut scores);
        // Few columns have a better candidate: test all candidates at once first.
        let mut any = false;
        for &score in &scores {
            any |= score > self.score;
        }
        if !any {
            return;
        }
        for (l, &score) in scores.iter().enumerate() {
            let pixel = column.pixel(l);
            if score > self.score && score.is_finite() && usable(point(job.target_points, pixel)) {
                *self = Self { score, pixel };
            }
        }
    }
}

/// Moves `best` to the best-scoring pixel around it for pixel `n` of view 2, at offsets that are
/// multiples of `step`.
#[inline(always)]
fn level<S: Scorer>(scorer: &S, job: &Job<'_>, n: usize, step: usize, best: &mut Best) {
    let (width, height, radius) = (job.width, job.height, job.params.radius);
    let (u, v) = (best.pixel % width, best.pixel / width);
    // Limit the steps to the image.
    let left = radius.min(u / step);
    let right = radius.min((width - 1 - u) / step);
    let up = radius.min(v / step);
    let down = radius.min((height - 1 - v) / step);
    let origin = best.pixel - (left + up * width) * step;
    let rows = up + down + 1;
    for x in 0..=left + right {
        let mut y = 0;
        while y < rows {
            let column = Column {
                top: origin + (x + y * width) * step,
                stride: step * width,
                count: (rows - y).min(GROUP),
            };
            best.take(scorer, job, n, column);
            y += GROUP;
        }
    }
}
