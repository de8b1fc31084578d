//! The descriptor refinement's order of search, ties and sums (docs/reference-defects.md,
//! Parity tests, 6).

use super::reference;
use mast3r_slam::compute::matching::{Matcher, Refinement, View};
use mast3r_slam::config::MatchingConfig;
use testkit::matching_scene::Scene;

const SIZE: usize = 15;
const BOTH: [Refinement; 2] = [Refinement::Single, Refinement::SingleAll];

/// Both views see the same points, so that the search ends where it starts. The descriptor of pixel
/// (7, 7) of view 2 is `query`; those of view 1 are zero but for `candidates`. Returns where (7, 7)
/// goes; the plain implementation must agree.
fn refine_by(
    refinement: Refinement,
    (radius, dilation_max): (usize, usize),
    query: &[f32],
    candidates: &[((usize, usize), &[f32])],
) -> (usize, usize) {
    let dim = query.len();
    let scene = Scene::new(SIZE, SIZE, 1, [0.0; 3], 0.0);
    let mut target_descriptors = vec![0.0; SIZE * SIZE * dim];
    for ((u, v), d) in candidates {
        let at = (v * SIZE + u) * dim;
        target_descriptors[at..at + dim].copy_from_slice(d);
    }
    let query_descriptors = query.repeat(SIZE * SIZE);
    let target = View {
        points: &scene.points1,
        descriptors: &target_descriptors,
    };
    let second = View {
        points: &scene.points1,
        descriptors: &query_descriptors,
    };
    let params = MatchingConfig {
        radius,
        dilation_max,
        ..MatchingConfig::default()
    };
    let (mut index, mut valid) = (vec![0; SIZE * SIZE], vec![0; SIZE * SIZE]);
    Matcher::new(SIZE, SIZE, dim)
        .with_refinement(refinement)
        .run(target, second, None, &params, &mut index, &mut valid);
    let (mut plain, mut plain_valid) = (vec![0; SIZE * SIZE], vec![0; SIZE * SIZE]);
    reference::run(
        reference::Shape {
            width: SIZE,
            height: SIZE,
            descriptor_dim: dim,
        },
        refinement,
        target,
        second,
        None,
        &params,
        &mut plain,
        &mut plain_valid,
    );
    assert_eq!((&index, &valid), (&plain, &plain_valid));
    let n = 7 * SIZE + 7;
    assert_eq!(valid[n], 1);
    (index[n] as usize % SIZE, index[n] as usize / SIZE)
}

/// One channel: the score of a candidate is its number.
fn refine_scores(window: (usize, usize), scores: &[((usize, usize), f32)]) -> (usize, usize) {
    let candidates: Vec<_> = scores
        .iter()
        .map(|(p, s)| (*p, std::slice::from_ref(s)))
        .collect();
    let results = BOTH.map(|kind| refine_by(kind, window, &[1.0], &candidates));
    assert_eq!(results[0], results[1]);
    results[0]
}

#[test]
fn the_best_score_wins() {
    assert_eq!(
        refine_scores((1, 1), &[((6, 6), 0.5), ((8, 7), 0.75)]),
        (8, 7)
    );
    // Outside the window.
    assert_eq!(
        refine_scores((1, 1), &[((6, 6), 0.5), ((9, 7), 0.75)]),
        (6, 6)
    );
    assert_eq!(
        refine_scores((2, 1), &[((6, 6), 0.5), ((9, 7), 0.75)]),
        (9, 7)
    );
}

#[test]
fn only_positive_scores_move_the_match() {
    assert_eq!(refine_scores((1, 1), &[]), (7, 7));
    assert_eq!(
        refine_scores((1, 1), &[((7, 7), -0.5), ((6, 7), -0.25)]),
        (7, 7)
    );
    assert_eq!(
        refine_scores((1, 1), &[((6, 7), -0.0), ((8, 7), f32::NAN)]),
        (7, 7)
    );
}

#[test]
fn ties_keep_the_first_with_x_outer() {
    // Column by column: (6, 8) comes before (7, 6), which a row-by-row scan would meet first.
    assert_eq!(
        refine_scores((1, 1), &[((7, 6), 0.5), ((6, 8), 0.5)]),
        (6, 8)
    );
    // Within a column from the top.
    assert_eq!(
        refine_scores((1, 1), &[((8, 8), 0.5), ((8, 6), 0.5)]),
        (8, 6)
    );
    // The centre has no privilege on the widest level.
    assert_eq!(
        refine_scores((1, 1), &[((7, 7), 0.5), ((7, 6), 0.5)]),
        (7, 6)
    );
    assert_eq!(
        refine_scores((1, 1), &[((7, 7), 0.5), ((7, 8), 0.5)]),
        (7, 7)
    );
    // In windows taller than eight candidates too.
    assert_eq!(
        refine_scores((5, 1), &[((3, 12), 0.5), ((4, 2), 0.5)]),
        (3, 12)
    );
}

#[test]
fn each_level_starts_from_the_best_so_far() {
    // Level 2 finds (5, 7); level 1 finds (4, 6), which no window around (7, 7) holds.
    let scores = [((5, 7), 0.5), ((4, 6), 0.75)];
    assert_eq!(refine_scores((1, 2), &scores), (4, 6));
    assert_eq!(refine_scores((1, 1), &scores), (7, 7));
    // The score persists: neither less nor the same moves the match again.
    assert_eq!(
        refine_scores((1, 2), &[((5, 7), 0.5), ((4, 6), 0.4)]),
        (5, 7)
    );
    assert_eq!(
        refine_scores((1, 2), &[((5, 7), 0.5), ((4, 6), 0.5)]),
        (5, 7)
    );
    // Levels are tried from the widest: (4, 7) of level 3 leads away from (8, 7) of level 1.
    assert_eq!(
        refine_scores((1, 3), &[((4, 7), 0.5), ((8, 7), 0.75)]),
        (4, 7)
    );
}

