//! The gyro of a camera that moves as in `assets/room_loop`: rates of a spline through the ground truth, with the
//! noise of EuRoC's sensor.

use super::*;
use crate::slam::metric::gyro::GyroNoise;
use nalgebra::Quaternion;
use testkit::random::Random;

const FRAMES: f64 = 30.0;
const RATE: f64 = 200.0;

/// A cumulative cubic B-spline of rotations (Kim, Kim and Shin 1995), whose control points are 1/30 s apart.
struct Spline(Vec<UnitQuaternion<f64>>);

impl Spline {
    fn of_room_loop() -> Self {
        let text = include_str!("../../../../assets/room_loop/groundtruth.txt");
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let rotation = |line: &str| {
            let v: Vec<f64> = line
                .split_whitespace()
                .map(|v| v.parse().expect("a number"))
                .collect();
            UnitQuaternion::from_quaternion(Quaternion::new(v[7], v[4], v[5], v[6]))
        };
        Self(lines.map(rotation).collect())
    }

    /// Seconds that the spline covers.
    fn seconds(&self) -> f64 {
        (self.0.len() - 4) as f64 / FRAMES
    }

    fn at(&self, seconds: f64) -> UnitQuaternion<f64> {
        let x = seconds * FRAMES;
        let (k, u) = (x as usize, x.fract());
        let basis = [
            (5.0 + 3.0 * u - 3.0 * u * u + u * u * u) / 6.0,
            (1.0 + 3.0 * u + 3.0 * u * u - 2.0 * u * u * u) / 6.0,
            u * u * u / 6.0,
        ];
        (0..3).fold(self.0[k], |at, n| {
            let step = rotation_log(&(self.0[k + n].inverse() * self.0[k + n + 1]));
            at * UnitQuaternion::from_scaled_axis(step * basis[n])
        })
    }

    fn rate(&self, seconds: f64) -> Vector3<f64> {
        let h = 1e-4;
        rotation_log(&(self.at(seconds - h).inverse() * self.at(seconds + h))) / (2.0 * h)
    }
}

fn stamp(seconds: f64) -> Stamp {
    Stamp::from_seconds(1000.0 + seconds)
}

/// What the gyro measures in the seconds that the spline covers.
fn gyro(spline: &Spline, bias: &Vector3<f64>, seed: u64) -> Rates {
    let (noise, mut random) = (GyroNoise::default(), Random(2 * seed + 1));
    let mut normal = |sigma: f64| Vector3::from_fn(|_, _| sigma * random.normal());
    let mut drift = Vector3::zeros();
    let mut rates = Rates::default();
    for k in 1..(spline.seconds() * RATE) as usize {
        let t = k as f64 / RATE;
        drift += normal(noise.walk / RATE.sqrt());
        let rate = spline.rate(t) + bias + drift + normal(noise.density * RATE.sqrt());
        rates.add(stamp(t), &rate).expect("a rate");
    }
    rates
}

/// A rotation as the camera sees it, off by `sigma` radians about each axis.
fn seen(
    spline: &Spline,
    from: f64,
    to: f64,
    random: &mut Random,
    sigma: f64,
) -> UnitQuaternion<f64> {
    let error = Vector3::from_fn(|_, _| sigma * random.normal());
    spline.at(from).inverse() * spline.at(to) * UnitQuaternion::from_scaled_axis(error)
}

#[test]
fn the_gyro_of_the_spline_measures_its_rotations() {
    let spline = Spline::of_room_loop();
    let rates = gyro(&spline, &Vector3::zeros(), 1);
    for from in [0.5, 3.3, 7.1] {
        let found = rates.between(stamp(from), stamp(from + 1.0), &Vector3::zeros());
        let expected = spline.at(from).inverse() * spline.at(from + 1.0);
        let off = found.expect("covered").i_from_j.angle_to(&expected);
        // White noise of 1.7e-4 rad over a second about each axis, and the sum over samples.
        assert!(off < 1e-3, "{from}: {off}");
    }
}

