//! In the caller's buffers on the GPU.

use super::{
    Architecture, Backend, Checkpoint, DeviceView, NativeBackend, Network, NetworkShape,
    PRECISIONS, PairOutput, Precision, RgbImage, ViewOutput, bundled, noise_image,
    random_checkpoint, set, tiny_checkpoint, tiny_network, wide_network,
};
use crate::cuda;
use half::f16;
use mast3r_slam::compute::device::{KeyframeContent, Setup};
use mast3r_slam::config::{Config, DeviceConfig};
use mast3r_slam::gpu::plan::Group;
use mast3r_slam::gpu::{
    Carver, Carving, Context, DeviceBuffer, FloatBuffer, Priority, Stream, allocations,
};
use mast3r_slam::inference::sanitise;
use std::ops::RangeBounds;
use std::sync::Arc;

const SIZE: (usize, usize) = (80, 48);

/// The outputs of one view of some pairs, and counts of their unusable pixels.
pub struct View {
    outputs: [DeviceBuffer<f32>; 4],
    unusable: DeviceBuffer<u32>,
}

impl View {
    pub fn carve(part: &mut Carver<'_, '_>, shape: &NetworkShape, pairs: usize) -> Self {
        let n = pairs * shape.pixels();
        let widths = [3, 1, shape.descriptor_dim, 1];
        Self {
            outputs: widths.map(|k| part.device("view", &[n, k]).expect("memory")),
            unusable: part.device("unusable", &[pairs]).expect("memory"),
        }
    }

    /// The pairs `first..last` of `pairs`.
    pub fn of_pairs(&self, pairs: usize, first: usize, last: usize) -> Self {
        Self {
            outputs: self.outputs.each_ref().map(|buffer| {
                let each = buffer.len() / pairs;
                buffer
                    .part(first * each..last * each)
                    .expect("some of them")
            }),
            unusable: self.unusable.part(first..last).expect("some of them"),
        }
    }

