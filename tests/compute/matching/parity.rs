//! The projective search and the occlusion check on surfaces whose true matches are known
//! (docs/reference-defects.md, Parity tests, 5).

use mast3r_slam::compute::matching::{
    MatchStats, Matcher, Refinement, View, match_quality, unique_matches,
};
use mast3r_slam::config::MatchingConfig;
use testkit::matching_scene::{Random, Scene};

struct Found {
    index: Vec<u32>,
    valid: Vec<u8>,
    stats: MatchStats,
}

fn run(scene: &Scene, initial: Option<&[u32]>, params: &MatchingConfig) -> Found {
    run_views(scene, scene.view1(), scene.view2(), initial, params)
}

fn run_views(
    scene: &Scene,
    target: View<'_>,
    query: View<'_>,
    initial: Option<&[u32]>,
    params: &MatchingConfig,
) -> Found {
    let n = scene.pixels();
    let (mut index, mut valid) = (vec![u32::MAX; n], vec![u8::MAX; n]);
    let stats = Matcher::new(scene.width, scene.height, scene.dim)
        .run(target, query, initial, params, &mut index, &mut valid);
    assert!(
        index.iter().all(|&i| (i as usize) < n),
        "index out of range"
    );
    assert!(valid.iter().all(|&v| v <= 1), "flag neither 0 nor 1");
    assert_eq!(stats.valid, valid.iter().filter(|&&v| v == 1).count());
    Found {
        index,
        valid,
        stats,
    }
}

fn search_only() -> MatchingConfig {
    MatchingConfig {
        radius: 0,
        ..MatchingConfig::default()
    }
}

fn interior(scene: &Scene, n: usize) -> bool {
    let (u, v) = (n % scene.width, n / scene.width);
    (1..scene.width - 1).contains(&u) && (1..scene.height - 1).contains(&v)
}

#[test]
fn equal_views_match_themselves() {
    for (width, height) in [(64, 48), (97, 61)] {
        let scene = Scene::new(width, height, 24, [0.0; 3], 0.0);
        for params in [search_only(), MatchingConfig::default()] {
            let found = run(&scene, None, &params);
            for n in 0..scene.pixels() {
                if interior(&scene, n) {
                    assert_eq!((found.index[n] as usize, found.valid[n]), (n, 1));
                } else {
                    // The search cannot leave the ring, and a neighbour is 1/f ≥ 1.2e-2 rad away,
                    // twelve times what counts as converged.
                    assert_eq!(found.valid[n], 0, "border pixel {n}");
                }
            }
            assert_eq!(found.stats.refined, 0);
        }
    }
}

#[test]
fn border_ring_is_reached_by_refinement_only() {
    // Camera 2 looks from further left: what it sees in column 1 is in column 0 of view 1 or left of it.
    let scene = Scene::new(256, 192, 24, [-0.004, 0.0, 0.0], 0.0);
    let (w, h) = (scene.width, scene.height);
    let searched = run(&scene, None, &search_only());
    for &i in &searched.index {
        let (u, v) = (i as usize % w, i as usize / w);
        assert!((1..=w - 2).contains(&u) && (1..=h - 2).contains(&v));
    }
    let refined = run(&scene, None, &MatchingConfig::default());
    let on_ring = (0..scene.pixels())
        .filter(|&n| refined.valid[n] == 1 && !interior(&scene, refined.index[n] as usize))
        .count();
    assert!(on_ring > 0, "no refined match on the border ring");
}

/// Where the search must end: it truncates a position whose error has three sources. Bilinear rays
/// sag by at most 1/(8 f²) rad along each axis, 2/(8 f) = 2.3e-3 pixels at f = 109; the cost's
/// rounding adds 3e-7 rad; and each iteration leaves a few hundredths of the error of the last.
const POSITION_TOLERANCE: f64 = 0.005;

