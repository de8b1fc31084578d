//! Inference in place on the GPU: inputs and outputs are the caller's buffers.
//!
//! A session either works on its own stream ([`super::lane`]), synchronised with the caller's by
//! events, or its captured graph runs on the caller's stream.

use super::binding::Tensor;
use super::error::{RUNTIME, failure};
use super::lane::Lane;
use super::session::Part;
use super::shared::SharedWeights;
use super::{Held, OnnxRuntimeBackend};
use crate::gpu::{Context, DeviceSlice, Floats, KernelImages, Priority, Stream};
use crate::inference::device::single_precision as single;
use crate::inference::{DeviceBackend, DeviceView, Holding, InferenceError, NetworkShape};
use crate::network::onnx::names;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The first GPU, shared by ONNX Runtime and SLAM.
pub(super) struct Gpu {
    context: Context,
    /// Free memory in bytes when it was opened.
    free: u64,
}

impl Gpu {
    pub(super) fn open() -> Result<Self, InferenceError> {
        let context = Context::open(0, &KernelImages::NONE);
        let context = context.map_err(|error| InferenceError::Unavailable {
            runtime: RUNTIME,
            reason: format!("no GPU for its CUDA provider: {error}"),
        })?;
        let (free, _) = context.memory()?;
        Ok(Self { context, free })
    }

    /// Device memory in bytes allocated since it was opened, by this or other processes.
    pub(super) fn taken(&self) -> u64 {
        let (free, _) = self.context.memory().unwrap_or_default();
        self.free.saturating_sub(free)
    }

    /// Storage for weights on this GPU.
    pub(super) fn weights(&self) -> Result<Arc<SharedWeights>, InferenceError> {
        Ok(Arc::new(SharedWeights::new(&self.context)?))
    }

    /// Creates a stream for one session's work.
    pub(super) fn lane(&self, priority: Priority) -> Result<Lane, InferenceError> {
        // The library uses the current context of the thread.
        self.context.bind()?;
        Lane::new(&self.context, priority)
    }
}

impl OnnxRuntimeBackend {
    /// A session of `part` with a stream of the same priority as the caller's.
    fn on_stream(&mut self, part: Part, caller: &Stream) -> Result<&mut Held, InferenceError> {
        if let Some(gpu) = &self.loaded.gpu {
            gpu.context.bind()?;
        }
        let priority = caller.priority();
        let fits = |held: &Held| {
            let lane = held.lane.as_ref();
            held.part == part && lane.is_some_and(|lane| lane.priority() == priority)
        };
        let at = match self.held.iter().position(fits) {
            Some(at) => at,
            None => {
                let mut idle = self.loaded.idle();
                let held = match idle.iter().position(fits) {
                    Some(at) => idle.swap_remove(at),
                    None => self.loaded.build(part, priority)?,
                };
                drop(idle);
                self.held.push(held);
                self.held.len() - 1
            }
        };
        let held = self.held.get_mut(at);
        held.ok_or_else(|| failure(part.loading(), "no session"))
    }

