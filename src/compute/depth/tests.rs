//! The scale of pointmaps whose scale is known.

use super::*;

const SIZE: (usize, usize) = (64, 48);
const PIXELS: usize = SIZE.0 * SIZE.1;

pub(super) struct Random(pub u64);

impl Random {
    fn uniform(&mut self) -> f64 {
        // Splitmix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((z ^ (z >> 31)) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    /// Box and Muller.
    pub fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

/// A surface, and its depth as `sensor` measures it of the true depth.
fn scene(mut sensor: impl FnMut(usize, f64) -> f64) -> (Vec<f32>, Vec<f32>) {
    let depth = |n: usize| 2.0 + (n as f64 * 0.37).sin() + 0.01 * (n / SIZE.0) as f64;
    let points = (0..PIXELS).flat_map(|n| {
        let z = depth(n);
        [0.3 * z as f32, -0.1 * z as f32, z as f32]
    });
    let metres = (0..PIXELS).map(|n| sensor(n, depth(n)) as f32);
    (points.collect(), metres.collect())
}

fn measure((points, metres): &(Vec<f32>, Vec<f32>)) -> Result<DepthScale, NoScale> {
    let confidence = vec![1.0; metres.len()];
    let mut trust = Trust::default();
    DepthMeter::new(PIXELS).measure(points, &confidence, metres, SIZE.0, &mut trust)
}

#[test]
fn exact_depth_gives_the_exact_scale() {
    for scale in [0.1, 0.7, 1.0, 1.3, 20.0] {
        let found = measure(&scene(|_, z| scale * z)).unwrap();
        // Ratios that are all the same are rounded to whole steps alike.
        let half_a_step = 0.5001 / f64::from(STEPS);
        assert!(
            (found.log_scale - scale.ln()).abs() < half_a_step,
            "{found:?}"
        );
        assert!((found.sigma - 0.003).abs() < 1e-6, "{found:?}");
    }
}

#[test]
fn the_standard_deviation_is_that_of_patches() {
    // Errors are common to a patch: the scatter over many images is what is claimed of each.
    let mut random = Random(3);
    let columns = SIZE.0 / PATCH;
    let (mut sum, mut claimed) = (0.0, 0.0);
    let images = 400;
    for _ in 0..images {
        let noise: Vec<f64> = (0..columns * SIZE.1 / PATCH)
            .map(|_| 0.1 * random.normal())
            .collect();
        let patch = |n: usize| (n / SIZE.0 / PATCH) * columns + (n % SIZE.0) / PATCH;
        let found = measure(&scene(|n, z| z * noise[patch(n)].exp())).unwrap();
        sum += found.log_scale.powi(2);
        claimed += found.sigma.powi(2);
    }
    let ratio = sum / claimed;
    // MAD of twelve numbers is a rough estimate, and biased low.
    assert!((0.7..1.6).contains(&ratio), "{ratio}");
}

#[test]
fn outliers_and_holes_hardly_move_it() {
    let mut random = Random(7);
    let outliers = scene(|_, z| match random.uniform() {
        u if u < 0.1 => 50.0 * z,
        u if u < 0.2 => 1.5 * z,
        _ => 1.2 * z * (1.0 + 0.02 * random.normal()),
    });
    let found = measure(&outliers).unwrap().log_scale.exp();
    assert!((found / 1.2 - 1.0).abs() < 2e-3, "{found}");
    let mut random = Random(8);
    let sparse = scene(|_, z| match random.uniform() {
        u if u < 0.97 => 0.0,
        _ => 1.2 * z * (1.0 + 0.05 * random.normal()),
    });
    let found = measure(&sparse).unwrap();
    assert!((found.log_scale - 1.2_f64.ln()).abs() < 0.02, "{found:?}");
    // Fewer than 32 pixels of a patch are a part of a measurement.
    assert!(found.sigma > 0.015, "{found:?}");
}

#[test]
fn what_is_no_depth_gives_none() {
    assert!(matches!(measure(&scene(|_, _| 0.0)), Err(NoScale::Few { found }) if found == 0.0));
    assert!(matches!(
        measure(&scene(|_, _| f64::NAN)),
        Err(NoScale::Few { .. })
    ));
    assert!(matches!(
        measure(&scene(|_, z| -z)),
        Err(NoScale::Few { .. })
    ));
    assert!(matches!(
        measure(&scene(|n, z| if n % 120 == 0 { z } else { 0.0 })),
        Err(NoScale::Few { .. })
    ));
    let Err(NoScale::Unit { factor }) = measure(&scene(|_, z| 1000.0 * z)) else {
        panic!("millimetres as metres");
    };
    assert!((factor / 1000.0 - 1.0).abs() < 1e-3, "{factor}");
    assert!(matches!(
        measure(&scene(|_, z| 0.001 * z)),
        Err(NoScale::Unit { .. })
    ));
    let mut random = Random(9);
    let other = scene(|_, z| z * (0.5 * random.normal()).exp());
    assert!(matches!(measure(&other), Err(NoScale::Scattered { .. })));
    let mut trust = Trust::default();
    assert!(
        DepthMeter::new(0)
            .measure(&[], &[], &[], 0, &mut trust)
            .is_err()
    );
    // Hidden points do not count.
    let (points, metres) = scene(|_, z| z);
    let hidden = vec![0.0; PIXELS];
    let hidden = DepthMeter::new(0).measure(&points, &hidden, &metres, SIZE.0, &mut trust);
    assert_eq!(hidden, Err(NoScale::Few { found: 0.0 }));
}

#[test]
fn a_sensor_that_agreed_long_enough_is_believed_where_the_network_fails() {
    let confidence = vec![1.0; PIXELS];
    let (good, mut random) = (scene(|_, z| 1.2 * z), Random(9));
    let wild = scene(|_, z| 1.2 * z * (0.5 * random.normal()).exp());
    let (mut meter, mut trust) = (DepthMeter::new(PIXELS), Trust::default());
    let mut measure = |(points, metres): &(Vec<f32>, Vec<f32>)| {
        let found = meter.measure(points, &confidence, metres, SIZE.0, &mut trust);
        (found.map(|found| found.log_scale), trust.agreed())
    };
    let of_good = |agreed| (Ok(1.2_f64.ln()), agreed);
    let near = |(found, agreed): (Result<f64, NoScale>, u32),
                expected: (Result<f64, NoScale>, u32)| {
        let off = found.ok().zip(expected.0.ok()).map(|(a, b)| (a - b).abs());
        assert!(
            agreed == expected.1 && off.is_some_and(|off| off < 0.05),
            "{off:?} {agreed}"
        );
    };
    for n in 1..TRUSTED {
        near(measure(&good), of_good(n));
    }
    let (refused, agreed) = measure(&wild);
    assert!(
        matches!(refused, Err(NoScale::Scattered { max: MAX_MAD, .. })),
        "{refused:?}"
    );
    assert_eq!(agreed, TRUSTED - 2);
    for n in TRUSTED - 1..=TRUSTED + 1 {
        near(measure(&good), of_good(n));
    }
    // No depth says nothing.
    assert_eq!(measure(&scene(|_, _| 0.0)).1, TRUSTED + 1);
    for n in [TRUSTED, TRUSTED - 1] {
        near(measure(&wild), of_good(n));
    }
    let (refused, _) = measure(&wild);
    assert!(
        matches!(refused, Err(NoScale::Scattered { max: MAX_MAD, .. })),
        "{refused:?}"
    );
    // However long they have agreed: not for long.
    for _ in 0..2 * MAX_AGREED {
        assert!(measure(&good).0.is_ok());
    }
    let used = (0..2 * MAX_AGREED)
        .filter(|_| measure(&wild).0.is_ok())
        .count();
    assert_eq!(used as u32, MAX_AGREED - TRUSTED + 1);
}
