//! The decoder with both branches in one batch: half as many kernel launches, each twice as large.
//!
//! The weights of the two branches are concatenated, and each product is a batched one. The scale
//! and offset of a norm are folded into the layer that reads it, so that a single normalisation
//! serves self-attention and, in the other branch, cross-attention; their projections then become
//! one product.

use super::super::stack::Stack;
use super::blocks::{Rotary, prepare_rows};
use super::decoder::BRANCHES;
use super::graph::Value;
use super::matrix::transpose;
use super::{AttentionForm, Emitter, Finish, Pairs, Views, names};
use rayon::prelude::*;

/// Weight (`out × in`) and bias of a linear layer.
struct Layer {
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl Layer {
    /// Folds the scale and offset of a preceding norm into this layer.
    fn behind(mut self, (scale, offset): &(Vec<f32>, Vec<f32>)) -> Self {
        let rows = self.weight.par_chunks_exact_mut(scale.len());
        rows.zip(&mut self.bias).for_each(|(row, bias)| {
            let shift: f64 = row
                .iter()
                .zip(offset)
                .map(|(w, o)| f64::from(*w) * f64::from(*o))
                .sum();
            *bias = (f64::from(*bias) + shift) as f32;
            row.iter_mut().zip(scale).for_each(|(w, s)| *w *= s);
        });
        self
    }

    /// The first `outputs` outputs, and the others.
    fn split(mut self, outputs: usize) -> (Self, Self) {
        let inputs = self.weight.len() / self.bias.len();
        let rest = Self {
            weight: self.weight.split_off(outputs * inputs),
            bias: self.bias.split_off(outputs),
        };
        (self, rest)
    }

    /// Concatenates the outputs of both layers.
    fn beside(mut self, other: Self) -> Self {
        self.weight.extend(other.weight);
        self.bias.extend(other.bias);
        self
    }
}

impl Emitter<'_> {
    /// Emits both branches layer by layer, then the heads of the requested views.
    pub(super) fn decoder_together(&mut self, views: Views, finish: Finish, pairs: Pairs) {
        let architecture = &self.network.architecture;
        let (stack, hooks) = (architecture.decoder.clone(), architecture.hooks);
        let (batch, tokens) = (self.size.batch, self.size.tokens());
        let shape = [batch, tokens, architecture.encoder.width];
        self.graph.set_scope("decoder");
        let (features, x) = match pairs {
            Pairs::Given => {
                let features = names::VIEW_FEATURES.map(|name| self.input(name, &shape));
                let both = self.graph.concat(&[&features[0], &features[1]], 0);
                (features, self.linear(&both, "decoder_embed"))
            }
            Pairs::BothWays => {
                let features = self.input(names::FEATURES, &shape);
                // Each image's partner in its pair.
                let partners: Vec<usize> = (0..batch).map(|image| image ^ 1).collect();
                let others = self.graph.gather(&features, &partners);
                let own = self.linear(&features, "decoder_embed");
                let all: Vec<usize> = (0..batch).chain(partners).collect();
                ([features, others], self.graph.gather(&own, &all))
            }
        };
        let flat = [2, batch * tokens, stack.width];
        let mut x = self.graph.reshape(&x, &flat);
        let rotary = self.rotary(&stack, 2 * batch);
        let mut hooked = [0, 1].map(|view| [0, 1, 2, 3].map(|_| features[view].clone()));
        for layer in 0..stack.depth {
            self.graph.set_scope(&format!("dec_both.{layer}"));
            x = self.both_blocks(&x, layer, &stack, &rotary);
            if layer + 1 == stack.depth {
                x = self.layer_norm(&x, "dec_norm");
            }
            let slots = hooks.iter().enumerate();
            for (slot, _) in slots.filter(|(_, hook)| **hook == layer + 1) {
                let parts = self.graph.split(&x, 0, &[1, 1]);
                for (hooked, part) in hooked.iter_mut().zip(&parts) {
                    hooked[slot] = self.graph.reshape(part, &[batch, tokens, stack.width]);
                }
            }
        }
        let wanted = match views {
            Views::Both => 2,
            Views::First => 1,
        };
        for (view, tokens) in hooked.iter().enumerate().take(wanted) {
            self.head(view, tokens, finish);
        }
    }

