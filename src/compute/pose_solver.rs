//! Relative pose of a frame to its keyframe: iteratively re-weighted Gauss-Newton over all seven
//! degrees of freedom, with closed-form Jacobians, and damping if a plain step does not reduce the
//! cost (docs/algorithm.md, Tracking).

use super::depth::MEASURED_SIGMA;
use super::residual::{
    self, Batch, CHUNK, COLUMNS, Columns, FITTING_RAY, Matrix7, Model, Noise, Normal, Sums, View,
    expect_len, fitting_pixel, is_progress, point,
};
use crate::config::TrackingConfig;
use crate::geometry::{Intrinsics, Sim3, Tangent};
use nalgebra::{Cholesky, SMatrix};
use rayon::prelude::*;

pub use super::residual::{SolveError, constrain_to_rays};

/// Matched pointmaps of a frame and its keyframe, with one entry per keyframe pixel `n`, N =
/// `width·height`.
#[derive(Debug, Clone, Copy)]
pub struct Correspondences<'a> {
    /// N×3, the frame's whole pointmap in its own camera frame; on the pixels' rays if calibrated
    /// ([`constrain_to_rays`]).
    pub frame_points: &'a [f32],
    /// N×3, the keyframe's pointmap in its own camera frame.
    pub keyframe_points: &'a [f32],
    /// The frame pixel that keyframe pixel `n` is matched with.
    pub index: &'a [u32],
    /// Quality `Q_n`; 0 or less (or NaN) for pixels that must not be used.
    pub quality: &'a [f32],
    pub width: usize,
    pub height: usize,
    /// Depths of a sensor, if both ends have some; used if calibrated.
    pub measured: Option<MeasuredDepths<'a>>,
    /// Minimum fraction of the used matches that must fit the pose ([`Solution::fitting`]).
    pub min_fit: f64,
}

/// Metres along z of each pixel of a frame and of its keyframe, N each; 0: not measured.
#[derive(Debug, Clone, Copy)]
pub struct MeasuredDepths<'a> {
    pub frame: &'a [f32],
    pub keyframe: &'a [f32],
}

impl MeasuredDepths<'_> {
    fn has_both(&self, frame: usize, keyframe: usize) -> bool {
        let has = |of: &[f32], n: usize| of.get(n).is_some_and(|z| *z > 0.0);
        has(self.frame, frame) && has(self.keyframe, keyframe)
    }
}

/// The residual to minimise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Residual {
    /// Difference of ray directions and of distances.
    Rays,
    /// Pixel and log-depth; the intrinsics are those of the pointmaps' images.
    Calibrated(Intrinsics),
}

/// A solved pose with statistics.
#[derive(Debug, Clone, Copy)]
pub struct Solution {
    /// Maps points from the frame's camera frame to the keyframe's.
    pub keyframe_from_frame: Sim3,
    /// Number of steps taken.
    pub iterations: u32,
    /// Re-weighted cost `½ Σ ρ w²` at this pose.
    pub cost: f64,
    /// Whether a stopping criterion was met before `max_iters`.
    pub converged: bool,
    /// Number of correspondences that passed every gate at this pose.
    pub used: usize,
    /// Number of those whose direction is within one degree or three pixels of the predicted one (two degrees without a
    /// calibration).
    pub fitting: usize,
    /// Normal matrix at this pose for a left perturbation `[τ, φ, σ]`, in units of the σs; its
    /// inverse would be the covariance if the residuals were independent.
    pub hessian: SMatrix<f64, 7, 7>,
}

/// Damping that is always applied, relative to the diagonal: below the rounding of the sums.
const FLOOR: f64 = 1e-12;
/// Initial damping after a failed plain step, relative to the diagonal.
const FIRST_DAMPING: f64 = 1e-4;
/// Maximum number of steps tried per linearisation: plain, then with damping from 1e-4 to 1e4.
const TRIES: usize = 10;
/// Eigenvalues of the normal matrix, scaled to a unit diagonal, below this limit are
/// indistinguishable from rounding: sums of 2·10⁵ products in f64 have an error of about 1e-14.
const SINGULAR: f64 = 1e-12;

/// Solves for poses. Owns the scratch memory.
pub struct PoseSolver {
    /// One batch for each chunk of keyframe pixels.
    points: Vec<f32>,
    /// Number of correspondences in each batch, and number of matches outside the image.
    counts: Vec<(usize, u64)>,
    sums: Vec<Normal>,
}

