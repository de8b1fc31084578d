//! Building blocks of encoder and decoder: linear layers, norms, attention, MLP.

use super::super::stack::Stack;
use super::fp8::Input;
use super::graph::Value;
use super::matrix::transpose;
use super::{AttentionForm, Emitter};

/// Epsilon of every LayerNorm in the network.
pub const LAYER_NORM_EPSILON: f32 = 1e-6;

/// The rotary tables of one stack. Decomposed form: `T × head_dim` each, for `x·cos +
/// swap_halves(x)·sin`. Fused form: `B × T × head_dim/2` each, as `RotaryEmbedding` expects.
pub struct Rotary {
    cos: Value,
    sin: Value,
}

impl Emitter<'_> {
    /// `x·Wᵀ + b` with `weight` of shape `out × in` (row-major) and a bias of length `out`.
    pub fn linear_of(&mut self, x: &Value, what: &str, weight: &[f32], bias: &[f32]) -> Value {
        let outputs = bias.len();
        let inputs = weight.len() / outputs;
        let transposed = transpose(weight, outputs, inputs);
        let matrix = self
            .graph
            .weight(&format!("{what}.weight"), &[inputs, outputs], &transposed);
        let bias = self.graph.weight(&format!("{what}.bias"), &[outputs], bias);
        let product = self.graph.matmul(x, &matrix);
        self.graph.binary("Add", &product, &bias)
    }

    /// The linear layer (or 1×1 convolution over tokens) named `name`.
    pub fn linear(&mut self, x: &Value, name: &str) -> Value {
        let (weight, bias) = self.weights_of(name);
        self.linear_of(x, name, &weight, &bias)
    }

    /// Stored weight and bias of a layer.
    pub fn weights_of(&self, name: &str) -> (Vec<f32>, Vec<f32>) {
        let weight = self.network.weight(&format!("{name}.weight"));
        let bias = self.network.weight(&format!("{name}.bias"));
        (weight, bias)
    }

    /// Weight and bias of the last layer of a residual branch, with the layer scale `gamma` of its
    /// outputs folded in where the encoder has one.
    fn scaled_weights_of(&self, name: &str, gamma: &str) -> (Vec<f32>, Vec<f32>) {
        let (mut weight, mut bias) = self.weights_of(name);
        if let Some(gamma) = self.network.optional(&format!("{gamma}.gamma")) {
            let inputs = weight.len() / bias.len();
            let rows = weight.chunks_exact_mut(inputs).zip(&mut bias);
            for ((row, bias), scale) in rows.zip(gamma) {
                row.iter_mut().chain([bias]).for_each(|w| *w *= scale);
            }
        }
        (weight, bias)
    }

    pub fn layer_norm(&mut self, x: &Value, name: &str) -> Value {
        self.layer_norm_with(x, name, LAYER_NORM_EPSILON)
    }

    pub fn layer_norm_with(&mut self, x: &Value, name: &str, epsilon: f32) -> Value {
        let width = [x.shape[x.shape.len() - 1]];
        let scale = self.stored(&format!("{name}.weight"), &width);
        let bias = self.stored(&format!("{name}.bias"), &width);
        self.graph.layer_norm(x, &scale, &bias, epsilon)
    }

    /// `x + FC2(GELU(FC1(norm(x))))` with exact GELU.
    pub fn residual_mlp(&mut self, x: &Value, block: &str, norm: &str) -> Value {
        let norm = format!("{block}.{norm}");
        let [fc1, fc2] = ["fc1", "fc2"].map(|layer| format!("{block}.mlp.{layer}"));
        let (weight, bias) = self.weights_of(&fc1);
        let normed = self.layer_norm(x, &norm);
        let hidden = self.linear_in(&normed, &fc1, (&weight, &bias), Input::Norm(&norm));
        let hidden = self.graph.unary("Gelu", &hidden);
        let before = Input::Layer {
            norm: &norm,
            weight: &weight,
            bias: &bias,
        };
        let (weight, bias) = self.scaled_weights_of(&fc2, &format!("{block}.ls2"));
        let out = self.linear_in(&hidden, &fc2, (&weight, &bias), before);
        self.graph.binary("Add", x, &out)
    }

    /// Rotary tables for all positions, laid out as by [`rotary_tables`], for `batch` images.
    pub fn rotary(&mut self, stack: &Stack, batch: usize) -> Rotary {
        let head_dim = stack.width / stack.heads;
        let base = self.network.architecture.rope_base;
        let (tokens, columns) = (self.size.tokens(), self.size.columns());
        let (mut cos, mut sin) = rotary_tables(head_dim, tokens, columns, base);
        let mut shape = vec![tokens, head_dim];
        if self.attention == AttentionForm::Fused {
            // Takes the second half of each row, where the sines are positive.
            let half = |table: &[f32]| {
                let of_tokens = table.chunks_exact(head_dim);
                let all: Vec<f32> = of_tokens
                    .flat_map(|t| &t[head_dim / 2..])
                    .copied()
                    .collect();
                all.repeat(batch)
            };
            (cos, sin) = (half(&cos), half(&sin));
            shape = vec![batch, tokens, head_dim / 2];
        }
        Rotary {
            cos: self.graph.weight("rotary.cos", &shape, &cos),
            sin: self.graph.weight("rotary.sin", &shape, &sin),
        }
    }

    /// Rotates each token of `x` (`… × T × head_dim`) by its position.
    pub fn rotate(&mut self, x: &Value, rotary: &Rotary) -> Value {
        let axis = x.shape.len() - 1;
        let half = x.shape[axis] / 2;
        let halves = self.graph.split(x, axis, &[half, half]);
        let swapped = self.graph.concat(&[&halves[1], &halves[0]], axis);
        let straight = self.graph.binary("Mul", x, &rotary.cos);
        let crossed = self.graph.binary("Mul", &swapped, &rotary.sin);
        self.graph.binary("Add", &straight, &crossed)
    }

    /// Splits a joint projection `B × T × (n·C)` into `n` tensors of heads, `n × B × H × T × D`.
    pub fn heads(&mut self, x: &Value, n: usize, stack: &Stack) -> Value {
        let (batch, tokens) = (x.shape[0], x.shape[1]);
        let head_dim = stack.width / stack.heads;
        let shape = [batch, tokens, n, stack.heads, head_dim];
        let split = self.graph.reshape(x, &shape);
        self.graph.transpose(&split, &[2, 0, 3, 1, 4])
    }

    /// Fused attention with rotated queries and keys; all tensors are `B × T × C`.
    pub fn attend_fused(
        &mut self,
        [q, k, v]: [&Value; 3],
        stack: &Stack,
        rotary: &Rotary,
    ) -> Value {
        let q = self.rotate_fused(q, stack, rotary);
        let k = self.rotate_fused(k, stack, rotary);
        self.graph.attention(&q, &k, v, stack.heads)
    }

    /// Rotates queries or keys, `B × T × C`, by the operator.
    pub fn rotate_fused(&mut self, x: &Value, stack: &Stack, rotary: &Rotary) -> Value {
        let tables = [&rotary.cos, &rotary.sin];
        self.graph.rotary_embedding(x, tables, stack.heads)
    }

    /// Reorders and scales the rows of a joint query, key and value projection for attention.
    fn prepare_joint(&self, rows: &mut [f32], stack: &Stack, rotary: Option<&Rotary>) {
        let each = rows.len() / 3;
        let (q, rest) = rows.split_at_mut(each);
        match rotary {
            Some(_) => {
                prepare_rows(q, stack, true);
                prepare_rows(&mut rest[..each], stack, false);
            }
            None => scale_logits(q, stack),
        }
    }

    /// `softmax(q·kᵀ)·v`, reshaped to `B × T × C`. `q` already includes the logit scale.
    pub fn attend(&mut self, q: &Value, k: &Value, v: &Value) -> Value {
        let g = &mut self.graph;
        let &[batch, heads, tokens, head_dim] = &q.shape[..] else {
            unreachable!("attention works on four axes");
        };
        let k = g.transpose(k, &[0, 1, 3, 2]);
        let logits = g.matmul(q, &k);
        let weights = g.softmax(&logits);
        let mixed = g.matmul(&weights, v);
        let mixed = g.transpose(&mixed, &[0, 2, 1, 3]);
        g.reshape(&mixed, &[batch, tokens, heads * head_dim])
    }

    /// `x + Proj(Attn(RoPE(norm1(x))))`; no RoPE if `rotary` is `None`.
    pub fn residual_self_attention(
        &mut self,
        x: &Value,
        block: &str,
        stack: &Stack,
        rotary: Option<&Rotary>,
    ) -> Value {
        let norm = format!("{block}.norm1");
        let normed = self.layer_norm(x, &norm);
        let name = format!("{block}.attn.qkv");
        let (mut weight, mut bias) = self.weights_of(&name);
        let width = stack.width;
        self.prepare_joint(&mut weight, stack, rotary);
        self.prepare_joint(&mut bias, stack, rotary);
        let qkv = self.linear_in(&normed, &name, (&weight, &bias), Input::Norm(&norm));

        let mixed = match self.attention {
            AttentionForm::Fused => {
                let parts = self.graph.split(&qkv, 2, &[width; 3]);
                match rotary {
                    Some(rotary) => {
                        self.attend_fused([&parts[0], &parts[1], &parts[2]], stack, rotary)
                    }
                    None => (self.graph).attention(&parts[0], &parts[1], &parts[2], stack.heads),
                }
            }
            AttentionForm::Decomposed => {
                let maps = self.heads(&qkv, 3, stack);
                let parts = self.graph.split(&maps, 0, &[2, 1]);
                let turned = match rotary {
                    Some(rotary) => self.rotate(&parts[0], rotary),
                    None => parts[0].clone(),
                };
                let qk = self.graph.split(&turned, 0, &[1, 1]);
                let one = &maps.shape[1..];
                let q = self.graph.reshape(&qk[0], one);
                let k = self.graph.reshape(&qk[1], one);
                let v = self.graph.reshape(&parts[1], one);
                self.attend(&q, &k, &v)
            }
        };
        let values = Input::Layer {
            norm: &norm,
            weight: &weight[2 * width * width..],
            bias: &bias[2 * width..],
        };
        let name = format!("{block}.attn.proj");
        let (weight, bias) = self.scaled_weights_of(&name, &format!("{block}.ls1"));
        let out = self.linear_in(&mixed, &name, (&weight, &bias), values);
        self.graph.binary("Add", x, &out)
    }

    /// `x + Proj(Attn(q = norm2(x), k = v = norm_y(y)))`, where `y` are the other view's tokens.
    pub fn residual_cross_attention(
        &mut self,
        x: &Value,
        y: &Value,
        block: &str,
        stack: &Stack,
        rotary: &Rotary,
    ) -> Value {
        let name = format!("{block}.cross_attn");
        let layer =
            |this: &Self, projection: &str| this.weights_of(&format!("{name}.{projection}"));
        let [norm2, norm_y] = ["norm2", "norm_y"].map(|norm| format!("{block}.{norm}"));
        let (mut wq, mut bq) = layer(self, "projq");
        prepare_rows(&mut wq, stack, true);
        prepare_rows(&mut bq, stack, true);
        let normed = self.layer_norm(x, &norm2);
        let projq = format!("{name}.projq");
        let q = self.linear_in(&normed, &projq, (&wq, &bq), Input::Norm(&norm2));

        let (mut wk, mut bk) = layer(self, "projk");
        prepare_rows(&mut wk, stack, false);
        prepare_rows(&mut bk, stack, false);
        let (wv, bv) = layer(self, "projv");
        let memory = self.layer_norm(y, &norm_y);
        let both = ([&wk[..], &wv].concat(), [&bk[..], &bv].concat());
        let projkv = format!("{name}.projkv");
        let kv = self.linear_in(&memory, &projkv, (&both.0, &both.1), Input::Norm(&norm_y));

        let mixed = match self.attention {
            AttentionForm::Fused => {
                let parts = self.graph.split(&kv, 2, &[stack.width; 2]);
                self.attend_fused([&q, &parts[0], &parts[1]], stack, rotary)
            }
            AttentionForm::Decomposed => {
                let q = self.heads(&q, 1, stack);
                let kv = self.heads(&kv, 2, stack);
                let kv = self.graph.split(&kv, 0, &[1, 1]);
                let q = self.rotate(&q, rotary);
                let k = self.rotate(&kv[0], rotary);
                let one = q.shape[1..].to_vec();
                let q = self.graph.reshape(&q, &one);
                let k = self.graph.reshape(&k, &one);
                let v = self.graph.reshape(&kv[1], &one);
                self.attend(&q, &k, &v)
            }
        };
        let values = Input::Layer {
            norm: &norm_y,
            weight: &wv,
            bias: &bv,
        };
        let proj = format!("{name}.proj");
        let (weight, bias) = self.weights_of(&proj);
        let out = self.linear_in(&mixed, &proj, (&weight, &bias), values);
        self.graph.binary("Add", x, &out)
    }
}

