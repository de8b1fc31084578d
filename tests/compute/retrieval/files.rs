//! Retrieval assets: the official layouts, our own file, and learning it repeatably.

use std::path::{Path, PathBuf};

use mast3r_slam::compute::retrieval::{
    BuildOptions, CodebookInfo, Database, Description, RetrievalError, RetrievalModel, Scratch,
};
use testkit::random::Random;

const C: usize = 16;
const K: usize = 24;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data/retrieval")
        .join(name)
}

fn whitening() -> PathBuf {
    data("tiny_retrieval_trainingfree.pth")
}

/// The closed formulas of `tests/data/make_retrieval_and_pth.py`.
fn expected_centroids() -> Vec<f32> {
    (0..K * C)
        .map(|i| ((i / C * 7 + i % C * 13) % 17) as f32)
        .map(|v| (v - 8.0) / 4.0)
        .collect()
}

/// Features in `images` groups: each image has its own offset pattern plus noise.
fn features(images: usize, rows: usize, dim: usize, seed: u64) -> Vec<Vec<f32>> {
    let mut random = Random(seed);
    (0..images)
        .map(|_| {
            let base: Vec<f32> = random.noise(dim).iter().map(|v| 4.0 * v).collect();
            (0..rows * dim)
                .map(|i| base[i % dim] + random.centred())
                .collect()
        })
        .collect()
}

#[test]
fn official_files_of_every_numpy_and_protocol() {
    for codebook in [
        "tiny_codebook_numpy1_protocol2.pkl",
        "tiny_codebook_numpy1_protocol4.pkl",
        "tiny_codebook_numpy1_protocol5.pkl",
        "tiny_codebook_numpy2_protocol4.pkl",
        "tiny_codebook_numpy2_protocol5.pkl",
    ] {
        let model = RetrievalModel::load_official(&whitening(), &data(codebook))
            .unwrap_or_else(|e| panic!("{codebook}: {e}"));
        assert_eq!((model.dim(), model.words()), (C, K));
        assert_eq!(model.codebook().to_rows(), expected_centroids());
        for (i, &m) in model.mean().iter().enumerate() {
            assert_eq!(m, i as f64 / 7.0);
        }
        for (i, &p) in model.projection().iter().enumerate() {
            let n = (i / C * 5 + i % C * 3) % 11;
            assert_eq!(p, (n as f64 - 5.0) / 9.0);
        }
    }
}

#[test]
fn invalid_official_files() {
    let codebook = data("tiny_codebook_numpy1_protocol4.pkl");
    let folder = tempfile::tempdir().unwrap();
    let short = folder.path().join("short.pkl");
    let bytes = std::fs::read(&codebook).unwrap();
    std::fs::write(&short, &bytes[..bytes.len() / 2]).unwrap();
    let cut = folder.path().join("cut.pth");
    let bytes = std::fs::read(whitening()).unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    let network = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/pth/bare_stored.pth");
    for (whitening, codebook, words) in [
        (
            whitening(),
            data("codebook_float64.pkl"),
            "element type <f8",
        ),
        (
            whitening(),
            data("codebook_columns.pkl"),
            "column-major order",
        ),
        (whitening(), data("codebook_nan.pkl"), "NaN"),
        (
            whitening(),
            short.clone(),
            "short.pkl: expected an asmk codebook",
        ),
        (whitening(), whitening(), "expected an asmk codebook"),
        (whitening(), "/nowhere/c.pkl".into(), "/nowhere/c.pkl"),
        (cut, codebook.clone(), "truncated or damaged"),
        (network, codebook.clone(), "prewhiten.m"),
        (codebook.clone(), codebook.clone(), "torch zip archive"),
    ] {
        let error = RetrievalModel::load_official(&whitening, &codebook).unwrap_err();
        let message = error.to_string();
        assert!(message.contains(words), "{message:?} lacks {words:?}");
    }
}

