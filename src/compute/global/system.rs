//! The sparse normal equations of all free poses, in blocks of 7×7.

use super::cholesky::{Block, Blocks, Pattern, Rows, SIZE};
use super::terms::{Linearised, Term};
use crate::compute::residual::{Matrix7, SolveError};
use crate::geometry::{Sim3, Tangent};
use nalgebra::DVector;

/// Always added to the diagonal, relative to it: below the rounding of the sums.
const FLOOR: f64 = 1e-12;
/// The diagonal counts as at least this fraction of its block's largest, so that damping reaches
/// a motion that nothing observes.
const RELATIVE_DIAGONAL: f64 = 1e-9;

/// Which poses are free, and where their blocks lie.
pub(super) struct Layout {
    /// Of each keyframe, its place among the free ones: when it is eliminated.
    place: Vec<Option<usize>>,
    /// Of each free pose, by place, its keyframe.
    keyframe: Vec<usize>,
    /// Of each link, the block between its two poses, if both are free.
    between: Vec<Option<usize>>,
    pattern: Pattern,
}

impl Layout {
    /// `links` are the keyframes of each term.
    pub(super) fn new(fixed: &[bool], links: &[(usize, usize)]) -> Result<Self, SolveError> {
        let free: Vec<usize> = (0..fixed.len()).filter(|&k| !fixed[k]).collect();
        let mut node = vec![None; fixed.len()];
        for (n, &k) in free.iter().enumerate() {
            node[k] = Some(n);
        }
        let both = |&(i, j): &(usize, usize)| node[i].zip(node[j]);
        let pattern = Pattern::new(free.len(), links.iter().filter_map(both));
        let mut keyframe = vec![0; free.len()];
        for (n, &k) in free.iter().enumerate() {
            keyframe[pattern.position(n)] = k;
        }
        let between = links.iter().map(|link| {
            let Some((a, b)) = both(link) else {
                return Ok(None);
            };
            match pattern.below(a, b) {
                Some(block) => Ok(Some(block)),
                None => Err(SolveError::Factorisation { poses: free.len() }),
            }
        });
        let between = between.collect::<Result<_, _>>()?;
        let place = node.iter().map(|n| n.map(|n| pattern.position(n)));
        Ok(Self {
            place: place.collect(),
            keyframe,
            between,
            pattern,
        })
    }

    /// Free poses.
    pub(super) fn free(&self) -> usize {
        self.keyframe.len()
    }

    /// Where the seven entries of a keyframe's pose begin in a step, if it is free.
    #[cfg(test)]
    pub(super) fn first_entry(&self, keyframe: usize) -> Option<usize> {
        self.place[keyframe].map(|p| SIZE * p)
    }

    /// Every pose after a step of the free ones; the others as they were.
    pub(super) fn retract(&self, poses: &[Sim3], step: &DVector<f64>, out: &mut Vec<Sim3>) {
        out.clear();
        out.extend_from_slice(poses);
        for (p, &k) in self.keyframe.iter().enumerate() {
            out[k] = poses[k].retract(&step.fixed_rows::<SIZE>(SIZE * p).into_owned());
        }
    }
}

/// Values for a [`Layout`].
pub(super) struct System {
    values: Blocks,
    factor: Blocks,
    gradient: DVector<f64>,
    /// What is solved for.
    right: Vec<Rows>,
    /// What damping multiplies, for each diagonal entry.
    diagonal: Vec<[f64; SIZE]>,
}

impl System {
    pub(super) fn new(layout: &Layout) -> Self {
        Self {
            values: Blocks::new(&layout.pattern),
            factor: Blocks::new(&layout.pattern),
            gradient: DVector::zeros(SIZE * layout.free()),
            right: vec![Rows::default(); layout.free()],
            diagonal: vec![[0.0; SIZE]; layout.free()],
        }
    }

    /// Adds up every term: `H` on both diagonal blocks, `−H` between them, and `±g`.
    pub(super) fn assemble(&mut self, layout: &Layout, at: &Linearised) {
        self.values.clear();
        self.gradient.fill(0.0);
        for (term, between) in at.terms.iter().zip(&layout.between) {
            let Term { i, j, .. } = *term;
            for (keyframe, sign) in [(i, -1.0), (j, 1.0)] {
                if let Some(p) = layout.place[keyframe] {
                    add(&mut self.values.diagonal[p], &term.hessian, 1.0);
                    let rows = &mut self.gradient.as_mut_slice()[SIZE * p..SIZE * (p + 1)];
                    for (v, g) in rows.iter_mut().zip(term.gradient.as_slice()) {
                        *v += sign * g;
                    }
                }
            }
            if let Some(place) = *between {
                // Symmetric, so it does not matter which of the two is the row.
                add(&mut self.values.below[place], &term.hessian, -1.0);
            }
        }
        for (damping, block) in self.diagonal.iter_mut().zip(&self.values.diagonal) {
            let on: Tangent = Tangent::from_fn(|r, _| block[r][r]);
            let least = RELATIVE_DIAGONAL * on.max().max(0.0);
            *damping = std::array::from_fn(|r| on[r].max(least));
        }
    }

    /// `−(H + (λ + floor)·D)⁻¹ g` into `step`; `false` if it cannot be had or is not finite.
    pub(super) fn solve(&mut self, layout: &Layout, damping: f64, step: &mut DVector<f64>) -> bool {
        self.factor.copy_from(&self.values);
        for (block, scale) in self.factor.diagonal.iter_mut().zip(&self.diagonal) {
            for (r, scale) in scale.iter().enumerate() {
                block[r][r] += (damping + FLOOR) * scale;
            }
        }
        let rows = self.gradient.as_slice().chunks_exact(SIZE);
        for (right, rows) in self.right.iter_mut().zip(rows) {
            for (right, g) in right.iter_mut().zip(rows) {
                *right = -g;
            }
        }
        if !self.factor.solve(&layout.pattern, &mut self.right) {
            return false;
        }
        step.clone_from(&self.gradient);
        let rows = step.as_mut_slice().chunks_exact_mut(SIZE);
        for (rows, right) in rows.zip(&self.right) {
            rows.copy_from_slice(&right[..SIZE]);
        }
        step.iter().all(|v| v.is_finite())
    }

    #[cfg(test)]
    pub(super) fn gradient(&self) -> &DVector<f64> {
        &self.gradient
    }
}

fn add(block: &mut Block, h: &Matrix7, sign: f64) {
    for (column, values) in block.iter_mut().zip(h.as_slice().chunks_exact(SIZE)) {
        for (v, h) in column.iter_mut().zip(values) {
            *v += sign * h;
        }
    }
}
