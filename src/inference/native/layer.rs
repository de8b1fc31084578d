//! Weights of linear layers and convolutions, arranged as the kernels take them.

use crate::network::Network;
use crate::network::Stack;
use rayon::prelude::*;

/// Channels of every 16-bit map are a multiple of this, so that each row begins at a multiple of 16 bytes.
const CHANNELS: usize = 8;

/// `n` rounded up to whole 16-byte groups of channels.
pub(super) fn padded(n: usize) -> usize {
    n.next_multiple_of(CHANNELS)
}

/// A layer's weight, `outputs × inputs`, row-major, and its bias. The inputs of a convolution are ordered by
/// tap (row, column), then by channel.
pub(super) struct Layer {
    pub(super) weight: Vec<f32>,
    pub(super) bias: Vec<f32>,
    pub(super) inputs: usize,
}

impl Layer {
    /// The linear layer, or 1×1 convolution, called `name`.
    pub(super) fn linear(network: &Network, name: &str) -> Self {
        let weight = network.weight(&format!("{name}.weight"));
        let bias = network.weight(&format!("{name}.bias"));
        let inputs = weight.len() / bias.len().max(1);
        Self {
            weight,
            bias,
            inputs,
        }
    }

    /// The 3×3 convolution called `name` of `channels` channels.
    pub(super) fn convolution(network: &Network, name: &str, channels: usize) -> Self {
        const TAPS: usize = 9;
        let stored = network.weight(&format!("{name}.weight"));
        let outputs = stored.len() / (TAPS * channels).max(1);
        let bias = network.optional(&format!("{name}.bias"));
        let bias = bias.unwrap_or_else(|| vec![0.0; outputs]);
        let width = padded(channels);
        let mut weight = vec![0.0; outputs * TAPS * width];
        let filters = weight.par_chunks_exact_mut(TAPS * width);
        let filters = filters.zip(stored.par_chunks_exact(TAPS * channels));
        filters.for_each(|(to, from)| {
            for (channel, taps) in from.chunks_exact(TAPS).enumerate() {
                for (tap, &w) in taps.iter().enumerate() {
                    to[tap * width + channel] = w;
                }
            }
        });
        Self {
            weight,
            bias,
            inputs: TAPS * width,
        }
    }

    /// The transposed convolution called `name`, whose stride is its kernel's side `side`: a linear layer whose
    /// outputs are the pixels of a patch, each with all its channels.
    pub(super) fn patches(network: &Network, name: &str, side: usize) -> Self {
        let stored = network.weight(&format!("{name}.weight"));
        let bias = network.weight(&format!("{name}.bias"));
        let (channels, pixels) = (bias.len(), side * side);
        let width = padded(channels);
        // Stored by input, output, pixel.
        let mut weight = vec![0.0; pixels * width * channels];
        for pixel in 0..pixels {
            for output in 0..channels {
                for input in 0..channels {
                    weight[(pixel * width + output) * channels + input] =
                        stored[(input * channels + output) * pixels + pixel];
                }
            }
        }
        let mut padded_bias = bias;
        padded_bias.resize(width, 0.0);
        Self {
            weight,
            bias: padded_bias.repeat(pixels),
            inputs: channels,
        }
    }

    /// Outputs of the layer.
    pub(super) fn outputs(&self) -> usize {
        self.bias.len()
    }

    /// This layer with the scale and the offset of the norm called `norm` folded in, which then need not be
    /// applied to its input.
    pub(super) fn after_norm(mut self, network: &Network, norm: &str) -> Self {
        let scale = network.weight(&format!("{norm}.weight"));
        let offset = network.weight(&format!("{norm}.bias"));
        let rows = self.weight.par_chunks_exact_mut(self.inputs);
        rows.zip(&mut self.bias).for_each(|(row, bias)| {
            let products = row.iter().zip(&offset);
            let shift: f64 = products.map(|(w, o)| f64::from(*w) * f64::from(*o)).sum();
            *bias = (f64::from(*bias) + shift) as f32;
            row.iter_mut().zip(&scale).for_each(|(w, s)| *w *= s);
        });
        self
    }

    /// This layer with each output scaled by `gamma`, if there is one.
    pub(super) fn scaled(mut self, gamma: Option<Vec<f32>>) -> Self {
        let Some(gamma) = gamma else { return self };
        let rows = self.weight.par_chunks_exact_mut(self.inputs);
        let rows = rows.zip(&mut self.bias).zip(&gamma);
        rows.for_each(|((row, bias), gamma)| {
            row.iter_mut().chain([bias]).for_each(|w| *w *= gamma)
        });
        self
    }

