//! The sparse normal equations of all free poses, in 7×7 blocks.

use super::cholesky::{Block, Blocks, Pattern, Rows, SIZE};
use super::terms::{Linearised, Term};
use crate::compute::residual::{Matrix7, SolveError};
use crate::geometry::{Sim3, Tangent};
use nalgebra::DVector;

/// Damping that is always applied, relative to the diagonal: below the rounding of the sums.
const FLOOR: f64 = 1e-12;
/// Lower limit of diagonal entries, as a fraction of the largest in the block, so that damping also
/// affects motion that nothing observes.
const RELATIVE_DIAGONAL: f64 = 1e-9;

/// Free poses and the location of their blocks.
pub(super) struct Layout {
    /// For each keyframe, its elimination position among the free poses.
    place: Vec<Option<usize>>,
    /// For each free pose, by position, its keyframe.
    keyframe: Vec<usize>,
    /// For each link, the block between its two poses if both are free.
    between: Vec<Option<usize>>,
    pattern: Pattern,
}

impl Layout {
    /// `links` holds the keyframe indices of each term.
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

    /// Number of free poses.
    pub(super) fn free(&self) -> usize {
        self.keyframe.len()
    }

    /// Index of the first of seven entries of a keyframe's pose in a step, if it is free.
    #[cfg(test)]
    pub(super) fn first_entry(&self, keyframe: usize) -> Option<usize> {
        self.place[keyframe].map(|p| SIZE * p)
    }

    /// All poses after applying a step to the free ones; the others are unchanged.
    pub(super) fn retract(&self, poses: &[Sim3], step: &DVector<f64>, out: &mut Vec<Sim3>) {
        out.clear();
        out.extend_from_slice(poses);
        for (p, &k) in self.keyframe.iter().enumerate() {
            out[k] = poses[k].retract(&step.fixed_rows::<SIZE>(SIZE * p).into_owned());
        }
    }
}

pub(super) struct System {
    values: Blocks,
    factor: Blocks,
    gradient: DVector<f64>,
    /// Right-hand side.
    right: Vec<Rows>,
    /// Diagonal entries that damping multiplies.
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

    /// Sums all terms: `H` on both diagonal blocks, `−H` off the diagonal, and `±g`.
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
                // The block is symmetric, so either of the two can be the row.
                add(&mut self.values.below[place], &term.hessian, -1.0);
            }
        }
        for (damping, block) in self.diagonal.iter_mut().zip(&self.values.diagonal) {
            let on: Tangent = Tangent::from_fn(|r, _| block[r][r]);
            let min = RELATIVE_DIAGONAL * on.max().max(0.0);
            *damping = std::array::from_fn(|r| on[r].max(min));
        }
    }

    /// `−(H + (λ + floor)·D)⁻¹ g` into `step`; `false` if it does not exist or is not finite.
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
