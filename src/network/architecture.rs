//! The dimensions of a network, inferred from its tensors, and a check that the checkpoint holds
//! exactly the expected tensors.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use super::checkpoint::{Checkpoint, CheckpointError, Dtype, Tensor};
use super::dune::{self, Dune};
use super::input_size::{InputSize, PATCH};
use super::stack::Stack;

/// Head width when the number of heads is not specified; the official model's value.
const DEFAULT_HEAD_DIM: usize = 64;
const DEFAULT_ROPE_BASE: f64 = 100.0;

/// The dimensions of a MASt3R network.
#[derive(Debug, Clone, PartialEq)]
pub struct Architecture {
    pub encoder: Stack,
    /// Present for a DUNE encoder, `None` for MASt3R's own.
    pub dune: Option<Dune>,
    /// Applies to each of the decoder's two branches.
    pub decoder: Stack,
    /// Base of the rotary embedding frequencies.
    pub rope_base: f64,
    /// Decoder layers that feed the DPT head; layer 0 is the encoder output.
    pub hooks: [usize; 4],
    /// Channels of the four reassembled maps.
    pub layer_dims: [usize; 4],
    /// Channels of the DPT fusion blocks.
    pub feature_dim: usize,
    /// Channels after the first and the second convolution of the DPT output stage.
    pub output_dims: [usize; 2],
    /// Hidden channels of the descriptor MLP.
    pub descriptor_hidden: usize,
    /// Channels of a descriptor.
    pub descriptor_dim: usize,
}

/// Hyperparameters that tensor shapes do not determine. Missing values default to the official
/// model (head width 64, RoPE100).
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Hints {
    /// Attention heads of the encoder.
    pub enc_num_heads: Option<usize>,
    /// Attention heads of the decoder.
    pub dec_num_heads: Option<usize>,
    /// Base of the rotary embedding frequencies.
    pub rope_freq: Option<f64>,
}

impl Hints {
    /// Reads `<weights>.json` or, failing that, `config.json` in the same folder; returns empty
    /// hints if neither exists. Other keys are ignored.
    pub fn beside(weights: &Path) -> Result<Self, CheckpointError> {
        for path in [
            weights.with_extension("json"),
            weights.with_file_name("config.json"),
        ] {
            let text = match std::fs::read_to_string(&path) {
                Ok(text) => text,
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                Err(source) => return Err(CheckpointError::Io { path, source }),
            };
            return serde_json::from_str(&text).map_err(|e| CheckpointError::Format {
                path,
                expected: "a JSON object with enc_num_heads and dec_num_heads".into(),
                found: e.to_string(),
            });
        }
        Ok(Self::default())
    }

    /// Reads the constructor string of an official checkpoint, such as
    /// `AsymmetricMASt3R(enc_num_heads=16, pos_embed='RoPE100', ...)`.
    pub fn from_model_args(args: &str) -> Self {
        let value = |key: &str| -> Option<String> {
            let mut rest = args;
            loop {
                let at = rest.find(key)?;
                let whole_word = !rest[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
                rest = &rest[at + key.len()..];
                if let Some(value) = rest.trim_start().strip_prefix('=')
                    && whole_word
                {
                    let quote = |c| c == '\'' || c == '"';
                    let value = value.trim_start().trim_start_matches(quote);
                    let end = value
                        .find(|c: char| !(c.is_alphanumeric() || c == '.'))
                        .unwrap_or(value.len());
                    return Some(value[..end].to_owned());
                }
            }
        };
        Self {
            enc_num_heads: value("enc_num_heads").and_then(|v| v.parse().ok()),
            dec_num_heads: value("dec_num_heads").and_then(|v| v.parse().ok()),
            rope_freq: value("pos_embed")
                .and_then(|v| v.strip_prefix("RoPE").and_then(|base| base.parse().ok())),
        }
    }

    /// Returns these hints with missing values taken from `other`.
    pub fn or(self, other: Self) -> Self {
        Self {
            enc_num_heads: self.enc_num_heads.or(other.enc_num_heads),
            dec_num_heads: self.dec_num_heads.or(other.dec_num_heads),
            rope_freq: self.rope_freq.or(other.rope_freq),
        }
    }
}

/// A validated network: its dimensions, and its weights under the names of
/// [`Architecture::expected_shapes`].
#[derive(Debug, Clone)]
pub struct Network {
    pub architecture: Architecture,
    weights: BTreeMap<String, Tensor>,
}

impl Network {
    /// Checks that `checkpoint` is complete. `path` appears only in errors.
    ///
    /// # Errors
    /// [`CheckpointError::Tensors`] names every tensor that is missing, unexpected or of the wrong
    /// shape; [`CheckpointError::Format`] if the width is not divisible by the number of heads.
    pub fn new(
        path: &Path,
        mut checkpoint: Checkpoint,
        hints: &Hints,
    ) -> Result<Self, CheckpointError> {
        let of_dune = dune::is(&checkpoint);
        if of_dune {
            dune::rename(&mut checkpoint);
        }
        resolve_aliases(&mut checkpoint)?;
        let tensors = checkpoint.tensors;
        let architecture = infer(&tensors, of_dune)
            .and_then(|architecture| architecture.with_heads(path, hints))
            .and_then(|architecture| {
                check(&architecture, &tensors)?;
                Ok(architecture)
            })
            .map_err(|error| match of_dune {
                true => as_stored(error),
                false => error,
            })?;
        let mut weights = tensors;
        weights.retain(|name, _| !is_unused(name));
        Ok(Self {
            architecture,
            weights,
        })
    }

