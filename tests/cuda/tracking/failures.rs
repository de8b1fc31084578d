//! Unsolvable problems, and their detection on the device.

use super::*;
use crate::cuda;

/// Every way to fail, as the CPU fails, and nothing is changed by it.
#[test]
fn what_does_not_determine_a_pose_has_a_name() {
    let Some(gpu) = cuda() else { return };
    let rig = Rig::new(&gpu, 20, 10);
    let start = Sim3::exp(&Random(1).tangent(0.01));
    let pair = || Pair::exact(20, 10, Sim3::exp(&Random(6).tangent(0.1)));
    let with = |change: &dyn Fn(&mut Pair)| {
        let mut pair = pair();
        change(&mut pair);
        pair
    };
    let on_line = |direction: [f32; 3]| {
        with(&|p: &mut Pair| {
            for points in [&mut p.frame_points, &mut p.keyframe_points] {
                for (n, p) in points.chunks_mut(3).enumerate() {
                    let z = 1.0 + 0.01 * n as f32;
                    p.copy_from_slice(&direction.map(|v| v * z));
                }
            }
            p.index.copy_from_slice(&(0..200).collect::<Vec<_>>());
        })
    };
    let same = [0.3, 0.2, 2.0];
    let cases = [
        ("no quality", with(&|p| p.quality.fill(0.0))),
        ("quality NaN", with(&|p| p.quality.fill(f32::NAN))),
        ("quality infinite", with(&|p| p.quality.fill(f32::INFINITY))),
        ("quality negative", with(&|p| p.quality.fill(-1.0))),
        ("zero frame", with(&|p| p.frame_points.fill(0.0))),
        ("zero keyframe", with(&|p| p.keyframe_points.fill(0.0))),
        ("NaN frame", with(&|p| p.frame_points.fill(f32::NAN))),
        (
            "infinite keyframe",
            with(&|p| p.keyframe_points.fill(f32::INFINITY)),
        ),
        (
            "behind",
            with(&|p| p.frame_points.iter_mut().for_each(|v| *v = -*v)),
        ),
        (
            "one match",
            with(&|p| {
                p.quality.fill(0.0);
                p.quality[110] = 2.0;
            }),
        ),
        ("on the axis", on_line([0.0, 0.0, 1.0])),
        ("on a slanted ray", on_line([0.2, 0.1, 1.0])),
        (
            "one point",
            with(&|p| {
                for points in [&mut p.frame_points, &mut p.keyframe_points] {
                    points.chunks_mut(3).for_each(|p| p.copy_from_slice(&same));
                }
            }),
        ),
        ("all to one pixel", with(&|p| p.index.fill(77))),
        (
            "outside",
            with(&|p| {
                p.index[5] = 200;
                p.index[6] = u32::MAX;
            }),
        ),
        (
            "outside, unused",
            with(&|p| {
                p.index[5] = 200;
                p.index[6] = u32::MAX;
                p.quality[5..7].fill(0.0);
            }),
        ),
        (
            "outside, nothing else",
            with(&|p| {
                p.quality.fill(0.0);
                p.index[5] = 200;
                p.quality[5] = 1.0;
            }),
        ),
    ];
    let mut failures = Vec::new();
    for (name, pair) in &cases {
        for residual in residuals(pair) {
            let params = TrackingConfig::default();
            let outcome = rig.solve(pair, residual, &start, &params);
            let found = outcome.solution(200);
            let expected = on_cpu(pair, residual, &start, &params);
            println!("{name}: {found:?}\n  CPU {expected:?}");
            let alike = match (&found, &expected) {
                (Ok(found), Ok(expected)) => found.used == expected.used,
                (Err(Unsolved::Solver(found)), Err(expected)) => match (found, expected) {
                    // The eigenvalue that decides is rounding.
                    (
                        SolveError::Singular { used: a, .. },
                        SolveError::Singular { used: b, .. },
                    ) => a == b,
                    (found, expected) => found == expected,
                },
                _ => false,
            };
            if !alike {
                failures.push(format!(
                    "{name} {residual:?}: {found:?} instead of {expected:?}"
                ));
            }
        }
    }
    for bad in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
        let pair = pair();
        rig.load(&pair, &start);
        let mut pose = start.to_array();
        pose[if bad == 0.0 || bad == -1.0 { 7 } else { 2 }] = bad;
        rig.stream.write(&pose, rig.pose.all()).unwrap();
        let params = TrackingConfig::default();
        let task = rig.task(Residual::Rays);
        let found = rig.solver.solve(&rig.stream, &task, &params).unwrap();
        let what = "the initial pose";
        let expected = Unsolved::Solver(SolveError::NotFinite { what });
        if found.as_ref().err() != Some(&expected) {
            failures.push(format!("start {bad}: {found:?}"));
        }
        let kept: Vec<u64> = rig.pose().iter().map(|v| v.to_bits()).collect();
        assert_eq!(kept, pose.map(f64::to_bits));
    }
    report(failures);
}

