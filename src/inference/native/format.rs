//! How the network's weights are stored: as 16-bit numbers, or in E4M3.

use super::unavailable;
use crate::gpu::Half;
use crate::inference::InferenceError;
use crate::network::e4m3::{scale_of, to_e4m3};
use crate::network::onnx::Precision;
use rayon::prelude::*;

/// Weights in E4M3 of a row are filled up to a multiple of this, as the kernel copies so many at once.
const CHUNK: usize = 16;

/// The kernel's factors are this much greater than the scales, as it widens E4M3 numbers to so much smaller ones.
const WIDENED: f32 = 256.0;

/// Weights in E4M3 from row to row.
pub fn quantised_row(inputs: usize) -> usize {
    inputs.next_multiple_of(CHUNK)
}

/// A layer's weights, `outputs × inputs`, as the kernel takes them: E4M3 numbers, `outputs ×` [`quantised_row`], and each
/// output's factor. In each 16 of a row, number `2·t + i + 8·h` lies at `4·t + 2·i + h`, as thread `t` of four takes
/// four that lie behind each other.
pub fn quantised(weights: &[f32], inputs: usize) -> (Vec<u8>, Vec<f32>) {
    let (inputs, row) = (inputs.max(1), quantised_row(inputs.max(1)));
    let mut codes = vec![0; weights.len() / inputs * row];
    let rows = codes.par_chunks_exact_mut(row);
    let factors = rows
        .zip(weights.par_chunks_exact(inputs))
        .map(|(codes, weights)| {
            let scale = scale_of(weights);
            for (codes, weights) in codes.chunks_exact_mut(CHUNK).zip(weights.chunks(CHUNK)) {
                for (k, &weight) in weights.iter().enumerate() {
                    codes[k % 8 / 2 * 4 + k % 2 * 2 + k / 8] = to_e4m3(weight / scale);
                }
            }
            scale * WIDENED
        });
    let factors = factors.collect();
    (codes, factors)
}

/// How weights are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Format {
    /// The numbers of activations, and of weights.
    pub(super) half: Half,
    /// Whether the transformers' linear layers have weights in E4M3 with a scale for each output.
    pub(super) quantised: bool,
}

impl Format {
    pub(super) fn of(precision: Precision) -> Result<Self, InferenceError> {
        let format = |half, quantised| Ok(Self { half, quantised });
        match precision {
            Precision::F16 => format(Half::F16, false),
            Precision::Bf16 => format(Half::Bf16, false),
            Precision::Fp8 => format(Half::F16, true),
            Precision::F32 => Err(unavailable(
                "it computes in fp16, bf16 or fp8, not in fp32; choose another network.precision or another backend"
                    .into(),
            )),
        }
    }

    /// Whether its 16-bit numbers are those in which keyframes keep tokens.
    pub(super) fn half_tokens(self) -> bool {
        self.half == Half::F16
    }

    pub(super) fn precision(self) -> Precision {
        match self {
            Self {
                quantised: true, ..
            } => Precision::Fp8,
            Self {
                half: Half::F16, ..
            } => Precision::F16,
            Self {
                half: Half::Bf16, ..
            } => Precision::Bf16,
        }
    }

    /// Whether the layer called `name` has weights in E4M3.
    pub(super) fn quantises(self, name: &str) -> bool {
        self.quantised && (name.starts_with("enc_blocks.") || name.starts_with("dec_both."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::e4m3::from_e4m3;

    #[test]
    fn every_weight_lies_where_its_thread_takes_it() {
        // Two rows of 24, whose values say their place.
        let weights: Vec<f32> = (0..48).map(|at| (at % 24) as f32 * 0.5 + 0.25).collect();
        let (codes, factors) = quantised(&weights, 24);
        assert_eq!((codes.len(), factors.len()), (2 * 32, 2));
        for (row, codes) in codes.chunks_exact(32).enumerate() {
            for (at, &code) in codes.iter().enumerate() {
                let (chunk, thread, of_thread) = (at / 16, at % 16 / 4, at % 4);
                let k = chunk * 16 + 2 * thread + of_thread / 2 + of_thread % 2 * 8;
                let expected = weights.get(row * 24 + k).filter(|_| k < 24);
                let found = from_e4m3(code) * factors[row] / WIDENED;
                let expected = expected.copied().unwrap_or(0.0);
                assert!(
                    (found - expected).abs() <= expected / 16.0,
                    "{row} {at}: {found} instead of {expected}"
                );
            }
        }
    }

    #[test]
    fn layers_of_blocks_alone_are_quantised() {
        let format = Format::of(Precision::Fp8).expect("a format");
        for (name, quantised) in [
            ("enc_blocks.3.attn.qkv", true),
            ("dec_both.0.joint", true),
            ("decoder_embed", false),
            ("dpt.head.0", false),
        ] {
            assert_eq!(format.quantises(name), quantised, "{name}");
            let half = Format::of(Precision::Bf16).expect("a format");
            assert!(!half.quantises(name));
        }
        for precision in [Precision::F16, Precision::Bf16, Precision::Fp8] {
            assert_eq!(
                Format::of(precision).expect("a format").precision(),
                precision
            );
        }
        let error = Format::of(Precision::F32).expect_err("refused").to_string();
        assert!(error.contains("network.precision"), "{error}");
    }
}
