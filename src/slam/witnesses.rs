//! Loops judge each other: one that neither agrees with the map nor contradicts it waits for others
//! that say the same (docs/algorithm.md, Factor graph and loop closure).

use super::belief::{CHI2_HALF, CHI2_LIMIT, Odometry, chi2};
use super::graph::Graph;
use super::trial::MAX_LOOPS;
use crate::compute::global::{Matrix7, PoseFactor};

/// Loops between keyframes at most this many hops apart are part of local mapping.
pub const LOCAL_HOPS: usize = 10;
/// Maximum number of loops that wait: more than ten keyframes' candidates.
const MAX_WAITING: usize = 32;
/// Number of keyframes for which a loop waits.
pub const PATIENCE: u32 = 10;
/// Witnesses come from keyframes at most this many apart.
pub const MAX_APART: u32 = 5;

/// A measured loop.
#[derive(Debug, Clone, Copy)]
pub struct Loop {
    /// The older keyframe.
    pub place: u32,
    /// The keyframe that recognised it.
    pub query: u32,
    /// `place` from `query`, between their ids.
    pub factor: PoseFactor,
    /// Covariance of the measurement, in the frame of `place`.
    pub covariance: Matrix7,
    /// Residual variance of its matches.
    pub variance: f64,
}

/// What the map and earlier loops say about a new one.
#[derive(Debug, Clone)]
pub enum Verdict {
    /// It agrees with the map.
    Agrees,
    /// These earlier loops confirm it.
    Confirmed(Vec<Loop>),
    /// It waits for others.
    Waits,
    /// It contradicts the map. It remains a witness.
    Contradicts,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    of: Loop,
    contradicts: bool,
}

/// Loops that wait.
#[derive(Debug, Default)]
pub struct Witnesses {
    waiting: Vec<Waiting>,
}

impl Witnesses {
    /// Judges a new loop. A loop within the map must agree with the path between its keyframes
    /// (χ² ≤ 6.35, or within ten hops 24.3 with drift), or be confirmed by another one, or, if it contradicts the path (χ² > 24.3) or
    /// joins two submaps, by two others, not all of one keyframe.
    pub fn judge(&mut self, graph: &Graph, new: Loop) -> Verdict {
        let odometry = Odometry::new(graph);
        let (needed, contradicts) = match odometry.path(new.place, new.query) {
            None => (2, false),
            Some(path) => {
                let error = (path.relative * new.factor.i_from_j.inverse()).log();
                let covariance = path.covariance + new.covariance;
                let found = chi2(&error, &covariance);
                let with_drift = chi2(&error, &(covariance + path.drift));
                tracing::debug!(
                    new.place,
                    new.query,
                    path.hops,
                    found,
                    with_drift,
                    "loop against the map"
                );
                if found <= CHI2_HALF || (path.hops <= LOCAL_HOPS && with_drift <= CHI2_LIMIT) {
                    return Verdict::Agrees;
                }
                match with_drift <= CHI2_LIMIT {
                    true => (1, false),
                    false => (2, true),
                }
            }
        };
        let agreeing: Vec<Loop> = self
            .waiting
            .iter()
            .map(|waiting| waiting.of)
            .filter(|of| consistent(&odometry, &new, of))
            .collect();
        let mut group = group(&odometry, &agreeing);
        // A single image that looks like another place does not overrule the map.
        if needed > 1 && group.iter().all(|of| of.query == new.query) {
            group.clear();
        }
        if group.is_empty() && needed == 1 {
            group.extend(agreeing.first());
        }
        if !group.is_empty() {
            return Verdict::Confirmed(group);
        }
        self.waiting.push(Waiting {
            of: new,
            contradicts,
        });
        match contradicts {
            true => Verdict::Contradicts,
            false => Verdict::Waits,
        }
    }

    /// These loops wait no longer.
    pub fn take(&mut self, loops: &[Loop]) {
        let taken = |w: &Waiting| {
            let same = |of: &Loop| (of.place, of.query) == (w.of.place, w.of.query);
            loops.iter().any(same)
        };
        self.waiting.retain(|w| !taken(w));
    }

    /// Makes a refused loop wait: together with others it may be confirmed.
    pub fn wait(&mut self, of: Loop) {
        let contradicts = true;
        self.waiting.push(Waiting { of, contradicts });
    }

    /// The loops that wait, the newest first.
    pub fn waiting(&self) -> impl Iterator<Item = &Loop> {
        self.waiting.iter().rev().map(|waiting| &waiting.of)
    }