    /// What is to stay as it is computed.
    pub fn view(&self) -> DeviceView<'_> {
        let parts = self.outputs.each_ref().map(DeviceBuffer::all);
        let [points, confidence, descriptors, descriptor_confidence] = parts;
        DeviceView {
            points,
            confidence,
            descriptors,
            descriptor_confidence,
            unusable: None,
        }
    }

    /// What is to be sanitised if asked for.
    fn maybe_sanitised(&self, sanitised: bool) -> DeviceView<'_> {
        match sanitised {
            true => self.view().counting(self.unusable.all()),
            false => self.view(),
        }
    }

    pub fn read(&self, stream: &Stream) -> ViewOutput {
        let read = |buffer: &DeviceBuffer<f32>| stream.read_vec(buffer.all()).expect("read");
        let [points, confidence, descriptors, descriptor_confidence] =
            self.outputs.each_ref().map(read);
        ViewOutput {
            points,
            confidence,
            descriptors,
            descriptor_confidence,
        }
    }

    pub fn clear(&self, stream: &Stream) {
        for buffer in &self.outputs {
            stream.fill(buffer.all(), 0xff).expect("filled");
        }
        stream.fill(self.unusable.all(), 0xff).expect("filled");
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

/// The same for networks whose outputs are partly unusable, or too confident.
mod what_is_sanitised_in_place_is_what_the_cpu_sanitises {
    use super::*;

    #[test]
    fn in_half_precision() {
        sanitised_as_on_the_cpu(tiny_checkpoint(), Precision::F16);
    }

    #[test]
    fn in_bfloat16() {
        sanitised_as_on_the_cpu(tiny_checkpoint(), Precision::Bf16);
    }

    #[test]
    fn by_kernels_for_32_channels_in_half_precision() {
        sanitised_as_on_the_cpu(checkpoint_of_32_channels(), Precision::F16);
    }

    #[test]
    fn by_kernels_for_32_channels_in_bfloat16() {
        sanitised_as_on_the_cpu(checkpoint_of_32_channels(), Precision::Bf16);
    }
}

/// A network whose last layers have kernels of their own.
fn checkpoint_of_32_channels() -> Checkpoint {
    random_checkpoint(&Architecture {
        output_dims: [32, 32],
        feature_dim: 64,
        ..tiny_network(tiny_checkpoint()).architecture
    })
}

fn sanitised_as_on_the_cpu(checkpoint: Checkpoint, precision: Precision) {
    let network = tiny_network(broken(checkpoint));
    let Some(found) = in_place_is_as_on_the_host(&network, precision) else {
        return;
    };
    let pixels = 4 * SIZE.0 * SIZE.1;
    assert!((pixels / 20..pixels).contains(&found.unusable), "{found:?}");
    // Only binary16 overflows.
    let overflows = precision == Precision::F16;
    assert_eq!(found.without_descriptor > 0, overflows, "{found:?}");
}

/// Each kind of run once: few enough launches for tools that watch every access.
mod each_kind_of_run_is_sanitised_once {
    use super::*;

    fn once(network: &Network) {
        let once = (&[Priority::High][..], &[(true, true)][..], 1);
        runs_are_as_on_the_host(network, Precision::F16, once);
    }

    #[test]
    fn of_the_bundled_network() {
        once(&bundled());
    }

    #[test]
    fn of_32_channels() {
        once(&tiny_network(broken(checkpoint_of_32_channels())));
    }

    #[test]
    fn of_other_channels() {
        once(&tiny_network(broken(tiny_checkpoint())));
    }

    #[test]
    fn of_the_official_kinds_of_layers() {
        once(&wide_network());
    }
}

/// A network with points too far away and with infinite values, descriptors that are no numbers and confidences beyond
/// all limits, each at some pixels.
fn broken(mut checkpoint: Checkpoint) -> Checkpoint {
    for view in 1..=2 {
        let head = format!("downstream_head{view}");
        // Points of e^‖a‖, and confidences of e^κ: a few beyond 1e6, fewer beyond binary32.
        scale(
            &mut checkpoint,
            &format!("{head}.dpt.head.4.weight"),
            0..,
            150.0,
        );
        // The first pixel of each patch gets a descriptor beyond binary16, and all get large confidences.
        let layer = format!("{head}.head_local_features.fc2");
        let shape = checkpoint.tensors[&format!("{layer}.weight")].shape.clone();
        let pixels = 16 * 16;
        let confidences = shape[0] - pixels;
        scale(
            &mut checkpoint,
            &format!("{layer}.weight"),
            confidences * shape[1]..,
            60.0,
        );
        let bias = format!("{layer}.bias");
        let values = checkpoint.tensors[&bias].to_f32();
        set(&mut checkpoint, &bias, |at| match at {
            0 => 1e6,
            _ => values[at],
        });
    }
    checkpoint
}

/// Multiplies some values of a tensor.
fn scale(checkpoint: &mut Checkpoint, name: &str, of: impl RangeBounds<usize>, by: f32) {
    let values = checkpoint.tensors[name].to_f32();
    set(checkpoint, name, |at| match of.contains(&at) {
        true => by * values[at],
        false => values[at],
    });
}

/// Compares a network in the caller's buffers with its interface through the host, with tokens in either precision, and
/// outputs as they are and sanitised.
fn in_place_is_as_on_the_host(network: &Network, precision: Precision) -> Option<Broken> {
    let handles = [Priority::High, Priority::Low];
    let kinds = [(false, false), (false, true), (true, true)];
    runs_are_as_on_the_host(network, precision, (&handles, &kinds, 3))
}

/// For handles of these priorities, the first of which made the network, and these kinds of runs: whether tokens are in
/// half precision, and whether outputs are sanitised.
fn runs_are_as_on_the_host(
    network: &Network,
    precision: Precision,
    (priorities, kinds, rounds): (&[Priority], &[(bool, bool)], usize),
) -> Option<Broken> {
    let gpu = cuda()?;
    let mut backend =
        NativeBackend::new(network, SIZE.0, SIZE.1, Some(precision)).expect("the GPU");
    let shape = backend.shape().clone();
    let images = [1, 2].map(|seed| noise_image(seed, SIZE.0, SIZE.1));
    let mut tokens = [0, 1].map(|_| vec![0.0; shape.tokens * shape.feature_dim]);
    for (image, tokens) in images.iter().zip(&mut tokens) {
        backend.encode(image, tokens).expect("encoded");
    }
    let raw = [(0, 1), (1, 0)].map(|(i, j)| {
        let mut out = PairOutput::zeros(&shape);
        backend
            .decode(&tokens[i], &tokens[j], &mut out)
            .expect("decoded");
        out
    });
    assert!(raw[0] != raw[1]);
    let mut sound = raw.clone();
    let unusable = sound.each_mut().map(|pair| {
        let views = [&mut pair.view1, &mut pair.view2];
        views.map(|view| sanitise(view) as u32)
    });

    let half_tokens = backend.device().expect("on the GPU").takes_half_tokens();
    assert_eq!(half_tokens, precision != Precision::Bf16);
    let mut other = backend.share();
    let handles = [&mut backend as &mut dyn Backend, other.as_mut()];
    for (backend, &priority) in handles.into_iter().zip(priorities) {
        for &(half, sanitised) in kinds {
            if half && !half_tokens {
                continue;
            }
            let expected = Outputs {
                tokens: &tokens,
                pairs: if sanitised { &sound } else { &raw },
                unusable: sanitised.then_some(&unusable),
            };
            let mut run = InPlace::new(&gpu, backend, priority, half);
            run.compare(&images, &expected, rounds);
        }
    }
    let descriptors = raw.iter().flat_map(|pair| [&pair.view1, &pair.view2]);
    let descriptors = descriptors.flat_map(|view| view.descriptors.chunks(shape.descriptor_dim));
    let broken = descriptors.filter(|values| values.iter().any(|v| !v.is_finite()));
    Some(Broken {
        unusable: unusable.as_flattened().iter().sum::<u32>() as usize,
        without_descriptor: broken.count(),
    })
}

/// Pixels of two pairs.
#[derive(Debug)]
struct Broken {
    unusable: usize,
    without_descriptor: usize,
}

/// What is expected of two images.
struct Outputs<'a> {
    tokens: &'a [Vec<f32>; 2],
    /// Both ways.
    pairs: &'a [PairOutput; 2],
    /// Counts for both pairs' views; `None`: the outputs are not sanitised.
    unusable: Option<&'a [[u32; 2]; 2]>,
}

