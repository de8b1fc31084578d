use super::*;
use crate::slam::metric::drive::{Drive, Errors, NOISE, RATE, mount, stamp};
use crate::slam::metric::wheels::Wheels;

/// Seconds between keyframes: half a metre.
const STEP: f64 = 1.0;

fn wheels(drive: &Drive) -> Wheels {
    let mut wheels = Wheels::new(mount());
    for (k, pose) in drive.odometry.iter().enumerate() {
        wheels.add(stamp(k as f64 / RATE), pose).expect("a pose");
    }
    wheels
}

/// The verdict on each second of a drive whose camera sees everything `scale` times too large.
fn verdicts(errors: &Errors, scale: f64, seed: u64) -> (Vec<Verdict>, SlipTest) {
    let drive = Drive::new(29.5, errors, seed);
    let wheels = wheels(&drive);
    let mut test = SlipTest::default();
    let verdicts = (0..29)
        .map(|k| {
            let (from, to) = (f64::from(k) * STEP, f64::from(k + 1) * STEP);
            let motion = wheels.between(stamp(from), stamp(to)).expect("covered");
            let mut visual = drive.camera_motion(from, to);
            visual.translation.vector *= scale;
            test.judge(&motion, &visual)
        })
        .collect();
    (verdicts, test)
}

#[test]
fn noisy_wheels_fit_whatever_the_scale_of_the_map() {
    for scale in [0.7, 1.0, 1.5] {
        let mut outliers = 0;
        for seed in 0..20 {
            let (verdicts, test) = verdicts(&NOISE, scale, seed);
            assert!(
                !verdicts.contains(&Verdict::Slips),
                "{scale} {seed}: {verdicts:?}"
            );
            outliers += test.outliers();
        }
        // 1 % of 580 by design.
        assert!(outliers <= 18, "scale {scale}: {outliers}");
    }
}

#[test]
fn wheels_that_slip_by_a_fifth_for_two_seconds_are_noticed_and_used_again() {
    for seed in 0..20 {
        let errors = Errors {
            slip: Some((14.0, 16.0, 1.2)),
            ..NOISE
        };
        let (verdicts, test) = verdicts(&errors, 1.3, seed);
        assert_eq!(
            verdicts[14..16],
            [Verdict::Outlier, Verdict::Slips],
            "{seed}: {verdicts:?}"
        );
        let later = verdicts[16..]
            .iter()
            .filter(|v| **v == Verdict::Fits)
            .count();
        assert!(later >= 12 && !test.is_slipping(), "{seed}: {verdicts:?}");
    }
}

#[test]
fn wheels_that_stand_still_or_spin_in_place_are_noticed() {
    // No distance for three seconds while the robot drives, and twice the distance.
    for factor in [0.0, 2.0] {
        let errors = Errors {
            slip: Some((14.0, 17.0, factor)),
            ..NOISE
        };
        let (verdicts, _) = verdicts(&errors, 1.0, 3);
        let expected = [Verdict::Outlier, Verdict::Slips, Verdict::Slips];
        assert_eq!(verdicts[14..17], expected, "{factor}: {verdicts:?}");
    }
}