    /// The outputs of both layers side by side.
    pub(super) fn beside(mut self, other: Self) -> Self {
        self.weight.extend(other.weight);
        self.bias.extend(other.bias);
        self
    }

    /// The queries (`query`) or keys that begin at output `first`, ordered for rotation in pairs: the members of
    /// each pair, stored a quarter of a head apart, come side by side. Queries also take the logits' scale
    /// `D^(−1/2)`.
    pub(super) fn rotated(mut self, first: usize, stack: &Stack, query: bool) -> Self {
        let head = stack.width / stack.heads;
        let quarter = head / 4;
        // Output 2p of a head is the first member of pair p, output 2p + 1 the second.
        let from = |i: usize| {
            let (pair, member) = (i / 2, i % 2);
            pair / quarter * 2 * quarter + member * quarter + pair % quarter
        };
        let outputs = first..first + stack.width;
        let weights = outputs.start * self.inputs..outputs.end * self.inputs;
        let heads = self.weight[weights].par_chunks_exact_mut(head * self.inputs);
        heads.for_each(|rows| {
            let stored = rows.to_vec();
            for (i, row) in rows.chunks_exact_mut(self.inputs).enumerate() {
                row.copy_from_slice(&stored[from(i) * self.inputs..(from(i) + 1) * self.inputs]);
            }
        });
        for bias in self.bias[outputs].chunks_exact_mut(head) {
            let stored = bias.to_vec();
            (bias.iter_mut().enumerate()).for_each(|(i, b)| *b = stored[from(i)]);
        }
        match query {
            true => self.logits_scaled(first, stack),
            false => self,
        }
    }

    /// The queries that begin at output `first` with the logits' scale `D^(−1/2)`.
    pub(super) fn logits_scaled(mut self, first: usize, stack: &Stack) -> Self {
        let scale = 1.0 / ((stack.width / stack.heads) as f32).sqrt();
        let outputs = first..first + stack.width;
        let weights = outputs.start * self.inputs..outputs.end * self.inputs;
        self.weight[weights].iter_mut().for_each(|w| *w *= scale);
        self.bias[outputs].iter_mut().for_each(|b| *b *= scale);
        self
    }

    /// Heads of `from` outputs filled up to `to` outputs with zeros.
    pub(super) fn wider_heads(self, from: usize, to: usize) -> Self {
        if from == to {
            return self;
        }
        let heads = self.outputs() / from;
        let mut weight = vec![0.0; heads * to * self.inputs];
        let mut bias = vec![0.0; heads * to];
        for head in 0..heads {
            let rows = head * from * self.inputs..(head + 1) * from * self.inputs;
            weight[head * to * self.inputs..][..rows.len()].copy_from_slice(&self.weight[rows]);
            bias[head * to..][..from].copy_from_slice(&self.bias[head * from..(head + 1) * from]);
        }
        Self {
            weight,
            bias,
            inputs: self.inputs,
        }
    }

    /// Reads heads of `to` inputs, of which the first `from` mean something.
    pub(super) fn reading_wider_heads(self, from: usize, to: usize) -> Self {
        if from == to {
            return self;
        }
        let inputs = self.inputs / from * to;
        let mut weight = vec![0.0; self.outputs() * inputs];
        let heads = self.weight.chunks_exact(from);
        for (to, from) in weight.chunks_exact_mut(to).zip(heads) {
            to[..from.len()].copy_from_slice(from);
        }
        Self {
            weight,
            bias: self.bias,
            inputs,
        }
    }

    /// The descriptor MLP's last layer with a pixel's channels side by side: all pixels' descriptors, then all
    /// their confidences. Stored, output `c·P² + pixel` is channel `c` of a pixel.
    pub(super) fn by_pixel(self, pixels: usize, channels: usize) -> Self {
        let order: Vec<usize> = (0..pixels)
            .flat_map(|pixel| (0..channels).map(move |c| c * pixels + pixel))
            .chain(channels * pixels..(channels + 1) * pixels)
            .collect();
        let mut weight = vec![0.0; order.len() * self.inputs];
        let rows = weight.par_chunks_exact_mut(self.inputs).zip(&order);
        rows.for_each(|(row, from)| {
            row.copy_from_slice(&self.weight[from * self.inputs..(from + 1) * self.inputs]);
        });
        let bias = order.iter().map(|&from| self.bias[from]).collect();
        Self {
            weight,
            bias,
            inputs: self.inputs,
        }
    }

    /// The same layer with zeros for inputs and outputs that fill up 16-byte groups.
    pub(super) fn filled_up(self) -> Self {
        let (outputs, inputs) = (padded(self.outputs()), padded(self.inputs));
        if (outputs, inputs) == (self.outputs(), self.inputs) {
            return self;
        }
        let mut weight = vec![0.0; outputs * inputs];
        for (to, from) in weight
            .chunks_exact_mut(inputs)
            .zip(self.weight.chunks_exact(self.inputs))
        {
            to[..self.inputs].copy_from_slice(from);
        }
        let mut bias = self.bias;
        bias.resize(outputs, 0.0);
        Self {
            weight,
            bias,
            inputs,
        }
    }
}

