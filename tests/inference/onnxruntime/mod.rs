//! The network on ONNX Runtime's CPU provider, where a library is found; `MAST3R_REQUIRE_ORT=1` makes its
//! absence a failure.

use mast3r_slam::inference::cpu::CpuBackend;
use mast3r_slam::inference::onnxruntime::{OnnxRuntimeBackend, OnnxRuntimeOptions, Provider};
use mast3r_slam::inference::{Backend, InferenceError, PairOutput, ViewOutput, self_test};
use mast3r_slam::network::onnx::{
    AttentionForm, Branches, EmitOptions, Maps, Precision, Upsampling,
};
use testkit::networks::{
    self, Golden, noise_image, relative_error, run, tiny_checkpoint, tiny_network, tiny_weights,
};
use testkit::repository;
use testkit::skip::{Need, skip};

/// Two binary32 implementations of some thirty layers.
const TOLERANCE: f64 = 1e-4;

/// `MAST3R_ORT_PROVIDER=cuda` runs all of this on the GPU.
fn on_gpu() -> bool {
    std::env::var_os("MAST3R_ORT_PROVIDER").is_some_and(|name| name == "cuda")
}

fn options() -> OnnxRuntimeOptions {
    OnnxRuntimeOptions {
        provider: Some(match on_gpu() {
            true => Provider::Cuda,
            false => Provider::Cpu,
        }),
        precision: Some(Precision::F32),
        threads: 2,
        ..Default::default()
    }
}

/// The result, or none where there is no library and none is required.
fn unless_missing<T>(result: Result<T, InferenceError>) -> Option<T> {
    match result {
        Err(error @ InferenceError::Unavailable { .. }) => {
            skip(Need::OnnxRuntime, error);
            None
        }
        result => Some(result.expect("ONNX Runtime takes the network")),
    }
}

fn assert_near(found: &ViewOutput, expected: &ViewOutput, dim: usize) {
    for (what, found, expected, tuple) in [
        ("points", &found.points, &expected.points, 3),
        ("confidence", &found.confidence, &expected.confidence, 1),
        (
            "descriptors",
            &found.descriptors,
            &expected.descriptors,
            dim,
        ),
        (
            "descriptor confidence",
            &found.descriptor_confidence,
            &expected.descriptor_confidence,
            1,
        ),
    ] {
        let error = relative_error(found, expected, tuple, 1e-3);
        assert!(error < TOLERANCE, "{what}: {error}");
    }
}

#[test]
fn the_tiny_network_computes_as_on_the_cpu_backend() {
    // Portrait, and odd in both directions.
    let (width, height) = (48, 80);
    let network = tiny_network(tiny_checkpoint());
    let Some(mut backend) = unless_missing(OnnxRuntimeBackend::new(
        network.clone(),
        width,
        height,
        &options(),
    )) else {
        return;
    };
    println!("{}", backend.name());
    let mut reference = CpuBackend::new(&network, width, height, 2).expect("a network");
    assert_eq!(backend.shape(), reference.shape());
    let images = [1, 2].map(|seed| noise_image(seed, width, height));
    let expected = run(&mut reference, &images[0], &images[1]);
    let found = run(&mut backend, &images[0], &images[1]);
    let dim = reference.shape().descriptor_dim;
    assert_near(&found.view1, &expected.view1, dim);
    assert_near(&found.view2, &expected.view2, dim);

    // Another handle, used from another thread at the same time, gives the same.
    let mut other = backend.share();
    let again = std::thread::scope(|scope| {
        let other = scope.spawn(|| run(other.as_mut(), &images[0], &images[1]));
        let own = run(&mut backend, &images[0], &images[1]);
        (own, other.join().expect("no panic"))
    });
    for again in [&again.0, &again.1] {
        assert_near(&again.view1, &found.view1, dim);
        assert_near(&again.view2, &found.view2, dim);
        assert!(on_gpu() || *again == found, "the same bits");
    }

    // View 1 alone.
    let shape = backend.shape().clone();
    let mut features = [0, 1].map(|_| vec![0.0; shape.tokens * shape.feature_dim]);
    for (image, features) in images.iter().zip(&mut features) {
        backend.encode(image, features).expect("encoded");
    }
    let mut mono = PairOutput::zeros(&shape);
    let [a, b] = &features;
    backend.decode_view1(a, b, &mut mono).expect("decoded");
    assert_near(&mono.view1, &expected.view1, dim);
    assert!(mono.view2 == PairOutput::zeros(&shape).view2);
}

