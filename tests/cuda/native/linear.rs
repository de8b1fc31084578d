//! The kernels of linear layers by themselves, on shapes that no network here has, against sums in binary64.

use crate::{buffer, cuda};
use half::f16;
use mast3r_slam::gpu::{Context, CudaError, Extras, Grid, KernelArgument, Priority, TensorMap};
use mast3r_slam::inference::native::KERNELS;
use testkit::networks::noise;

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
const RELU: u32 = 4;
const OUT_F32: u32 = 8;
const ADD_F32: u32 = 16;

/// What happens to the sums.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Finish {
    Plain,
    Turned,
    Activated,
    Added,
    /// A way that the kernels have no code of its own for: max(x, 0) of 16-bit numbers.
    Positive,
}

const FINISHES: [Finish; 5] = [
    Finish::Plain,
    Finish::Turned,
    Finish::Activated,
    Finish::Added,
    Finish::Positive,
];

/// Kernels of `fed.cu`: rows and outputs of a tile, stages, and the blocks that take a part of the inputs each.
const KINDS: [(&str, usize, usize, usize, usize); 10] = [
    ("ms_native_fed_low_64_f16", 64, 64, 6, 1),
    ("ms_native_fed_64_f16", 128, 64, 8, 1),
    ("ms_native_fed_128_f16", 128, 128, 6, 1),
    ("ms_native_fed_144_f16", 128, 144, 6, 1),
    ("ms_native_fed_192_f16", 128, 192, 5, 1),
    ("ms_native_fed_tall_48_f16", 192, 48, 7, 1),
    ("ms_native_fed_tall_192_f16", 192, 192, 4, 1),
    ("ms_native_fed_tall_240_f16", 192, 240, 4, 1),
    ("ms_native_fed_split_f16", 128, 96, 7, 2),
    ("ms_native_fed_tall_split_f16", 192, 96, 5, 2),
];

/// Rows, outputs, inputs, groups: many tiles with a rest in each direction, one of everything, less than a stage, and
/// as many steps as some kernels have stages.
const SHAPES: [[usize; 4]; 5] = [
    [333, 600, 520, 1],
    [1, 8, 8, 1],
    [70, 248, 72, 2],
    [192, 192, 320, 1],
    [130, 104, 1032, 2],
];

const HEAD: usize = 32;
const PART: usize = 64;
const ROTATED: u32 = 0b01_1010_1101;
/// Elements behind each row, which no kernel may touch.
const GAP: usize = 8;

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

/// Numbers that binary16 holds.
fn halves(seed: u32, count: usize, scale: f32) -> Vec<f16> {
    let values = noise(seed, count);
    values
        .into_iter()
        .map(|v| f16::from_f32(scale * v))
        .collect()
}

/// A layer's inputs on the CPU, rows of `a` and `add` with their gaps.
struct Layer {
    shape: [usize; 4],
    a: Vec<f16>,
    weight: Vec<f16>,
    bias: Vec<f32>,
    add: Vec<f32>,
    table: Vec<f32>,
    tokens: usize,
    /// Products with the bias, groups × rows × outputs.
    sums: Vec<f64>,
}

impl Layer {
    fn new(shape: [usize; 4], seed: u32) -> Self {
        let [rows, outputs, inputs, groups] = shape;
        let scale = (3.0 / inputs as f32).sqrt();
        let tokens = rows.div_ceil(2);
        let mut layer = Self {
            shape,
            a: halves(seed, groups * rows * (inputs + GAP), 1.0),
            weight: halves(seed + 1, groups * outputs * inputs, scale),
            bias: noise(seed + 2, groups * outputs),
            add: noise(seed + 3, groups * rows * (outputs + GAP)),
            // Not turns, but any numbers.
            table: noise(seed + 4, tokens * HEAD),
            tokens,
            sums: Vec::new(),
        };
        for group in 0..groups {
            for row in 0..rows {
                let from = (group * rows + row) * (inputs + GAP);
                let a: Vec<f64> = layer.a[from..from + inputs]
                    .iter()
                    .map(|v| v.to_f64())
                    .collect();
                for output in 0..outputs {
                    let of = group * outputs + output;
                    let weight = &layer.weight[of * inputs..(of + 1) * inputs];
                    let products = a.iter().zip(weight).map(|(a, w)| a * w.to_f64());
                    let sum = products.sum::<f64>() + f64::from(layer.bias[of]);
                    layer.sums.push(sum);
                }
            }
        }
        layer
    }

    /// What output `at` of [`Layer::sums`] becomes.
    fn finished(&self, finish: Finish, at: usize) -> f64 {
        let [rows, outputs, ..] = self.shape;
        let (sum, output, row) = (self.sums[at], at % outputs, at / outputs);
        match finish {
            Finish::Plain => sum,
            Finish::Activated => gelu(sum),
            Finish::Positive => sum.max(0.0),
            Finish::Added => sum + f64::from(self.add[row * (outputs + GAP) + output]),
            Finish::Turned if ROTATED >> (output / PART) & 1 == 0 => sum,
            Finish::Turned => {
                let token = row % rows % self.tokens;
                let pair = token * HEAD + output / 2 * 2 % HEAD;
                let [cosine, sine] = [self.table[pair], self.table[pair + 1]].map(f64::from);
                match output % 2 {
                    0 => sum * cosine - self.sums[at + 1] * sine,
                    _ => sum * cosine + self.sums[at - 1] * sine,
                }
            }
        }
    }
}

