//! The kernels of linear layers by themselves, on shapes that no network here has, against sums in binary64.

use crate::{buffer, cuda};
use half::{bf16, f16};
use mast3r_slam::gpu::{
    Context, CudaError, Element, Extras, Grid, Half, Kernel, Priority, Stream, TensorMap,
};
use mast3r_slam::inference::native::KERNELS;
use mast3r_slam::inference::native::arguments::{FeedArgs, LinearArgs};
use mast3r_slam::inference::native::format::{quantised, quantised_row};
use mast3r_slam::inference::native::size::{Kind, SIZES};
use mast3r_slam::inference::native::step::Flags;
use mast3r_slam::inference::native::tile::{Block, NARROW, Quantised, SMALL, WIDE};
use mast3r_slam::network::e4m3::{from_e4m3, scale_of, to_e4m3};
use testkit::networks::noise;

/// A 16-bit number.
trait Number: Element + PartialEq {
    const HALF: Half;
    /// Bits of the mantissa.
    const MANTISSA: i32;
    /// The exponent of the smallest normal number.
    const MIN_EXPONENT: i32;
    fn from_bits(bits: u16) -> Self;
    fn bits(self) -> u16;
    fn from_f32(value: f32) -> Self;
    fn to_f64(self) -> f64;

    /// Half of the last place of a number as large as `value`.
    fn half_place(value: f64) -> f64 {
        let exponent = value.abs().log2().floor() as i32;
        f64::from(exponent.max(Self::MIN_EXPONENT) - Self::MANTISSA - 1).exp2()
    }
}

macro_rules! number {
    ($number:ty, $half:expr, $mantissa:literal, $min_exponent:literal) => {
        impl Number for $number {
            const HALF: Half = $half;
            const MANTISSA: i32 = $mantissa;
            const MIN_EXPONENT: i32 = $min_exponent;
            fn from_bits(bits: u16) -> Self {
                <$number>::from_bits(bits)
            }
            fn bits(self) -> u16 {
                self.to_bits()
            }
            fn from_f32(value: f32) -> Self {
                <$number>::from_f32(value)
            }
            fn to_f64(self) -> f64 {
                <$number>::to_f64(self)
            }
        }
    };
}
number!(f16, Half::F16, 10, -14);
number!(bf16, Half::Bf16, 7, -126);

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

fn halves<T: Number>(seed: u32, count: usize) -> Vec<T> {
    let values = noise(seed, count);
    values.into_iter().map(T::from_f32).collect()
}

/// A layer's weights as a kernel takes them.
struct Stored {
    bytes: Vec<u8>,
    /// From row to row of the weights, in numbers.
    row: usize,
    /// The outputs' factors, if there is one byte a number.
    factors: Vec<f32>,
    /// What they stand for.
    values: Vec<f64>,
}

impl Stored {
    fn halves<T: Number>(weights: &[f32], inputs: usize) -> Self {
        let halves = weights.iter().map(|&w| T::from_f32(w));
        Self {
            bytes: halves
                .clone()
                .flat_map(|h| h.bits().to_le_bytes())
                .collect(),
            row: inputs,
            factors: Vec::new(),
            values: halves.map(T::to_f64).collect(),
        }
    }

    /// E4M3 numbers with a scale for each output, as their format defines them.
    fn quantised(weights: &[f32], inputs: usize) -> Self {
        let rows = weights.chunks_exact(inputs).flat_map(|row| {
            let scale = scale_of(row);
            row.iter()
                .map(move |w| f64::from(from_e4m3(to_e4m3(w / scale))) * f64::from(scale))
        });
        let values = rows.collect();
        let (bytes, factors) = quantised(weights, inputs);
        Self {
            bytes,
            row: quantised_row(inputs),
            factors,
            values,
        }
    }
}

