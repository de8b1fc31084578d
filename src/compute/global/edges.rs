//! Sums the matches of each edge into one 7×7 normal matrix.

use super::descent::{Lineariser, Wanted};
use super::terms::{Linearised, Relative, Term, factor_terms};
use super::{Edge, Keyframe, PoseFactor};
use crate::compute::residual::{
    self, CHUNK, COLUMNS, Columns, LANES, Model, NO_MATCH, Noise, Normal, ROUNDING, SolveError,
    Sums, expect_len, on_ray, point,
};
use crate::geometry::Sim3;
use rayon::prelude::*;

/// Correspondences gathered at a time: 14 kB, which fits the L1 cache.
const BLOCK: usize = 512;

pub(super) struct Problem<'a> {
    pub(super) keyframes: &'a [Keyframe<'a>],
    pub(super) edges: &'a [Edge<'a>],
    pub(super) factors: &'a [PoseFactor],
    pub(super) model: Model,
    pub(super) noise: Noise,
    pub(super) pixels: usize,
    pub(super) c_conf: f32,
    pub(super) q_conf: f32,
    pub(super) scratch: &'a mut Scratch,
}

/// Scratch memory for the chunks of all directed edges.
#[derive(Default)]
pub(super) struct Scratch {
    kept: Vec<Kept>,
    sums: Vec<Normal>,
}

/// The matches of a chunk that pass all pose-independent gates.
#[derive(Default)]
struct Kept {
    /// Pixel of `j`, pixel of `i`. Eight bytes per match: storing the points would take 28, more
    /// than a cache holds, while the points of a keyframe are shared by all its edges.
    pairs: Vec<[u32; 2]>,
    /// Matches that point outside the image.
    outside: u64,
}

/// One direction of an edge: pixels of `j` matched with pixels of `i`.
struct Directed<'a> {
    i: usize,
    j: usize,
    index: &'a [u32],
    quality: &'a [f32],
}

impl<'a> Problem<'a> {
    /// Rejects arrays that do not match the image size.
    pub(super) fn expect_lengths(&self, poses: usize) -> Result<(), SolveError> {
        expect_len("poses", self.keyframes.len(), poses)?;
        for k in self.keyframes {
            expect_len("keyframe points", 3 * self.pixels, k.points.len())?;
            expect_len("keyframe confidences", self.pixels, k.confidence.len())?;
        }
        for n in 0..2 * self.edges.len() {
            let d = self.directed(n);
            expect_len("an edge's matches", self.pixels, d.index.len())?;
            expect_len("an edge's match qualities", self.pixels, d.quality.len())?;
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
                quality: e.quality_j,
            }
        } else {
            Directed {
                i: e.j,
                j: e.i,
                index: e.index_j_from_i,
                quality: e.quality_i,
            }
        }
    }

    fn select_chunk(&self, d: &Directed<'_>, chunk: usize, kept: &mut Kept) {
        let (to, from) = (&self.keyframes[d.i], &self.keyframes[d.j]);
        kept.pairs.clear();
        kept.outside = 0;
        for n in chunk * CHUNK..((chunk + 1) * CHUNK).min(self.pixels) {
            let quality = d.quality[n];
            let gate = quality > self.q_conf && from.confidence[n] > self.c_conf;
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

    /// Point `n` of `points`; with calibration only its depth is used.
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

    /// Gathers and sums one chunk of one direction, block by block.
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

impl Lineariser for Problem<'_> {
    type Error = SolveError;

    fn select(&mut self) -> Result<(), SolveError> {
        let chunks = self.pixels.div_ceil(CHUNK);
        let directed = 2 * self.edges.len();
        let mut kept = std::mem::take(&mut self.scratch.kept);
        kept.resize_with(directed * chunks, Kept::default);
        let tasks = kept.par_iter_mut().enumerate();
        tasks.for_each(|(task, kept)| {
            self.select_chunk(&self.directed(task / chunks), task % chunks, kept);
        });
        let outside = kept.iter().map(|k| k.outside).sum();
        self.scratch.kept = kept;
        match outside {
            0 => Ok(()),
            count => Err(SolveError::Index {
                count,
                pixels: self.pixels,
            }),
        }
    }

    /// Uses the matches found by `select`.
    fn linearise(
        &mut self,
        poses: &[Sim3],
        active: &[bool],
        wanted: Wanted,
        out: &mut Linearised,
    ) -> Result<(), SolveError> {
        let chunks = self.pixels.div_ceil(CHUNK);
        let mut sums = std::mem::take(&mut self.scratch.sums);
        sums.clear();
        sums.resize(2 * self.edges.len() * chunks, Normal::default());
        let tasks = sums.par_iter_mut().zip(&self.scratch.kept).enumerate();
        tasks.for_each(|(task, (out, kept))| {
            let n = task / chunks;
            if active[n / 2] {
                *out = self.chunk(&self.directed(n), &kept.pairs, poses);
            }
        });

        out.clear();
        for (e, edge) in self.edges.iter().enumerate() {
            let mut term = Term::zero(edge.i, edge.j);
            let (mut robust, mut matches) = (0.0, 0);
            for (n, sign) in [(2 * e, 1.0), (2 * e + 1, -1.0)] {
                let mut total = Normal::default();
                for sum in &sums[n * chunks..(n + 1) * chunks] {
                    total.add(sum);
                }
                if wanted == Wanted::Equations {
                    let relative = Relative {
                        hessian: total.hessian_matrix(),
                        gradient: total.gradient_vector(),
                    };
                    relative.add_to(&poses[self.directed(n).i], sign, &mut term);
                }
                robust += total.robust;
                matches += total.used;
            }
            out.push_edge(term, robust, matches);
        }
        let mut factors = Vec::with_capacity(self.factors.len());
        let cost = factor_terms(self.factors, poses, &mut factors);
        out.push_factors(&factors, cost);
        self.scratch.sums = sums;
        Ok(())
    }

    fn rounding(&self, _robust: f64, _used: u64) -> f64 {
        ROUNDING
    }
}