#[test]
fn the_time_offset_is_found_to_2_ms() {
    let spline = Spline::of_room_loop();
    for (seed, offset) in [(1, 0.0073), (2, -0.0118), (3, 0.0), (4, 0.016)] {
        let rates = gyro(&spline, &Vector3::new(0.01, -0.02, 0.015), seed);
        let mut random = Random(100 + seed);
        let mut estimator = OffsetEstimator::default();
        for k in 2..(spline.seconds() * FRAMES) as usize - 2 {
            let (from, to) = (k as f64 / FRAMES, (k + 1) as f64 / FRAMES);
            // A frame stamped `t` was seen at `t + offset`.
            let rotation = seen(&spline, from + offset, to + offset, &mut random, 3e-4);
            estimator.add(stamp(from), stamp(to), &rotation);
        }
        let found = estimator.solve(&rates).expect("an offset");
        assert!((found - offset).abs() < 2e-3, "{found} instead of {offset}");
    }
}

#[test]
fn an_offset_is_not_made_up() {
    let spline = Spline::of_room_loop();
    let rates = gyro(&spline, &Vector3::zeros(), 1);
    let mut random = Random(7);
    let (mut far, mut steady, mut other) =
        <(OffsetEstimator, OffsetEstimator, OffsetEstimator)>::default();
    for k in 2..250 {
        let (from, to) = (k as f64 / FRAMES, (k + 1) as f64 / FRAMES);
        far.add(
            stamp(from),
            stamp(to),
            &seen(&spline, from + 0.2, to + 0.2, &mut random, 0.0),
        );
        let turn = |rate: f64| UnitQuaternion::from_scaled_axis(Vector3::y() * (rate / FRAMES));
        steady.add(stamp(from), stamp(to), &turn(0.6));
        other.add(stamp(from), stamp(to), &turn(2.0 * random.uniform()));
    }
    assert_eq!(far.solve(&rates), None, "beyond 20 ms");
    assert_eq!(steady.solve(&rates), None, "a constant rate");
    assert_eq!(other.solve(&rates), None, "another motion");
    assert_eq!(OffsetEstimator::default().solve(&rates), None);
}

fn bias_of(spline: &Spline, rates: &Rates, outliers: usize, seed: u64) -> Option<Bias> {
    let mut random = Random(200 + seed);
    let mut estimator = BiasEstimator::default();
    for k in 1..22 {
        let (from, to) = (0.4 * f64::from(k), 0.4 * f64::from(k + 1));
        let start = Vector3::new(0.002, 0.0, -0.004);
        let by_gyro = rates
            .between(stamp(from), stamp(to), &start)
            .expect("covered");
        let mut rotation = seen(spline, from, to, &mut random, 1.7e-3);
        if (k as usize) <= outliers {
            rotation *= UnitQuaternion::from_scaled_axis(Vector3::new(0.2, 0.0, 0.1));
        }
        estimator.add(by_gyro, &start, &rotation, to - from);
    }
    estimator.solve()
}

#[test]
fn the_bias_is_found_from_keyframes() {
    let spline = Spline::of_room_loop();
    let truth = Vector3::new(0.01, -0.02, 0.015);
    for seed in 0..5 {
        let rates = gyro(&spline, &truth, seed);
        let found = bias_of(&spline, &rates, 0, seed).expect("a bias");
        assert!((found.rate - truth).amax() < 5e-3, "{found:?}");
        // Honest: within four standard deviations, and not larger than ten times the error of rotations.
        assert!(
            (found.rate - truth).amax() < 4.0 * found.sigma && found.sigma < 5e-3,
            "{found:?}"
        );
        // One wrong pair in ten.
        let found = bias_of(&spline, &rates, 2, seed).expect("a bias");
        assert!((found.rate - truth).amax() < 7e-3, "{found:?}");
    }
}

#[test]
fn a_bias_larger_than_any_sensor_s_is_refused() {
    let spline = Spline::of_room_loop();
    let rates = gyro(&spline, &Vector3::new(0.3, 0.0, 0.0), 1);
    assert_eq!(bias_of(&spline, &rates, 0, 1), None);
    assert_eq!(BiasEstimator::default().solve(), None);
}