impl PoseSolver {
    /// A solver for images of up to `pixels` pixels; it grows for larger ones.
    pub fn new(pixels: usize) -> Self {
        let mut solver = Self {
            points: Vec::new(),
            counts: Vec::new(),
            sums: Vec::new(),
        };
        solver.reserve(pixels);
        solver
    }

    fn reserve(&mut self, pixels: usize) {
        let chunks = pixels.div_ceil(CHUNK);
        if self.sums.len() < chunks {
            self.points.resize(chunks * COLUMNS * CHUNK, 0.0);
            self.counts.resize(chunks, (0, 0));
            self.sums.resize(chunks, Normal::default());
        }
    }

    /// Finds the pose that maps the frame's points onto the keyframe's, starting from `initial`.
    ///
    /// Stops after a step that is shorter than `delta_norm`, or that reduced the cost by less than
    /// the fraction `rel_error` (never if the cost rose), or after `max_iters`, which is not an
    /// error. A step is kept if it does not raise the robust cost; otherwise it is tried again with
    /// more damping. The same input gives the same bits for any number of threads.
    ///
    /// # Errors
    /// Arrays of the wrong length, matches outside the image, no usable match, matches that leave
    /// the pose undetermined or of which fewer than the fraction `min_fit` fit it, or a non-finite
    /// initial pose.
    pub fn solve(
        &mut self,
        c: &Correspondences<'_>,
        residual: Residual,
        initial: &Sim3,
        params: &TrackingConfig,
    ) -> Result<Solution, SolveError> {
        if !initial.is_finite() {
            return Err(SolveError::NotFinite {
                what: "the initial pose",
            });
        }
        let pixels = c.width * c.height;
        let (model, noise) = model(residual, c, params);
        self.gather(c, &model)?;

        let mut pose = *initial;
        let mut at = self.linearise(&model, &noise, &pose);
        if at.used == 0 {
            return Err(SolveError::NoCorrespondences { given: pixels });
        }
        if !at.is_finite() {
            return Err(SolveError::NotFinite {
                what: "the normal matrix",
            });
        }
        check_rank(&at)?;

        let (mut iterations, mut converged, mut damping) = (0, false, 0.0);
        let mut previous_cost = f64::INFINITY;
        while iterations < params.max_iters && !converged {
            let Some((step, next_pose, next)) =
                self.improve(&model, &noise, &pose, &at, params.delta_norm, &mut damping)
            else {
                // No step lowers the cost. The plain step distinguishes a minimum from a failure.
                converged = newton_step(&at, 0.0).is_some_and(|s| s.norm() < params.delta_norm);
                break;
            };
            let fall = (previous_cost - at.cost) / previous_cost;
            // Initially NaN, when the previous cost is infinite.
            converged = step.norm() < params.delta_norm
                || (0.0..params.rel_error).contains(&fall)
                || at.cost == 0.0;
            previous_cost = at.cost;
            pose = next_pose;
            at = next;
            iterations += 1;
        }
        check_fit(&at, c.min_fit)?;
        Ok(Solution {
            keyframe_from_frame: pose,
            iterations: iterations as u32,
            cost: at.cost,
            converged,
            used: at.used as usize,
            fitting: at.fitting as usize,
            hessian: at.hessian_matrix(),
        })
    }

    /// Finds a step from `pose` that does not raise the cost; returns the step, the resulting pose,
    /// and the problem linearised there. `None` if even a step shorter than `delta_norm` raises the
    /// cost.
    #[allow(clippy::too_many_arguments)]
    fn improve(
        &mut self,
        model: &Model,
        noise: &Noise,
        pose: &Sim3,
        at: &Normal,
        delta_norm: f64,
        damping: &mut f64,
    ) -> Option<(Tangent, Sim3, Normal)> {
        for _ in 0..TRIES {
            if let Some(step) = newton_step(at, *damping) {
                let next_pose = pose.retract(&step);
                if next_pose.is_finite() {
                    let next = self.linearise(model, noise, &next_pose);
                    let good = next.is_finite()
                        && is_progress((at.robust, at.used), (next.robust, next.used))
                        && check_rank(&next).is_ok();
                    if good {
                        *damping = if *damping > FIRST_DAMPING {
                            *damping * 0.1
                        } else {
                            0.0
                        };
                        return Some((step, next_pose, next));
                    }
                }
                if step.norm() < delta_norm {
                    return None;
                }
            }
            *damping = (*damping * 10.0).max(FIRST_DAMPING);
        }
        None
    }

