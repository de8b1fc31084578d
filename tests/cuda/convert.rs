//! f32 to f16 and back, against the crate `half`.

use crate::{assert_same, assert_same_bits, cuda};
use half::f16;
use mast3r_slam::compute::cuda::convert::Convert;
use mast3r_slam::gpu::{Context, Priority};

/// All f16, and f32 about them: halfway (ties), just beside, too large, too small, NaN.
fn values() -> Vec<f32> {
    let mut values = vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 65519.9, 65520.0];
    for bits in 0..=u16::MAX {
        let v = f16::from_bits(bits);
        let exact = v.to_f32();
        let next = f16::from_bits(bits.wrapping_add(1)).to_f32();
        let middle = exact + (next - exact) / 2.0;
        values.extend([exact, middle, middle.next_up(), middle.next_down()]);
    }
    values
}

/// As [`f16`] but with every NaN alike: its payload is not defined.
fn bits(v: f16) -> u16 {
    if v.is_nan() { 0x7fff } else { v.to_bits() }
}

#[test]
fn conversions_round_as_on_the_cpu() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let stream = context.stream(Priority::High).unwrap();
    let convert = Convert::new(context).unwrap();
    let values = values();
    let wide = crate::buffer::<f32>(context, values.len());
    let narrow = crate::buffer::<f16>(context, values.len());
    let back = crate::buffer::<f32>(context, values.len());
    stream.write(&values, wide.all()).unwrap();

    // All, and parts that start where a vector access would be misaligned, of any length.
    let n = values.len();
    for range in [0..n, 1..n, 2..n - 1, 3..7, 5..6, 9..9] {
        stream.fill(narrow.all(), 0x11).unwrap();
        stream.fill(back.all(), 0x11).unwrap();
        let part = |b| narrow.slice(b).unwrap();
        let src = wide.slice(range.clone()).unwrap();
        convert.narrow(&stream, src, part(range.clone())).unwrap();
        let dst = back.slice(range.clone()).unwrap();
        convert.widen(&stream, part(range.clone()), dst).unwrap();
        let found = stream.read_vec(narrow.all()).unwrap();
        let mut expected = vec![f16::from_bits(0x1111); n];
        for i in range.clone() {
            expected[i] = f16::from_f32(values[i]);
        }
        let as_bits = |v: &[f16]| v.iter().map(|&v| bits(v)).collect::<Vec<_>>();
        assert_same("f16", &as_bits(&found), &as_bits(&expected));

        let found = stream.read_vec(back.all()).unwrap();
        let mut expected = vec![f32::from_bits(0x1111_1111); n];
        for i in range {
            expected[i] = f16::from_f32(values[i]).to_f32();
        }
        let plain = |v: &[f32]| {
            v.iter()
                .map(|&v| if v.is_nan() { f32::NAN } else { v })
                .collect::<Vec<_>>()
        };
        assert_same_bits("f32", &plain(&found), &plain(&expected));
    }
}
