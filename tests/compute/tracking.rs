//! Tracking: poses recovered from matched pointmaps, exactly as the specification says.

use mast3r_slam::compute::pose_solver::{
    Correspondences, PoseSolver, Residual, Solution, SolveError,
};
use mast3r_slam::config::TrackingConfig;
use mast3r_slam::geometry::{Sim3, Tangent};
use nalgebra::{Matrix3, SMatrix, Vector3};
use proptest::prelude::*;
use testkit::solver_scene::{Pair, Random, distance, intrinsics};

/// A multiple of nothing: 7575 pixels, the last chunk and the last vector partly filled.
const SIZE: (usize, usize) = (101, 75);

fn residuals() -> [Residual; 2] {
    [
        Residual::Rays,
        Residual::Calibrated(intrinsics(SIZE.0, SIZE.1)),
    ]
}

fn solve(pair: &Pair, residual: Residual, start: &Sim3, params: &TrackingConfig) -> Solution {
    PoseSolver::new(pair.index.len())
        .solve(&pair.correspondences(), residual, start, params)
        .unwrap()
}

/// Stops only when nothing moves any more.
fn exhaustive() -> TrackingConfig {
    TrackingConfig {
        rel_error: 0.0,
        delta_norm: 1e-10,
        ..TrackingConfig::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn an_exact_pose_is_recovered_from_identity(seed in 0..1000u64) {
        let truth = Sim3::exp(&Random(seed).tangent(0.15));
        let pair = Pair::exact(SIZE.0, SIZE.1, truth);
        for residual in residuals() {
            let found = solve(&pair, residual, &Sim3::identity(), &exhaustive());
            // Points rounded to f32: 6e-8 each, averaged over thousands.
            let off = distance(&found.keyframe_from_frame, &truth);
            prop_assert!(found.converged && off < 1e-6, "{residual:?} {off} {found:?}");
        }
    }

    /// With noise below the assumed one in every component, the error's Mahalanobis norm under the
    /// returned normal matrix is at most a χ² variable of 7 degrees of freedom: above 50 once in 10⁸.
    #[test]
    fn noise_moves_the_pose_as_the_hessian_says(seed in 0..1000u64) {
        let truth = Sim3::exp(&Random(seed).tangent(0.1));
        // The noise of both points together is √2·0.001 per metre, against σ_ray/√Q_max = 0.003/√2.6 = 0.0019.
        let pair = Pair::exact(SIZE.0, SIZE.1, truth).noisy(0.001);
        let found = solve(&pair, Residual::Rays, &Sim3::identity(), &exhaustive());
        let off = (found.keyframe_from_frame * truth.inverse()).log();
        let mahalanobis = off.dot(&(found.hessian * off));
        prop_assert!(mahalanobis < 50.0, "{mahalanobis}");
        prop_assert!(mahalanobis > 1e-3, "noise must be seen: {mahalanobis}");
    }
}

/// The reference's solver, a plain one: dense, one match after the other, no damping.
fn reference(
    pair: &Pair,
    residual: Residual,
    start: &Sim3,
    p: &TrackingConfig,
) -> (Sim3, u32, f64) {
    let (mut pose, mut old, mut iterations) = (*start, f64::INFINITY, 0);
    let vector = |points: &[f32], n: usize| {
        Vector3::new(points[3 * n], points[3 * n + 1], points[3 * n + 2]).map(f64::from)
    };
    let mut cost = 0.0;
    while iterations < p.max_iters as u32 {
        let (mut h, mut g) = (SMatrix::<f64, 7, 7>::zeros(), Tangent::zeros());
        cost = 0.0;
        for n in 0..pair.index.len() {
            let q = f64::from(pair.quality[n]);
            let x = vector(&pair.keyframe_points, n);
            let moved = pose.transform(&vector(&pair.frame_points, pair.index[n] as usize));
            let act = {
                let mut a = SMatrix::<f64, 3, 7>::zeros();
                a.fixed_view_mut::<3, 3>(0, 0)
                    .copy_from(&Matrix3::identity());
                a.fixed_view_mut::<3, 3>(0, 3)
                    .copy_from(&-moved.cross_matrix());
                a.fixed_view_mut::<3, 1>(0, 6).copy_from(&moved);
                a
            };
            // (residual measured − predicted, its row, σ), by the chain rule.
            let mut add = |e: f64, by_point: Vector3<f64>, sigma: f64| {
                let row = -(by_point.transpose() * act);
                let info = q.sqrt() / sigma;
                let w = (info * e).abs();
                let rho = if w < p.huber { 1.0 } else { p.huber / w };
                let s2 = info * info * rho;
                h += row.transpose() * row * s2;
                g -= row.transpose() * (e * s2);
                cost += 0.5 * e * e * s2;
            };
            match residual {
                Residual::Rays => {
                    let d = moved.norm();
                    let e = x / x.norm() - moved / d;
                    let by = (Matrix3::identity() - moved * moved.transpose() / (d * d)) / d;
                    for k in 0..3 {
                        add(e[k], by.row(k).transpose(), p.sigma_ray);
                    }
                    add(x.norm() - d, moved / d, p.sigma_dist);
                }
                Residual::Calibrated(k) => {
                    let (w, b) = (pair.width as f64, p.pixel_border);
                    let uv = k.project(&moved);
                    let inside = uv.x > b && uv.x < w - 1.0 - b && uv.y > b;
                    let inside = inside && uv.y < pair.height as f64 - 1.0 - b;
                    if inside && moved.z > p.depth_eps && x.z > p.depth_eps {
                        let z = moved.z;
                        let (u, v) = ((n % pair.width) as f64, (n / pair.width) as f64);
                        let by_u = Vector3::new(k.fx / z, 0.0, -k.fx * moved.x / (z * z));
                        let by_v = Vector3::new(0.0, k.fy / z, -k.fy * moved.y / (z * z));
                        add(u - uv.x, by_u, p.sigma_pixel);
                        add(v - uv.y, by_v, p.sigma_pixel);
                        let by_z = Vector3::new(0.0, 0.0, 1.0 / z);
                        add(x.z.ln() - z.ln(), by_z, p.sigma_depth);
                    }
                }
            }
        }
        let step = h.cholesky().unwrap().solve(&g);
        pose = pose.retract(&step);
        iterations += 1;
        let change = (old - cost).abs() / old;
        if change < p.rel_error || step.norm() < p.delta_norm {
            break;
        }
        old = cost;
    }
    (pose, iterations, cost)
}

/// Noise, outliers and a wrong start, where the Huber weights matter.
#[test]
fn steps_are_those_of_the_written_algorithm() {
    for seed in 0..6 {
        let truth = Sim3::exp(&Random(seed).tangent(0.1));
        let pair = Pair::exact(SIZE.0, SIZE.1, truth)
            .noisy(0.005)
            .with_outliers(0.1);
        let start = Sim3::exp(&Random(seed + 50).tangent(0.02));
        let params = TrackingConfig::default();
        for residual in residuals() {
            let (pose, iterations, _) = reference(&pair, residual, &start, &params);
            let found = solve(&pair, residual, &start, &params);
            assert_eq!(found.iterations, iterations, "{residual:?} {seed}");
            // Sums in another order: 1e-16·√N relative, times the conditioning of about 1e5.
            let off = distance(&found.keyframe_from_frame, &pose);
            assert!(off < 1e-9, "{residual:?} {seed}: {off}");
            assert!(found.converged);
        }
    }
}

/// The cost reported is the re-weighted one at the pose reported.
#[test]
fn the_cost_is_that_of_the_pose() {
    let truth = Sim3::exp(&Random(3).tangent(0.1));
    let pair = Pair::exact(SIZE.0, SIZE.1, truth).noisy(0.005);
    for residual in residuals() {
        let found = solve(&pair, residual, &truth, &TrackingConfig::default());
        let one_more = TrackingConfig {
            max_iters: 1,
            ..TrackingConfig::default()
        };
        let (_, _, cost) = reference(&pair, residual, &found.keyframe_from_frame, &one_more);
        assert!((found.cost - cost).abs() < 1e-9 * cost);
    }
}

/// With exact data every Huber weight is one, and the normal matrix is a sum that can be written
/// down: translation `Σ Q((I − rrᵀ)/(d σ_ray)² + rrᵀ/σ_dist²)`, scale `Σ Q d²/σ_dist²`.
#[test]
fn sigmas_weigh_rays_against_distances() {
    let pair = Pair::exact(SIZE.0, SIZE.1, Sim3::identity());
    let found = solve(
        &pair,
        Residual::Rays,
        &Sim3::identity(),
        &TrackingConfig::default(),
    );
    let (mut translation, mut scale) = (Matrix3::zeros(), 0.0);
    for (p, q) in pair.keyframe_points.chunks(3).zip(&pair.quality) {
        let p = Vector3::new(p[0], p[1], p[2]).map(f64::from);
        let (d, r, q) = (p.norm(), p.normalize(), f64::from(*q));
        let along = r * r.transpose();
        translation += (Matrix3::identity() - along) * (q / (d * 0.003).powi(2));
        translation += along * (q / 100.0);
        scale += q * d * d / 100.0;
    }
    let got = found.hessian.fixed_view::<3, 3>(0, 0).into_owned();
    assert!((got - translation).norm() < 1e-9 * translation.norm());
    assert!((found.hessian[(6, 6)] - scale).abs() < 1e-9 * scale);
    // Rays hold no information about scale (docs/reference-defects.md, B20): the entries that couple
    // it with rotation are exactly zero.
    assert_eq!(found.hessian.fixed_view::<3, 1>(3, 6), Vector3::zeros());
}

#[test]
fn outliers_pull_far_less_than_in_least_squares() {
    let truth = Sim3::exp(&Random(2).tangent(0.1));
    let pair = Pair::exact(SIZE.0, SIZE.1, truth)
        .noisy(0.002)
        .with_outliers(0.2);
    for residual in residuals() {
        let error = |huber| {
            let params = TrackingConfig {
                huber,
                ..exhaustive()
            };
            let found = solve(&pair, residual, &Sim3::identity(), &params);
            distance(&found.keyframe_from_frame, &truth)
        };
        let (robust, plain) = (error(1.345), error(1e9));
        assert!(robust < 0.2 * plain, "{residual:?} {robust} {plain}");
    }
}

/// Matches that no rigid motion explains: the pose that fits them best is not that of the camera.
#[test]
fn a_pose_must_fit_most_of_its_matches() {
    let truth = Sim3::exp(&Random(2).tangent(0.1));
    let start = Sim3::identity();
    let pair = Pair::exact(SIZE.0, SIZE.1, truth);
    let params = exhaustive();
    for residual in residuals() {
        let found = solve(&pair, residual, &start, &params);
        assert_eq!(found.fitting, found.used);
        let found = solve(&pair.clone().with_outliers(0.3), residual, &start, &params);
        let part = found.fitting as f64 / found.used as f64;
        assert!((0.68..0.75).contains(&part), "{residual:?} {part}");
        let wrong = pair.clone().with_outliers(0.7);
        let half = Correspondences {
            min_fit: 0.5,
            ..wrong.correspondences()
        };
        let refused = PoseSolver::new(0)
            .solve(&half, residual, &start, &params)
            .unwrap_err();
        let SolveError::Unfit { used, fitting } = refused else {
            panic!("{residual:?}: {refused}");
        };
        assert!(fitting > 0 && 2 * fitting < used, "{fitting} of {used}");
        let any = solve(&wrong, residual, &start, &params);
        assert_eq!(any.fitting as u64, fitting);
    }
}

/// Far starts: the result is never worse than the start, and right where the way there is downhill.
#[test]
fn a_far_start_never_makes_it_worse() {
    let pair = Pair::exact(SIZE.0, SIZE.1, Sim3::identity()).noisy(0.002);
    let mut recovered = 0;
    for seed in 0..12 {
        let start = Sim3::exp(&Random(seed).tangent(1.2));
        let nothing = TrackingConfig {
            max_iters: 0,
            ..TrackingConfig::default()
        };
        let before = solve(&pair, Residual::Rays, &start, &nothing);
        assert_eq!(before.keyframe_from_frame, start);
        assert_eq!((before.iterations, before.converged), (0, false));
        let after = solve(&pair, Residual::Rays, &start, &exhaustive());
        assert!(after.cost <= before.cost, "{} {}", after.cost, before.cost);
        assert!(after.keyframe_from_frame.is_finite());
        recovered += usize::from(distance(&after.keyframe_from_frame, &Sim3::identity()) < 0.01);
    }
    assert!(recovered >= 8, "{recovered} of 12");
}

#[test]
fn identical_pointmaps_cost_nothing_and_converge_at_once() {
    let pair = Pair::exact(SIZE.0, SIZE.1, Sim3::identity());
    let found = solve(
        &pair,
        Residual::Rays,
        &Sim3::identity(),
        &TrackingConfig::default(),
    );
    assert_eq!(found.cost, 0.0);
    assert_eq!((found.iterations, found.converged), (1, true));
    assert_eq!(found.keyframe_from_frame, Sim3::identity());
}

#[test]
fn the_iteration_limit_is_no_failure() {
    let pair = Pair::exact(SIZE.0, SIZE.1, Sim3::exp(&Random(8).tangent(0.2)));
    let params = TrackingConfig {
        max_iters: 1,
        ..TrackingConfig::default()
    };
    let found = solve(&pair, Residual::Rays, &Sim3::identity(), &params);
    assert_eq!((found.iterations, found.converged), (1, false));
    assert_ne!(found.keyframe_from_frame, Sim3::identity());
}

fn bits(s: &Solution) -> (Vec<u64>, Vec<u64>, u64, u32, usize) {
    (
        s.keyframe_from_frame.to_array().map(f64::to_bits).to_vec(),
        s.hessian.iter().map(|v| v.to_bits()).collect(),
        s.cost.to_bits(),
        s.iterations,
        s.used,
    )
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let truth = Sim3::exp(&Random(4).tangent(0.1));
    let pair = Pair::exact(SIZE.0, SIZE.1, truth)
        .noisy(0.005)
        .with_outliers(0.1);
    for residual in residuals() {
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()
                .unwrap();
            let params = TrackingConfig::default();
            pool.install(|| bits(&solve(&pair, residual, &Sim3::identity(), &params)))
        };
        assert_eq!(on(1), on(3), "{residual:?}");
    }
}

