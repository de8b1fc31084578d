//! Folding: a keyframe's edges and factors become factors between its neighbours, so that the
//! keyframe can be removed: each measures what the keyframe's edges measured together, and none claims to know more
//! (docs/algorithm.md, Global optimisation). Pure functions; which keyframe is folded, and when, is decided elsewhere.
//!
//! ```text
//!   let mut fold = Fold::new(pose_k);
//!   for each edge and factor between k and a neighbour a, linearised at the poses of a converged solve:
//!       fold.add(a, &pose_a, &H, &g);      // g: the gradient at a
//!   let factors = fold.factors(&pairs_of_neighbours_that_an_edge_or_a_factor_joins)?;
//!   // remove k, then add the factors to the graph
//! ```

use crate::compute::global::{Matrix7, PoseFactor, parallel_sum};
use crate::geometry::{Sim3, Tangent};

/// Damping of the small systems solved here, with a unit diagonal. Refinement removes its effect
/// from every direction in which there is information.
const DAMPING: f64 = 1e-9;
/// Refinements of a damped solution.
const REFINEMENTS: usize = 3;

/// Error of a fold: the keyframe must stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FoldError {
    /// A number is not finite.
    #[error(
        "the equations or the pose of neighbour {neighbour} are not finite: keep the keyframe until a solve has converged"
    )]
    NotFinite {
        /// Index of the neighbour.
        neighbour: usize,
    },
    /// An edge's information is not positive semidefinite.
    #[error(
        "an edge to one of a keyframe's {neighbours} neighbours is nowhere at rest: keep the keyframe"
    )]
    Undetermined {
        /// Number of neighbours.
        neighbours: usize,
    },
}

/// The connection of the keyframe with one neighbour.
#[derive(Debug, Clone, Copy)]
struct Spoke {
    neighbour: usize,
    /// `keyframe_from_neighbour`.
    pose: Sim3,
    /// In the frame of the keyframe.
    hessian: Matrix7,
    /// Gradient at the neighbour, in the frame of the keyframe.
    gradient: Tangent,
}

/// A keyframe to be folded, with what connects it to its neighbours.
#[derive(Debug, Clone)]
pub struct Fold {
    pose: Sim3,
    /// Ascending by neighbour.
    spokes: Vec<Spoke>,
}

impl Fold {
    /// A keyframe at `pose` (`world_from_camera`) without neighbours.
    pub fn new(pose: Sim3) -> Self {
        Self {
            pose,
            spokes: Vec::new(),
        }
    }

    /// Adds an edge or a factor between the keyframe and `neighbour`, at `pose`
    /// (`world_from_camera`); several with one neighbour are summed. `hessian` and `gradient` are
    /// those of
    /// [`MappingDevice::equations`](crate::compute::device::MappingDevice::equations) and
    /// [`PoseFactor::equations`], with the gradient *at the neighbour*: negated if the neighbour is
    /// the term's `i`.
    pub fn add(&mut self, neighbour: usize, pose: &Sim3, hessian: &Matrix7, gradient: &Tangent) {
        // In the keyframe's own frame lever arms are short, however far the map extends.
        let adjoint = self.pose.adjoint();
        let spoke = Spoke {
            neighbour,
            pose: self.pose.inverse() * *pose,
            hessian: adjoint.transpose() * hessian * adjoint,
            gradient: adjoint.transpose() * gradient,
        };
        match self
            .spokes
            .binary_search_by_key(&neighbour, |s| s.neighbour)
        {
            Ok(at) => {
                self.spokes[at].hessian += spoke.hessian;
                self.spokes[at].gradient += spoke.gradient;
            }
            Err(at) => self.spokes.insert(at, spoke),
        }
    }

    /// Neighbours added so far, ascending.
    pub fn neighbours(&self) -> impl Iterator<Item = usize> {
        self.spokes.iter().map(|s| s.neighbour)
    }

