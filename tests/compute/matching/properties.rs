//! The fast matcher equals the plain one bit for bit, whatever it is given.

use super::reference;
use mast3r_slam::compute::matching::{Matcher, Refinement, View};
use mast3r_slam::config::MatchingConfig;
use proptest::prelude::*;
use testkit::matching_scene::{Random, Scene};

const SIZES: [(usize, usize); 8] = [
    (1, 1),
    (3, 5),
    (3, 3),
    (2, 7),
    (17, 13),
    (8, 8),
    (31, 4),
    (5, 29),
];

/// A smooth scene, and what can go wrong with it.
#[derive(Debug, Clone)]
struct Case {
    size: (usize, usize),
    dim: usize,
    centre: [f64; 3],
    /// Relative noise on all coordinates.
    noise: f64,
    /// Every `n`-th pixel of either view gets a degenerate point or descriptor; 0 for none.
    broken: u64,
    /// Descriptors become -1, 0 or 1 for many ties.
    ties: bool,
    /// None, random pixels, or random numbers.
    initial: u8,
    seed: u64,
    refinement: Refinement,
    params: MatchingConfig,
}

fn cases() -> impl Strategy<Value = Case> {
    let scene = (
        prop::sample::select(SIZES.to_vec()),
        prop::sample::select(vec![1usize, 3, 8, 24, 25]),
        prop::array::uniform3(-0.2f64..0.2),
        prop::sample::select(vec![0.0, 0.001, 0.1, 3.0]),
        prop::sample::select(vec![0u64, 1, 2, 7, 30]),
        any::<bool>(),
        0u8..3,
        any::<u64>(),
    );
    let params = (
        0usize..12,
        prop::sample::select(vec![0.0f32, 1e-8, 1.0]),
        prop::sample::select(vec![1e-14f32, 1e-6, 1e-2, 10.0]),
        prop::sample::select(vec![0.01f32, 0.1, 1e9]),
        0usize..10,
        0usize..7,
        prop::sample::select(vec![Refinement::Single, Refinement::SingleAll]),
    );
    (scene, params).prop_map(|(s, p)| Case {
        size: s.0,
        dim: s.1,
        centre: s.2,
        noise: s.3,
        broken: s.4,
        ties: s.5,
        initial: s.6,
        seed: s.7,
        refinement: p.6,
        params: MatchingConfig {
            max_iter: p.0,
            lambda_init: p.1,
            convergence_thresh: p.2,
            dist_thresh: p.3,
            radius: p.4,
            dilation_max: p.5,
        },
    })
}

const DEGENERATE: [f32; 8] = [
    0.0,
    -0.0,
    f32::NAN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    1e-40,
    3e38,
    -1e20,
];

fn disturb(case: &Case, random: &mut Random, points: &mut [f32], descriptors: &mut [f32]) {
    for x in points.iter_mut() {
        *x *= 1.0 + (case.noise * random.signed()) as f32;
    }
    if case.ties {
        for d in descriptors.iter_mut() {
            *d = (random.next() % 3) as f32 - 1.0;
        }
    }
    let pixels = points.len() / 3;
    for n in 0..pixels {
        if case.broken == 0 || !random.next().is_multiple_of(case.broken) {
            continue;
        }
        let value = DEGENERATE[(random.next() % 8) as usize];
        match random.next() % 4 {
            0 => points[3 * n..3 * n + 3].fill(value),
            1 => points[3 * n + (random.next() % 3) as usize] = value,
            2 => descriptors[n * case.dim..(n + 1) * case.dim].fill(value),
            _ => descriptors[n * case.dim + (random.next() as usize) % case.dim] = value,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn fast_equals_plain(case in cases()) {
        let (width, height) = case.size;
        let n = width * height;
        let mut random = Random(case.seed);
        let mut scene = Scene::new(width, height, case.dim, case.centre, 0.1);
        disturb(&case, &mut random, &mut scene.points1, &mut scene.descriptors1);
        disturb(&case, &mut random, &mut scene.points2, &mut scene.descriptors2);
        let initial: Option<Vec<u32>> = match case.initial {
            0 => None,
            1 => Some((0..n).map(|_| (random.next() % n as u64) as u32).collect()),
            _ => Some((0..n).map(|_| random.next() as u32).collect()),
        };

        let (mut index, mut valid) = (vec![u32::MAX; n], vec![9; n]);
        let stats = Matcher::new(width, height, case.dim)
            .with_refinement(case.refinement)
            .run(
                scene.view1(),
                scene.view2(),
                initial.as_deref(),
                &case.params,
                &mut index,
                &mut valid,
            );
        let (mut plain_index, mut plain_valid) = (vec![u32::MAX; n], vec![9; n]);
        let plain_stats = reference::run(
            reference::Shape { width, height, descriptor_dim: case.dim },
            case.refinement,
            scene.view1(),
            scene.view2(),
            initial.as_deref(),
            &case.params,
            &mut plain_index,
            &mut plain_valid,
        );
        prop_assert_eq!(&index, &plain_index);
        prop_assert_eq!(&valid, &plain_valid);
        prop_assert_eq!(stats, plain_stats);

        let finite = |points: &[f32], n: usize| {
            let p = &points[3 * n..3 * n + 3];
            p.iter().all(|x| x.is_finite()) && p.iter().any(|&x| x != 0.0)
        };
        for n in 0..n {
            prop_assert!((index[n] as usize) < width * height);
            prop_assert!(valid[n] <= 1);
            if valid[n] == 1 {
                prop_assert!(finite(&scene.points2, n));
                prop_assert!(finite(&scene.points1, index[n] as usize));
            }
        }
    }

    #[test]
    fn any_bits_are_survived(
        size in prop::sample::select(SIZES.to_vec()),
        seed in any::<u64>(),
    ) {
        let n = size.0 * size.1;
        let mut random = Random(seed);
        let mut bits = |len: usize| -> Vec<f32> {
            (0..len).map(|_| f32::from_bits(random.next() as u32)).collect()
        };
        let (p1, d1, p2, d2) = (bits(3 * n), bits(8 * n), bits(3 * n), bits(8 * n));
        let params = MatchingConfig { convergence_thresh: 10.0, ..MatchingConfig::default() };
        let (mut index, mut valid) = (vec![u32::MAX; n], vec![9; n]);
        Matcher::new(size.0, size.1, 8).run(
            View { points: &p1, descriptors: &d1 },
            View { points: &p2, descriptors: &d2 },
            None,
            &params,
            &mut index,
            &mut valid,
        );
        prop_assert!(index.iter().all(|&i| (i as usize) < n));
        prop_assert!(valid.iter().all(|&v| v <= 1));
    }
}
