//! The dense heads of one view: DPT for points and their confidence, an MLP with a pixel shuffle
//! for descriptors and theirs.

use super::super::architecture::PATCH;
use super::blocks::transpose;
use super::graph::{Number, Value};
use super::{Emitter, Finish, Upsampling, names};

impl Emitter<'_> {
    /// Both heads of `view` (0 or 1) from its tokens at the four hooks.
    pub(super) fn head(&mut self, view: usize, tokens: &[Value; 4], finish: Finish) {
        let head = format!("downstream_head{}", view + 1);
        let raw = self.dpt(&format!("{head}.dpt"), tokens);
        let [first, .., last] = tokens;
        let (desc, omega) = self.local(&format!("{head}.head_local_features"), first, last);
        match finish {
            Finish::InGraph => {
                self.points(view, &raw);
                self.descriptors(view, &desc, &omega);
            }
            Finish::Raw => {
                self.graph.output(&raw, names::RAW_POINTS[view]);
                self.graph.output(&desc, names::RAW_DESCRIPTORS[view]);
                self.graph
                    .output(&omega, names::RAW_DESCRIPTOR_CONFIDENCE[view]);
            }
        }
    }

    fn conv(&mut self, x: &Value, name: &str, kernel: usize, out: usize, stride: usize) -> Value {
        let weight = self.stored(
            &format!("{name}.weight"),
            &[out, x.shape[1], kernel, kernel],
        );
        let bias = self.stored(&format!("{name}.bias"), &[out]);
        self.graph.conv(x, &weight, Some(&bias), stride, kernel / 2)
    }

    /// Four token maps to one map of four channels: points and confidence before their
    /// activations, `B × 4 × H × W`.
    fn dpt(&mut self, dpt: &str, tokens: &[Value; 4]) -> Value {
        let architecture = &self.network.architecture;
        let (f, outputs) = (architecture.feature_dim, architecture.output_dims);
        let reassembled: [Value; 4] =
            std::array::from_fn(|level| self.reassemble(dpt, level, &tokens[level]));

        // From the coarsest map to the finest.
        let mut fused: Option<Value> = None;
        for level in (0..4).rev() {
            let fusion = format!("{dpt}.scratch.refinenet{}", level + 1);
            self.graph.set_scope(&fusion);
            let map = &reassembled[level];
            let sum = match fused {
                None => map.clone(),
                Some(coarser) => {
                    let refined = self.residual_conv_unit(map, &format!("{fusion}.resConfUnit1"));
                    self.graph.binary("Add", &coarser, &refined)
                }
            };
            let sum = self.residual_conv_unit(&sum, &format!("{fusion}.resConfUnit2"));
            // The official order is upsample, then 1×1 convolution. Interpolation weights sum to
            // one, so the two commute, and this way round costs a quarter.
            let projected = self.conv(&sum, &format!("{fusion}.out_conv"), 1, f, 1);
            let larger = self.upsample(&projected);
            // An odd number of token rows or columns was rounded up when the coarsest map halved.
            fused = Some(match level {
                3 => {
                    let target = &reassembled[2].shape;
                    self.graph.crop(&larger, target[2], target[3])
                }
                _ => larger,
            });
        }
        let Some(fused) = fused else {
            unreachable!("four levels were fused");
        };
        self.graph.set_scope(&format!("{dpt}.head"));
        let x = self.conv(&fused, &format!("{dpt}.head.0"), 3, outputs[0], 1);
        let x = self.upsample(&x);
        let x = self.conv(&x, &format!("{dpt}.head.2"), 3, outputs[1], 1);
        let x = self.graph.unary("Relu", &x);
        self.conv(&x, &format!("{dpt}.head.4"), 1, 4, 1)
    }

    /// Bilinear enlargement by two, corner pixels on corner pixels.
    fn upsample(&mut self, x: &Value) -> Value {
        match self.upsampling {
            Upsampling::Operator => self.graph.upsample(x),
            Upsampling::Products => {
                let &[batch, channels, height, width] = &x.shape[..] else {
                    unreachable!("maps have four axes");
                };
                let (tall, wide) = (2 * height, 2 * width);
                // Columns of all rows at once, then the rows of each map.
                let columns = transpose(&interpolation(width), wide, width);
                let what = format!("upsample.columns.{width}");
                let columns = self.graph.weight(&what, &[width, wide], &columns);
                let what = format!("upsample.rows.{height}");
                let rows = interpolation(height);
                let rows = self.graph.weight(&what, &[1, 1, tall, height], &rows);
                let flat = self.graph.reshape(x, &[batch * channels * height, width]);
                let flat = self.graph.matmul(&flat, &columns);
                let maps = self.graph.reshape(&flat, &[batch, channels, height, wide]);
                self.graph.matmul_broadcast(&rows, &maps)
            }
        }
    }

    /// Tokens of one hook as a map at 4, 2, 1 or 1/2 times the token grid, `feature_dim` channels.
    fn reassemble(&mut self, dpt: &str, level: usize, tokens: &Value) -> Value {
        let architecture = &self.network.architecture;
        let (f, dim) = (architecture.feature_dim, architecture.layer_dims[level]);
        let size = self.size;
        let name = format!("{dpt}.act_postprocess.{level}");
        self.graph.set_scope(&name);
        let projected = self.linear(tokens, &format!("{name}.0"));
        let channels_first = self.graph.transpose(&projected, &[0, 2, 1]);
        let map = self.graph.reshape(
            &channels_first,
            &[size.batch, dim, size.rows(), size.columns()],
        );
        let rescale = format!("{name}.1");
        let map = match level {
            0 | 1 => {
                let kernel = if level == 0 { 4 } else { 2 };
                // TensorRT has none for bfloat16; these two are small.
                let number = match self.number {
                    Number::BF16 => Number::F32,
                    other => other,
                };
                self.graph.set_number(number);
                let weight = self.stored(&format!("{rescale}.weight"), &[dim, dim, kernel, kernel]);
                let bias = self.stored(&format!("{rescale}.bias"), &[dim]);
                let map = self.graph.cast(&map, number);
                let map = self.graph.conv_transpose(&map, &weight, &bias);
                self.graph.set_number(self.number);
                self.graph.cast(&map, self.number)
            }
            2 => map,
            _ => self.conv(&map, &rescale, 3, dim, 2),
        };
        let layer = format!("{dpt}.scratch.layer{}_rn.weight", level + 1);
        let weight = self.stored(&layer, &[f, dim, 3, 3]);
        self.graph.conv(&map, &weight, None, 1, 1)
    }

    /// `x + conv2(relu(conv1(relu(x))))`.
    fn residual_conv_unit(&mut self, x: &Value, name: &str) -> Value {
        let channels = x.shape[1];
        let y = self.graph.unary("Relu", x);
        let y = self.conv(&y, &format!("{name}.conv1"), 3, channels, 1);
        let y = self.graph.unary("Relu", &y);
        let y = self.conv(&y, &format!("{name}.conv2"), 3, channels, 1);
        self.graph.binary("Add", &y, x)
    }

    /// `points = a/‖a‖ · (e^‖a‖ − 1)`, `confidence = 1 + e^κ`.
    fn points(&mut self, view: usize, raw: &Value) {
        let &[batch, _, height, width] = &raw.shape[..] else {
            unreachable!("the DPT head gives a map");
        };
        let g = &mut self.graph;
        g.set_scope(&format!("points{}", view + 1));
        // In half precision e^n − 1 ends at 65504, and its last digit is a thousandth.
        g.set_number(Number::F32);
        let raw = &g.cast(raw, Number::F32);
        let parts = g.split(raw, 1, &[3, 1]);
        let (a, kappa) = (&parts[0], &parts[1]);
        let norm = g.norm(a, 1);
        // e^n − 1 = tanh(n/2)·(e^n + 1): no cancellation where n is small, infinite where e^n is.
        let (half, one, tiny) = (g.scalar(0.5), g.scalar(1.0), g.scalar(1e-8));
        let half_norm = g.binary("Mul", &norm, &half);
        let tanh = g.unary("Tanh", &half_norm);
        let exp = g.unary("Exp", &norm);
        let exp_plus_1 = g.binary("Add", &exp, &one);
        let range = g.binary("Mul", &tanh, &exp_plus_1);
        let divisor = g.binary("Max", &norm, &tiny);
        let scale = g.binary("Div", &range, &divisor);
        let points = g.binary("Mul", a, &scale);
        let points = g.transpose(&points, &[0, 2, 3, 1]);
        g.output(&points, names::POINTS[view]);

        let kappa = g.reshape(kappa, &[batch, height, width]);
        let exp = g.unary("Exp", &kappa);
        let confidence = g.binary("Add", &exp, &one);
        g.output(&confidence, names::CONFIDENCE[view]);
        g.set_number(self.number);
    }

    /// The MLP on the joined first and last tokens: descriptors (`B × T × 16·16·D`) and the
    /// logarithms of their confidences (`B × T × 16·16`).
    ///
    /// Stored, channel `c·256 + i·16 + j` of a token belongs to its pixel (row i, column j); the
    /// rows of the last layer are reordered here so that a pixel's channels come side by side.
    fn local(&mut self, name: &str, first: &Value, last: &Value) -> (Value, Value) {
        let dim = self.network.architecture.descriptor_dim;
        let hidden_dim = self.network.architecture.descriptor_hidden;
        self.graph.set_scope(name);
        let joined = self.graph.concat(&[first, last], 2);
        let hidden = self.linear(&joined, &format!("{name}.fc1"));
        let hidden = self.graph.unary("Gelu", &hidden);

        let weight = self.network.weight(&format!("{name}.fc2.weight"));
        let bias = self.network.weight(&format!("{name}.fc2.bias"));
        let pixels = PATCH * PATCH;
        let row = |c: usize, pixel: usize| {
            let at = (c * pixels + pixel) * hidden_dim;
            &weight[at..at + hidden_dim]
        };
        let mut shuffled_weight = Vec::with_capacity(dim * pixels * hidden_dim);
        let mut shuffled_bias = Vec::with_capacity(dim * pixels);
        for pixel in 0..pixels {
            for c in 0..dim {
                shuffled_weight.extend_from_slice(row(c, pixel));
                shuffled_bias.push(bias[c * pixels + pixel]);
            }
        }
        let what = format!("{name}.fc2.descriptors");
        let desc = self.linear_of(&hidden, &what, &shuffled_weight, &shuffled_bias);
        let (weight, bias) = (&weight[dim * pixels * hidden_dim..], &bias[dim * pixels..]);
        let what = format!("{name}.fc2.confidence");
        let omega = self.linear_of(&hidden, &what, weight, bias);
        (desc, omega)
    }

    /// `descriptor = δ/‖δ‖`, its confidence `e^ω`, for every pixel.
    fn descriptors(&mut self, view: usize, desc: &Value, omega: &Value) {
        let dim = self.network.architecture.descriptor_dim;
        let size = self.size;
        self.graph.set_scope(&format!("descriptors{}", view + 1));
        let desc = self.shuffle_to_pixels(desc, dim);
        let desc = self.graph.cast(&desc, Number::F32);
        let norm = self.graph.norm(&desc, 3);
        let desc = self.graph.binary("Div", &desc, &norm);
        self.graph.output(&desc, names::DESCRIPTORS[view]);

        let omega = self.shuffle_to_pixels(omega, 1);
        let omega = self
            .graph
            .reshape(&omega, &[size.batch, size.height, size.width]);
        let omega = self.graph.cast(&omega, Number::F32);
        let confidence = self.graph.unary("Exp", &omega);
        self.graph
            .output(&confidence, names::DESCRIPTOR_CONFIDENCE[view]);
    }

    /// `B × T × (16·16·channels)` to `B × H × W × channels`.
    fn shuffle_to_pixels(&mut self, x: &Value, channels: usize) -> Value {
        let size = self.size;
        let (rows, columns) = (size.rows(), size.columns());
        let run = PATCH * channels;
        let patches = self
            .graph
            .reshape(x, &[size.batch, rows, columns, PATCH, run]);
        let lines = self.graph.transpose(&patches, &[0, 1, 3, 2, 4]);
        self.graph
            .reshape(&lines, &[size.batch, size.height, size.width, channels])
    }
}