#[test]
fn neighbours_compete_by_exact_scores() {
    // 63.5, 63.6 and 64.4 127ths are all 64.
    let [low, middle, high] = [63.5, 63.6, 64.4].map(|x| x / 127.0);
    assert_eq!(
        refine_scores((1, 1), &[((6, 6), low), ((6, 7), high), ((7, 7), middle)]),
        (6, 7)
    );
    // Two pixels apart, the first stays.
    assert_eq!(
        refine_scores((1, 1), &[((6, 6), low), ((6, 8), high)]),
        (6, 6)
    );
    // A neighbour beyond the window is reached, one with a lower score is not taken.
    assert_eq!(
        refine_scores((1, 1), &[((6, 6), middle), ((5, 6), high), ((6, 5), low)]),
        (5, 6)
    );
}

#[test]
fn values_that_no_unit_vector_has_attract_no_match() {
    for bad in [1.01, 1e30, f32::INFINITY, f32::NAN] {
        assert_eq!(
            refine_scores((1, 1), &[((6, 6), bad), ((6, 8), 0.01)]),
            (6, 8)
        );
    }
    // An infinite exact score is invalid.
    assert_eq!(
        refine_scores((1, 1), &[((6, 6), f32::INFINITY), ((6, 7), 0.5)]),
        (6, 7)
    );
}

#[test]
fn windows_are_cut_at_the_image_border() {
    // At dilation 4 and radius 3 the window is 24 pixels wide, the image 15.
    let scores = [((3, 3), 0.5), ((0, 0), 0.75)];
    assert_eq!(refine_scores((3, 4), &scores), (0, 0));
    assert_eq!(refine_scores((3, 7), &[((14, 14), 0.5)]), (14, 14));
    // Steps wider than the image leave only the centre.
    assert_eq!(refine_scores((3, 100), &[((14, 0), 0.5)]), (14, 0));
}

#[test]
fn a_target_without_a_usable_point_is_passed_over() {
    let mut scene = Scene::new(SIZE, SIZE, 1, [0.0; 3], 0.0);
    // Two steps away from (7, 7), so that the search there does not see it.
    let hole = 7 * SIZE + 9;
    scene.points1[3 * hole] = f32::NAN;
    scene.descriptors1.fill(0.0);
    scene.descriptors1[hole] = 1.0;
    scene.descriptors1[hole + 1] = 0.5;
    let ones = vec![1.0; SIZE * SIZE];
    let query = View {
        points: &scene.points2,
        descriptors: &ones,
    };
    let params = MatchingConfig {
        radius: 3,
        dilation_max: 1,
        ..MatchingConfig::default()
    };
    for refinement in BOTH {
        let (mut index, mut valid) = (vec![0; SIZE * SIZE], vec![0; SIZE * SIZE]);
        let mut matcher = Matcher::new(SIZE, SIZE, 1).with_refinement(refinement);
        matcher.run(scene.view1(), query, None, &params, &mut index, &mut valid);
        assert_eq!(
            (index[7 * SIZE + 7], valid[7 * SIZE + 7]),
            (hole as u32 + 1, 1)
        );
    }
}

#[test]
fn invalid_pixels_are_refined_where_asked() {
    let mut scene = Scene::new(SIZE, SIZE, 1, [0.0; 3], 0.0);
    let n = 7 * SIZE + 7;
    // Five metres behind what view 1 sees: converged, but occluded.
    for x in &mut scene.points2[3 * n..3 * n + 3] {
        *x *= 3.5;
    }
    scene.descriptors1.fill(0.0);
    scene.descriptors1[n + 1] = 1.0;
    let ones = vec![1.0; SIZE * SIZE];
    let query = View {
        points: &scene.points2,
        descriptors: &ones,
    };
    for (refinement, expected) in [(Refinement::Single, n), (Refinement::SingleAll, n + 1)] {
        let (mut index, mut valid) = (vec![0; SIZE * SIZE], vec![0; SIZE * SIZE]);
        let mut matcher = Matcher::new(SIZE, SIZE, 1).with_refinement(refinement);
        let params = MatchingConfig::default();
        matcher.run(scene.view1(), query, None, &params, &mut index, &mut valid);
        assert_eq!((index[n] as usize, valid[n]), (expected, 0));
    }
}

#[test]
fn single_sums_in_eight_lanes() {
    // 2²⁴ + 1 is 2²⁴ in f32. Channels 0 and 8 share a lane: the ones add up to 2 elsewhere, in lane
    // 1, before they meet 2²⁴; both in lane 0 they are lost one by one.
    let big = 2f32.powi(24);
    let mut lost = [0.0; 17];
    (lost[0], lost[8], lost[16]) = (big, 1.0, 1.0);
    let mut kept = [0.0; 17];
    (kept[0], kept[1], kept[9]) = (big, 1.0, 1.0);
    // Rounded, 2²⁴ is 0 and the ones are 127, so that only the exact scores differ.
    let go = |candidate: &[f32]| {
        refine_by(
            Refinement::Single,
            (1, 1),
            &[1.0; 17],
            &[((6, 6), &lost), ((6, 7), candidate)],
        )
    };
    assert_eq!(go(&lost), (6, 6));
    assert_eq!(go(&kept), (6, 7));
}
