//! Iterative projective search and the occlusion check (docs/algorithm.md, Matching).

use super::rays::{STRIDE, unit};
use super::{Job, point, start, usable};

/// Number of pixels searched side by side. The iterations of one pixel depend on each other, so
/// several independent pixels hide the latency.
const LANES: usize = 8;

/// The ray image at a subpixel position: `[r̃, Gu, Gv]` in groups of four.
type Sample = [f32; STRIDE];

/// State of one pixel's search.
#[derive(Clone, Copy)]
struct Lane {
    /// Target direction.
    p: [f32; 3],
    u: f32,
    v: f32,
    lambda: f32,
    /// Sample at `(u, v)`; only its gradients are needed.
    sample: Sample,
    /// `r - p` at `(u, v)`.
    error: [f32; 3],
    cost: f32,
    /// Whether the search has ended.
    done: bool,
}

const IDLE: Lane = Lane {
    p: [0.0; 3],
    u: 1.0,
    v: 1.0,
    lambda: 0.0,
    sample: [0.0; STRIDE],
    error: [0.0; 3],
    cost: f32::NAN,
    done: true,
};

/// Clamps to `[1, last]`; NaN becomes 1.
#[inline(always)]
fn clamp(x: f32, last: f32) -> f32 {
    x.max(1.0).min(last)
}

/// Bilinear sample; requires `1 <= u <= width - 2` and the same for `v`.
#[inline(always)]
fn bilinear(rays: &[f32], width: usize, u: f32, v: f32) -> Sample {
    let (u0, v0) = (u as usize, v as usize);
    let (du, dv) = (u - u0 as f32, v - v0 as f32);
    let top = (v0 * width + u0) * STRIDE;
    let bottom = top + width * STRIDE;
    let (top, bottom) = (
        &rays[top..top + 2 * STRIDE],
        &rays[bottom..bottom + 2 * STRIDE],
    );
    let weights = [
        (1.0 - du) * (1.0 - dv),
        du * (1.0 - dv),
        (1.0 - du) * dv,
        du * dv,
    ];
    let mut sample = [0.0; STRIDE];
    for c in 0..STRIDE {
        sample[c] = (weights[0] * top[c] + weights[1] * top[STRIDE + c])
            + (weights[2] * bottom[c] + weights[3] * bottom[STRIDE + c]);
    }
    sample
}

/// `r - p` and its squared length, for the renormalised sample.
#[inline(always)]
fn error(sample: &Sample, p: [f32; 3]) -> ([f32; 3], f32) {
    let [x, y, z] = [sample[0], sample[1], sample[2]];
    let inverse = 1.0 / (x * x + y * y + z * z).sqrt();
    let e = [x * inverse - p[0], y * inverse - p[1], z * inverse - p[2]];
    (e, dot(e, e))
}

#[inline(always)]
fn dot(a: [f32; 3], b: [f32; 3]) -> f32 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

/// Damped Gauss-Newton step `-(JᵀJ + λI)⁻¹ Jᵀe` by the adjugate.
#[inline(always)]
fn damped_step(sample: &Sample, e: [f32; 3], lambda: f32) -> (f32, f32) {
    let gu = [sample[4], sample[5], sample[6]];
    let gv = [sample[8], sample[9], sample[10]];
    let a = dot(gu, gu) + lambda;
    let b = dot(gu, gv);
    let d = dot(gv, gv) + lambda;
    let (x, y) = (-dot(gu, e), -dot(gv, e));
    let inverse = 1.0 / (a * d - b * b);
    ((d * x - b * y) * inverse, (a * y - b * x) * inverse)
}

impl Lane {
    #[inline(always)]
    fn iterate(&mut self, job: &Job<'_>, u_last: f32, v_last: f32) {
        let (du, dv) = damped_step(&self.sample, self.error, self.lambda);
        let u = clamp(self.u + du, u_last);
        let v = clamp(self.v + dv, v_last);
        let sample = bilinear(job.rays, job.width, u, v);
        let (error, cost) = error(&sample, self.p);
        if cost < self.cost {
            // Keep the sample: the next iteration starts at this position.
            *self = Self {
                u,
                v,
                lambda: self.lambda * 0.1,
                sample,
                error,
                cost,
                done: cost < job.noise(),
                ..*self
            };
        } else {
            self.lambda *= 10.0;
        }
    }
}

/// Searches for every pixel of a band and checks the distance of the points. `index` receives the
/// truncated position, `valid` whether the search converged to a point close to the query's.
pub(super) fn run(job: &Job<'_>, first: usize, index: &mut [u32], valid: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: AVX2 has just been detected.
        return unsafe { run_avx2(job, first, index, valid) };
    }
    run_plain(job, first, index, valid);
}

/// The same code with wider vectors; no operation is fused or reordered, so the result is
/// bit-identical.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn run_avx2(job: &Job<'_>, first: usize, index: &mut [u32], valid: &mut [u8]) {
    run_plain(job, first, index, valid);
}

#[inline(always)]
fn run_plain(job: &Job<'_>, first: usize, index: &mut [u32], valid: &mut [u8]) {
    let pixels = job.width * job.height;
    let (u_last, v_last) = ((job.width - 2) as f32, (job.height - 2) as f32);
    let limit = job.params.dist_thresh;
    for (block, (index, valid)) in index
        .chunks_mut(LANES)
        .zip(valid.chunks_mut(LANES))
        .enumerate()
    {
        let base = first + block * LANES;
        let mut lanes = [IDLE; LANES];
        for (l, lane) in lanes.iter_mut().enumerate().take(index.len()) {
            let n = base + l;
            let from = start(job.initial, n, pixels);
            lane.u = clamp((from % job.width) as f32, u_last);
            lane.v = clamp((from / job.width) as f32, v_last);
            let x = point(job.query_points, n);
            if !usable(x) {
                continue;
            }
            lane.p = unit(x);
            lane.lambda = job.params.lambda_init;
            lane.sample = bilinear(job.rays, job.width, lane.u, lane.v);
            (lane.error, lane.cost) = error(&lane.sample, lane.p);
            // A NaN cost can never be improved.
            lane.done = lane.cost < job.noise() || lane.cost.is_nan();
        }
        for _ in 0..job.params.max_iter {
            let mut running = false;
            for lane in &mut lanes {
                if !lane.done {
                    lane.iterate(job, u_last, v_last);
                    running = true;
                }
            }
            if !running {
                break;
            }
        }
        for (l, lane) in lanes.iter().enumerate().take(index.len()) {
            let pixel = lane.v as usize * job.width + lane.u as usize;
            index[l] = pixel as u32;
            let x = point(job.query_points, base + l);
            let y = point(job.target_points, pixel);
            let difference = [y[0] - x[0], y[1] - x[1], y[2] - x[2]];
            // After at least one iteration, "converged" means that the kept cost is low enough.
            let converged = job.params.max_iter > 0 && lane.cost < job.params.convergence_thresh;
            let close = dot(difference, difference).sqrt() < limit;
            valid[l] = u8::from(converged && close && usable(x) && usable(y));
        }
    }
}
