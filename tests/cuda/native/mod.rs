//! The network on the program's own kernels, against the CPU.

mod in_place;
mod layers;
mod linear;

use crate::cuda;
use mast3r_slam::image::RgbImage;
use mast3r_slam::inference::cpu::CpuBackend;
use mast3r_slam::inference::native::{KernelSet, NativeBackend};
use mast3r_slam::inference::{Backend, DeviceView, NetworkShape, PairOutput, ViewOutput};
use mast3r_slam::network::{Architecture, Checkpoint, Hints, Network, Stack, Tensor, load_network};
use std::path::Path;
use testkit::networks::{
    Golden, dune, noise, noise_image, run, set, tiny_checkpoint, tiny_network,
};
use testkit::repository;

/// The largest median error of a point, relative to its distance.
const POINTS: f64 = 5e-3;
/// The smallest median cosine between descriptors.
const COSINE: f64 = 0.999;

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

/// Fails unless `found` is within binary16's error of `expected`.
fn assert_near(what: &str, found: &ViewOutput, expected: &ViewOutput, dim: usize) {
    let points = relative(&found.points, &expected.points, 3);
    let confidence = relative(&found.confidence, &expected.confidence, 1);
    let cosine = cosine(&found.descriptors, &expected.descriptors, dim);
    let expected = &expected.descriptor_confidence;
    let descriptor_confidence = relative(&found.descriptor_confidence, expected, 1);
    println!(
        "{what}: points {points:.2e}, confidence {confidence:.2e}, cosine {cosine:.6}, theirs {descriptor_confidence:.2e}"
    );
    assert!(points < POINTS, "{what}: points {points}");
    assert!(confidence < 2.0 * POINTS, "{what}: confidence {confidence}");
    assert!(cosine > COSINE, "{what}: cosine {cosine}");
    assert!(
        descriptor_confidence < 2.0 * POINTS,
        "{what}: {descriptor_confidence}"
    );
}

/// Both backends' outputs for a pair of images, with the fastest kernels and with those of older GPUs.
fn compare(what: &str, network: &Network, (width, height): (usize, usize), images: [&RgbImage; 2]) {
    let mut cpu = CpuBackend::new(network, width, height, 8).expect("the CPU");
    for set in [KernelSet::Fastest, KernelSet::Portable] {
        let native = NativeBackend::with_kernels(network, (width, height), set);
        let native = native.expect("the GPU");
        compare_with(&format!("{what}, {set:?}"), &mut cpu, native, images);
    }
}

fn compare_with(
    what: &str,
    cpu: &mut CpuBackend,
    mut native: NativeBackend,
    images: [&RgbImage; 2],
) {
    let shape = native.shape().clone();
    assert_eq!(&shape, cpu.shape());
    let mut tokens = [0, 1].map(|_| vec![0.0; shape.tokens * shape.feature_dim]);
    cpu.encode(images[0], &mut tokens[0]).expect("encoded");
    native.encode(images[0], &mut tokens[1]).expect("encoded");
    let error = relative(&tokens[1], &tokens[0], shape.feature_dim);
    println!("{what}: tokens {error:.2e}");
    assert!(error < POINTS, "{what}: tokens {error}");
    let expected = run(cpu, images[0], images[1]);
    let found = run(&mut native, images[0], images[1]);
    let dim = shape.descriptor_dim;
    assert_near(
        &format!("{what}, view 1"),
        &found.view1,
        &expected.view1,
        dim,
    );
    assert_near(
        &format!("{what}, view 2"),
        &found.view2,
        &expected.view2,
        dim,
    );
    // The same bits again, and view 1 alone is view 1 of the pair.
    assert!(
        found == run(&mut native, images[0], images[1]),
        "{what}: repeated"
    );
    let mut mono = PairOutput::zeros(&shape);
    native.encode(images[1], &mut tokens[0]).expect("encoded");
    native
        .decode_view1(&tokens[1], &tokens[0], &mut mono)
        .expect("decoded");
    assert!(mono.view1 == found.view1, "{what}: view 1 alone");
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
            size,
            [&images[0], &images[1]],
        );
    }
}

/// A network with the official layers' kinds in small: heads of 64 channels, layers with many inputs, convolutions
/// with many outputs. The tiny network has none of them, and kernels are chosen by them.
fn wide_network() -> Network {
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
    let mut checkpoint = Checkpoint::default();
    for (seed, (name, shape)) in architecture.expected_shapes().into_iter().enumerate() {
        let inputs: usize = shape[1..].iter().product();
        // Such that activations stay near 1.
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
    Network::new(Path::new("wide.safetensors"), checkpoint, &Hints::default())
        .expect("a complete network")
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
            size,
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
    let outputs = |set| {
        let native = NativeBackend::with_kernels(&network, (width, height), set);
        run(&mut native.expect("the GPU"), &images[0], &images[1])
    };
    let expected = outputs(KernelSet::Fastest);
    for size in 0..8 {
        assert!(outputs(KernelSet::Size(size)) == expected, "size {size}");
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
            size,
            [&images[0], &images[1]],
        );
    }
}

/// The bundled network at the size it was trained for, and with images repeated to a size whose columns the blocks of
/// its maps' own kernels do not divide.
#[test]
fn the_bundled_network_is_near_the_cpu() {
    let Some(_gpu) = cuda() else { return };
    let golden = repository("tests/data/network/mini.golden.safetensors");
    let golden = Golden::open(&golden).expect("in the repository");
    let images = ["pair0.image1", "pair0.image2"].map(|name| golden.image(name));
    for size in [(images[0].width, images[0].height), (272, 208)] {
        let images = images.each_ref().map(|image| repeated(image, size));
        compare(
            &format!("bundled {size:?}"),
            &bundled(),
            size,
            [&images[0], &images[1]],
        );
    }
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

#[test]
fn weights_that_binary16_cannot_hold_are_named() {
    let Some(_gpu) = cuda() else { return };
    let mut checkpoint = tiny_checkpoint();
    set(&mut checkpoint, "enc_blocks.1.mlp.fc2.weight", |_| 1e6);
    let refused = NativeBackend::new(&tiny_network(checkpoint), 64, 48);
    let error = refused.map(|_| ()).expect_err("refused").to_string();
    assert!(
        error.contains("enc_blocks.1.mlp.fc2") && error.contains("binary16"),
        "{error}"
    );
}