/// Fewer than 7 numbers' worth of pixels, and none.
#[test]
fn tiny_images_are_solved_or_refused() {
    let Some(gpu) = cuda() else { return };
    for (width, height) in [(0, 0), (1, 1), (2, 1), (3, 1), (5, 2), (33, 1), (257, 1)] {
        let rig = Rig::new(&gpu, width, height);
        let pair = Pair::exact(width, height, Sim3::exp(&Random(6).tangent(0.05)));
        for residual in residuals(&pair) {
            let params = TrackingConfig::default();
            let found = rig.solve(&pair, residual, &Sim3::identity(), &params);
            let found = found.solution(width * height);
            let expected = on_cpu(&pair, residual, &Sim3::identity(), &params);
            println!("{width}x{height} {residual:?}: {found:?}\n  CPU {expected:?}");
            match (found, expected) {
                (Err(Unsolved::Solver(a)), Err(b)) => assert_eq!(
                    std::mem::discriminant(&a),
                    std::mem::discriminant(&b),
                    "{width}x{height}: {a} instead of {b}"
                ),
                (Ok(a), Ok(b)) => assert_eq!(a.used, b.used),
                // Between the thresholds of f64 and f32 a problem is singular only to f32.
                (Err(Unsolved::Solver(SolveError::Singular { smallest, .. })), Ok(b)) => {
                    let limit = 7.0 * rounding(width * height);
                    assert!(smallest <= 2.0 * limit, "{smallest} {limit} {b:?}");
                }
                (a, b) => panic!("{width}x{height}: {a:?} instead of {b:?}"),
            }
        }
    }
}

/// Pixels that are not to be used are not looked at, and ones that cannot be used count as such.
#[test]
fn nan_changes_no_bit_of_the_pose() {
    let Some(gpu) = cuda() else { return };
    let (width, height) = (101, 75);
    let rig = Rig::new(&gpu, width, height);
    let truth = Sim3::exp(&Random(6).tangent(0.1));
    let start = Sim3::identity();
    let params = TrackingConfig::default();
    for (_, residual, whole) in problems(width, height, truth) {
        // All that are matched with some of the frame's pixels.
        let of_some = |n: &usize| whole.index[*n].is_multiple_of(13);
        let all = 0..whole.index.len();
        let spoilt: Vec<usize> = all.filter(of_some).collect();
        let mut clean = whole.clone();
        for &n in &spoilt {
            clean.quality[n] = 0.0;
        }
        let expected = rig.solve(&clean, residual, &start, &params);
        assert_eq!(expected.status(), Some(Status::Solved));
        let bads = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0];
        for valid in [false, true] {
            for (of_frame, bad) in [false, true].into_iter().flat_map(|f| bads.map(|b| (f, b))) {
                let mut pair = whole.clone();
                for &n in &spoilt {
                    if !valid {
                        pair.quality[n] = [0.0, -1.0, f32::NAN][n % 3];
                    }
                    let at = 3 * pair.index[n] as usize;
                    match of_frame {
                        true => pair.frame_points[at..at + 3].fill(bad),
                        false => pair.keyframe_points[3 * n..3 * n + 3].fill(bad),
                    }
                }
                let found = rig.solve(&pair, residual, &start, &params);
                assert_eq!(found, expected, "{residual:?} {valid} {of_frame} {bad}");
            }
        }
    }
}

/// Matches of which too few fit the pose give none, as on the CPU.
#[test]
fn a_pose_must_fit_most_of_its_matches() {
    let Some(gpu) = cuda() else { return };
    let (width, height) = (101, 75);
    let rig = Rig::new(&gpu, width, height);
    let truth = Sim3::exp(&Random(2).tangent(0.1));
    let start = Sim3::exp(&Random(1).tangent(0.01)) * truth;
    let params = exhaustive();
    for (outliers, fits) in [(0.0, true), (0.3, true), (0.7, false), (1.0, false)] {
        let exact = Pair::exact(width, height, truth).with_outliers(outliers);
        let seen = projected(width, height, truth).with_outliers(outliers);
        let [rays, calibrated] = residuals(&exact);
        for (pair, residual) in [(exact, rays), (seen, calibrated)] {
            rig.load(&pair, &start);
            let task = SolveTask {
                min_fit: 0.5,
                ..rig.task(residual)
            };
            let found = rig.solver.solve(&rig.stream, &task, &params).unwrap();
            let expected =
                on_cpu(&pair, residual, &start, &params).expect("a pose that fits badly");
            assert_eq!(2 * expected.fitting >= expected.used, fits, "{expected:?}");
            match found {
                Ok(found) => {
                    // Matches at the limit may fit here and not there.
                    let off = found.fitting.abs_diff(expected.fitting);
                    assert!(fits && off <= 8, "{found:?} instead of {expected:?}");
                }
                Err(Unsolved::Solver(SolveError::Unfit { used, fitting })) => {
                    assert!(!fits && 2 * fitting < used, "{fitting} of {used}");
                    assert_eq!(rig.pose(), start.to_array());
                    assert_eq!(rig.outcome().pose, start.to_array());
                }
                Err(error) => panic!("{outliers} {residual:?}: {error}"),
            }
        }
    }
}

