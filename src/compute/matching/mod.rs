//! Pixel matching: iterative projective search and descriptor refinement (docs/algorithm.md,
//! Matching). B-numbers below are rows of docs/reference-defects.md.
//!
//! For every pixel of view 2, the search finds the pixel of view 1 with the most similar ray,
//! starting from a previous match; an occlusion check compares the two 3-D points; the descriptors
//! then select the best pixel nearby.
//!
//! [`Matcher`] is fast; the tests hold it against the same algorithm written plainly, bit for bit, on every
//! processor and for every number of threads.
//!
//! Intentional differences from the reference implementation:
//! * Points that are not finite or have zero length are never part of a valid match (B22), neither
//!   as a start nor as the target of a refinement.
//! * Invalid pixels are not refined (B56): their index is only the next call's starting point.
//!   [`Refinement::SingleAll`] refines them too, as the reference does.
//! * A search ends when its cost is below [`NOISE`]. The reference always runs all iterations and
//!   then follows rounding errors: a step of 1e-5 pixels to the left of a pixel's centre truncates
//!   to the wrong pixel (one in fifty if both views are identical).
//! * Levels compare descriptors of 8 bits, and only the end in f32 ([`Refinement`]); the reference compares binary16.
//! * A start outside the image is replaced by the pixel itself (B07).

mod rays;
mod refine;
mod scores;
mod search;

use crate::config::MatchingConfig;
use rayon::prelude::*;
use scores::rounded;

/// Squared chord between unit rays below which f32 cannot distinguish them: each of the three
/// components of the difference of two normalised rays has a rounding error of up to 1.8e-7 (three
/// units of 2⁻²⁴), and 3 · (1.8e-7)² ≈ 1e-13. This is an angle of 3e-7 rad, 1.4e-4 pixels at a
/// focal length of 430.
pub const NOISE: f32 = 1e-13;

/// Maximum quality of a match, that of binary16, in which a GPU stores it: outputs of a network that fails must not
/// outweigh all others without limit.
pub const MAX_QUALITY: f32 = 65504.0;

/// Rows per task.
const BAND_ROWS: usize = 8;

/// The network outputs that matching reads, `N = width · height` pixels in row-major order.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// `N × 3` points in the camera frame of view 1, metres as the network predicts them.
    pub points: &'a [f32],
    /// `N × D` descriptors of unit length.
    pub descriptors: &'a [f32],
}

/// Statistics of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MatchStats {
    /// Number of pixels with a valid match.
    pub valid: usize,
    /// Number of valid matches that refinement moved to another pixel.
    pub refined: usize,
}

/// Extent of the descriptor refinement.
///
/// Descriptors are unit vectors. All levels compare them rounded to 127ths, which a GPU stores in 8 bits. At the end the
/// match moves to the best of its eight neighbours by scores in f32, as long as one is better, at most `radius` times.
/// The sum of such a score runs over eight partial lanes
/// (`k mod 8`), each in the order of `k`, which are then added as `((0+1)+(2+3)) + ((4+5)+(6+7))`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Refinement {
    /// For valid pixels.
    #[default]
    Single,
    /// [`Refinement::Single`] for every pixel, valid or not, as the reference does: an invalid
    /// pixel's search then starts elsewhere the next time, and finds a match a little more often.
    SingleAll,
}

/// Matches pixels of images of one size. Owns all scratch memory; [`Matcher::run`] does not
/// allocate.
#[derive(Debug)]
pub struct Matcher {
    width: usize,
    height: usize,
    descriptor_dim: usize,
    refinement: Refinement,
    /// `N × 12` ray image, see [`rays`].
    rays: Vec<f32>,
    /// Descriptors padded to a multiple of eight channels; empty if the input already is.
    target_padded: Vec<f32>,
    query_padded: Vec<f32>,
    /// Rounded descriptors, padded likewise.
    target_rounded: Vec<f32>,
    query_rounded: Vec<f32>,
}

impl Matcher {
    /// Allocates scratch memory for images of `width × height` with descriptors of `descriptor_dim`
    /// channels.
    pub fn new(width: usize, height: usize, descriptor_dim: usize) -> Self {
        let pixels = width * height;
        assert!(
            u32::try_from(pixels).is_ok(),
            "matching: {width}×{height} pixels do not fit a 32-bit index"
        );
        let padded = padded_dim(descriptor_dim);
        let padded_len = if padded == descriptor_dim {
            0
        } else {
            pixels * padded
        };
        Self {
            width,
            height,
            descriptor_dim,
            refinement: Refinement::default(),
            rays: vec![0.0; pixels * rays::STRIDE],
            target_padded: vec![0.0; padded_len],
            query_padded: vec![0.0; padded_len],
            target_rounded: vec![0.0; pixels * padded],
            query_rounded: vec![0.0; pixels * padded],
        }
    }

