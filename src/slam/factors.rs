//! The factors of a graph: what remains of edges and keyframes that were removed, and the condensed
//! form of edges that still have their matches.

use crate::compute::device::EdgeId;
use crate::compute::global::{CONNECTING, EdgeEquations, PoseFactor};
use crate::geometry::Sim3;
use rustc_hash::FxHashMap;
use std::cell::OnceCell;

/// Measurements of a match: a direction or pixel, and a distance.
const MEASUREMENTS: f64 = 3.0;
/// Minimum residual variance, for exact data, in units of the σs.
const MIN_VARIANCE: f64 = 1e-3;

/// A factor with what its matches say about its noise.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// The factor.
    pub factor: PoseFactor,
    /// Residual variance of the matches that it was made from; 1 if there are none.
    pub variance: f64,
}

/// An edge's matches as they were at the poses of its keyframes.
#[derive(Debug)]
pub struct Linearised {
    /// Ids of its keyframes.
    pub ends: [u32; 2],
    /// `world_from_camera` of both.
    pub poses: [Sim3; 2],
    /// The normal equations there.
    pub equations: EdgeEquations,
}

impl Linearised {
    /// The factor that equals the edge at these poses; `None` for fewer matches than determine a pose.
    pub fn condensed(&self) -> Option<Measured> {
        let ([i, j], [pose_i, pose_j]) = (self.ends.map(|id| id as usize), &self.poses);
        let (hessian, gradient) = (&self.equations.hessian, &self.equations.gradient);
        (self.equations.matches >= CONNECTING).then(|| Measured {
            factor: PoseFactor::at((i, pose_i), (j, pose_j), hessian, gradient),
            variance: variance(&self.equations),
        })
    }
}

/// Residual variance of an edge's matches: `s² = 2·cost/(3n − 7)`.
fn variance(equations: &EdgeEquations) -> f64 {
    let freedom = (MEASUREMENTS * equations.matches as f64 - 7.0).max(1.0);
    (2.0 * equations.robust / freedom).max(MIN_VARIANCE)
}

/// The condensed form of an edge, computed when it is first asked for: it needs an eigendecomposition, and the next
/// solve replaces most forms before they are used.
#[derive(Debug)]
struct Condensed {
    /// `None` if the form was given.
    from: Option<Linearised>,
    form: OnceCell<Option<Measured>>,
}

impl Condensed {
    fn form(&self) -> Option<&Measured> {
        let condense = || self.from.as_ref().and_then(Linearised::condensed);
        self.form.get_or_init(condense).as_ref()
    }
}

/// Factors between keyframes, which they name by id.
///
/// Invariants:
/// * A pair of keyframes has at most one factor.
/// * A factor connects two different keyframes.
#[derive(Debug, Default)]
pub struct Factors {
    list: Vec<PoseFactor>,
    /// For an edge in the graph, the factor that equals it near the poses of the last solve that
    /// held both its keyframes; `None` if it has too few matches to say anything.
    condensed: FxHashMap<EdgeId, Condensed>,
}

impl Factors {
    /// The factors, in order of creation.
    pub fn list(&self) -> &[PoseFactor] {
        &self.list
    }

    /// Adds a factor between keyframes at these poses; if one joins them already, both become one: their mean, no more
    /// certain than the more certain of both. What a network says about a pair of places again and again is always wrong in
    /// the same way, so that certainty must not grow with the number of visits.
    /// A factor of a keyframe with itself is ignored.
    pub fn add(&mut self, factor: PoseFactor, pose_i: &Sim3, pose_j: &Sim3) {
        let (i, j) = (factor.i, factor.j);
        if i == j {
            return;
        }
        match self.list.iter_mut().find(|f| joins(f, i, j)) {
            Some(old) => *old = factor.mean(old, pose_i, pose_j),
            None => self.list.push(factor),
        }
    }

    /// Removes the factor between two keyframes; returns whether there was one.
    pub fn remove(&mut self, i: usize, j: usize) -> bool {
        let before = self.list.len();
        self.list.retain(|f| !joins(f, i, j));
        self.list.len() < before
    }

    /// Removes the factors of keyframe `id`.
    pub fn remove_of(&mut self, id: usize) {
        self.list.retain(|f| f.i != id && f.j != id);
    }