/// A layer's inputs on the CPU, rows of `a` and `add` with their gaps.
struct Layer<T> {
    shape: [usize; 4],
    a: Vec<T>,
    weight: Stored,
    bias: Vec<f32>,
    add: Vec<f32>,
    table: Vec<f32>,
    tokens: usize,
    /// Products with the bias, groups × rows × outputs.
    sums: Vec<f64>,
}

impl<T: Number> Layer<T> {
    fn new(shape: [usize; 4], seed: u32, store: impl Fn(&[f32], usize) -> Stored) -> Self {
        let [rows, outputs, inputs, groups] = shape;
        let scale = (3.0 / inputs as f32).sqrt();
        let mut weights = noise(seed + 1, groups * outputs * inputs);
        // Outputs of different magnitudes, also of none.
        for (output, row) in weights.chunks_exact_mut(inputs).enumerate() {
            let scale = scale * [1.0, 0.3, 0.0, 1e-3][output % 4];
            row.iter_mut().for_each(|w| *w *= scale);
        }
        let tokens = rows.div_ceil(2);
        let mut layer = Self {
            shape,
            a: halves(seed, groups * rows * (inputs + GAP)),
            weight: store(&weights, inputs),
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
                    let weight = &layer.weight.values[of * inputs..(of + 1) * inputs];
                    let products = a.iter().zip(weight).map(|(a, w)| a * w);
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

/// A kernel and how it is launched.
enum Code {
    Fed(Kernel, Kind),
    Tiles(Kernel, Block),
}

impl Code {
    /// The kernel of `fed.cuh` of this kind, if the GPU has it.
    fn fed(context: &Context, half: Half, kind: Kind) -> Option<Self> {
        let kernel = found(context, kind.name.of(half), kind.shared_bytes())?;
        Some(Self::Fed(kernel, kind))
    }

    /// A kernel of `linear.cu`, if the GPU has it.
    fn tiles(context: &Context, name: &'static str, block: Block) -> Option<Self> {
        Some(Self::Tiles(
            found(context, name, block.shared_bytes)?,
            block,
        ))
    }

    /// Enqueues a layer of these rows, outputs, inputs and groups.
    ///
    /// # Safety
    /// The arguments' buffers have as many elements as the arguments say, and outlive the run.
    unsafe fn launch(&self, stream: &Stream, half: Half, shape: [usize; 4], args: LinearArgs) {
        let [rows, outputs, inputs, groups] = shape;
        match self {
            Self::Tiles(kernel, block) => {
                let grid = Grid {
                    blocks: (
                        rows.div_ceil(block.rows) as u32,
                        outputs.div_ceil(block.outputs) as u32,
                        groups as u32,
                    ),
                    threads: (block.threads, 1, 1),
                    shared_bytes: block.shared_bytes,
                };
                // SAFETY: the caller's promise.
                unsafe { kernel.launch(stream, grid, (args,)) }.expect("launched");
            }
            Self::Fed(kernel, kind) => {
                let map = |address, extents, strides, rows: usize| {
                    let context = stream.context();
                    TensorMap::new(context, half, address, extents, strides, [rows as u32, 1])
                        .expect("a map")
                };
                let a_stride = inputs + GAP;
                let a = map(
                    args.a,
                    [inputs, rows, groups],
                    [1, a_stride, rows * a_stride],
                    kind.rows,
                );
                let weight = map(
                    args.weight,
                    [inputs, outputs, groups],
                    [1, inputs, inputs * outputs],
                    kind.outputs,
                );
                let grid = Grid {
                    blocks: (
                        rows.div_ceil(kind.rows) as u32,
                        outputs.div_ceil(kind.outputs) as u32,
                        (groups * kind.parts) as u32,
                    ),
                    threads: (kind.threads(), 1, 1),
                    shared_bytes: kind.shared_bytes(),
                };
                let extras = Extras {
                    cluster: (1, 1, kind.parts as u32),
                    early: false,
                };
                let all = (args, FeedArgs::default(), a, weight);
                // SAFETY: the caller's promise.
                unsafe { kernel.launch_with(stream, grid, extras, all) }.expect("launched");
            }
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Fed(kernel, _) | Self::Tiles(kernel, _) => kernel.name(),
        }
    }
}

/// The kernel called `name`; `None` where it is code for compute capability 9.0 alone.
fn found(context: &Context, name: &'static str, shared_bytes: u32) -> Option<Kernel> {
    match context.kernel(name) {
        Err(CudaError::NoKernel { .. }) => None,
        kernel => {
            let kernel = kernel.expect("loaded");
            kernel
                .allow_shared_bytes(shared_bytes)
                .expect("as much as there is");
            Some(kernel)
        }
    }
}

/// Runs a kernel on a layer and compares.
fn check<T: Number>(context: &Context, code: &Code, layer: &Layer<T>) {
    let [rows, outputs, inputs, groups] = layer.shape;
    let (a_stride, stride) = (inputs + GAP, outputs + GAP);
    let stream = context.stream(Priority::High).expect("a stream");
    let a = buffer::<T>(context, layer.a.len());
    let weight = buffer::<u8>(context, layer.weight.bytes.len());
    // At least one, as memory of none has no address.
    let factors = buffer::<f32>(context, layer.weight.factors.len().max(1));
    let bias = buffer::<f32>(context, layer.bias.len());
    let add = buffer::<f32>(context, layer.add.len());
    let table = buffer::<f32>(context, layer.table.len());
    stream.write(&layer.a, a.all()).expect("written");
    stream
        .write(&layer.weight.bytes, weight.all())
        .expect("written");
    if !layer.weight.factors.is_empty() {
        stream
            .write(&layer.weight.factors, factors.all())
            .expect("written");
    }
    stream.write(&layer.bias, bias.all()).expect("written");
    stream.write(&layer.add, add.all()).expect("written");
    stream.write(&layer.table, table.all()).expect("written");
    for finish in FINISHES {
        let what = format!("{}, {:?}, {finish:?}", code.name(), layer.shape);
        let single = finish == Finish::Added;
        // Wide enough for either kind of number.
        let out = buffer::<f32>(context, groups * rows * stride);
        let out_half = buffer::<T>(context, groups * rows * stride);
        stream.fill(out.all(), 0x11).expect("filled");
        stream.fill(out_half.all(), 0x11).expect("filled");
        let args = LinearArgs {
            a: a.all().address(),
            weight: weight.all().address(),
            scale: factors.all().address(),
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
                outputs * layer.weight.row,
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
                Finish::Plain | Finish::Turned => Flags::NONE,
                Finish::Activated => Flags::GELU,
                Finish::Added => Flags::OUT_F32.and(Flags::ADD_F32),
                Finish::Positive => Flags::RELU,
            }
            .bits(),
            ..LinearArgs::default()
        };
        // SAFETY: all buffers have as many elements as the arguments say, and outlive the run.
        unsafe { code.launch(&stream, T::HALF, layer.shape, args) };
        let found: Vec<f64> = match single {
            true => {
                let found = stream.read_vec(out.all()).expect("read");
                found.into_iter().map(f64::from).collect()
            }
            false => {
                let found = stream.read_vec(out_half.all()).expect("read");
                found.into_iter().map(T::to_f64).collect()
            }
        };
        let untouched = match single {
            true => f64::from(f32::from_bits(0x1111_1111)),
            false => T::from_bits(0x1111).to_f64(),
        };
        for (row, found) in found.chunks_exact(stride).enumerate() {
            for (output, &found) in found[..outputs].iter().enumerate() {
                let expected = layer.finished(finish, row * outputs + output);
                // Half of the number's last place; sums in binary32; the error function's approximation.
                let rounding = match single {
                    true => 0.0,
                    false => expected.abs() * f64::from(-T::MANTISSA - 1).exp2(),
                };
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

/// All kernels of linear layers for these numbers.
fn check_all<T: Number>(context: &Context) {
    for (seed, shape) in SHAPES.into_iter().enumerate() {
        let layer = Layer::<T>::new(shape, 10 * seed as u32, Stored::halves::<T>);
        let portable = [&SMALL, &NARROW].into_iter().chain(&WIDE);
        let tiles = portable
            .filter_map(|tile| Code::tiles(context, tile.linear().of(T::HALF), tile.block()));
        let fed = SIZES
            .into_iter()
            .filter_map(|kind| Code::fed(context, T::HALF, kind));
        let codes: Vec<Code> = tiles.chain(fed).collect();
        assert!(codes.len() >= 2);
        for code in &codes {
            check(context, code, &layer);
        }
    }
}

#[test]
fn linear_layers_of_any_shape_are_near_their_sums_in_binary64() {
    let Some(_gpu) = cuda() else { return };
    let context = Context::open(0, &KERNELS).expect("the GPU");
    check_all::<f16>(&context);
    check_all::<bf16>(&context);
}

#[test]
fn layers_with_weights_in_e4m3_are_near_their_sums_in_binary64() {
    let Some(_gpu) = cuda() else { return };
    let context = Context::open(0, &KERNELS).expect("the GPU");
    let code = Code::tiles(&context, Quantised::NAME, Quantised::BLOCK).expect("in the program");
    for (seed, shape) in SHAPES.into_iter().enumerate() {
        let layer = Layer::<f16>::new(shape, 10 * seed as u32, Stored::quantised);
        check(&context, &code, &layer);
    }
}

/// Every number of the format with 16 different neighbours, by a matrix of ones in a diagonal.
#[test]
fn every_e4m3_number_is_widened_exactly() {
    let Some(_gpu) = cuda() else { return };
    let context = Context::open(0, &KERNELS).expect("the GPU");
    let code = Code::tiles(&context, Quantised::NAME, Quantised::BLOCK).expect("in the program");
    const WIDTH: usize = 16;
    // Each row holds the greatest number, so that its scale is 1.
    let codes: Vec<u8> = (0..=0x7E).chain(0x80..=0xFE).collect();
    let rows = codes.chunks(WIDTH - 1).map(|codes| {
        let mut row = [0.0; WIDTH];
        row[0] = from_e4m3(0x7E);
        row[1..=codes.len()]
            .iter_mut()
            .zip(codes)
            .for_each(|(to, &code)| *to = from_e4m3(code));
        row
    });
    let mut rows: Vec<[f32; WIDTH]> = rows.collect();
    rows.resize(rows.len().next_multiple_of(8), [0.0; WIDTH]);
    let weights = rows.as_flattened();
    let (bytes, factors) = quantised(weights, WIDTH);
    let identity = identity::<f16>(WIDTH);
    let stream = context.stream(Priority::High).expect("a stream");
    let a = buffer::<f16>(&context, identity.len());
    let weight = buffer::<u8>(&context, bytes.len());
    let scale = buffer::<f32>(&context, factors.len());
    let out = buffer::<f32>(&context, weights.len());
    stream.write(&identity, a.all()).expect("written");
    stream.write(&bytes, weight.all()).expect("written");
    stream.write(&factors, scale.all()).expect("written");
    let args = LinearArgs {
        scale: scale.all().address(),
        ..plain(
            [WIDTH, rows.len(), WIDTH],
            [
                a.all().address(),
                weight.all().address(),
                out.all().address(),
            ],
        )
    };
    // SAFETY: all buffers have as many elements as the arguments say, and outlive the run.
    unsafe { code.launch(&stream, Half::F16, [WIDTH, rows.len(), WIDTH, 1], args) };
    let found = stream.read_vec(out.all()).expect("read");
    for (output, row) in rows.iter().enumerate() {
        for (k, &expected) in row.iter().enumerate() {
            assert_eq!(found[k * rows.len() + output], expected, "{output} {k}");
        }
    }
}

/// A matrix of ones in a diagonal.
fn identity<T: Number>(width: usize) -> Vec<T> {
    (0..width * width)
        .map(|at| T::from_f32(f32::from(u8::from(at % (width + 1) == 0))))
        .collect()
}

/// The arguments of a layer of these rows, outputs and inputs, with a binary32 output and nothing besides; addresses of
/// `a`, the weight and the output.
fn plain([rows, outputs, inputs]: [usize; 3], [a, weight, out]: [u64; 3]) -> LinearArgs {
    LinearArgs {
        a,
        weight,
        out,
        rows: rows as i32,
        outputs: outputs as i32,
        inputs: inputs as i32,
        a_stride: inputs as i32,
        out_stride: outputs as i32,
        add_stride: outputs as i32,
        patch: 1,
        part: 1,
        flags: Flags::OUT_F32.bits(),
        ..LinearArgs::default()
    }
}

/// GELU of every finite number of a kind, as the only input of a layer that leaves it as it is, and the errors.
fn gelu_of_all<T: Number>(context: &Context) -> Vec<(f64, f64, f64)> {
    const WIDTH: usize = 8;
    let block = NARROW.block();
    let code = Code::tiles(context, NARROW.linear().of(T::HALF), block).expect("in the program");
    let stream = context.stream(Priority::High).expect("a stream");
    let values: Vec<T> = (0..=u16::MAX)
        .map(T::from_bits)
        .filter(|v| v.to_f64().is_finite())
        .collect();
    let rows = values.len() / WIDTH;
    assert_eq!(rows * WIDTH, values.len());
    let identity = identity::<T>(WIDTH);
    let a = buffer::<T>(context, values.len());
    let weight = buffer::<T>(context, identity.len());
    let out = buffer::<f32>(context, values.len());
    stream.write(&values, a.all()).expect("written");
    stream.write(&identity, weight.all()).expect("written");
    let addresses = [
        a.all().address(),
        weight.all().address(),
        out.all().address(),
    ];
    let args = LinearArgs {
        flags: Flags::GELU.and(Flags::OUT_F32).bits(),
        ..plain([rows, WIDTH, WIDTH], addresses)
    };
    // SAFETY: all buffers have as many elements as the arguments say, and outlive the run.
    unsafe { code.launch(&stream, T::HALF, [rows, WIDTH, WIDTH, 1], args) };
    let found = stream.read_vec(out.all()).expect("read");
    let errors = values.iter().zip(found).map(|(x, found)| {
        let (x, found) = (x.to_f64(), f64::from(found));
        (x, found, (found - gelu(x)).abs())
    });
    errors.collect()
}

#[test]
fn gelu_is_exact_to_binary16_s_rounding() {
    let Some(_gpu) = cuda() else { return };
    let context = Context::open(0, &KERNELS).expect("the GPU");
    let mut largest = 0.0_f64;
    for (x, found, error) in gelu_of_all::<f16>(&context) {
        let expected = gelu(x);
        let half = f16::half_place(expected);
        assert!(error <= half, "gelu({x}) is {found} instead of {expected}");
        largest = largest.max(error);
    }
    println!("largest error of GELU: {largest:.2e}");
    assert!(largest < 1e-5, "{largest}");
}

/// The last place of a bfloat16 number is as small as the number: results below binary16's normal numbers have the
/// error that they have in binary16.
#[test]
fn gelu_of_bfloat16_is_exact_to_a_half_s_rounding() {
    let Some(_gpu) = cuda() else { return };
    let context = Context::open(0, &KERNELS).expect("the GPU");
    for (x, found, error) in gelu_of_all::<bf16>(&context) {
        let expected = gelu(x);
        let half = bf16::half_place(expected).max(f16::half_place(0.0));
        assert!(error <= half, "gelu({x}) is {found} instead of {expected}");
    }
}
