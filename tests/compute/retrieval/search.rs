//! Place recognition: the inverted file equals a brute-force evaluation of the formulas, ids are
//! the caller's, and unusable input is a named error.

use mast3r_slam::compute::retrieval::{
    CodebookInfo, Database, Description, Hit, MAX_FEATURES, RetrievalError, RetrievalModel, Scratch,
};
use proptest::prelude::*;
use testkit::random::integers;

/// Centres by a mean of ones and swaps the first and last component.
fn model(dim: usize, centroids: &[f32]) -> RetrievalModel {
    let mut projection = vec![0.0; dim * dim];
    for i in 0..dim {
        let j = match i {
            0 => dim - 1,
            i if i == dim - 1 => 0,
            i => i,
        };
        projection[i * dim + j] = 1.0;
    }
    RetrievalModel::new(
        vec![1.0; dim],
        projection,
        centroids,
        CodebookInfo::default(),
    )
    .unwrap()
}

fn describe(model: &RetrievalModel, features: &[f32]) -> Description {
    let mut description = Description::default();
    model
        .describe(features, &mut Scratch::default(), &mut description)
        .unwrap();
    description
}

/// The words of an image and the signs of their residuals in plain f64 (docs/algorithm.md, Place
/// recognition, steps 1 to 4).
fn brute_words(
    model: &RetrievalModel,
    features: &[f32],
    assigned: usize,
) -> Vec<(usize, Vec<bool>)> {
    let dim = model.dim();
    let mut rows: Vec<Vec<f64>> = features
        .chunks(dim)
        .map(|f| {
            (0..dim)
                .map(|j| {
                    (0..dim)
                        .map(|i| {
                            (f64::from(f[i]) - model.mean()[i]) * model.projection()[i * dim + j]
                        })
                        .sum()
                })
                .collect()
        })
        .collect();
    let norm = |row: &Vec<f64>| row.iter().map(|v| v * v).sum::<f64>();
    rows.sort_by(|a, b| norm(b).total_cmp(&norm(a))); // stable: the lower index first
    rows.truncate(MAX_FEATURES);
    let centroids = model.codebook().to_rows();
    let mut residuals: Vec<Option<Vec<f64>>> = vec![None; model.words()];
    for row in &rows {
        let mut distances: Vec<(f64, usize)> = centroids
            .chunks(dim)
            .enumerate()
            .map(|(word, c)| {
                let d = row.iter().zip(c).map(|(y, &c)| (y - f64::from(c)).powi(2));
                (d.sum(), word)
            })
            .collect();
        distances.sort_by(|a, b| a.0.total_cmp(&b.0));
        for &(_, word) in distances.iter().take(assigned) {
            let sum = residuals[word].get_or_insert_with(|| vec![0.0; dim]);
            for (c, s) in sum.iter_mut().enumerate() {
                *s += row[c] - f64::from(centroids[word * dim + c]);
            }
        }
    }
    let signs = |r: Vec<f64>| r.iter().map(|&v| v > 0.0).collect();
    residuals
        .into_iter()
        .enumerate()
        .filter_map(|(word, r)| Some((word, signs(r?))))
        .collect()
}