/// Cosines and sines for `x·cos + swap_halves(x)·sin`, `tokens × head_dim` each.
///
/// The first half of the `head_dim / 2` pairs of a head rotates with the token's row, the second
/// half with its column; pair `i` of a half rotates by `position · base^(−i / (head_dim/4))`.
/// [`prepare_rows`] places the two members of each pair half a head apart.
fn rotary_tables(
    head_dim: usize,
    tokens: usize,
    columns: usize,
    base: f64,
) -> (Vec<f32>, Vec<f32>) {
    let quarter = head_dim / 4;
    let mut cos = vec![0.0; tokens * head_dim];
    let mut sin = cos.clone();
    for token in 0..tokens {
        for (axis, position) in [token / columns, token % columns].into_iter().enumerate() {
            for i in 0..quarter {
                let angle = position as f64 * base.powf(-(i as f64) / quarter as f64);
                let first = token * head_dim + axis * quarter + i;
                let second = first + head_dim / 2;
                cos[first] = angle.cos() as f32;
                cos[second] = angle.cos() as f32;
                sin[first] = -angle.sin() as f32;
                sin[second] = angle.sin() as f32;
            }
        }
    }
    (cos, sin)
}

/// Reorders the output rows of a query or key projection for [`rotary_tables`]: within each head,
/// stored as `[row pairs' firsts, seconds, column pairs' firsts, seconds]`, the middle two quarters
/// are swapped. Queries and keys share the permutation, which leaves their products unchanged.
/// `rows` is the weight or the bias. Query rows are also multiplied by the logit scale `D^(−1/2)`.
pub fn prepare_rows(rows: &mut [f32], stack: &Stack, query: bool) {
    let per_head = rows.len() / stack.heads;
    let quarter = per_head / 4;
    for head in rows.chunks_exact_mut(per_head) {
        let (first, last) = head.split_at_mut(2 * quarter);
        first[quarter..].swap_with_slice(&mut last[..quarter]);
    }
    if query {
        scale_logits(rows, stack);
    }
}

