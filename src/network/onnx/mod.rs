//! ONNX export of the network: one model for the encoder, one for the decoder with its heads.
//!
//! Input sizes are fixed at export; position embeddings and rotary tables become constants.

mod blocks;
mod convolve;
mod decoder;
mod encoder;
mod fp8;
mod graph;
mod heads;
mod maps;
mod matrix;
mod number;
mod operators;
mod parts;
mod proto;
mod together;

use std::path::Path;

use prost::Message;

use super::architecture::Network;
use super::input_size::InputSize;
use crate::files;
use graph::{Graph, Value};
use number::Number;
use parts::GraphParts;

/// Protocol buffers limit a serialised model to less than two gibibytes; one mebibyte is reserved
/// for the graph itself.
const EMBED_LIMIT: usize = (1 << 31) - (1 << 20);

/// The views for which the decoder model computes dense outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Views {
    Both,
    /// Only view 1: sufficient for a single image paired with itself.
    First,
}

/// Arithmetic precision of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// binary32
    #[default]
    F32,
    /// Weights and activations are binary16. Inputs and outputs stay binary32, as do the
    /// exponentials and lengths after the last layers of the heads.
    F16,
    /// Like [`Precision::F16`] with bfloat16: the range of binary32, three mantissa bits fewer.
    Bf16,
    /// Like [`Precision::F16`], but the transformer's linear layers multiply in FP8 (E4M3) with
    /// scales derived from the weights: no calibration, no saturation. Requires TensorRT and
    /// separate branches: the both-ways decoder uses binary16 instead.
    Fp8,
}

impl Precision {
    /// All precisions, the most exact first.
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Bf16, Self::Fp8];

    /// The name used in configuration files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "fp32",
            Self::F16 => "fp16",
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
        }
    }
}

impl std::fmt::Display for Precision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|p| p.name() == text);
        found.ok_or_else(|| "expected fp32, fp16, bf16 or fp8".into())
    }
}

/// How attention is expressed in the graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AttentionForm {
    /// Matrix products, softmax and a rotation of halves, which every runtime supports.
    #[default]
    Decomposed,
    /// The operators `Attention` and `RotaryEmbedding` of opset 23.
    Fused,
}

/// How the two decoder branches are expressed in the graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Branches {
    /// One after the other.
    #[default]
    Apart,
    /// As one batch, with norms folded into the layers that follow them.
    Together,
}

/// How the heads upsample their maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Upsampling {
    /// With the operator `Resize`.
    #[default]
    Operator,
    /// As products with interpolation matrices.
    Products,
}

/// Memory layout of the heads' maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Maps {
    /// `B × C × H × W`, as standard ONNX convolutions require.
    #[default]
    Nchw,
    /// The same between the layers that read tokens and the last one. Tokens become maps before the former, which are
    /// 1×1 convolutions, and the last layer is a product over `B × H × W × C`, as is the patch embedding: TensorRT
    /// keeps convolutions' maps with their channels last, and fuses what surrounds them so.
    NchwInside,
    /// `B × H × W × C`, with transpositions around standard convolutions that the runtime can
    /// cancel or move.
    Nhwc,
    /// `B × H × W × C`, with the `NhwcConv` operator of ONNX Runtime's CUDA provider.
    NhwcOperator,
}

/// Export options that depend on the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EmitOptions {
    pub precision: Precision,
    pub attention: AttentionForm,
    pub branches: Branches,
    pub upsampling: Upsampling,
    pub maps: Maps,
}

/// The pairs that a decoder model decodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pairs {
    /// Images of one input with images of another.
    Given,
    /// Every two consecutive images of one input, as the pairs (first, second) and (second, first).
    BothWays,
}

/// Whether the decoder model applies the output activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finish {
    /// Points, unit descriptors and confidences for every pixel.
    InGraph,
    /// The outputs of the heads before their activations.
    Raw,
}