#[test]
fn a_solver_remembers_nothing() {
    let large = Pair::exact(150, 140, Sim3::exp(&Random(4).tangent(0.1)));
    let small = Pair::exact(31, 17, Sim3::exp(&Random(5).tangent(0.1)));
    let params = TrackingConfig::default();
    let mut solver = PoseSolver::new(10);
    for pair in [&large, &small, &large] {
        let c = pair.correspondences();
        let found = solver
            .solve(&c, Residual::Rays, &Sim3::identity(), &params)
            .unwrap();
        let fresh = solve(pair, Residual::Rays, &Sim3::identity(), &params);
        assert_eq!(bits(&found), bits(&fresh));
    }
}

/// Pixels that are not to be used are not looked at, and ones that cannot be used count as such.
#[test]
fn nan_changes_no_bit_of_the_pose() {
    let truth = Sim3::exp(&Random(6).tangent(0.1));
    for residual in residuals() {
        let mut clean = Pair::exact(SIZE.0, SIZE.1, truth).noisy(0.003);
        let spoilt = (0..clean.index.len()).step_by(13);
        for n in spoilt.clone() {
            clean.quality[n] = 0.0;
        }
        let start = Sim3::identity();
        let params = TrackingConfig::default();
        let expected = bits(&solve(&clean, residual, &start, &params));
        let bads = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0];
        for valid in [false, true] {
            for (of_frame, bad) in [false, true].into_iter().flat_map(|f| bads.map(|b| (f, b))) {
                let mut pair = Pair::exact(SIZE.0, SIZE.1, truth).noisy(0.003);
                for n in spoilt.clone() {
                    if !valid {
                        pair.quality[n] = [0.0, -1.0, f32::NAN][n % 3];
                    }
                    let at = 3 * pair.index[n] as usize;
                    match of_frame {
                        true => pair.frame_points[at..at + 3].fill(bad),
                        false => pair.keyframe_points[3 * n..3 * n + 3].fill(bad),
                    }
                }
                let got = bits(&solve(&pair, residual, &start, &params));
                assert_eq!(got, expected, "{residual:?} {valid} {of_frame} {bad}");
            }
        }
    }
}