/// Multiplies the rows of a query projection by the logit scale.
fn scale_logits(rows: &mut [f32], stack: &Stack) {
    let scale = 1.0 / ((stack.width / stack.heads) as f32).sqrt();
    rows.iter_mut().for_each(|w| *w *= scale);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DIM: usize = 64;
    const COLUMNS: usize = 32;
    const BASE: f64 = 100.0;

    /// The rotation as defined by the network: first 32 channels by row, last 32 by column, pairs
    /// 16 channels apart.
    fn by_definition(x: &[f32], row: usize, column: usize) -> Vec<f64> {
        let mut out = vec![0.0; DIM];
        for (axis, position) in [row, column].into_iter().enumerate() {
            for i in 0..16 {
                let angle = position as f64 * BASE.powf(-(i as f64) / 16.0);
                let (u, v) = (32 * axis + i, 32 * axis + i + 16);
                let (a, b) = (f64::from(x[u]), f64::from(x[v]));
                out[u] = a * angle.cos() - b * angle.sin();
                out[v] = b * angle.cos() + a * angle.sin();
            }
        }
        out
    }

    /// The rotation as emitted: channels reordered, then two products and a sum.
    fn as_emitted(x: &[f32], row: usize, column: usize) -> Vec<f32> {
        let stack = Stack {
            width: DIM,
            depth: 1,
            heads: 1,
            hidden: 1,
        };
        let mut x = x.to_vec();
        prepare_rows(&mut x, &stack, false);
        let (cos, sin) = rotary_tables(DIM, (row + 1) * COLUMNS, COLUMNS, BASE);
        let at = (row * COLUMNS + column) * DIM;
        let (cos, sin) = (&cos[at..at + DIM], &sin[at..at + DIM]);
        let swapped = |i: usize| x[(i + DIM / 2) % DIM];
        (0..DIM)
            .map(|i| x[i] * cos[i] + swapped(i) * sin[i])
            .collect()
    }

    fn dot(a: &[f32], b: &[f32]) -> f64 {
        a.iter()
            .zip(b)
            .map(|(&a, &b)| f64::from(a) * f64::from(b))
            .sum()
    }

    fn vector() -> impl Strategy<Value = Vec<f32>> {
        prop::collection::vec(-1.0f32..1.0, DIM)
    }

    // Each channel is the sum of two products of at most 1 with three roundings, an error below
    // 2^-22; hence below 64 * 2 * 2^-22 < 4e-5 in a product of two vectors.
    const TOLERANCE: f64 = 4e-5;

    proptest! {
        #[test]
        fn products_are_those_of_the_definition(
            q in vector(), k in vector(),
            (y1, x1, y2, x2) in (0usize..24, 0usize..32, 0usize..24, 0usize..32),
        ) {
            let emitted = dot(&as_emitted(&q, y1, x1), &as_emitted(&k, y2, x2));
            let defined: f64 = by_definition(&q, y1, x1)
                .iter()
                .zip(by_definition(&k, y2, x2))
                .map(|(a, b)| a * b)
                .sum();
            prop_assert!((emitted - defined).abs() < TOLERANCE, "{emitted} {defined}");
        }

        #[test]
        fn length_is_kept(x in vector(), row in 0usize..24, column in 0usize..32) {
            let turned = as_emitted(&x, row, column);
            prop_assert!((dot(&turned, &turned) - dot(&x, &x)).abs() < TOLERANCE);
        }

        #[test]
        fn only_relative_positions_matter(
            q in vector(), k in vector(),
            (dy, dx) in (0usize..8, 0usize..8), (y, x) in (0usize..16, 0usize..24),
        ) {
            let here = dot(&as_emitted(&q, dy, dx), &as_emitted(&k, 0, 0));
            let there = dot(&as_emitted(&q, y + dy, x + dx), &as_emitted(&k, y, x));
            prop_assert!((here - there).abs() < TOLERANCE, "{here} {there}");
        }
    }

    #[test]
    fn the_first_token_is_only_reordered() {
        for channel in 0..DIM {
            let mut x = vec![0.0; DIM];
            x[channel] = 1.0;
            let turned = as_emitted(&x, 0, 0);
            let mut sorted = turned.clone();
            sorted.sort_by(f32::total_cmp);
            assert_eq!(sorted[DIM - 1], 1.0);
            assert!(sorted[..DIM - 1].iter().all(|&v| v == 0.0));
        }
    }

    #[test]
    fn transposing_covers_every_tile() {
        for (rows, columns) in [(1, 1), (3, 40), (16, 32), (33, 17), (64, 16)] {
            let matrix: Vec<f32> = (0..rows * columns).map(|n| n as f32).collect();
            let out = transpose(&matrix, rows, columns);
            for r in 0..rows {
                for c in 0..columns {
                    assert_eq!(out[c * rows + r], matrix[r * columns + c]);
                }
            }
        }
    }

    #[test]
    fn queries_carry_the_scale_of_the_logits() {
        let stack = Stack {
            width: 128,
            depth: 1,
            heads: 2,
            hidden: 1,
        };
        let mut bias = vec![8.0; 128];
        prepare_rows(&mut bias, &stack, true);
        assert!(bias.iter().all(|&b| b == 1.0));
    }
}