fn assert_recovered(scene: &Scene, found: &Found) -> usize {
    let (w, h) = (scene.width, scene.height);
    let mut checked = 0;
    for (n, p) in scene.projections.iter().enumerate() {
        let inside = p[0] > 1.01 && p[1] > 1.01 && p[0] < w as f64 - 2.01 && p[1] < h as f64 - 2.01;
        if !inside {
            continue;
        }
        checked += 1;
        assert_eq!(found.valid[n], 1, "pixel {n} at {p:?}");
        let i = found.index[n] as usize;
        for (truth, got) in [(p[0], i % w), (p[1], i / w)] {
            let excess = (truth - got as f64 - 0.5).abs() - 0.5;
            assert!(
                excess <= POSITION_TOLERANCE,
                "pixel {n}: {got} for {truth} ({excess:.4} pixels off)"
            );
        }
    }
    checked
}

#[test]
fn random_translations_up_to_three_pixels_are_recovered() {
    let mut random = Random(11);
    for _ in 0..8 {
        // At the nearest depth of 1.75 m and f = 108.8, 0.048 m is 3 pixels.
        let centre = [
            0.048 * random.signed(),
            0.048 * random.signed(),
            0.03 * random.signed(),
        ];
        let scene = Scene::new(128, 96, 8, centre, 0.0);
        let checked = assert_recovered(&scene, &run(&scene, None, &search_only()));
        // At most four columns and rows of 128 × 96 leave the image.
        assert!(
            checked > 124 * 92 * 9 / 10,
            "{checked} checked for {centre:?}"
        );
    }
}

#[test]
fn refinement_finds_the_nearest_pixel() {
    let scene = Scene::new(128, 96, 24, [0.03, -0.02, 0.0], 0.0);
    let found = run(&scene, None, &MatchingConfig::default());
    let (w, h) = (scene.width as f64, scene.height as f64);
    let (mut checked, mut near) = (0, 0);
    for (n, p) in scene.projections.iter().enumerate() {
        if p[0] > 1.0 && p[1] > 1.0 && p[0] < w - 2.0 && p[1] < h - 2.0 {
            let i = found.index[n] as usize;
            let off = |truth: f64, got: usize| (truth - got as f64).abs();
            let off = off(p[0], i % scene.width).max(off(p[1], i / scene.width));
            // Noise-free descriptors of sums of waves 10 pixels long and more peak at the truth; the
            // neighbour on the other side can win only near the middle between pixels.
            checked += 1;
            near += usize::from(off <= 0.6);
            assert!(off < 1.5, "pixel {n}: {off} pixels off");
        }
    }
    assert!(near * 100 >= checked * 99, "{near} of {checked}");
    assert!(found.stats.refined > checked / 2);
}

#[test]
fn an_earlier_match_is_where_the_search_starts() {
    // 30 pixels to the side: too far for some pixels from the identity, nothing from the truth.
    let scene = Scene::new(128, 96, 8, [0.5, 0.0, 0.0], 0.0);
    let initial: Vec<u32> = scene
        .projections
        .iter()
        .map(|p| {
            let u = p[0].round().clamp(0.0, 127.0) as u32;
            let v = p[1].round().clamp(0.0, 95.0) as u32;
            v * 128 + u
        })
        .collect();
    let checked = assert_recovered(&scene, &run(&scene, Some(&initial), &search_only()));
    assert!(checked > 128 * 96 / 2);
    // From the truth one iteration is enough for nearly all; from the identity for next to none.
    let once = MatchingConfig {
        max_iter: 1,
        ..search_only()
    };
    let warm = run(&scene, Some(&initial), &once).stats.valid;
    let cold = run(&scene, None, &once).stats.valid;
    assert!(
        warm > checked * 9 / 10 && cold < checked / 10,
        "{warm} {cold}"
    );
}

#[test]
fn an_initial_index_outside_the_image_counts_as_none() {
    let scene = Scene::new(64, 48, 8, [0.02, 0.0, 0.0], 0.1);
    let n = scene.pixels() as u32;
    let params = MatchingConfig::default();
    let none = run(&scene, None, &params);
    for wild in [n, n + 1, u32::MAX] {
        let found = run(&scene, Some(&vec![wild; scene.pixels()]), &params);
        assert_eq!((&found.index, &found.valid), (&none.index, &none.valid));
    }
}