fn brute_score(query: &[(usize, Vec<bool>)], image: &[(usize, Vec<bool>)]) -> f64 {
    let mut sum = 0.0;
    for (word, bits) in query {
        for (other, stored) in image {
            if word == other {
                let differing = bits.iter().zip(stored).filter(|(a, b)| a != b).count();
                let sigma = 1.0 - 2.0 * differing as f64 / bits.len() as f64;
                if sigma >= 0.0 {
                    sum += sigma.powi(3);
                }
            }
        }
    }
    sum / (query.len() as f64 * image.len() as f64).sqrt()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn the_inverted_file_equals_brute_force(
        dim in 2usize..80, words in 1usize..40, images in 1usize..8, rows in 1usize..12,
        k in 0usize..10, seed in any::<u32>(), removed in any::<u8>(),
    ) {
        let seed = u64::from(seed) << 8;
        let model = model(dim, &integers(words * dim, seed));
        let features: Vec<Vec<f32>> = (0..images)
            .map(|i| integers((rows + i) * dim, seed + 1 + i as u64))
            .collect();
        let mut database = Database::new(&model);
        // Ids with gaps and out of order.
        let id = |i: usize| 1000 - 7 * i as u32;
        for (i, features) in features.iter().enumerate() {
            database.insert(id(i), &describe(&model, features)).unwrap();
        }
        prop_assert_eq!(database.len(), images);
        // One that was inserted and removed must leave no trace.
        database.insert(5, &describe(&model, &integers(3 * dim, seed + 99))).unwrap();
        prop_assert!(database.remove(5));
        prop_assert!(!database.remove(5));
        let gone = usize::from(removed) % (images + 1);
        if gone < images {
            prop_assert!(database.remove(id(gone)));
        }

        let query = integers(rows * dim, seed + 50);
        let mut want: Vec<(u32, f64)> = (0..images)
            .filter(|&i| i != gone)
            .map(|i| {
                let image = brute_words(&model, &features[i], 1);
                (id(i), brute_score(&brute_words(&model, &query, 5), &image))
            })
            .filter(|&(_, score)| score > 1e-4)
            .collect();
        want.sort_by(|a, b| (b.1 as f32).total_cmp(&(a.1 as f32)).then(a.0.cmp(&b.0)));
        let mut hits = vec![Hit { id: 1, score: 1.0 }];
        database.query(&describe(&model, &query), k, 1e-4, &mut hits).unwrap();
        prop_assert_eq!(hits.len(), want.len().min(k));
        for (i, (hit, (_, score))) in hits.iter().zip(&want).enumerate() {
            // The f64 sum of at most 60 terms below 1, rounded to f32 once.
            prop_assert!((f64::from(hit.score) - score).abs() <= 6.0e-8 * score + 1e-13);
            // Scores that differ by rounding only may change places; ids of others may not.
            let own = want.iter().find(|(id, _)| *id == hit.id).unwrap();
            prop_assert!((own.1 - want[i].1).abs() < 1e-7);
        }
    }
}

#[test]
fn the_strongest_300_features_are_used() {
    let dim = 4;
    let model = model(dim, &integers(20 * dim, 1));
    // 310 rows, of which the last ten have the mean's value and so the least norm.
    let mut features = integers(300 * dim, 2);
    for row in features.chunks_mut(dim) {
        row[1] = 9.0;
    }
    let strongest = describe(&model, &features);
    features.extend(vec![1.0; 10 * dim]);
    assert_eq!(describe(&model, &features), strongest);
    // In front of them instead: still the same rows.
    features.rotate_right(10 * dim);
    assert_eq!(describe(&model, &features), strongest);
}

#[test]
fn an_image_finds_itself_first_with_a_score_below_one() {
    let dim = 64;
    let model = model(dim, &integers(200 * dim, 3));
    let images: Vec<Description> = (0..20)
        .map(|i| describe(&model, &integers(50 * dim, 100 + i)))
        .collect();
    let mut database = Database::new(&model);
    for (i, image) in images.iter().enumerate() {
        database.insert(i as u32, image).unwrap();
    }
    let mut hits = Vec::new();
    for (i, image) in images.iter().enumerate() {
        let (query, stored) = (&image.query, &image.stored);
        assert!(query.words.len() > stored.words.len());
        database.query(image, 3, 0.0, &mut hits).unwrap();
        assert_eq!(hits[0].id, i as u32);
        let most = (stored.words.len() as f32 / query.words.len() as f32).sqrt();
        assert!(hits[0].score <= most && most < 1.0, "{hits:?} {most}");
        assert!(hits[0].score > hits[1].score);
    }
}

#[test]
fn equal_scores_come_in_the_order_of_ids() {
    let dim = 16;
    let model = model(dim, &integers(10 * dim, 4));
    let image = describe(&model, &integers(30 * dim, 5));
    let mut database = Database::new(&model);
    for id in [9, 4, 7, u32::MAX, 0] {
        database.insert(id, &image).unwrap();
    }
    let mut hits = Vec::new();
    database.query(&image, 4, 5e-3, &mut hits).unwrap();
    let ids: Vec<u32> = hits.iter().map(|hit| hit.id).collect();
    assert_eq!(ids, [0, 4, 7, 9]);
    // The threshold is strict.
    let score = hits[0].score;
    database.query(&image, 4, score, &mut hits).unwrap();
    assert!(hits.is_empty());
    database
        .query(&image, 4, score.next_down(), &mut hits)
        .unwrap();
    assert_eq!(hits.len(), 4);
    database.query(&image, 4, f32::NAN, &mut hits).unwrap();
    assert!(hits.is_empty());
}

