//! The dense heads of one view: DPT for points and their confidence, an MLP with a pixel shuffle
//! for descriptors and theirs.

use super::graph::Value;
use super::number::Number;
use super::{Emitter, Finish, Maps, names};

/// Output channels of the DPT head's last layer, padded, in channels-last layout.
const PADDED: usize = 8;

impl Emitter<'_> {
    /// Emits both heads of `view` (0 or 1) from its tokens at the four hooks.
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
                let raw = match self.maps {
                    Maps::Nchw => raw,
                    Maps::NchwInside | Maps::Nhwc | Maps::NhwcOperator => {
                        let parts = self.parts(&raw);
                        let four = self.graph.concat(&[&parts[0], &parts[1]], 3);
                        self.graph.transpose(&four, &[0, 3, 1, 2])
                    }
                };
                self.graph.output(&raw, names::RAW_POINTS[view]);
                self.graph.output(&desc, names::RAW_DESCRIPTORS[view]);
                self.graph
                    .output(&omega, names::RAW_DESCRIPTOR_CONFIDENCE[view]);
            }
        }
    }

    /// Turns four token maps into one map of four channels (plus padding channels): points and
    /// confidence before their activations.
    fn dpt(&mut self, dpt: &str, tokens: &[Value; 4]) -> Value {
        let architecture = &self.network.architecture;
        let (f, outputs) = (architecture.feature_dim, architecture.output_dims);
        let reassembled: [Value; 4] =
            std::array::from_fn(|level| self.reassemble(dpt, level, &tokens[level]));

        // Fusion runs from the coarsest map to the finest.
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
            // The official order is upsampling, then 1×1 convolution. Interpolation weights sum to
            // one, so the two commute, and this order costs a quarter.
            let projected = self.conv(&sum, &format!("{fusion}.out_conv"), (1, f, 1), true);
            let larger = self.twice(&projected);
            // Downsampling rounded an odd number of token rows or columns up; crop to the next
            // map's size.
            fused = Some(match level {
                3 => {
                    let (rows, target) = (self.row_axis(), &reassembled[2].shape);
                    self.graph
                        .crop(&larger, rows, target[rows], target[rows + 1])
                }
                _ => larger,
            });
        }
        let Some(fused) = fused else {
            unreachable!("four levels were fused");
        };
        self.graph.set_scope(&format!("{dpt}.head"));
        let x = self.conv(&fused, &format!("{dpt}.head.0"), (3, outputs[0], 1), true);
        // From 8 pixels per patch side to full resolution.
        let x = self.upsample(&x, (self.size.height, self.size.width));
        let x = self.conv(&x, &format!("{dpt}.head.2"), (3, outputs[1], 1), true);
        let x = self.graph.unary("Relu", &x);
        let last = format!("{dpt}.head.4");
        if self.maps == Maps::Nchw {
            return self.conv(&x, &last, (1, 4, 1), true);
        }
        let x = self.channels_last(&x);
        // Tensor cores need rows of a multiple of 16 bytes.
        let mut weight = self.network.weight(&format!("{last}.weight"));
        let mut bias = self.network.weight(&format!("{last}.bias"));
        weight.resize(PADDED * outputs[1], 0.0);
        bias.resize(PADDED, 0.0);
        self.linear_of(&x, &format!("{last}.padded"), &weight, &bias)
    }

    /// The channel axis of the DPT output.
    fn raw_axis(&self) -> usize {
        match self.maps {
            Maps::Nchw => 1,
            Maps::NchwInside | Maps::Nhwc | Maps::NhwcOperator => 3,
        }
    }

    /// Splits the DPT output into points, confidence and padding.
    fn parts(&mut self, raw: &Value) -> Vec<Value> {
        let axis = self.raw_axis();
        match raw.shape[axis] {
            4 => self.graph.split(raw, axis, &[3, 1]),
            channels => self.graph.split(raw, axis, &[3, 1, channels - 4]),
        }
    }

    /// Reassembles the tokens of one hook into a map at 4, 2, 1 or 1/2 times the token grid, with
    /// `feature_dim` channels.
    fn reassemble(&mut self, dpt: &str, level: usize, tokens: &Value) -> Value {
        let architecture = &self.network.architecture;
        let (f, dim) = (architecture.feature_dim, architecture.layer_dims[level]);
        let name = format!("{dpt}.act_postprocess.{level}");
        self.graph.set_scope(&name);
        let map = self.map_of_tokens(tokens, &format!("{name}.0"), dim);
        let rescale = format!("{name}.1");
        let map = match level {
            0 => self.patches(&map, &rescale, 4),
            1 => self.patches(&map, &rescale, 2),
            2 => map,
            _ => self.conv(&map, &rescale, (3, dim, 2), true),
        };
        let layer = format!("{dpt}.scratch.layer{}_rn", level + 1);
        self.conv(&map, &layer, (3, f, 1), false)
    }

    /// `x + conv2(relu(conv1(relu(x))))`.
    fn residual_conv_unit(&mut self, x: &Value, name: &str) -> Value {
        let shape = (3, x.shape[self.channel_axis()], 1);
        let y = self.graph.unary("Relu", x);
        let y = self.conv(&y, &format!("{name}.conv1"), shape, true);
        let y = self.graph.unary("Relu", &y);
        let y = self.conv(&y, &format!("{name}.conv2"), shape, true);
        self.graph.binary("Add", &y, x)
    }

    /// `points = a/‖a‖ · (e^‖a‖ − 1)`, `confidence = 1 + e^κ`.
    fn points(&mut self, view: usize, raw: &Value) {
        let (axis, size) = (self.raw_axis(), self.size);
        let g = &mut self.graph;
        g.set_scope(&format!("points{}", view + 1));
        // Binary16 would overflow at 65504 for e^n − 1, with a relative error of about a
        // thousandth.
        g.set_number(Number::F32);
        let raw = g.cast(raw, Number::F32);
        let parts = self.parts(&raw);
        let (a, kappa) = (&parts[0], &parts[1]);
        let g = &mut self.graph;
        let norm = g.norm(a, axis);
        // e^n − 1 = tanh(n/2)·(e^n + 1): no cancellation for small n, infinite where e^n is.
        let (half, one, tiny) = (g.scalar(0.5), g.scalar(1.0), g.scalar(1e-8));
        let half_norm = g.binary("Mul", &norm, &half);
        let tanh = g.unary("Tanh", &half_norm);
        let exp = g.unary("Exp", &norm);
        let exp_plus_1 = g.binary("Add", &exp, &one);
        let range = g.binary("Mul", &tanh, &exp_plus_1);
        let divisor = g.binary("Max", &norm, &tiny);
        let scale = g.binary("Div", &range, &divisor);
        let points = g.binary("Mul", a, &scale);
        let points = match axis {
            1 => g.transpose(&points, &[0, 2, 3, 1]),
            _ => points,
        };
        g.output(&points, names::POINTS[view]);

        let kappa = g.reshape(kappa, &[size.batch, size.height, size.width]);
        let exp = g.unary("Exp", &kappa);
        let confidence = g.binary("Add", &exp, &one);
        g.output(&confidence, names::CONFIDENCE[view]);
        g.set_number(self.number);
    }

    /// The MLP on the concatenated first and last tokens: descriptors (`B × T × P·P·D` in patches
    /// of side `P`) and the logarithms of their confidences (`B × T × P·P`).
    ///
    /// In the file, channel `c·P² + i·P + j` of a token belongs to its pixel (row i, column j); the
    /// rows of the last layer are reordered here so that the channels of a pixel are contiguous.
    fn local(&mut self, name: &str, first: &Value, last: &Value) -> (Value, Value) {
        let dim = self.network.architecture.descriptor_dim;
        let hidden_dim = self.network.architecture.descriptor_hidden;
        self.graph.set_scope(name);
        let joined = self.graph.concat(&[first, last], 2);
        let hidden = self.linear(&joined, &format!("{name}.fc1"));
        let hidden = self.graph.unary("Gelu", &hidden);

        let weight = self.network.weight(&format!("{name}.fc2.weight"));
        let bias = self.network.weight(&format!("{name}.fc2.bias"));
        let pixels = self.network.architecture.patch().pow(2);
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

    /// `descriptor = δ/‖δ‖` with confidence `e^ω`, for every pixel.
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

    /// Reshapes `B × T × (P·P·channels)` to `B × H × W × channels`.
    fn shuffle_to_pixels(&mut self, x: &Value, channels: usize) -> Value {
        let (size, patch) = (self.size, self.network.architecture.patch());
        let (rows, columns) = (size.rows(), size.columns());
        let run = patch * channels;
        let patches = self
            .graph
            .reshape(x, &[size.batch, rows, columns, patch, run]);
        let lines = self.graph.transpose(&patches, &[0, 1, 3, 2, 4]);
        self.graph
            .reshape(&lines, &[size.batch, size.height, size.width, channels])
    }
}
