//! The network's weights in device memory, uploaded once and shared by all handles.

use super::format::{Format, quantised, quantised_row};
use super::layer::Layer;
use super::operand::HALF;
use super::{RUNTIME, unavailable};
use crate::gpu::plan::{Group, human};
use crate::gpu::{Carving, Context, CudaError, DeviceBuffer, Half, Priority};
use crate::inference::InferenceError;
use crate::network::Network;
use crate::network::onnx::Precision;
use half::{bf16, f16};
use rayon::prelude::*;
use std::collections::BTreeMap;

/// Where each weight begins, as the device's memory is aligned.
const ALIGNMENT: usize = 256;

/// Weights that a thread converts at least.
const PIECE: usize = 1 << 14;

/// A weight that binary16 cannot hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Overflow {
    /// The layer's name.
    pub name: String,
    /// The largest such weight of the layer.
    pub value: f32,
}

/// A layer in the weights: one for each group, behind each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoredLayer {
    /// Bytes from the start of the weights.
    pub(super) weight: usize,
    /// The outputs' factors, if the weights are E4M3 numbers.
    pub(super) scale: Option<usize>,
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
pub(super) struct Collected {
    format: Format,
    /// Whether only sizes matter: there are no pieces.
    counting: bool,
    pieces: Vec<Piece>,
    /// Bytes up to the end of the last piece.
    bytes: usize,
    index: Index,
    /// A weight that the format cannot hold, of the first layer with one.
    overflow: Option<Overflow>,
}

/// Bytes that lie behind each other, and where, from the start of the weights.
struct Piece {
    at: usize,
    bytes: Vec<u8>,
}

impl Collected {
    pub(super) fn new(format: Format) -> Self {
        Self {
            format,
            counting: false,
            pieces: Vec::new(),
            bytes: 0,
            index: Index::default(),
            overflow: None,
        }
    }

