use super::*;
use crate::slam::metric::drive::{Drive, NOISE, RATE, mount, stamp};
use crate::slam::metric::wheels::Wheels;
use nalgebra::{Matrix6, Translation3, UnitQuaternion};

/// Seconds between keyframes: half a metre.
const STEP: f64 = 1.0;

fn wheels(drive: &Drive, mount: Isometry3<f64>) -> Wheels {
    let mut wheels = Wheels::new(mount);
    for (k, pose) in drive.odometry.iter().enumerate() {
        wheels.add(stamp(k as f64 / RATE), pose).expect("a pose");
    }
    wheels
}

/// Feeds the mount test with a drive; the metres after which it refuses the mount.
fn refused(mount_given: Isometry3<f64>, scale: f64) -> Option<WrongMount> {
    let drive = Drive::new(29.5, &NOISE, 5);
    let wheels = wheels(&drive, mount_given);
    let mut test = MountTest::default();
    (0..29).find_map(|k| {
        let (from, to) = (f64::from(k) * STEP, f64::from(k + 1) * STEP);
        let motion = wheels.between(stamp(from), stamp(to)).expect("covered");
        let mut visual = drive.camera_motion(from, to);
        visual.translation.vector *= scale;
        let wrong = test.add(&motion, &visual).err();
        wrong.inspect(|_| assert!((to * 0.5) < 5.0, "after {} m", to * 0.5))
    })
}

#[test]
fn a_mount_that_is_wrong_by_90_degrees_is_refused_with_the_reason() {
    for scale in [0.7, 1.0, 1.5] {
        assert_eq!(refused(mount(), scale), None);
        for (axis, expected) in [
            // About the base's z, which is the camera's −y; about its x, which is the camera's z.
            (Vector3::z_axis(), Vector3::y()),
            (Vector3::x_axis(), Vector3::z()),
        ] {
            let turn = UnitQuaternion::from_axis_angle(&axis, std::f64::consts::FRAC_PI_2);
            let mut wrong = mount();
            wrong.rotation = turn * wrong.rotation;
            let refusal = refused(wrong, scale).expect("refused");
            assert!(
                refusal.turn.dot(&expected).abs() > 80.0,
                "{axis:?}: {refusal:?}"
            );
            assert!(refusal.turn.norm() < 100.0, "{refusal:?}");
        }
    }
    // Ten degrees are within what a coarse measurement of a mount may be off by.
    let turn = UnitQuaternion::from_axis_angle(&Vector3::z_axis(), 0.17);
    let mut coarse = mount();
    coarse.rotation = turn * coarse.rotation;
    assert_eq!(refused(coarse, 1.0), None);
}

#[test]
fn a_refusal_says_what_to_do() {
    let refusal = WrongMount {
        degrees: 88.4,
        driven: 2.5,
        turn: Vector3::new(0.1, 90.2, 0.0),
    };
    let told = refusal.to_string();
    assert!(
        told.contains("88 degrees off")
            && told.contains("[0 90 0]")
            && told.contains("check the transform"),
        "{told}"
    );
}

#[test]
fn axes_alone_do_not_acquit_a_mount_that_is_turned_about_the_vertical() {
    // Curves too tight for a direction, with a straight stretch after each pair: turns about the vertical fit any mount
    // that is turned about it.
    let wrong = UnitQuaternion::from_axis_angle(&Vector3::y_axis(), std::f64::consts::FRAC_PI_2);
    let mut test = MountTest::default();
    let judged: Vec<bool> = (0..9)
        .map(|k| {
            let turn = if k % 3 == 2 { 0.1 } else { 0.6 };
            let visual = Isometry3::new(Vector3::new(0.0, 0.0, 1.0), Vector3::y() * turn);
            let translation = Translation3::from(wrong * visual.translation.vector);
            let motion = CameraMotion {
                i_from_j: Isometry3::from_parts(translation, visual.rotation),
                covariance: Matrix6::identity() * 1e-4,
                driven: 1.0,
                seconds: 1.0,
            };
            test.add(&motion, &visual).is_err()
        })
        .collect();
    assert_eq!(judged.iter().position(|&e| e), Some(8), "{judged:?}");
}