    /// Block `layer` of both branches; `x` is `2 × (B·T) × C`.
    fn both_blocks(&mut self, x: &Value, layer: usize, stack: &Stack, rotary: &Rotary) -> Value {
        let (batch, tokens, width) = (self.size.batch, self.size.tokens(), stack.width);
        let apart = [2 * batch, tokens, width];
        let blocks = BRANCHES.map(|branch| format!("{branch}.{layer}"));
        let name = format!("dec_both.{layer}");

        // Queries and keys of the own branch, the keys that the other branch reads, and the values of both:
        // what is rotated lies together.
        let normed = self.plain_norm(x);
        let joint = [0, 1].map(|branch| {
            let (own, other) = (&blocks[branch], &blocks[1 - branch]);
            let cross = |this: &Self, projection: &str| {
                this.layer(&format!("{other}.cross_attn.{projection}"))
            };
            let mut qk = self.layer(&format!("{own}.attn.qkv"));
            prepare(&mut qk, 0, stack, true);
            prepare(&mut qk, 1, stack, false);
            let own_norm = self.norm(&format!("{own}.norm1"));
            let (qk, v) = qk.behind(&own_norm).split(2 * width);
            let mut k = cross(self, "projk");
            prepare(&mut k, 0, stack, false);
            let norm_y = self.norm(&format!("{other}.norm_y"));
            let (k, vc) = (k.behind(&norm_y), cross(self, "projv").behind(&norm_y));
            qk.beside(k).beside(v).beside(vc)
        });
        let joint = self.both(&normed, &format!("{name}.joint"), joint);
        let joint = self.graph.reshape(&joint, &[2 * batch, tokens, 5 * width]);
        let [q, k, kc, v, vc] = self.joint_parts(&joint, stack, rotary);
        let mixed = self.mix([&q, &k, &v], stack);
        let x = self.residual_both(x, &mixed, &name, &blocks, "attn.proj");

        // Each branch reads the other's tokens from before this block.
        let other: Vec<usize> = (batch..2 * batch).chain(0..batch).collect();
        let kc = self.graph.gather(&kc, &other);
        let vc = self.graph.gather(&vc, &other);
        let normed = self.plain_norm(&x);
        let q = blocks.each_ref().map(|block| {
            let mut q = self.layer(&format!("{block}.cross_attn.projq"));
            prepare(&mut q, 0, stack, true);
            q.behind(&self.norm(&format!("{block}.norm2")))
        });
        let q = self.both(&normed, &format!("{name}.cross_attn.projq"), q);
        let q = self.graph.reshape(&q, &apart);
        let q = self.rotated(&q, stack, rotary);
        let mixed = self.mix([&q, &kc, &vc], stack);
        let x = self.residual_both(&x, &mixed, &name, &blocks, "cross_attn.proj");

        let normed = self.plain_norm(&x);
        let first = blocks.each_ref().map(|block| {
            let layer = self.layer(&format!("{block}.mlp.fc1"));
            layer.behind(&self.norm(&format!("{block}.norm3")))
        });
        let hidden = self.both(&normed, &format!("{name}.mlp.fc1"), first);
        let hidden = self.graph.unary("Gelu", &hidden);
        self.residual_both(&x, &hidden, &name, &blocks, "mlp.fc2")
    }

    /// `x + Linear(y)` with a separate layer for each branch.
    fn residual_both(
        &mut self,
        x: &Value,
        y: &Value,
        name: &str,
        blocks: &[String; 2],
        layer: &str,
    ) -> Value {
        let rows = x.shape[1];
        let inputs = y.shape.iter().product::<usize>() / (2 * rows);
        let y = self.graph.reshape(y, &[2, rows, inputs]);
        let layers = blocks
            .each_ref()
            .map(|block| self.layer(&format!("{block}.{layer}")));
        let out = self.both(&y, &format!("{name}.{layer}"), layers);
        self.graph.binary("Add", x, &out)
    }

    /// Applies each branch's layer to its rows of `x`, `2 × N × in`.
    fn both(&mut self, x: &Value, what: &str, layers: [Layer; 2]) -> Value {
        let (inputs, outputs) = (x.shape[2], layers[0].bias.len());
        let [weights, biases] = {
            let [a, b] = layers;
            let turned = [a.weight, b.weight].map(|w| transpose(&w, outputs, inputs));
            [turned.concat(), [a.bias, b.bias].concat()]
        };
        let shape = [2, inputs, outputs];
        let weight = self
            .graph
            .weight(&format!("{what}.weight"), &shape, &weights);
        let shape = [2, 1, outputs];
        let bias = self.graph.weight(&format!("{what}.bias"), &shape, &biases);
        let product = self.graph.matmul(x, &weight);
        self.graph.binary("Add", &product, &bias)
    }