    /// A network of these dimensions whose weights are zero, for what depends on their shapes alone. `None` where one is
    /// too large to be.
    pub fn of_zeros(architecture: Architecture) -> Option<Self> {
        let zeros = |(name, shape): (String, Vec<usize>)| {
            let bytes = shape.iter().product::<usize>() * Dtype::F32.size();
            let tensor = Tensor::from_bytes(shape, Dtype::F32, vec![0; bytes]);
            Some((name, tensor?))
        };
        let weights = architecture.expected_shapes().into_iter().map(zeros);
        Some(Self {
            weights: weights.collect::<Option<_>>()?,
            architecture,
        })
    }

    /// Like [`Network::weight`], for a tensor that only some encoders have.
    pub(crate) fn optional(&self, name: &str) -> Option<Vec<f32>> {
        self.weights.get(name).map(Tensor::to_f32)
    }

    /// A weight as binary32. Panics on a name that is not in [`Architecture::expected_shapes`]:
    /// [`Network::new`] has checked the file, so this is a bug in the network description.
    pub(crate) fn weight(&self, name: &str) -> Vec<f32> {
        match self.weights.get(name) {
            Some(tensor) => tensor.to_f32(),
            None => unreachable!("the description of the network asks for an unknown {name}"),
        }
    }
}

/// Renames the tensors in `error` to the names used by DUNE-MASt3R files.
fn as_stored(error: CheckpointError) -> CheckpointError {
    let CheckpointError::Tensors {
        missing,
        extra,
        misshapen,
    } = error
    else {
        return error;
    };
    let stored = |names: Vec<String>| -> Vec<String> {
        let with_words = |name: String| match name.split_once(' ') {
            Some((name, words)) => format!("{} {words}", dune::stored_name(name)),
            None => dune::stored_name(&name),
        };
        names.into_iter().map(with_words).collect()
    };
    CheckpointError::Tensors {
        missing: stored(missing),
        // Extra tensors keep the names they have in the file, unless a rule renamed them.
        extra: stored(extra),
        misshapen: stored(misshapen),
    }
}

/// The official model stores each `scratch.layer{1..4}_rn` a second time as
/// `scratch.layer_rn.{0..3}`; a safetensors export keeps one of the two. Afterwards only
/// `layer{1..4}_rn` remain.
fn resolve_aliases(checkpoint: &mut Checkpoint) -> Result<(), CheckpointError> {
    for head in 1..=2 {
        for layer in 0..4 {
            let scratch = format!("downstream_head{head}.dpt.scratch");
            let alias = format!("{scratch}.layer_rn.{layer}.weight");
            let name = format!("{scratch}.layer{}_rn.weight", layer + 1);
            let Some(tensor) = checkpoint.tensors.remove(&alias) else {
                continue;
            };
            if let Some(twin) = checkpoint.tensors.get(&name)
                && (twin.shape != tensor.shape || twin.bytes() != tensor.bytes())
            {
                return Err(CheckpointError::Tensors {
                    missing: Vec::new(),
                    extra: Vec::new(),
                    misshapen: vec![format!("{alias} (must equal {name}, and does not)")],
                });
            }
            checkpoint.tensors.entry(name).or_insert(tensor);
        }
    }
    Ok(())
}

/// Tensors present in every file but never used: the training mask token, and the first residual
/// unit of the coarsest fusion block, which has only one input.
fn is_unused(name: &str) -> bool {
    name == "mask_token" || name.contains(".dpt.scratch.refinenet4.resConfUnit1.")
}

/// Infers the dimensions from the tensors; [`Architecture::with_heads`] sets the number of heads.
fn infer(
    tensors: &BTreeMap<String, Tensor>,
    of_dune: bool,
) -> Result<Architecture, CheckpointError> {
    let dune = match of_dune {
        true => Some(Dune::infer(tensors)?),
        false => None,
    };
    let pixels = patch_of(&dune) * patch_of(&dune);
    let mut missing = Vec::new();
    let mut misshapen = Vec::new();
    let mut extent = |name: &str, rank: usize, axis: usize| -> usize {
        match tensors.get(name) {
            None => missing.push(name.to_owned()),
            Some(tensor) if tensor.shape.len() != rank || tensor.is_empty() => misshapen.push(
                format!("{name} (expected {rank} extents, found {:?})", tensor.shape),
            ),
            Some(tensor) => return tensor.shape[axis],
        }
        0
    };
    let encoder = Stack {
        width: extent("patch_embed.proj.weight", 4, 0),
        depth: depth(tensors, &["enc_blocks."]),
        heads: 0,
        hidden: extent("enc_blocks.0.mlp.fc1.weight", 2, 0),
    };
    let decoder = Stack {
        width: extent("decoder_embed.weight", 2, 0),
        depth: depth(tensors, &["dec_blocks.", "dec_blocks2."]),
        heads: 0,
        hidden: extent("dec_blocks.0.mlp.fc1.weight", 2, 0),
    };
    let d = decoder.depth;
    let dpt = "downstream_head1.dpt";
    let mut dim = |name: &str| extent(&format!("{dpt}.{name}.weight"), 4, 0);
    let layer_dims = [
        dim("act_postprocess.0.0"),
        dim("act_postprocess.1.0"),
        dim("act_postprocess.2.0"),
        dim("act_postprocess.3.0"),
    ];
    let feature_dim = dim("scratch.layer1_rn");
    let output_dims = [dim("head.0"), dim("head.2")];
    let local = "downstream_head1.head_local_features";
    let descriptor_hidden = extent(&format!("{local}.fc1.weight"), 2, 0);
    let shuffled = extent(&format!("{local}.fc2.weight"), 2, 0);
    if shuffled > 0 && (shuffled % pixels != 0 || shuffled < 2 * pixels) {
        misshapen.push(format!(
            "{local}.fc2.weight (expected {pixels} x (descriptor channels + 1) rows, found {shuffled})"
        ));
    }
    if !missing.is_empty() || !misshapen.is_empty() {
        return Err(CheckpointError::Tensors {
            missing,
            extra: Vec::new(),
            misshapen,
        });
    }
    Ok(Architecture {
        encoder,
        dune,
        decoder,
        rope_base: DEFAULT_ROPE_BASE,
        hooks: [0, d / 2, d * 3 / 4, d],
        layer_dims,
        feature_dim,
        output_dims,
        descriptor_hidden,
        descriptor_dim: shuffled / pixels - 1,
    })
}

fn patch_of(dune: &Option<Dune>) -> usize {
    match dune {
        Some(_) => dune::PATCH,
        None => PATCH,
    }
}

/// Number of blocks: the largest block index under any of `prefixes`, plus one.
fn depth(tensors: &BTreeMap<String, Tensor>, prefixes: &[&str]) -> usize {
    tensors
        .keys()
        .filter_map(|name| prefixes.iter().find_map(|p| name.strip_prefix(p)))
        .filter_map(|rest| rest.split('.').next()?.parse::<usize>().ok())
        // A block index beyond the number of tensors belongs to a stray tensor.
        .filter(|&block| block < tensors.len())
        .map(|block| block + 1)
        .max()
        .unwrap_or(0)
}

fn check(
    architecture: &Architecture,
    tensors: &BTreeMap<String, Tensor>,
) -> Result<(), CheckpointError> {
    let expected = architecture.expected_shapes();
    let missing: Vec<String> = expected
        .keys()
        .filter(|name| !tensors.contains_key(*name))
        .cloned()
        .collect();
    let extra: Vec<String> = tensors
        .keys()
        .filter(|name| !expected.contains_key(*name) && !is_unused(name))
        .cloned()
        .collect();
    let misshapen: Vec<String> = expected
        .iter()
        .filter_map(|(name, shape)| {
            let found = &tensors.get(name)?.shape;
            (found != shape).then(|| format!("{name} (expected {shape:?}, found {found:?})"))
        })
        .collect();
    if missing.is_empty() && extra.is_empty() && misshapen.is_empty() {
        return Ok(());
    }
    Err(CheckpointError::Tensors {
        missing,
        extra,
        misshapen,
    })
}

impl Architecture {
    /// The official model as published: ViT-L encoder, ViT-B decoder, 24-dimensional descriptors.
    pub fn official() -> Self {
        let stack = |width: usize, depth| Stack {
            width,
            depth,
            heads: width / 64,
            hidden: 4 * width,
        };
        Self {
            encoder: stack(1024, 24),
            dune: None,
            decoder: stack(768, 12),
            rope_base: 100.0,
            hooks: [0, 6, 9, 12],
            layer_dims: [96, 192, 384, 768],
            feature_dim: 256,
            output_dims: [128, 128],
            descriptor_hidden: 4 * (1024 + 768),
            descriptor_dim: 24,
        }
    }

