//! From matches to one 7×7 normal matrix for each directed edge.

use super::{Edge, Keyframe, PosePrior};
use crate::compute::residual::{
    self, CHUNK, COLUMNS, Columns, LANES, Matrix7, Model, NO_MATCH, Noise, Normal, SolveError,
    Sums, expect_len, on_ray, point,
};
use crate::geometry::{Sim3, Tangent};
use rayon::prelude::*;

/// Correspondences that are gathered at a time: 14 kB, which stays in the first-level cache.
const BLOCK: usize = 512;

/// What is solved.
pub(super) struct Problem<'a> {
    pub(super) keyframes: &'a [Keyframe<'a>],
    pub(super) edges: &'a [Edge<'a>],
    pub(super) priors: &'a [PosePrior],
    /// Of each edge, whether it counts.
    pub(super) active: Vec<bool>,
    pub(super) model: Model,
    pub(super) noise: Noise,
    pub(super) pixels: usize,
    pub(super) c_conf: f32,
    pub(super) q_conf: f32,
}

/// Of the chunks of all directed edges.
#[derive(Default)]
pub(super) struct Scratch {
    kept: Vec<Kept>,
    sums: Vec<Normal>,
}

/// The matches of a chunk that pass every gate which no pose changes.
#[derive(Default)]
struct Kept {
    /// Pixel of `j`, pixel of `i`. Eight bytes a match: the points themselves would be 28, more than
    /// a cache holds, while those of a keyframe serve all its edges.
    pairs: Vec<[u32; 2]>,
    /// Matches that point outside the image.
    outside: u64,
}

/// One direction of an edge, or a prior, in the tangent space of `T_ij = T_i⁻¹·T_j`.
pub(super) struct Relative {
    pub(super) i: usize,
    pub(super) j: usize,
    pub(super) hessian: Matrix7,
    pub(super) gradient: Tangent,
    used: u64,
}

/// The problem at a set of poses.
pub(super) struct Linearised {
    /// Two for each edge, in the edges' order, then one for each prior.
    pub(super) terms: Vec<Relative>,
    pub(super) robust: f64,
    pub(super) used: u64,
    edges: usize,
}

impl Linearised {
    pub(super) fn is_finite(&self) -> bool {
        self.robust.is_finite()
            && self.terms.iter().all(|t| {
                let mut all = t.hessian.iter().chain(t.gradient.iter());
                all.all(|v| v.is_finite())
            })
    }

    /// Matches in use of each edge, both directions together.
    pub(super) fn edge_matches(&self) -> impl Iterator<Item = u64> + '_ {
        self.terms[..2 * self.edges]
            .chunks_exact(2)
            .map(|t| t[0].used + t[1].used)
    }
}

/// One direction: pixels of `j` matched with pixels of `i`.
struct Directed<'a> {
    i: usize,
    j: usize,
    index: &'a [u32],
    valid: &'a [u8],
    quality: &'a [f32],
}

impl<'a> Problem<'a> {
    /// Refuses what does not fit together.
    pub(super) fn validate(&self, poses: usize) -> Result<(), SolveError> {
        let count = self.keyframes.len();
        expect_len("poses", count, poses)?;
        for k in self.keyframes {
            expect_len("keyframe points", 3 * self.pixels, k.points.len())?;
            expect_len("keyframe confidences", self.pixels, k.confidence.len())?;
            if !k.world_from_camera.is_finite() {
                let what = "a keyframe's pose";
                return Err(SolveError::NotFinite { what });
            }
        }
        let joins = |what, i, j| match i != j && i < count && j < count {
            true => Ok(()),
            false => Err(SolveError::Keyframe { what, i, j, count }),
        };
        for (n, e) in self.edges.iter().enumerate() {
            joins("an edge", e.i, e.j)?;
            for d in [self.directed(2 * n), self.directed(2 * n + 1)] {
                expect_len("an edge's matches", self.pixels, d.index.len())?;
                expect_len("an edge's match flags", self.pixels, d.valid.len())?;
                expect_len("an edge's match qualities", self.pixels, d.quality.len())?;
            }
        }
        for p in self.priors {
            joins("a prior", p.i, p.j)?;
            let information_ok = p.information.iter().all(|v| v.is_finite() && *v >= 0.0);
            if !(p.i_from_j.is_finite() && information_ok) {
                let what = "a prior's pose or information";
                return Err(SolveError::NotFinite { what });
            }
        }
        Ok(())
    }

