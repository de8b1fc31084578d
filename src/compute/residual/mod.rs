//! Residuals of one point matched with another under a similarity transform, and the normal
//! equations of many of them: what tracking (spec 5.2 to 5.4) and the global solve (spec 6.5) share.
//!
//! A *moving* point `x` is taken by a pose `T` to `P = T·x` and compared with a *target*. Residuals
//! are predicted minus measured; Jacobian rows are with respect to a left perturbation
//! `Exp(ξ)·T`, `ξ = [τ, φ, σ]`, in closed form.

mod kernel;
mod lanes;

use crate::geometry::{Intrinsics, Sim3, Tangent};
use nalgebra::SMatrix;

pub(crate) use kernel::Sums;
pub(crate) use lanes::LANES;

/// A 7×7 matrix over the tangent space.
pub type Matrix7 = SMatrix<f64, 7, 7>;

/// Why a pose could not be found. No pose is changed when one of these is returned.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SolveError {
    /// An array that is not as long as the image asks for.
    #[error("{what}: expected {expected} entries, found {found}: give arrays of one image size")]
    Shape {
        /// Which array.
        what: &'static str,
        /// Entries that it should have.
        expected: usize,
        /// Entries that it has.
        found: usize,
    },
    /// A match that points outside the image.
    #[error(
        "{count} matches point outside the image of {pixels} pixels: the matches belong to another image size"
    )]
    Index {
        /// How many do.
        count: u64,
        /// Pixels in the image.
        pixels: usize,
    },
    /// An edge or a prior that names a keyframe which is not there, or the same one twice.
    #[error(
        "{what} joins keyframes {i} and {j}: expected two different ones of the {count} that were given"
    )]
    Keyframe {
        /// An edge or a prior.
        what: &'static str,
        /// First index.
        i: usize,
        /// Second index.
        j: usize,
        /// Keyframes that there are.
        count: usize,
    },
    /// Nothing to solve from.
    #[error(
        "none of {given} pixels gave a usable match (matched, of sufficient quality, finite, in view)"
    )]
    NoCorrespondences {
        /// Pixels looked at.
        given: usize,
    },
    /// NaN or infinity.
    #[error("{what} is not finite: the pose is kept as it was")]
    NotFinite {
        /// Which quantity.
        what: &'static str,
    },
    /// Matches that leave some motion of the camera undetermined.
    #[error(
        "{used} matches do not determine the pose (least normalised eigenvalue {smallest:.1e}): \
         more matches, or less alike ones, are needed"
    )]
    Singular {
        /// Matches that were used.
        used: u64,
        /// Least eigenvalue of the normal matrix scaled to a unit diagonal.
        smallest: f64,
    },
    /// Normal equations of many poses that no damping made solvable.
    #[error("the normal equations of {poses} poses could not be solved, however damped")]
    Factorisation {
        /// Poses that were free.
        poses: usize,
    },
}

/// Pixels of one parcel of work. Parcels are fixed by pixel number and their sums are added in
/// order, so that no result depends on the number of threads.
pub(crate) const CHUNK: usize = 4096;

/// Squared norms of usable points, metres²: 10 nm to 100 000 km. What a network would have to mean
/// by anything outside is unknown, and inside no product below overflows.
const NORM2: (f32, f32) = (1e-16, 1e16);

/// Which residual, and what it needs to know.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Model {
    /// Ray (3) and distance (1).
    Rays,
    /// Pixel (2) and log-depth (1).
    Calibrated(View),
    /// Point (3).
    Points,
}

/// The image that calibrated residuals project into.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View {
    pub(crate) intrinsics: Intrinsics,
    pub(crate) width: usize,
    pub(crate) height: usize,
    /// A projection counts while it is further than this from the image's edge, inwards.
    pub(crate) border: f64,
    /// Least depth.
    pub(crate) depth_eps: f64,
}

impl View {
    /// Column and row of a pixel. An integer division takes longer than everything else that is
    /// done to gather a match.
    #[inline(always)]
    pub(crate) fn place(&self, pixel: usize) -> (usize, usize) {
        // The quotient is half a pixel, 0.5/width, away from any integer: for images of less than
        // 2^50 pixels rounding cannot take it there.
        let row = ((pixel as f64 + 0.5) / self.width as f64) as usize;
        (pixel - row * self.width, row)
    }
}

/// How residuals are weighted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Noise {
    /// σ of the components in order: (ray, distance), (pixel, log-depth) or (point, unused).
    pub(crate) sigma: (f64, f64),
    /// Huber constant in whitened units.
    pub(crate) huber: f64,
}

/// Whether a point has a place: finite, and neither at the camera nor absurdly far away.
#[inline(always)]
fn usable(p: &[f32; 3]) -> bool {
    let n = p[0] * p[0] + p[1] * p[1] + p[2] * p[2];
    // False for NaN.
    n > NORM2.0 && n < NORM2.1
}