/// Cosine and sine of each pair of a head of `head` channels for each token, `tokens × wide`: pair `i` of the first half of the
/// pairs turns with the token's row, of the second half with its column, by
/// `position · base^(−i / (head/4))` (RoFormer, Su et al., 2021, eq. 15, on two axes). Pairs that fill a head up
/// to `wide` channels are not turned.
pub(super) fn rotary(
    (head, wide): (usize, usize),
    tokens: usize,
    columns: usize,
    base: f64,
) -> Vec<f32> {
    let quarter = head / 4;
    let mut table = Vec::with_capacity(tokens * wide);
    for token in 0..tokens {
        for position in [token / columns, token % columns] {
            for i in 0..quarter {
                let angle = position as f64 * base.powf(-(i as f64) / quarter as f64);
                table.extend([angle.cos() as f32, angle.sin() as f32]);
            }
        }
        (head..wide)
            .step_by(2)
            .for_each(|_| table.extend([1.0, 0.0]));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_a_rotated_pair_come_side_by_side() {
        let stack = Stack {
            width: 32,
            depth: 1,
            heads: 2,
            hidden: 1,
        };
        let layer = Layer {
            weight: (0..64).map(|i| i as f32).collect(),
            bias: (0..64).map(|i| i as f32).collect(),
            inputs: 1,
        };
        let turned = layer.rotated(32, &stack, false);
        // The part before is left alone.
        assert!(
            turned.bias[..32]
                .iter()
                .enumerate()
                .all(|(i, &b)| b == i as f32)
        );
        // Stored: row pairs' firsts, seconds, column pairs' firsts, seconds, four each.
        let head = [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15];
        for (i, &b) in turned.bias[32..].iter().enumerate() {
            assert_eq!(b, (32 + i / 16 * 16 + head[i % 16]) as f32);
            assert_eq!(turned.weight[32 + i], b);
        }
    }

    #[test]
    fn the_first_token_is_not_turned_and_rows_come_before_columns() {
        let table = rotary((16, 16), 6, 3, 100.0);
        assert_eq!(table.len(), 6 * 16);
        assert!(table[..16].chunks_exact(2).all(|t| t == [1.0, 0.0]));
        // Token 4: row 1, column 1. Token 2: row 0, column 2.
        let token = |n: usize| &table[n * 16..(n + 1) * 16];
        assert_eq!(token(4)[..8], token(4)[8..]);
        assert!(token(2)[..8].chunks_exact(2).all(|t| t == [1.0, 0.0]));
        assert_eq!(token(2)[8], 2.0f64.cos() as f32);
        assert_eq!(token(2)[11], (2.0 * 100.0f64.powf(-0.25)).sin() as f32);
    }

    #[test]
    fn wider_heads_mean_the_same() {
        let layer = |n: usize, inputs: usize| Layer {
            weight: (0..n * inputs).map(|i| i as f32).collect(),
            bias: (0..n).map(|i| i as f32).collect(),
            inputs,
        };
        let wide = layer(4, 1).wider_heads(2, 3);
        assert_eq!(wide.bias, [0.0, 1.0, 0.0, 2.0, 3.0, 0.0]);
        assert_eq!(wide.weight, wide.bias);
        let reading = layer(2, 4).reading_wider_heads(2, 3);
        assert_eq!(reading.inputs, 6);
        let expected = [0, 1, 0, 2, 3, 0, 4, 5, 0, 6, 7, 0].map(|i| i as f32);
        assert_eq!(reading.weight[1..2], expected[1..2]);
        assert_eq!(reading.weight[3..], expected[3..]);
        assert_eq!(
            rotary((4, 8), 1, 1, 100.0),
            [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0]
        );
    }

    #[test]
    fn filling_up_adds_zeros_only() {
        let layer = Layer {
            weight: (1..=15).map(|i| i as f32).collect(),
            bias: vec![1.0, 2.0, 3.0],
            inputs: 5,
        };
        let full = layer.filled_up();
        assert_eq!((full.outputs(), full.inputs), (8, 8));
        for output in 0..8 {
            for input in 0..8 {
                let expected = match output < 3 && input < 5 {
                    true => (output * 5 + input + 1) as f32,
                    false => 0.0,
                };
                assert_eq!(full.weight[output * 8 + input], expected);
            }
        }
        assert_eq!(full.bias[2..], [3.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    }
}