fn error_of(pair: &Pair, residual: Residual, start: &Sim3) -> String {
    PoseSolver::new(0)
        .solve(
            &pair.correspondences(),
            residual,
            start,
            &TrackingConfig::default(),
        )
        .unwrap_err()
        .to_string()
}

#[test]
fn what_does_not_determine_a_pose_is_an_error() {
    let start = Sim3::identity();
    let pair = || Pair::exact(20, 10, Sim3::exp(&Random(6).tangent(0.1)));
    let nothing = "none of 200 pixels has a usable match \
                   (matched, of sufficient quality, finite, in view)";
    let calibrated = Residual::Calibrated(intrinsics(20, 10));
    for residual in [Residual::Rays, calibrated] {
        let mut none = pair();
        none.quality.fill(0.0);
        assert_eq!(error_of(&none, residual, &start), nothing);

        let mut zero = pair();
        zero.frame_points.fill(0.0);
        assert_eq!(error_of(&zero, residual, &start), nothing);

        let mut one = pair();
        one.quality.fill(0.0);
        one.quality[110] = 2.0;
        let message = error_of(&one, residual, &start);
        assert!(
            message.starts_with("1 matches do not determine the pose"),
            "{message}"
        );

        // On the optical axis, and on a slanted ray, at any distances.
        for direction in [[0.0, 0.0, 1.0], [0.2, 0.1, 1.0f32]] {
            let mut line = pair();
            for points in [&mut line.frame_points, &mut line.keyframe_points] {
                for (n, p) in points.chunks_mut(3).enumerate() {
                    let z = 1.0 + 0.01 * n as f32;
                    p.copy_from_slice(&direction.map(|v| v * z));
                }
            }
            let (index, count) = (&mut line.index, 200);
            index.copy_from_slice(&(0..count).collect::<Vec<_>>());
            let message = error_of(&line, residual, &start);
            assert!(message.contains("do not determine the pose"), "{message}");
        }
    }
    let empty = Pair {
        frame_points: vec![],
        keyframe_points: vec![],
        index: vec![],
        quality: vec![],
        width: 0,
        height: 0,
        keyframe_from_frame: start,
        measured: None,
    };
    assert!(error_of(&empty, Residual::Rays, &start).starts_with("none of 0 pixels"));
    let mut behind = pair();
    for p in behind.frame_points.chunks_mut(3) {
        p[2] = -p[2];
    }
    assert_eq!(error_of(&behind, calibrated, &start), nothing);
}

