//! The same poses as the CPU's.

use super::*;
use crate::cuda;

#[test]
fn poses_are_the_cpus_within_rounding() {
    let Some(gpu) = cuda() else { return };
    let mut failures = Vec::new();
    // Multiples of nothing, less than a warp's, many blocks', and the network's.
    for (width, height) in [(101, 75), (37, 11), (256, 192), (512, 384)] {
        let rig = Rig::new(&gpu, width, height);
        for seed in 0..4 {
            let truth = Sim3::exp(&Random(seed).tangent(0.1));
            let start = Sim3::exp(&Random(seed + 50).tangent(0.02));
            for (name, residual, pair) in problems(width, height, truth) {
                for params in [TrackingConfig::default(), exhaustive()] {
                    let what = format!("{name} {width}x{height} {seed} {:.0e}", params.delta_norm);
                    let found = rig.solve(&pair, residual, &start, &params);
                    failures.extend(compare(&what, &pair, residual, &start, &params, &found).err());
                }
            }
        }
    }
    report(failures);
}

#[test]
fn exact_data_gives_the_exact_pose() {
    let Some(gpu) = cuda() else { return };
    let rig = Rig::new(&gpu, 101, 75);
    for seed in 0..6 {
        let truth = Sim3::exp(&Random(seed).tangent(0.15));
        let pair = Pair::exact(101, 75, truth);
        let found = rig.solve(&pair, Residual::Rays, &Sim3::identity(), &exhaustive());
        let off = (Sim3::from_array(found.pose) * truth.inverse()).log();
        let moved = length(&found.hessian_matrix(), &off);
        let limit = shift(&pair, Residual::Rays, found.used as usize, &exhaustive());
        println!(
            "{seed}: off by {moved:.2e} of {limit:.2e} sigmas, {} iterations, {} evaluations, converged \
             {}, cost {:e}",
            found.iterations, found.evaluations, found.converged, found.cost
        );
        assert!(moved <= limit, "{seed}: {moved} {limit}");
    }
}

#[test]
fn identical_pointmaps_cost_nothing() {
    let Some(gpu) = cuda() else { return };
    let rig = Rig::new(&gpu, 101, 75);
    let pair = Pair::exact(101, 75, Sim3::identity());
    let start = Sim3::identity();
    // Calibrated pixels lie on their rays to a rounding, so that only rays cost nothing at all.
    let found = rig.solve(&pair, Residual::Rays, &start, &TrackingConfig::default());
    assert_eq!((found.cost, found.robust), (0.0, 0.0));
    assert_eq!((found.iterations, found.converged), (1, 1));
    assert_eq!(found.pose, start.to_array());
    assert_eq!(found.used, 7575);
}

#[test]
fn a_far_start_never_makes_it_worse() {
    let Some(gpu) = cuda() else { return };
    let rig = Rig::new(&gpu, 101, 75);
    let pair = Pair::exact(101, 75, Sim3::identity()).noisy(0.002);
    let mut recovered = (0, 0);
    for seed in 0..12 {
        let start = Sim3::exp(&Random(seed).tangent(1.2));
        let nothing = TrackingConfig {
            max_iters: 0,
            ..TrackingConfig::default()
        };
        let before = rig.solve(&pair, Residual::Rays, &start, &nothing);
        assert_eq!(before.pose, start.to_array());
        assert_eq!((before.iterations, before.converged), (0, 0));
        let after = rig.solve(&pair, Residual::Rays, &start, &exhaustive());
        let cpu = on_cpu(&pair, Residual::Rays, &start, &exhaustive()).unwrap();
        let near = |pose: Sim3| usize::from(pose.log().norm() < 0.01);
        println!(
            "{seed}: cost {:.6e} from {:.6e}, CPU {:.6e}; iterations {} evaluations {}, CPU {}",
            after.cost, before.cost, cpu.cost, after.iterations, after.evaluations, cpu.iterations
        );
        // Fifty steps at most, each no worse than rounding.
        assert!(after.robust <= before.robust * (1.0 + 50.0 * rounding(7575)));
        assert!(Sim3::from_array(after.pose).is_finite());
        recovered.0 += near(Sim3::from_array(after.pose));
        recovered.1 += near(cpu.keyframe_from_frame);
    }
    // A way that passes close by a decision may part there, so not each alone.
    assert!(recovered.0 >= 8, "{recovered:?} of 12");
}

/// The mapper's: qualities above a limit, from the identity, whatever the pose before was, in either format.
#[test]
fn a_relative_pose_starts_at_the_identity_and_gates() {
    let Some(gpu) = cuda() else { return };
    let (width, height) = (101, 75);
    let rig = Rig::new(&gpu, width, height);
    let params = TrackingConfig::default();
    let start = Sim3::identity();
    for (name, residual, mut pair) in problems(width, height, Sim3::exp(&Random(6).tangent(0.05))) {
        let odd = [f32::NAN, -1.0, 0.0, 6e-8].map(f16::from_f32);
        let half: Vec<f16> = (pair.quality.iter().enumerate())
            .map(|(n, q)| match n % 50 {
                0 => odd[n / 50 % odd.len()],
                _ => f16::from_f32(*q),
            })
            .collect();
        rig.stream.write(&half, rig.half_quality.all()).unwrap();
        pair.quality = half.iter().map(|q| q.to_f32()).collect();
        for limit in [2.0_f32, 0.0, -1.0] {
            let mut gated = pair.clone();
            for q in &mut gated.quality {
                *q = if *q > limit { *q } else { 0.0 };
            }
            let expected = rig.solve(&gated, residual, &start, &params);
            let unused = Sim3::exp(&Random(8).tangent(0.5));
            rig.load(&pair, &unused);
            let single = Floats::F32(rig.quality.all());
            let half = Floats::F16(rig.half_quality.all());
            for (format, quality) in [("f32", single), ("f16", half)] {
                let task = SolveTask {
                    quality,
                    pose: None,
                    min_quality: limit,
                    ..rig.task(residual)
                };
                rig.solver.enqueue(&rig.stream, &task, &params).unwrap();
                assert_eq!(rig.outcome(), expected, "{name} {limit} {format}");
                assert_eq!(rig.pose(), unused.to_array());
            }
            compare(name, &gated, residual, &start, &params, &expected).unwrap();
        }
    }
}