    /// Gathers usable correspondences into batches, which every iteration streams.
    fn gather(&mut self, c: &Correspondences<'_>, model: &Model) -> Result<(), SolveError> {
        let pixels = c.width * c.height;
        expect_len("frame points", 3 * pixels, c.frame_points.len())?;
        expect_len("keyframe points", 3 * pixels, c.keyframe_points.len())?;
        expect_len("matches", pixels, c.index.len())?;
        expect_len("match qualities", pixels, c.quality.len())?;
        self.reserve(pixels);
        self.counts.fill((0, 0));
        let batches = self.points.par_chunks_mut(COLUMNS * CHUNK);
        let work = batches.zip(&mut self.counts).enumerate();
        work.take(pixels.div_ceil(CHUNK))
            .for_each(|(chunk, (data, count))| {
                let mut batch = Batch::new(data);
                let mut outside = 0;
                for n in chunk * CHUNK..((chunk + 1) * CHUNK).min(pixels) {
                    let quality = c.quality[n];
                    if quality > 0.0 {
                        match (
                            point(c.frame_points, c.index[n] as usize),
                            point(c.keyframe_points, n),
                        ) {
                            (Some(f), Some(k)) => {
                                let frame = c.index[n] as usize;
                                let both = c.measured.is_some_and(|m| m.has_both(frame, n));
                                batch.push(model, f, k, n, quality, both);
                            }
                            _ => outside += 1,
                        }
                    }
                }
                *count = (batch.finish(), outside);
            });
        match self.counts.iter().map(|c| c.1).sum() {
            0 => Ok(()),
            count => Err(SolveError::Index { count, pixels }),
        }
    }

    /// Normal equations at a pose.
    fn linearise(&mut self, model: &Model, noise: &Noise, pose: &Sim3) -> Normal {
        let batches = self.points.par_chunks(COLUMNS * CHUNK);
        batches
            .zip(&self.counts)
            .zip(&mut self.sums)
            .for_each(|((data, count), out)| {
                let mut sums = Sums::new(noise);
                let columns = Columns::new(data, count.0);
                residual::accumulate(model, noise, pose, columns, &mut sums);
                *out = sums.total();
            });
        let mut total = Normal::default();
        for sum in &self.sums {
            total.add(sum);
        }
        total
    }
}

fn model(residual: Residual, c: &Correspondences<'_>, p: &TrackingConfig) -> (Model, Noise) {
    let (model, sigma, fits) = match residual {
        Residual::Rays => (Model::Rays, (p.sigma_ray, p.sigma_dist), FITTING_RAY),
        Residual::Calibrated(intrinsics) => {
            let view = View {
                intrinsics,
                width: c.width,
                height: c.height,
                border: p.pixel_border,
                depth_eps: p.depth_eps,
            };
            let sigma = (p.sigma_pixel, p.sigma_depth);
            (Model::Calibrated(view), sigma, fitting_pixel(&intrinsics))
        }
    };
    let noise = Noise {
        sigma,
        measured: MEASURED_SIGMA,
        huber: p.huber,
        fits,
    };
    (model, noise)
}

/// Rejects a normal matrix that leaves some motion undetermined.
fn check_rank(at: &Normal) -> Result<(), SolveError> {
    let smallest = least_eigenvalue(&at.hessian_matrix());
    // Written this way round so that NaN is rejected too.
    if smallest > SINGULAR {
        return Ok(());
    }
    let used = at.used;
    Err(SolveError::Singular { used, smallest })
}

/// Rejects a pose that too few of its matches fit: they are those of no rigid motion.
fn check_fit(at: &Normal, needed: f64) -> Result<(), SolveError> {
    let (used, fitting) = (at.used, at.fitting);
    match (fitting as f64) < needed * used as f64 {
        true => Err(SolveError::Unfit { used, fitting }),
        false => Ok(()),
    }
}

/// Smallest eigenvalue of a normal matrix scaled to a unit diagonal; 0 if it cannot be scaled.
pub(crate) fn least_eigenvalue(h: &Matrix7) -> f64 {
    let scale = h.diagonal().map(|d| 1.0 / d.sqrt());
    if !scale.iter().all(|s| s.is_finite()) {
        return 0.0;
    }
    Matrix7::from_fn(|r, c| h[(r, c)] * scale[r] * scale[c])
        .symmetric_eigenvalues()
        .min()
}

/// `−(H + (λ + floor)·diag H)⁻¹ g`, if it exists and is finite.
fn newton_step(at: &Normal, damping: f64) -> Option<Tangent> {
    let mut h = at.hessian_matrix();
    for k in 0..7 {
        h[(k, k)] *= 1.0 + damping + FLOOR;
    }
    let step = -Cholesky::new(h)?.solve(&at.gradient_vector());
    step.iter().all(|v| v.is_finite()).then_some(step)
}
