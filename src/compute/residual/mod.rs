//! Residuals between matched points under a similarity transform, and their normal equations.
//! Shared by tracking and the global solve (docs/algorithm.md, Tracking and Global optimisation).
//!
//! A pose `T` maps a *moving* point `x` to `P = T·x`, which is compared with a *target*. Residuals
//! are predicted minus measured; Jacobian rows are with respect to a left perturbation `Exp(ξ)·T`,
//! `ξ = [τ, φ, σ]`, in closed form.

mod kernel;
mod lanes;

use crate::geometry::{Intrinsics, Sim3, Tangent};
use nalgebra::SMatrix;

pub(crate) use kernel::Sums;
pub(crate) use lanes::LANES;

/// A 7×7 matrix over the tangent space.
pub type Matrix7 = SMatrix<f64, 7, 7>;

/// Solver error. Poses are unchanged when an error is returned.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SolveError {
    /// The length of an array does not match the image.
    #[error("{what}: expected {expected} entries, found {found}: give arrays of one image size")]
    Shape {
        what: &'static str,
        expected: usize,
        found: usize,
    },
    /// A match points outside the image.
    #[error(
        "{count} matches point outside the image of {pixels} pixels: the matches belong to another image size"
    )]
    Index { count: u64, pixels: usize },
    /// An edge or a prior names an unknown keyframe, or the same keyframe twice.
    #[error("{what} connects keyframes {i} and {j}: expected two different indices below {count}")]
    Keyframe {
        what: &'static str,
        i: usize,
        j: usize,
        count: usize,
    },
    /// The information of a factor is not that of a measurement.
    #[error(
        "the factor between keyframes {i} and {j} has an information that is not finite, symmetric and positive semidefinite: give the inverse of a covariance"
    )]
    Information { i: usize, j: usize },
    /// A prior is not a measurement; `i` and `j` are equal for that of one keyframe.
    #[error(
        "{what} of keyframes {i} and {j} has a mean that is not finite, or an information that is not finite, symmetric and positive semidefinite: give a mean and the inverse of its covariance"
    )]
    Prior {
        what: &'static str,
        i: usize,
        j: usize,
    },
    /// No usable correspondences.
    #[error(
        "none of {given} pixels has a usable match (matched, of sufficient quality, finite, in view)"
    )]
    NoCorrespondences { given: usize },
    /// A value is NaN or infinite.
    #[error("{what} is not finite: the pose is kept as it was")]
    NotFinite { what: &'static str },
    /// The matches leave some motion undetermined.
    #[error(
        "{used} matches do not determine the pose (smallest normalised eigenvalue {smallest:.1e}): \
         more matches, or more diverse ones, are needed"
    )]
    Singular {
        used: u64,
        /// Smallest eigenvalue of the normal matrix scaled to a unit diagonal.
        smallest: f64,
    },
    /// Most matches contradict the pose that fits them best.
    #[error(
        "only {fitting} of {used} matches agree with the pose that fits them best, less than the fraction \
         tracking.min_fit_frac: the network fails on this view (things too near, mirrors), or, if it happens \
         everywhere, the camera's calibration is wrong"
    )]
    Unfit { used: u64, fitting: u64 },
    /// The joint normal equations could not be solved with any damping.
    #[error("the normal equations of {poses} poses could not be solved with any damping")]
    Factorisation { poses: usize },
}

/// Pixels per chunk of work. Chunk boundaries depend only on the pixel number and the sums are
/// added in order, so that results do not depend on the number of threads.
pub(crate) const CHUNK: usize = 4096;

/// Accepted range of the squared norm of a point, in metres²: 10 nm to 100 000 km. Values outside
/// have no physical meaning, and inside no product below overflows.
const NORM2: (f32, f32) = (1e-16, 1e16);

/// Residual model with its parameters.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Model {
    /// Ray (3 components) and distance (1).
    Rays,
    /// Pixel (2 components) and log-depth (1).
    Calibrated(View),
    /// Point (3 components).
    Points,
}

