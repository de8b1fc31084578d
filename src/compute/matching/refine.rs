//! Descriptor refinement (docs/algorithm.md, Matching).

use super::scores::{Column, GROUP, Scorer, Scorers, Single};
use super::{Job, point, usable};

/// Pixels refined together.
const BLOCK: usize = 128;

/// Refines a band; returns how many valid pixels moved.
pub(super) fn run(
    scorers: Scorers<Single<'_>>,
    job: &Job<'_>,
    first: usize,
    invalid_too: bool,
    index: &mut [u32],
    valid: &[u8],
) -> usize {
    #[cfg(target_arch = "x86_64")]
    if let Some(scorers) = scorers.map(super::scores::x86::Avx2::new) {
        // SAFETY: the scorers exist only if AVX2 is available.
        return unsafe { run_avx2(scorers, job, first, invalid_too, index, valid) };
    }
    band(scorers, job, first, invalid_too, index, valid)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn run_avx2(
    scorers: Scorers<super::scores::x86::Avx2<'_>>,
    job: &Job<'_>,
    first: usize,
    invalid_too: bool,
    index: &mut [u32],
    valid: &[u8],
) -> usize {
    // A constant number of channels allows the compiler to unroll the sums.
    match scorers.map(super::scores::x86::Avx2::with_dim::<24>) {
        Some(scorers) => band(scorers, job, first, invalid_too, index, valid),
        None => band(scorers, job, first, invalid_too, index, valid),
    }
}

/// Refines a band. This function and everything below is `inline(always)` and free of closures, so
/// that it is compiled with the caller's target features.
///
/// A block of pixels passes each level together, and within a level moves in steps of that level:
/// the candidates of neighbouring pixels then mostly coincide and are still in the L1 cache.
#[inline(always)]
fn band<S: Scorer>(
    scorers: Scorers<S>,
    job: &Job<'_>,
    first: usize,
    invalid_too: bool,
    index: &mut [u32],
    valid: &[u8],
) -> usize {
    let Scorers { rounded, exact } = scorers;
    let radius = job.params.radius;
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
                        level(&rounded, job, first + l, (radius, step), &mut best[l]);
                    }
                    l += step;
                }
            }
            step -= 1;
        }
        for (l, ((index, &valid), best)) in index.iter_mut().zip(valid).zip(&mut best).enumerate() {
            if valid != 0 || invalid_too {
                best.score_exactly(&exact, job, first + l);
                for _ in 0..radius {
                    let before = best.pixel;
                    level(&exact, job, first + l, (1, 1), best);
                    if best.pixel == before {
                        break;
                    }
                }
            }
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

    /// Replaces the score of rounded descriptors with the exact one, or with zero if that pixel cannot be a match.
    #[inline(always)]
    fn score_exactly<S: Scorer>(&mut self, scorer: &S, job: &Job<'_>, n: usize) {
        let column = Column {
            top: self.pixel,
            stride: 0,
            count: 1,
        };
        let pixel = std::mem::replace(self, Self::NONE).pixel;
        self.take(scorer, job, n, column);
        self.pixel = pixel;
    }

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

/// Moves `best` to the best-scoring pixel around it for pixel `n` of view 2, at offsets of up to `radius` times `step`
/// that are multiples of `step`.
#[inline(always)]
fn level<S: Scorer>(
    scorer: &S,
    job: &Job<'_>,
    n: usize,
    (radius, step): (usize, usize),
    best: &mut Best,
) {
    let (width, height) = (job.width, job.height);
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
