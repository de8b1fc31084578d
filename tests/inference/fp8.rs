//! The network in half precision and in 8-bit floats beside single precision, on ONNX Runtime's CPU provider,
//! which computes 8-bit floats as they are defined. Skipped where that library is not found;
//! `MAST3R_REQUIRE_ORT=1` makes its absence a failure.

use mast3r_slam::image::{PreprocessOptions, Preprocessor, RgbImage, decode};
use mast3r_slam::inference::InferenceError;
use mast3r_slam::inference::compare::{Comparison, Errors, compare};
use mast3r_slam::inference::cpu::CpuBackend;
use mast3r_slam::inference::onnxruntime::{OnnxRuntimeBackend, OnnxRuntimeOptions, Provider};
use mast3r_slam::network::onnx::{AttentionForm, Branches, EmitOptions, Maps, Precision};
use std::path::{Path, PathBuf};
use testkit::skip::{Need, skip};

const SIZE: (usize, usize) = (256, 192);

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Two frames of the bundled sequence, some apart.
fn images() -> [RgbImage; 2] {
    let list = std::fs::read_to_string(repository("assets/room_loop/rgb.txt")).expect("rgb.txt");
    let names: Vec<&str> = list
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_whitespace().nth(1))
        .collect();
    [20, 26].map(|at| {
        let raw = decode(&repository("assets/room_loop").join(names[at])).expect("an image");
        let (width, height) = SIZE;
        let options = PreprocessOptions::default();
        let made = Preprocessor::new(raw.width, raw.height, width, None, options);
        let mut preprocessor = made.expect("a size");
        assert_eq!(preprocessor.output_size(), SIZE);
        let mut image = RgbImage::new(width, height);
        preprocessor.run(&raw, &mut image).expect("an image");
        image
    })
}

/// How far `precision` is from single precision, written down as `emit` says or as is fastest here; none without the
/// library.
fn compared(precision: Precision, emit: Option<EmitOptions>) -> Option<Comparison> {
    let weights = repository("engines/mast3r-mini/model.safetensors");
    let options = OnnxRuntimeOptions {
        library: None,
        provider: Some(Provider::Cpu),
        threads: 2,
        precision: Some(precision),
        emit,
    };
    let loaded = OnnxRuntimeBackend::load(&weights, SIZE.0, SIZE.1, &options);
    if let Err(error @ InferenceError::Unavailable { .. }) = &loaded {
        skip(Need::OnnxRuntime, error);
        return None;
    }
    let mut candidate = loaded.expect("the library takes the network");
    let mut reference = CpuBackend::load(&weights, SIZE.0, SIZE.1, 2).expect("the bundled model");
    let [first, second] = images();
    let found = compare(&mut reference, &mut candidate, [&first, &second]);
    Some(found.expect("both run"))
}

fn each(found: &Comparison) -> impl Iterator<Item = Errors> {
    let views = found.views.into_iter().flat_map(|view| {
        [
            view.points,
            view.confidence,
            view.descriptors,
            view.descriptor_confidence,
        ]
    });
    views.chain([found.features])
}

#[test]
fn half_precision_is_within_what_is_promised() {
    // The fastest form here, and TensorRT's.
    let tensorrt = EmitOptions {
        precision: Precision::F16,
        attention: AttentionForm::Decomposed,
        branches: Branches::Together,
        maps: Maps::NchwInside,
        ..EmitOptions::default()
    };
    for emit in [None, Some(tensorrt)] {
        let Some(found) = compared(Precision::F16, emit) else {
            return;
        };
        println!("{emit:?}: {found:?}");
        assert!(each(&found).all(|e| e.broken == 0), "{found:?}");
        for view in found.views {
            assert!(view.points.median < 5e-3, "{view:?}");
            assert!(1.0 - view.descriptors.median > 0.999, "{view:?}");
        }
    }
}

#[test]
fn eight_bit_floats_are_off_by_less_than_their_own_rounding() {
    let Some(found) = compared(Precision::Fp8, None) else {
        return;
    };
    assert!(each(&found).all(|e| e.broken == 0), "{found:?}");
    println!("{found:?}");
    // A number with three bits of mantissa is off by up to a sixteenth; a network of them that is off by more
    // has a scale or a layer wrong.
    let rounding = 1.0 / 16.0;
    assert!(found.features.median < rounding, "{found:?}");
    for view in found.views {
        assert!(view.points.median < rounding, "{view:?}");
        assert!(view.confidence.median < rounding, "{view:?}");
        assert!(view.descriptor_confidence.median < rounding, "{view:?}");
    }
    // And it is not half precision under another name.
    assert!(found.features.median > 5e-3, "{found:?}");
}