    /// Counts bytes only.
    pub(super) fn counting(format: Format) -> Self {
        Self {
            counting: true,
            ..Self::new(format)
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn into_index(self) -> Index {
        self.index
    }

    /// A weight that the format cannot hold, of the first layer with one.
    pub(super) fn overflow(&self) -> Option<&Overflow> {
        self.overflow.as_ref()
    }

    /// Where the next weight begins.
    fn begin(&mut self) -> usize {
        self.bytes = self.bytes.next_multiple_of(ALIGNMENT);
        self.bytes
    }

    /// Leaves room for so many bytes, whether or not there are any.
    fn skip(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    fn push(&mut self, bytes: Vec<u8>) {
        let at = self.bytes;
        self.bytes += bytes.len();
        self.pieces.push(Piece { at, bytes });
    }

    fn put(&mut self, values: &[f32]) -> usize {
        let at = self.begin();
        if self.counting {
            self.skip(size_of_val(values));
            return at;
        }
        self.push(values.iter().flat_map(|v| v.to_le_bytes()).collect());
        at
    }

    fn put_halves(&mut self, name: &str, groups: &[Layer]) -> usize {
        let at = self.begin();
        // All ones in numbers that are not finite.
        let exponent: u16 = match self.format.half {
            Half::F16 => 0x7c00,
            Half::Bf16 => 0x7f80,
        };
        for layer in groups {
            if self.counting {
                self.skip(layer.weight.len() * HALF);
                continue;
            }
            let weights = layer.weight.par_iter().with_min_len(PIECE);
            let halves: Vec<[u8; HALF]> = match self.format.half {
                Half::F16 => weights.map(|&w| f16::from_f32(w).to_le_bytes()).collect(),
                Half::Bf16 => weights.map(|&w| bf16::from_f32(w).to_le_bytes()).collect(),
            };
            let lost = halves.par_iter().with_min_len(PIECE).zip(&layer.weight);
            let lost = lost.filter(|(half, _)| u16::from_le_bytes(**half) & exponent == exponent);
            self.note_lost(name, lost.map(|(_, &weight)| weight));
            self.push(halves.into_flattened());
        }
        at
    }

    /// Weights in E4M3, and their outputs' factors.
    fn put_quantised(&mut self, name: &str, groups: &[Layer]) -> (usize, usize) {
        let at = self.begin();
        let mut factors = Vec::new();
        for layer in groups {
            if self.counting {
                self.skip(layer.outputs() * quantised_row(layer.inputs));
                factors.resize(factors.len() + layer.outputs(), 0.0);
                continue;
            }
            let (codes, of_layer) = quantised(&layer.weight, layer.inputs);
            factors.extend(of_layer);
            let weights = layer.weight.par_iter().with_min_len(PIECE);
            self.note_lost(name, weights.copied().filter(|w| !w.is_finite()));
            self.push(codes);
        }
        (at, self.put(&factors))
    }

    /// Keeps the largest of these weights of a layer, which the format cannot hold, unless an earlier layer had one.
    fn note_lost(&mut self, name: &str, lost: impl ParallelIterator<Item = f32>) {
        let value = lost.max_by(|a, b| a.abs().total_cmp(&b.abs()));
        if let (None, Some(value)) = (&self.overflow, value) {
            let name = name.to_owned();
            self.overflow = Some(Overflow { name, value });
        }
    }

    /// Puts them into memory of the GPU.
    pub(super) fn upload(self, context: &Context) -> Result<(Weights, Index), InferenceError> {
        if let Some(Overflow { name, value }) = self.overflow {
            let (kind, choice) = match self.format.half {
                Half::F16 => ("binary16", "network.precision bf16 or auto"),
                Half::Bf16 => ("bfloat16", "another backend"),
            };
            return Err(unavailable(format!(
                "the weight {name} has the value {value:e}, which {kind} cannot hold; choose {choice}"
            )));
        }
        let mut carving = Carving::separate(context);
        let mut part = carving.part(Group::Network, "native");
        let memory = part.device::<u8>("weights", &[self.bytes]);
        let memory = memory.map_err(|error| without_memory(error, self.format.precision()))?;
        let stream = context.stream(Priority::Low)?;
        for Piece { at, bytes } in &self.pieces {
            stream.write(bytes, memory.slice(*at..at + bytes.len())?)?;
        }
        Ok((Weights { memory }, self.index))
    }
}

/// Says what to do where the weights do not fit.
fn without_memory(error: CudaError, precision: Precision) -> InferenceError {
    let CudaError::OutOfMemory {
        bytes, free, total, ..
    } = error
    else {
        return error.into();
    };
    let advice = match precision {
        Precision::Fp8 => "choose a smaller network, or free memory",
        _ => "choose network.precision fp8 or a smaller network, or free memory",
    };
    unavailable(format!(
        "the network's weights need {} of the GPU's memory, of which {} of {} are free; {advice}",
        human(bytes),
        human(free),
        human(total)
    ))
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
                let (weight, scale) = match collected.format.quantises(name) {
                    true => {
                        let (weight, scale) = collected.put_quantised(name, &groups);
                        (weight, Some(scale))
                    }
                    false => (collected.put_halves(name, &groups), None),
                };
                let stored = StoredLayer {
                    weight,
                    scale,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_that_do_not_fit_say_what_would() {
        let error = |what| CudaError::OutOfMemory {
            what,
            bytes: 1_370_000_000,
            free: 512_000_000,
            total: 2_000_000_000,
        };
        for (precision, advises) in [(Precision::F16, true), (Precision::Fp8, false)] {
            let text = without_memory(error("weights"), precision).to_string();
            for said in ["1.37 GB", "512.00 MB", "2.00 GB", "smaller network"] {
                assert!(text.contains(said), "{text}");
            }
            assert_eq!(text.contains("fp8"), advises, "{text}");
        }
    }

    #[test]
    fn a_weight_is_lost_where_the_format_cannot_hold_it() {
        let layer = |weight: f32| Layer {
            weight: vec![1.0, weight, -2e5, 3.0],
            bias: vec![0.0; 2],
            inputs: 2,
        };
        for (precision, weight, lost) in [
            (Precision::F16, 1e5, Some(-2e5)),
            (Precision::F16, -7e6, Some(-7e6)),
            (Precision::Bf16, 1e5, None),
            (Precision::Bf16, f32::INFINITY, Some(f32::INFINITY)),
        ] {
            let mut collected = Collected::new(Format::of(precision).expect("a format"));
            collected.put_halves("first", &[layer(weight)]);
            collected.put_halves("second", &[layer(9e9)]);
            let found = collected.overflow().map(|o| (o.name.as_str(), o.value));
            assert_eq!(
                found,
                lost.map(|value| ("first", value)),
                "{precision} {weight}"
            );
        }
        let mut collected = Collected::new(Format::of(Precision::Fp8).expect("a format"));
        collected.put_quantised("first", &[layer(1e5)]);
        assert_eq!(collected.overflow(), None);
        collected.put_quantised("second", &[layer(f32::NEG_INFINITY)]);
        assert_eq!(
            collected.overflow().map(|o| o.name.as_str()),
            Some("second")
        );
    }
}