#[test]
fn the_bundled_model_passes_its_self_test() {
    let weights = repository("engines/mast3r-mini/model.safetensors");
    let loaded = OnnxRuntimeBackend::load(&weights, 128, 96, &options());
    let Some(mut backend) = unless_missing(loaded) else {
        return;
    };
    self_test(&mut backend).expect("it did so when it was loaded");
    let image = noise_image(1, 96, 128);
    let mut features = vec![0.0; backend.shape().tokens * backend.shape().feature_dim];
    let error = backend.encode(&image, &mut features).expect_err("turned");
    assert!(matches!(error, InferenceError::Shape { .. }), "{error}");
}

#[test]
fn cuda_without_a_gpu_or_in_a_library_without_it_is_said() {
    if unless_missing(OnnxRuntimeBackend::load(
        &tiny_weights(),
        32,
        32,
        &options(),
    ))
    .is_none()
    {
        return;
    }
    let wanted = OnnxRuntimeOptions {
        provider: Some(Provider::Cuda),
        ..options()
    };
    match OnnxRuntimeBackend::load(&tiny_weights(), 32, 32, &wanted) {
        Ok(backend) => assert!(backend.name().contains("CUDA"), "{}", backend.name()),
        Err(error) => {
            assert!(
                matches!(error, InferenceError::Unavailable { .. }),
                "{error}"
            );
            assert!(error.to_string().contains("CUDA"), "{error}");
        }
    }
}