    /// DUNE-MASt3R as published, trained on 448-pixel images: a ViT-S/14 (`width` 384) or ViT-B/14
    /// (768) followed by the official decoder and heads.
    pub fn dune(width: usize) -> Self {
        let official = Self::official();
        Self {
            encoder: Stack {
                width,
                depth: 12,
                heads: width / 64,
                hidden: 4 * width,
            },
            dune: Some(Dune {
                registers: 4,
                grid: 32,
            }),
            descriptor_hidden: 4 * (width + official.decoder.width),
            ..official
        }
    }

    /// Side of a patch in pixels. The pixel shuffle and the DPT strides depend on it.
    pub fn patch(&self) -> usize {
        patch_of(&self.dune)
    }

    /// The input size for `batch` images of `width × height` pixels; `None` unless both sides are
    /// positive multiples of the patch side and the batch is not empty.
    pub fn input_size(&self, batch: usize, width: usize, height: usize) -> Option<InputSize> {
        InputSize::in_patches(self.patch(), batch, width, height)
    }

    fn with_heads(mut self, path: &Path, hints: &Hints) -> Result<Self, CheckpointError> {
        for (stack, named, key) in [
            (&mut self.encoder, hints.enc_num_heads, "enc_num_heads"),
            (&mut self.decoder, hints.dec_num_heads, "dec_num_heads"),
        ] {
            let heads = named.unwrap_or(stack.width / DEFAULT_HEAD_DIM);
            // RoPE uses two axes, each rotated in pairs.
            if heads == 0 || stack.width % (heads * 4) != 0 {
                return Err(CheckpointError::Format {
                    path: path.to_owned(),
                    expected: format!(
                        "{key} beside the weights (in a .json file) that splits {} channels into \
                         heads of a multiple of 4",
                        stack.width
                    ),
                    found: match named {
                        Some(heads) => format!("{key} = {heads}"),
                        None => format!(
                            "none, and the default head of {DEFAULT_HEAD_DIM} channels does not fit"
                        ),
                    },
                });
            }
            stack.heads = heads;
        }
        if let Some(base) = hints.rope_freq {
            if !(base.is_finite() && base > 0.0) {
                return Err(CheckpointError::Format {
                    path: path.to_owned(),
                    expected: "a positive rope_freq".into(),
                    found: base.to_string(),
                });
            }
            self.rope_base = base;
        }
        Ok(self)
    }