    /// The factors between neighbours that take the keyframe's place: one for each pair in `joined`
    /// (pairs of neighbours that an edge or a factor joins already; other pairs are ignored), and
    /// one for each pair of the maximum spanning tree that is needed to connect all neighbours.
    /// Ascending, with `i < j`; none without information, and none for fewer than two neighbours. Where a factor joins a pair
    /// already, [`PoseFactor::fused`] makes one of both.
    ///
    /// The factors are never more certain than the edges: each neighbour's information is shared
    /// among its pairs, as if each pair had an independent copy of the keyframe. Each is at rest where both edges through
    /// the keyframe are. With two neighbours, a converged map stays converged; with more of them the factors pull less
    /// than the keyframe did, and the map may move a little. Factors that pull as the keyframe did, but know less, pull
    /// too far: a map in which keyframes are removed again and again bends.
    ///
    /// # Errors
    /// The equations are not finite, or do not determine where an edge is at rest.
    pub fn factors(&self, joined: &[(usize, usize)]) -> Result<Vec<PoseFactor>, FoldError> {
        let finite = |s: &Spoke| {
            let (h, g) = (s.hessian.iter(), s.gradient.iter());
            s.pose.is_finite() && h.chain(g).all(|v| v.is_finite())
        };
        if let Some(bad) = self.spokes.iter().find(|s| !finite(s)) {
            let neighbour = bad.neighbour;
            return Err(FoldError::NotFinite { neighbour });
        }
        if self.spokes.len() < 2 {
            return Ok(Vec::new());
        }
        let rests: Vec<Tangent> = self
            .spokes
            .iter()
            .map(|spoke| self.rest(spoke))
            .collect::<Result<_, _>>()?;
        let pairs = self.pairs(joined);
        let shared = self.share(&pairs);
        let factors = pairs.iter().zip(&shared).map(|(&(a, b), information)| {
            let gradient = information * (rests[b] - rests[a]);
            let end = |s: usize| (self.spokes[s].neighbour, &self.spokes[s].pose);
            PoseFactor::at(end(a), end(b), information, &gradient)
        });
        Ok(factors.filter(|f| f.information.trace() > 0.0).collect())
    }

    /// The pairs that get a factor, as indices of spokes, ascending.
    fn pairs(&self, joined: &[(usize, usize)]) -> Vec<(usize, usize)> {
        let spoke = |neighbour: usize| {
            let found = self
                .spokes
                .binary_search_by_key(&neighbour, |s| s.neighbour);
            found.ok()
        };
        let mut pairs: Vec<(usize, usize)> = Vec::new();
        for &(a, b) in joined {
            if let (Some(a), Some(b)) = (spoke(a), spoke(b))
                && a != b
            {
                pairs.push((a.min(b), a.max(b)));
            }
        }
        pairs.sort_unstable();
        pairs.dedup();
        let count = self.spokes.len();
        let mut group: Vec<usize> = (0..count).collect();
        let mut join = |(a, b): (usize, usize)| {
            let (from, to) = (group[a].max(group[b]), group[a].min(group[b]));
            for g in &mut group {
                if *g == from {
                    *g = to;
                }
            }
            from != to
        };
        for &pair in &pairs {
            join(pair);
        }
        // Kruskal's algorithm, by the information that a pair has through the keyframe. The sort is
        // stable, so that equal pairs keep their order.
        let all = (0..count).flat_map(|a| (a + 1..count).map(move |b| (a, b)));
        let weight = |(a, b): (usize, usize)| {
            parallel_sum(&self.spokes[a].hessian, &self.spokes[b].hessian).trace()
        };
        let mut others: Vec<_> = all.map(|pair| (weight(pair), pair)).collect();
        others.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        let needed = others.into_iter().filter(|(_, pair)| join(*pair));
        let needed: Vec<_> = needed.map(|(_, pair)| pair).collect();
        pairs.extend(needed);
        pairs.sort_unstable();
        pairs
    }

    /// The information of each pair: the shares of both ends in series. A neighbour's information is
    /// shared among its pairs in proportion to the traces of the other ends'.
    fn share(&self, pairs: &[(usize, usize)]) -> Vec<Matrix7> {
        let trace = |s: usize| self.spokes[s].hessian.trace();
        let mut total = vec![0.0; self.spokes.len()];
        for &(a, b) in pairs {
            total[a] += trace(b);
            total[b] += trace(a);
        }
        let share = |a: usize, b: usize| match total[a] > 0.0 {
            true => self.spokes[a].hessian * (trace(b) / total[a]),
            false => Matrix7::zeros(),
        };
        let pairs = pairs.iter();
        pairs
            .map(|&(a, b)| parallel_sum(&share(a, b), &share(b, a)))
            .collect()
    }

    /// How far the keyframe and the neighbour are from where their edge is at rest: `H·y = g`. Directions without
    /// information stay zero.
    fn rest(&self, spoke: &Spoke) -> Result<Tangent, FoldError> {
        let error = FoldError::Undetermined {
            neighbours: self.spokes.len(),
        };
        let h = &spoke.hessian;
        let scale = (h.diagonal()).map(|d| if d > 0.0 { 1.0 / d.sqrt() } else { 1.0 });
        let unit = Matrix7::from_fn(|r, c| h[(r, c)] * scale[r] * scale[c]);
        let damped = unit + Matrix7::identity() * DAMPING;
        let factor = damped.cholesky().ok_or(error)?;
        let b = spoke.gradient.component_mul(&scale);
        let mut x = factor.solve(&b);
        for _ in 0..REFINEMENTS {
            x += factor.solve(&(b - unit * x));
        }
        match x.iter().all(|v| v.is_finite()) {
            true => Ok(x.component_mul(&scale)),
            false => Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