/// The bundled model on a pair that PyTorch's outputs are known of, written down in some way.
fn golden_pair(emit: EmitOptions) -> Option<PairOutput> {
    let golden = repository("tests/data/network/mini.golden.safetensors");
    let golden = Golden::open(&golden).expect("in the repository");
    let images = [1, 2].map(|view| golden.image(&format!("pair0.image{view}")));
    let (width, height) = (images[0].width, images[0].height);
    let weights = repository("engines/mast3r-mini/model.safetensors");
    let options = OnnxRuntimeOptions {
        precision: Some(emit.precision),
        emit: Some(emit),
        ..options()
    };
    let mut backend = unless_missing(OnnxRuntimeBackend::load(&weights, width, height, &options))?;
    Some(run(&mut backend, &images[0], &images[1]))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Every way to write the network down in single precision.
const FORMS: [EmitOptions; 9] = {
    const PLAIN: EmitOptions = EmitOptions {
        precision: Precision::F32,
        attention: AttentionForm::Decomposed,
        branches: Branches::Apart,
        upsampling: Upsampling::Operator,
        maps: Maps::Nchw,
    };
    let fused = EmitOptions {
        attention: AttentionForm::Fused,
        ..PLAIN
    };
    let together = EmitOptions {
        branches: Branches::Together,
        ..PLAIN
    };
    let both = EmitOptions {
        branches: Branches::Together,
        ..fused
    };
    let all = EmitOptions {
        upsampling: Upsampling::Products,
        ..both
    };
    let last = EmitOptions {
        maps: Maps::Nhwc,
        ..PLAIN
    };
    let all_last = EmitOptions {
        maps: Maps::Nhwc,
        ..all
    };
    let inside = EmitOptions {
        maps: Maps::NchwInside,
        ..PLAIN
    };
    // As for TensorRT.
    let together_inside = EmitOptions {
        maps: Maps::NchwInside,
        ..together
    };
    [
        PLAIN,
        fused,
        together,
        both,
        all,
        last,
        all_last,
        inside,
        together_inside,
    ]
};

/// The ways that this machine's provider has the operators for.
fn forms() -> Vec<EmitOptions> {
    let mut forms = FORMS.to_vec();
    if on_gpu() {
        forms.push(EmitOptions {
            maps: Maps::NhwcOperator,
            ..FORMS[6]
        });
    }
    forms
}

#[test]
fn every_way_to_write_it_down_is_the_same_network() {
    let golden = repository("tests/data/network/mini.golden.safetensors");
    let golden = Golden::open(&golden).expect("in the repository");
    let image = golden.image("pair0.image1");
    let (width, height) = (80, 48);
    let images = [1, 2].map(|seed| noise_image(seed, width, height));
    let mut outputs: Vec<[PairOutput; 2]> = Vec::new();
    for emit in forms() {
        let options = OnnxRuntimeOptions {
            emit: Some(emit),
            ..options()
        };
        let network = tiny_network(tiny_checkpoint());
        let made = OnnxRuntimeBackend::new(network, width, height, &options);
        let Some(mut backend) = unless_missing(made) else {
            return;
        };
        let tiny = run(&mut backend, &images[0], &images[1]);
        let mini = golden_pair(emit).expect("the library is there");
        for (view, out) in [(1, &mini.view1), (2, &mini.view2)] {
            let name = format!("pair0.pts3d{view}");
            let found = golden.thin(&name, &out.points, 3, (image.width, image.height));
            let error = relative_error(&found, &golden.values(&name), 3, 0.0);
            println!("{emit:?}: {name} {error:.1e} from PyTorch's");
            assert!(error <= 1e-3, "{name}: {error}");
        }
        let found = [tiny, mini];
        if let Some(first) = outputs.first() {
            for (found, first) in found.iter().zip(first) {
                assert!(found != first, "the same graph twice");
                let dim = first.view1.descriptors.len() / first.view1.confidence.len();
                assert_near(&found.view1, &first.view1, dim);
                assert_near(&found.view2, &first.view2, dim);
            }
        }
        outputs.push(found);
    }
}

/// DUNE's encoder, without rotation, with class token and registers, and patches of 14 pixels.
#[test]
fn dune_computes_as_on_the_cpu_backend_in_every_form() {
    let network = networks::dune::network(networks::dune::checkpoint());
    let (width, height) = (70, 42);
    let images = [1, 2].map(|seed| noise_image(seed, width, height));
    let mut reference = CpuBackend::new(&network, width, height, 2).expect("a network");
    let expected = run(&mut reference, &images[0], &images[1]);
    let dim = reference.shape().descriptor_dim;
    for emit in forms() {
        let options = OnnxRuntimeOptions {
            emit: Some(emit),
            ..options()
        };
        let made = OnnxRuntimeBackend::new(network.clone(), width, height, &options);
        let Some(mut backend) = unless_missing(made) else {
            return;
        };
        assert_eq!(backend.shape(), reference.shape());
        let found = run(&mut backend, &images[0], &images[1]);
        assert_near(&found.view1, &expected.view1, dim);
        assert_near(&found.view2, &expected.view2, dim);
    }
}

/// What the product promises of half precision: points within 0.5 % in the median, cosines of
/// descriptors of 0.999.
#[test]
fn half_precision_is_near_single() {
    let forms = forms();
    for emit in [forms[0], forms[4], forms[forms.len() - 1]] {
        let of = |precision| golden_pair(EmitOptions { precision, ..emit });
        let (Some(single), Some(half)) = (of(Precision::F32), of(Precision::F16)) else {
            return;
        };
        for (half, single) in [(&half.view1, &single.view1), (&half.view2, &single.view2)] {
            let dim = single.descriptors.len() / single.confidence.len();
            let points = single
                .points
                .chunks_exact(3)
                .zip(half.points.chunks_exact(3));
            let errors = points.map(|(s, h)| relative_error(h, s, 3, 0.0));
            let error = median(errors.collect());
            let dot = |a: &[f32], b: &[f32]| -> f64 {
                a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum()
            };
            let descriptors = single
                .descriptors
                .chunks_exact(dim)
                .zip(half.descriptors.chunks_exact(dim));
            let cosines: Vec<f64> = descriptors.map(|(s, h)| dot(s, h)).collect();
            let lowest = cosines.iter().copied().fold(1.0, f64::min);
            println!(
                "{emit:?}: median error of points {error:.1e}, cosines from {lowest:.5}, median {:.6}",
                median(cosines.clone())
            );
            assert!(error > 0.0, "the same precision twice");
            assert!(error <= 5e-3, "{error}");
            assert!(median(cosines) >= 0.999);
        }
    }
}

#[test]
fn impossible_sizes_are_refused() {
    for (width, height) in [(0, 16), (16, 0), (40, 32)] {
        let network = tiny_network(tiny_checkpoint());
        match OnnxRuntimeBackend::new(network, width, height, &options()) {
            Err(InferenceError::Shape { .. }) => {}
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("{width}x{height} was taken"),
        }
    }
}

#[cfg(feature = "cuda")]
mod in_place;
