//! The network on the program's own kernels, against the CPU.

mod in_place;
mod layers;
mod linear;
mod shapes;

use crate::cuda;
use mast3r_slam::image::RgbImage;
use mast3r_slam::inference::cpu::CpuBackend;
use mast3r_slam::inference::native::{KernelSet, NativeBackend};
use mast3r_slam::inference::{Backend, DeviceView, NetworkShape, PairOutput, ViewOutput};
use mast3r_slam::network::e4m3::{from_e4m3, scale_of, to_e4m3};
use mast3r_slam::network::onnx::Precision;
use mast3r_slam::network::{Architecture, Checkpoint, Hints, Network, Stack, Tensor, load_network};
use std::ops::Range;
use std::path::Path;
use testkit::networks::{
    Golden, dune, noise, noise_image, run, set, tiny_checkpoint, tiny_network,
};
use testkit::repository;

/// What the backend computes in.
const PRECISIONS: [Precision; 3] = [Precision::F16, Precision::Bf16, Precision::Fp8];

/// How far outputs may be from the CPU's.
#[derive(Clone, Copy)]
struct Limits {
    /// The largest median error of a point, relative to its distance.
    points: f64,
    /// The smallest median cosine between descriptors.
    cosine: f64,
}

const OF_HALF: Limits = Limits {
    points: 5e-3,
    cosine: 0.999,
};

/// bfloat16 has three bits of mantissa fewer: eight times the error, and for angles, of which the cosine has the
/// square, 64 times.
const OF_BFLOAT: Limits = Limits {
    points: 8.0 * OF_HALF.points,
    cosine: 1.0 - 64.0 * (1.0 - OF_HALF.cosine),
};

pub fn bundled() -> Network {
    let weights = repository("engines/mast3r-mini/model.safetensors");
    load_network(&weights).expect("the bundled model is in the repository")
}

fn median(mut values: Vec<f64>) -> f64 {
    assert!(values.iter().all(|v| v.is_finite()));
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn relative(found: &[f32], expected: &[f32], width: usize) -> f64 {
    assert_eq!(found.len(), expected.len());
    let norm = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>().sqrt();
    let both = found.chunks_exact(width).zip(expected.chunks_exact(width));
    median(
        both.map(|(f, e)| {
            let difference: Vec<f64> = f.iter().zip(e).map(|(a, b)| f64::from(a - b)).collect();
            let e: Vec<f64> = e.iter().map(|&x| f64::from(x)).collect();
            norm(&difference) / norm(&e).max(1e-6)
        })
        .collect(),
    )
}

fn cosine(found: &[f32], expected: &[f32], dim: usize) -> f64 {
    let both = found.chunks_exact(dim).zip(expected.chunks_exact(dim));
    let product = |a: &[f32], b: &[f32]| -> f64 {
        let products = a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y));
        products.sum()
    };
    median(both.map(|(f, e)| product(f, e)).collect())
}

/// Fails unless `found` is within the limits of `expected`.
fn assert_near(
    what: &str,
    limits: Limits,
    (found, expected): (&ViewOutput, &ViewOutput),
    dim: usize,
) {
    let points = relative(&found.points, &expected.points, 3);
    let confidence = relative(&found.confidence, &expected.confidence, 1);
    let cosine = cosine(&found.descriptors, &expected.descriptors, dim);
    let expected = &expected.descriptor_confidence;
    let descriptor_confidence = relative(&found.descriptor_confidence, expected, 1);
    println!(
        "{what}: points {points:.2e}, confidence {confidence:.2e}, cosine {cosine:.6}, theirs {descriptor_confidence:.2e}"
    );
    assert!(points < limits.points, "{what}: points {points}");
    assert!(
        confidence < 2.0 * limits.points,
        "{what}: confidence {confidence}"
    );
    assert!(cosine > limits.cosine, "{what}: cosine {cosine}");
    assert!(
        descriptor_confidence < 2.0 * limits.points,
        "{what}: {descriptor_confidence}"
    );
}

/// What the CPU computes of a pair of images.
struct Expected<'a> {
    shape: NetworkShape,
    images: [&'a RgbImage; 2],
    /// The first image's.
    tokens: Vec<f32>,
    pair: PairOutput,
}