/// A network with buffers for two edges.
struct InPlace<'a> {
    backend: &'a mut dyn Backend,
    shape: NetworkShape,
    stream: Stream,
    planes: DeviceBuffer<f32>,
    /// Tokens of four images, and of each.
    all: FloatBuffer,
    features: [FloatBuffer; 4],
    /// As many in the other precision.
    other: FloatBuffer,
    of_all: [View; 2],
}

impl<'a> InPlace<'a> {
    fn new(
        context: &Context,
        backend: &'a mut dyn Backend,
        priority: Priority,
        half: bool,
    ) -> Self {
        let shape = backend.shape().clone();
        let stream = context.stream(priority).expect("a stream");
        let mut carving = Carving::separate(context);
        let mut part = carving.part(Group::Network, "test");
        let planes = (part.device("planes", &[3, shape.pixels()])).expect("memory");
        let count = shape.tokens * shape.feature_dim;
        let all = FloatBuffer::carve(&mut part, "tokens", &[4, count], half).expect("memory");
        let image = |k: usize| all.part(k * count..(k + 1) * count).expect("one of four");
        let features = [0, 1, 2, 3].map(image);
        let other = FloatBuffer::carve(&mut part, "other", &[count], !half).expect("memory");
        let of_all = [0, 1].map(|_| View::carve(&mut part, &shape, 4));
        let device = backend.device().expect("on the GPU");
        let bytes = device.workspace_bytes(2).expect("planned");
        assert!(bytes >= device.workspace_bytes(0).expect("planned"));
        let workspace: DeviceBuffer<u8> = part.device("workspace", &[bytes]).expect("memory");
        stream.fill(workspace.all(), 0xff).expect("filled");
        device.use_workspace(workspace).expect("given");
        Self {
            backend,
            shape,
            stream,
            planes,
            all,
            features,
            other,
            of_all,
        }
    }

    fn clear(&self) {
        self.of_all.iter().for_each(|view| view.clear(&self.stream));
    }