    fn directed(&self, n: usize) -> Directed<'a> {
        let e = &self.edges[n / 2];
        if n.is_multiple_of(2) {
            Directed {
                i: e.i,
                j: e.j,
                index: e.index_i_from_j,
                valid: e.valid_j,
                quality: e.quality_j,
            }
        } else {
            Directed {
                i: e.j,
                j: e.i,
                index: e.index_j_from_i,
                valid: e.valid_i,
                quality: e.quality_i,
            }
        }
    }

    /// Finds the matches that count, once for all linearisations.
    pub(super) fn select(&self, scratch: &mut Scratch) -> Result<(), SolveError> {
        let chunks = self.pixels.div_ceil(CHUNK);
        let directed = 2 * self.edges.len();
        scratch.kept.resize_with(directed * chunks, Kept::default);
        let kept = scratch.kept.par_iter_mut().enumerate();
        kept.for_each(|(task, kept)| {
            self.select_chunk(&self.directed(task / chunks), task % chunks, kept);
        });
        match scratch.kept.iter().map(|k| k.outside).sum() {
            0 => Ok(()),
            count => Err(SolveError::Index {
                count,
                pixels: self.pixels,
            }),
        }
    }

    fn select_chunk(&self, d: &Directed<'_>, chunk: usize, kept: &mut Kept) {
        let (to, from) = (&self.keyframes[d.i], &self.keyframes[d.j]);
        kept.pairs.clear();
        kept.outside = 0;
        for n in chunk * CHUNK..((chunk + 1) * CHUNK).min(self.pixels) {
            let quality = d.quality[n];
            let gate = d.valid[n] != 0 && quality > self.q_conf && from.confidence[n] > self.c_conf;
            if !gate {
                continue;
            }
            let m = d.index[n];
            let (Some(target), Some(&confidence)) =
                (point(to.points, m as usize), to.confidence.get(m as usize))
            else {
                kept.outside += 1;
                continue;
            };
            let usable = confidence > self.c_conf
                && residual::accepts(&self.model, self.moving(from.points, n), target, quality);
            if usable {
                kept.pairs.push([n as u32, m]);
            }
        }
    }

    /// Point `n` of `points` as it takes part: calibrated, only its depth counts.
    #[inline(always)]
    fn moving(&self, points: &[f32], n: usize) -> [f32; 3] {
        let p = [points[3 * n], points[3 * n + 1], points[3 * n + 2]];
        match &self.model {
            Model::Rays | Model::Points => p,
            Model::Calibrated(view) => {
                let (u, v) = view.place(n);
                on_ray(&view.intrinsics, u, v, p[2])
            }
        }
    }

    /// The normal equations of every term at `poses`, of the matches that [`Problem::select`] found.
    pub(super) fn linearise(&self, poses: &[Sim3], scratch: &mut Scratch) -> Linearised {
        let chunks = self.pixels.div_ceil(CHUNK);
        let directed = 2 * self.edges.len();
        let Scratch { kept, sums } = scratch;
        sums.clear();
        sums.resize(directed * chunks, Normal::default());
        let tasks = sums.par_iter_mut().zip(kept).enumerate();
        tasks.for_each(|(task, (out, kept))| {
            let n = task / chunks;
            if self.active[n / 2] {
                *out = self.chunk(&self.directed(n), &kept.pairs, poses);
            }
        });

        let mut out = Linearised {
            terms: Vec::with_capacity(directed + self.priors.len()),
            robust: 0.0,
            used: 0,
            edges: self.edges.len(),
        };
        for n in 0..directed {
            let mut total = Normal::default();
            for sum in &sums[n * chunks..(n + 1) * chunks] {
                total.add(sum);
            }
            let d = self.directed(n);
            out.terms.push(Relative {
                i: d.i,
                j: d.j,
                hessian: total.hessian_matrix(),
                gradient: total.gradient_vector(),
                used: total.used,
            });
            out.robust += total.robust;
            out.used += total.used;
        }
        for prior in self.priors {
            let (term, cost) = prior_term(prior, poses);
            out.terms.push(term);
            out.robust += cost;
        }
        out
    }

    /// One chunk of one direction: gathers and sums, a block at a time.
    fn chunk(&self, d: &Directed<'_>, pairs: &[[u32; 2]], poses: &[Sim3]) -> Normal {
        let pose = poses[d.i].inverse() * poses[d.j];
        let (to, from) = (self.keyframes[d.i].points, self.keyframes[d.j].points);
        let mut data = [[0.0; BLOCK]; COLUMNS];
        let mut sums = Sums::new(&self.noise);
        for block in pairs.chunks(BLOCK) {
            let mut put = |k: usize, row: [f32; COLUMNS]| {
                for (column, value) in data.iter_mut().zip(row) {
                    column[k] = value;
                }
            };
            for (k, &[n, m]) in block.iter().enumerate() {
                let (n, m) = (n as usize, m as usize);
                let [x, y, z] = self.moving(from, n);
                let target = [to[3 * m], to[3 * m + 1], to[3 * m + 2]];
                let [u, v, w] = residual::measured(&self.model, target, m);
                put(k, [x, y, z, u, v, w, d.quality[n]]);
            }
            for k in block.len()..block.len().next_multiple_of(LANES) {
                put(k, NO_MATCH);
            }
            let columns = Columns::new(data.as_flattened(), block.len());
            residual::accumulate(&self.model, &self.noise, &pose, columns, &mut sums);
        }
        sums.total()
    }
}

