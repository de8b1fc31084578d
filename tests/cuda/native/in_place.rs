//! In the caller's buffers on the GPU.

use super::{
    Backend, DeviceView, NativeBackend, Network, NetworkShape, PRECISIONS, PairOutput, Precision,
    ViewOutput, bundled, noise_image, tiny_checkpoint, tiny_network, wide_network,
};
use crate::cuda;
use mast3r_slam::compute::device::{Floats, KeyframeContent, Setup};
use mast3r_slam::config::{Config, DeviceConfig};
use mast3r_slam::gpu::plan::Group;
use mast3r_slam::gpu::{Carver, Carving, Context, DeviceBuffer, Priority, Stream, allocations};
use std::sync::Arc;

const SIZE: (usize, usize) = (80, 48);

/// The outputs of one view of some pairs.
pub struct View([DeviceBuffer<f32>; 4]);

impl View {
    pub fn carve(part: &mut Carver<'_, '_>, shape: &NetworkShape, pairs: usize) -> Self {
        let n = pairs * shape.pixels();
        Self([3, 1, shape.descriptor_dim, 1].map(|k| part.device("view", &[n, k]).expect("memory")))
    }

    /// The pairs `first..last` of `pairs`.
    pub fn of_pairs(&self, pairs: usize, first: usize, last: usize) -> Self {
        Self(self.0.each_ref().map(|buffer| {
            let each = buffer.len() / pairs;
            buffer
                .part(first * each..last * each)
                .expect("some of them")
        }))
    }

    pub fn view(&self) -> DeviceView<'_> {
        let parts = self.0.each_ref().map(DeviceBuffer::all);
        let [points, confidence, descriptors, descriptor_confidence] = parts;
        DeviceView {
            points,
            confidence,
            descriptors,
            descriptor_confidence,
        }
    }

    pub fn read(&self, stream: &Stream) -> ViewOutput {
        let read = |buffer: &DeviceBuffer<f32>| stream.read_vec(buffer.all()).expect("read");
        let [points, confidence, descriptors, descriptor_confidence] = self.0.each_ref().map(read);
        ViewOutput {
            points,
            confidence,
            descriptors,
            descriptor_confidence,
        }
    }

    pub fn clear(&self, stream: &Stream) {
        for buffer in &self.0 {
            stream.fill(buffer.all(), 0xff).expect("filled");
        }
    }
}

/// Graphs, their repetitions and captures give the bits that the host's interface gives, for single pairs, view
/// 1 alone and edges; nothing is allocated after the first run.
#[test]
fn what_is_computed_in_place_is_what_the_host_gets() {
    for precision in PRECISIONS {
        in_place_is_as_on_the_host(&tiny_network(tiny_checkpoint()), precision);
    }
}

/// The same for a network that other kernels are chosen for.
#[test]
fn a_batch_of_the_official_kinds_of_layers_has_the_bits_of_single_pairs() {
    for precision in PRECISIONS {
        in_place_is_as_on_the_host(&wide_network(), precision);
    }
}

/// The same for the network that has kernels for its maps.
#[test]
fn a_batch_of_the_bundled_network_has_the_bits_of_single_pairs() {
    for precision in [Precision::F16, Precision::Bf16] {
        in_place_is_as_on_the_host(&bundled(), precision);
    }
}