    /// Forgets loops that have waited long enough when keyframe `newest` arrives; returns how many of
    /// them were not refused before.
    pub fn expire(&mut self, newest: u32) -> usize {
        let too_many = self.waiting.len().saturating_sub(MAX_WAITING);
        let mut n = 0;
        let gone = self.waiting.extract_if(.., |w| {
            n += 1;
            n <= too_many || w.of.query.saturating_add(PATIENCE) < newest
        });
        gone.filter(|w| !w.contradicts).count()
    }
}

/// A largest group of loops that also agree with each other; empty if no two do.
fn group(odometry: &Odometry<'_>, loops: &[Loop]) -> Vec<Loop> {
    let mut largest: Vec<Loop> = Vec::new();
    for (n, first) in loops.iter().enumerate() {
        let mut group = vec![*first];
        for of in &loops[n + 1..] {
            if group.len() + 1 < MAX_LOOPS && group.iter().all(|g| consistent(odometry, g, of)) {
                group.push(*of);
            }
        }
        if group.len() > largest.len().max(1) {
            largest = group;
        }
    }
    largest
}

/// Whether two loops of neighbouring keyframes, or of one, to neighbouring places say the same: the error around the
/// cycle place a → query a → query b → place b → place a. Two loops of one query and one place are the same pair of
/// images, and do not count.
fn consistent(odometry: &Odometry<'_>, a: &Loop, b: &Loop) -> bool {
    let apart = a.query.abs_diff(b.query);
    if apart > MAX_APART || (a.query, a.place) == (b.query, b.place) {
        return false;
    }
    let places = odometry.path(a.place, b.place);
    let queries = odometry.path(b.query, a.query);
    let (Some(places), Some(queries)) = (places, queries) else {
        return false;
    };
    if places.hops > LOCAL_HOPS {
        return false;
    }
    let to_b = places.relative;
    let through_b = to_b * b.factor.i_from_j;
    let error = (through_b * queries.relative * a.factor.i_from_j.inverse()).log();
    let carried = |pose: &crate::geometry::Sim3, covariance: &Matrix7| {
        let adjoint = pose.adjoint();
        adjoint * covariance * adjoint.transpose()
    };
    let covariance = places.covariance
        + carried(&to_b, &b.covariance)
        + carried(&through_b, &queries.covariance)
        + a.covariance;
    let found = chi2(&error, &covariance);
    tracing::debug!(
        a.place,
        a.query,
        b.place,
        b.query,
        found,
        "loops beside each other"
    );
    found <= CHI2_LIMIT
}

#[cfg(test)]
mod tests {
    use super::super::fixtures;
    use super::*;
    use crate::geometry::{Sim3, Tangent};

    /// Keyframe `k` of a circle of 40 with a radius of 3 m.
    fn truth(k: u32) -> Sim3 {
        let angle = f64::from(k) / 40.0 * std::f64::consts::TAU;
        let mut xi = Tangent::zeros();
        xi[4] = angle;
        let turn = Sim3::exp(&xi);
        let mut out = Tangent::zeros();
        out[0] = 3.0;
        turn * Sim3::exp(&out)
    }

    /// A chain of 46 keyframes whose steps all err in the same way.
    fn drifted(step: &Tangent) -> Graph {
        let mut pose = truth(0);
        let poses = (0..46).map(|k: u32| {
            if let Some(before) = k.checked_sub(1) {
                pose = pose * truth(before).inverse() * truth(k) * Sim3::exp(step);
            }
            pose
        });
        fixtures::chain(poses, |_| 0.5)
    }

    /// A loop from `query` to `place` that is `off`.
    fn found(place: u32, query: u32, off: &Tangent) -> Loop {
        let i_from_j = Sim3::exp(off) * truth(place).inverse() * truth(query);
        let covariance = Matrix7::identity() * 0.01_f64.powi(2);
        Loop {
            place,
            query,
            factor: PoseFactor {
                i: place as usize,
                j: query as usize,
                i_from_j,
                information: Matrix7::identity() * 1e4,
            },
            covariance,
            variance: 1.0,
        }
    }

    fn turned(radians: f64) -> Tangent {
        let mut xi = Tangent::zeros();
        xi[4] = radians;
        xi
    }

    fn names(verdict: &Verdict) -> (&'static str, usize) {
        match verdict {
            Verdict::Agrees => ("agrees", 0),
            Verdict::Confirmed(witnesses) => ("confirmed", witnesses.len()),
            Verdict::Waits => ("waits", 0),
            Verdict::Contradicts => ("contradicts", 0),
        }
    }

