//! The network's outputs against PyTorch's, for the same weights and images.

use std::path::{Path, PathBuf};

use mast3r_slam::inference::cpu::CpuBackend;
use mast3r_slam::inference::{Backend, PairOutput, ViewOutput, self_test};
use testkit::networks::{Golden, relative_error, tiny_weights};
use testkit::repository;

/// Guaranteed accuracy of points and confidences.
const RELATIVE: f64 = 1e-3;
/// And on descriptors.
const COSINE: f64 = 0.9999;
/// Compares one view with the golden file, which may hold only every n-th row and column.
fn check_view(golden: &Golden, pair: usize, view: usize, out: &ViewOutput, size: (usize, usize)) {
    let name = |what: &str| format!("pair{pair}.{what}{view}");
    for (what, found, tuple) in [
        ("pts3d", &out.points, 3),
        ("conf", &out.confidence, 1),
        ("desc_conf", &out.descriptor_confidence, 1),
    ] {
        let (found, expected) = (
            golden.thin(&name(what), found, tuple, size),
            golden.values(&name(what)),
        );
        // No floor: a point is compared with its own distance.
        let error = relative_error(&found, &expected, tuple, 0.0);
        println!("{} largest relative error {error:.1e}", name(what));
        assert!(error <= RELATIVE, "{}: {error}", name(what));
    }
    let dim = out.descriptors.len() / out.confidence.len();
    let found = golden.thin(&name("desc"), &out.descriptors, dim, size);
    let expected = golden.values(&name("desc"));
    let mut lowest = 1.0f64;
    for (f, e) in found.chunks_exact(dim).zip(expected.chunks_exact(dim)) {
        let cosine: f64 = f.iter().zip(e).map(|(a, b)| f64::from(a * b)).sum();
        assert!(cosine >= COSINE, "{}: {cosine}", name("desc"));
        lowest = lowest.min(cosine);
    }
    println!("{} lowest cosine {lowest:.7}", name("desc"));
}

fn check_pair(weights: &Path, golden: &Golden, pair: usize) {
    let images = [1, 2].map(|view| golden.image(&format!("pair{pair}.image{view}")));
    let (width, height) = (images[0].width, images[0].height);
    let mut backend = CpuBackend::load(weights, width, height, 2).unwrap();
    let shape = backend.shape().clone();
    let mut features = [0, 1].map(|_| vec![0.0; shape.tokens * shape.feature_dim]);
    for (view, (image, features)) in images.iter().zip(&mut features).enumerate() {
        backend.encode(image, features).unwrap();
        // For the second pair, the file contains only the results.
        if pair > 0 {
            continue;
        }
        let expected = golden.values(&format!("pair{pair}.enc{}", view + 1));
        let error = relative_error(features, &expected, shape.feature_dim, 0.0);
        assert!(error <= RELATIVE, "encoder, view {}: {error}", view + 1);
    }
    let mut out = PairOutput::zeros(&shape);
    backend
        .decode(&features[0], &features[1], &mut out)
        .unwrap();
    check_view(golden, pair, 1, &out.view1, (width, height));
    check_view(golden, pair, 2, &out.view2, (width, height));

    // View 1 alone is the same computation with a part left out.
    let mut mono = PairOutput::zeros(&shape);
    backend
        .decode_view1(&features[0], &features[1], &mut mono)
        .unwrap();
    assert!(mono.view1 == out.view1);
    assert!(mono.view2 == PairOutput::zeros(&shape).view2);

    // The same bits again.
    let mut again = PairOutput::zeros(&shape);
    backend
        .decode(&features[0], &features[1], &mut again)
        .unwrap();
    assert!(again == out);
    self_test(&mut backend).unwrap();
}

#[test]
fn the_tiny_random_pth_equals_pytorch() {
    let golden = repository("tests/data/network/tiny-random.golden.safetensors");
    let golden = Golden::open(&golden).expect("in the repository");
    check_pair(&tiny_weights(), &golden, 0);
}

fn bundled() -> PathBuf {
    repository("engines/mast3r-mini/model.safetensors")
}

#[test]
fn the_bundled_model_equals_pytorch_on_two_pairs() {
    let golden = repository("tests/data/network/mini.golden.safetensors");
    let golden = Golden::open(&golden).expect("in the repository");
    check_pair(&bundled(), &golden, 0);
    check_pair(&bundled(), &golden, 1);
}
