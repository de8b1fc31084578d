//! The network as ONNX: one model for the encoder, one for the decoder with its heads.
//!
//! Sizes are fixed when the model is emitted; positions and the rotary tables are constants in it.

mod blocks;
mod convolve;
mod decoder;
mod encoder;
mod fp8;
mod graph;
mod heads;
mod maps;
mod parts;
mod proto;
mod together;

use std::path::Path;

use prost::Message;

use super::architecture::{Network, PATCH};
use crate::files;
use graph::{Graph, Number, Value};
use parts::GraphParts;

/// A serialised model may not reach two gibibytes, a limit of protocol buffers; a mebibyte is
/// left for the graph itself.
const EMBED_LIMIT: usize = (1 << 31) - (1 << 20);

/// What a model is emitted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InputSize {
    /// Images (encoder) or pairs (decoder) in one call.
    pub batch: usize,
    /// Columns, a multiple of the patch's side.
    pub width: usize,
    /// Rows, a multiple of the patch's side.
    pub height: usize,
    /// Pixels of a patch's side.
    patch: usize,
}

impl InputSize {
    /// A size for networks with MASt3R's own encoder, or `None` unless both sides are positive multiples of 16
    /// and the batch is not empty. For any network:
    /// [`Architecture::input_size`](super::Architecture::input_size).
    pub fn new(batch: usize, width: usize, height: usize) -> Option<Self> {
        Self::in_patches(PATCH, batch, width, height)
    }

    pub(super) fn in_patches(
        patch: usize,
        batch: usize,
        width: usize,
        height: usize,
    ) -> Option<Self> {
        let side = |n: usize| n > 0 && n.is_multiple_of(patch);
        (batch > 0 && side(width) && side(height)).then_some(Self {
            batch,
            width,
            height,
            patch,
        })
    }

    /// The same images in batches of `batch`; `None` if that is empty.
    pub fn with_batch(self, batch: usize) -> Option<Self> {
        (batch > 0).then_some(Self { batch, ..self })
    }

    /// Token columns.
    pub fn columns(&self) -> usize {
        self.width / self.patch
    }

    /// Token rows.
    pub fn rows(&self) -> usize {
        self.height / self.patch
    }

    /// Tokens of one image.
    pub fn tokens(&self) -> usize {
        self.columns() * self.rows()
    }
}

/// Whose dense outputs the decoder model gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Views {
    /// Both views'.
    Both,
    /// View 1's only: what a single image, paired with itself, needs.
    First,
}

/// What the network computes with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// binary32
    #[default]
    F32,
    /// Weights and activations are binary16. Inputs and outputs stay binary32, and so does what comes
    /// behind the heads' last layers: exponentials and lengths.
    F16,
    /// The same with the upper half of binary32 in binary16's place: its range, three bits fewer.
    Bf16,
    /// As [`Precision::F16`], but the transformer's linear layers multiply 8-bit floats (E4M3), whose scales
    /// follow from the weights: nothing is calibrated and nothing saturates. Needs TensorRT, and branches
    /// apart: the decoder both ways has binary16 instead.
    Fp8,
}

impl Precision {
    /// All of them, the most exact first.
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Bf16, Self::Fp8];

    /// As it is written.
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

/// How attention is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AttentionForm {
    /// As products, a softmax and a rotation of halves: every runtime knows these.
    #[default]
    Decomposed,
    /// As the operators `Attention` and `RotaryEmbedding` of opset 23.
    Fused,
}

/// How the decoder's two branches are written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Branches {
    /// One after the other.
    #[default]
    Apart,
    /// As one batch, with norms folded into what follows them.
    Together,
}

/// How the heads enlarge their maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Upsampling {
    /// With the operator `Resize`.
    #[default]
    Operator,
    /// As products with the matrices of the interpolation.
    Products,
}

/// In which order the heads' maps lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Maps {
    /// `B × C × H × W`, as the standard's convolutions take them.
    #[default]
    ChannelsFirst,
    /// `B × H × W × C`, with transpositions around the standard's convolutions for the runtime to cancel or
    /// to move.
    ChannelsLast,
    /// `B × H × W × C`, with the convolution `NhwcConv` of ONNX Runtime's CUDA provider.
    ChannelsLastOperator,
}

/// What runtimes differ in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EmitOptions {
    /// The numbers.
    pub precision: Precision,
    /// The operators of attention.
    pub attention: AttentionForm,
    /// The decoder's branches.
    pub branches: Branches,
    /// The heads' enlargements.
    pub upsampling: Upsampling,
    /// The heads' maps.
    pub maps: Maps,
}

/// Which pairs a decoder model decodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pairs {
    /// The images of one input with those of another.
    Given,
    /// Each two images of one input, as pair of first and second, then of second and first.
    BothWays,
}

/// How far the decoder model computes its outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finish {
    /// Points, unit descriptors and confidences for every pixel.
    InGraph,
    /// What the heads give before their activations.
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
    /// Raw decoder: descriptors before normalisation, `B × T × P × P × D`: by token, then by
    /// row and column within its patch of side `P`.
    pub const RAW_DESCRIPTORS: [&str; 2] = ["raw_desc1", "raw_desc2"];
    /// Raw decoder: logarithms of the descriptors' confidences, `B × T × P × P`.
    pub const RAW_DESCRIPTOR_CONFIDENCE: [&str; 2] = ["raw_desc_conf1", "raw_desc_conf2"];
}

