//! Folding on graphs of factors, whose exact answers are known: the Schur complement of what was
//! removed, and the poses before it was.

use super::*;
use crate::compute::cancel::CancelToken;
use crate::compute::global::{Priors, solve_factors};
use crate::config::GlobalOptConfig;
use nalgebra::SymmetricEigen;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Deterministic random numbers, uniform in ±1 and normal.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as f64 / (1_u64 << 30) as f64 - 1.0
    }

    /// The sum of twelve uniform numbers in ±½.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| 0.5 * self.next()).sum()
    }

    fn tangent(&mut self, size: f64) -> Tangent {
        Tangent::from_fn(|_, _| self.next() * size)
    }

    /// A positive definite matrix whose standard deviations are about `sigma`, with correlations.
    fn information(&mut self, sigma: f64) -> Matrix7 {
        let rows = Matrix7::from_fn(|_, _| self.next());
        (rows * rows.transpose() + Matrix7::identity() * 0.3) / (sigma * sigma)
    }

    /// A sample of the covariance that `information` inverts.
    fn noise(&mut self, information: &Matrix7) -> Tangent {
        let l = information.cholesky().unwrap().l();
        let normal = Tangent::from_fn(|_, _| self.normal());
        l.transpose().solve_upper_triangular(&normal).unwrap()
    }
}

/// A map of factors.
#[derive(Clone)]
struct Toy {
    poses: Vec<Sim3>,
    factors: BTreeMap<(usize, usize), PoseFactor>,
}

impl Toy {
    /// `laps` rounds past `places`, with factors between consecutive keyframes and between all views
    /// of a place and of the places beside it. `noise` is in units of the standard deviation.
    fn laps(places: usize, laps: usize, noise: f64, seed: u64) -> Self {
        let mut random = Random(seed);
        let truth: Vec<Sim3> = (0..places * laps)
            .map(|n| {
                let angle = (n % places) as f64 / places as f64 * std::f64::consts::TAU;
                let axis = [3.0 * angle.cos(), 3.0 * angle.sin(), 0.0, 0.0, 0.0, angle];
                let mut xi = Tangent::zeros();
                xi.fixed_rows_mut::<6>(0).copy_from_slice(&axis);
                Sim3::exp(&random.tangent(0.1)) * Sim3::exp(&xi)
            })
            .collect();
        let mut pairs: Vec<(usize, usize)> = (1..truth.len()).map(|n| (n - 1, n)).collect();
        for n in places..truth.len() {
            for back in (places..=n).step_by(places) {
                let m = n - back;
                pairs.extend(
                    [m.checked_sub(1), Some(m), Some(m + 1)]
                        .into_iter()
                        .flatten()
                        .map(|m| (m, n)),
                );
            }
        }
        pairs.retain(|(a, b)| a != b);
        let factors = pairs.into_iter().map(|(i, j)| {
            let information = random.information(0.02);
            let off = Sim3::exp(&(random.noise(&information) * noise));
            let factor = PoseFactor {
                i,
                j,
                i_from_j: off * truth[i].inverse() * truth[j],
                information,
            };
            ((i, j), factor)
        });
        let factors = factors.collect();
        let mut toy = Self {
            poses: truth,
            factors,
        };
        toy.solve();
        toy
    }

    /// Solves for the poses that have factors.
    fn solve(&mut self) {
        let kept = self.kept();
        let place: BTreeMap<usize, usize> = kept.iter().enumerate().map(|(n, &k)| (k, n)).collect();
        let factors: Vec<_> = self
            .factors
            .values()
            .map(|f| PoseFactor {
                i: place[&f.i],
                j: place[&f.j],
                ..*f
            })
            .collect();
        let params = GlobalOptConfig {
            max_iters: 100,
            rel_error: 0.0,
            delta_norm: 1e-12,
            ..GlobalOptConfig::default()
        };
        let mut poses: Vec<Sim3> = kept.iter().map(|&k| self.poses[k]).collect();
        let (none, cancel) = (Priors::default(), CancelToken::default());
        let report = solve_factors(&factors, none, &params, &cancel, &mut poses).unwrap();
        assert!(report.converged && report.loose_groups == 0, "{report:?}");
        for (k, pose) in kept.into_iter().zip(poses) {
            self.poses[k] = pose;
        }
    }