    /// Splits a joint projection, `N × T × 5C`, into five parts of which the first three are rotated, as
    /// [`Emitter::mix`] takes them.
    fn joint_parts(&mut self, joint: &Value, stack: &Stack, rotary: &Rotary) -> [Value; 5] {
        let parts = match self.attention {
            AttentionForm::Fused => {
                let mut parts = self.graph.split(joint, 2, &[stack.width; 5]);
                for part in &mut parts[..3] {
                    *part = self.rotated(part, stack, rotary);
                }
                parts
            }
            AttentionForm::Decomposed => {
                let maps = self.heads(joint, 5, stack);
                let one = maps.shape[1..].to_vec();
                let kinds = self.graph.split(&maps, 0, &[3, 2]);
                let turned = self.rotate(&kinds[0], rotary);
                let mut parts = self.graph.split(&turned, 0, &[1; 3]);
                parts.extend(self.graph.split(&kinds[1], 0, &[1; 2]));
                let parts = parts.iter();
                parts.map(|part| self.graph.reshape(part, &one)).collect()
            }
        };
        parts
            .try_into()
            .unwrap_or_else(|_| unreachable!("split in five"))
    }

    /// Rotated queries or keys, `N × T × C`, as [`Emitter::mix`] takes them.
    fn rotated(&mut self, x: &Value, stack: &Stack, rotary: &Rotary) -> Value {
        match self.attention {
            AttentionForm::Fused => self.rotate_fused(x, stack, rotary),
            AttentionForm::Decomposed => {
                let heads = self.heads(x, 1, stack);
                let turned = self.rotate(&heads, rotary);
                self.graph.reshape(&turned, &heads.shape[1..])
            }
        }
    }

    /// Attention of rotated queries and keys: `N × T × C` where it is one operator, otherwise `N × H × T × D`.
    fn mix(&mut self, [q, k, v]: [&Value; 3], stack: &Stack) -> Value {
        match self.attention {
            AttentionForm::Fused => self.graph.attention(q, k, v, stack.heads),
            AttentionForm::Decomposed => self.attend(q, k, v),
        }
    }

    /// A LayerNorm without scale and offset.
    fn plain_norm(&mut self, x: &Value) -> Value {
        let width = x.shape[x.shape.len() - 1];
        let scale = self.graph.weight("ones", &[width], &vec![1.0; width]);
        let offset = self.graph.weight("zeros", &[width], &vec![0.0; width]);
        self.graph
            .layer_norm(x, &scale, &offset, super::blocks::LAYER_NORM_EPSILON)
    }

    fn layer(&self, name: &str) -> Layer {
        Layer {
            weight: self.network.weight(&format!("{name}.weight")),
            bias: self.network.weight(&format!("{name}.bias")),
        }
    }

    fn norm(&self, name: &str) -> (Vec<f32>, Vec<f32>) {
        let Layer { weight, bias } = self.layer(name);
        (weight, bias)
    }
}

/// Applies [`prepare_rows`] to the `part`-th `C` outputs of a layer.
fn prepare(layer: &mut Layer, part: usize, stack: &Stack, query: bool) {
    let width = stack.width;
    let rows = part * width..(part + 1) * width;
    prepare_rows(&mut layer.bias[rows.clone()], stack, query);
    prepare_rows(
        &mut layer.weight[rows.start * width..rows.end * width],
        stack,
        query,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_norms_scale_and_offset_can_be_the_next_layers() {
        let (scale, offset) = (vec![2.0, -0.5], vec![0.25, 3.0]);
        let layer = || Layer {
            weight: vec![1.0, 2.0, -3.0, 0.5, 0.0, 1.0],
            bias: vec![0.5, 0.0, -1.0],
        };
        let run = |layer: &Layer, x: &[f32]| -> Vec<f32> {
            let rows = layer.weight.chunks_exact(2).zip(&layer.bias);
            rows.map(|(w, b)| w[0] * x[0] + w[1] * x[1] + b).collect()
        };
        let x = [0.75, -2.0];
        let scaled = [x[0] * scale[0] + offset[0], x[1] * scale[1] + offset[1]];
        let folded = layer().behind(&(scale, offset));
        // Every product and sum here is exact.
        assert_eq!(run(&folded, &x), run(&layer(), &scaled));
    }
}
