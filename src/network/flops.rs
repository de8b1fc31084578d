//! How much a network computes: floating-point operations of its products, a multiplication and an addition each
//! counted as one. Everything else (norms, softmax, activations) is a percent of that and limited by bandwidth.

use super::architecture::Architecture;
use super::dune::Dune;
use super::onnx::InputSize;

/// Operations of one call, by what precision can be lowered for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Flops {
    /// The encoder's linear layers, for one image.
    pub encoder_linear: f64,
    /// Its products of queries, keys and values.
    pub encoder_attention: f64,
    /// The linear layers of both of the decoder's branches, for a pair.
    pub decoder_linear: f64,
    /// Their products of queries, keys and values.
    pub decoder_attention: f64,
    /// Both views' heads.
    pub heads: f64,
}

impl Flops {
    /// Of `architecture` for images (and pairs) of `size`, the whole batch.
    pub fn of(architecture: &Architecture, size: InputSize) -> Self {
        let a = architecture;
        let t = size.tokens() as f64;
        let (encoder, decoder) = (&a.encoder, &a.decoder);
        let (ce, cd) = (encoder.width as f64, decoder.width as f64);
        let patches = linear(t, (3 * a.patch() * a.patch()) as f64, ce);
        // Of DUNE's encoder, some tokens are not the patches'.
        let te = t + a.dune.as_ref().map_or(0, Dune::prefix) as f64;
        let encoder_mlp = 2.0 * linear(te, ce, encoder.hidden as f64);
        let encoder_block = linear(te, ce, 4.0 * ce) + encoder_mlp;
        let decoder_mlp = 2.0 * linear(t, cd, decoder.hidden as f64);
        let decoder_block = 2.0 * linear(t, cd, 4.0 * cd) + decoder_mlp;
        let (de, dd) = (encoder.depth as f64, decoder.depth as f64);
        let batch = size.batch as f64;
        Self {
            encoder_linear: batch * (patches + de * encoder_block),
            encoder_attention: batch * de * attention(te, ce),
            decoder_linear: batch * 2.0 * (linear(t, ce, cd) + dd * decoder_block),
            decoder_attention: batch * 2.0 * dd * 2.0 * attention(t, cd),
            heads: batch * 2.0 * head(a, t),
        }
    }

    /// Everything that encoding takes.
    pub fn encoder(&self) -> f64 {
        self.encoder_linear + self.encoder_attention
    }

    /// Everything that decoding a pair takes, heads included.
    pub fn decoder(&self) -> f64 {
        self.decoder_linear + self.decoder_attention + self.heads
    }
}

/// `rows × inputs` by `inputs × outputs`.
fn linear(rows: f64, inputs: f64, outputs: f64) -> f64 {
    2.0 * rows * inputs * outputs
}

/// Logits and mixing, all heads.
fn attention(tokens: f64, width: f64) -> f64 {
    2.0 * 2.0 * tokens * tokens * width
}

/// One view's DPT and descriptor MLP.
fn head(a: &Architecture, t: f64) -> f64 {
    let f = a.feature_dim as f64;
    let conv = |pixels: f64, kernel: f64, inputs: f64, outputs: f64| {
        linear(pixels, kernel * kernel * inputs, outputs)
    };
    // Pixels of the four maps: 4, 2, 1 and 1/2 times the token grid on each side.
    let pixels = [16.0 * t, 4.0 * t, t, t / 4.0];
    let mut sum = 0.0;
    for (level, (&pixels, &dim)) in pixels.iter().zip(&a.layer_dims).enumerate() {
        let dim = dim as f64;
        let source = match a.hooks.get(level) {
            Some(0) => a.encoder.width,
            _ => a.decoder.width,
        };
        sum += linear(t, source as f64, dim);
        sum += match level {
            // A transposed convolution whose patches do not overlap: each pixel made once.
            0 | 1 => linear(pixels, dim, dim),
            2 => 0.0,
            _ => conv(pixels, 3.0, dim, dim),
        };
        sum += conv(pixels, 3.0, dim, f);
        let units = if level == 3 { 1.0 } else { 2.0 };
        sum += units * 2.0 * conv(pixels, 3.0, f, f) + conv(pixels, 1.0, f, f);
    }
    let [first, second] = a.output_dims.map(|n| n as f64);
    let pixels = (a.patch() * a.patch()) as f64;
    let (half, whole) = (64.0 * t, pixels * t);
    sum +=
        conv(half, 3.0, f, first) + conv(whole, 3.0, first, second) + conv(whole, 1.0, second, 4.0);
    let joined = (a.encoder.width + a.decoder.width) as f64;
    let hidden = a.descriptor_hidden as f64;
    let shuffled = (a.descriptor_dim + 1) as f64 * pixels;
    sum + linear(t, joined, hidden) + linear(t, hidden, shuffled)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published model at 512×384, counted by PyTorch's flop counter on the reference: 523, 437, 554 G.
    #[test]
    fn the_official_model_takes_what_was_counted() {
        let size = InputSize::new(1, 512, 384).expect("a size");
        let flops = Flops::of(&Architecture::official(), size);
        let decoder = flops.decoder_linear + flops.decoder_attention;
        // The reference enlarges maps before their 1×1 convolutions, which then see four times the pixels.
        let pixels = 768.0 * (16.0 + 4.0 + 1.0 + 0.25);
        let heads = flops.heads + 2.0 * 3.0 * linear(pixels, 256.0, 256.0);
        for (found, counted) in [(flops.encoder(), 523e9), (decoder, 437e9), (heads, 554e9)] {
            assert!(
                (found / counted - 1.0).abs() < 0.002,
                "{found:e} {counted:e}"
            );
        }
        let pair = InputSize::new(2, 512, 384).expect("a size");
        let twice = Flops::of(&Architecture::official(), pair);
        assert_eq!(twice.decoder(), 2.0 * flops.decoder());
    }
}