    /// Condenses an edge whose matches are `linearised`.
    pub fn condense(&mut self, edge: EdgeId, linearised: Linearised) {
        let condensed = Condensed {
            from: Some(linearised),
            form: OnceCell::new(),
        };
        self.condensed.insert(edge, condensed);
    }

    /// Stores the condensed form of an edge; `None` if it has too few matches to say anything.
    pub fn set_condensed(&mut self, edge: EdgeId, form: Option<Measured>) {
        let condensed = Condensed {
            from: None,
            form: OnceCell::from(form),
        };
        self.condensed.insert(edge, condensed);
    }

    /// The condensed form of an edge; the outer `None` if it has not been condensed yet.
    pub fn condensed(&self, edge: EdgeId) -> Option<Option<&Measured>> {
        self.condensed.get(&edge).map(Condensed::form)
    }

    /// Forgets the condensed form of an edge that left the graph.
    pub fn forget(&mut self, edge: EdgeId) {
        self.condensed.remove(&edge);
    }
}

fn joins(factor: &PoseFactor, i: usize, j: usize) -> bool {
    (factor.i, factor.j) == (i, j) || (factor.i, factor.j) == (j, i)
}

/// The factor with keyframes named by index instead of by id; `None` if either does not exist.
pub fn indexed(factor: &PoseFactor, index: impl Fn(u32) -> Option<usize>) -> Option<PoseFactor> {
    let index = |id: usize| u32::try_from(id).ok().and_then(&index);
    let (i, j) = (index(factor.i)?, index(factor.j)?);
    Some(PoseFactor { i, j, ..*factor })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::global::Matrix7;
    use crate::geometry::Tangent;

    fn factor(i: usize, j: usize, x: f64, information: f64) -> PoseFactor {
        let mut xi = Tangent::zeros();
        xi[0] = x;
        PoseFactor {
            i,
            j,
            i_from_j: Sim3::exp(&xi),
            information: Matrix7::identity() * information,
        }
    }

    #[test]
    fn a_pair_has_one_factor_whichever_way_round() {
        let mut factors = Factors::default();
        let (here, there) = (Sim3::identity(), factor(0, 1, 1.0, 1.0).i_from_j);
        let (one, back) = (factor(3, 5, 1.1, 1.0), factor(5, 3, -1.4, 3.0));
        factors.add(one, &here, &there);
        factors.add(factor(3, 3, 1.0, 1.0), &here, &here);
        factors.add(back, &there, &here);
        factors.add(factor(4, 5, 0.0, 1.0), &here, &there);
        assert_eq!(factors.list().len(), 2);
        // It pulls to where both did together, with the information of the more certain one.
        let fused = factors.list()[0];
        let both = back.fused(&one, &there, &here);
        assert!((fused.i_from_j * both.i_from_j.inverse()).log().norm() < 1e-9);
        let turned = PoseFactor {
            information: Matrix7::zeros(),
            ..back
        };
        let turned = turned.fused(&one, &there, &here).information;
        let traces = [fused.information, turned, back.information].map(|i| i.trace());
        assert!(traces[1] < traces[2] && (traces[0] - traces[2]).abs() < 1e-9 * traces[2]);
        let at_5 = |f: &PoseFactor| match f.i {
            3 => f.equations(&here, &there).gradient,
            _ => -f.equations(&there, &here).gradient,
        };
        let share = traces[2] / both.information.trace();
        let expected = (at_5(&one) + at_5(&back)) * share;
        assert!((at_5(&fused) - expected).norm() < 1e-9, "{expected}");
        assert!(expected.norm() > 0.1);
        assert!(factors.remove(5, 3) && !factors.remove(5, 3));
        assert_eq!(factors.list().len(), 1);
    }

    #[test]
    fn ids_become_indices_of_keyframes_that_exist() {
        let ids = [2_u32, 7, 9];
        let index = |id: u32| ids.iter().position(|&known| known == id);
        let found = indexed(&factor(9, 2, 0.0, 1.0), index).map(|f| (f.i, f.j));
        assert_eq!(found, Some((2, 0)));
        assert_eq!(indexed(&factor(9, 3, 0.0, 1.0), index), None);
        assert_eq!(indexed(&factor(usize::MAX, 2, 0.0, 1.0), index), None);
    }
}