    /// Encodes an image in place as number `k`, and compares its tokens.
    fn encode(&mut self, k: usize, image: &RgbImage, expected: &[f32]) {
        let pixels = self.shape.pixels();
        let values: Vec<f32> = (0..3 * pixels)
            .map(|k| f32::from(image.data[k % pixels * 3 + k / pixels]) / 127.5 - 1.0)
            .collect();
        self.stream
            .write(&values, self.planes.all())
            .expect("written");
        let to = &self.features[k];
        to.clear(&self.stream).expect("cleared");
        let device = self.backend.device().expect("on the GPU");
        device
            .enqueue_encode(&self.stream, self.planes.all(), to.all())
            .expect("encoded");
        let right = match to {
            FloatBuffer::F32(to) => self.stream.read_vec(to.all()).expect("read") == expected,
            FloatBuffer::F16(to) => {
                let expected: Vec<f16> = expected.iter().copied().map(f16::from_f32).collect();
                self.stream.read_vec(to.all()).expect("read") == expected
            }
        };
        assert!(right, "image {k}");
    }

    /// Decodes images `i` and `j` in place, in the way of `call`.
    fn decode(&mut self, [i, j]: [usize; 2], sanitised: bool, call: Call) {
        let views = self.of_all.each_ref().map(|view| view.of_pairs(4, 0, 1));
        let outputs = views.each_ref().map(|view| view.maybe_sanitised(sanitised));
        let pair = [self.features[i].all(), self.features[j].all()];
        self.clear();
        let device = self.backend.device().expect("on the GPU");
        let stream = &self.stream;
        match call {
            Call::Pair => device
                .enqueue_decode(stream, pair, outputs)
                .expect("decoded"),
            Call::View1 => {
                let decoded = device.enqueue_decode_view1(stream, pair, outputs);
                decoded.expect("decoded");
            }
            Call::Captured => {
                let graph = stream.capture(|| -> Result<(), Box<dyn std::error::Error>> {
                    Ok(device.enqueue_decode(stream, pair, outputs)?)
                });
                let graph = graph.expect("captured");
                // SAFETY: the buffers are there until the stream is read below.
                unsafe { graph.launch(stream) }.expect("launched");
            }
        }
    }

    /// Compares the first `views` views of output `item`.
    fn assert_is(
        &self,
        what: &str,
        (item, way): (usize, usize),
        views: usize,
        expected: &Outputs<'_>,
    ) {
        let pair = &expected.pairs[way];
        let both = self.of_all.iter().zip([&pair.view1, &pair.view2]);
        for (view, (found, values)) in both.enumerate().take(views) {
            let found = found.of_pairs(4, item, item + 1);
            let half = matches!(self.all, FloatBuffer::F16(_));
            let sanitised = expected.unusable.is_some();
            let what = format!(
                "half {half}, sanitised {sanitised}, {what}, output {item}, view {}",
                view + 1
            );
            assert!(same_bits(&found.read(&self.stream), values), "{what}");
            let count = self.stream.read_vec(found.unusable.all()).expect("read");
            let counts = expected
                .unusable
                .map_or(u32::MAX, |counts| counts[way][view]);
            assert_eq!(count, [counts], "{what}");
        }
    }

