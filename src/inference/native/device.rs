//! In place on the GPU: inputs and outputs are the caller's buffers, and a run on a set of buffers is a graph
//! that is recorded once. On a stream that is being captured, a run becomes part of that capture.

use super::operand::Addresses;
use super::pairs::Pairs;
use super::plan::{Plan, Side};
use super::{Loaded, NativeBackend, RUNTIME};
use crate::gpu::{DeviceBuffer, DeviceSlice, Floats, Graph, Priority, Stream};
use crate::inference::device::{check_len, single_precision};
use crate::inference::{DeviceBackend, DeviceView, Holding, InferenceError, LayerTime};

/// Sets of buffers for which a handle keeps a graph. Callers have a few; the oldest graph makes room.
const GRAPHS: usize = 32;

/// A part of the network that is run by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Part {
    Encoder,
    Pairs(Pairs),
}

impl Part {
    /// What a handle that encodes and decodes single pairs runs.
    pub(super) const SINGLE: [Self; 3] = [
        Self::Encoder,
        Self::Pairs(Pairs::First),
        Self::Pairs(Pairs::Both),
    ];

    /// What a handle runs that also decodes up to `edges` edges at once.
    pub(super) fn with_edges(edges: usize) -> Vec<Self> {
        let edges = (1..=edges).map(|n| Self::Pairs(Pairs::BothWays(n)));
        Self::SINGLE.into_iter().chain(edges).collect()
    }
}

/// What a handle has for runs in place.
#[derive(Default)]
pub(super) struct Device {
    graphs: Vec<Recorded>,
    workspace: Option<DeviceBuffer<u8>>,
    /// For the priority that was last recorded with.
    side: Option<Side>,
}

struct Recorded {
    part: Part,
    priority: Priority,
    addresses: Addresses,
    graph: Graph,
}

impl NativeBackend {
    /// Enqueues a part on the caller's buffers, whose sizes were checked.
    fn enqueue(
        &mut self,
        part: Part,
        stream: &Stream,
        addresses: Addresses,
    ) -> Result<(), InferenceError> {
        let (loaded, device) = (&*self.loaded, &mut self.device);
        let plan = loaded.plan(part)?;
        let addresses = Addresses {
            workspace: workspace_for(&plan, device.workspace.as_ref())?,
            ..addresses
        };
        let priority = stream.priority();
        if stream.is_capturing()? {
            let side = device
                .side
                .as_ref()
                .filter(|side| side.priority() == priority);
            // SAFETY: the slices' sizes were checked, and the caller keeps them; the workspace is this handle's,
            // and the weights stay with it.
            return Ok(unsafe { plan.enqueue(&loaded.kernels, stream, &addresses, side) }?);
        }
        let same = |known: &Recorded| {
            (known.part, known.priority, known.addresses) == (part, priority, addresses)
        };
        let at = match device.graphs.iter().position(same) {
            Some(at) => at,
            None => {
                if device.graphs.len() >= GRAPHS {
                    // Its last launch may still run.
                    stream.context().synchronize()?;
                    device.graphs.remove(0);
                }
                let side = match device.side.take() {
                    Some(side) if side.priority() == priority => side,
                    _ => Side::new(stream.context(), priority)?,
                };
                let side = device.side.insert(side);
                let graph = stream.capture(|| {
                    // SAFETY: it is only recorded; each launch below has the memory at hand.
                    unsafe { plan.enqueue(&loaded.kernels, stream, &addresses, Some(side)) }
                })?;
                graph.upload(stream)?;
                device.graphs.push(Recorded {
                    part,
                    priority,
                    addresses,
                    graph,
                });
                device.graphs.len() - 1
            }
        };
        if let Some(recorded) = device.graphs.get(at) {
            // SAFETY: as for the capture above.
            unsafe { recorded.graph.launch(stream) }?;
        }
        Ok(())
    }