    /// Keyframes that have factors, ascending.
    fn kept(&self) -> Vec<usize> {
        let ends = self.factors.keys().flat_map(|&(i, j)| [i, j]);
        ends.collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .collect()
    }

    fn degree(&self, k: usize) -> usize {
        self.factors
            .keys()
            .filter(|(i, j)| *i == k || *j == k)
            .count()
    }

    /// Removes keyframe `k` and puts factors in its place; `tension` as the rule says, or with the
    /// present relative poses.
    fn fold(&mut self, k: usize, tension: bool) {
        let mut fold = Fold::new(self.poses[k]);
        let ends: Vec<_> = self.factors.keys().copied().collect();
        let (gone, left): (Vec<_>, Vec<_>) =
            ends.into_iter().partition(|(i, j)| *i == k || *j == k);
        for pair in gone {
            let factor = self.factors.remove(&pair).unwrap();
            let at = factor.equations(&self.poses[factor.i], &self.poses[factor.j]);
            let (other, sign) = if factor.i == k {
                (factor.j, 1.0)
            } else {
                (factor.i, -1.0)
            };
            let gradient = if tension {
                at.gradient * sign
            } else {
                Tangent::zeros()
            };
            fold.add(other, &self.poses[other], &at.hessian, &gradient);
        }
        for factor in fold.factors(&left).unwrap() {
            let (pair, poses) = ((factor.i, factor.j), &self.poses);
            let fused = match self.factors.get(&pair) {
                Some(old) => old.fused(&factor, &poses[pair.0], &poses[pair.1]),
                None => factor,
            };
            self.factors.insert(pair, fused);
        }
    }

    /// The Laplacian of the keyframes `nodes`, at the present poses.
    fn laplacian(&self, nodes: &[usize]) -> DMatrix<f64> {
        let place = |k: usize| 7 * nodes.iter().position(|&n| n == k).unwrap();
        let mut m = DMatrix::zeros(7 * nodes.len(), 7 * nodes.len());
        for (&(i, j), factor) in &self.factors {
            let h = factor.equations(&self.poses[i], &self.poses[j]).hessian;
            for (a, b, sign) in [(i, i, 1.0), (j, j, 1.0), (i, j, -1.0), (j, i, -1.0)] {
                let mut view = m.fixed_view_mut::<7, 7>(place(a), place(b));
                view += h * sign;
            }
        }
        m
    }

    /// The Laplacian of `nodes` after all others were eliminated exactly.
    fn schur(&self, nodes: &[usize]) -> DMatrix<f64> {
        let others = self.kept().into_iter().filter(|k| !nodes.contains(k));
        let order: Vec<usize> = nodes.iter().copied().chain(others).collect();
        let m = self.laplacian(&order);
        let (n, all) = (7 * nodes.len(), m.nrows());
        let corner = m.view((n, n), (all - n, all - n)).into_owned();
        let across = m.view((0, n), (n, all - n)).into_owned();
        let solved = corner.cholesky().unwrap().solve(&across.transpose());
        m.view((0, 0), (n, n)) - across * solved
    }
}

/// Eigenvalues of `exact − shared` relative to those of `exact`: negative where the factors claim
/// more than was known.
fn confidence(exact: &DMatrix<f64>, shared: &DMatrix<f64>) -> f64 {
    let difference = SymmetricEigen::new(exact - shared).eigenvalues.min();
    difference / exact.diagonal().max()
}

fn moved(a: &Toy, b: &Toy, nodes: &[usize]) -> f64 {
    let far = |&k: &usize| (a.poses[k].inverse() * b.poses[k]).log().norm();
    nodes.iter().map(far).fold(0.0, f64::max)
}

