//! Descriptor refinement (spec 3.4).

use super::scores::{Column, GROUP, Half, Scorer, Single};
use super::{Job, point, usable};

/// Refines the valid pixels of a band by f32 scores; returns how many moved.
pub(super) fn single(
    scorer: Single<'_>,
    job: &Job<'_>,
    first: usize,
    index: &mut [u32],
    valid: &[u8],
) -> usize {
    #[cfg(target_arch = "x86_64")]
    if let Some(scorer) = super::scores::x86::Avx2::new(scorer) {
        // SAFETY: the scorer exists, so AVX2 does.
        return unsafe { single_avx2(scorer, job, first, index, valid) };
    }
    band(scorer, job, first, false, index, valid)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn single_avx2(
    scorer: super::scores::x86::Avx2<'_>,
    job: &Job<'_>,
    first: usize,
    index: &mut [u32],
    valid: &[u8],
) -> usize {
    // A constant number of channels lets the compiler unroll the sums.
    match scorer.with_dim::<24>() {
        Some(scorer) => band(scorer, job, first, false, index, valid),
        None => band(scorer, job, first, false, index, valid),
    }
}

/// Refines every pixel of a band by f16 scores; returns how many valid ones moved.
pub(super) fn half(
    scorer: Half<'_>,
    job: &Job<'_>,
    first: usize,
    index: &mut [u32],
    valid: &[u8],
) -> usize {
    band(scorer, job, first, true, index, valid)
}

/// Refines a band. This and everything below is `inline(always)` and free of closures, so that it is
/// compiled with the caller's target features.
#[inline(always)]
fn band<S: Scorer>(
    scorer: S,
    job: &Job<'_>,
    first: usize,
    invalid_too: bool,
    index: &mut [u32],
    valid: &[u8],
) -> usize {
    let mut moved = 0;
    for (offset, (index, &valid)) in index.iter_mut().zip(valid).enumerate() {
        if valid == 0 && !invalid_too {
            continue;
        }
        let start = *index as usize;
        let end = refine(&scorer, job, first + offset, start);
        *index = end as u32;
        moved += usize::from(valid != 0 && start != end);
    }
    moved
}

/// The best candidate so far.
struct Best {
    score: f32,
    pixel: usize,
}

impl Best {
    /// Takes the candidates of `column` from the top, strictly better ones only.
    #[inline(always)]
    fn take<S: Scorer>(&mut self, scorer: &S, job: &Job<'_>, n: usize, column: Column) {
        let mut scores = [0.0; GROUP];
        scorer.scores(n, column, &mut scores);
        // Few columns hold a better one: ask for all candidates at once.
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

/// Follows the best-scoring pixel for pixel `n` of view 2 from `start` through all levels.
#[inline(always)]
fn refine<S: Scorer>(scorer: &S, job: &Job<'_>, n: usize, start: usize) -> usize {
    let (width, height, radius) = (job.width, job.height, job.params.radius);
    let mut best = Best {
        score: 0.0,
        pixel: start,
    };
    // Wider steps than the image leave only the centre.
    let mut step = job.params.dilation_max.min(width.max(height));
    while step > 0 {
        let centre = best.pixel;
        let (u, v) = (centre % width, centre / width);
        // Steps that stay inside the image.
        let left = radius.min(u / step);
        let right = radius.min((width - 1 - u) / step);
        let up = radius.min(v / step);
        let down = radius.min((height - 1 - v) / step);
        let origin = centre - (left + up * width) * step;

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
        step -= 1;
    }
    best.pixel
}