    /// Enqueues a decoder's run, once all sizes are checked.
    fn enqueue_decoder(
        &mut self,
        pairs: Pairs,
        stream: &Stream,
        features: [Floats<'_>; 2],
        views: &[DeviceView<'_>],
    ) -> Result<(), InferenceError> {
        let shape = &self.loaded.shape;
        let items = pairs.items();
        let tokens = items * shape.tokens * shape.feature_dim;
        let half_tokens = match features {
            [Floats::F16(_), Floats::F16(_)] if self.takes_half_tokens() => true,
            [first, second] => {
                single_precision(first)?;
                single_precision(second)?;
                false
            }
        };
        let mut addresses = Addresses::new(self.loaded.weights.address());
        for (view, which) in views.iter().zip(0..2) {
            view.check_exactly(items, shape)?;
            addresses.outputs[which] = view.slices().map(|slice| slice.address());
            addresses.unusable[which] = view.unusable.map_or(0, |counts| counts.address());
        }
        for (slice, to) in features.into_iter().zip(&mut addresses.views) {
            check_len("features on the device", tokens, slice.len())?;
            *to = slice.address();
        }
        addresses.half_tokens = half_tokens;
        self.enqueue(Part::Pairs(pairs), stream, addresses)
    }
}

/// The address of the workspace, if it is large enough for `plan`.
fn workspace_for(plan: &Plan, given: Option<&DeviceBuffer<u8>>) -> Result<u64, InferenceError> {
    let bytes = given.map_or(0, DeviceBuffer::len);
    match given {
        Some(workspace) if bytes >= plan.workspace_bytes() => Ok(workspace.all().address()),
        _ => Err(InferenceError::Runtime {
            runtime: RUNTIME,
            doing: "starting a run",
            message: format!(
                "it needs a workspace of {} bytes and has one of {bytes}",
                plan.workspace_bytes()
            ),
        }),
    }
}

impl Loaded {
    /// The largest workspace of these parts.
    pub(super) fn workspace_for(&self, parts: &[Part]) -> Result<usize, InferenceError> {
        let mut largest = 0;
        for &part in parts {
            largest = largest.max(self.plan(part)?.workspace_bytes());
        }
        Ok(largest)
    }
}

impl DeviceBackend for NativeBackend {
    fn workspace_bytes(&mut self, edges: usize) -> Result<usize, InferenceError> {
        self.loaded.workspace_for(&Part::with_edges(edges))
    }

    fn encoder_workspace_bytes(&mut self) -> Result<Option<usize>, InferenceError> {
        self.loaded.workspace_for(&[Part::Encoder]).map(Some)
    }

    fn use_workspace(&mut self, workspace: DeviceBuffer<u8>) -> Result<(), InferenceError> {
        self.device = Device {
            graphs: Vec::new(),
            workspace: Some(workspace),
            side: None,
        };
        Ok(())
    }

    fn takes_any_batch(&self) -> bool {
        true
    }

    fn takes_half_tokens(&self) -> bool {
        self.loaded.format.half_tokens()
    }

    fn sanitises(&self) -> bool {
        true
    }

    fn holds(&self) -> Vec<Holding> {
        vec![Holding {
            name: "weights of the network",
            bytes: self.loaded.weights.bytes() as u64,
        }]
    }

    fn time_layers(&mut self) -> Result<Option<Vec<LayerTime>>, InferenceError> {
        self.layers().map(Some)
    }

    fn enqueue_encode(
        &mut self,
        stream: &Stream,
        planes: DeviceSlice<'_, f32>,
        features: Floats<'_>,
    ) -> Result<(), InferenceError> {
        let shape = &self.loaded.shape;
        let tokens = shape.tokens * shape.feature_dim;
        check_len("the image on the device", 3 * shape.pixels(), planes.len())?;
        check_len("features on the device", tokens, features.len())?;
        let mut addresses = Addresses {
            planes: planes.address(),
            ..Addresses::new(self.loaded.weights.address())
        };
        match features {
            Floats::F16(features) if self.takes_half_tokens() => {
                addresses.half_features = features.address();
            }
            features => addresses.features = single_precision(features)?.address(),
        }
        self.enqueue(Part::Encoder, stream, addresses)
    }

    fn enqueue_decode(
        &mut self,
        stream: &Stream,
        features: [Floats<'_>; 2],
        views: [DeviceView<'_>; 2],
    ) -> Result<(), InferenceError> {
        self.enqueue_decoder(Pairs::Both, stream, features, &views)
    }

    fn enqueue_decode_view1(
        &mut self,
        stream: &Stream,
        features: [Floats<'_>; 2],
        views: [DeviceView<'_>; 2],
    ) -> Result<(), InferenceError> {
        self.enqueue_decoder(Pairs::First, stream, features, &views[..1])
    }

    fn enqueue_decode_edges(
        &mut self,
        stream: &Stream,
        edges: usize,
        features: Floats<'_>,
        views: [DeviceView<'_>; 2],
    ) -> Result<(), InferenceError> {
        if edges == 0 {
            return Ok(());
        }
        self.enqueue_decoder(Pairs::BothWays(edges), stream, [features; 2], &views)
    }
}
