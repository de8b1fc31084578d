//! The network's weights in device memory, uploaded once and shared by all handles.

use super::RUNTIME;
use super::layer::Layer;
use crate::gpu::plan::Group;
use crate::gpu::{Carving, Context, DeviceBuffer, Priority};
use crate::inference::InferenceError;
use crate::network::Network;
use half::f16;
use rayon::prelude::*;
use std::collections::BTreeMap;

/// Where each weight begins, as the device's memory is aligned.
const ALIGNMENT: usize = 256;

/// Weights that a thread converts at least.
const PIECE: usize = 1 << 14;

/// A layer in the weights: one for each group, behind each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoredLayer {
    /// Bytes from the start of the weights.
    pub(super) weight: usize,
    pub(super) bias: usize,
    /// Outputs per group.
    pub(super) outputs: usize,
    pub(super) inputs: usize,
}

/// Weights by name, as they are laid out.
#[derive(Default)]
pub(super) struct Index {
    layers: BTreeMap<String, StoredLayer>,
    values: BTreeMap<String, usize>,
}

impl Index {
    /// The name of the layer whose weights begin at this byte.
    pub(super) fn name_of(&self, weight: usize) -> Option<&str> {
        let mut layers = self.layers.iter();
        let (name, _) = layers.find(|(_, layer)| layer.weight == weight)?;
        Some(name)
    }
}

/// Where a plan gets its weights from.
pub(super) enum Source<'a> {
    /// They are laid out as they are asked for.
    Network(&'a Network, &'a mut Collected),
    /// They were laid out for another plan of the same network.
    Known(&'a Index),
}

/// Weights that are laid out on the host. Each has memory of its own: one piece that grew would be copied and cleared.
#[derive(Default)]
pub(super) struct Collected {
    pieces: Vec<Piece>,
    /// Bytes up to the end of the last piece.
    bytes: usize,
    index: Index,
    /// A weight that binary16 cannot hold, of the first layer with one.
    overflow: Option<(String, f32)>,
}

/// Bytes that lie behind each other, and where, from the start of the weights.
struct Piece {
    at: usize,
    bytes: Vec<u8>,
}

impl Collected {
    /// Where the next weight begins.
    fn begin(&mut self) -> usize {
        self.bytes = self.bytes.next_multiple_of(ALIGNMENT);
        self.bytes
    }

    fn push(&mut self, bytes: Vec<u8>) {
        let at = self.bytes;
        self.bytes += bytes.len();
        self.pieces.push(Piece { at, bytes });
    }

    fn put(&mut self, values: &[f32]) -> usize {
        let at = self.begin();
        self.push(values.iter().flat_map(|v| v.to_le_bytes()).collect());
        at
    }

    fn put_halves(&mut self, name: &str, groups: &[Layer]) -> usize {
        let at = self.begin();
        for layer in groups {
            let halves: Vec<[u8; size_of::<f16>()]> = (layer.weight.par_iter().with_min_len(PIECE))
                .map(|&value| f16::from_f32(value).to_le_bytes())
                .collect();
            let lost = halves.par_iter().with_min_len(PIECE).zip(&layer.weight);
            let lost = lost.filter_map(|(&half, &value)| {
                (!f16::from_le_bytes(half).is_finite()).then_some(value)
            });
            let lost = lost.max_by(|a, b| a.abs().total_cmp(&b.abs()));
            self.push(halves.into_flattened());
            if self.overflow.is_none() {
                self.overflow = lost.map(|value| (name.to_owned(), value));
            }
        }
        at
    }

    /// Puts them into memory of the GPU.
    pub(super) fn upload(self, context: &Context) -> Result<(Weights, Index), InferenceError> {
        if let Some((name, value)) = self.overflow {
            return Err(InferenceError::Unavailable {
                runtime: RUNTIME,
                reason: format!(
                    "the weight {name} has the value {value:e}, which binary16 cannot hold; choose another backend"
                ),
            });
        }
        let mut carving = Carving::separate(context);
        let mut part = carving.part(Group::Network, "native");
        let memory = part.device::<u8>("weights", &[self.bytes])?;
        let stream = context.stream(Priority::Low)?;
        for Piece { at, bytes } in &self.pieces {
            stream.write(bytes, memory.slice(*at..at + bytes.len())?)?;
        }
        Ok((Weights { memory }, self.index))
    }
}

impl Source<'_> {
    /// The layer called `name`, of which `make` gives each group's weights.
    pub(super) fn layer(
        &mut self,
        name: &str,
        make: impl FnOnce(&Network) -> Vec<Layer>,
    ) -> Result<StoredLayer, InferenceError> {
        match self {
            Self::Known(index) => index.layers.get(name).copied().ok_or_else(|| missing(name)),
            Self::Network(network, collected) => {
                if let Some(&known) = collected.index.layers.get(name) {
                    return Ok(known);
                }
                let groups: Vec<Layer> = make(network).into_iter().map(Layer::filled_up).collect();
                let first = groups.first().ok_or_else(|| missing(name))?;
                let (outputs, inputs) = (first.outputs(), first.inputs);
                let biases: Vec<f32> = groups.iter().flat_map(|g| &g.bias).copied().collect();
                let stored = StoredLayer {
                    weight: collected.put_halves(name, &groups),
                    bias: collected.put(&biases),
                    outputs,
                    inputs,
                };
                collected.index.layers.insert(name.to_owned(), stored);
                Ok(stored)
            }
        }
    }

    /// Binary32 values called `name`: bytes from the start of the weights.
    pub(super) fn values(
        &mut self,
        name: &str,
        make: impl FnOnce(&Network) -> Vec<f32>,
    ) -> Result<usize, InferenceError> {
        match self {
            Self::Known(index) => index.values.get(name).copied().ok_or_else(|| missing(name)),
            Self::Network(network, collected) => {
                if let Some(&known) = collected.index.values.get(name) {
                    return Ok(known);
                }
                let at = collected.put(&make(network));
                collected.index.values.insert(name.to_owned(), at);
                Ok(at)
            }
        }
    }
}

fn missing(name: &str) -> InferenceError {
    InferenceError::Runtime {
        runtime: RUNTIME,
        doing: "planning the network's run",
        message: format!("the weights of {name} were not laid out"),
    }
}

/// Weights in device memory.
pub(super) struct Weights {
    memory: DeviceBuffer<u8>,
}

impl Weights {
    pub(super) fn address(&self) -> u64 {
        self.memory.all().address()
    }

    pub(super) fn bytes(&self) -> usize {
        self.memory.len()
    }
}