/// An emitted model, its weights kept apart from the graph so that they exist only once.
pub struct OnnxModel {
    parts: GraphParts,
    weights: Vec<u8>,
}

/// A weight of a model.
#[derive(Debug, Clone, Copy)]
pub struct Weight<'a> {
    /// Its name in the graph.
    pub name: &'a str,
    /// Extents, outermost first.
    pub shape: &'a [usize],
    /// binary16, else binary32.
    pub half: bool,
    /// Its values, little-endian.
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

    /// The weights, as the graph names them. A name stands for the same layer in every model of one
    /// network.
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

    /// Names and extents of its inputs, then of its outputs.
    pub fn tensors(&self) -> Vec<(&str, Vec<usize>)> {
        self.parts.tensors()
    }

    /// Bytes of the weights.
    pub fn weight_bytes(&self) -> usize {
        self.weights.len()
    }

    /// The serialised model that refers to its weights as external data called `location`, and
    /// those weights.
    pub fn into_external(self, location: &str) -> (Vec<u8>, Vec<u8>) {
        let model = self.parts.referring_to(location).encode_to_vec();
        (model, self.weights)
    }

    /// The serialised model with its weights inside, or `None` where that would exceed the two
    /// gibibytes that the format allows.
    pub fn to_bytes(&self) -> Option<Vec<u8>> {
        (self.weights.len() <= EMBED_LIMIT)
            .then(|| self.parts.embedded(&self.weights).encode_to_vec())
    }

    /// Writes the model to `path`. Weights go into `<path>.data` beside it if `external` or if
    /// the format's limit asks for it.
    ///
    /// # Errors
    /// The operating system's. A file that was there before is replaced only once the new one is
    /// complete.
    pub fn save(&self, path: &Path, external: bool) -> std::io::Result<()> {
        if !external && let Some(bytes) = self.to_bytes() {
            return files::write_bytes(path, &bytes);
        }
        let file_name = path.file_name().ok_or_else(|| {
            std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                "the model's path names no file",
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

    /// As [`Network::encoder`], written as a runtime wants it.
    pub fn encoder_as(&self, size: InputSize, options: EmitOptions) -> OnnxModel {
        let mut emitter = Emitter::new(self, size, options, "encoder");
        emitter.encoder();
        OnnxModel::new(emitter.graph)
    }

    /// The decoder with its heads: [`names::VIEW_FEATURES`] to the dense outputs of `views`.
    pub fn decoder(&self, size: InputSize, views: Views) -> OnnxModel {
        self.decoder_as(size, views, EmitOptions::default())
    }

    /// As [`Network::decoder`], written as a runtime wants it.
    pub fn decoder_as(&self, size: InputSize, views: Views, options: EmitOptions) -> OnnxModel {
        self.decoder_with(size, views, Finish::InGraph, options)
    }

    /// The decoder with its heads up to [`names::RAW_POINTS`], [`names::RAW_DESCRIPTORS`] and
    /// [`names::RAW_DESCRIPTOR_CONFIDENCE`] of both views: for runtimes on which one pass of
    /// one's own over the pixels beats the dozen operators of the activations.
    pub fn raw_decoder(&self, size: InputSize) -> OnnxModel {
        self.decoder_with(size, Views::Both, Finish::Raw, EmitOptions::default())
    }

    /// The decoder for pairs both ways: [`names::FEATURES`], of images of which each two are a pair, to the
    /// dense outputs of both views. Item `n` of an output is that of image `n` as view 1 and its partner
    /// as view 2. `None` unless `size.batch` is even. Its branches are together, whatever `options` say.
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
            // Folded norms leave no bound for 8-bit floats.
            Branches::Together if !emitter.fp8 => {
                emitter.decoder_together(views, finish, Pairs::Given);
            }
            Branches::Apart | Branches::Together => emitter.decoder(views, finish),
        }
        OnnxModel::new(emitter.graph)
    }
}

/// Writes one network's operations into one graph.
struct Emitter<'a> {
    network: &'a Network,
    size: InputSize,
    attention: AttentionForm,
    upsampling: Upsampling,
    maps: Maps,
    /// What the layers compute with.
    number: Number,
    /// Whether the transformer's linear layers multiply 8-bit floats.
    fp8: bool,
    graph: Graph,
}

impl<'a> Emitter<'a> {
    /// Panics if the size is in patches of another network's.
    fn new(network: &'a Network, size: InputSize, options: EmitOptions, name: &str) -> Self {
        assert_eq!(size.patch, network.architecture.patch(), "patches");
        let mut graph = Graph::new(
            name,
            match options.attention {
                AttentionForm::Decomposed => graph::WITH_GELU,
                AttentionForm::Fused => graph::WITH_ATTENTION,
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

    /// An input of the model, as the layers take it.
    fn input(&mut self, name: &str, shape: &[usize]) -> Value {
        let input = self.graph.input(name, shape);
        self.graph.cast(&input, self.number)
    }

    /// A weight as it is stored.
    fn stored(&mut self, name: &str, shape: &[usize]) -> Value {
        let values = self.network.weight(name);
        self.graph.weight(name, shape, &values)
    }
}
