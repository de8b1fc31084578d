//! FP8 (E4M3) quantisation of the transformer's linear layers, without calibration.
//!
//! Each input and each weight tensor has one scale, which maps its largest possible magnitude to
//! 448, the largest value of the format. For weights, the magnitude is known. For inputs it is
//! bounded by the preceding layers:
//!
//! * LayerNorm yields `γ·x̂ + β` with `‖x̂‖ ≤ √C`, so no element exceeds `max |γᵢ|·√C + |βᵢ|`.
//! * A linear layer on top of it yields `w·(γ⊙x̂ + β) + b`, so by the Cauchy-Schwarz inequality no
//!   element exceeds `max ‖w⊙γ‖·√C + |w·β + b|`. GELU does not increase magnitudes, and attention
//!   mixes values with weights that sum to one, so the same bound holds after them.
//!
//! Nothing saturates, whatever the image. The bounds are loose (a typical element is a few
//! hundredths of them), which costs little with floating-point numbers: all values above 1/30,000
//! of the bound keep their three mantissa bits.

use super::Emitter;
use super::graph::Value;
use super::matrix::transpose;
use crate::network::e4m3::LARGEST;

/// The operation whose output is a layer's input.
#[derive(Clone, Copy)]
pub enum Input<'a> {
    /// A LayerNorm, by name.
    Norm(&'a str),
    /// A linear layer (weight rows, biases) on top of a LayerNorm, followed by GELU or attention.
    Layer {
        norm: &'a str,
        weight: &'a [f32],
        bias: &'a [f32],
    },
}

impl Emitter<'_> {
    /// Like [`Emitter::linear_of`], in FP8 if enabled.
    pub fn linear_in(
        &mut self,
        x: &Value,
        what: &str,
        (weight, bias): (&[f32], &[f32]),
        input: Input<'_>,
    ) -> Value {
        if !self.fp8 {
            return self.linear_of(x, what, weight, bias);
        }
        let bound = self.bound(input);
        let x = self.graph.through_fp8(x, scale(bound));
        let largest = weight.iter().fold(0.0f32, |m, w| m.max(w.abs()));
        let (outputs, inputs) = (bias.len(), weight.len() / bias.len());
        let transposed = transpose(weight, outputs, inputs);
        let matrix = self.graph.weight_fp8(
            &format!("{what}.weight"),
            &[inputs, outputs],
            &transposed,
            scale(largest),
        );
        let bias = self.graph.weight(&format!("{what}.bias"), &[outputs], bias);
        let product = self.graph.matmul(&x, &matrix);
        self.graph.binary("Add", &product, &bias)
    }

    /// The largest possible magnitude of an input.
    fn bound(&self, input: Input<'_>) -> f32 {
        let norm = |name: &str| {
            let of = |kind: &str| self.network.weight(&format!("{name}.{kind}"));
            (of("weight"), of("bias"))
        };
        match input {
            Input::Norm(name) => {
                let (gamma, beta) = norm(name);
                norm_bound(&gamma, &beta)
            }
            Input::Layer {
                norm: name,
                weight,
                bias,
            } => {
                let (gamma, beta) = norm(name);
                layer_bound(weight, bias, &gamma, &beta)
            }
        }
    }
}

/// Upper bound on the magnitude of `γ·x̂ + β`.
fn norm_bound(gamma: &[f32], beta: &[f32]) -> f32 {
    let root = (gamma.len() as f32).sqrt();
    let pairs = gamma.iter().zip(beta);
    pairs.fold(0.0, |m, (g, b)| m.max(g.abs() * root + b.abs()))
}

/// Upper bound on the outputs of a linear layer applied to `γ·x̂ + β`.
fn layer_bound(weight: &[f32], bias: &[f32], gamma: &[f32], beta: &[f32]) -> f32 {
    let root = (gamma.len() as f32).sqrt();
    let rows = weight.chunks_exact(gamma.len()).zip(bias);
    rows.fold(0.0, |m: f32, (row, bias)| {
        let (mut squares, mut offset) = (0.0f32, *bias);
        for ((w, g), b) in row.iter().zip(gamma).zip(beta) {
            squares += (w * g) * (w * g);
            offset += w * b;
        }
        m.max(squares.sqrt() * root + offset.abs())
    })
}

/// The divisor for values up to `bound`. Scales are stored in binary16, so the result is rounded up
/// to a normal binary16 number; rounding up prevents saturation.
fn scale(bound: f32) -> f32 {
    let wanted = (bound / LARGEST).max(half::f16::MIN_POSITIVE.to_f32());
    let rounded = half::f16::from_f32(wanted);
    match rounded.to_f32() < wanted {
        true => half::f16::from_bits(rounded.to_bits() + 1).to_f32(),
        false => rounded.to_f32(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_hold_and_are_reached() {
        // One normalised vector of four with all its length in one element, and one aligned with a
        // row.
        let (gamma, beta) = ([1.0, -2.0, 0.5, 1.0], [0.0, 0.5, 1.0, -1.0]);
        let bound = norm_bound(&gamma, &beta);
        assert_eq!(bound, 2.0 * 2.0 + 0.5);
        let (weight, bias) = ([1.0, 0.5, -2.0, 0.0, 0.0, 0.0, 0.0, 0.1], [0.25, -9.0]);
        let bound = layer_bound(&weight, &bias, &gamma, &beta);
        let row: Vec<f32> = weight.iter().zip(&gamma).map(|(w, g)| w * g).collect();
        let length = row[..4].iter().map(|v| v * v).sum::<f32>().sqrt();
        let aligned: f32 = row[..4].iter().map(|v| v * v / length * 2.0).sum();
        // The offset of that row is 0.25 − 2 + 0.25; the other row's is −9.1, with 0.2 to it.
        assert!((aligned + 1.5 - 2.0 * length - 1.5).abs() < 1e-6);
        assert!((bound - (9.1 + 0.2)).abs() < 1e-5, "{bound}");
    }

    #[test]
    fn a_scale_makes_nothing_saturate() {
        for bound in [0.0, 1e-7, 0.3, 1.0, 447.9, 448.0, 1e4, 2e7] {
            let scale = scale(bound);
            assert!(
                bound / scale <= LARGEST && scale.is_finite(),
                "{bound} {scale}"
            );
            assert_eq!(half::f16::from_f32(scale).to_f32(), scale);
        }
    }
}