/// The design's toy: laps 2 and 3 are folded into lap 1, with a solve after each fold.
#[test]
fn three_laps_fold_into_one() {
    let (places, laps) = (40, 3);
    let first: Vec<usize> = (0..places).collect();
    let mut toy = Toy::laps(places, laps, 1.0, 7);
    let full = toy.clone();
    let exact = full.schur(&first);
    for k in places..places * laps {
        toy.fold(k, true);
        toy.solve();
    }
    assert_eq!(toy.kept(), first);
    assert_eq!(full.factors.len(), 477);
    assert!(toy.factors.len() <= 2 * places, "{}", toy.factors.len());
    let degree = first.iter().map(|&k| toy.degree(k)).max().unwrap();
    assert!(degree <= 8, "{degree}");

    // Standard deviations of the poses in the full graph, with the first one fixed.
    let size = 7 * (places - 1);
    let free = |m: &DMatrix<f64>| m.view((7, 7), (size, size)).into_owned();
    let covariance = free(&exact).cholesky().unwrap().inverse();
    let (mut sum, mut count) = (0.0, 0.0);
    for k in 1..places {
        let off = (toy.poses[k] * full.poses[k].inverse()).log();
        for r in 0..7 {
            let at = 7 * (k - 1) + r;
            sum += off[r] * off[r] / covariance[(at, at)];
            count += 1.0;
        }
    }
    let moved = (sum / count).sqrt();
    assert!(moved <= 0.1, "the map moved by {moved} standard deviations");

    // Without noise both are linearised at the same poses, so that they can be compared exactly.
    let mut toy = Toy::laps(places, laps, 0.0, 7);
    let exact = toy.schur(&first);
    for k in places..places * laps {
        toy.fold(k, true);
    }
    let shared = toy.laplacian(&first);
    assert!(confidence(&exact, &shared) > -1e-9);
    // Variances with the first pose fixed: no smaller than the exact ones, smaller than those of
    // lap 1 alone.
    let mut alone = Toy::laps(places, laps, 0.0, 7);
    alone.factors.retain(|(i, j), _| *i.max(j) < places);
    let variances = |m: &DMatrix<f64>| free(m).cholesky().unwrap().inverse().diagonal();
    let [exact, shared, alone] = [exact, shared, alone.laplacian(&first)].map(|m| variances(&m));
    for r in 0..size {
        assert!(shared[r] >= exact[r] * (1.0 - 1e-6), "{r}");
        assert!(shared[r] < alone[r], "{r}");
    }
}