/// The matrix, `2n × n`, that enlarges `n` values: `src = i·(n−1)/(2n−1)`.
fn interpolation(n: usize) -> Vec<f32> {
    let mut matrix = vec![0.0; 2 * n * n];
    for (i, row) in matrix.chunks_exact_mut(n).enumerate() {
        let at = (i * (n - 1)) as f64 / (2 * n - 1) as f64;
        let first = (at as usize).min(n - 1);
        let next = (first + 1).min(n - 1);
        row[first] += (1.0 - (at - first as f64)) as f32;
        row[next] += (at - first as f64) as f32;
    }
    matrix
}

#[cfg(test)]
mod tests {
    use super::interpolation;

    #[test]
    fn enlarging_keeps_corners_and_straight_lines() {
        for n in [1, 2, 3, 24] {
            let matrix = interpolation(n);
            let line: Vec<f64> = (0..n).map(|i| 3.0 + 0.5 * i as f64).collect();
            let large: Vec<f64> = matrix
                .chunks_exact(n)
                .map(|row| row.iter().zip(&line).map(|(w, x)| f64::from(*w) * x).sum())
                .collect();
            assert_eq!(large.len(), 2 * n);
            for (i, value) in large.iter().enumerate() {
                let at = (i * (n - 1)) as f64 / (2 * n - 1) as f64;
                // Two weights, each rounded to binary32.
                assert!((value - (3.0 + 0.5 * at)).abs() < 1e-5, "{n}: {large:?}");
            }
        }
    }
}
