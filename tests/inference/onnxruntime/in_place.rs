//! The network in the GPU's memory, where there is a GPU.

use super::{assert_near, options, unless_missing};
use mast3r_slam::gpu::plan::Group;
use mast3r_slam::gpu::{
    Carver, Carving, Context, CudaError, DeviceBuffer, KernelImages, Priority, Stream, allocations,
};
use mast3r_slam::inference::onnxruntime::{OnnxRuntimeBackend, OnnxRuntimeOptions, Provider};
use mast3r_slam::inference::{
    Backend, DeviceView, InferenceError, NetworkShape, PairOutput, ViewOutput,
};
use testkit::networks::{noise_image, tiny_checkpoint, tiny_network};
use testkit::skip::{Need, skip};

const SIZE: (usize, usize) = (80, 48);

struct View([DeviceBuffer<f32>; 4]);

impl View {
    /// For both ways of two edges.
    fn carve(c: &mut Carver<'_, '_>, shape: &NetworkShape) -> Self {
        let n = 4 * shape.pixels();
        Self([3, 1, shape.descriptor_dim, 1].map(|k| c.device("view", &[k * n]).expect("room")))
    }

    /// The buffers of the first `count` of the four pairs from `which` on.
    fn of_pairs(&self, which: usize, count: usize) -> Self {
        Self(self.0.each_ref().map(|buffer| {
            let each = buffer.len() / 4;
            let pairs = buffer.part(which * each..(which + count) * each);
            pairs.expect("some of four")
        }))
    }

    fn view(&self) -> DeviceView<'_> {
        let parts = self.0.each_ref().map(DeviceBuffer::all);
        let [points, confidence, descriptors, descriptor_confidence] = parts;
        DeviceView {
            points,
            confidence,
            descriptors,
            descriptor_confidence,
            unusable: None,
        }
    }

    fn read(&self, stream: &Stream) -> ViewOutput {
        let [points, confidence, descriptors, descriptor_confidence] = self
            .0
            .each_ref()
            .map(|b| stream.read_vec(b.all()).expect("read"));
        ViewOutput {
            points,
            confidence,
            descriptors,
            descriptor_confidence,
        }
    }

    fn clear(&self, stream: &Stream) {
        for buffer in &self.0 {
            stream.fill(buffer.all(), 0).expect("filled");
        }
    }
}

