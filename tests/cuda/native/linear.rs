//! The kernels of linear layers by themselves.

use crate::{buffer, cuda};
use half::f16;
use mast3r_slam::gpu::{Context, Grid, KernelArgument, Priority};
use mast3r_slam::inference::native::KERNELS;

/// `LinearArgs` of `linear.cuh`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct LinearArgs {
    a: u64,
    weight: u64,
    bias: u64,
    rotary: u64,
    first: u64,
    second: u64,
    out: u64,
    groups: [i64; 6],
    rows: i32,
    outputs: i32,
    inputs: i32,
    a_stride: i32,
    out_stride: i32,
    add_stride: i32,
    map: [i32; 6],
    patch: i32,
    tokens: i32,
    head: i32,
    part: i32,
    rotated: u32,
    flags: u32,
}

// SAFETY: the same fields in the same order as in `linear.cuh`; the kernel's size is checked at the launch.
unsafe impl KernelArgument for LinearArgs {}

const GELU: u32 = 2;
const OUT_F32: u32 = 8;

/// The complementary error function of `z ≥ 0`: by the error function's Taylor series, and by Laplace's continued
/// fraction (Abramowitz and Stegun, Handbook of Mathematical Functions, 1964, 7.1.5 and 7.1.14).
fn erfc(z: f64) -> f64 {
    let share = std::f64::consts::FRAC_2_SQRT_PI;
    if z < 2.5 {
        let (mut term, mut sum) = (z, z);
        for n in 1..60 {
            term *= -z * z / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return 1.0 - share * sum;
    }
    let rest = (1..80)
        .rev()
        .fold(z, |rest, n| z + f64::from(n) / 2.0 / rest);
    (-z * z).exp() * share / 2.0 / rest
}

/// `x·Φ(x)`.
fn gelu(x: f64) -> f64 {
    x.max(0.0) - x.abs() / 2.0 * erfc(x.abs() / std::f64::consts::SQRT_2)
}

/// Every finite number of binary16, as the only input of a layer that leaves it as it is.
#[test]
fn gelu_is_exact_to_binary16_s_rounding() {
    let Some(_gpu) = cuda() else { return };
    let context = Context::open(0, &KERNELS).expect("the GPU");
    let kernel = context
        .kernel("ms_native_linear_narrow_f16")
        .expect("in the program");
    let stream = context.stream(Priority::High).expect("a stream");
    const WIDTH: usize = 8;
    let values: Vec<f16> = (0..=u16::MAX)
        .map(f16::from_bits)
        .filter(|v| v.is_finite())
        .collect();
    let rows = values.len() / WIDTH;
    assert_eq!(rows * WIDTH, values.len());
    let identity: Vec<f16> = (0..WIDTH * WIDTH)
        .map(|at| f16::from_f32(f32::from(u8::from(at % (WIDTH + 1) == 0))))
        .collect();
    let a = buffer::<f16>(&context, values.len());
    let weight = buffer::<f16>(&context, identity.len());
    let out = buffer::<f32>(&context, values.len());
    stream.write(&values, a.all()).expect("written");
    stream.write(&identity, weight.all()).expect("written");
    let args = LinearArgs {
        a: a.all().address(),
        weight: weight.all().address(),
        out: out.all().address(),
        rows: rows as i32,
        outputs: WIDTH as i32,
        inputs: WIDTH as i32,
        a_stride: WIDTH as i32,
        out_stride: WIDTH as i32,
        add_stride: WIDTH as i32,
        patch: 1,
        part: 1,
        flags: GELU | OUT_F32,
        ..LinearArgs::default()
    };
    let shared_bytes = 3 * (128 + 32) * 128;
    kernel
        .allow_shared_bytes(shared_bytes)
        .expect("as much as there is");
    let grid = Grid::blocks(rows.div_ceil(128) as u32, 128).shared(shared_bytes);
    // SAFETY: all buffers have as many elements as the arguments say, and outlive the run.
    unsafe { kernel.launch(&stream, grid, (args,)) }.expect("launched");
    let found = stream.read_vec(out.all()).expect("read");
    let mut largest = 0.0_f64;
    for (x, found) in values.iter().map(|v| v.to_f64()).zip(found) {
        let expected = gelu(x);
        let error = (f64::from(found) - expected).abs();
        // What rounding to binary16 changes at most: half of the last place.
        let exponent = expected
            .abs()
            .max(f64::from(f16::MIN_POSITIVE))
            .log2()
            .floor();
        let half = (exponent - 11.0).exp2();
        assert!(error <= half, "gelu({x}) is {found} instead of {expected}");
        largest = largest.max(error);
    }
    println!("largest error of GELU: {largest:.2e}");
    assert!(largest < 1e-5, "{largest}");
}