/// Input and output names of the emitted models.
pub mod names {
    /// Encoder input, `B × 3 × H × W`: `rgb / 127.5 − 1`.
    pub const IMAGE: &str = "image";
    /// Encoder output, `B × T × C`.
    pub const FEATURES: &str = "features";
    /// Decoder inputs, `B × T × C` each.
    pub const VIEW_FEATURES: [&str; 2] = ["features1", "features2"];
    /// Points of either view in view 1's camera frame, `B × H × W × 3`.
    pub const POINTS: [&str; 2] = ["pts3d1", "pts3d2"];
    /// Confidences of the points, `B × H × W`.
    pub const CONFIDENCE: [&str; 2] = ["conf1", "conf2"];
    /// Unit descriptors, `B × H × W × D`.
    pub const DESCRIPTORS: [&str; 2] = ["desc1", "desc2"];
    /// Confidences of the descriptors, `B × H × W`.
    pub const DESCRIPTOR_CONFIDENCE: [&str; 2] = ["desc_conf1", "desc_conf2"];
    /// Raw decoder: points and confidence before their activations, `B × 4 × H × W`.
    pub const RAW_POINTS: [&str; 2] = ["raw_pts3d1", "raw_pts3d2"];
    /// Raw decoder: descriptors before normalisation, `B × T × P × P × D`: by token, then by row
    /// and column within its patch of side `P`.
    pub const RAW_DESCRIPTORS: [&str; 2] = ["raw_desc1", "raw_desc2"];
    /// Raw decoder: logarithms of the descriptors' confidences, `B × T × P × P`.
    pub const RAW_DESCRIPTOR_CONFIDENCE: [&str; 2] = ["raw_desc_conf1", "raw_desc_conf2"];
}

/// An emitted model. Weights are kept apart from the graph so that they exist in memory only once.
pub struct OnnxModel {
    parts: GraphParts,
    weights: Vec<u8>,
}

/// A weight of a model.
#[derive(Debug, Clone, Copy)]
pub struct Weight<'a> {
    pub name: &'a str,
    /// Dimensions, outermost first.
    pub shape: &'a [usize],
    /// Whether values are binary16; otherwise binary32.
    pub half: bool,
    /// Values, little-endian.
    pub bytes: &'a [u8],
}

impl OnnxModel {
    fn new(graph: Graph) -> Self {
        let (parts, weights) = graph.finish();
        Self { parts, weights }
    }

    /// Multiplications and additions of all matrix products and convolutions.
    pub fn operations(&self) -> u64 {
        self.parts.operations
    }

    /// The weights under their names in the graph. A name denotes the same layer in every model of
    /// one network.
    pub fn weights(&self) -> impl Iterator<Item = Weight<'_>> {
        self.parts.stored.iter().map(|stored| {
            let range = stored.offset..stored.offset + stored.bytes;
            Weight {
                name: &stored.name,
                shape: &stored.shape,
                half: stored.number == Number::F16,
                bytes: self.weights.get(range).unwrap_or_default(),
            }
        })
    }

    /// Names and dimensions of the inputs, then of the outputs.
    pub fn tensors(&self) -> Vec<(&str, Vec<usize>)> {
        self.parts.tensors()
    }

    /// Total size of the weights in bytes.
    pub fn weight_bytes(&self) -> usize {
        self.weights.len()
    }

    /// The serialised model, which refers to its weights as external data at `location`, and those
    /// weights.
    pub fn into_external(self, location: &str) -> (Vec<u8>, Vec<u8>) {
        let model = self.parts.referring_to(location).encode_to_vec();
        (model, self.weights)
    }

    /// The serialised model with embedded weights, or `None` if it would exceed the two-gibibyte
    /// limit of the format.
    pub fn to_bytes(&self) -> Option<Vec<u8>> {
        (self.weights.len() <= EMBED_LIMIT)
            .then(|| self.parts.embedded(&self.weights).encode_to_vec())
    }

    /// Writes the model to `path`. Weights go to `<path>.data` if `external` is set or the format's
    /// size limit requires it.
    ///
    /// # Errors
    /// I/O errors. An existing file is replaced only once the new one is complete.
    pub fn save(&self, path: &Path, external: bool) -> std::io::Result<()> {
        if !external && let Some(bytes) = self.to_bytes() {
            return files::write_bytes(path, &bytes);
        }
        let file_name = path.file_name().ok_or_else(|| {
            std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                "the model path has no file name",
            )
        })?;
        let location = format!("{}.data", file_name.to_string_lossy());
        files::write_bytes(&path.with_file_name(&location), &self.weights)?;
        files::write_bytes(path, &self.parts.referring_to(&location).encode_to_vec())
    }
}

impl Network {
    /// The encoder: [`names::IMAGE`] to [`names::FEATURES`].
    pub fn encoder(&self, size: InputSize) -> OnnxModel {
        self.encoder_as(size, EmitOptions::default())
    }

