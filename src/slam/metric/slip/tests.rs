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
    verdicts_each(STEP, errors, scale, seed)
}

/// The verdict on each `step` of 29 s.
fn verdicts_each(step: f64, errors: &Errors, scale: f64, seed: u64) -> (Vec<Verdict>, SlipTest) {
    let drive = Drive::new(29.5, errors, seed);
    let wheels = wheels(&drive);
    let mut test = SlipTest::default();
    let verdicts = (0..(29.0 / step) as u32)
        .map(|k| {
            let (from, to) = (f64::from(k) * step, f64::from(k + 1) * step);
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
fn slip_of_short_motions_adds_up() {
    // 15 cm each, of which 3 cm are slip: less than three standard deviations.
    let step = 0.3;
    let (from, to) = (15.0, 18.0);
    for seed in 0..20 {
        let errors = Errors {
            slip: Some((from, to, 1.2)),
            ..NOISE
        };
        let (verdicts, test) = verdicts_each(step, &errors, 1.3, seed);
        let (first, end) = ((from / step) as usize, (to / step) as usize);
        let noticed = verdicts.iter().position(|v| *v == Verdict::Slips);
        let noticed = noticed.expect("it is noticed");
        assert!(
            (first + 1..first + RUN).contains(&noticed),
            "{seed}: {verdicts:?}"
        );
        let used = verdicts[noticed..end]
            .iter()
            .filter(|v| **v == Verdict::Fits);
        assert!(used.count() <= 2, "{seed}: {verdicts:?}");
        let later = verdicts[end + 3..].iter().filter(|v| **v == Verdict::Fits);
        assert!(
            later.count() >= verdicts.len() - end - 6,
            "{seed}: {verdicts:?}"
        );
        assert!(!test.is_slipping(), "{seed}: {verdicts:?}");
    }
}

#[test]
fn noise_of_short_motions_does_not_add_up() {
    let mut slips = 0;
    for seed in 0..20 {
        for scale in [0.7, 1.5] {
            let (verdicts, _) = verdicts_each(0.3, &NOISE, scale, seed);
            slips += verdicts.iter().filter(|v| **v == Verdict::Slips).count();
        }
    }
    // There are 3,840 motions with four sums each.
    assert!(slips <= 2, "{slips}");
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