#[test]
fn zero_or_nan_points_never_match() {
    let scene = Scene::new(48, 36, 24, [0.01, 0.0, 0.0], 0.0);
    // A threshold above any chord and distance: nothing but the points' own defect may refuse them.
    let lenient = MatchingConfig {
        convergence_thresh: 100.0,
        dist_thresh: 1e30,
        ..MatchingConfig::default()
    };
    for params in [MatchingConfig::default(), lenient] {
        for bad in [0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30, 1e-30] {
            let points = vec![bad; scene.pixels() * 3];
            let broken = |descriptors| View {
                points: &points,
                descriptors,
            };
            let (v1, v2) = (scene.view1(), scene.view2());
            for (target, query) in [
                (broken(v1.descriptors), v2),
                (v1, broken(v2.descriptors)),
                (broken(v1.descriptors), broken(v2.descriptors)),
            ] {
                let found = run_views(&scene, target, query, None, &params);
                assert_eq!(found.stats, MatchStats::default(), "points of {bad}");
            }
        }
    }
}

#[test]
fn a_bad_pixel_spoils_its_own_neighbourhood_only() {
    let scene = Scene::new(48, 36, 24, [0.0; 3], 0.0);
    let bad = 18 * 48 + 24;
    let mut points1 = scene.points1.clone();
    points1[3 * bad..3 * bad + 3].fill(f32::NAN);
    let target = View {
        points: &points1,
        descriptors: &scene.descriptors1,
    };
    let found = run_views(
        &scene,
        target,
        scene.view2(),
        None,
        &MatchingConfig::default(),
    );
    for n in 0..scene.pixels() {
        let (du, dv) = ((n % 48).abs_diff(24), (n / 48).abs_diff(18));
        if interior(&scene, n) && (du > 1 || dv > 1) {
            assert_eq!((found.index[n] as usize, found.valid[n]), (n, 1));
        }
        assert!(found.valid[n] == 0 || found.index[n] as usize != bad);
    }
    assert_eq!(found.valid[bad], 0);
}

#[test]
fn no_iteration_or_a_zero_threshold_match_nothing() {
    let scene = Scene::new(32, 24, 8, [0.0; 3], 0.0);
    for params in [
        MatchingConfig {
            max_iter: 0,
            ..MatchingConfig::default()
        },
        MatchingConfig {
            convergence_thresh: 0.0,
            ..MatchingConfig::default()
        },
        MatchingConfig {
            dist_thresh: 0.0,
            ..MatchingConfig::default()
        },
    ] {
        assert_eq!(run(&scene, None, &params).stats, MatchStats::default());
    }
}

#[test]
fn points_at_another_distance_are_occluded() {
    let scene = Scene::new(64, 48, 8, [0.0; 3], 0.0);
    // The same rays, further away by a length of 0.08 and 0.12 around the threshold of 0.1.
    for (extra, expected) in [(0.08f32, 1), (0.12, 0)] {
        let points: Vec<f32> = scene
            .points1
            .chunks_exact(3)
            .flat_map(|p| {
                let norm = p.iter().map(|x| x * x).sum::<f32>().sqrt();
                [0, 1, 2].map(|k| p[k] * (1.0 + extra / norm))
            })
            .collect();
        let query = View {
            points: &points,
            descriptors: &scene.descriptors2,
        };
        let found = run_views(&scene, scene.view1(), query, None, &search_only());
        for n in (0..scene.pixels()).filter(|&n| interior(&scene, n)) {
            assert_eq!(found.valid[n], expected, "{extra} m behind");
        }
    }
}

#[test]
fn images_too_small_for_the_search_match_nothing() {
    for (width, height) in [(1, 1), (2, 9), (9, 2), (1, 40), (2, 2), (0, 0), (0, 5)] {
        let n = width * height;
        let points: Vec<f32> = (0..3 * n).map(|i| 1.0 + i as f32).collect();
        let descriptors = vec![0.5; 4 * n];
        let view = View {
            points: &points,
            descriptors: &descriptors,
        };
        let (mut index, mut valid) = (vec![u32::MAX; n], vec![1; n]);
        let stats = Matcher::new(width, height, 4).run(
            view,
            view,
            None,
            &MatchingConfig::default(),
            &mut index,
            &mut valid,
        );
        assert_eq!(stats, MatchStats::default());
        assert!(index.iter().enumerate().all(|(n, &i)| i as usize == n));
        assert!(valid.iter().all(|&v| v == 0));
    }
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let scene = Scene::new(75, 53, 24, [0.02, 0.01, -0.03], 0.3);
    let with = |threads| {
        rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .expect("thread pool")
            .install(|| run(&scene, None, &MatchingConfig::default()))
    };
    let one = with(1);
    for threads in [2, 5] {
        let many = with(threads);
        assert_eq!(
            (&one.index, &one.valid, one.stats),
            (&many.index, &many.valid, many.stats)
        );
    }
    assert!(one.stats.valid > 0 && one.stats.refined > 0);
}