#[test]
fn degenerate_databases_and_codebooks() {
    let dim = 8;
    let one = model(dim, &integers(dim, 6));
    let image = describe(&one, &integers(3 * dim, 7));
    assert_eq!(image.query.words, [0]);
    assert_eq!(&image.query, &image.stored);
    let mut database = Database::new(&one);
    assert!(database.is_empty());
    let mut hits = vec![Hit { id: 0, score: 0.0 }];
    database.query(&image, 3, 0.0, &mut hits).unwrap();
    assert!(hits.is_empty());
    database.insert(3, &image).unwrap();
    database.query(&image, 3, 0.0, &mut hits).unwrap();
    // One word, the same bits: the only case of a self-score of one.
    assert_eq!(hits, [Hit { id: 3, score: 1.0 }]);
    database.query(&image, 0, 0.0, &mut hits).unwrap();
    assert!(hits.is_empty());
}

#[test]
fn unusable_features_are_named_errors() {
    let dim = 4;
    let model = model(dim, &integers(5 * dim, 8));
    let (mut scratch, mut description) = (Scratch::default(), Description::default());
    let mut error = |features: &[f32]| {
        model
            .describe(features, &mut scratch, &mut description)
            .unwrap_err()
    };
    for count in [0, 3, 9] {
        let e = error(&vec![1.5; count]);
        assert!(
            matches!(e, RetrievalError::FeatureLength { dim: 4, found } if found == count),
            "{e}"
        );
    }
    assert!(matches!(error(&[0.0; 12]), RetrievalError::AllZero));
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut features = vec![1.5; 12];
        features[9] = bad;
        let e = error(&features);
        assert!(matches!(e, RetrievalError::NotFinite { row: 2 }), "{e}");
    }
    // Finite, but not after whitening.
    let model =
        RetrievalModel::new(vec![0.0], vec![1e30], &[0.0], CodebookInfo::default()).unwrap();
    let e = model.describe(&[1e30], &mut scratch, &mut description);
    assert!(matches!(e, Err(RetrievalError::NotFinite { row: 0 })));
    // The buffers serve the next image all the same.
    assert!(
        model
            .describe(&[1.0], &mut scratch, &mut description)
            .is_ok()
    );
}

#[test]
fn duplicate_ids_and_foreign_descriptions_change_nothing() {
    let model4 = model(4, &integers(20, 9));
    let model8 = model(8, &integers(40, 9));
    let larger = model(4, &integers(4000, 9));
    let image = describe(&model4, &integers(40, 10));
    let mut database = Database::new(&model4);
    database.insert(1, &image).unwrap();
    let e = database.insert(1, &image).unwrap_err();
    assert!(matches!(e, RetrievalError::Duplicate { id: 1 }), "{e}");
    let mut hits = Vec::new();
    for foreign in [
        describe(&model8, &integers(80, 10)),
        describe(&larger, &integers(400, 10)),
        Description::default(),
    ] {
        for e in [
            database.insert(2, &foreign).unwrap_err(),
            database.query(&foreign, 3, 0.0, &mut hits).unwrap_err(),
        ] {
            assert!(matches!(e, RetrievalError::OtherModel { .. }), "{e}");
        }
    }
    assert_eq!(database.len(), 1);
    assert!(database.contains(1) && !database.contains(2));
}

#[test]
fn models_that_make_no_sense() {
    let new = |mean: &[f64], projection: &[f64], centroids: &[f32]| {
        RetrievalModel::new(
            mean.to_vec(),
            projection.to_vec(),
            centroids,
            CodebookInfo::default(),
        )
        .unwrap_err()
        .to_string()
    };
    for (message, words) in [
        (new(&[], &[], &[1.0]), "a mean of 0 values"),
        (
            new(&[0.0; 2], &[1.0; 3], &[1.0; 2]),
            "a projection of 2 × 2",
        ),
        (new(&[0.0], &[f64::NAN], &[1.0]), "NaN or infinity"),
        (new(&[0.0], &[1.0], &[]), "0 values"),
        (new(&[0.0], &[1.0], &[f32::NAN]), "some of them NaN"),
        (new(&[0.0; 2], &[1.0; 4], &[1.0; 3]), "3 values"),
    ] {
        assert!(message.contains(words), "{message:?} lacks {words:?}");
    }
}
