//! 8-bit floats (E4M3) in the transformer's linear layers, without calibration.
//!
//! Inputs and weights are quantised by one scale each, so that the largest magnitude that can occur becomes 448,
//! the format's largest. For weights that is read off. For inputs it follows from what comes before them:
//!
//! * LayerNorm gives `γ·x̂ + β` with `‖x̂‖ ≤ √C`, so no element exceeds `max |γᵢ|·√C + |βᵢ|`.
//! * A linear layer on that gives `w·(γ⊙x̂ + β) + b`, so by Cauchy and Schwarz no element exceeds
//!   `max ‖w⊙γ‖·√C + |w·β + b|`. GELU makes no magnitude larger, and attention mixes values with weights that
//!   sum to one, so the same holds behind them.
//!
//! Nothing saturates, whatever the image. Such bounds are wide (a typical element is a few hundredths of them),
//! which costs little with floating-point numbers: everything from a thirty-thousandth of the bound on keeps its
//! three bits.

use super::Emitter;
use super::graph::Value;

/// The largest E4M3 number.
const LARGEST: f32 = 448.0;

/// What a layer's input is the output of.
#[derive(Clone, Copy)]
pub enum Input<'a> {
    /// A LayerNorm, by name.
    Norm(&'a str),
    /// A linear layer on a LayerNorm (rows of weights, biases), and then GELU or attention.
    Layer {
        norm: &'a str,
        weight: &'a [f32],
        bias: &'a [f32],
    },
}

impl Emitter<'_> {
    /// As [`Emitter::linear_of`], in 8-bit floats where they are asked for.
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
        let transposed = super::blocks::transpose(weight, outputs, inputs);
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

    /// The largest magnitude that an input can have.
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

/// Of `γ·x̂ + β`.
fn norm_bound(gamma: &[f32], beta: &[f32]) -> f32 {
    let root = (gamma.len() as f32).sqrt();
    let pairs = gamma.iter().zip(beta);
    pairs.fold(0.0, |m, (g, b)| m.max(g.abs() * root + b.abs()))
}

/// Of the outputs of a linear layer on `γ·x̂ + β`.
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

/// What values up to `bound` are divided by. A scale is stored in binary16, of whose normal numbers it must be
/// one: rounded up, so that nothing saturates.
fn scale(bound: f32) -> f32 {
    let wanted = (bound / LARGEST).max(half::f16::MIN_POSITIVE.to_f32());
    let rounded = half::f16::from_f32(wanted);
    match rounded.to_f32() < wanted {
        true => half::f16::from_bits(rounded.to_bits() + 1).to_f32(),
        false => rounded.to_f32(),
    }
}

/// The nearest E4M3 number, ties to even; beyond the largest, the largest.
pub fn to_e4m3(value: f32) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    let magnitude = value.abs().min(LARGEST);
    // Below 2⁻⁶ steps stay those of 2⁻⁶.
    let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(-6);
    let step = f32::from_bits(((exponent - 3 + 127) as u32) << 23);
    let steps = (magnitude / step).round_ties_even() as u32;
    sign | ((exponent + 6) as u32 * 8 + steps) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By definition: sign, four bits of exponent with a bias of 7, three of mantissa.
    fn from_e4m3(code: u8) -> f32 {
        let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
        let magnitude = match exponent {
            0 => mantissa / 8.0 * 2f32.powi(-6),
            _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
        };
        if code & 0x80 == 0 {
            magnitude
        } else {
            -magnitude
        }
    }

    #[test]
    fn every_number_of_the_format_is_itself_and_others_go_to_the_nearest() {
        // 0x7F and 0xFF are not numbers.
        for code in (0..0x7F).chain(0x80..0xFF) {
            assert_eq!(to_e4m3(from_e4m3(code)), code);
        }
        for code in 0..0x7E {
            let (low, high) = (from_e4m3(code), from_e4m3(code + 1));
            let middle = (low + high) / 2.0;
            assert_eq!(to_e4m3(middle), if code % 2 == 0 { code } else { code + 1 });
            assert_eq!(to_e4m3(middle.next_down()), code);
            assert_eq!(to_e4m3(middle.next_up()), code + 1);
            assert_eq!(to_e4m3(-high), (code + 1) | 0x80);
        }
        for large in [449.0, 1e9, f32::INFINITY] {
            assert_eq!((to_e4m3(large), to_e4m3(-large)), (0x7E, 0xFE));
        }
    }

    #[test]
    fn bounds_hold_and_are_reached() {
        // A normalised vector of four with all its length in one element, and one aligned with a row.
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