    /// Sets the kind of refinement.
    pub fn with_refinement(mut self, refinement: Refinement) -> Self {
        self.refinement = refinement;
        self
    }

    /// Matches every pixel of `query` (view 2) to a pixel of `target` (view 1).
    ///
    /// `initial` is the previous index map of the same pair of views, or `None` for the identity.
    /// `index[n]` is set to the row-major index in view 1 (always below `N`), `valid[n]` to 1 for a
    /// usable match and 0 otherwise. Images with fewer than 3 rows or columns have no valid
    /// matches.
    ///
    /// # Panics
    /// If the length of a slice does not match the image size and the descriptor dimension.
    pub fn run(
        &mut self,
        target: View<'_>,
        query: View<'_>,
        initial: Option<&[u32]>,
        params: &MatchingConfig,
        index: &mut [u32],
        valid: &mut [u8],
    ) -> MatchStats {
        check_shapes(
            self.width * self.height,
            self.descriptor_dim,
            target,
            query,
            initial,
            index.len(),
            valid.len(),
        );
        if self.width < 3 || self.height < 3 {
            return no_matches(initial, index, valid);
        }
        rays::build(target.points, self.width, self.height, &mut self.rays);

        let refines = params.radius > 0 && params.dilation_max > 0;
        let mut job = Job {
            width: self.width,
            height: self.height,
            params,
            rays: &self.rays,
            target_points: target.points,
            query_points: query.points,
            initial,
            descriptors: None,
            invalid_too: self.refinement != Refinement::Single,
        };
        if refines {
            let (dim, padded) = (self.descriptor_dim, padded_dim(self.descriptor_dim));
            let mut exact = scores::Single {
                target: target.descriptors,
                query: query.descriptors,
                dim: padded,
            };
            pad(exact.target, dim, &mut self.target_rounded, rounded);
            pad(exact.query, dim, &mut self.query_rounded, rounded);
            if padded != dim {
                pad(exact.target, dim, &mut self.target_padded, |x| x);
                pad(exact.query, dim, &mut self.query_padded, |x| x);
                exact.target = &self.target_padded;
                exact.query = &self.query_padded;
            }
            let of_rounded = scores::Single {
                target: &self.target_rounded,
                query: &self.query_rounded,
                dim: padded,
            };
            job.descriptors = Some(scores::Scorers {
                rounded: of_rounded,
                exact,
            });
        }

        let band = BAND_ROWS * self.width;
        index
            .par_chunks_mut(band)
            .zip(valid.par_chunks_mut(band))
            .enumerate()
            .map(|(b, (index, valid))| job.run_band(b * band, index, valid))
            .reduce(MatchStats::default, |a, b| MatchStats {
                valid: a.valid + b.valid,
                refined: a.refined + b.refined,
            })
    }
}

/// Data shared by all bands of one call.
struct Job<'a> {
    width: usize,
    height: usize,
    params: &'a MatchingConfig,
    rays: &'a [f32],
    target_points: &'a [f32],
    query_points: &'a [f32],
    initial: Option<&'a [u32]>,
    /// `None` without refinement.
    descriptors: Option<scores::Scorers<scores::Single<'a>>>,
    /// Whether invalid pixels are refined.
    invalid_too: bool,
}

impl Job<'_> {
    /// A search ends when its cost falls below this.
    #[inline(always)]
    fn noise(&self) -> f32 {
        NOISE.min(self.params.convergence_thresh)
    }

    /// Matches the pixels from `first` on, which `index` and `valid` cover in whole rows.
    fn run_band(&self, first: usize, index: &mut [u32], valid: &mut [u8]) -> MatchStats {
        search::run(self, first, index, valid);
        let refined = match self.descriptors {
            None => 0,
            Some(scorers) => refine::run(scorers, self, first, self.invalid_too, index, valid),
        };
        MatchStats {
            valid: valid.iter().filter(|&&v| v != 0).count(),
            refined,
        }
    }
}

