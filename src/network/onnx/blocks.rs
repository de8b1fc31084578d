//! What encoder and decoder are built of: linear layers, norms, attention, the MLP.

use super::super::architecture::Stack;
use super::Emitter;
use super::graph::Value;

/// Of every LayerNorm in the network.
const LAYER_NORM_EPSILON: f32 = 1e-6;

/// The rotary tables of one stack, `T × head_dim` each: `x·cos + swap_halves(x)·sin`.
pub struct Rotary {
    cos: Value,
    sin: Value,
}

impl Emitter<'_> {
    /// `x·Wᵀ + b` for rows of `weight` (`out × in`, row-major) and a bias of `out`.
    pub fn linear_of(&mut self, x: &Value, what: &str, weight: &[f32], bias: &[f32]) -> Value {
        let outputs = bias.len();
        let inputs = weight.len() / outputs;
        let mut transposed = vec![0.0; weight.len()];
        for (o, row) in weight.chunks_exact(inputs).enumerate() {
            for (i, &w) in row.iter().enumerate() {
                transposed[i * outputs + o] = w;
            }
        }
        let matrix = self
            .graph
            .weight(&format!("{what}.weight"), &[inputs, outputs], &transposed);
        let bias = self.graph.weight(&format!("{what}.bias"), &[outputs], bias);
        let product = self.graph.matmul(x, &matrix);
        self.graph.binary("Add", &product, &bias)
    }

    /// The linear layer (or 1×1 convolution over tokens) called `name`.
    pub fn linear(&mut self, x: &Value, name: &str) -> Value {
        let weight = self.network.weight(&format!("{name}.weight"));
        let bias = self.network.weight(&format!("{name}.bias"));
        self.linear_of(x, name, &weight, &bias)
    }

    pub fn layer_norm(&mut self, x: &Value, name: &str) -> Value {
        let width = [x.shape[x.shape.len() - 1]];
        let scale = self.stored(&format!("{name}.weight"), &width);
        let bias = self.stored(&format!("{name}.bias"), &width);
        self.graph.layer_norm(x, &scale, &bias, LAYER_NORM_EPSILON)
    }

    /// `x + FC2(GELU(FC1(norm(x))))`, exact GELU.
    pub fn residual_mlp(&mut self, x: &Value, block: &str, norm: &str) -> Value {
        let normed = self.layer_norm(x, &format!("{block}.{norm}"));
        let hidden = self.linear(&normed, &format!("{block}.mlp.fc1"));
        let hidden = self.graph.unary("Gelu", &hidden);
        let out = self.linear(&hidden, &format!("{block}.mlp.fc2"));
        self.graph.binary("Add", x, &out)
    }

    /// The rotary tables of all positions. Of the `head_dim / 2` pairs of a head, the first half
    /// turns with the token's row, the second with its column; pair `i` of a half turns by
    /// `position · base^(−i / (head_dim/4))`. [`rotary_rows`] puts the two members of each pair
    /// half a head apart.
    pub fn rotary(&mut self, stack: &Stack) -> Rotary {
        let head_dim = stack.width / stack.heads;
        let quarter = head_dim / 4;
        let base = self.network.architecture.rope_base;
        let (tokens, columns) = (self.size.tokens(), self.size.columns());
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
        let shape = [tokens, head_dim];
        Rotary {
            cos: self.graph.weight("rotary.cos", &shape, &cos),
            sin: self.graph.weight("rotary.sin", &shape, &sin),
        }
    }

    /// Turns each token of `x` (`… × T × head_dim`) by its position.
    fn rotate(&mut self, x: &Value, rotary: &Rotary) -> Value {
        let axis = x.shape.len() - 1;
        let half = x.shape[axis] / 2;
        let halves = self.graph.split(x, axis, &[half, half]);
        let swapped = self.graph.concat(&[&halves[1], &halves[0]], axis);
        let straight = self.graph.binary("Mul", x, &rotary.cos);
        let crossed = self.graph.binary("Mul", &swapped, &rotary.sin);
        self.graph.binary("Add", &straight, &crossed)
    }

    /// Splits a joint projection `B × T × (n·C)` into `n` maps of heads, `n × B × H × T × D`.
    fn heads(&mut self, x: &Value, n: usize, stack: &Stack) -> Value {
        let (batch, tokens) = (x.shape[0], x.shape[1]);
        let head_dim = stack.width / stack.heads;
        let shape = [batch, tokens, n, stack.heads, head_dim];
        let split = self.graph.reshape(x, &shape);
        self.graph.transpose(&split, &[2, 0, 3, 1, 4])
    }

    /// `softmax(q·kᵀ)·v` and the way back to `B × T × C`. The logits' scale is in `q` already.
    fn attend(&mut self, q: &Value, k: &Value, v: &Value) -> Value {
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

    /// `x + Proj(Attn(RoPE(norm1(x))))`.
    pub fn residual_self_attention(
        &mut self,
        x: &Value,
        block: &str,
        stack: &Stack,
        rotary: &Rotary,
    ) -> Value {
        let normed = self.layer_norm(x, &format!("{block}.norm1"));
        let name = format!("{block}.attn.qkv");
        let mut weight = self.network.weight(&format!("{name}.weight"));
        let mut bias = self.network.weight(&format!("{name}.bias"));
        let width = stack.width;
        let (q, k) = (0..width, width..2 * width);
        prepare_rows(&mut weight[..q.end * width], stack, true);
        prepare_rows(&mut bias[q], stack, true);
        prepare_rows(&mut weight[k.start * width..k.end * width], stack, false);
        prepare_rows(&mut bias[k], stack, false);
        let qkv = self.linear_of(&normed, &name, &weight, &bias);

        let maps = self.heads(&qkv, 3, stack);
        let parts = self.graph.split(&maps, 0, &[2, 1]);
        let turned = self.rotate(&parts[0], rotary);
        let qk = self.graph.split(&turned, 0, &[1, 1]);
        let one = &maps.shape[1..];
        let q = self.graph.reshape(&qk[0], one);
        let k = self.graph.reshape(&qk[1], one);
        let v = self.graph.reshape(&parts[1], one);
        let mixed = self.attend(&q, &k, &v);
        let out = self.linear(&mixed, &format!("{block}.attn.proj"));
        self.graph.binary("Add", x, &out)
    }

    /// `x + Proj(Attn(q = norm2(x), k = v = norm_y(y)))`; `y` are the other view's tokens.
    pub fn residual_cross_attention(
        &mut self,
        x: &Value,
        y: &Value,
        block: &str,
        stack: &Stack,
        rotary: &Rotary,
    ) -> Value {
        let name = format!("{block}.cross_attn");
        let layer = |this: &Self, projection: &str| {
            let weight = this.network.weight(&format!("{name}.{projection}.weight"));
            let bias = this.network.weight(&format!("{name}.{projection}.bias"));
            (weight, bias)
        };
        let (mut wq, mut bq) = layer(self, "projq");
        prepare_rows(&mut wq, stack, true);
        prepare_rows(&mut bq, stack, true);
        let normed = self.layer_norm(x, &format!("{block}.norm2"));
        let q = self.linear_of(&normed, &format!("{name}.projq"), &wq, &bq);

        let (mut wk, mut bk) = layer(self, "projk");
        prepare_rows(&mut wk, stack, false);
        prepare_rows(&mut bk, stack, false);
        let (wv, bv) = layer(self, "projv");
        let memory = self.layer_norm(y, &format!("{block}.norm_y"));
        let kv = self.linear_of(
            &memory,
            &format!("{name}.projkv"),
            &[wk, wv].concat(),
            &[bk, bv].concat(),
        );

        let q = self.heads(&q, 1, stack);
        let kv = self.heads(&kv, 2, stack);
        let kv = self.graph.split(&kv, 0, &[1, 1]);
        let q = self.rotate(&q, rotary);
        let k = self.rotate(&kv[0], rotary);
        let one = q.shape[1..].to_vec();
        let q = self.graph.reshape(&q, &one);
        let k = self.graph.reshape(&k, &one);
        let v = self.graph.reshape(&kv[1], &one);
        let mixed = self.attend(&q, &k, &v);
        let out = self.linear(&mixed, &format!("{name}.proj"));
        self.graph.binary("Add", x, &out)
    }
}

/// Reorders the output rows of a query or key projection for [`Emitter::rotary`]: within each
/// head, stored as `[row pairs' firsts, seconds, column pairs' firsts, seconds]`, the middle two
/// quarters change places. A permutation that queries and keys share leaves their products as
/// they are. `rows` is the weight or the bias. Queries also take the logits' scale `D^(−1/2)`.
fn prepare_rows(rows: &mut [f32], stack: &Stack, query: bool) {
    let per_head = rows.len() / stack.heads;
    let quarter = per_head / 4;
    for head in rows.chunks_exact_mut(per_head) {
        let (first, last) = head.split_at_mut(2 * quarter);
        first[quarter..].swap_with_slice(&mut last[..quarter]);
    }
    if query {
        let scale = 1.0 / ((stack.width / stack.heads) as f32).sqrt();
        rows.iter_mut().for_each(|w| *w *= scale);
    }
}