/// The image that calibrated residuals project into.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View {
    pub(crate) intrinsics: Intrinsics,
    pub(crate) width: usize,
    pub(crate) height: usize,
    /// Projections must be at least this far inside the image border, in pixels.
    pub(crate) border: f64,
    /// Minimum depth.
    pub(crate) depth_eps: f64,
}

impl View {
    /// Column and row of a pixel. An integer division would take longer than all the rest of
    /// gathering a match.
    #[inline(always)]
    pub(crate) fn place(&self, pixel: usize) -> (usize, usize) {
        // The quotient is at least 0.5/width away from any integer, which rounding cannot bridge
        // for images of less than 2^50 pixels.
        let row = ((pixel as f64 + 0.5) / self.width as f64) as usize;
        (pixel - row * self.width, row)
    }
}

/// Weighting of residuals.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Noise {
    /// σ of the components in order: (ray, distance), (pixel, log-depth) or (point, unused).
    pub(crate) sigma: (f64, f64),
    /// σ of a log-depth of which a sensor measured both ends.
    pub(crate) measured: f64,
    /// Huber constant in whitened units.
    pub(crate) huber: f64,
    /// Squared error of the first component below which a match fits: see [`FITTING_RAY`] and [`fitting_pixel`].
    pub(crate) fits: f64,
}

/// One degree, in radians: 3.3 pixels in an image of 256 columns that is 68° wide.
const DEGREE: f64 = std::f64::consts::PI / 180.0;

/// Maximum squared error of the ray of a match that fits a pose: (2°)². Without a calibration the network's rays differ
/// from pass to pass.
pub(crate) const FITTING_RAY: f64 = 4.0 * DEGREE * DEGREE;

/// The same for a pixel, in square pixels: (1°)² in the middle of the image, at least 3² for wide angles.
pub(crate) fn fitting_pixel(k: &Intrinsics) -> f64 {
    (DEGREE * DEGREE * k.fx * k.fy).max(9.0)
}

/// Whether a point is usable: finite, not at the camera, and not absurdly far away.
#[inline(always)]
fn usable(p: &[f32; 3]) -> bool {
    let n = p[0] * p[0] + p[1] * p[1] + p[2] * p[2];
    // False for NaN.
    n > NORM2.0 && n < NORM2.1
}

/// Values stored per correspondence: moving point, target, quality.
pub(crate) const COLUMNS: usize = 7;

/// A correspondence of zero weight, used as padding.
pub(crate) const NO_MATCH: [f32; COLUMNS] = [0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0];

/// Whether a correspondence is usable. All non-finite values are rejected here.
#[inline(always)]
pub(crate) fn accepts(model: &Model, moving: [f32; 3], target: [f32; 3], quality: f32) -> bool {
    let min_depth = match model {
        Model::Rays | Model::Points => f64::NEG_INFINITY,
        Model::Calibrated(view) => view.depth_eps,
    };
    let quality_ok = quality > 0.0 && quality < f32::INFINITY;
    quality_ok && usable(&moving) && usable(&target) && f64::from(target[2]) > min_depth
}

/// The measurement for a target point at this pixel.
#[inline(always)]
pub(crate) fn measured(model: &Model, target: [f32; 3], pixel: usize) -> [f32; 3] {
    match model {
        Model::Rays | Model::Points => target,
        Model::Calibrated(view) => {
            let (u, v) = view.place(pixel);
            // Exact: columns and rows are far below 2^24.
            [u as f32, v as f32, target[2]]
        }
    }
}

/// Correspondences gathered into columns for streaming.
pub(crate) struct Batch<'a> {
    data: &'a mut [f32],
    stride: usize,
    len: usize,
}

impl<'a> Batch<'a> {
    /// Storage for `data.len() / COLUMNS` correspondences, which must be a multiple of [`LANES`].
    pub(crate) fn new(data: &'a mut [f32]) -> Self {
        let stride = data.len() / COLUMNS;
        debug_assert_eq!(stride % LANES, 0);
        Self {
            data,
            stride,
            len: 0,
        }
    }