/// Quality of each match: `out[n] = sqrt(q_target[index[n]] · q_query[n])`, the geometric mean of
/// the two descriptor confidences, at most [`MAX_QUALITY`]; 0 if the match is invalid or the result is
/// not finite.
///
/// # Panics
/// If `q_query`, `index`, `valid` and `out` differ in length.
pub fn match_quality(
    q_target: &[f32],
    q_query: &[f32],
    index: &[u32],
    valid: &[u8],
    out: &mut [f32],
) {
    let n = out.len();
    assert!(
        q_query.len() == n && index.len() == n && valid.len() == n,
        "match_quality: expected {n} query confidences, indices and flags, found {}, {} and {}",
        q_query.len(),
        index.len(),
        valid.len()
    );
    out.par_iter_mut()
        .with_min_len(1 << 13)
        .zip(q_query)
        .zip(index)
        .zip(valid)
        .for_each(|(((out, &query), &i), &valid)| {
            let target = q_target.get(i as usize).copied().unwrap_or(0.0);
            let quality = (target * query).sqrt();
            *out = if valid != 0 && quality.is_finite() {
                quality.min(MAX_QUALITY)
            } else {
                0.0
            };
        });
}

/// Exact number of distinct `index[n]` over the valid `n`. `seen` is scratch memory with one bit
/// per pixel; it allocates only to grow. Indices not below `index.len()` are not counted.
///
/// # Panics
/// If `index` and `valid` differ in length.
pub fn unique_matches(index: &[u32], valid: &[u8], seen: &mut Vec<u64>) -> usize {
    assert_eq!(
        index.len(),
        valid.len(),
        "unique_matches: expected as many flags as indices"
    );
    seen.clear();
    seen.resize(index.len().div_ceil(64), 0);
    for (&i, &v) in index.iter().zip(valid) {
        let i = i as usize;
        if i < index.len() {
            seen[i / 64] |= u64::from(v != 0) << (i % 64);
        }
    }
    seen.iter().map(|bits| bits.count_ones() as usize).sum()
}

/// Whether a point has a direction: finite, with finite squared length, and longer than 1e-12.
#[inline(always)]
fn usable(p: [f32; 3]) -> bool {
    let squared = p[0] * p[0] + p[1] * p[1] + p[2] * p[2];
    squared.is_finite() && squared > 1e-24
}

#[inline(always)]
fn point(points: &[f32], n: usize) -> [f32; 3] {
    [points[3 * n], points[3 * n + 1], points[3 * n + 2]]
}

/// Start of the search for pixel `n`: the previous match if it is inside the image, otherwise `n`.
#[inline(always)]
fn start(initial: Option<&[u32]>, n: usize, pixels: usize) -> usize {
    match initial {
        Some(map) if (map[n] as usize) < pixels => map[n] as usize,
        _ => n,
    }
}

fn padded_dim(dim: usize) -> usize {
    dim.next_multiple_of(8)
}

/// Writes `channel` of each of the `dim` channels of a pixel to `dst`, which has [`padded_dim`] of them. The rest is not
/// written.
fn pad(src: &[f32], dim: usize, dst: &mut [f32], channel: impl Fn(f32) -> f32 + Sync) {
    if dim > 0 {
        dst.par_chunks_exact_mut(padded_dim(dim))
            .with_min_len(1 << 12)
            .zip(src.par_chunks_exact(dim))
            .for_each(|(dst, src)| {
                for (dst, x) in dst.iter_mut().zip(src) {
                    *dst = channel(*x);
                }
            });
    }
}

fn no_matches(initial: Option<&[u32]>, index: &mut [u32], valid: &mut [u8]) -> MatchStats {
    let pixels = index.len();
    for (n, i) in index.iter_mut().enumerate() {
        *i = start(initial, n, pixels) as u32;
    }
    valid.fill(0);
    MatchStats::default()
}

fn check_shapes(
    pixels: usize,
    dim: usize,
    target: View<'_>,
    query: View<'_>,
    initial: Option<&[u32]>,
    index: usize,
    valid: usize,
) {
    for (what, found, expected) in [
        ("target points", target.points.len(), pixels * 3),
        ("query points", query.points.len(), pixels * 3),
        ("target descriptors", target.descriptors.len(), pixels * dim),
        ("query descriptors", query.descriptors.len(), pixels * dim),
        (
            "initial indices",
            initial.map_or(pixels, <[u32]>::len),
            pixels,
        ),
        ("indices", index, pixels),
        ("valid flags", valid, pixels),
    ] {
        assert!(
            found == expected,
            "matching: expected {expected} {what}, found {found}"
        );
    }
}