/// Without the tension the map moves: the test above can fail.
#[test]
fn present_relative_poses_let_the_map_move() {
    let places = 12;
    let first: Vec<usize> = (0..places).collect();
    let full = Toy::laps(places, 3, 1.0, 3);
    let run = |tension: bool| {
        let mut toy = full.clone();
        for k in places..3 * places {
            toy.fold(k, tension);
            toy.solve();
        }
        moved(&toy, &full, &first)
    };
    let (with, without) = (run(true), run(false));
    assert!(with < 0.1 * without, "{with} {without}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A star of any number of neighbours, joined by any pairs: the factors claim no more than the
    /// star, connect what it connected, and pull as it did.
    #[test]
    fn a_star_is_replaced_by_no_more_than_it_knew(
        neighbours in 2_usize..9,
        joined in proptest::collection::vec((0_usize..10, 0_usize..10), 0..12),
        seed in 0_u64..1_000_000,
        far in -50.0_f64..50.0,
    ) {
        let mut random = Random(seed);
        let centre = Sim3::exp(&(random.tangent(0.5) + Tangent::from_fn(|r, _| if r < 3 { far } else { 0.0 })));
        let poses: Vec<Sim3> = (0..neighbours).map(|_| centre * Sim3::exp(&random.tangent(0.4))).collect();
        let toy = Toy {
            poses: poses.iter().copied().chain([centre]).collect(),
            factors: (0..neighbours).map(|a| {
                let information = random.information(0.01);
                let off = Sim3::exp(&random.noise(&information));
                let i_from_j = off * poses[a].inverse() * centre;
                ((a, neighbours), PoseFactor { i: a, j: neighbours, i_from_j, information })
            }).collect(),
        };
        let mut fold = Fold::new(centre);
        let mut gradients = Vec::new();
        for factor in toy.factors.values() {
            let at = factor.equations(&poses[factor.i], &centre);
            fold.add(factor.i, &poses[factor.i], &at.hessian, &-at.gradient);
            gradients.push(-at.gradient);
        }
        let factors = fold.factors(&joined).unwrap();
        let nodes: Vec<usize> = (0..neighbours).collect();
        let exact = toy.schur(&nodes);
        // The keyframe was not at rest: the gradient after its elimination.
        let whole: Matrix7 = toy.factors.values().map(|f| f.equations(&poses[f.i], &centre).hessian).sum();
        let total: Tangent = gradients.iter().sum();
        let step = whole.cholesky().unwrap().solve(&total);
        let mut group: Vec<usize> = nodes.clone();
        let mut found = vec![Tangent::zeros(); neighbours];
        let mut wanted: BTreeMap<(usize, usize), bool> = BTreeMap::new();
        for &(a, b) in joined.iter().filter(|(a, b)| a != b && *a.max(b) < neighbours) {
            wanted.insert((a.min(b), a.max(b)), false);
        }
        let result = Toy {
            poses: poses.clone(),
            factors: factors.iter().map(|f| ((f.i, f.j), *f)).collect(),
        };
        for f in &factors {
            prop_assert!(f.i < f.j && f.information == f.information.transpose());
            wanted.insert((f.i, f.j), true);
            let at = f.equations(&poses[f.i], &poses[f.j]);
            found[f.j] += at.gradient;
            found[f.i] -= at.gradient;
            let (from, to) = (group[f.i], group[f.j]);
            group.iter_mut().filter(|g| **g == from).for_each(|g| *g = to);
        }
        prop_assert!(group.iter().all(|g| *g == group[0]), "connected");
        prop_assert!(wanted.values().all(|made| *made), "every joined pair");
        for (k, factor) in toy.factors.values().enumerate() {
            let h = factor.equations(&poses[k], &centre).hessian;
            let expected = gradients[k] - h * step;
            // Lever arms of `far` enter the world's gradients squared.
            let close = 1e-6 * (1.0 + h.norm() * step.norm() + gradients[k].norm());
            prop_assert!((found[k] - expected).norm() < close, "{k}: {} {expected}", found[k]);
        }
        prop_assert!(confidence(&exact, &result.laplacian(&nodes)) > -1e-9);
        if neighbours == 2 {
            // Exact for two neighbours.
            let off = (&exact - result.laplacian(&nodes)).norm() / exact.norm();
            prop_assert!(off < 1e-8, "{off}");
        }
    }
}

#[test]
fn degenerate_stars() {
    let here = Sim3::identity();
    let full = Matrix7::identity();
    let none = Tangent::zeros();
    let star = |spokes: &[(usize, Matrix7)]| {
        let mut fold = Fold::new(here);
        for (neighbour, hessian) in spokes {
            fold.add(*neighbour, &here, hessian, &none);
        }
        fold.factors(&[])
    };
    assert_eq!(star(&[]), Ok(vec![]));
    assert_eq!(star(&[(4, full)]), Ok(vec![]));
    assert_eq!(star(&[(4, full), (4, full)]), Ok(vec![]), "one neighbour");

    // Two edges to one neighbour count together; two springs in series.
    let made = star(&[(9, full), (4, full), (9, full)]).unwrap();
    assert_eq!((made.len(), made[0].i, made[0].j), (1, 4, 9));
    assert!((made[0].information - full * (2.0 / 3.0)).norm() < 1e-9);
    assert!(made[0].i_from_j.log().norm() < 1e-12);

    // An edge that says nothing leaves a factor that says nothing.
    let made = star(&[(4, full), (9, Matrix7::zeros())]).unwrap();
    assert_eq!(made, []);
    // A direction that one of two edges does not measure is not measured.
    let mut flat = full;
    flat[(6, 6)] = 0.0;
    let made = star(&[(4, full), (9, flat)]).unwrap();
    let expected = flat * 0.5;
    assert!(
        (made[0].information - expected).norm() < 1e-9,
        "{}",
        made[0].information
    );

    let error = star(&[(4, full), (9, full * f64::NAN)]);
    assert_eq!(error, Err(FoldError::NotFinite { neighbour: 9 }));
    let mut fold = Fold::new(here);
    fold.add(3, &Sim3 { scale: 0.0, ..here }, &full, &none);
    let error = fold.factors(&[]);
    assert_eq!(error, Err(FoldError::NotFinite { neighbour: 3 }));
}
