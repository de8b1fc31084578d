//! The network in the GPU's memory, where there is a GPU.

use super::{assert_near, options, unless_missing};
use crate::network_support::{noise_image, tiny_checkpoint, tiny_network};
use mast3r_slam::compute::cuda::{
    Context, CudaError, DeviceArena, DeviceBuffer, Element, Priority, Stream,
};
use mast3r_slam::inference::onnxruntime::{OnnxRuntimeBackend, OnnxRuntimeOptions, Provider};
use mast3r_slam::inference::{
    Backend, DeviceSpan, DeviceViewOutput, InferenceError, NetworkShape, PairOutput, ViewOutput,
};

const SIZE: (usize, usize) = (80, 48);

fn span<T: Element>(buffer: &DeviceBuffer<T>) -> DeviceSpan {
    DeviceSpan {
        address: buffer.all().address(),
        bytes: buffer.all().bytes(),
    }
}

struct View([DeviceBuffer<f32>; 4]);

impl View {
    /// For both ways of two edges.
    fn carve(arena: &mut DeviceArena, shape: &NetworkShape) -> Self {
        let n = 4 * shape.pixels();
        Self([3, 1, shape.descriptor_dim, 1].map(|k| arena.carve("view", k * n).expect("room")))
    }

    /// Of the first `count` of the four pairs from `which` on.
    fn of_pairs(&self, which: usize, count: usize) -> Self {
        Self(self.0.each_ref().map(|buffer| {
            let each = buffer.len() / 4;
            let pairs = buffer.part(which * each..(which + count) * each);
            pairs.expect("some of four")
        }))
    }

    fn spans(&self) -> DeviceViewOutput {
        let [points, confidence, descriptors, descriptor_confidence] = self.0.each_ref().map(span);
        DeviceViewOutput {
            points,
            confidence,
            descriptors,
            descriptor_confidence,
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
    let context = match Context::open(0) {
        Ok(context) => context,
        Err(error @ (CudaError::NoDriver | CudaError::NoDevice)) => {
            println!("skipped: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let options = OnnxRuntimeOptions {
        provider: Some(Provider::Cuda),
        ..options()
    };
    let network = tiny_network(tiny_checkpoint());
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
        let mut arena = DeviceArena::new(&context, "a test", 64 << 20).expect("memory");
        let planes: DeviceBuffer<f32> = arena.carve("planes", 3 * shape.pixels()).expect("room");
        let count = tokens[0].len();
        let all: DeviceBuffer<f32> = arena.carve("tokens", 4 * count).expect("room");
        let both = all.part(0..2 * count).expect("a half");
        let features = [0, 1].map(|k| all.part(k * count..(k + 1) * count).expect("one of four"));
        let of_all = [0, 1].map(|_| View::carve(&mut arena, &shape));
        let views = of_all.each_ref().map(|view| view.of_pairs(0, 1));
        let outputs = [views[0].spans(), views[1].spans()];
        for round in 0..6 {
            for (image, (to, expected)) in images.iter().zip(features.iter().zip(&tokens)) {
                let pixels = shape.pixels();
                let values: Vec<f32> = (0..3 * pixels)
                    .map(|k| f32::from(image.data[k % pixels * 3 + k / pixels]) / 127.5 - 1.0)
                    .collect();
                stream.write(&values, planes.all()).expect("written");
                stream.fill(to.all(), 0).expect("filled");
                let device = backend.device().expect("on the GPU");
                // SAFETY: all are buffers of this test, which waits below.
                unsafe { device.enqueue_encode(stream.raw(), span(&planes), span(to)) }
                    .expect("encoded");
                let found = stream.read_vec(to.all()).expect("read");
                let error = crate::network_support::relative_error(
                    &found,
                    expected,
                    shape.feature_dim,
                    1e-3,
                );
                assert!(error < 1e-4, "round {round}: {error}");
            }
            for ((i, j), expected) in [(0, 1), (1, 0)].into_iter().zip(&expected) {
                views.iter().for_each(|view| view.clear(&stream));
                let pair = [span(&features[i]), span(&features[j])];
                let device = backend.device().expect("on the GPU");
                // SAFETY: as above.
                unsafe { device.enqueue_decode(stream.raw(), pair, outputs) }.expect("decoded");
                assert_near(&views[0].read(&stream), &expected.view1, dim);
                assert_near(&views[1].read(&stream), &expected.view2, dim);
            }
            // View 1 alone, and both ways at once.
            views.iter().for_each(|view| view.clear(&stream));
            let pair = [span(&features[0]), span(&features[1])];
            let device = backend.device().expect("on the GPU");
            // SAFETY: as above.
            unsafe { device.enqueue_decode_view1(stream.raw(), pair, outputs) }.expect("decoded");
            assert_near(&views[0].read(&stream), &expected[0].view1, dim);
            // One edge, then two, of which the second is the first one turned round.
            for (k, from) in [(2, &features[1]), (3, &features[0])] {
                let to = all.slice(k * count..(k + 1) * count).expect("one of four");
                stream.copy(from.all(), to).expect("copied");
            }
            for (edges, tokens, ways) in [(1, &both, &[0, 1][..]), (2, &all, &[0, 1, 1, 0])] {
                of_all.iter().for_each(|view| view.clear(&stream));
                let views = of_all.each_ref().map(|view| view.of_pairs(0, 2 * edges));
                let spans = views.each_ref().map(View::spans);
                let device = backend.device().expect("on the GPU");
                // SAFETY: as above.
                unsafe { device.enqueue_decode_edges(stream.raw(), edges, span(tokens), spans) }
                    .expect("decoded");
                for (item, &way) in ways.iter().enumerate() {
                    let found = of_all.each_ref().map(|view| view.of_pairs(item, 1));
                    assert_near(&found[0].read(&stream), &expected[way].view1, dim);
                    assert_near(&found[1].read(&stream), &expected[way].view2, dim);
                }
            }
        }
        // A run is a graph of its own, not a part of another; the refusal harms neither.
        let pair = [span(&features[0]), span(&features[1])];
        let device = backend.device().expect("on the GPU");
        let graph = stream.capture(|| -> Result<(), Box<dyn std::error::Error>> {
            // SAFETY: as above.
            Ok(unsafe { device.enqueue_decode(stream.raw(), pair, outputs) }?)
        });
        let refused = graph.err().expect("refused").to_string();
        assert!(refused.contains("a graph of its own"), "{refused}");
        views.iter().for_each(|view| view.clear(&stream));
        // SAFETY: as above.
        unsafe { device.enqueue_decode(stream.raw(), pair, outputs) }.expect("decoded");
        assert_near(&views[0].read(&stream), &expected[0].view1, dim);
        // Buffers of other sizes are refused.
        let short = DeviceSpan {
            bytes: span(&planes).bytes - 4,
            ..span(&planes)
        };
        let device = backend.device().expect("on the GPU");
        // SAFETY: nothing is enqueued.
        let refused = unsafe { device.enqueue_encode(stream.raw(), short, pair[0]) };
        assert!(matches!(refused, Err(InferenceError::Shape { .. })));
    }
}
