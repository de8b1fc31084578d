//! The 8-bit floating-point format E4M3: a sign, four bits of exponent with a bias of 7, three of mantissa.

/// The largest E4M3 number.
pub const LARGEST: f32 = 448.0;

/// Rounds to the nearest E4M3 number, ties to even; larger magnitudes are clamped to the maximum.
pub fn to_e4m3(value: f32) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    let magnitude = value.abs().min(LARGEST);
    // Below 2⁻⁶ (subnormals) the step size is constant.
    let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(-6);
    let step = f32::from_bits(((exponent - 3 + 127) as u32) << 23);
    let steps = (magnitude / step).round_ties_even() as u32;
    sign | ((exponent + 6) as u32 * 8 + steps) as u8
}

/// The value of a code other than NaN's, which are 0x7F and 0xFF.
pub fn from_e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match exponent {
        0 => mantissa / 8.0 * 2f32.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    match code & 0x80 {
        0 => magnitude,
        _ => -magnitude,
    }
}

/// The factor between weights and E4M3 numbers with which the largest of them, finite ones, becomes [`LARGEST`].
pub fn scale_of(weights: &[f32]) -> f32 {
    let largest = weights.iter().fold(0.0f32, |m, w| m.max(w.abs()));
    // Weights without a value have any scale; a subnormal one would not have an inverse.
    match largest / LARGEST {
        scale if scale >= f32::MIN_POSITIVE => scale,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_the_format_is_itself_and_others_go_to_the_nearest() {
        // 0x7F and 0xFF encode NaN.
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
    fn a_scale_brings_the_largest_weight_to_the_largest_number() {
        for weights in [
            vec![0.25, -3.0, 1.0],
            vec![1e5],
            vec![-1e-30, 5e-31],
            vec![f32::MAX],
        ] {
            let scale = scale_of(&weights);
            let codes: Vec<u8> = weights.iter().map(|w| to_e4m3(w / scale)).collect();
            assert!(codes.iter().any(|code| code & 0x7F == 0x7E), "{weights:?}");
            for (&w, &code) in weights.iter().zip(&codes) {
                let error = (from_e4m3(code) * scale - w).abs();
                // Half of the last of three bits of mantissa, and of the smallest step.
                assert!(error <= w.abs() / 16.0 + scale / 1024.0, "{w} {error}");
            }
        }
        for weights in [vec![], vec![0.0; 3], vec![1e-45]] {
            assert_eq!(scale_of(&weights), 1.0);
        }
    }
}