    fn is_full(&self) -> bool {
        self.len == self.stride
    }

    /// Adds a correspondence if it is usable. `pixel` is the target's. `by_sensor`: a sensor measured the depths of both
    /// ends, which counts if calibrated.
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        model: &Model,
        moving: [f32; 3],
        target: [f32; 3],
        pixel: usize,
        quality: f32,
        by_sensor: bool,
    ) {
        if accepts(model, moving, target, quality) && !self.is_full() {
            let [x, y, z] = moving;
            let [u, v, w] = measured(model, target, pixel);
            // A target that is accepted lies in front of the camera, so that the sign is free.
            let w = match (by_sensor, model) {
                (true, Model::Calibrated(_)) => -w,
                _ => w,
            };
            self.put([x, y, z, u, v, w, quality]);
        }
    }

    #[inline(always)]
    fn put(&mut self, row: [f32; COLUMNS]) {
        for (c, v) in row.into_iter().enumerate() {
            self.data[c * self.stride + self.len] = v;
        }
        self.len += 1;
    }

    /// Pads to a multiple of [`LANES`] with zero-weight entries; returns the number of real ones.
    pub(crate) fn finish(&mut self) -> usize {
        let used = self.len;
        while !self.len.is_multiple_of(LANES) {
            self.put(NO_MATCH);
        }
        used
    }

    /// The contents after [`Batch::finish`].
    #[cfg(test)]
    pub(crate) fn columns(&self) -> Columns<'_> {
        Columns::new(self.data, self.len)
    }
}

/// Contents of a finished [`Batch`].
#[derive(Clone, Copy)]
pub(crate) struct Columns<'a>([&'a [f32]; COLUMNS]);

impl<'a> Columns<'a> {
    /// The first `len` entries (rounded up to [`LANES`]) of a batch's storage.
    pub(crate) fn new(data: &'a [f32], len: usize) -> Self {
        let stride = data.len() / COLUMNS;
        let len = len.next_multiple_of(LANES).min(stride);
        Self(std::array::from_fn(|c| &data[c * stride..c * stride + len]))
    }

    fn len(&self) -> usize {
        self.0[0].len()
    }
}

/// Sums over correspondences: costs, gradient `Σ w rowᵀe` and Hessian `Σ w rowᵀrow`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Normal {
    /// Upper triangle, row by row.
    pub(crate) hessian: [f64; 28],
    pub(crate) gradient: [f64; 7],
    /// `½ Σ ρ w²`, the re-weighted cost compared by tracking's stopping criterion.
    pub(crate) cost: f64,
    /// Sum of the Huber function over the whitened residuals: the objective that a step must lower.
    pub(crate) robust: f64,
    /// Number of correspondences that passed every gate.
    pub(crate) used: u64,
    /// Number of those that fit.
    pub(crate) fitting: u64,
    /// Number of matches that point outside the image.
    pub(crate) outside: u64,
}

impl Normal {
    pub(crate) fn add(&mut self, rhs: &Normal) {
        for (a, b) in self.hessian.iter_mut().zip(&rhs.hessian) {
            *a += b;
        }
        for (a, b) in self.gradient.iter_mut().zip(&rhs.gradient) {
            *a += b;
        }
        self.cost += rhs.cost;
        self.robust += rhs.robust;
        self.used += rhs.used;
        self.fitting += rhs.fitting;
        self.outside += rhs.outside;
    }

    pub(crate) fn is_finite(&self) -> bool {
        let all = self.hessian.iter().chain(&self.gradient);
        all.chain([&self.cost, &self.robust]).all(|v| v.is_finite())
    }

    pub(crate) fn hessian_matrix(&self) -> Matrix7 {
        let mut m = Matrix7::zeros();
        let mut k = 0;
        for r in 0..7 {
            for c in r..7 {
                m[(r, c)] = self.hessian[k];
                m[(c, r)] = self.hessian[k];
                k += 1;
            }
        }
        m
    }

    pub(crate) fn gradient_vector(&self) -> Tangent {
        Tangent::from_column_slice(&self.gradient)
    }
}