    /// Like [`Network::encoder`], with runtime-specific options.
    pub fn encoder_as(&self, size: InputSize, options: EmitOptions) -> OnnxModel {
        let mut emitter = Emitter::new(self, size, options, "encoder");
        emitter.encoder();
        OnnxModel::new(emitter.graph)
    }

    /// The decoder with its heads: [`names::VIEW_FEATURES`] to the dense outputs of `views`.
    pub fn decoder(&self, size: InputSize, views: Views) -> OnnxModel {
        self.decoder_as(size, views, EmitOptions::default())
    }

    /// Like [`Network::decoder`], with runtime-specific options.
    pub fn decoder_as(&self, size: InputSize, views: Views, options: EmitOptions) -> OnnxModel {
        self.decoder_with(size, views, Finish::InGraph, options)
    }

    /// The decoder with its heads up to [`names::RAW_POINTS`], [`names::RAW_DESCRIPTORS`] and
    /// [`names::RAW_DESCRIPTOR_CONFIDENCE`] of both views, for runtimes on which one custom pass
    /// over the pixels is faster than the dozen operators of the activations.
    pub fn raw_decoder(&self, size: InputSize) -> OnnxModel {
        self.decoder_with(size, Views::Both, Finish::Raw, EmitOptions::default())
    }

    /// The decoder for pairs in both directions: [`names::FEATURES`], in which every two
    /// consecutive images form a pair, to the dense outputs of both views. Item `n` of an output
    /// has image `n` as view 1 and its partner as view 2. `None` unless `size.batch` is even.
    /// Branches are always batched together, regardless of `options`.
    pub fn decoder_both_ways(&self, size: InputSize, options: EmitOptions) -> Option<OnnxModel> {
        let even = size.batch.is_multiple_of(2);
        even.then(|| {
            let mut emitter = Emitter::new(self, size, options, "decoder");
            emitter.decoder_together(Views::Both, Finish::InGraph, Pairs::BothWays);
            OnnxModel::new(emitter.graph)
        })
    }

    fn decoder_with(
        &self,
        size: InputSize,
        views: Views,
        finish: Finish,
        options: EmitOptions,
    ) -> OnnxModel {
        let mut emitter = Emitter::new(self, size, options, "decoder");
        match options.branches {
            // Folded norms would invalidate the bounds that FP8 relies on.
            Branches::Together if !emitter.fp8 => {
                emitter.decoder_together(views, finish, Pairs::Given);
            }
            Branches::Apart | Branches::Together => emitter.decoder(views, finish),
        }
        OnnxModel::new(emitter.graph)
    }
}

/// Emits one network into one graph.
struct Emitter<'a> {
    network: &'a Network,
    size: InputSize,
    attention: AttentionForm,
    upsampling: Upsampling,
    maps: Maps,
    /// Element type of the layers' arithmetic.
    number: Number,
    /// Whether the transformer's linear layers multiply in FP8.
    fp8: bool,
    graph: Graph,
}

impl<'a> Emitter<'a> {
    /// Panics if the size was made for another network's patch side.
    fn new(network: &'a Network, size: InputSize, options: EmitOptions, name: &str) -> Self {
        assert_eq!(size.patch, network.architecture.patch(), "patches");
        let mut graph = Graph::new(
            name,
            match options.attention {
                AttentionForm::Decomposed => operators::WITH_GELU,
                AttentionForm::Fused => operators::WITH_ATTENTION,
            },
        );
        let number = match options.precision {
            Precision::F32 => Number::F32,
            Precision::F16 | Precision::Fp8 => Number::F16,
            Precision::Bf16 => Number::BF16,
        };
        graph.set_number(number);
        Self {
            network,
            size,
            attention: options.attention,
            upsampling: options.upsampling,
            maps: options.maps,
            number,
            fp8: options.precision == Precision::Fp8,
            graph,
        }
    }

    /// Adds a model input, converted to the layers' element type.
    fn input(&mut self, name: &str, shape: &[usize]) -> Value {
        let input = self.graph.input(name, shape);
        self.graph.cast(&input, self.number)
    }

    /// Adds a weight in its stored layout.
    fn stored(&mut self, name: &str, shape: &[usize]) -> Value {
        let values = self.network.weight(name);
        self.graph.weight(name, shape, &values)
    }
}
