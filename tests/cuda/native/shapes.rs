//! Every kind of network in the shapes that it may have: landscape and portrait, and one to eight pairs at once.

use super::in_place::View;
use super::{
    Backend, KernelSet, NativeBackend, Network, PairOutput, bundled, compare, dune, golden_images,
    network_of, noise_image, random_checkpoint, repeated, tiny_checkpoint, tiny_network,
    wide_network,
};
use crate::cuda;
use mast3r_slam::gpu::plan::Group;
use mast3r_slam::gpu::{Carving, Context, DeviceBuffer, Priority};
use mast3r_slam::network::{Architecture, Stack};

/// Edges that are decoded together; each is two pairs.
const EDGES: usize = 4;

/// The official network's layers in full width, a few of them: all its shapes of linear layers, attention and
/// convolutions.
fn official_layers() -> Network {
    let few = |stack: Stack, depth| Stack { depth, ..stack };
    let official = Architecture::official();
    network_of(random_checkpoint(&Architecture {
        encoder: few(official.encoder.clone(), 2),
        decoder: few(official.decoder.clone(), 4),
        hooks: [0, 2, 3, 4],
        ..official
    }))
}

#[test]
fn portrait_images_are_near_the_cpu() {
    let Some(_gpu) = cuda() else { return };
    let networks = [
        ("DUNE", dune::network(dune::checkpoint()), (42, 70)),
        ("wide", wide_network(), (80, 144)),
    ];
    for (name, network, size) in networks {
        let images = [3, 4].map(|seed| noise_image(seed, size.0, size.1));
        let what = format!("{name} {size:?}");
        compare(&what, &network, [&images[0], &images[1]]);
    }
    // A trained network amplifies rounding on images of noise: ONNX Runtime's half precision errs by 1.5 % there, on a CPU.
    let images = golden_images().map(|image| repeated(&image, (176, 272)));
    compare("bundled, portrait", &bundled(), [&images[0], &images[1]]);
}

#[test]
fn layers_of_the_official_widths_are_near_the_cpu() {
    let Some(_gpu) = cuda() else { return };
    let network = official_layers();
    for size in [(144, 80), (64, 96)] {
        let images = [5, 6].map(|seed| noise_image(seed, size.0, size.1));
        let what = format!("official widths {size:?}");
        compare(&what, &network, [&images[0], &images[1]]);
    }
}

#[test]
fn one_to_eight_pairs_at_once_have_the_bits_of_single_pairs() {
    let Some(gpu) = cuda() else { return };
    for set in [KernelSet::Fastest, KernelSet::Portable] {
        let tiny = tiny_network(tiny_checkpoint());
        pairs_at_once(&gpu, &tiny, (112, 80), set);
        pairs_at_once(&gpu, &tiny, (48, 80), set);
        let dune = dune::network(dune::checkpoint());
        pairs_at_once(&gpu, &dune, (70, 42), set);
        pairs_at_once(&gpu, &dune, (42, 70), set);
        pairs_at_once(&gpu, &bundled(), (272, 208), set);
        pairs_at_once(&gpu, &bundled(), (96, 144), set);
        let official = official_layers();
        pairs_at_once(&gpu, &official, (144, 80), set);
        pairs_at_once(&gpu, &official, (64, 96), set);
    }
}

/// Decodes one to [`EDGES`] edges both ways, every second of them turned round, and compares each pair with the same
/// decoded by itself.
fn pairs_at_once(
    context: &Context,
    network: &Network,
    (width, height): (usize, usize),
    set: KernelSet,
) {
    let backend = NativeBackend::with_kernels(network, (width, height), None, set);
    let mut backend = backend.expect("the GPU");
    let shape = backend.shape().clone();
    let count = shape.tokens * shape.feature_dim;
    let tokens = [7, 8].map(|seed| {
        let mut tokens = vec![0.0; count];
        let image = noise_image(seed, width, height);
        backend.encode(&image, &mut tokens).expect("encoded");
        tokens
    });
    let expected = [(0, 1), (1, 0)].map(|(i, j)| {
        let mut out = PairOutput::zeros(&shape);
        let decoded = backend.decode(&tokens[i], &tokens[j], &mut out);
        decoded.expect("decoded");
        out
    });
    assert!(expected[0] != expected[1]);

    let stream = context.stream(Priority::High).expect("a stream");
    let mut carving = Carving::separate(context);
    let mut part = carving.part(Group::Network, "test");
    let images = 2 * EDGES;
    let all: DeviceBuffer<f32> = part.device("tokens", &[images, count]).expect("memory");
    let of_all = [0, 1].map(|_| View::carve(&mut part, &shape, images));
    // Image k of the batch; the second edge begins with the second image.
    let image = |k: usize| (k + k / 2) % 2;
    for k in 0..images {
        let to = all.slice(k * count..(k + 1) * count).expect("one of them");
        stream.write(&tokens[image(k)], to).expect("written");
    }
    let device = backend.device().expect("on the GPU");
    let bytes = device.workspace_bytes(EDGES).expect("planned");
    let workspace: DeviceBuffer<u8> = part.device("workspace", &[bytes]).expect("memory");
    device.use_workspace(workspace).expect("given");
    for edges in 1..=EDGES {
        of_all.iter().for_each(|view| view.clear(&stream));
        let tokens = all.part(0..2 * edges * count).expect("some of them");
        let views = of_all
            .each_ref()
            .map(|view| view.of_pairs(images, 0, 2 * edges));
        let outputs = views.each_ref().map(View::view);
        let device = backend.device().expect("on the GPU");
        device
            .enqueue_decode_edges(&stream, edges, tokens.all().into(), outputs)
            .expect("decoded");
        for item in 0..2 * edges {
            let found = of_all.each_ref().map(|view| {
                let one = view.of_pairs(images, item, item + 1);
                one.read(&stream)
            });
            let expected = &expected[image(item)];
            let what = format!("{width}x{height}, {set:?}, {edges} edges, pair {item}");
            assert!(found[0] == expected.view1, "{what}, view 1");
            assert!(found[1] == expected.view2, "{what}, view 2");
        }
    }
}
