//! The six ways a keyframe's pointmap absorbs a new one (docs/algorithm.md, Pointmap fusion),
//! and what must never happen.

use mast3r_slam::compute::fusion::{FusedPointmap, FusionScratch, MAX_CONFIDENCE, MAX_COUNT};
use mast3r_slam::config::{FilteringMode, FilteringScore};
use proptest::prelude::*;

const MODES: [FilteringMode; 6] = [
    FilteringMode::WeightedPointmap,
    FilteringMode::WeightedSpherical,
    FilteringMode::Recent,
    FilteringMode::First,
    FilteringMode::BestScore,
    FilteringMode::IndepConf,
];

fn fuse(
    mode: FilteringMode,
    score: FilteringScore,
    updates: &[(&[[f32; 3]], &[f32])],
) -> FusedPointmap {
    let mut map = FusedPointmap::new(updates[0].1.len());
    let mut scratch = FusionScratch::default();
    for (points, confidence) in updates {
        map.update(points.as_flattened(), confidence, mode, score, &mut scratch);
    }
    map
}

/// One pixel, updates of (point, confidence).
fn fuse_one(mode: FilteringMode, updates: &[([f32; 3], f32)]) -> FusedPointmap {
    let updates: Vec<_> = updates
        .iter()
        .map(|(p, c)| (std::slice::from_ref(p), std::slice::from_ref(c)))
        .collect();
    fuse(mode, FilteringScore::Median, &updates)
}

fn norm(p: &[f32]) -> f64 {
    p.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt()
}

/// The average confidence of pixel `n`.
fn average(map: &FusedPointmap, n: usize) -> f32 {
    map.average_confidences()
        .nth(n)
        .expect("a pixel of the map")
}

#[test]
fn nothing_yet() {
    let map = FusedPointmap::new(2);
    assert_eq!((map.count, map.updates), (0, 0));
    assert_eq!(average(&map, 1), 0.0);
    assert_eq!(map.average_confidences().collect::<Vec<_>>(), [0.0, 0.0]);
}

#[test]
fn the_first_update_copies_and_counts_one() {
    for mode in MODES {
        let map = fuse_one(mode, &[([1.0, -2.0, 3.0], 1.5)]);
        assert_eq!(map.points, [1.0, -2.0, 3.0], "{mode:?}");
        assert_eq!(map.confidence, [1.5]);
        assert_eq!((map.count, map.updates), (1, 1));
        assert_eq!(average(&map, 0), 1.5);
    }
}

/// A parked camera adds estimates for days: averages must neither stand still nor sink.
#[test]
fn averages_go_on_as_running_means_when_the_count_is_full() {
    for mode in [
        FilteringMode::WeightedPointmap,
        FilteringMode::WeightedSpherical,
    ] {
        let mut map = FusedPointmap::new(2);
        let mut scratch = FusionScratch::default();
        let points = [0.0, 0.0, 2.0, 1.0, 0.0, 2.0];
        let mut add = |map: &mut FusedPointmap, confidence: [f32; 2]| {
            map.update(
                &points,
                &confidence,
                mode,
                FilteringScore::Median,
                &mut scratch,
            );
        };
        add(&mut map, [2.0, 2.0]);
        // As after so many estimates of 2.
        map.count = MAX_COUNT;
        map.confidence.fill(2.0 * MAX_COUNT as f32);
        for _ in 0..1000 {
            add(&mut map, [2.0, 0.0]);
        }
        assert_eq!(map.count, MAX_COUNT);
        let (kept, unseen) = (average(&map, 0), average(&map, 1));
        assert!((kept - 2.0).abs() < 1e-3, "{kept}");
        // Each estimate without this pixel takes its 65537th part.
        let expected = 2.0 * (1.0 - 1.0 / f64::from(MAX_COUNT + 1)).powi(1000);
        assert!(
            (f64::from(unseen) - expected).abs() < 1e-4,
            "{unseen} {expected}"
        );
        // A change of confidence arrives, which a sum that stands still would swallow.
        for _ in 0..MAX_COUNT {
            add(&mut map, [8.0, 8.0]);
        }
        let late = f64::from(average(&map, 0));
        let expected = 8.0 - 6.0 * (-1.0f64).exp();
        assert!((late - expected).abs() < 0.01, "{late} {expected}");
    }
}