    fn enqueue(
        &mut self,
        part: Part,
        stream: &Stream,
        inputs: &[DeviceSlice<'_, f32>],
        views: &[DeviceView<'_>],
        features: Option<DeviceSlice<'_, f32>>,
    ) -> Result<(), InferenceError> {
        let tensors = tensors(part, &self.loaded.shape, inputs, views, features);
        for tensor in &tensors {
            let expected = tensor.shape.num_elements();
            if tensor.slice.len() != expected {
                return Err(InferenceError::Shape {
                    what: tensor.name,
                    expected: format!("{expected} values"),
                    found: format!("{} values", tensor.slice.len()),
                });
            }
        }
        let held = self.on_stream(part, stream)?;
        let Some(lane) = &mut held.lane else {
            return Err(failure(part.running(), "no stream"));
        };
        lane.enqueue(&mut held.session.session, part, stream, &tensors)
    }
}

/// Inputs and outputs of `part`.
fn tensors<'a>(
    part: Part,
    shape: &NetworkShape,
    inputs: &[DeviceSlice<'a, f32>],
    views: &[DeviceView<'a>],
    features: Option<DeviceSlice<'a, f32>>,
) -> Vec<Tensor<'a>> {
    let tensor = |name, input, slice, extents: &[usize]| Tensor {
        name,
        input,
        slice,
        shape: extents.iter().map(|&n| n as i64).collect(),
    };
    let (w, h, d) = (shape.width, shape.height, shape.descriptor_dim);
    let batch = match part {
        Part::Edges(edges) => 2 * edges,
        _ => 1,
    };
    let tokens = [batch, shape.tokens, shape.feature_dim];
    let image = [1, 3, h, w];
    let of_inputs: &[usize] = match part {
        Part::Encoder => &image,
        _ => &tokens,
    };
    let mut tensors: Vec<Tensor<'a>> = (part.inputs().iter().zip(inputs))
        .map(|(name, &slice)| tensor(*name, true, slice, of_inputs))
        .collect();
    tensors.extend(features.map(|slice| tensor(names::FEATURES, false, slice, &tokens)));
    for (view, out) in views.iter().enumerate() {
        tensors.extend([
            tensor(names::POINTS[view], false, out.points, &[batch, h, w, 3]),
            tensor(
                names::CONFIDENCE[view],
                false,
                out.confidence,
                &[batch, h, w],
            ),
            tensor(
                names::DESCRIPTORS[view],
                false,
                out.descriptors,
                &[batch, h, w, d],
            ),
            tensor(
                names::DESCRIPTOR_CONFIDENCE[view],
                false,
                out.descriptor_confidence,
                &[batch, h, w],
            ),
        ]);
    }
    tensors
}

impl DeviceBackend for OnnxRuntimeBackend {
    fn holds(&self) -> Vec<Holding> {
        let weights = self.loaded.weights.as_ref();
        vec![
            Holding {
                name: "weights",
                bytes: weights.map_or(0, |weights| weights.bytes()),
            },
            Holding {
                name: "activations of ONNX Runtime",
                bytes: self.loaded.activations.load(Ordering::Relaxed),
            },
        ]
    }

    /// The self-test ran encoder and decoder. Decoding a single image needs less than the decoder;
    /// each number of edges decoded at once (powers of two) has its own session and needs twice as
    /// much.
    fn still_takes(&self, edges: usize) -> u64 {
        let sessions = std::iter::successors(Some(1), |n| Some(2 * n));
        let together: u64 = sessions.take_while(|&n| n <= edges as u64).sum();
        (1 + 2 * together) * self.loaded.activations.load(Ordering::Relaxed)
    }

    fn prepare(&mut self, edges: usize) -> Result<(), InferenceError> {
        let loaded = &*self.loaded;
        let of_edges = (1..=edges).filter(|n| n.is_power_of_two());
        let of_edges = of_edges.map(|n| (Part::Edges(n), Priority::Low));
        let parts = std::iter::once((Part::View1, Priority::High)).chain(of_edges);
        let build = |(part, priority)| move || loaded.build(part, priority);
        loaded.at_once(parts.map(build).collect())
    }

    fn enqueue_encode(
        &mut self,
        stream: &Stream,
        planes: DeviceSlice<'_, f32>,
        features: Floats<'_>,
    ) -> Result<(), InferenceError> {
        let features = single(features)?;
        self.enqueue(Part::Encoder, stream, &[planes], &[], Some(features))
    }

    fn enqueue_decode(
        &mut self,
        stream: &Stream,
        [first, second]: [Floats<'_>; 2],
        views: [DeviceView<'_>; 2],
    ) -> Result<(), InferenceError> {
        let features = [single(first)?, single(second)?];
        self.enqueue(Part::Decoder, stream, &features, &views, None)
    }

    fn enqueue_decode_view1(
        &mut self,
        stream: &Stream,
        [first, second]: [Floats<'_>; 2],
        [view, _]: [DeviceView<'_>; 2],
    ) -> Result<(), InferenceError> {
        let features = [single(first)?, single(second)?];
        self.enqueue(Part::View1, stream, &features, &[view], None)
    }

    fn enqueue_decode_edges(
        &mut self,
        stream: &Stream,
        edges: usize,
        features: Floats<'_>,
        views: [DeviceView<'_>; 2],
    ) -> Result<(), InferenceError> {
        let features = single(features)?;
        self.enqueue(Part::Edges(edges), stream, &[features], &views, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::InputSize;
    use crate::network::load_network;
    use crate::network::onnx::EmitOptions;
    use std::path::Path;

    #[test]
    fn what_is_bound_is_what_the_models_declare() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let weights = root.join("tests/data/network/tiny-random.pth");
        let network = load_network(&weights).expect("in the repository");
        let size = InputSize::new(1, 80, 48).expect("multiples of 16");
        let shape = NetworkShape {
            width: size.width,
            height: size.height,
            tokens: size.tokens(),
            feature_dim: network.architecture.encoder.width,
            descriptor_dim: network.architecture.descriptor_dim,
        };
        let slice = DeviceSlice::EMPTY;
        let view = DeviceView {
            points: slice,
            confidence: slice,
            descriptors: slice,
            descriptor_confidence: slice,
            unusable: None,
        };
        for (part, inputs, views, features) in [
            (Part::Encoder, 1, 0, Some(slice)),
            (Part::Decoder, 2, 2, None),
            (Part::View1, 2, 1, None),
            (Part::Edges(1), 1, 2, None),
            (Part::Edges(3), 1, 2, None),
        ] {
            let tensors = tensors(
                part,
                &shape,
                &vec![slice; inputs],
                &vec![view; views],
                features,
            );
            let mut bound: Vec<(&str, Vec<usize>)> = tensors
                .iter()
                .map(|t| (t.name, t.shape.iter().map(|&n| n as usize).collect()))
                .collect();
            let model = part.emit(&network, size, EmitOptions::default());
            let model = model.expect("edges");
            let mut declared = model.tensors();
            bound.sort();
            declared.sort();
            assert_eq!(bound, declared, "{part:?}");
        }
    }
}
