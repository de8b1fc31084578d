//! Trial solves: loops change the map only if the result is plausible (docs/algorithm.md, Factor graph and loop
//! closure).

use super::belief::{chi2, edge_covariance, error, information, step_covariance, worst};
use super::consistency::StepSigma;
use super::factors::Measured;
use super::skeleton;
use crate::compute::global::{Matrix7, PoseFactor, Priors, ScalePrior};
use crate::config::GlobalOptConfig;
use crate::geometry::{Sim3, Tangent};

/// Dynamic covariance scaling (Agarwal et al., ICRA 2013): the weight of a loop is `min(1,
/// 2Φ/(Φ + χ²))` with `Φ` near the 95 % point of χ² with seven degrees of freedom.
const PHI: f64 = 14.0;
/// Number of solves, each with the weights that the one before leaves.
const ROUNDS: usize = 4;
/// Minimum weight of a loop at the end.
const MIN_WEIGHT: f64 = 0.5;
/// Maximum number of loops that are tried together.
pub const MAX_LOOPS: usize = 5;
/// Probability that a sound map has a factor that ends farther off than [`max_error`], if a trial is about one loop.
const TORN_BY_CHANCE: f64 = 1e-3;
/// Probability with which a false loop agrees with another one, at most. A network's errors have longer tails than a
/// normal distribution: if that is less likely than a step with such an error, the step is wrong.
const AGREES_BY_CHANCE: f64 = 1e-3;

/// Maximum error of any of `factors` after a trial of `loops`, in standard deviations: of so many normally distributed
/// numbers, seven a factor, one is larger with a probability of at most [`TORN_BY_CHANCE`] (Bonferroni, and `P(|x| > z)
/// ≤ exp(−z²/2)`), times [`AGREES_BY_CHANCE`] for each loop after the first.
fn max_error(factors: usize, loops: usize) -> f64 {
    let torn = (7.0 * factors.max(1) as f64 / TORN_BY_CHANCE).ln();
    let agree = loops.saturating_sub(1) as f64 * -AGREES_BY_CHANCE.ln();
    (2.0 * (torn + agree)).sqrt()
}

/// A factor with its believed uncertainty.
struct Believed {
    factor: PoseFactor,
    covariance: Matrix7,
}

impl Believed {
    /// With the covariance of its matches plus that of a step of the map.
    fn new(of: &Measured, sigma: &StepSigma, pixels_per_patch: f64) -> Option<Self> {
        let covariance = edge_covariance(&of.factor.information, of.variance, pixels_per_patch)
            + step_covariance(&of.factor.i_from_j, sigma);
        let information = information(&covariance)?;
        let factor = PoseFactor {
            information,
            ..of.factor
        };
        Some(Self { factor, covariance })
    }

    fn error(&self, poses: &[Sim3]) -> Option<Tangent> {
        let (i, j) = (poses.get(self.factor.i)?, poses.get(self.factor.j)?);
        Some(error(&self.factor, i, j))
    }

    fn chi2(&self, poses: &[Sim3]) -> Option<f64> {
        Some(chi2(&self.error(poses)?, &self.covariance))
    }

    fn worst(&self, poses: &[Sim3]) -> Option<f64> {
        Some(worst(&self.error(poses)?, &self.covariance))
    }
}