    /// Every tensor that inference reads, with its shape, under the official model's names. Aliased
    /// tensors appear as `scratch.layer{1..4}_rn`.
    pub fn expected_shapes(&self) -> BTreeMap<String, Vec<usize>> {
        let mut shapes = Shapes(BTreeMap::new());
        let (enc, dec, patch) = (&self.encoder, &self.decoder, self.patch());
        shapes.add("patch_embed.proj", &[enc.width, 3, patch, patch]);
        if let Some(dune) = &self.dune {
            shapes.0.extend(dune.shapes(enc));
        }
        for block in 0..enc.depth {
            let name = format!("enc_blocks.{block}");
            shapes.norms(&name, &["norm1", "norm2"], enc.width);
            shapes.self_attention_and_mlp(&name, enc);
        }
        shapes.norms("enc_norm", &[""], enc.width);
        shapes.add("decoder_embed", &[dec.width, enc.width]);
        for branch in ["dec_blocks", "dec_blocks2"] {
            for block in 0..dec.depth {
                let name = format!("{branch}.{block}");
                shapes.norms(&name, &["norm1", "norm2", "norm3", "norm_y"], dec.width);
                shapes.self_attention_and_mlp(&name, dec);
                for projection in ["projq", "projk", "projv", "proj"] {
                    let name = format!("{name}.cross_attn.{projection}");
                    shapes.add(&name, &[dec.width, dec.width]);
                }
            }
        }
        shapes.norms("dec_norm", &[""], dec.width);
        for head in 1..=2 {
            self.head_shapes(&mut shapes, &format!("downstream_head{head}"));
        }
        shapes.0
    }