#[test]
fn our_file_keeps_every_bit_and_is_small() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("codebook.safetensors");
    let official =
        RetrievalModel::load_official(&whitening(), &data("tiny_codebook_numpy2_protocol5.pkl"))
            .unwrap();
    official.save(&path).unwrap();
    assert_eq!(RetrievalModel::load(&path).unwrap(), official);

    let options = BuildOptions {
        clusters: 40,
        weights_hash: "ded045f6".into(),
        ..BuildOptions::default()
    };
    let built = RetrievalModel::build(&features(6, 50, 24, 1), 24, &options).unwrap();
    built.save(&path).unwrap();
    let loaded = RetrievalModel::load(&path).unwrap();
    assert_eq!(loaded, built);
    assert_eq!(
        loaded.info(),
        &CodebookInfo {
            weights_hash: "ded045f6".into(),
            images: 6
        }
    );
    // Centroids in half precision, mean and projection in single, and a header.
    let size = std::fs::metadata(&path).unwrap().len() as usize;
    assert!(size <= 40 * 24 * 2 + 24 * 25 * 4 + 1000, "{size}");
    // Nothing else is left in the folder.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_codebook_that_cannot_be_written_leaves_the_old_one() {
    let model =
        RetrievalModel::load_official(&whitening(), &data("tiny_codebook_numpy1_protocol4.pkl"))
            .unwrap();
    let error = model
        .save(Path::new("/nowhere/codebook.safetensors"))
        .unwrap_err();
    assert!(matches!(error, RetrievalError::Write { .. }));
    assert!(error.to_string().contains("/nowhere/codebook.safetensors"));
    // A folder stands where the file should go.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("codebook.safetensors");
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("inside"), "kept").unwrap();
    assert!(model.save(&path).is_err());
    assert!(path.join("inside").is_file());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn files_other_than_codebooks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("codebook.safetensors");
    let model =
        RetrievalModel::load_official(&whitening(), &data("tiny_codebook_numpy1_protocol4.pkl"))
            .unwrap();
    model.save(&path).unwrap();
    let whole = std::fs::read(&path).unwrap();
    let message = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        RetrievalModel::load(&path).unwrap_err().to_string()
    };
    for length in (0..whole.len()).step_by(37).chain([whole.len() - 1]) {
        let message = message(&whole[..length]);
        assert!(
            message.contains("expected a complete codebook"),
            "{length}: {message}"
        );
    }
    // Each replacement keeps the length, so that the container stays whole.
    for (from, to, words) in [
        (
            r#"\"version\":1"#,
            r#"\"version\":9"#,
            "version 9: build it again",
        ),
        (
            r#"\"dim\":16"#,
            r#"\"dim\":17"#,
            "centroids of shape [24, 17]",
        ),
        (
            r#"\"words\":24"#,
            r#"\"words\":23"#,
            "centroids of shape [23, 16]",
        ),
        (r#"\"images\":0"#, r#"\"images\":x"#, "an unreadable header"),
        (
            "mast3r_slam_codebook",
            "mast3r_slam_cookbook",
            "a safetensors file without its header",
        ),
    ] {
        let at = whole.windows(from.len()).position(|w| w == from.as_bytes());
        let at = at.unwrap_or_else(|| panic!("no {from}"));
        let mut changed = whole.clone();
        changed[at..at + to.len()].copy_from_slice(to.as_bytes());
        let message = message(&changed);
        assert!(message.contains(words), "{message:?} lacks {words:?}");
    }
    let error = RetrievalModel::load(Path::new("/nowhere")).unwrap_err();
    assert!(error.to_string().contains("/nowhere"));
}

#[test]
fn learning_is_repeatable_to_the_bit_on_any_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let images = features(8, 60, 20, 3);
    let options = BuildOptions {
        clusters: 50,
        iterations: 7,
        ..BuildOptions::default()
    };
    let file = |threads: usize, options: &BuildOptions| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let model = pool
            .unwrap()
            .install(|| RetrievalModel::build(&images, 20, options))
            .unwrap();
        let path = folder.path().join("codebook.safetensors");
        model.save(&path).unwrap();
        std::fs::read(&path).unwrap()
    };
    let first = file(1, &options);
    for threads in [1, 2, 5] {
        assert!(file(threads, &options) == first, "{threads} threads");
    }
    let other = BuildOptions { seed: 1, ..options };
    assert!(file(1, &other) != first);
}

#[test]
fn a_learnt_codebook_recognises_places() {
    // Ten places; another view of a place is the same features with noise of a tenth their spread.
    // The words are learnt from other places: on their own training images residuals sum to zero.
    let (dim, rows) = (32, 120);
    let places = features(10, rows, dim, 5);
    let noise = features(10, rows, dim, 77);
    for whiten in [true, false] {
        let options = BuildOptions {
            clusters: 128,
            whiten,
            ..BuildOptions::default()
        };
        let model = RetrievalModel::build(&features(40, rows, dim, 4), dim, &options).unwrap();
        let mut database = Database::new(&model);
        let (mut scratch, mut description) = (Scratch::default(), Description::default());
        for (place, id) in places.iter().zip(100..) {
            model
                .describe(place, &mut scratch, &mut description)
                .unwrap();
            database.insert(id, &description).unwrap();
        }
        let mut hits = Vec::new();
        for ((place, noise), id) in places.iter().zip(&noise).zip(100..) {
            let view: Vec<f32> = place
                .iter()
                .zip(noise)
                .map(|(p, n)| p + 0.1 * (n % 0.5))
                .collect();
            model
                .describe(&view, &mut scratch, &mut description)
                .unwrap();
            database.query(&description, 3, 5e-3, &mut hits).unwrap();
            assert_eq!(hits[0].id, id, "whiten {whiten}: {hits:?}");
        }
    }
}

#[test]
fn learning_from_too_little_or_unusable_input() {
    let options = BuildOptions {
        clusters: 10,
        ..BuildOptions::default()
    };
    let none = BuildOptions {
        clusters: 0,
        ..options.clone()
    };
    let images = features(3, 3, 4, 9);
    let e = RetrievalModel::build(&images, 4, &options).unwrap_err();
    assert!(
        e.to_string()
            .contains("9 features from 3 images are too few for 10 visual words"),
        "{e}"
    );
    assert!(RetrievalModel::build(&[], 4, &options).is_err());
    assert!(RetrievalModel::build(&images, 4, &none).is_err());
    assert!(RetrievalModel::build(&images, 0, &options).is_err());
    assert!(RetrievalModel::build(&images, 5, &options).is_err());
    let mut broken = images.clone();
    broken[1][2] = f32::NAN;
    let e = RetrievalModel::build(&broken, 4, &options).unwrap_err();
    assert!(matches!(e, RetrievalError::NotFinite { row: 0 }), "{e}");
    // Features that are all the same make one word, not a failure.
    let same = vec![vec![2.0; 4 * 40]; 3];
    let model = RetrievalModel::build(&same, 4, &options).unwrap();
    assert_eq!(model.words(), 1);
}
