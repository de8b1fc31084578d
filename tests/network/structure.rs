//! How the network is wired, shown by feeding it weights whose effect is known.

use std::collections::BTreeMap;

use mast3r_slam::inference::ViewOutput;
use mast3r_slam::network::Stack;
use mast3r_slam::network::{Architecture, Checkpoint, Tensor, load_network};
use testkit::networks::naive::assert_heads_are_their_definition;
use testkit::networks::{
    backend, noise_image, relative_error, run, set, tiny_checkpoint, tiny_network,
};
use testkit::repository;

#[test]
fn swapped_views_with_swapped_branches_swap_the_outputs() {
    let original = tiny_checkpoint();
    let swap = |name: &str| -> String {
        for (a, b) in [
            ("dec_blocks.", "dec_blocks2."),
            ("downstream_head1.", "downstream_head2."),
        ] {
            if let Some(rest) = name.strip_prefix(a) {
                return format!("{b}{rest}");
            }
            if let Some(rest) = name.strip_prefix(b) {
                return format!("{a}{rest}");
            }
        }
        name.to_owned()
    };
    let tensors: BTreeMap<String, Tensor> = original
        .tensors
        .iter()
        .map(|(name, tensor)| (swap(name), tensor.clone()))
        .collect();
    let swapped = Checkpoint {
        tensors,
        ..original.clone()
    };
    let images = [noise_image(1, 64, 48), noise_image(2, 64, 48)];
    let straight = run(
        &mut backend(&tiny_network(original), 64, 48),
        &images[0],
        &images[1],
    );
    let crossed = run(
        &mut backend(&tiny_network(swapped), 64, 48),
        &images[1],
        &images[0],
    );
    // The same operations on the same numbers: the same bits.
    assert!(straight.view1 == crossed.view2);
    assert!(straight.view2 == crossed.view1);
    assert!(straight.view1 != straight.view2);
}

#[test]
fn descriptor_channels_land_on_their_pixels() {
    let mut checkpoint = tiny_checkpoint();
    let channel = |c: usize, pixel: usize| 1.0 + c as f32 * 0.25 + pixel as f32 * 0.001;
    for head in 1..=2 {
        let fc2 = format!("downstream_head{head}.head_local_features.fc2");
        set(&mut checkpoint, &format!("{fc2}.weight"), |_| 0.0);
        // Channel c·256 + i·16 + j; 24 descriptor channels, then the confidence.
        set(&mut checkpoint, &format!("{fc2}.bias"), |n| match n / 256 {
            24 => (n % 256) as f32 / 256.0,
            c => channel(c, n % 256),
        });
    }
    let (width, height) = (48, 32);
    let network = tiny_network(checkpoint);
    let image = noise_image(3, width, height);
    let out = run(&mut backend(&network, width, height), &image, &image);
    for view in [&out.view1, &out.view2] {
        for v in 0..height {
            for u in 0..width {
                let (pixel, n) = ((v % 16) * 16 + u % 16, v * width + u);
                let raw: Vec<f32> = (0..24).map(|c| channel(c, pixel)).collect();
                let length = raw.iter().map(|d| d * d).sum::<f32>().sqrt();
                let unit: Vec<f32> = raw.iter().map(|d| d / length).collect();
                let found = &view.descriptors[n * 24..(n + 1) * 24];
                // Neighbouring pixels differ by 1e-3, rounding by 1e-6.
                assert!(relative_error(found, &unit, 24, 0.0) < 1e-5, "({u}, {v})");
                let expected = (pixel as f32 / 256.0).exp();
                let found = view.descriptor_confidence[n];
                assert!((found - expected).abs() < 1e-5 * expected, "({u}, {v})");
            }
        }
    }
}

/// Sizes whose token grid is odd, a single row or column, portrait.
#[test]
fn any_multiple_of_16_runs() {
    let network = tiny_network(tiny_checkpoint());
    for (width, height) in [
        (16, 16),
        (16, 48),
        (80, 16),
        (48, 80),
        (112, 48),
        (512, 336),
    ] {
        let (a, b) = (noise_image(4, width, height), noise_image(5, width, height));
        let out = run(&mut backend(&network, width, height), &a, &b);
        let all_finite = |view: &ViewOutput| {
            let mut values = view.points.iter().chain(&view.confidence);
            values.all(|v| v.is_finite())
        };
        assert!(
            all_finite(&out.view1) && all_finite(&out.view2),
            "{width}x{height}"
        );
    }
}

/// The published model: its tensors were counted by instantiating it.
#[test]
fn the_official_model_has_its_688_million_parameters() {
    let official = Architecture {
        encoder: Stack {
            width: 1024,
            depth: 24,
            heads: 16,
            hidden: 4096,
        },
        dune: None,
        decoder: Stack {
            width: 768,
            depth: 12,
            heads: 12,
            hidden: 3072,
        },
        rope_base: 100.0,
        hooks: [0, 6, 9, 12],
        layer_dims: [96, 192, 384, 768],
        feature_dim: 256,
        output_dims: [128, 128],
        descriptor_hidden: 7168,
        descriptor_dim: 24,
    };
    let shapes = official.expected_shapes();
    let used: usize = shapes.values().map(|s| s.iter().product::<usize>()).sum();
    // The mask token, and four tensors per head in the coarsest fusion block.
    let unused = 768 + 2 * 1_180_160;
    assert_eq!(used + unused, 688_638_856);
    assert_eq!(shapes.len() + 1 + 2 * 4, 1009);
    assert_eq!(
        shapes["downstream_head1.head_local_features.fc2.weight"],
        [6400, 7168]
    );
}

#[test]
fn the_bundled_model_has_the_dimensions_of_its_card() {
    let weights = repository("engines/mast3r-mini/model.safetensors");
    let network = load_network(&weights).unwrap();
    let stack = |depth| Stack {
        width: 192,
        depth,
        heads: 3,
        hidden: 384,
    };
    assert_eq!(
        network.architecture,
        Architecture {
            encoder: stack(8),
            dune: None,
            decoder: stack(10),
            rope_base: 100.0,
            hooks: [0, 5, 7, 10],
            layer_dims: [24, 48, 64, 96],
            feature_dim: 64,
            output_dims: [32, 32],
            descriptor_hidden: 240,
            descriptor_dim: 24,
        }
    );
}

/// Odd token rows and columns: the coarsest map is rounded up when it halves, enlarged again, and
/// cropped.
#[test]
fn dpt_head_equals_its_definition_on_an_odd_grid() {
    assert_heads_are_their_definition(tiny_checkpoint(), "", (3, 5), tiny_network);
}