    /// A map with as much drift that it neither expects a true loop nor contradicts it: half more than
    /// the least at which a loop has to wait.
    fn drifting() -> Graph {
        let step = |size: f64| {
            let mut step = turned(size);
            step[6] = size;
            step
        };
        let waits = |size: &f64| {
            let mut witnesses = Witnesses::default();
            let new = found(0, 40, &Tangent::zeros());
            let verdict = witnesses.judge(&drifted(&step(*size)), new);
            names(&verdict).0 == "waits"
        };
        let mut sizes = (1..100).map(|n| 0.0002 * f64::from(n));
        let least = sizes.find(waits).expect("some drift makes loops wait");
        drifted(&step(1.5 * least))
    }

    #[test]
    fn a_loop_that_the_map_expects_enters_at_once() {
        let graph = drifted(&Tangent::zeros());
        let mut witnesses = Witnesses::default();
        let verdict = witnesses.judge(&graph, found(0, 40, &turned(0.01)));
        assert_eq!(names(&verdict), ("agrees", 0));
        // A wrong one does not, near or far.
        for place in [0, 35] {
            let verdict = witnesses.judge(&graph, found(place, 41, &turned(1.0)));
            assert_eq!(names(&verdict), ("contradicts", 0));
        }
        assert_eq!(witnesses.expire(42), 0);
    }

    #[test]
    fn drift_needs_another_loop_that_says_the_same() {
        let graph = drifting();
        let none = Tangent::zeros();
        let mut witnesses = Witnesses::default();
        assert_eq!(
            names(&witnesses.judge(&graph, found(0, 40, &none))),
            ("waits", 0)
        );
        // The same pair is no second opinion.
        assert_eq!(
            names(&witnesses.judge(&graph, found(0, 40, &none))),
            ("waits", 0)
        );
        // A loop that says something else confirms nothing.
        let wrong = witnesses.judge(&graph, found(2, 42, &turned(1.0)));
        assert_eq!(names(&wrong), ("contradicts", 0));
        let verdict = witnesses.judge(&graph, found(2, 41, &none));
        assert_eq!(names(&verdict), ("confirmed", 1));
        let Verdict::Confirmed(group) = verdict else {
            unreachable!("it was confirmed");
        };
        witnesses.take(&group);
        assert_eq!(witnesses.waiting().count(), 1, "the wrong one");
        // Alone, it waits until its time is over.
        let alone = witnesses.judge(&graph, found(0, 40, &none));
        assert_eq!(names(&alone), ("waits", 0));
        assert_eq!(witnesses.expire(50), 0);
        assert_eq!(witnesses.expire(51), 1);
    }

    #[test]
    fn three_loops_overrule_the_map_and_two_do_not() {
        // 2 degrees a step: the map is 80 degrees off.
        let graph = drifted(&turned(0.035));
        let none = Tangent::zeros();
        let mut witnesses = Witnesses::default();
        let mut said = Vec::new();
        for query in 40..43 {
            said.push(names(
                &witnesses.judge(&graph, found(query - 40, query, &none)),
            ));
        }
        assert_eq!(
            said,
            [("contradicts", 0), ("contradicts", 0), ("confirmed", 2)]
        );
        // False loops differ from each other.
        for query in 40..46 {
            let off = turned(0.5 + 0.3 * f64::from(query - 40));
            let verdict = witnesses.judge(&graph, found(query - 40, query, &off));
            assert_eq!(names(&verdict), ("contradicts", 0), "{query}");
        }
    }

    #[test]
    fn one_image_confirms_a_loop_at_another_place_but_does_not_overrule_the_map() {
        let none = Tangent::zeros();
        let graph = drifting();
        let mut witnesses = Witnesses::default();
        let judge = |witnesses: &mut Witnesses, graph: &Graph, place, query| {
            names(&witnesses.judge(graph, found(place, query, &none)))
        };
        assert_eq!(judge(&mut witnesses, &graph, 0, 40), ("waits", 0));
        assert_eq!(judge(&mut witnesses, &graph, 1, 40), ("confirmed", 1));
        // 2 degrees a step: the map is 80 degrees off.
        let graph = drifted(&turned(0.035));
        let mut witnesses = Witnesses::default();
        for place in 0..3 {
            let said = judge(&mut witnesses, &graph, place, 40);
            assert_eq!(said, ("contradicts", 0), "{place}");
        }
        assert_eq!(judge(&mut witnesses, &graph, 0, 41).0, "confirmed");
    }

    #[test]
    fn waiting_loops_are_bounded() {
        let graph = drifting();
        let mut witnesses = Witnesses::default();
        for _ in 0..3 * MAX_WAITING {
            witnesses.judge(&graph, found(0, 40, &Tangent::zeros()));
        }
        assert_eq!(witnesses.expire(40), 2 * MAX_WAITING);
        assert_eq!(witnesses.waiting.len(), MAX_WAITING);
    }
}