/// Too few matches are found by the matching's counts, as the tracker does.
#[test]
fn the_matchings_counts_decide() {
    let Some(gpu) = cuda() else { return };
    let (width, height) = (101, 75);
    let n = width * height;
    let rig = Rig::new(&gpu, width, height);
    let start = Sim3::identity();
    let pair = Pair::exact(width, height, Sim3::exp(&Random(6).tangent(0.05)));
    let params = TrackingConfig::default();
    let boundary = (0..=n as u32)
        .find(|&u| u as f32 / n as f32 >= params.min_match_frac)
        .unwrap();
    for (used, good, unique) in [
        (0, 0, 0),
        (boundary - 1, n as u32, n as u32),
        (boundary, n as u32, n as u32),
        (n as u32, n as u32, n as u32 - 1),
    ] {
        let counts = MatchCounts {
            valid: 7000,
            refined: 3,
            good,
            used,
            unique,
            ..MatchCounts::default()
        };
        rig.load(&pair, &start);
        rig.stream.write(&[counts], rig.counts.all()).unwrap();
        let task = SolveTask {
            counts: Some(rig.counts.all()),
            ..rig.task(Residual::Rays)
        };
        rig.solver.enqueue(&rig.stream, &task, &params).unwrap();
        let found = rig.outcome();
        let fraction = |count: u32| count as f32 / n as f32;
        let lost = fraction(used) < params.min_match_frac;
        let expected = if lost {
            Status::FewMatches
        } else {
            Status::Solved
        };
        assert_eq!(found.status(), Some(expected), "{counts:?}");
        assert_eq!(found.counts, counts);
        assert_eq!(found.used_fraction, fraction(used));
        assert_eq!(found.unique_fraction, fraction(unique));
        if lost {
            assert_eq!(rig.pose(), start.to_array());
            assert_eq!(found.evaluations, 0);
            let used = fraction(used);
            let error = found.solution(n).unwrap_err();
            assert_eq!(error, Unsolved::FewMatches { used });
        }
    }
}

#[test]
fn buffers_that_do_not_fit_are_refused() {
    let Some(gpu) = cuda() else { return };
    let rig = Rig::new(&gpu, 20, 10);
    let small = Rig::new(&gpu, 19, 10);
    let params = TrackingConfig::default();
    let calibrated = Residual::Calibrated(intrinsics(20, 10));
    let good = rig.task(calibrated);
    let bad = [
        (
            "frame points",
            SolveTask {
                frame_points: small.frame_points.all(),
                ..good
            },
        ),
        (
            "keyframe points",
            SolveTask {
                keyframe_points: small.keyframe_points.all(),
                ..good
            },
        ),
        (
            "matches",
            SolveTask {
                index: small.index.all(),
                ..good
            },
        ),
        (
            "match qualities",
            SolveTask {
                quality: Floats::F32(small.quality.all()),
                ..good
            },
        ),
        (
            "match qualities",
            SolveTask {
                quality: Floats::F16(small.half_quality.all()),
                ..good
            },
        ),
        (
            "rays",
            SolveTask {
                compared: Compared::Pixels(&small.rays),
                ..good
            },
        ),
        (
            "pose",
            SolveTask {
                pose: Some(rig.pose.slice(0..7).unwrap()),
                ..good
            },
        ),
        (
            "outcome",
            SolveTask {
                outcome: rig.outcome.slice(0..0).unwrap(),
                ..good
            },
        ),
        (
            "counts",
            SolveTask {
                counts: Some(rig.counts.slice(0..0).unwrap()),
                ..good
            },
        ),
    ];
    for (what, task) in bad {
        let error = rig.solver.enqueue(&rig.stream, &task, &params).unwrap_err();
        assert!(error.to_string().contains(what), "{what}: {error}");
    }
}
