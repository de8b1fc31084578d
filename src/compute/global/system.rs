//! The sparse normal equations of all free poses, in 7×7 blocks.

use super::cholesky::{Block, Blocks, Pattern, Rows, SIZE};
use super::terms::{BinaryTerm, Linearised, Term};
use crate::compute::residual::{Matrix7, SolveError};
use crate::geometry::{Sim3, Tangent};
use nalgebra::{DVector, Vector3};

/// Damping that is always applied, relative to the diagonal: below the rounding of the sums.
const FLOOR: f64 = 1e-12;
/// Lower limit of diagonal entries, as a fraction of the largest in the block, so that damping also
/// affects motion that nothing observes.
const RELATIVE_DIAGONAL: f64 = 1e-9;

/// What of a keyframe's pose is fixed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Hold {
    /// Nothing.
    Free,
    /// Rotation and translation, which is this; the scale is free.
    Pose(Vector3<f64>),
    /// Everything.
    All,
}

/// Free poses and the location of their blocks.
pub(super) struct Layout {
    /// For each keyframe, its elimination position among the free poses.
    place: Vec<Option<usize>>,
    /// For each free pose, by position, its keyframe.
    keyframe: Vec<usize>,
    /// For each link, the block between its two poses if both are free.
    between: Vec<Option<usize>>,
    /// For each keyframe of which only the scale is free, the matrix `P` that takes `[0, 0, σ]` to the left
    /// perturbation `[−σt, 0, σ]`, which leaves the translation `t` as it is.
    scale_only: Vec<Option<Matrix7>>,
    pattern: Pattern,
}

impl Layout {
    /// `links` holds the keyframe indices of each term, those of binary terms last.
    pub(super) fn new(holds: &[Hold], links: &[(usize, usize)]) -> Result<Self, SolveError> {
        let free: Vec<usize> = (0..holds.len())
            .filter(|&k| holds[k] != Hold::All)
            .collect();
        let mut node = vec![None; holds.len()];
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
            scale_only: holds.iter().map(scale_only).collect(),
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
            let step = step.fixed_rows::<SIZE>(SIZE * p).into_owned();
            out[k] = match self.scale_only[k] {
                None => poses[k].retract(&step),
                Some(_) => Sim3 {
                    scale: poses[k].scale * step[6].exp(),
                    ..poses[k]
                },
            };
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

    /// Sums all terms: of edges and factors `H` on both diagonal blocks, `−H` off the diagonal, and `±g`.
    pub(super) fn assemble(&mut self, layout: &Layout, at: &Linearised) {
        self.values.clear();
        self.gradient.fill(0.0);
        for (term, between) in at.terms.iter().zip(&layout.between) {
            let Term { i, j, .. } = *term;
            if layout.scale_only[i].is_some() || layout.scale_only[j].is_some() {
                self.add_binary(layout, &BinaryTerm::from(term), *between);
                continue;
            }
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
        for term in &at.unary {
            self.add_diagonal(layout, term.k, &term.hessian, &term.gradient);
        }
        let between = layout.between.iter().skip(at.terms.len());
        for (term, between) in at.binary.iter().zip(between) {
            self.add_binary(layout, term, *between);
        }
        self.hold_poses(layout);
        for (damping, block) in self.diagonal.iter_mut().zip(&self.values.diagonal) {
            let on: Tangent = Tangent::from_fn(|r, _| block[r][r]);
            let min = RELATIVE_DIAGONAL * on.max().max(0.0);
            *damping = std::array::from_fn(|r| on[r].max(min));
        }
    }

    /// Adds the equations of one keyframe.
    fn add_diagonal(&mut self, layout: &Layout, k: usize, hessian: &Matrix7, gradient: &Tangent) {
        let Some(p) = layout.place[k] else {
            return;
        };
        let (hessian, gradient) = match &layout.scale_only[k] {
            Some(only) => (
                only.transpose() * hessian * only,
                only.transpose() * gradient,
            ),
            None => (*hessian, *gradient),
        };
        add(&mut self.values.diagonal[p], &hessian, 1.0);
        let rows = &mut self.gradient.as_mut_slice()[SIZE * p..SIZE * (p + 1)];
        for (v, g) in rows.iter_mut().zip(gradient.as_slice()) {
            *v += g;
        }
    }

    /// Adds the four blocks of a term.
    fn add_binary(&mut self, layout: &Layout, term: &BinaryTerm, between: Option<usize>) {
        self.add_diagonal(layout, term.i, &term.hessian_ii, &term.gradient_i);
        self.add_diagonal(layout, term.j, &term.hessian_jj, &term.gradient_j);
        let Some(place) = between else {
            return;
        };
        let mut block = term.hessian_ij;
        if let Some(only) = &layout.scale_only[term.i] {
            block = only.transpose() * block;
        }
        if let Some(only) = &layout.scale_only[term.j] {
            block *= only;
        }
        // The rows of a block below the diagonal are those of the later pose.
        if layout.place[term.i] < layout.place[term.j] {
            block.transpose_mut();
        }
        add(&mut self.values.below[place], &block, 1.0);
    }

    /// Gives the fixed entries of poses whose scale alone is free an equation of their own: the step is 0.
    fn hold_poses(&mut self, layout: &Layout) {
        for (k, place) in layout.place.iter().enumerate() {
            if let (Some(p), Some(_)) = (*place, &layout.scale_only[k]) {
                for r in 0..SIZE - 1 {
                    self.values.diagonal[p][r][r] = 1.0;
                }
            }
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

fn scale_only(hold: &Hold) -> Option<Matrix7> {
    let Hold::Pose(t) = hold else {
        return None;
    };
    let mut only = Matrix7::zeros();
    only.fixed_view_mut::<3, 1>(0, 6).copy_from(&-t);
    only[(6, 6)] = 1.0;
    Some(only)
}

fn add(block: &mut Block, h: &Matrix7, sign: f64) {
    for (column, values) in block.iter_mut().zip(h.as_slice().chunks_exact(SIZE)) {
        for (v, h) in column.iter_mut().zip(values) {
            *v += sign * h;
        }
    }
}