/// Values kept for each correspondence: moving point, target, quality.
pub(crate) const COLUMNS: usize = 7;

/// A correspondence of no weight, to fill up with.
pub(crate) const NO_MATCH: [f32; COLUMNS] = [0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0];

/// Whether a correspondence can be used: this is where everything that is not finite stays outside.
#[inline(always)]
pub(crate) fn accepts(model: &Model, moving: [f32; 3], target: [f32; 3], quality: f32) -> bool {
    let least = match model {
        Model::Rays | Model::Points => f64::NEG_INFINITY,
        Model::Calibrated(view) => view.depth_eps,
    };
    let quality_ok = quality > 0.0 && quality < f32::INFINITY;
    quality_ok && usable(&moving) && usable(&target) && f64::from(target[2]) > least
}

/// What a target of this pixel is compared by.
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

/// Correspondences gathered into columns, so that they can be streamed.
pub(crate) struct Batch<'a> {
    data: &'a mut [f32],
    stride: usize,
    len: usize,
}

impl<'a> Batch<'a> {
    /// Room for `data.len() / COLUMNS` correspondences; that is a multiple of [`LANES`].
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

    /// Adds a correspondence if it can be used. `pixel` is the target's.
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        model: &Model,
        moving: [f32; 3],
        target: [f32; 3],
        pixel: usize,
        quality: f32,
    ) {
        if accepts(model, moving, target, quality) && !self.is_full() {
            let [x, y, z] = moving;
            let [u, v, w] = measured(model, target, pixel);
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

    /// Fills up to a multiple of [`LANES`] with entries of no weight; the number of real ones.
    pub(crate) fn finish(&mut self) -> usize {
        let used = self.len;
        while !self.len.is_multiple_of(LANES) {
            self.put(NO_MATCH);
        }
        used
    }

    /// What [`Batch::finish`] left, to be read.
    #[cfg(test)]
    pub(crate) fn columns(&self) -> Columns<'_> {
        Columns::new(self.data, self.len)
    }
}

/// A finished [`Batch`].
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

/// Sums over correspondences: `½` costs, gradient `Σ w rowᵀe` and Hessian `Σ w rowᵀrow`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Normal {
    /// Upper triangle, row by row.
    pub(crate) hessian: [f64; 28],
    pub(crate) gradient: [f64; 7],
    /// `½ Σ ρ w²`: re-weighted, the one that the stop rule of spec 5.4 is about.
    pub(crate) cost: f64,
    /// Huber's function of the whitened residuals: what a good step lowers.
    pub(crate) robust: f64,
    /// Correspondences that passed every gate.
    pub(crate) used: u64,
    /// Matches that point outside the image.
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

/// Whether going from `old` to `new` (robust cost, correspondences in view) is progress. Costs are
/// compared per correspondence, for a projection that leaves the image must not count as a gain.
/// One that comes into view may cost more than the average did, up to five times as much. A
/// difference within rounding is no difference.
pub(crate) fn is_progress(old: (f64, u64), new: (f64, u64)) -> bool {
    is_progress_within(ROUNDING, old, new)
}

/// As [`is_progress`], of costs that are known to within the fraction `rounding`.
pub(crate) fn is_progress_within(rounding: f64, old: (f64, u64), new: (f64, u64)) -> bool {
    let (old_cost, old_used) = (old.0, old.1.max(1) as f64);
    let (new_cost, new_used) = (new.0, new.1.max(1) as f64);
    let gained = (new_used - old_used).max(0.0) / old_used;
    let slack = rounding + 4.0 * gained;
    new_cost.is_finite()
        && new_used >= 0.5 * old_used
        && new_cost * old_used <= old_cost * new_used * (1.0 + slack)
}

/// Relative difference of two costs that says nothing.
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

/// Refuses an array of another length.
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

/// Puts each point of a pointmap on its pixel's ray and keeps its depth: `z·K⁻¹[u, v, 1]ᵀ`.
/// `points` and `out` are N×3 in the camera's frame, N = `width·height`; a point that is not
/// finite stays so.
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

/// `z·K⁻¹[u, v, 1]ᵀ`. The ray is an f32 before it is multiplied, so that a table of rays gives the same bits
/// on a device without f64; that turns it by 2⁻²⁵ of its slope, 1e-5 of a pixel.
#[inline(always)]
pub(crate) fn on_ray(k: &Intrinsics, u: usize, v: usize, z: f32) -> [f32; 3] {
    let ray = k.ray(u as f64, v as f64);
    [ray.x as f32 * z, ray.y as f32 * z, z]
}

#[cfg(test)]
mod tests;
