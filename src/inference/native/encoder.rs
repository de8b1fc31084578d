//! The encoder's plan: patches, blocks, final norm.

use super::layer::Layer;
use super::layout::{Heads, Layout, Rows};
use super::operand::{External, HALF, Operand, SINGLE};
use super::step::{Flags, Linear, Step, Summand};
use crate::inference::InferenceError;
use crate::network::Stack;
use crate::network::dune::{self, Dune};

/// Epsilon of every norm except DUNE's last.
pub(super) const EPSILON: f32 = 1e-6;

const PATCHES: &str = "patch_embed.proj";

impl Layout<'_> {
    /// One image to its tokens.
    pub(super) fn encoder(&mut self) -> Result<(), InferenceError> {
        let stack = self.architecture.encoder.clone();
        let dune = self.architecture.dune.clone();
        let (width, tokens) = (stack.width, self.size.tokens());
        let prefix = dune.as_ref().map_or(0, Dune::prefix);
        let x = self.singles((prefix + tokens) * width);
        self.embed(x.offset(prefix * width * SINGLE), width, dune.as_ref())?;
        if let Some(dune) = &dune {
            self.prefix(x, width, dune)?;
        }
        for block in 0..stack.depth {
            self.encoder_block(x, prefix + tokens, block, &stack, dune.is_none())?;
        }
        let gain = self.gain("enc_norm")?;
        self.draft.push(Step::Norm {
            x: x.offset(prefix * width * SINGLE),
            gain,
            out: Operand::External(External::HalfFeatures),
            stride: width,
            out_f32: Operand::External(External::Features),
            rows: tokens,
            width,
            epsilon: match dune {
                Some(_) => dune::NORM_EPSILON,
                None => EPSILON,
            }
            .to_bits(),
        });
        Ok(())
    }

    /// The image's patches as tokens at `x`, with DUNE's learnt positions.
    fn embed(
        &mut self,
        x: Operand,
        width: usize,
        dune: Option<&Dune>,
    ) -> Result<(), InferenceError> {
        let (size, patch) = (self.size, self.architecture.patch());
        let layer = self.layer(PATCHES, |network| {
            let layer = Layer::linear(network, PATCHES);
            match dune {
                Some(_) => for_colours(layer, patch * patch),
                None => layer,
            }
        })?;
        let patches = self.halves(size.tokens() * layer.inputs);
        self.draft.push(Step::Patches {
            height: size.height,
            width: size.width,
            patch,
            out: patches,
            stride: layer.inputs,
        });
        let a = Rows {
            at: patches,
            stride: layer.inputs,
            group: 0,
        };
        let mut step = Linear {
            flags: Flags::OUT_F32,
            ..Self::linear(a, layer, size.tokens(), 1, x)
        };
        if let Some(dune) = dune {
            let places = (size.rows(), size.columns());
            let positions = self.source.values("positions", |network| {
                let learnt = network.weight("pos_embed");
                dune::positions(&learnt[width..], dune.grid, places, width)
            })?;
            step.first = Summand {
                at: Operand::Weight(positions),
                group: 0,
            };
            step.flags = step.flags.and(Flags::ADD_F32);
        }
        self.draft.push(Step::Linear(step));
        Ok(())
    }

    /// DUNE's class token and registers, which come before the patches' tokens.
    fn prefix(&mut self, x: Operand, width: usize, dune: &Dune) -> Result<(), InferenceError> {
        let prefix = self.source.values("prefix", |network| {
            let (class, learnt) = (network.weight("cls_token"), network.weight("pos_embed"));
            let class = class.iter().zip(&learnt[..width]).map(|(c, p)| c + p);
            let registers = network.optional("register_tokens").unwrap_or_default();
            class.chain(registers).collect()
        })?;
        self.draft.push(Step::Copy {
            from: Operand::Weight(prefix),
            to: x,
            bytes: dune.prefix() * width * SINGLE,
        });
        Ok(())
    }

    /// `x += Proj(Attn(norm1(x)))`, `x += FC2(GELU(FC1(norm2(x))))`; DUNE's attention is not `rotated`.
    fn encoder_block(
        &mut self,
        x: Operand,
        rows: usize,
        block: usize,
        stack: &Stack,
        rotated: bool,
    ) -> Result<(), InferenceError> {
        let (name, width, heads) = (format!("enc_blocks.{block}"), stack.width, Heads::of(stack));
        let inner = heads.width();
        let normed = self.norm(x, rows, width, EPSILON);
        let qkv = self.layer(&format!("{name}.attn.qkv"), |network| {
            let layer = Layer::linear(network, &format!("{name}.attn.qkv"));
            let layer = match rotated {
                true => layer.rotated(0, stack, true).rotated(width, stack, false),
                false => layer.logits_scaled(0, stack),
            };
            layer
                .after_norm(network, &format!("{name}.norm1"))
                .wider_heads(heads.stored, heads.wide)
        })?;
        let joint = self.halves(rows * 3 * inner);
        let rotation = match rotated {
            true => Some(self.rotation(stack, 0b011)?),
            false => None,
        };
        let a = |at, stride| Rows {
            at,
            stride,
            group: 0,
        };
        self.draft.push(Step::Linear(Linear {
            rotation,
            ..Self::linear(a(normed, width), qkv, rows, 1, joint)
        }));
        let mixed = self.halves(rows * inner);
        self.draft.push(Step::Attention {
            inputs: [0, 1, 2].map(|part| (joint.offset(part * inner * HALF), 3 * inner)),
            out: mixed,
            tokens: rows,
            heads: heads.count,
            head: heads.wide,
            wanted: 1,
            items: 1,
            shift: 0,
        });
        let scaled = |layer: &str, gamma: &str| {
            let (layer, gamma) = (format!("{name}.{layer}"), format!("{name}.{gamma}.gamma"));
            move |network: &crate::network::Network| {
                Layer::linear(network, &layer).scaled(network.optional(&gamma))
            }
        };
        let make = scaled("attn.proj", "ls1");
        let proj = self.layer(&format!("{name}.attn.proj"), |network| {
            make(network).reading_wider_heads(heads.stored, heads.wide)
        })?;
        self.add_to(x, a(mixed, inner), proj, rows, 1);

        let normed = self.norm(x, rows, width, EPSILON);
        let fc1 = self.layer(&format!("{name}.mlp.fc1"), |network| {
            Layer::linear(network, &format!("{name}.mlp.fc1"))
                .after_norm(network, &format!("{name}.norm2"))
        })?;
        let hidden = self.halves(rows * fc1.outputs);
        self.draft.push(Step::Linear(Linear {
            flags: Flags::GELU,
            ..Self::linear(a(normed, width), fc1, rows, 1, hidden)
        }));
        let fc2 = self.layer(&format!("{name}.mlp.fc2"), scaled("mlp.fc2", "ls2"))?;
        self.add_to(x, a(hidden, fc1.outputs), fc2, rows, 1);
        Ok(())
    }
}

/// The layer of DUNE's patches for the encoder's input, `2·colour − 1`, in place of its own,
/// `(colour − mean)/deviation`. Patches do not overlap and nothing is padded, so that is the same.
fn for_colours(mut layer: Layer, pixels: usize) -> Layer {
    for (filter, bias) in layer
        .weight
        .chunks_exact_mut(3 * pixels)
        .zip(&mut layer.bias)
    {
        let mut sum = f64::from(*bias);
        for (of_colour, (mean, deviation)) in filter.chunks_exact_mut(pixels).zip(dune::COLOURS) {
            let (scale, offset) = (0.5 / deviation, (0.5 - mean) / deviation);
            for w in of_colour {
                sum += offset * f64::from(*w);
                *w = (scale * f64::from(*w)) as f32;
            }
        }
        *bias = sum as f32;
    }
    layer
}
