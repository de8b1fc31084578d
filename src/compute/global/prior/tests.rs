//! Priors against derivatives of their errors, solved maps and random measurements.

use super::*;
use crate::compute::cancel::CancelToken;
use crate::compute::global::{PoseFactor, solve_factors};
use crate::compute::residual::Matrix7;
use crate::config::GlobalOptConfig;
use crate::geometry::Tangent;
use proptest::prelude::*;

fn tangent(limit: f64) -> impl Strategy<Value = Tangent> {
    proptest::collection::vec(-limit..limit, 7).prop_map(|v| Tangent::from_column_slice(&v))
}

fn motion(xi: &Tangent) -> Isometry3<f64> {
    Sim3::exp(xi).rigid()
}

fn information(rows: &[Tangent]) -> Matrix6<f64> {
    let rows = rows.iter().map(|r| r.fixed_rows::<6>(0).into_owned());
    rows.fold(Matrix6::zeros(), |sum, r| sum + r * r.transpose())
}

/// Columns `(e(Exp(h eₖ)T) − e(Exp(−h eₖ)T)) / 2h`.
fn numeric(pose: &Sim3, error: impl Fn(&Sim3) -> Vector6<f64>) -> SMatrix<f64, 6, 7> {
    let step = 1e-5;
    let mut rows = SMatrix::<f64, 6, 7>::zeros();
    for k in 0..7 {
        let mut xi = Tangent::zeros();
        xi[k] = step;
        let change = error(&pose.retract(&xi)) - error(&pose.retract(&-xi));
        rows.set_column(k, &(change / (2.0 * step)));
    }
    rows
}

proptest! {
    #[test]
    fn equations_of_a_motion_are_its_derivatives(
        a in tangent(1.0), b in tangent(1.0), mean in tangent(1.0),
        rows in proptest::collection::vec(tangent(2.0), 1..9),
    ) {
        let (a, b) = (Sim3::exp(&a), Sim3::exp(&b));
        let prior = MetricPrior { i: 0, j: 1, i_from_j: motion(&mean), information: information(&rows) };
        let e = prior.error(&a, &b);
        // Beside a half turn the logarithm jumps.
        prop_assume!(e.fixed_rows::<3>(3).norm() < 2.8);
        let (of_a, of_b) = (numeric(&a, |a| prior.error(a, &b)), numeric(&b, |b| prior.error(&a, b)));
        let (term, cost) = prior.term(&a, &b);
        let w = &prior.information;
        let near = |found: &Matrix7, expected: Matrix7| (found - expected).norm() < 1e-6 * (1.0 + expected.norm());
        prop_assert!(near(&term.hessian_ii, of_a.transpose() * w * of_a));
        prop_assert!(near(&term.hessian_ij, of_a.transpose() * w * of_b));
        prop_assert!(near(&term.hessian_jj, of_b.transpose() * w * of_b));
        let size = 1e-6 * (1.0 + (w * e).norm());
        prop_assert!((term.gradient_i - of_a.transpose() * w * e).norm() < 10.0 * size);
        prop_assert!((term.gradient_j - of_b.transpose() * w * e).norm() < 10.0 * size);
        prop_assert!((cost - 0.5 * (e.transpose() * w * e)[0]).abs() <= 1e-9 * (1.0 + cost));
    }

    #[test]
    fn a_motion_has_no_error_at_its_mean_whatever_the_scales(a in tangent(1.0), mean in tangent(1.0), s in 0.2_f64..5.0) {
        let a = Sim3::exp(&a);
        let m = motion(&mean);
        let b = Sim3 {
            translation: a.translation + a.rotation * m.translation.vector,
            rotation: a.rotation * m.rotation,
            scale: s,
        };
        let prior = MetricPrior { i: 0, j: 1, i_from_j: m, information: Matrix6::identity() };
        prop_assert!(prior.error(&a, &b).norm() < 1e-12);
    }

    #[test]
    fn equations_of_a_scale_are_its_derivatives(a in tangent(1.0), mean in -1.0_f64..1.0, w in 0.1_f64..9.0) {
        let a = Sim3::exp(&a);
        let prior = ScalePrior { k: 0, log_scale: mean, information: w };
        let (term, cost) = prior.term(&a);
        let row = numeric(&a, |a| Vector6::repeat(prior.error(a))).row(0).transpose();
        prop_assert!((term.hessian - row * row.transpose() * w).norm() < 1e-6 * w);
        prop_assert!((term.gradient - row * w * prior.error(&a)).norm() < 1e-6 * w);
        prop_assert!((cost - 0.5 * w * prior.error(&a).powi(2)).abs() < 1e-12 * w);
    }
}