/// Solves for `poses` with `loops` added to `map`, whose steps are known to `sigma`, each weighted by its believed
/// information. `scales` are the measured scales with their true information. `None` if the map must stay as it is: the
/// solve does not converge, the loops' errors or the cost rise, a loop ends with less than half its weight, or a factor
/// ends farther off than [`max_error`] that was not so before.
pub fn attempt(
    map: &[Measured],
    loops: &[Measured],
    scales: &[ScalePrior],
    params: &GlobalOptConfig,
    sigma: &StepSigma,
    pixels_per_patch: f64,
    poses: &[Sim3],
) -> Option<Vec<Sim3>> {
    let believed = |of: &[Measured]| -> Option<Vec<Believed>> {
        let each = of.iter().map(|m| Believed::new(m, sigma, pixels_per_patch));
        each.collect()
    };
    let (map, loops) = (believed(map)?, believed(loops)?);
    let mut weights = vec![1.0; loops.len()];
    let mut solved = poses.to_vec();
    for _ in 0..ROUNDS {
        let kept = map.iter().map(|w| w.factor);
        let new = loops.iter().zip(&weights);
        let new = new.map(|(w, weight)| PoseFactor {
            information: w.factor.information * (weight * weight),
            ..w.factor
        });
        let factors: Vec<PoseFactor> = kept.chain(new).collect();
        let priors = Priors {
            scales,
            frees_pinned_scales: true,
            ..Priors::default()
        };
        let solution = skeleton::solve(&factors, priors, params, solved)?;
        solved = solution.converged.then_some(solution.poses)?;
        for (of, weight) in loops.iter().zip(&mut weights) {
            *weight = (2.0 * PHI / (PHI + of.chi2(&solved)?)).min(1.0);
        }
    }
    let light = weights.iter().any(|w| *w < MIN_WEIGHT);
    let mut worse = false;
    for of in &loops {
        worse |= of.chi2(&solved)? > of.chi2(poses)?;
    }
    let cost = |poses: &[Sim3]| -> Option<f64> {
        let mut sum = 0.0;
        for of in map.iter().chain(&loops) {
            sum += of.chi2(poses)?;
        }
        Some(sum)
    };
    let dearer = cost(&solved)? > cost(poses)?;
    let limit = max_error(map.len() + loops.len(), loops.len());
    let mut torn: f64 = 0.0;
    for of in &map {
        // A network's outliers are far off before and after: they say nothing about the loop.
        if of.worst(poses)? <= limit {
            torn = torn.max(of.worst(&solved)?);
        }
    }
    tracing::debug!(?weights, worse, dearer, torn, limit, "trial solve");
    let bears = !light && !worse && !dearer && torn <= limit;
    bears.then_some(solved)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYFRAMES: usize = 30;

    fn sigma() -> StepSigma {
        StepSigma::default()
    }

    fn pose(k: usize) -> Sim3 {
        let angle = k as f64 / KEYFRAMES as f64 * std::f64::consts::TAU;
        let xi = [
            3.0 * angle.cos(),
            3.0 * angle.sin(),
            0.0,
            0.0,
            0.0,
            angle,
            0.0,
        ];
        Sim3::exp(&Tangent::from_column_slice(&xi))
    }

    fn factor(i: usize, j: usize, off: &Tangent) -> Measured {
        Measured {
            factor: PoseFactor {
                i,
                j,
                i_from_j: Sim3::exp(off) * pose(i).inverse() * pose(j),
                information: Matrix7::identity() * 1e6,
            },
            variance: 1.0,
        }
    }

    /// A chain whose steps all err in the same way, and where that leads.
    fn chain(step: &Tangent) -> (Vec<Measured>, Vec<Sim3>) {
        let map: Vec<Measured> = (1..KEYFRAMES).map(|k| factor(k - 1, k, step)).collect();
        let mut poses = vec![pose(0)];
        for (k, measured) in map.iter().enumerate() {
            poses.push(poses[k] * measured.factor.i_from_j);
        }
        (map, poses)
    }

    fn off(at: usize, size: f64) -> Tangent {
        let mut xi = Tangent::zeros();
        xi[at] = size;
        xi
    }

    fn error_of(poses: &[Sim3]) -> f64 {
        let far = poses.iter().enumerate();
        far.map(|(k, p)| (p.translation - pose(k).translation).norm())
            .fold(0.0, f64::max)
    }

    #[test]
    fn a_true_loop_takes_the_drift_away() {
        let (map, start) = chain(&off(5, 0.004));
        let loops = [
            factor(0, KEYFRAMES - 1, &Tangent::zeros()),
            factor(1, KEYFRAMES - 2, &Tangent::zeros()),
        ];
        let params = GlobalOptConfig::default();
        let solved =
            attempt(&map, &loops, &[], &params, &sigma(), 256.0, &start).expect("a loop that fits");
        let (before, after) = (error_of(&start), error_of(&solved));
        assert!(after < 0.5 * before, "{after} m, before {before} m");
    }

    #[test]
    fn a_false_loop_changes_nothing() {
        let (map, start) = chain(&off(5, 0.004));
        let params = GlobalOptConfig::default();
        let wrong = [off(5, 1.0), off(0, 2.0), off(6, 0.9)];
        for (k, wrong) in wrong.iter().enumerate() {
            let alone = [factor(10, 20, wrong)];
            assert_eq!(
                attempt(&map, &alone, &[], &params, &sigma(), 256.0, &start),
                None,
                "{k}"
            );
            // Not in company either.
            let both = [factor(0, KEYFRAMES - 1, &Tangent::zeros()), alone[0]];
            assert_eq!(
                attempt(&map, &both, &[], &params, &sigma(), 256.0, &start),
                None,
                "{k}"
            );
        }
    }

    #[test]
    fn loops_that_agree_with_each_other_tear_no_sound_map() {
        // Two rooms that look alike.
        let (map, start) = chain(&off(5, 0.004));
        let params = GlobalOptConfig::default();
        let alike: Vec<Measured> = (0..MAX_LOOPS)
            .map(|k| {
                let mut of = factor(5 + k, 20 + k, &Tangent::zeros());
                of.factor.i_from_j = Sim3::identity();
                of
            })
            .collect();
        let solved = attempt(&map, &alike, &[], &params, &sigma(), 256.0, &start);
        assert_eq!(solved, None);
    }

    #[test]
    fn the_more_loops_agree_the_more_wrong_a_step_may_be() {
        let loops: Vec<Measured> = (0..MAX_LOOPS)
            .map(|k| factor(12 - k, 18 + k, &Tangent::zeros()))
            .collect();
        let params = GlobalOptConfig::default();
        let bears = |loops: &[Measured], turn: f64| {
            let (map, start) = chain(&off(5, turn));
            attempt(&map, loops, &[], &params, &sigma(), 256.0, &start).is_some()
        };
        let largest = |count| {
            let turns = (1..200).map(|n| 0.002 * f64::from(n));
            let borne = turns.take_while(|turn| bears(&loops[..count], *turn));
            borne.last().unwrap_or(0.0)
        };
        let found = [1, 2, 3, 4, 5].map(largest);
        assert!(found[0] > 0.0 && found[4] < 0.3, "{found:?}");
        assert!(
            found.is_sorted() && found[0] < found[1] && found[1] < found[2],
            "{found:?}"
        );
    }

    #[test]
    fn what_is_not_a_graph_is_refused() {
        let (map, start) = chain(&Tangent::zeros());
        let params = GlobalOptConfig::default();
        let beyond = [factor(0, KEYFRAMES, &Tangent::zeros())];
        assert_eq!(
            attempt(&map, &beyond, &[], &params, &sigma(), 256.0, &start),
            None
        );
        let mut nan = factor(0, 9, &Tangent::zeros());
        nan.factor.i_from_j.translation.x = f64::NAN;
        assert_eq!(
            attempt(&map, &[nan], &[], &params, &sigma(), 256.0, &start),
            None
        );
    }
}
