//! Floating-point operations of a network's matrix products; a multiplication and an addition count
//! as one each. All other operations (norms, softmax, activations) amount to about one percent and
//! are bandwidth-bound.

use super::architecture::Architecture;
use super::dune::Dune;
use super::input_size::InputSize;

/// Operations of one call, split by the parts whose precision can be lowered separately.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Flops {
    /// Linear layers of the encoder, for one image.
    pub encoder_linear: f64,
    /// Attention products (`q·kᵀ` and the sum over values) of the encoder.
    pub encoder_attention: f64,
    /// Linear layers of both decoder branches, for a pair.
    pub decoder_linear: f64,
    /// Attention products of the decoder.
    pub decoder_attention: f64,
    /// Heads of both views.
    pub heads: f64,
}

impl Flops {
    /// Counts the operations of `architecture` for a whole batch of images (and pairs) of `size`.
    pub fn of(architecture: &Architecture, size: InputSize) -> Self {
        let a = architecture;
        let t = size.tokens() as f64;
        let (encoder, decoder) = (&a.encoder, &a.decoder);
        let (ce, cd) = (encoder.width as f64, decoder.width as f64);
        let patches = linear(t, (3 * a.patch() * a.patch()) as f64, ce);
        // DUNE's encoder has class and register tokens in addition to patch tokens.
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

    /// Total for encoding.
    pub fn encoder(&self) -> f64 {
        self.encoder_linear + self.encoder_attention
    }

    /// Total for decoding a pair, heads included.
    pub fn decoder(&self) -> f64 {
        self.decoder_linear + self.decoder_attention + self.heads
    }
}

fn linear(rows: f64, inputs: f64, outputs: f64) -> f64 {
    2.0 * rows * inputs * outputs
}

/// Products for logits and for mixing values, all heads.
fn attention(tokens: f64, width: f64) -> f64 {
    2.0 * 2.0 * tokens * tokens * width
}

/// DPT head and descriptor MLP of one view.
fn head(a: &Architecture, t: f64) -> f64 {
    let f = a.feature_dim as f64;
    let conv = |pixels: f64, kernel: f64, inputs: f64, outputs: f64| {
        linear(pixels, kernel * kernel * inputs, outputs)
    };
    // Pixels of the four maps: 4, 2, 1 and 1/2 times the token grid per side.
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
            // Transposed convolution without overlap: each output pixel is computed once.
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

    /// The published model at 512×384: PyTorch's flop counter on the reference gives 523, 437 and
    /// 554 GFLOP.
    #[test]
    fn the_official_model_takes_what_was_counted() {
        let size = InputSize::new(1, 512, 384).expect("a size");
        let flops = Flops::of(&Architecture::official(), size);
        let decoder = flops.decoder_linear + flops.decoder_attention;
        // The reference upsamples maps before their 1×1 convolutions, which then process four times
        // the pixels.
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