    fn compare(&mut self, images: &[RgbImage; 2], expected: &Outputs<'_>, rounds: usize) {
        let sanitised = expected.unusable.is_some();
        let mut before = allocations();
        for round in 0..rounds {
            for (k, (image, tokens)) in images.iter().zip(expected.tokens).enumerate() {
                self.encode(k, image, tokens);
            }
            for (way, pair) in [[0, 1], [1, 0]].into_iter().enumerate() {
                self.decode(pair, sanitised, Call::Pair);
                self.assert_is(&format!("round {round}"), (0, way), 2, expected);
            }
            for (call, views) in [(Call::Captured, 2), (Call::View1, 1)] {
                self.decode([0, 1], sanitised, call);
                self.assert_is(&format!("round {round}, {call:?}"), (0, 0), views, expected);
            }
            // One edge, then two, of which the second is the first one turned round.
            let count = self.all.len() / 4;
            let image = |k: usize| k * count..(k + 1) * count;
            for (from, to) in [(1, 2), (0, 3)] {
                let copied = self.all.copy_within(&self.stream, image(from), image(to));
                copied.expect("copied");
            }
            for (edges, ways) in [(1, &[0, 1][..]), (2, &[0, 1, 1, 0])] {
                self.clear();
                let tokens = self.all.part(0..2 * edges * count).expect("some of four");
                let views = (self.of_all.each_ref()).map(|view| view.of_pairs(4, 0, 2 * edges));
                let outputs = views.each_ref().map(|view| view.maybe_sanitised(sanitised));
                let device = self.backend.device().expect("on the GPU");
                device
                    .enqueue_decode_edges(&self.stream, edges, tokens.all(), outputs)
                    .expect("decoded");
                for (item, &way) in ways.iter().enumerate() {
                    self.assert_is(&format!("{edges} edges"), (item, way), 2, expected);
                }
            }
            if round == 0 {
                before = allocations();
            }
        }
        let after = allocations();
        assert_eq!((after.device, after.pinned), (before.device, before.pinned));
        self.others_are_refused();
    }

    /// Buffers of other sizes, and tokens of two kinds.
    fn others_are_refused(&mut self) {
        let views = self.of_all.each_ref().map(|view| view.of_pairs(4, 0, 1));
        let outputs = views.each_ref().map(View::view);
        let short = self
            .planes
            .slice(1..self.planes.len())
            .expect("all but one");
        let tokens = self.features[0]
            .part(0..self.features[0].len())
            .expect("all");
        let fewer = self.features[1].part(1..tokens.len()).expect("all but one");
        let counted = outputs.map(|view| view.counting(self.of_all[0].unusable.all()));
        let (stream, device) = (&self.stream, self.backend.device().expect("on the GPU"));
        let refused = device.enqueue_encode(stream, short, tokens.all());
        assert!(refused.is_err());
        for second in [fewer.all(), self.other.all()] {
            let refused = device.enqueue_decode(stream, [tokens.all(), second], outputs);
            assert!(refused.is_err());
        }
        let refused = device.enqueue_decode(stream, [tokens.all(); 2], counted);
        assert!(refused.is_err(), "four counts for one image");
    }
}

/// How a pair is decoded.
#[derive(Debug, Clone, Copy)]
enum Call {
    Pair,
    View1,
    /// In a graph of the caller's.
    Captured,
}

/// Whether all values have the same bits, or are both NaN.
fn same_bits(found: &ViewOutput, expected: &ViewOutput) -> bool {
    let slices = |view: &ViewOutput| {
        [
            view.points.clone(),
            view.confidence.clone(),
            view.descriptors.clone(),
            view.descriptor_confidence.clone(),
        ]
    };
    let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    let both = slices(found).into_iter().zip(slices(expected));
    both.into_iter()
        .all(|(a, b)| a.len() == b.len() && a.iter().zip(&b).all(same))
}

#[test]
fn without_a_workspace_a_run_is_refused() {
    let Some(gpu) = cuda() else { return };
    let network = tiny_network(tiny_checkpoint());
    let mut backend = NativeBackend::new(&network, SIZE.0, SIZE.1, None).expect("the GPU");
    let run = InPlace::new(&gpu, &mut backend, Priority::High, false);
    let mut bare = run.backend.share();
    let views = run.of_all.each_ref().map(|view| view.of_pairs(4, 0, 1));
    let outputs = views.each_ref().map(View::view);
    let pair = [run.features[0].all(), run.features[1].all()];
    let refused = bare
        .device()
        .expect("on the GPU")
        .enqueue_decode(&run.stream, pair, outputs);
    let error = refused.expect_err("refused").to_string();
    assert!(error.contains("has one of 0"), "{error}");
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
            confidence: mast3r_slam::compute::device::Floats::F32(vec![2.0; shape.pixels()]),
            features: Default::default(),
        };
        mapping.encode_keyframe(&mut content).expect("encoded");
        // As keyframes of such a network keep them.
        let expected: Vec<f16> = expected.into_iter().map(f16::from_f32).collect();
        assert!(content.features.to_f16() == expected, "keyframe {id}");
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