/// The graph takes over after a few runs: each run's outputs are those of the host's interface, for
/// several sets of buffers in turn, and within another capture.
#[test]
fn what_is_computed_in_place_is_what_the_host_gets() {
    let context = match Context::open(0, &KernelImages::NONE) {
        Ok(context) => context,
        Err(error @ (CudaError::NoDriver | CudaError::NoDevice)) => {
            skip(Need::Cuda, error);
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let options = OnnxRuntimeOptions {
        provider: Some(Provider::Cuda),
        ..options()
    };
    let network = tiny_network(tiny_checkpoint());
    let before = allocations();
    let made = OnnxRuntimeBackend::new(network, SIZE.0, SIZE.1, &options);
    let Some(mut backend) = unless_missing(made) else {
        return;
    };
    let shape = backend.shape().clone();
    let dim = shape.descriptor_dim;

    // Through the host.
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

    // In place, twice over: two handles on two streams.
    let mut other = backend.share();
    for (backend, priority) in [
        (&mut backend as &mut dyn Backend, Priority::High),
        (other.as_mut(), Priority::Low),
    ] {
        let stream = context.stream(priority).expect("a stream");
        let mut carving = Carving::separate(&context);
        let mut part = carving.part(Group::Network, "test");
        let planes: DeviceBuffer<f32> = part.device("planes", &[3 * shape.pixels()]).expect("room");
        let count = tokens[0].len();
        let all: DeviceBuffer<f32> = part.device("tokens", &[4 * count]).expect("room");
        let both = all.part(0..2 * count).expect("a half");
        let features = [0, 1].map(|k| all.part(k * count..(k + 1) * count).expect("one of four"));
        let of_all = [0, 1].map(|_| View::carve(&mut part, &shape));
        let views = of_all.each_ref().map(|view| view.of_pairs(0, 1));
        let outputs = [views[0].view(), views[1].view()];
        for round in 0..6 {
            for (image, (to, expected)) in images.iter().zip(features.iter().zip(&tokens)) {
                let pixels = shape.pixels();
                let values: Vec<f32> = (0..3 * pixels)
                    .map(|k| f32::from(image.data[k % pixels * 3 + k / pixels]) / 127.5 - 1.0)
                    .collect();
                stream.write(&values, planes.all()).expect("written");
                stream.fill(to.all(), 0).expect("filled");
                let device = backend.device().expect("on the GPU");
                let encoded = device.enqueue_encode(&stream, planes.all(), to.all().into());
                encoded.expect("encoded");
                let found = stream.read_vec(to.all()).expect("read");
                let error =
                    testkit::networks::relative_error(&found, expected, shape.feature_dim, 1e-3);
                assert!(error < 1e-4, "round {round}: {error}");
            }
            for ((i, j), expected) in [(0, 1), (1, 0)].into_iter().zip(&expected) {
                views.iter().for_each(|view| view.clear(&stream));
                let pair = [features[i].all().into(), features[j].all().into()];
                let device = backend.device().expect("on the GPU");
                let decoded = device.enqueue_decode(&stream, pair, outputs);
                decoded.expect("decoded");
                assert_near(&views[0].read(&stream), &expected.view1, dim);
                assert_near(&views[1].read(&stream), &expected.view2, dim);
            }
            // View 1 alone, and both ways at once.
            views.iter().for_each(|view| view.clear(&stream));
            let pair = [features[0].all().into(), features[1].all().into()];
            let device = backend.device().expect("on the GPU");
            let decoded = device.enqueue_decode_view1(&stream, pair, outputs);
            decoded.expect("decoded");
            assert_near(&views[0].read(&stream), &expected[0].view1, dim);
            // One edge, then two, of which the second is the first one turned round.
            for (k, from) in [(2, &features[1]), (3, &features[0])] {
                let to = all.slice(k * count..(k + 1) * count).expect("one of four");
                stream.copy(from.all(), to).expect("copied");
            }
            for (edges, tokens, ways) in [(1, &both, &[0, 1][..]), (2, &all, &[0, 1, 1, 0])] {
                of_all.iter().for_each(|view| view.clear(&stream));
                let views = of_all.each_ref().map(|view| view.of_pairs(0, 2 * edges));
                let outputs = views.each_ref().map(View::view);
                let device = backend.device().expect("on the GPU");
                let decoded =
                    device.enqueue_decode_edges(&stream, edges, tokens.all().into(), outputs);
                decoded.expect("decoded");
                for (item, &way) in ways.iter().enumerate() {
                    let found = of_all.each_ref().map(|view| view.of_pairs(item, 1));
                    assert_near(&found[0].read(&stream), &expected[way].view1, dim);
                    assert_near(&found[1].read(&stream), &expected[way].view2, dim);
                }
            }
        }
        // A run is a graph of its own, not a part of another; the refusal harms neither.
        let pair = [features[0].all().into(), features[1].all().into()];
        let device = backend.device().expect("on the GPU");
        let graph = stream.capture(|| -> Result<(), Box<dyn std::error::Error>> {
            Ok(device.enqueue_decode(&stream, pair, outputs)?)
        });
        let refused = graph.err().expect("refused").to_string();
        assert!(refused.contains("a graph of its own"), "{refused}");
        views.iter().for_each(|view| view.clear(&stream));
        let decoded = device.enqueue_decode(&stream, pair, outputs);
        decoded.expect("decoded");
        assert_near(&views[0].read(&stream), &expected[0].view1, dim);
        // Buffers of other sizes are refused.
        let short = planes.slice(1..planes.len()).expect("all but one value");
        let device = backend.device().expect("on the GPU");
        let refused = device.enqueue_encode(&stream, short, pair[0]);
        assert!(matches!(refused, Err(InferenceError::Shape { .. })));
    }
    // The weights are in the count and in what the network says that it holds.
    let holds = backend.device().expect("on the GPU").holds();
    assert!(
        holds
            .iter()
            .any(|held| held.name == "weights" && held.bytes > 0)
    );
    assert!(allocations().device > before.device + 2);
}
