//! Maps of the DPT heads, channels first or last as the runtime prefers.

use super::graph::Value;
use super::matrix::transpose;
use super::number::Number;
use super::{Emitter, Maps, Upsampling};

const TO_LAST: [usize; 4] = [0, 2, 3, 1];
const TO_FIRST: [usize; 4] = [0, 3, 1, 2];

impl Emitter<'_> {
    /// The channel axis of a map.
    pub(super) fn channel_axis(&self) -> usize {
        match self.maps {
            Maps::Nchw | Maps::NchwInside => 1,
            Maps::Nhwc | Maps::NhwcOperator => 3,
        }
    }

    /// The row axis of a map; the column axis follows it.
    pub(super) fn row_axis(&self) -> usize {
        match self.maps {
            Maps::Nchw | Maps::NchwInside => 2,
            Maps::Nhwc | Maps::NhwcOperator => 1,
        }
    }

    /// Reshapes tokens, `B × T × C`, to a map.
    pub(super) fn map(&mut self, tokens: &Value) -> Value {
        let (size, channels) = (self.size, tokens.shape[2]);
        let (batch, rows, columns) = (size.batch, size.rows(), size.columns());
        match self.maps {
            Maps::Nchw => {
                let turned = self.graph.transpose(tokens, &[0, 2, 1]);
                self.graph
                    .reshape(&turned, &[batch, channels, rows, columns])
            }
            Maps::NchwInside => {
                let map = (self.graph).reshape(tokens, &[batch, rows, columns, channels]);
                self.graph.transpose(&map, &TO_FIRST)
            }
            Maps::Nhwc | Maps::NhwcOperator => self
                .graph
                .reshape(tokens, &[batch, rows, columns, channels]),
        }
    }

    /// The linear layer named `name` with `out` outputs, from tokens to a map.
    pub(super) fn map_of_tokens(&mut self, tokens: &Value, name: &str, out: usize) -> Value {
        if self.maps == Maps::NchwInside {
            let map = self.map(tokens);
            return self.conv(&map, name, (1, out, 1), true);
        }
        let projected = self.linear(tokens, name);
        self.map(&projected)
    }

    /// A map with its channels last.
    pub(super) fn channels_last(&mut self, map: &Value) -> Value {
        match self.channel_axis() {
            1 => self.graph.transpose(map, &TO_LAST),
            _ => map.clone(),
        }
    }

    /// The convolution named `name` with an odd square kernel of side `kernel`, padded so that only
    /// the stride changes the map's size.
    pub(super) fn conv(
        &mut self,
        x: &Value,
        name: &str,
        (kernel, out, stride): (usize, usize, usize),
        biased: bool,
    ) -> Value {
        let channels = x.shape[self.channel_axis()];
        if kernel == 1 && stride == 1 && biased && self.channel_axis() == 3 {
            return self.linear(x, name);
        }
        let what = format!("{name}.weight");
        let bias = biased.then(|| self.stored(&format!("{name}.bias"), &[out]));
        let bias = bias.as_ref();
        let padding = kernel / 2;
        match self.maps {
            Maps::Nchw | Maps::NchwInside => {
                let weight = self.stored(&what, &[out, channels, kernel, kernel]);
                self.graph.conv(x, &weight, bias, stride, padding)
            }
            Maps::Nhwc => {
                let weight = self.stored(&what, &[out, channels, kernel, kernel]);
                let x = self.graph.transpose(x, &TO_FIRST);
                let y = self.graph.conv(&x, &weight, bias, stride, padding);
                self.graph.transpose(&y, &TO_LAST)
            }
            Maps::NhwcOperator => {
                let stored = self.network.weight(&what);
                let turned: Vec<f32> = stored
                    .chunks_exact(channels * kernel * kernel)
                    .flat_map(|one| transpose(one, channels, kernel * kernel))
                    .collect();
                let shape = [out, kernel, kernel, channels];
                let what = format!("{what}.channels_last");
                let weight = self.graph.weight(&what, &shape, &turned);
                let graph = &mut self.graph;
                graph.conv_channels_last(x, &weight, bias, stride, padding)
            }
        }
    }

    /// The transposed convolution named `name`, which expands each input to a patch of `side ×
    /// side` with the same number of channels.
    pub(super) fn patches(&mut self, x: &Value, name: &str, side: usize) -> Value {
        let channels = x.shape[self.channel_axis()];
        let weight = format!("{name}.weight");
        if self.channel_axis() == 1 {
            // TensorRT has no bfloat16 kernel for transposed convolutions; these layers are small.
            let number = match self.number {
                Number::BF16 => Number::F32,
                other => other,
            };
            self.graph.set_number(number);
            let weight = self.stored(&weight, &[channels, channels, side, side]);
            let bias = self.stored(&format!("{name}.bias"), &[channels]);
            let x = self.graph.cast(x, number);
            let y = self.graph.conv_transpose(&x, &weight, &bias);
            self.graph.set_number(self.number);
            return self.graph.cast(&y, self.number);
        }
        // Channels last: a linear layer computes all pixels of a patch, which are then moved into
        // place. The stored order is input, output, pixel; the layer's rows are ordered by pixel,
        // then channel.
        let (stored, pixels) = (self.network.weight(&weight), side * side);
        let by_output = transpose(&stored, channels, channels * pixels);
        let rows: Vec<f32> = (0..pixels)
            .flat_map(|pixel| (0..channels).map(move |out| (out * pixels + pixel) * channels))
            .flat_map(|at| &by_output[at..at + channels])
            .copied()
            .collect();
        let bias = self.network.weight(&format!("{name}.bias")).repeat(pixels);
        let y = self.linear_of(x, &format!("{name}.patches"), &rows, &bias);
        let (batch, height, width) = (x.shape[0], x.shape[1], x.shape[2]);
        let shape = [batch, height, width, side, side, channels];
        let y = self.graph.reshape(&y, &shape);
        let y = self.graph.transpose(&y, &[0, 1, 3, 2, 4, 5]);
        let shape = [batch, height * side, width * side, channels];
        self.graph.reshape(&y, &shape)
    }

    /// Bilinear upsampling by two.
    pub(super) fn twice(&mut self, x: &Value) -> Value {
        let rows = self.row_axis();
        self.upsample(x, (2 * x.shape[rows], 2 * x.shape[rows + 1]))
    }

    /// Bilinear upsampling to `rows × columns` with aligned corners.
    pub(super) fn upsample(&mut self, x: &Value, (rows, columns): (usize, usize)) -> Value {
        match (self.upsampling, self.maps) {
            (Upsampling::Operator, Maps::Nchw | Maps::NchwInside) => {
                self.graph.upsample(x, rows, columns)
            }
            (Upsampling::Operator, Maps::Nhwc | Maps::NhwcOperator) => {
                let x = self.graph.transpose(x, &TO_FIRST);
                let y = self.graph.upsample(&x, rows, columns);
                self.graph.transpose(&y, &TO_LAST)
            }
            // Each is a product of two plain matrices: batched products with a shared matrix are
            // slow, or cannot be captured in a CUDA graph.
            (Upsampling::Products, Maps::Nchw | Maps::NchwInside) => {
                let y = self.enlarge_last(x, columns);
                let y = self.graph.transpose(&y, &[0, 1, 3, 2]);
                let y = self.enlarge_last(&y, rows);
                self.graph.transpose(&y, &[0, 1, 3, 2])
            }
            (Upsampling::Products, Maps::Nhwc | Maps::NhwcOperator) => {
                let y = self.graph.transpose(x, &[2, 0, 1, 3]);
                let y = self.enlarge_first(&y, columns);
                let y = self.graph.transpose(&y, &[2, 1, 0, 3]);
                let y = self.enlarge_first(&y, rows);
                match y.shape[1] {
                    1 => {
                        let &[height, batch, width, channels] = &y.shape[..] else {
                            unreachable!("maps have four axes");
                        };
                        self.graph.reshape(&y, &[batch, height, width, channels])
                    }
                    _ => self.graph.transpose(&y, &[1, 0, 2, 3]),
                }
            }
        }
    }

    /// Upsamples the last axis to `to` values.
    fn enlarge_last(&mut self, x: &Value, to: usize) -> Value {
        let (mut shape, n) = (x.shape.clone(), x.shape[3]);
        let matrix = transpose(&interpolation(n, to), to, n);
        let what = format!("enlarge.last.{n}");
        let matrix = self.graph.weight(&what, &[n, to], &matrix);
        let lines = self.graph.reshape(x, &[shape[..3].iter().product(), n]);
        let lines = self.graph.matmul(&lines, &matrix);
        shape[3] = to;
        self.graph.reshape(&lines, &shape)
    }

    /// Upsamples the first axis to `to` values.
    fn enlarge_first(&mut self, x: &Value, to: usize) -> Value {
        let (mut shape, n) = (x.shape.clone(), x.shape[0]);
        let what = format!("enlarge.first.{n}");
        let matrix = self.graph.weight(&what, &[to, n], &interpolation(n, to));
        let lines = self.graph.reshape(x, &[n, shape[1..].iter().product()]);
        let lines = self.graph.matmul(&matrix, &lines);
        shape[0] = to;
        self.graph.reshape(&lines, &shape)
    }
}

/// The `to × n` matrix that interpolates `n` values to `to ≥ 2` values: `src = i·(n−1)/(to−1)`.
fn interpolation(n: usize, to: usize) -> Vec<f32> {
    let mut matrix = vec![0.0; to * n];
    for (i, row) in matrix.chunks_exact_mut(n).enumerate() {
        let at = (i * (n - 1)) as f64 / (to - 1) as f64;
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
        for (n, to) in [(1, 2), (2, 4), (3, 6), (24, 48), (8, 14), (16, 28)] {
            let matrix = interpolation(n, to);
            let line: Vec<f64> = (0..n).map(|i| 3.0 + 0.5 * i as f64).collect();
            let large: Vec<f64> = matrix
                .chunks_exact(n)
                .map(|row| row.iter().zip(&line).map(|(w, x)| f64::from(*w) * x).sum())
                .collect();
            assert_eq!(large.len(), to);
            for (i, value) in large.iter().enumerate() {
                let at = (i * (n - 1)) as f64 / (to - 1) as f64;
                // Two weights, each rounded to binary32.
                assert!((value - (3.0 + 0.5 * at)).abs() < 1e-5, "{n}: {large:?}");
            }
        }
    }
}