/// Keyframes along an arc, far from the origin and none with unit scale.
fn arc(count: usize) -> Vec<Sim3> {
    let pose = |k: usize| {
        let turn = 0.2 * k as f64;
        let xi = [
            2.0 + turn.sin(),
            -1.0,
            3.0 + turn.cos(),
            0.1,
            turn,
            0.0,
            0.3 - 0.02 * turn,
        ];
        Sim3::exp(&Tangent::from_column_slice(&xi))
    };
    (0..count).map(pose).collect()
}

/// Steps of a map, as matches would give them.
fn steps(poses: &[Sim3], information: f64) -> Vec<PoseFactor> {
    let step = |k: usize| PoseFactor {
        i: k - 1,
        j: k,
        i_from_j: poses[k - 1].inverse() * poses[k],
        information: Matrix7::identity() * information,
    };
    (1..poses.len()).map(step).collect()
}

/// The map with the first camera in place and everything `factor` times as large.
fn resized(poses: &[Sim3], factor: f64) -> Vec<Sim3> {
    let origin = poses[0].translation;
    let resize = |p: &Sim3| Sim3 {
        translation: origin + (p.translation - origin) * factor,
        scale: p.scale * factor,
        ..*p
    };
    poses.iter().map(resize).collect()
}

fn params() -> GlobalOptConfig {
    GlobalOptConfig {
        max_iters: 60,
        rel_error: 0.0,
        delta_norm: 1e-12,
        ..GlobalOptConfig::default()
    }
}

fn solved(factors: &[PoseFactor], priors: Priors<'_>, start: &[Sim3]) -> Vec<Sim3> {
    let mut poses = start.to_vec();
    solve_factors(
        factors,
        priors,
        &params(),
        &CancelToken::default(),
        &mut poses,
    )
    .unwrap();
    poses
}

fn error_of(found: &[Sim3], truth: &[Sim3]) -> f64 {
    let off = |(a, b): (&Sim3, &Sim3)| (a.inverse() * *b).log().norm();
    found.iter().zip(truth).map(off).fold(0.0, f64::max)
}

#[test]
fn one_scale_resizes_the_map_around_the_first_camera() {
    let truth = arc(6);
    let start = resized(&truth, 1.3);
    let factors = steps(&truth, 1e6);
    for k in [0, 4] {
        let scales = [ScalePrior {
            k,
            log_scale: truth[k].scale.ln(),
            information: 400.0,
        }];
        let priors = Priors {
            scales: &scales,
            frees_pinned_scales: true,
            ..Priors::default()
        };
        let found = solved(&factors, priors, &start);
        assert!(
            error_of(&found, &truth) < 1e-8,
            "{k}: {}",
            error_of(&found, &truth)
        );
        assert_eq!(found[0].translation, start[0].translation);
        assert_eq!(found[0].rotation, start[0].rotation);
        // With the scale pinned as well, the first keyframe does not move.
        let pinned = Priors {
            frees_pinned_scales: false,
            ..priors
        };
        assert_eq!(solved(&factors, pinned, &start)[0], start[0]);
    }
}

