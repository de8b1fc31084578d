use super::*;
use crate::slam::metric::drive::{Drive, Errors, NOISE, RATE, mount, stamp};
use nalgebra::{UnitQuaternion, Vector6};

fn wheels(drive: &Drive) -> Wheels {
    let mut wheels = Wheels::new(mount());
    for (k, pose) in drive.odometry.iter().enumerate() {
        wheels.add(stamp(k as f64 / RATE), pose).expect("a pose");
    }
    wheels
}

fn at(x: f64, yaw: f64) -> Isometry3<f64> {
    let turn = UnitQuaternion::from_axis_angle(&Vector3::z_axis(), yaw);
    Isometry3::from_parts(Vector3::new(x, 0.0, 0.0).into(), turn)
}

#[test]
fn the_camera_of_a_robot_that_turns_on_the_spot_swings_on_its_lever_arm() {
    let mut wheels = Wheels::new(mount());
    for k in 0..=50 {
        let yaw = std::f64::consts::FRAC_PI_2 * f64::from(k) / 50.0;
        wheels
            .add(stamp(f64::from(k) / RATE), &at(2.0, yaw))
            .expect("a pose");
    }
    let motion = wheels.between(stamp(0.0), stamp(1.0)).expect("covered");
    // The camera at (0.2, 0.05) of the base goes to (-0.05, 0.2): 0.25 m back and 0.15 m to the left. The camera's z is
    // ahead, its x to the right.
    let expected = Vector3::new(-0.15, 0.0, -0.25);
    assert!(
        (motion.i_from_j.translation.vector - expected).norm() < 1e-12,
        "{motion:?}"
    );
    // To the left is a negative turn about the camera's y, which points down.
    let turn = motion.i_from_j.rotation.scaled_axis();
    assert!(
        (turn - Vector3::new(0.0, -std::f64::consts::FRAC_PI_2, 0.0)).norm() < 1e-12,
        "{turn}"
    );
    assert_eq!(motion.driven, 0.0);
}

#[test]
fn poses_between_samples_lie_on_the_circle_that_is_driven() {
    let mut wheels = Wheels::new(Isometry3::identity());
    // A quarter of a circle of 1 m about (0, 1), in steps of 9 degrees.
    let circle = |a: f64| {
        let turn = UnitQuaternion::from_axis_angle(&Vector3::z_axis(), a);
        Isometry3::from_parts(Vector3::new(a.sin(), 1.0 - a.cos(), 0.0).into(), turn)
    };
    let angle = |k: f64| k * std::f64::consts::FRAC_PI_2 / 10.0;
    for k in 0..=10 {
        wheels
            .add(stamp(f64::from(k) / 10.0), &circle(angle(f64::from(k))))
            .expect("a pose");
    }
    for t in [0.03, 0.55, 0.999] {
        let found = wheels
            .between(stamp(0.0), stamp(t))
            .expect("covered")
            .i_from_j;
        let expected = circle(angle(t * 10.0));
        assert!(
            (found.translation.vector - expected.translation.vector).norm() < 1e-6,
            "{t}"
        );
        assert!(found.rotation.angle_to(&expected.rotation) < 1e-6, "{t}");
    }
    // The velocity goes on for a moment after the newest pose, and no longer.
    let after = wheels
        .between(stamp(0.0), stamp(1.04))
        .expect("a moment later")
        .i_from_j;
    let expected = circle(angle(10.4));
    assert!((after.translation.vector - expected.translation.vector).norm() < 1e-6);
    assert!(wheels.between(stamp(0.0), stamp(1.06)).is_none());
    assert!(wheels.between(stamp(-0.01), stamp(1.0)).is_none());
}

#[test]
fn no_motion_is_measured_across_a_gap_a_jump_or_a_restart() {
    let mut wheels = Wheels::new(Isometry3::identity());
    let add = |wheels: &mut Wheels, t: f64, x: f64| wheels.add(stamp(t), &at(x, 0.0));
    for k in 0..10 {
        add(&mut wheels, f64::from(k) / 10.0, 0.1 * f64::from(k)).expect("a pose");
    }
    add(&mut wheels, 2.0, 1.5).expect("after a gap");
    assert!(
        wheels.between(stamp(0.5), stamp(1.5)).is_none(),
        "within the gap"
    );
    // Both ends are known: what happened in between does not matter.
    assert!(wheels.between(stamp(0.5), stamp(2.0)).is_some());
    add(&mut wheels, 2.1, 5.0).expect("a jump");
    add(&mut wheels, 2.2, 5.1).expect("a pose");
    assert_eq!(wheels.jumps(), 1);
    assert!(wheels.between(stamp(2.0), stamp(2.2)).is_none());
    let since = wheels
        .between(stamp(2.1), stamp(2.2))
        .expect("since the jump");
    assert!((since.driven - 0.1).abs() < 1e-9);
    // A bag that starts again.
    add(&mut wheels, 0.0, 0.0).expect("a restart");
    assert_eq!(wheels.jumps(), 2);
    assert!(wheels.between(stamp(2.1), stamp(2.2)).is_none());
}