impl<'a> Expected<'a> {
    fn new(network: &Network, images: [&'a RgbImage; 2]) -> Self {
        let [first, second] = images;
        let cpu = CpuBackend::new(network, first.width, first.height, 8);
        let mut cpu = cpu.expect("the CPU");
        let shape = cpu.shape().clone();
        let mut tokens = vec![0.0; shape.tokens * shape.feature_dim];
        cpu.encode(first, &mut tokens).expect("encoded");
        Self {
            images,
            tokens,
            pair: run(&mut cpu, first, second),
            shape,
        }
    }

    /// Compares with a network on the GPU in one precision, with the fastest kernels and with those of older GPUs.
    fn compare(&self, what: &str, network: &Network, (precision, limits): (Precision, Limits)) {
        let size = (self.shape.width, self.shape.height);
        for set in [KernelSet::Fastest, KernelSet::Portable] {
            let native = NativeBackend::with_kernels(network, size, Some(precision), set);
            let native = native.expect("the GPU");
            assert_eq!(native.precision(), precision);
            self.compare_with(&format!("{what}, {precision}, {set:?}"), limits, native);
        }
    }

    fn compare_with(&self, what: &str, limits: Limits, mut native: NativeBackend) {
        let shape = &self.shape;
        assert_eq!(native.shape(), shape);
        let mut tokens = [0, 1].map(|_| vec![0.0; shape.tokens * shape.feature_dim]);
        native
            .encode(self.images[0], &mut tokens[0])
            .expect("encoded");
        let error = relative(&tokens[0], &self.tokens, shape.feature_dim);
        println!("{what}: tokens {error:.2e}");
        assert!(error < limits.points, "{what}: tokens {error}");
        let found = run(&mut native, self.images[0], self.images[1]);
        let views = [
            (&found.view1, &self.pair.view1),
            (&found.view2, &self.pair.view2),
        ];
        for (view, both) in (1..).zip(views) {
            let what = format!("{what}, view {view}");
            assert_near(&what, limits, both, shape.descriptor_dim);
        }
        // The same bits again, and view 1 alone is view 1 of the pair.
        assert!(
            found == run(&mut native, self.images[0], self.images[1]),
            "{what}: repeated"
        );
        let mut mono = PairOutput::zeros(shape);
        native
            .encode(self.images[1], &mut tokens[1])
            .expect("encoded");
        native
            .decode_view1(&tokens[0], &tokens[1], &mut mono)
            .expect("decoded");
        assert!(mono.view1 == found.view1, "{what}: view 1 alone");
    }
}

const HALF: (Precision, Limits) = (Precision::F16, OF_HALF);
const BFLOAT: (Precision, Limits) = (Precision::Bf16, OF_BFLOAT);

/// Both backends' outputs for a pair of images, in both kinds of 16-bit numbers.
fn compare(what: &str, network: &Network, images: [&RgbImage; 2]) {
    let expected = Expected::new(network, images);
    for precision in [HALF, BFLOAT] {
        expected.compare(what, network, precision);
    }
}

#[test]
fn a_tiny_network_of_any_shape_is_near_the_cpu() {
    let Some(_gpu) = cuda() else { return };
    let network = tiny_network(tiny_checkpoint());
    // Landscape, portrait, odd numbers of token rows and columns, a single token.
    for size in [(128, 96), (48, 80), (112, 80), (16, 16), (272, 16)] {
        let images = [1, 2].map(|seed| noise_image(seed, size.0, size.1));
        compare(
            &format!("tiny {size:?}"),
            &network,
            [&images[0], &images[1]],
        );
    }
}

/// A network with the official layers' kinds in small: heads of 64 channels, layers with many inputs, convolutions
/// with many outputs. The tiny network has none of them, and kernels are chosen by them.
fn wide_network() -> Network {
    network_of(wide_checkpoint())
}

fn network_of(checkpoint: Checkpoint) -> Network {
    Network::new(
        Path::new("random.safetensors"),
        checkpoint,
        &Hints::default(),
    )
    .expect("a complete network")
}

fn wide_checkpoint() -> Checkpoint {
    let stack = |width: usize, depth| Stack {
        width,
        depth,
        heads: width / 64,
        hidden: 2048,
    };
    let architecture = Architecture {
        encoder: stack(512, 2),
        decoder: stack(512, 4),
        hooks: [0, 2, 3, 4],
        feature_dim: 128,
        descriptor_hidden: 4 * (512 + 512),
        ..Architecture::official()
    };
    random_checkpoint(&architecture)
}

/// Random weights such that activations stay near 1.
fn random_checkpoint(architecture: &Architecture) -> Checkpoint {
    let mut checkpoint = Checkpoint::default();
    for (seed, (name, shape)) in architecture.expected_shapes().into_iter().enumerate() {
        let inputs: usize = shape[1..].iter().product();
        let (mean, spread) = match shape.len() {
            1 if name.contains("norm") && name.ends_with("weight") => (1.0, 0.1),
            1 => (0.0, 0.02),
            _ => (0.0, (1.5 / inputs as f32).sqrt()),
        };
        let mut values = noise(seed as u32 + 1, shape.iter().product());
        values.iter_mut().for_each(|v| *v = mean + spread * *v);
        let tensor = Tensor::from_f32(shape, &values).expect("as many values as the shape has");
        checkpoint.tensors.insert(name, tensor);
    }
    checkpoint
}

#[test]
fn a_network_of_the_official_kinds_of_layers_is_near_the_cpu() {
    let Some(_gpu) = cuda() else { return };
    let network = wide_network();
    // Few pixels, and more than fit on the GPU at once, in odd numbers of token rows and columns. With the most tokens,
    // attention has blocks for all multiprocessors, and does not divide the keys.
    for size in [(128, 96), (272, 208), (528, 528)] {
        let images = [1, 2].map(|seed| noise_image(seed, size.0, size.1));
        compare(
            &format!("wide {size:?}"),
            &network,
            [&images[0], &images[1]],
        );
    }
}

/// Sizes of tiles are chosen by the time they take, so they must not show.
#[test]
fn tiles_of_all_sizes_give_the_same_bits() {
    let Some(_gpu) = cuda() else { return };
    let network = wide_network();
    let (width, height) = (272, 208);
    let images = [1, 2].map(|seed| noise_image(seed, width, height));
    for precision in [Precision::F16, Precision::Bf16] {
        let outputs = |set| {
            let size = (width, height);
            let native = NativeBackend::with_kernels(&network, size, Some(precision), set);
            run(&mut native.expect("the GPU"), &images[0], &images[1])
        };
        let expected = outputs(KernelSet::Fastest);
        for size in 0..8 {
            assert!(
                outputs(KernelSet::Size(size)) == expected,
                "{precision}, size {size}"
            );
        }
    }
}

#[test]
fn dune_is_near_the_cpu() {
    let Some(_gpu) = cuda() else { return };
    let network = dune::network(dune::checkpoint());
    for size in [(56, 42), (84, 70)] {
        let images = [1, 2].map(|seed| noise_image(seed, size.0, size.1));
        compare(
            &format!("DUNE {size:?}"),
            &network,
            [&images[0], &images[1]],
        );
    }
}

/// A pair of images of a scene, of the size that the bundled network was trained for.
fn golden_images() -> [RgbImage; 2] {
    let golden = repository("tests/data/network/mini.golden.safetensors");
    let golden = Golden::open(&golden).expect("in the repository");
    ["pair0.image1", "pair0.image2"].map(|name| golden.image(name))
}

/// The bundled network at the size it was trained for, and with images repeated to a size whose columns the blocks of
/// its maps' own kernels do not divide.
fn bundled_is_near_the_cpu(precision: (Precision, Limits)) {
    let Some(_gpu) = cuda() else { return };
    let images = golden_images();
    for size in [(images[0].width, images[0].height), (272, 208)] {
        let images = images.each_ref().map(|image| repeated(image, size));
        let expected = Expected::new(&bundled(), [&images[0], &images[1]]);
        expected.compare(&format!("bundled {size:?}"), &bundled(), precision);
    }
}

#[test]
fn the_bundled_network_is_near_the_cpu() {
    bundled_is_near_the_cpu(HALF);
}

#[test]
fn the_bundled_network_in_bfloat16_is_near_the_cpu() {
    bundled_is_near_the_cpu(BFLOAT);
}

/// The image side by side with itself, as far as `width` and `height` reach.
fn repeated(image: &RgbImage, (width, height): (usize, usize)) -> RgbImage {
    let mut larger = RgbImage::new(width, height);
    for (at, colour) in larger.data.chunks_exact_mut(3).enumerate() {
        let (x, y) = (at % width % image.width, at / width % image.height);
        let from = (y * image.width + x) * 3;
        colour.copy_from_slice(&image.data[from..from + 3]);
    }
    larger
}

/// A network whose norms in the blocks neither scale nor move, so that each layer's weights are rounded as they are
/// stored, and the same with these weights rounded to E4M3 numbers times each output's scale.
fn rounded(mut checkpoint: Checkpoint, make: impl Fn(Checkpoint) -> Network) -> [Network; 2] {
    let of_blocks = |name: &&String| name.contains("_blocks");
    let names: Vec<String> = checkpoint
        .tensors
        .keys()
        .filter(of_blocks)
        .cloned()
        .collect();
    for name in names.iter().filter(|name| name.contains("norm")) {
        let value = f32::from(u8::from(name.ends_with("weight")));
        set(&mut checkpoint, name, |_| value);
    }
    let stored = make(checkpoint.clone());
    let is_linear = |name: &&String| name.ends_with("weight") && !name.contains("norm");
    for name in names.iter().filter(is_linear) {
        let tensor = &checkpoint.tensors[name];
        let (inputs, values) = (tensor.shape[1], tensor.to_f32());
        let rows = values.chunks_exact(inputs).flat_map(|row| {
            let scale = scale_of(row);
            row.iter()
                .map(move |w| from_e4m3(to_e4m3(w / scale)) * scale)
        });
        let rows: Vec<f32> = rows.collect();
        set(&mut checkpoint, name, |at| rows[at]);
    }
    [stored, make(checkpoint)]
}

#[test]
fn weights_in_e4m3_compute_what_the_cpu_computes_with_rounded_weights() {
    let Some(_gpu) = cuda() else { return };
    for (what, [stored, rounded], sizes) in [
        (
            "tiny",
            rounded(tiny_checkpoint(), tiny_network),
            &[(112, 80), (16, 16)][..],
        ),
        ("wide", rounded(wide_checkpoint(), network_of), &[(128, 96)]),
    ] {
        for &(width, height) in sizes {
            let images = [1, 2].map(|seed| noise_image(seed, width, height));
            let expected = Expected::new(&rounded, [&images[0], &images[1]]);
            let what = format!("{what} {width}x{height} of rounded weights");
            expected.compare(&what, &stored, (Precision::Fp8, OF_HALF));
        }
        let [half, quantised] = [Precision::F16, Precision::Fp8].map(|precision| {
            let backend = NativeBackend::new(&stored, 64, 48, Some(precision));
            let mut backend = backend.expect("the GPU");
            let device = backend.device().expect("on the GPU");
            device.holds().iter().map(|held| held.bytes).sum::<u64>()
        });
        assert!(quantised < half, "{what}: {quantised} {half}");
    }
}

#[test]
fn weights_that_binary16_cannot_hold_are_named_or_kept_in_bfloat16() {
    let Some(_gpu) = cuda() else { return };
    const LAYER: &str = "enc_blocks.1.mlp.fc2";
    let (width, height) = (64, 48);
    let mut checkpoint = tiny_checkpoint();
    // Its input is 1e-5 for any image, GELU(2e-5), so that the network stays as it is but for a constant.
    let change = |checkpoint: &mut Checkpoint, name: &str, of: Range<usize>, value: f32| {
        let values = checkpoint.tensors[name].to_f32();
        set(checkpoint, name, |at| match of.contains(&at) {
            true => value,
            false => values[at],
        });
    };
    let fc1 = "enc_blocks.1.mlp.fc1";
    let inputs = checkpoint.tensors[&format!("{fc1}.weight")].shape[1];
    change(
        &mut checkpoint,
        &format!("{fc1}.weight"),
        3 * inputs..4 * inputs,
        0.0,
    );
    change(&mut checkpoint, &format!("{fc1}.bias"), 3..4, 2e-5);
    change(&mut checkpoint, &format!("{LAYER}.weight"), 3..4, 1e5);
    let network = tiny_network(checkpoint);
    let refused = NativeBackend::new(&network, width, height, Some(Precision::F16));
    let error = refused.map(|_| ()).expect_err("refused").to_string();
    for said in [LAYER, "1e5", "binary16", "bf16 or auto"] {
        assert!(error.contains(said), "{error}");
    }
    let native = NativeBackend::new(&network, width, height, None).expect("kept");
    assert_eq!(native.precision(), Precision::Bf16);
    assert!(native.name().contains("bf16"), "{}", native.name());
    let overflow = native.overflow().expect("said");
    assert_eq!((overflow.name.as_str(), overflow.value), (LAYER, 1e5));
    let images = [1, 2].map(|seed| noise_image(seed, width, height));
    let expected = Expected::new(&network, [&images[0], &images[1]]);
    expected.compare_with("a weight of 1e5", OF_BFLOAT, native);
    // Others stay in binary16.
    let network = tiny_network(tiny_checkpoint());
    let native = NativeBackend::new(&network, width, height, None).expect("the GPU");
    assert_eq!(native.precision(), Precision::F16);
    assert_eq!(native.overflow(), None);
}