#[test]
fn one_motion_resizes_the_map_around_the_first_camera() {
    let truth = arc(6);
    let start = resized(&truth, 0.7);
    let between = |i: usize, j: usize| {
        let back = truth[i].rotation.inverse();
        let p = back * (truth[j].translation - truth[i].translation);
        [MetricPrior {
            i,
            j,
            i_from_j: Isometry3::from_parts(p.into(), back * truth[j].rotation),
            information: Matrix6::identity() * 1e3,
        }]
    };
    for (i, j) in [(1, 4), (5, 2), (0, 3), (3, 0)] {
        let motions = between(i, j);
        let priors = Priors {
            motions: &motions,
            frees_pinned_scales: true,
            ..Priors::default()
        };
        let found = solved(&steps(&truth, 1e6), priors, &start);
        assert!(
            error_of(&found, &truth) < 1e-8,
            "{i} {j}: {}",
            error_of(&found, &truth)
        );
        assert_eq!(
            (found[0].translation, found[0].rotation),
            (start[0].translation, start[0].rotation)
        );
    }
}

#[test]
fn a_group_without_a_pinned_keyframe_gets_its_scale_too() {
    let truth = arc(8);
    let mut factors = steps(&truth, 1e6);
    factors.remove(3);
    let mut start = truth[..4].to_vec();
    start.extend(resized(&truth[4..], 1.4));
    let scales = [ScalePrior {
        k: 6,
        log_scale: truth[6].scale.ln(),
        information: 400.0,
    }];
    let priors = Priors {
        scales: &scales,
        ..Priors::default()
    };
    let found = solved(&factors, priors, &start);
    assert!(
        error_of(&found, &truth) < 1e-8,
        "{}",
        error_of(&found, &truth)
    );
    // The pinned group has no prior. Steps of the last bit, which depend on the system's `exp`, are not excluded.
    let moved = error_of(&found[..4], &start[..4]);
    assert!(moved < 1e-14, "{moved}");
}

#[test]
fn what_says_nothing_about_scale_frees_none() {
    let truth = arc(4);
    let scales = [ScalePrior {
        k: 2,
        log_scale: 1.0,
        information: 1e-3,
    }];
    let still = [MetricPrior {
        i: 1,
        j: 2,
        i_from_j: Isometry3::identity(),
        information: Matrix6::identity() * 1e3,
    }];
    for (scales, motions) in [(&scales[..], &[][..]), (&[], &still)] {
        let priors = Priors {
            scales,
            motions,
            frees_pinned_scales: true,
        };
        assert_eq!(solved(&steps(&truth, 1e6), priors, &truth)[0], truth[0]);
    }
}

#[test]
fn what_is_no_measurement_is_refused() {
    let truth = arc(3);
    let good = ScalePrior {
        k: 1,
        log_scale: 0.1,
        information: 3.0,
    };
    let motion = MetricPrior {
        i: 0,
        j: 1,
        i_from_j: Isometry3::translation(1.0, 0.0, 0.0),
        information: Matrix6::identity(),
    };
    let refused = |scale: ScalePrior, motion: MetricPrior| {
        let mut poses = truth.clone();
        let (scales, motions) = ([scale], [motion]);
        let priors = Priors {
            scales: &scales,
            motions: &motions,
            frees_pinned_scales: true,
        };
        let (factors, cancel) = (steps(&truth, 1e4), CancelToken::default());
        let done = solve_factors(&factors, priors, &params(), &cancel, &mut poses);
        assert!(done.is_ok() || poses == truth);
        done.is_err()
    };
    assert!(!refused(good, motion));
    assert!(refused(ScalePrior { k: 3, ..good }, motion));
    assert!(refused(
        ScalePrior {
            log_scale: f64::NAN,
            ..good
        },
        motion
    ));
    assert!(refused(
        ScalePrior {
            information: -1.0,
            ..good
        },
        motion
    ));
    assert!(refused(
        ScalePrior {
            information: f64::INFINITY,
            ..good
        },
        motion
    ));
    assert!(refused(good, MetricPrior { j: 0, ..motion }));
    assert!(refused(good, MetricPrior { j: 3, ..motion }));
    let mut skew = motion;
    skew.information[(0, 1)] = 0.5;
    assert!(refused(good, skew));
    skew.information[(1, 0)] = 0.5;
    assert!(!refused(good, skew));
    skew.information[(0, 0)] = -1.0;
    assert!(refused(good, skew));
}