/// `e = log(T_ij·M⁻¹)`, whose derivative by a left perturbation of `T_ij` is the inverse of the
/// left Jacobian of the group at `e`.
pub(super) fn prior_term(prior: &PosePrior, poses: &[Sim3]) -> (Relative, f64) {
    let relative = poses[prior.i].inverse() * poses[prior.j];
    let e = (relative * prior.i_from_j.inverse()).log();
    let weighted = prior.information.component_mul(&e);
    // NaN where it cannot be inverted, which the caller tests for.
    let row = left_jacobian(&e)
        .try_inverse()
        .unwrap_or(Matrix7::repeat(f64::NAN));
    let term = Relative {
        i: prior.i,
        j: prior.j,
        hessian: row.transpose() * Matrix7::from_diagonal(&prior.information) * row,
        gradient: row.transpose() * weighted,
        used: 0,
    };
    (term, 0.5 * e.dot(&weighted))
}

/// `Σ ad(e)ᵏ/(k+1)!`, with `ad(e) = [[φ^ + σI, τ^, −τ], [0, φ^, 0], [0, 0, 0]]`.
fn left_jacobian(e: &Tangent) -> Matrix7 {
    let tau = e.fixed_rows::<3>(0).into_owned();
    let hat = e.fixed_rows::<3>(3).into_owned().cross_matrix();
    let mut ad = Matrix7::zeros();
    let scaled = hat + nalgebra::Matrix3::identity() * e[6];
    ad.fixed_view_mut::<3, 3>(0, 0).copy_from(&scaled);
    ad.fixed_view_mut::<3, 3>(0, 3)
        .copy_from(&tau.cross_matrix());
    ad.fixed_view_mut::<3, 1>(0, 6).copy_from(&-tau);
    ad.fixed_view_mut::<3, 3>(3, 3).copy_from(&hat);
    let (mut term, mut sum) = (Matrix7::identity(), Matrix7::identity());
    // A rotation is at most π, so 4^k/(k+1)! bounds the terms for moderate e: below 1e-16 at 30.
    for k in 1..=30 {
        term = term * ad / f64::from(k + 1);
        sum += term;
    }
    sum
}
