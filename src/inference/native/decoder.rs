//! The decoder's plan. Both branches run as two groups of every launch.
//!
//! One normalisation serves self-attention and, in the other branch, cross-attention, as each norm's scale and
//! offset are in the layer that reads it; the projections of both are one product.

use super::encoder::EPSILON;
use super::heads::DenseMap;
use super::layer::Layer;
use super::layout::{Heads, Layout, Rows};
use super::operand::{External, HALF, Operand, SINGLE};
use super::pairs::Pairs;
use super::step::{Flags, Linear, Step};
use super::weights::StoredLayer;
use crate::inference::InferenceError;
use crate::network::Network;
use crate::network::Stack;
use rayon::prelude::*;

/// Names of the two branches' blocks.
const BRANCHES: [&str; 2] = ["dec_blocks", "dec_blocks2"];

/// Tokens of both branches and how they are processed.
struct Tokens<'a> {
    x: Operand,
    /// Rows per branch.
    rows: usize,
    pairs: Pairs,
    stack: &'a Stack,
}

impl Layout<'_> {
    /// Both branches layer by layer, then the heads of the wanted views.
    pub(super) fn decoder(&mut self, pairs: Pairs) -> Result<(), InferenceError> {
        let architecture = self.architecture;
        let (stack, hooks) = (&architecture.decoder, architecture.hooks);
        let (encoded, width) = (architecture.encoder.width, stack.width);
        let rows = pairs.items() * self.size.tokens();
        // The encoder's tokens and the decoder's last ones, side by side, as the descriptors' layers read them.
        let both = encoded + width;
        let joined = self.halves(2 * rows * both);
        let views = match pairs {
            Pairs::BothWays(_) => [External::View(0); 2],
            Pairs::First | Pairs::Both => [External::View(0), External::View(1)],
        };
        self.draft.push(Step::Convert {
            views: views.map(Operand::External),
            wanted: 2,
            items: pairs.items(),
            tokens: self.size.tokens(),
            width: encoded,
            partner: matches!(pairs, Pairs::BothWays(_)),
            out: joined,
            stride: both,
        });
        let embed = self.layer("decoder_embed", |network| {
            Layer::linear(network, "decoder_embed")
        })?;
        let x = self.singles(2 * rows * width);
        let first = Rows {
            at: joined,
            stride: both,
            group: rows * both,
        };
        self.draft.push(Step::Linear(Linear {
            flags: Flags::OUT_F32,
            ..Self::linear(first, embed, 2 * rows, 1, x)
        }));
        let last = Rows {
            at: joined.offset(encoded * HALF),
            ..first
        };
        let mut maps = Vec::with_capacity(hooks.len());
        self.reassemble_aside(pairs, (0, first), &mut maps)?;
        let tokens = Tokens {
            x,
            rows,
            pairs,
            stack,
        };
        for layer in 0..stack.depth {
            self.blocks(&tokens, layer)?;
            let done = layer + 1;
            if done == stack.depth || !hooks.contains(&done) {
                continue;
            }
            let kept = self.keep(&tokens);
            self.reassemble_aside(pairs, (done, kept), &mut maps)?;
        }
        self.draft.join();
        let gain = self.gain("dec_norm")?;
        self.draft.push(Step::Norm {
            x,
            gain,
            out: last.at,
            stride: both,
            out_f32: Operand::None,
            rows: pairs.views() * rows,
            width,
            epsilon: EPSILON.to_bits(),
        });
        let mut map = |level: usize| match maps.iter().find(|(of, _)| *of == level) {
            Some(&(_, map)) => Ok(map),
            None => self.reassemble(pairs, level, last),
        };
        let maps = [map(0)?, map(1)?, map(2)?, map(3)?];
        self.heads(pairs, &maps, first)
    }

    /// The maps of the levels whose hook is `tokens`, beside the layers that follow, whose steps leave much of the GPU
    /// free.
    fn reassemble_aside(
        &mut self,
        pairs: Pairs,
        (hook, tokens): (usize, Rows),
        maps: &mut Vec<(usize, DenseMap)>,
    ) -> Result<(), InferenceError> {
        self.draft.set_aside(true);
        for (level, of_level) in self.architecture.hooks.into_iter().enumerate() {
            if of_level == hook {
                maps.push((level, self.reassemble(pairs, level, tokens)?));
            }
        }
        self.draft.set_aside(false);
        Ok(())
    }

    /// The wanted views' tokens as they are now, as 16-bit numbers.
    fn keep(&mut self, tokens: &Tokens<'_>) -> Rows {
        let (width, rows) = (tokens.stack.width, tokens.rows);
        let out = self.halves(tokens.pairs.views() * rows * width);
        self.draft.push(Step::Convert {
            views: [0, 1].map(|view| tokens.x.offset(view * rows * width * SINGLE)),
            wanted: tokens.pairs.views(),
            items: tokens.pairs.items(),
            tokens: self.size.tokens(),
            width,
            partner: false,
            out,
            stride: width,
        });
        Rows {
            at: out,
            stride: width,
            group: rows * width,
        }
    }

    /// Block `layer` of both branches. After the projections, the last one runs for the wanted views alone.
    fn blocks(&mut self, tokens: &Tokens<'_>, layer: usize) -> Result<(), InferenceError> {
        let &Tokens {
            x,
            rows,
            pairs,
            stack,
        } = tokens;
        let (width, items, heads) = (stack.width, pairs.items(), Heads::of(stack));
        let inner = heads.width();
        let wanted = match layer + 1 == stack.depth {
            true => pairs.views(),
            false => 2,
        };
        let blocks = BRANCHES.map(|branch| format!("{branch}.{layer}"));
        let name = format!("dec_both.{layer}");
        let grouped = |at, stride| Rows {
            at,
            stride,
            group: rows * stride,
        };

        // Queries, keys and values of the own branch, then keys and values that the other one reads.
        let normed = self.norm(x, 2 * rows, width, EPSILON);
        let projections = self.source.layer(&format!("{name}.joint"), |network| {
            let of = |branch: usize| joint(network, &blocks[branch], &blocks[1 - branch], stack);
            let (first, second) = rayon::join(|| of(0), || of(1));
            vec![first, second]
        })?;
        let joint = self.halves(2 * rows * 5 * inner);
        let rotation = self.rotation(stack, 0b01011)?;
        self.draft.push(Step::Linear(Linear {
            rotation: Some(rotation),
            ..Self::linear(grouped(normed, width), projections, rows, 2, joint)
        }));
        let part = |part: usize| (joint.offset(part * inner * HALF), 5 * inner);
        let tokens = self.size.tokens();
        let attention = |inputs, out, shift| Step::Attention {
            inputs,
            out,
            tokens,
            heads: heads.count,
            head: heads.wide,
            wanted: wanted * items,
            items: 2 * items,
            shift,
        };
        let mixed = self.halves(wanted * rows * inner);
        self.draft
            .push(attention([part(0), part(1), part(2)], mixed, 0));
        let proj = self.projection(&name, &blocks, "attn.proj", heads)?;
        self.add_to(x, grouped(mixed, inner), proj, rows, wanted);

        // Each branch reads the other's tokens of before.
        let normed = self.norm(x, wanted * rows, width, EPSILON);
        let projq = self
            .source
            .layer(&format!("{name}.cross_attn.projq"), |network| {
                let layer = |block: &String| {
                    Layer::linear(network, &format!("{block}.cross_attn.projq"))
                        .rotated(0, stack, true)
                        .after_norm(network, &format!("{block}.norm2"))
                };
                blocks.par_iter().map(layer).collect()
            })?;
        let queries = self.halves(wanted * rows * inner);
        let rotation = self.rotation(stack, 0b1)?;
        self.draft.push(Step::Linear(Linear {
            rotation: Some(rotation),
            ..Self::linear(grouped(normed, width), projq, rows, wanted, queries)
        }));
        let mixed = self.halves(wanted * rows * inner);
        self.draft.push(attention(
            [(queries, width), part(3), part(4)],
            mixed,
            items,
        ));
        let proj = self.projection(&name, &blocks, "cross_attn.proj", heads)?;
        self.add_to(x, grouped(mixed, inner), proj, rows, wanted);

        let normed = self.norm(x, wanted * rows, width, EPSILON);
        let fc1 = self.branches(&name, &blocks, "mlp.fc1", Some("norm3"))?;
        let hidden = self.halves(wanted * rows * fc1.outputs);
        self.draft.push(Step::Linear(Linear {
            flags: Flags::GELU,
            ..Self::linear(grouped(normed, width), fc1, rows, wanted, hidden)
        }));
        let fc2 = self.branches(&name, &blocks, "mlp.fc2", None)?;
        self.add_to(x, grouped(hidden, fc1.outputs), fc2, rows, wanted);
        Ok(())
    }

    /// The projection of both branches' attention.
    fn projection(
        &mut self,
        name: &str,
        blocks: &[String; 2],
        layer: &str,
        heads: Heads,
    ) -> Result<StoredLayer, InferenceError> {
        self.source.layer(&format!("{name}.{layer}"), |network| {
            let make = |block: &String| {
                Layer::linear(network, &format!("{block}.{layer}"))
                    .reading_wider_heads(heads.stored, heads.wide)
            };
            blocks.par_iter().map(make).collect()
        })
    }

    /// A linear layer of both branches, after a norm or not.
    fn branches(
        &mut self,
        name: &str,
        blocks: &[String; 2],
        layer: &str,
        norm: Option<&str>,
    ) -> Result<StoredLayer, InferenceError> {
        self.source.layer(&format!("{name}.{layer}"), |network| {
            let make = |block: &String| {
                let linear = Layer::linear(network, &format!("{block}.{layer}"));
                match norm {
                    Some(norm) => linear.after_norm(network, &format!("{block}.{norm}")),
                    None => linear,
                }
            };
            blocks.par_iter().map(make).collect()
        })
    }
}

/// Queries, keys and values of `own`'s self-attention, then keys and values of `other`'s cross-attention.
fn joint(network: &Network, own: &str, other: &str, stack: &Stack) -> Layer {
    let own = Layer::linear(network, &format!("{own}.attn.qkv"))
        .rotated(0, stack, true)
        .rotated(stack.width, stack, false)
        .after_norm(network, &format!("{own}.norm1"));
    let keys =
        Layer::linear(network, &format!("{other}.cross_attn.projk")).rotated(0, stack, false);
    let values = Layer::linear(network, &format!("{other}.cross_attn.projv"));
    let cross = keys.beside(values);
    let heads = Heads::of(stack);
    own.beside(cross.after_norm(network, &format!("{other}.norm_y")))
        .wider_heads(heads.stored, heads.wide)
}