fn in_place_is_as_on_the_host(network: &Network, precision: Precision) {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let mut backend =
        NativeBackend::new(network, SIZE.0, SIZE.1, Some(precision)).expect("the GPU");
    let shape = backend.shape().clone();
    let images = [1, 2].map(|seed| noise_image(seed, SIZE.0, SIZE.1));
    let mut tokens = [0, 1].map(|_| vec![0.0; shape.tokens * shape.feature_dim]);
    for (image, tokens) in images.iter().zip(&mut tokens) {
        backend.encode(image, tokens).expect("encoded");
    }
    let expected = [(0, 1), (1, 0)].map(|(i, j)| {
        let mut out = PairOutput::zeros(&shape);
        backend
            .decode(&tokens[i], &tokens[j], &mut out)
            .expect("decoded");
        out
    });
    assert!(expected[0] != expected[1]);

    let mut other = backend.share();
    for (backend, priority) in [
        (&mut backend as &mut dyn Backend, Priority::High),
        (other.as_mut(), Priority::Low),
    ] {
        let stream = context.stream(priority).expect("a stream");
        let mut carving = Carving::separate(context);
        let mut part = carving.part(Group::Network, "test");
        let planes: DeviceBuffer<f32> =
            (part.device("planes", &[3, shape.pixels()])).expect("memory");
        let count = tokens[0].len();
        let all: DeviceBuffer<f32> = part.device("tokens", &[4, count]).expect("memory");
        let features = [0, 1].map(|k| all.part(k * count..(k + 1) * count).expect("one of four"));
        let of_all = [0, 1].map(|_| View::carve(&mut part, &shape, 4));
        let views = of_all.each_ref().map(|view| view.of_pairs(4, 0, 1));
        let outputs = views.each_ref().map(View::view);
        let device = backend.device().expect("on the GPU");
        let bytes = device.workspace_bytes(2).expect("planned");
        assert!(bytes >= device.workspace_bytes(0).expect("planned"));
        let workspace: DeviceBuffer<u8> = part.device("workspace", &[bytes]).expect("memory");
        stream.fill(workspace.all(), 0xff).expect("filled");
        let pair = features.each_ref().map(DeviceBuffer::all);
        let refused = device.enqueue_decode(&stream, pair, outputs);
        assert!(refused.unwrap_err().to_string().contains("has one of 0"));
        device.use_workspace(workspace).expect("given");
        let mut before = allocations();
        for round in 0..3 {
            for (image, (to, expected)) in images.iter().zip(features.iter().zip(&tokens)) {
                let pixels = shape.pixels();
                let values: Vec<f32> = (0..3 * pixels)
                    .map(|k| f32::from(image.data[k % pixels * 3 + k / pixels]) / 127.5 - 1.0)
                    .collect();
                stream.write(&values, planes.all()).expect("written");
                stream.fill(to.all(), 0xff).expect("filled");
                let device = backend.device().expect("on the GPU");
                device
                    .enqueue_encode(&stream, planes.all(), to.all())
                    .expect("encoded");
                assert!(
                    &stream.read_vec(to.all()).expect("read") == expected,
                    "{round}"
                );
            }
            let check = |expected: &PairOutput| {
                assert!(
                    views[0].read(&stream) == expected.view1,
                    "round {round}, view 1"
                );
                assert!(
                    views[1].read(&stream) == expected.view2,
                    "round {round}, view 2"
                );
            };
            for ((i, j), expected) in [(0, 1), (1, 0)].into_iter().zip(&expected) {
                views.iter().for_each(|view| view.clear(&stream));
                let pair = [features[i].all(), features[j].all()];
                let device = backend.device().expect("on the GPU");
                device
                    .enqueue_decode(&stream, pair, outputs)
                    .expect("decoded");
                check(expected);
            }
            // In a capture of the caller's.
            let device = backend.device().expect("on the GPU");
            let graph = stream.capture(|| -> Result<(), Box<dyn std::error::Error>> {
                Ok(device.enqueue_decode(&stream, pair, outputs)?)
            });
            let graph = graph.expect("captured");
            views.iter().for_each(|view| view.clear(&stream));
            // SAFETY: as above.
            unsafe { graph.launch(&stream) }.expect("launched");
            check(&expected[0]);
            // View 1 alone.
            views.iter().for_each(|view| view.clear(&stream));
            let device = backend.device().expect("on the GPU");
            device
                .enqueue_decode_view1(&stream, pair, outputs)
                .expect("decoded");
            assert!(views[0].read(&stream) == expected[0].view1, "{round}");
            // One edge, then two, of which the second is the first one turned round.
            for (k, from) in [(2, &features[1]), (3, &features[0])] {
                let to = all.slice(k * count..(k + 1) * count).expect("one of four");
                stream.copy(from.all(), to).expect("copied");
            }
            for (edges, ways) in [(1, &[0, 1][..]), (2, &[0, 1, 1, 0])] {
                of_all.iter().for_each(|view| view.clear(&stream));
                let tokens = all.part(0..2 * edges * count).expect("some of four");
                let views = of_all.each_ref().map(|view| view.of_pairs(4, 0, 2 * edges));
                let outputs = views.each_ref().map(View::view);
                let device = backend.device().expect("on the GPU");
                device
                    .enqueue_decode_edges(&stream, edges, tokens.all(), outputs)
                    .expect("decoded");
                for (item, &way) in ways.iter().enumerate() {
                    let found = of_all
                        .each_ref()
                        .map(|view| view.of_pairs(4, item, item + 1).read(&stream));
                    assert!(
                        found[0] == expected[way].view1,
                        "{edges} edges, {item}, view 1"
                    );
                    assert!(
                        found[1] == expected[way].view2,
                        "{edges} edges, {item}, view 2"
                    );
                }
            }
            if round == 0 {
                before = allocations();
            }
        }
        let after = allocations();
        assert_eq!((after.device, after.pinned), (before.device, before.pinned));
        // Buffers of other sizes are refused.
        let device = backend.device().expect("on the GPU");
        let short = planes.slice(1..planes.len()).expect("all but one");
        assert!(device.enqueue_encode(&stream, short, pair[0]).is_err());
        assert!(
            device
                .enqueue_decode(&stream, [pair[0], short], outputs)
                .is_err()
        );
    }
}

/// The mapping half of a device encodes the images of a packed map as the host's interface does, also between edges.
#[test]
fn a_keyframe_of_a_packed_map_is_encoded_as_by_the_host() {
    let Some(gpu) = cuda() else { return };
    let network = tiny_network(tiny_checkpoint());
    let mut backend = NativeBackend::new(&network, SIZE.0, SIZE.1, None).expect("the GPU");
    let shape = backend.shape().clone();
    let setup = Setup {
        config: Arc::new(DeviceConfig::from(&Config::default())),
        preprocessor: None,
        intrinsics: None,
        places: None,
    };
    let mut mapping = crate::slam::gpu(&gpu, backend.share(), setup).mapping;
    let mut edges = Vec::new();
    for (id, seed) in (0..).zip([1, 2, 1]) {
        let image = noise_image(seed, SIZE.0, SIZE.1);
        let mut expected = vec![0.0; shape.tokens * shape.feature_dim];
        backend.encode(&image, &mut expected).expect("encoded");
        let mut content = KeyframeContent {
            image: image.data,
            points: vec![1.0; 3 * shape.pixels()],
            confidence: Floats::F32(vec![2.0; shape.pixels()]),
            features: Floats::default(),
        };
        mapping.encode_keyframe(&mut content).expect("encoded");
        assert!(content.features.to_f32() == expected, "keyframe {id}");
        mapping.import_keyframe(id, &content).expect("imported");
        if id > 0 {
            let pairs = [(id - 1, id)];
            mapping.make_edges(&pairs, &mut edges).expect("an edge");
        }
    }
    // Noise: nothing else is known of its matches.
    assert_eq!(edges.len(), 2);
    let mut short = KeyframeContent::default();
    assert!(mapping.encode_keyframe(&mut short).is_err());
}