/// Runs a kernel on a layer and compares.
fn check(context: &Context, kind: (&'static str, usize, usize, usize, usize), layer: &Layer) {
    let (name, tile_rows, tile_outputs, stages, parts) = kind;
    let [rows, outputs, inputs, groups] = layer.shape;
    let (a_stride, stride) = (inputs + GAP, outputs + GAP);
    let kernel = context.kernel(name).expect("in the program");
    let stream = context.stream(Priority::High).expect("a stream");
    let threads = tile_rows * 2
        + if tile_rows < 192 || tile_outputs <= 128 {
            32
        } else {
            0
        };
    let shared_bytes = stages * ((tile_rows + tile_outputs) * 128 + 16)
        + (tile_outputs + (parts - 1) * tile_rows / 2 * tile_outputs) * 4;
    kernel
        .allow_shared_bytes(shared_bytes as u32)
        .expect("as much as there is");

    let a = buffer::<f16>(context, layer.a.len());
    let weight = buffer::<f16>(context, layer.weight.len());
    let bias = buffer::<f32>(context, layer.bias.len());
    let add = buffer::<f32>(context, layer.add.len());
    let table = buffer::<f32>(context, layer.table.len());
    stream.write(&layer.a, a.all()).expect("written");
    stream.write(&layer.weight, weight.all()).expect("written");
    stream.write(&layer.bias, bias.all()).expect("written");
    stream.write(&layer.add, add.all()).expect("written");
    stream.write(&layer.table, table.all()).expect("written");
    let map = |address, extents, strides, rows: usize| {
        TensorMap::new(context, address, extents, strides, [rows as u32, 1]).expect("a map")
    };
    let a_map = map(
        a.all().address(),
        [inputs, rows, groups],
        [1, a_stride, rows * a_stride],
        tile_rows,
    );
    let weight_map = map(
        weight.all().address(),
        [inputs, outputs, groups],
        [1, inputs, inputs * outputs],
        tile_outputs,
    );
    let grid = Grid {
        blocks: (
            rows.div_ceil(tile_rows) as u32,
            outputs.div_ceil(tile_outputs) as u32,
            (groups * parts) as u32,
        ),
        threads: (threads as u32, 1, 1),
        shared_bytes: shared_bytes as u32,
    };
    let extras = Extras {
        cluster: (1, 1, parts as u32),
        early: false,
    };
    for finish in FINISHES {
        let what = format!("{name}, {:?}, {finish:?}", layer.shape);
        let single = finish == Finish::Added;
        // Wide enough for either kind of number.
        let out = buffer::<f32>(context, groups * rows * stride);
        let out_half = buffer::<f16>(context, groups * rows * stride);
        stream.fill(out.all(), 0x11).expect("filled");
        stream.fill(out_half.all(), 0x11).expect("filled");
        let args = LinearArgs {
            a: a.all().address(),
            weight: weight.all().address(),
            bias: bias.all().address(),
            rotary: match finish {
                Finish::Turned => table.all().address(),
                _ => 0,
            },
            first: if single { add.all().address() } else { 0 },
            out: match single {
                true => out.all().address(),
                false => out_half.all().address(),
            },
            groups: [
                rows * a_stride,
                inputs * outputs,
                outputs,
                rows * stride,
                0,
                rows * stride,
            ]
            .map(|n| n as i64),
            rows: rows as i32,
            outputs: outputs as i32,
            inputs: inputs as i32,
            a_stride: a_stride as i32,
            out_stride: stride as i32,
            add_stride: stride as i32,
            patch: 1,
            tokens: layer.tokens as i32,
            head: HEAD as i32,
            part: PART as i32,
            rotated: ROTATED,
            flags: match finish {
                Finish::Plain | Finish::Turned => 0,
                Finish::Activated => GELU,
                Finish::Added => OUT_F32 | ADD_F32,
                Finish::Positive => RELU,
            },
            ..LinearArgs::default()
        };
        // SAFETY: all buffers have as many elements as the arguments say, and outlive the run.
        unsafe { kernel.launch_with(&stream, grid, extras, (args, [0i32; 4], a_map, weight_map)) }
            .expect("launched");
        let found: Vec<f64> = match single {
            true => {
                let found = stream.read_vec(out.all()).expect("read");
                found.into_iter().map(f64::from).collect()
            }
            false => {
                let found = stream.read_vec(out_half.all()).expect("read");
                found.into_iter().map(f64::from).collect()
            }
        };
        let untouched = match single {
            true => f64::from(f32::from_bits(0x1111_1111)),
            false => f16::from_bits(0x1111).to_f64(),
        };
        for (row, found) in found.chunks_exact(stride).enumerate() {
            for (output, &found) in found[..outputs].iter().enumerate() {
                let expected = layer.finished(finish, row * outputs + output);
                // Half of binary16's last place; sums in binary32; the error function's approximation.
                let rounding = if single { 0.0 } else { expected.abs() / 2048.0 };
                assert!(
                    (found - expected).abs() <= rounding + 2e-5,
                    "{what}: row {row}, output {output}: {found} instead of {expected}"
                );
            }
            assert!(
                found[outputs..].iter().all(|&v| v == untouched),
                "{what}: wrote behind row {row}"
            );
        }
    }
}

#[test]
fn linear_layers_of_any_shape_are_near_their_sums_in_binary64() {
    let Some(_gpu) = cuda() else { return };
    let context = Context::open(0, &KERNELS).expect("the GPU");
    for (seed, shape) in SHAPES.into_iter().enumerate() {
        let layer = Layer::new(shape, 10 * seed as u32);
        for kind in KINDS {
            match context.kernel(kind.0) {
                // Code for compute capability 9.0 alone.
                Err(CudaError::NoKernel { .. }) => return,
                other => drop(other.expect("loaded")),
            }
            check(&context, kind, &layer);
        }
    }
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
