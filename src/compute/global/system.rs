//! The sparse normal equations of all free poses, in blocks of 7×7.

use super::edges::Linearised;
use super::{Edge, PosePrior};
use crate::compute::residual::{Matrix7, SolveError};
use crate::geometry::Sim3;
use faer::Side;
use faer::linalg::solvers::Solve;
use faer::sparse::linalg::solvers::{Llt, SymbolicLlt};
use faer::sparse::{SparseColMatRef, SymbolicSparseColMat};
use nalgebra::DVector;

/// Always added to the diagonal, relative to it: below the rounding of the sums.
const FLOOR: f64 = 1e-12;
/// The diagonal counts as at least this fraction of its block's largest, so that damping reaches
/// a motion that nothing observes.
const RELATIVE_DIAGONAL: f64 = 1e-9;

/// Which poses are free, and where their blocks lie. Only the lower triangle is kept.
pub(super) struct Layout {
    /// Of each keyframe, its place among the free ones.
    slot: Vec<Option<usize>>,
    /// Of each free pose, its keyframe.
    keyframe: Vec<usize>,
    /// Block rows of each block column, ascending, the diagonal first.
    blocks: Vec<Vec<usize>>,
    pattern: SymbolicSparseColMat<usize>,
    symbolic: SymbolicLlt<usize>,
}

impl Layout {
    pub(super) fn new(
        fixed: &[bool],
        edges: &[Edge<'_>],
        priors: &[PosePrior],
    ) -> Result<Self, SolveError> {
        let keyframe: Vec<usize> = (0..fixed.len()).filter(|&k| !fixed[k]).collect();
        let mut slot = vec![None; fixed.len()];
        for (s, &k) in keyframe.iter().enumerate() {
            slot[k] = Some(s);
        }
        let mut blocks: Vec<Vec<usize>> = (0..keyframe.len()).map(|s| vec![s]).collect();
        let of_edges = edges.iter().map(|e| (e.i, e.j));
        for (i, j) in of_edges.chain(priors.iter().map(|p| (p.i, p.j))) {
            if let (Some(a), Some(b)) = (slot[i], slot[j]) {
                blocks[a.min(b)].push(a.max(b));
            }
        }
        let (mut starts, mut rows) = (vec![0], Vec::new());
        for (column, blocks) in blocks.iter_mut().enumerate() {
            blocks.sort_unstable();
            blocks.dedup();
            for within in 0..7 {
                for &block in blocks.iter() {
                    let first = if block == column { within } else { 0 };
                    rows.extend((first..7).map(|r| 7 * block + r));
                }
                starts.push(rows.len());
            }
        }
        let size = 7 * keyframe.len();
        let pattern = SymbolicSparseColMat::new_checked(size, size, starts, None, rows);
        let symbolic = SymbolicLlt::try_new(pattern.as_ref(), Side::Lower).map_err(|_| {
            let poses = keyframe.len();
            SolveError::Factorisation { poses }
        })?;
        Ok(Self {
            slot,
            keyframe,
            blocks,
            pattern,
            symbolic,
        })
    }

    /// Free poses.
    pub(super) fn free(&self) -> usize {
        self.keyframe.len()
    }

    /// Every pose after a step of the free ones; the others as they were.
    pub(super) fn retract(&self, poses: &[Sim3], step: &DVector<f64>) -> Vec<Sim3> {
        let mut out = poses.to_vec();
        for (s, &k) in self.keyframe.iter().enumerate() {
            out[k] = poses[k].retract(&step.fixed_rows::<7>(7 * s).into_owned());
        }
        out
    }
}

/// Values for a [`Layout`].
pub(super) struct System {
    values: Vec<f64>,
    damped: Vec<f64>,
    gradient: DVector<f64>,
    /// Diagonal entries' places in `values`, and what damping multiplies.
    diagonal: Vec<(usize, f64)>,
}

impl System {
    pub(super) fn new(layout: &Layout) -> Self {
        let size = 7 * layout.free();
        let starts = layout.pattern.col_ptr();
        Self {
            values: vec![0.0; starts[size]],
            damped: vec![0.0; starts[size]],
            gradient: DVector::zeros(size),
            diagonal: starts[..size].iter().map(|&p| (p, 0.0)).collect(),
        }
    }

    /// Adds up every term: with `J_j = row·Ad(T_i⁻¹)` and `J_i = −J_j`, a term's `H` and `g` become
    /// `AᵀHA` on both diagonal blocks, `−AᵀHA` between them, and `±Aᵀg`.
    pub(super) fn assemble(&mut self, layout: &Layout, poses: &[Sim3], at: &Linearised) {
        self.values.fill(0.0);
        self.gradient.fill(0.0);
        for term in &at.terms {
            let (i, j) = (layout.slot[term.i], layout.slot[term.j]);
            if i.is_none() && j.is_none() {
                continue;
            }
            let a = poses[term.i].inverse().adjoint();
            let hessian = a.transpose() * term.hessian * a;
            let gradient = a.transpose() * term.gradient;
            for (slot, sign) in [(i, -1.0), (j, 1.0)] {
                if let Some(s) = slot {
                    self.add_block(layout, s, s, &hessian, 1.0);
                    let mut rows = self.gradient.fixed_rows_mut::<7>(7 * s);
                    rows += gradient * sign;
                }
            }
            if let (Some(i), Some(j)) = (i, j) {
                self.add_block(layout, i.max(j), i.min(j), &hessian, -1.0);
            }
        }
        for s in 0..layout.free() {
            let block = &mut self.diagonal[7 * s..7 * s + 7];
            let largest = block
                .iter()
                .fold(0.0, |m: f64, (p, _)| m.max(self.values[*p]));
            for (place, damping) in block {
                *damping = self.values[*place].max(RELATIVE_DIAGONAL * largest);
            }
        }
    }

    fn add_block(&mut self, layout: &Layout, row: usize, column: usize, h: &Matrix7, sign: f64) {
        let Ok(block) = layout.blocks[column].binary_search(&row) else {
            // The layout has a block for every pair of the terms that it was made from.
            unreachable!("no block ({row}, {column}) in the layout");
        };
        for c in 0..7 {
            let start = layout.pattern.col_ptr()[7 * column + c];
            if block == 0 {
                for r in c..7 {
                    self.values[start + r - c] += sign * h[(r, c)];
                }
            } else {
                let start = start + 7 * block - c;
                for r in 0..7 {
                    self.values[start + r] += sign * h[(r, c)];
                }
            }
        }
    }

    /// `−(H + (λ + floor)·D)⁻¹ g`, if that can be had and is finite.
    pub(super) fn solve(&mut self, layout: &Layout, damping: f64) -> Option<DVector<f64>> {
        self.damped.copy_from_slice(&self.values);
        for &(place, scale) in &self.diagonal {
            self.damped[place] += (damping + FLOOR) * scale;
        }
        let matrix = SparseColMatRef::new(layout.pattern.as_ref(), &self.damped);
        let llt = Llt::try_new_with_symbolic(layout.symbolic.clone(), matrix, Side::Lower).ok()?;
        let mut step = -&self.gradient;
        let size = step.len();
        let column = faer::MatMut::from_column_major_slice_mut(step.as_mut_slice(), size, 1);
        llt.solve_in_place(column);
        step.iter().all(|v| v.is_finite()).then_some(step)
    }

    #[cfg(test)]
    pub(super) fn gradient(&self) -> &DVector<f64> {
        &self.gradient
    }
}