#[test]
fn a_second_call_is_not_influenced_by_the_first() {
    let (a, b) = (
        Scene::new(40, 30, 5, [0.03, 0.0, 0.0], 0.2),
        Scene::new(40, 30, 5, [0.0, 0.02, 0.0], 0.2),
    );
    for refinement in [Refinement::Single, Refinement::SingleAll] {
        let mut matcher = Matcher::new(40, 30, 5).with_refinement(refinement);
        let mut call = |scene: &Scene| {
            let (mut index, mut valid) = (vec![0; 1200], vec![0; 1200]);
            let params = MatchingConfig::default();
            let (v1, v2) = (scene.view1(), scene.view2());
            matcher.run(v1, v2, None, &params, &mut index, &mut valid);
            (index, valid)
        };
        let fresh = call(&a);
        call(&b);
        assert_eq!(fresh, call(&a));
    }
}

#[test]
#[should_panic(expected = "matching: expected 36 query points, found 33")]
fn a_short_slice_is_refused() {
    let view = |points, descriptors| View {
        points,
        descriptors,
    };
    Matcher::new(4, 3, 2).run(
        view(&[1.0; 36], &[1.0; 24]),
        view(&[1.0; 33], &[1.0; 24]),
        None,
        &MatchingConfig::default(),
        &mut [0; 12],
        &mut [0; 12],
    );
}

#[test]
fn quality_is_the_geometric_mean_or_zero() {
    let target = [4.0, 9.0, f32::NAN, f32::INFINITY, -1.0];
    let query = [1.0, 4.0, 1.0, 1.0, 1.0, 2.0, f32::NAN];
    let index = [1, 0, 2, 3, 4, 99, 0];
    let mut out = [7.0; 7];
    match_quality(&target, &query, &index, &[1; 7], &mut out);
    assert_eq!(out, [3.0, 4.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    // Bounded, so that no match outweighs all others without limit.
    let mut large = [0.0; 3];
    let target = [65504.0, 1e18, f32::MAX];
    match_quality(
        &target,
        &[65504.0, 1e18, 1.0],
        &[0, 1, 2],
        &[1; 3],
        &mut large,
    );
    assert_eq!(large, [65504.0; 3]);
    let target = [4.0, 9.0, f32::NAN, f32::INFINITY, -1.0];
    match_quality(&target, &query, &index, &[0, 1, 0, 0, 0, 0, 0], &mut out);
    assert_eq!(out, [0.0, 4.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn distinct_matches_are_counted_exactly() {
    let mut seen = Vec::new();
    assert_eq!(unique_matches(&[], &[], &mut seen), 0);
    assert_eq!(unique_matches(&[3, 3, 1, 0], &[1, 1, 1, 0], &mut seen), 2);
    // Indices beyond the image do not count.
    assert_eq!(unique_matches(&[4, u32::MAX, 1, 1], &[1; 4], &mut seen), 1);
    let mut random = Random(3);
    for n in [63, 64, 65, 1000] {
        let index: Vec<u32> = (0..n).map(|_| (random.next() % n) as u32).collect();
        let valid: Vec<u8> = (0..n).map(|_| (random.next() % 2) as u8).collect();
        let set: std::collections::HashSet<u32> = index
            .iter()
            .zip(&valid)
            .filter(|(_, v)| **v == 1)
            .map(|(i, _)| *i)
            .collect();
        assert_eq!(unique_matches(&index, &valid, &mut seen), set.len());
    }
}