#[test]
fn bad_poses_are_refused_and_the_buffer_is_bounded() {
    let mut wheels = Wheels::new(Isometry3::identity());
    wheels.add(stamp(1.0), &at(0.0, 0.0)).expect("a pose");
    let refused = wheels.add(stamp(1.1), &at(f64::NAN, 0.0));
    assert_eq!(refused, Err(OdometryError::NotFinite));
    for t in [1.0, 0.5] {
        let refused = wheels.add(stamp(t), &at(0.0, 0.0));
        assert!(
            matches!(refused, Err(OdometryError::Old { .. })),
            "{refused:?}"
        );
    }
    let room = wheels.samples.capacity();
    for k in 1..40_000 {
        wheels
            .add(stamp(1.0 + f64::from(k) * 1e-3), &at(0.0, 0.0))
            .expect("a pose");
    }
    assert_eq!(
        (wheels.samples.len(), wheels.samples.capacity()),
        (MAX_POSES, room)
    );
    wheels.add(stamp(68.0), &at(0.0, 0.0)).expect("a pose");
    assert!(wheels.samples.len() < MAX_POSES, "older than 30 s");
}

/// The covariance is derived from errors of the base; the camera's residual moves as finite differences say.
#[test]
fn errors_of_the_base_reach_the_camera_by_the_jacobian() {
    let (base, mount) = (at(0.7, 0.4), mount());
    let jacobian = camera_jacobian(&base, &mount);
    let motion = CameraMotion {
        i_from_j: mount.inverse() * base * mount,
        covariance: Matrix6::identity(),
        driven: 0.7,
        seconds: 1.0,
    };
    for k in 0..6 {
        let step = 1e-6;
        let mut error = Vector6::zeros();
        error[k] = step;
        let (p, r) = (
            error.fixed_rows::<3>(0).into_owned(),
            error.fixed_rows::<3>(3).into_owned(),
        );
        let moved = Isometry3::from_parts(
            (base.translation.vector + p).into(),
            base.rotation * UnitQuaternion::from_scaled_axis(r),
        );
        let found = motion.residual(&(mount.inverse() * moved * mount)) / step;
        assert!((found - jacobian.column(k)).norm() < 1e-5, "{k}: {found}");
    }
}

/// Normalised errors squared of the camera's motions over half a metre and over a metre.
fn nees(errors: &Errors) -> Vec<f64> {
    let mut all = Vec::new();
    for seed in 0..20 {
        let drive = Drive::new(28.0, errors, seed);
        let wheels = wheels(&drive);
        for (length, count) in [(1.0, 27), (2.0, 13)] {
            for k in 0..count {
                let (from, to) = (f64::from(k) * length, f64::from(k + 1) * length);
                let motion = wheels.between(stamp(from), stamp(to)).expect("covered");
                let truth = drive.camera_motion(from, to);
                all.push(motion.chi2(&truth, &Matrix6::zeros()).expect("definite"));
            }
        }
    }
    all
}

#[test]
fn the_covariance_of_noisy_wheels_is_honest_over_20_seeds() {
    let nees = nees(&NOISE);
    let below = nees.iter().filter(|e| **e < 12.59).count() as f64 / nees.len() as f64;
    let mean = nees.iter().sum::<f64>() / nees.len() as f64;
    // 95 % quantile and mean of χ² with six degrees of freedom. 800 motions: ±1.5 % are two standard deviations, and
    // those of a drive share the bias of 2 %.
    assert!(
        (0.92..=0.985).contains(&below),
        "{below} below the 95 % quantile, mean {mean}"
    );
    assert!((4.0..=7.5).contains(&mean), "{mean}");
}

#[test]
fn the_covariance_does_not_cover_wheels_that_are_wrong() {
    // 20 % instead of 2 %.
    let nees = nees(&Errors { bias: 0.2, ..NOISE });
    let below = nees.iter().filter(|e| **e < 12.59).count() as f64 / nees.len() as f64;
    assert!(below < 0.2, "{below}");
}