    fn head_shapes(&self, shapes: &mut Shapes, head: &str) {
        let dpt = format!("{head}.dpt");
        let dims = self.layer_dims;
        for (i, &dim) in dims.iter().enumerate() {
            let source = self.hook_width(i);
            shapes.add(
                &format!("{dpt}.act_postprocess.{i}.0"),
                &[dim, source, 1, 1],
            );
            let rescale = match i {
                0 => Some(4), // transposed convolution, stride 4
                1 => Some(2), // transposed convolution, stride 2
                2 => None,
                _ => Some(3), // convolution, stride 2
            };
            if let Some(k) = rescale {
                shapes.add(&format!("{dpt}.act_postprocess.{i}.1"), &[dim, dim, k, k]);
            }
        }
        let f = self.feature_dim;
        for (i, &dim) in dims.iter().enumerate() {
            let scratch = format!("{dpt}.scratch");
            shapes.weight(&format!("{scratch}.layer{}_rn", i + 1), &[f, dim, 3, 3]);
            let fusion = format!("{scratch}.refinenet{}", i + 1);
            shapes.add(&format!("{fusion}.out_conv"), &[f, f, 1, 1]);
            let units: &[usize] = if i == 3 { &[2] } else { &[1, 2] };
            for unit in units {
                for conv in 1..=2 {
                    let name = format!("{fusion}.resConfUnit{unit}.conv{conv}");
                    shapes.add(&name, &[f, f, 3, 3]);
                }
            }
        }
        let [first, second] = self.output_dims;
        shapes.add(&format!("{dpt}.head.0"), &[first, f, 3, 3]);
        shapes.add(&format!("{dpt}.head.2"), &[second, first, 3, 3]);
        shapes.add(&format!("{dpt}.head.4"), &[4, second, 1, 1]);
        let local = format!("{head}.head_local_features");
        let hidden = self.descriptor_hidden;
        let joined = self.encoder.width + self.decoder.width;
        shapes.add(&format!("{local}.fc1"), &[hidden, joined]);
        let shuffled = (self.descriptor_dim + 1) * self.patch() * self.patch();
        shapes.add(&format!("{local}.fc2"), &[shuffled, hidden]);
    }

    /// Channels of the tokens that DPT stage `i` reads.
    fn hook_width(&self, i: usize) -> usize {
        if self.hooks[i] == 0 {
            self.encoder.width
        } else {
            self.decoder.width
        }
    }
}

struct Shapes(BTreeMap<String, Vec<usize>>);

impl Shapes {
    fn weight(&mut self, name: &str, shape: &[usize]) {
        self.0.insert(format!("{name}.weight"), shape.to_vec());
    }

    /// Adds a weight, and a bias as long as its first dimension (transposed convolutions are laid
    /// out differently, but all in this network are square).
    fn add(&mut self, name: &str, shape: &[usize]) {
        self.weight(name, shape);
        self.0.insert(format!("{name}.bias"), vec![shape[0]]);
    }

    fn norms(&mut self, block: &str, names: &[&str], width: usize) {
        for name in names {
            let separator = if name.is_empty() { "" } else { "." };
            self.add(&format!("{block}{separator}{name}"), &[width]);
        }
    }

    fn self_attention_and_mlp(&mut self, block: &str, stack: &Stack) {
        let (width, hidden) = (stack.width, stack.hidden);
        self.add(&format!("{block}.attn.qkv"), &[3 * width, width]);
        self.add(&format!("{block}.attn.proj"), &[width, width]);
        self.add(&format!("{block}.mlp.fc1"), &[hidden, width]);
        self.add(&format!("{block}.mlp.fc2"), &[width, hidden]);
    }
}
