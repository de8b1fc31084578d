//! Descriptor refinement (spec 3.4).

use super::scores::{GROUP, Half, Scorer, Single};
use super::{Job, TILE_COLUMNS, point, usable};

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

/// Refines a band tile by tile. Everything below is `inline(always)` and free of closures, so that
/// it is compiled with the caller's target features.
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
    for left in (0..job.width).step_by(TILE_COLUMNS) {
        let right = (left + TILE_COLUMNS).min(job.width);
        for row in (0..index.len()).step_by(job.width) {
            for offset in row + left..row + right {
                if valid[offset] == 0 && !invalid_too {
                    continue;
                }
                let start = index[offset] as usize;
                let end = refine(&scorer, job, first + offset, start);
                index[offset] = end as u32;
                moved += usize::from(valid[offset] != 0 && start != end);
            }
        }
    }
    moved
}

/// The best candidate so far.
struct Best {
    score: f32,
    pixel: usize,
}

impl Best {
    /// Takes the candidates of `group` in order, strictly better ones only.
    #[inline(always)]
    fn take<S: Scorer>(&mut self, scorer: &S, job: &Job<'_>, n: usize, group: &[usize; GROUP]) {
        let mut scores = [0.0; GROUP];
        scorer.scores(n, group, &mut scores);
        // Few groups hold a better one: ask for all eight at once.
        let mut any = false;
        for &score in &scores {
            any |= score > self.score;
        }
        if !any {
            return;
        }
        for l in 0..GROUP {
            let (score, pixel) = (scores[l], group[l]);
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
    let widest = job.params.dilation_max;
    let mut best = Best {
        score: 0.0,
        pixel: start,
    };
    let mut step = widest;
    while step > 0 {
        let centre = best.pixel;
        let (u, v) = (centre % width, centre / width);
        // Steps that stay inside the image.
        let left = radius.min(u / step);
        let right = radius.min((width - 1 - u) / step);
        let up = radius.min(v / step);
        let down = radius.min((height - 1 - v) / step);
        let origin = centre - (left + up * width) * step;

        let mut group = [centre; GROUP];
        let mut filled = 0;
        for x in 0..=left + right {
            for y in 0..=up + down {
                let pixel = origin + (x + y * width) * step;
                // The centre was scored a level before, and an equal score does not win.
                if pixel == centre && step != widest {
                    continue;
                }
                group[filled] = pixel;
                filled += 1;
                if filled == GROUP {
                    best.take(scorer, job, n, &group);
                    filled = 0;
                }
            }
        }
        if filled > 0 {
            // The last candidate again and again: it cannot win against itself.
            let last = group[filled - 1];
            for pixel in &mut group[filled..] {
                *pixel = last;
            }
            best.take(scorer, job, n, &group);
        }
        step -= 1;
    }
    best.pixel
}
