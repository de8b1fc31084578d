//! Descriptor refinement (spec 3.4).

use super::{Job, point, usable};
use half::f16;

/// Candidates scored together.
const GROUP: usize = 8;

/// Refines the valid pixels of a band with f32 scores; returns how many moved.
pub(super) fn single(
    job: &Job<'_>,
    first: usize,
    target: &[f32],
    query: &[f32],
    dim: usize,
    index: &mut [u32],
    valid: &[u8],
) -> usize {
    let mut moved = 0;
    job.for_each_in_tiles(index.len(), |offset| {
        if valid[offset] != 0 {
            let n = first + offset;
            let query = &query[n * dim..(n + 1) * dim];
            let start = index[offset] as usize;
            let end = refine(job, start, |candidates, best| {
                let mut scores = [0.0; GROUP];
                for (score, &pixel) in scores.iter_mut().zip(candidates) {
                    *score = dot(query, &target[pixel * dim..(pixel + 1) * dim]);
                }
                let _ = best;
                scores
            });
            index[offset] = end as u32;
            moved += usize::from(start != end);
        }
    });
    moved
}

/// Refines every pixel of a band with the reference's f16 scores; returns how many valid ones moved.
pub(super) fn half(
    job: &Job<'_>,
    first: usize,
    target: &[f16],
    query: &[f16],
    dim: usize,
    index: &mut [u32],
    valid: &[u8],
) -> usize {
    let mut moved = 0;
    job.for_each_in_tiles(index.len(), |offset| {
        let n = first + offset;
        let query = &query[n * dim..(n + 1) * dim];
        let start = index[offset] as usize;
        let end = refine(job, start, |candidates, _| {
            let mut scores = [0.0; GROUP];
            for (score, &pixel) in scores.iter_mut().zip(candidates) {
                *score = dot_half(query, &target[pixel * dim..(pixel + 1) * dim]);
            }
            scores
        });
        index[offset] = end as u32;
        moved += usize::from(valid[offset] != 0 && start != end);
    });
    moved
}

/// Follows the best-scoring pixel from `start` through all levels. `score` gives the scores of a
/// group of candidates.
#[inline(always)]
fn refine(
    job: &Job<'_>,
    start: usize,
    score: impl Fn(&[usize; GROUP], f32) -> [f32; GROUP],
) -> usize {
    let (width, height) = (job.width, job.height);
    let mut best = 0.0;
    let mut centre = start;
    let widest = job.params.dilation_max;
    for step in (1..=widest).rev() {
        let (u, v) = (centre % width, centre / width);
        // Steps that stay inside the image.
        let left = job.params.radius.min(u / step);
        let right = job.params.radius.min((width - 1 - u) / step);
        let up = job.params.radius.min(v / step);
        let down = job.params.radius.min((height - 1 - v) / step);
        let origin = centre - up * step * width - left * step;

        let mut winner = centre;
        let mut group = [origin; GROUP];
        let mut filled = 0;
        let mut flush = |group: &[usize; GROUP], filled: usize| {
            let scores = score(group, best);
            for (&s, &pixel) in scores.iter().zip(group).take(filled) {
                if s > best && s.is_finite() && usable(point(job.target_points, pixel)) {
                    best = s;
                    winner = pixel;
                }
            }
        };
        for x in 0..=left + right {
            for y in 0..=up + down {
                let pixel = origin + x * step + y * step * width;
                // The centre was scored a level before, and an equal score does not win.
                if pixel == centre && step != widest {
                    continue;
                }
                group[filled] = pixel;
                filled += 1;
                if filled == GROUP {
                    flush(&group, GROUP);
                    filled = 0;
                }
            }
        }
        if filled > 0 {
            flush(&group, filled);
        }
        centre = winner;
    }
    centre
}

/// Sum of products over eight lanes, in the order that [`super::Refinement::Single`] defines.
#[inline(always)]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 8];
    for (a, b) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        for l in 0..8 {
            lanes[l] += a[l] * b[l];
        }
    }
    ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3]))
        + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]))
}

/// Sum of products, rounded to f16 after every multiply and every add. An f32 operation on two f16
/// values followed by rounding gives the correctly rounded f16 result: 24 ≥ 2·11 + 2 bits.
#[inline(always)]
pub(super) fn dot_half(a: &[f16], b: &[f16]) -> f32 {
    let round = |x: f32| f16::from_f32(x).to_f32();
    a.iter().zip(b).fold(0.0, |sum, (a, b)| {
        round(sum + round(a.to_f32() * b.to_f32()))
    })
}
