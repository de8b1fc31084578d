use super::*;

fn stamp(seconds: f64) -> Stamp {
    Stamp::from_seconds(500.0 + seconds)
}

/// Rates at 200 Hz for three seconds.
fn rates(rate: impl Fn(f64) -> Vector3<f64>) -> Rates {
    let mut rates = Rates::default();
    for k in 0..=600 {
        let t = f64::from(k) / 200.0;
        rates.add(stamp(t), &rate(t)).expect("a rate");
    }
    rates
}

#[test]
fn a_constant_rate_turns_by_its_product_with_time() {
    let rate = Vector3::new(0.3, -0.8, 0.5);
    let rates = rates(|_| rate + Vector3::new(0.01, 0.02, -0.03));
    let bias = Vector3::new(0.01, 0.02, -0.03);
    // Neither end is a sample's time.
    let found = rates
        .between(stamp(0.1234), stamp(2.3456), &bias)
        .expect("covered");
    let expected = UnitQuaternion::from_scaled_axis(rate * (2.3456 - 0.1234));
    assert!(found.i_from_j.angle_to(&expected) < 1e-7, "{found:?}");
    let mean = rates.mean_rate(stamp(0.5), stamp(1.5)).expect("covered");
    assert!((mean - (rate + bias).norm()).abs() < 1e-9);
}

/// A coning motion, whose rotation is known in closed form: `R(t) = Exp(Ω t z)·Exp(α x)·Exp(−Ω t z)` has a rate about
/// the sensor's axes that goes round.
#[test]
fn a_rate_that_changes_its_axis_is_integrated() {
    let (alpha, omega) = (0.4, 3.0);
    let z = |a: f64| UnitQuaternion::from_scaled_axis(Vector3::z() * a);
    let tilt = UnitQuaternion::from_scaled_axis(Vector3::x() * alpha);
    let pose = |t: f64| z(omega * t) * tilt * z(-omega * t);
    // ω = vee(Rᵀ R'), with R' by the product rule.
    let rates = rates(|t| {
        let step = 1e-5;
        (pose(t - step).inverse() * pose(t + step)).scaled_axis() / (2.0 * step)
    });
    let found = rates
        .between(stamp(0.2), stamp(2.9), &Vector3::zeros())
        .expect("covered");
    let expected = pose(0.2).inverse() * pose(2.9);
    assert!(
        found.i_from_j.angle_to(&expected) < 2e-4,
        "{}",
        found.i_from_j.angle_to(&expected)
    );
}

#[test]
fn the_derivative_by_the_bias_equals_finite_differences() {
    let rates = rates(|t| Vector3::new((2.0 * t).sin(), 1.5 * (1.3 * t).cos(), -0.7));
    let bias = Vector3::new(0.02, -0.01, 0.03);
    let at = |bias: &Vector3<f64>| {
        rates
            .between(stamp(0.3), stamp(1.9), bias)
            .expect("covered")
    };
    let here = at(&bias);
    for k in 0..3 {
        let mut step = Vector3::zeros();
        step[k] = 1e-5;
        let (up, down) = (at(&(bias + step)).i_from_j, at(&(bias - step)).i_from_j);
        let back = here.i_from_j.inverse();
        let found = (rotation_log(&(back * up)) - rotation_log(&(back * down))) / 2e-5;
        assert!(
            (found - here.by_bias.column(k)).norm() < 1e-4,
            "{k}: {found}"
        );
    }
}

#[test]
fn bad_rates_are_refused_and_gaps_are_not_integrated() {
    let mut rates = Rates::default();
    let rate = Vector3::new(0.1, 0.0, 0.0);
    rates.add(stamp(0.0), &rate).expect("a rate");
    for bad in [
        Vector3::new(f64::NAN, 0.0, 0.0),
        Vector3::new(0.0, 200.0, 0.0),
    ] {
        assert!(matches!(
            rates.add(stamp(0.1), &bad),
            Err(GyroError::Rate(_))
        ));
    }
    assert!(matches!(
        rates.add(stamp(0.0), &rate),
        Err(GyroError::Old { .. })
    ));
    rates.add(stamp(0.05), &rate).expect("a rate");
    let zero = Vector3::zeros();
    assert!(rates.between(stamp(0.0), stamp(0.06), &zero).is_some());
    assert!(
        rates.between(stamp(0.0), stamp(0.08), &zero).is_none(),
        "beyond the newest"
    );
    rates.add(stamp(0.5), &rate).expect("after a gap");
    assert!(
        rates.between(stamp(0.0), stamp(0.5), &zero).is_none(),
        "across a gap"
    );
    assert!(
        rates.between(stamp(0.05), stamp(0.0), &zero).is_none(),
        "backwards"
    );
    let room = rates.samples.capacity();
    for k in 1..30_000 {
        rates
            .add(stamp(0.5 + f64::from(k) * 5e-4), &rate)
            .expect("a rate");
    }
    assert_eq!(
        (rates.samples.len(), rates.samples.capacity()),
        (MAX_RATES, room)
    );
}

#[test]
fn a_sensor_that_is_steady_shows_its_bias() {
    let bias = Vector3::new(0.01, -0.02, 0.005);
    let still = rates(|t| bias + Vector3::new(1e-3 * (90.0 * t).sin(), 0.0, 0.0));
    let found = still
        .steady_rate(stamp(0.5), stamp(1.5), 0.01)
        .expect("steady");
    assert!((found - bias).norm() < 1e-4, "{found}");
    let moving = rates(|t| Vector3::new(0.0, 0.3 * (4.0 * t).sin(), 0.0));
    assert_eq!(moving.steady_rate(stamp(0.5), stamp(1.5), 0.01), None);
}

#[test]
fn the_standard_deviation_grows_with_time_and_bias() {
    let noise = GyroNoise::default();
    // White noise of 1.7e-4 over 4 s is 3.4e-4, a walk of 2e-5 is 9.2e-5; a bias of 1e-2 over 4 s is 0.04.
    let known = rotation_sigma(4.0, &noise, 0.0);
    assert!(
        (known - 3.4e-4_f64.hypot(1.745e-3).hypot(9.2e-5)).abs() < 1e-6,
        "{known}"
    );
    assert!((rotation_sigma(4.0, &noise, 1e-2) - 0.04).abs() < 1e-4);
}