/// Pixels per token, and a residual variance: matches say `κ s²` times more than is true.
const PER_PATCH: f64 = 256.0;
const VARIANCE: f64 = 2.3;

/// The true standard deviations of a step and of the measured scales.
const STEP: [f64; 7] = [0.02, 0.01, 0.015, 0.01, 0.02, 0.01, 0.03];
const SCALE: [f64; 2] = [0.02, 0.05];

/// Two keyframes joined by matches, each with a measured scale, solved a thousand times: the normalised squared
/// error of the eight unknowns (scale of the first, pose of the second) is chi-squared with 8 degrees of freedom.
#[test]
fn priors_beside_matches_are_weighted_by_what_is_true() {
    let truth = arc(2);
    let mut state = 5_u64;
    let mut uniform = move || {
        // Splitmix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((z ^ (z >> 31)) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    };
    // Box and Muller.
    let mut normal = || (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos();
    let inverse = Matrix7::from_diagonal(&Tangent::from_fn(|r, _| STEP[r].powi(-2)));
    let units = solver_units(PER_PATCH, VARIANCE);
    let relative = truth[0].inverse() * truth[1];
    // Rows of the measured step, with respect to the eight unknowns, by differences.
    let moved = |x: &[f64; 8]| {
        let first = Sim3 {
            scale: truth[0].scale * x[0].exp(),
            ..truth[0]
        };
        let second = truth[1].retract(&Tangent::from_column_slice(&x[1..]));
        (first.inverse() * second * relative.inverse()).log()
    };
    let mut rows = SMatrix::<f64, 7, 8>::zeros();
    for k in 0..8 {
        let mut x = [0.0; 8];
        x[k] = 1e-6;
        let plus = moved(&x);
        x[k] = -1e-6;
        rows.set_column(k, &((plus - moved(&x)) / 2e-6));
    }
    let mut honest = rows.transpose() * inverse * rows;
    honest[(0, 0)] += SCALE[0].powi(-2);
    honest[(7, 7)] += SCALE[1].powi(-2);
    let (mut sum, solves) = (0.0, 1000);
    for _ in 0..solves {
        let noise = Tangent::from_fn(|r, _| STEP[r] * normal());
        let factors = [PoseFactor {
            i: 0,
            j: 1,
            i_from_j: Sim3::exp(&noise) * relative,
            information: inverse * (PER_PATCH * VARIANCE),
        }];
        let scale = |k: usize, noise: f64| ScalePrior {
            k,
            log_scale: truth[k].scale.ln() + SCALE[k] * noise,
            information: SCALE[k].powi(-2) * units,
        };
        let scales = [scale(0, normal()), scale(1, normal())];
        let priors = Priors {
            scales: &scales,
            frees_pinned_scales: true,
            ..Priors::default()
        };
        let found = solved(&factors, priors, &truth);
        let of_second = (found[1] * truth[1].inverse()).log();
        let mut x = nalgebra::SVector::<f64, 8>::zeros();
        x[0] = (found[0].scale / truth[0].scale).ln();
        x.fixed_rows_mut::<7>(1).copy_from(&of_second);
        sum += (x.transpose() * honest * x)[0];
    }
    let mean = sum / f64::from(solves);
    // 95 % of means of a thousand lie within 1.96·√(2·8/1000) of 8.
    assert!((mean - 8.0).abs() < 0.25, "{mean}");
}

#[test]
fn units_never_shrink_below_those_of_one_patch() {
    assert_eq!(solver_units(256.0, 4.0), 1024.0);
    for variance in [0.0, 0.3, f64::NAN] {
        assert_eq!(solver_units(256.0, variance), 256.0);
    }
}