#[test]
fn weighted_pointmap_is_the_weighted_mean() {
    let map = fuse_one(
        FilteringMode::WeightedPointmap,
        &[([1.0, 0.0, 4.0], 1.0), ([5.0, 8.0, 0.0], 3.0)],
    );
    // Quarters are exact.
    assert_eq!(map.points, [4.0, 6.0, 1.0]);
    assert_eq!(map.confidence, [4.0]);
    assert_eq!((map.count, map.updates), (2, 2));
    assert_eq!(average(&map, 0), 2.0);
    assert_eq!(map.average_confidences().next(), Some(2.0));
}

#[test]
fn weighted_spherical_averages_range_and_direction() {
    let map = fuse_one(
        FilteringMode::WeightedSpherical,
        &[([2.0, 0.0, 0.0], 1.0), ([0.0, 4.0, 0.0], 1.0)],
    );
    // Range 3 along (1, 1, 0)/√2; a few roundings of 6e-8 relative.
    let expected = 3.0 / 2f32.sqrt();
    for (found, expected) in map.points.iter().zip([expected, expected, 0.0]) {
        assert!((found - expected).abs() < 1e-6, "{:?}", map.points);
    }
    assert_eq!((map.count, map.confidence[0]), (2, 2.0));
}

#[test]
fn weighted_spherical_does_not_wrap() {
    // Azimuths of +179° and -179°: their mean is 180°, not 0 (docs/reference-defects.md, B42).
    let (sin, cos) = 179f32.to_radians().sin_cos();
    let map = fuse_one(
        FilteringMode::WeightedSpherical,
        &[([cos, sin, 0.0], 1.0), ([cos, -sin, 0.0], 1.0)],
    );
    assert!((map.points[0] + 1.0).abs() < 1e-6, "{:?}", map.points);
    assert!(map.points[1].abs() < 1e-6);
}

#[test]
fn opposite_directions_keep_the_old_one() {
    let map = fuse_one(
        FilteringMode::WeightedSpherical,
        &[([0.0, 0.0, 1.0], 2.0), ([0.0, 0.0, -3.0], 2.0)],
    );
    assert_eq!(map.points, [0.0, 0.0, 2.0]);
}

#[test]
fn recent_keeps_the_newest() {
    let map = fuse_one(
        FilteringMode::Recent,
        &[([1.0; 3], 9.0), ([2.0; 3], 2.0), ([3.0; 3], 1.0)],
    );
    assert_eq!((map.points, map.confidence), (vec![3.0; 3], vec![1.0]));
    assert_eq!((map.count, map.updates), (1, 3));
}

#[test]
fn first_keeps_the_second() {
    let map = fuse_one(
        FilteringMode::First,
        &[([1.0; 3], 9.0), ([2.0; 3], 2.0), ([3.0; 3], 1.0)],
    );
    assert_eq!((map.points, map.confidence), (vec![2.0; 3], vec![2.0]));
    assert_eq!((map.count, map.updates), (1, 3));
}