/// Whether a step from `old` to `new` (robust cost, number of correspondences in view) is progress.
/// Costs are compared per correspondence, because projections that leave the image must not count
/// as a gain. Correspondences that come into view may cost up to five times the average.
/// Differences within rounding are ignored.
pub(crate) fn is_progress(old: (f64, u64), new: (f64, u64)) -> bool {
    is_progress_within(ROUNDING, old, new)
}

/// Like [`is_progress`], for costs known to a relative accuracy of `rounding`.
pub(crate) fn is_progress_within(rounding: f64, old: (f64, u64), new: (f64, u64)) -> bool {
    let (old_cost, old_used) = (old.0, old.1.max(1) as f64);
    let (new_cost, new_used) = (new.0, new.1.max(1) as f64);
    let gained = (new_used - old_used).max(0.0) / old_used;
    let slack = rounding + 4.0 * gained;
    new_cost.is_finite()
        && new_used >= 0.5 * old_used
        && new_cost * old_used <= old_cost * new_used * (1.0 + slack)
}

/// Relative difference of two costs that is attributed to rounding.
pub(crate) const ROUNDING: f64 = 1e-12;

/// Adds every correspondence of `columns` to `sums`.
pub(crate) fn accumulate(
    model: &Model,
    noise: &Noise,
    pose: &Sim3,
    columns: Columns<'_>,
    sums: &mut Sums,
) {
    let pose = kernel::Pose::new(pose);
    match model {
        Model::Rays => kernel::accumulate_rays(&pose, noise, &columns, sums),
        Model::Calibrated(view) => {
            kernel::accumulate_calibrated(&pose, view, noise, &columns, sums);
        }
        Model::Points => kernel::accumulate_points(&pose, noise, &columns, sums),
    }
}

/// The `k`-th point of an N×3 array.
#[inline(always)]
pub(crate) fn point(points: &[f32], k: usize) -> Option<[f32; 3]> {
    let p = points.get(3 * k..3 * k + 3)?;
    Some([p[0], p[1], p[2]])
}

/// Rejects an array of the wrong length.
pub(crate) fn expect_len(
    what: &'static str,
    expected: usize,
    found: usize,
) -> Result<(), SolveError> {
    if expected == found {
        return Ok(());
    }
    Err(SolveError::Shape {
        what,
        expected,
        found,
    })
}

/// Moves each point of a pointmap onto its pixel's ray while keeping its depth: `z·K⁻¹[u, v, 1]ᵀ`.
/// `points` and `out` are N×3 in the camera frame, N = `width·height`; non-finite points stay
/// non-finite.
pub fn constrain_to_rays(
    points: &[f32],
    intrinsics: Intrinsics,
    width: usize,
    height: usize,
    out: &mut [f32],
) -> Result<(), SolveError> {
    expect_len("points", 3 * width * height, points.len())?;
    expect_len("constrained points", 3 * width * height, out.len())?;
    if width == 0 {
        return Ok(());
    }
    for (v, (rows, out)) in points
        .chunks_exact(3 * width)
        .zip(out.chunks_exact_mut(3 * width))
        .enumerate()
    {
        for (u, (p, o)) in rows
            .chunks_exact(3)
            .zip(out.chunks_exact_mut(3))
            .enumerate()
        {
            o.copy_from_slice(&on_ray(&intrinsics, u, v, p[2]));
        }
    }
    Ok(())
}

/// `z·K⁻¹[u, v, 1]ᵀ`. The ray is rounded to f32 before the multiplication, so that a table of rays
/// gives the same bits on a device without f64; this tilts the ray by 2⁻²⁵ of its slope, 1e-5
/// pixels.
#[inline(always)]
pub(crate) fn on_ray(k: &Intrinsics, u: usize, v: usize, z: f32) -> [f32; 3] {
    let ray = k.ray(u as f64, v as f64);
    [ray.x as f32 * z, ray.y as f32 * z, z]
}

#[cfg(test)]
mod tests;