#[test]
fn depths_of_a_sensor_at_both_ends_fix_the_scale() {
    let truth = Sim3::exp(&Random(4).tangent(0.02));
    let plain = Pair::exact(SIZE.0, SIZE.1, truth).noisy(0.001);
    let measured = plain.clone().with_depth();
    let [rays, calibrated] = residuals();
    let start = Sim3::identity();
    let information = |pair: &Pair, residual| {
        let found = solve(pair, residual, &start, &TrackingConfig::default());
        found.hessian[(6, 6)]
    };
    // Four matches of nine have both, and count (10/0.1)² times as much.
    let ratio = information(&measured, calibrated) / information(&plain, calibrated);
    assert!((0.42e4..0.47e4).contains(&ratio), "{ratio}");
    // One end alone says nothing, and neither do depths to rays.
    for k in 0..2 {
        let mut one = measured.clone();
        if let Some(depths) = &mut one.measured {
            depths[k].fill(0.0);
        }
        assert_eq!(
            information(&one, calibrated),
            information(&plain, calibrated)
        );
    }
    assert_eq!(information(&measured, rays), information(&plain, rays));
}

#[test]
fn input_that_does_not_fit_is_refused() {
    let pair = Pair::exact(20, 10, Sim3::identity());
    let start = Sim3::identity();
    let solve = |c: &Correspondences<'_>| {
        PoseSolver::new(200)
            .solve(c, Residual::Rays, &start, &TrackingConfig::default())
            .unwrap_err()
            .to_string()
    };
    let good = pair.correspondences();
    let ends = "give arrays of one image size";
    for (bad, message) in [
        (
            Correspondences {
                frame_points: &pair.frame_points[..599],
                ..good
            },
            "frame points: expected 600 entries, found 599",
        ),
        (
            Correspondences {
                keyframe_points: &pair.keyframe_points[..3],
                ..good
            },
            "keyframe points: expected 600 entries, found 3",
        ),
        (
            Correspondences { index: &[], ..good },
            "matches: expected 200 entries, found 0",
        ),
        (
            Correspondences {
                quality: &pair.quality[1..],
                ..good
            },
            "match qualities: expected 200 entries, found 199",
        ),
    ] {
        assert_eq!(solve(&bad), format!("{message}: {ends}"));
    }
    let mut index = pair.index.clone();
    index[5] = 200;
    index[6] = u32::MAX;
    let bad = Correspondences {
        index: &index,
        ..good
    };
    assert_eq!(
        solve(&bad),
        "2 matches point outside the image of 200 pixels: the matches belong to another image size"
    );
    // Not used, not looked at.
    let mut quality = pair.quality.clone();
    quality[5..7].fill(0.0);
    let unused = Correspondences {
        index: &index,
        quality: &quality,
        ..good
    };
    let params = TrackingConfig::default();
    let found = PoseSolver::new(200).solve(&unused, Residual::Rays, &start, &params);
    assert_eq!(found.unwrap().used, 198);

    for bad in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
        let start = Sim3 {
            scale: bad,
            ..start
        };
        assert_eq!(
            error_of(&pair, Residual::Rays, &start),
            "the initial pose is not finite: the pose is kept as it was"
        );
    }
}