#[test]
fn best_score_compares_whole_maps() {
    let points = |x: f32| [[x; 3]; 4];
    let run = |score, confidences: [[f32; 4]; 3]| {
        let maps = [points(1.0), points(2.0), points(3.0)];
        let updates: Vec<_> = (0..3)
            .map(|i| (&maps[i][..], &confidences[i][..]))
            .collect();
        fuse(FilteringMode::BestScore, score, &updates)
    };
    // Lower medians 2, 3, 2.5; means 3, 2.5, 26.
    let confidences = [
        [1.0, 2.0, 3.0, 6.0],
        [0.5, 3.0, 3.25, 3.25],
        [0.75, 2.5, 50.0, 50.75],
    ];
    let median = run(FilteringScore::Median, confidences);
    assert_eq!((median.points[0], median.score), (2.0, 3.0));
    assert_eq!(median.confidence, confidences[1]);
    let mean = run(FilteringScore::Mean, confidences);
    assert_eq!((mean.points[0], mean.score), (3.0, 26.0));
    assert_eq!((mean.count, mean.updates), (1, 3));
    // The score outlives updates that lose (docs/reference-defects.md, B36), and the same score does
    // not replace.
    let same = run(FilteringScore::Mean, [[2.0; 4], [1.0; 4], [2.0; 4]]);
    assert_eq!((same.points[0], same.score), (1.0, 2.0));
}

#[test]
fn indep_conf_chooses_for_each_pixel() {
    let map = fuse(
        FilteringMode::IndepConf,
        FilteringScore::Median,
        &[
            (&[[1.0; 3], [2.0; 3], [3.0; 3]], &[1.0, 2.0, 3.0]),
            (&[[4.0; 3], [5.0; 3], [6.0; 3]], &[2.0, 1.0, 3.0]),
        ],
    );
    assert_eq!(
        [map.points[0], map.points[3], map.points[6]],
        [4.0, 2.0, 3.0]
    );
    assert_eq!(map.confidence, [2.0, 2.0, 3.0]);
    assert_eq!(map.count, 1);
}

#[test]
fn every_pixel_of_a_large_map_is_fused() {
    // More pixels than one task takes, and not a multiple of anything.
    let n = 20_011;
    let points =
        |scale: f32| -> Vec<[f32; 3]> { (0..n).map(|i| [scale * i as f32, 1.0, -scale]).collect() };
    let (a, b) = (points(1.0), points(3.0));
    let (ca, cb) = (vec![1.0; n], vec![1.0; n]);
    let map = fuse(
        FilteringMode::WeightedPointmap,
        FilteringScore::Median,
        &[(&a, &ca), (&b, &cb)],
    );
    // Halves of integers below 2²⁴ are exact.
    assert_eq!(map.points, points(2.0).as_flattened());
    assert_eq!(map.confidence, vec![2.0; n]);
}

#[test]
fn an_unusable_estimate_leaves_its_pixel_alone() {
    let good = ([1.0, 2.0, 3.0], 1.5);
    let bad = [
        ([f32::NAN, 0.0, 1.0], 1.0),
        ([0.0, f32::INFINITY, 1.0], 1.0),
        ([0.0, 0.0, 3e38], 1.0),
        ([0.0; 3], 1.0),
        ([4.0; 3], 0.0),
        ([4.0; 3], -1.0),
        ([4.0; 3], f32::NAN),
        ([4.0; 3], f32::INFINITY),
    ];
    for mode in MODES {
        for bad in bad {
            let map = fuse_one(mode, &[good, bad]);
            assert_eq!(map.points, good.0, "{mode:?} {bad:?}");
            assert_eq!(map.confidence, [good.1]);
            assert_eq!(map.updates, 2);
            // A pixel without a usable estimate is the zero point with confidence 0 ...
            let map = fuse_one(mode, &[bad]);
            assert_eq!((map.points, map.confidence), (vec![0.0; 3], vec![0.0]));
            assert_eq!(map.count, 1);
            // ... and takes the first usable one as it is.
            let map = fuse_one(mode, &[bad, good]);
            assert_eq!(
                (&map.points[..], map.confidence[0]),
                (&good.0[..], 1.5),
                "{mode:?}"
            );
        }
    }
}

#[test]
fn confidence_does_not_overflow() {
    let huge = ([1.0, 2.0, 3.0], f32::MAX);
    for mode in MODES {
        let map = fuse_one(mode, &[huge, ([3.0, 2.0, 1.0], f32::MAX), huge, huge]);
        assert!(map.points.iter().all(|x| x.is_finite()), "{mode:?}");
        assert_eq!(map.confidence, [MAX_CONFIDENCE]);
    }
}

#[test]
#[should_panic(expected = "fusion: expected 6 coordinates and 2 confidences, found 3 and 2")]
fn a_short_slice_is_refused() {
    FusedPointmap::new(2).update(
        &[1.0; 3],
        &[1.0; 2],
        FilteringMode::Recent,
        FilteringScore::Median,
        &mut FusionScratch::default(),
    );
}

fn estimates(pixels: usize) -> impl Strategy<Value = (Vec<[f32; 3]>, Vec<f32>)> {
    (
        prop::collection::vec(prop::array::uniform3(-10.0f32..10.0), pixels),
        prop::collection::vec(1.0f32..20.0, pixels),
    )
}

proptest! {
    /// Any number of fusions equals the weighted mean of all at once, in f64. Each fusion rounds
    /// the shares and the sum: at most six roundings of 2⁻²⁴ relative to coordinates up to 10,
    /// 3.6e-6, and five fusions follow each other.
    #[test]
    fn repeated_fusion_is_the_mean_of_all(
        updates in (1usize..40).prop_flat_map(|n| prop::collection::vec(estimates(n), 1..6)),
    ) {
        let slices: Vec<_> = updates.iter().map(|(p, c)| (&p[..], &c[..])).collect();
        let map = fuse(FilteringMode::WeightedPointmap, FilteringScore::Median, &slices);
        prop_assert_eq!(map.count as usize, updates.len());
        for n in 0..map.confidence.len() {
            let sum: f64 = updates.iter().map(|(_, c)| f64::from(c[n])).sum();
            prop_assert!((f64::from(map.confidence[n]) - sum).abs() < 1e-6 * sum);
            for k in 0..3 {
                let mean = updates
                    .iter()
                    .map(|(p, c)| f64::from(c[n]) * f64::from(p[n][k]))
                    .sum::<f64>() / sum;
                prop_assert!((f64::from(map.points[3 * n + k]) - mean).abs() < 5.0 * 3.6e-6);
            }
        }
    }

    /// Ranges average as numbers, and scaling the input scales the result.
    #[test]
    fn spherical_range_is_the_weighted_mean(updates in prop::collection::vec(estimates(1), 1..5)) {
        let slices: Vec<_> = updates.iter().map(|(p, c)| (&p[..], &c[..])).collect();
        let map = fuse(FilteringMode::WeightedSpherical, FilteringScore::Median, &slices);
        let sum: f64 = updates.iter().map(|(_, c)| f64::from(c[0])).sum();
        let range = updates.iter().map(|(p, c)| norm(&p[0]) * f64::from(c[0])).sum::<f64>() / sum;
        // About ten roundings of 6e-8 in each of at most four fusions.
        prop_assert!((norm(&map.points) - range).abs() <= 3e-6 * range.max(1e-3));
    }

    /// Every mode, any bits: what is kept is finite, counted, and divisible.
    #[test]
    fn any_bits_are_survived(
        bits in prop::collection::vec(any::<u32>(), 4 * 9 * 4),
        mode in prop::sample::select(MODES.to_vec()),
        mean in any::<bool>(),
    ) {
        let score = if mean { FilteringScore::Mean } else { FilteringScore::Median };
        let values: Vec<f32> = bits.iter().map(|&b| f32::from_bits(b)).collect();
        let mut map = FusedPointmap::new(9);
        let mut scratch = FusionScratch::default();
        for update in values.chunks_exact(36) {
            map.update(&update[..27], &update[27..], mode, score, &mut scratch);
            prop_assert!(map.count >= 1);
            prop_assert!(map.points.iter().all(|x| x.is_finite()));
            prop_assert!(map.average_confidences().all(|c| (0.0..=MAX_CONFIDENCE).contains(&c)));
            for n in 0..9 {
                prop_assert_eq!(average(&map, n), map.confidence[n] / map.count as f32);
            }
        }
        prop_assert_eq!(map.updates, 4);
    }
}
