//! The sizes of tiles that linear layers and convolutions are cut into, and which one suits a layer.

use super::operand::HALF;
use super::step::{Flags, Form, Linear};
use crate::gpu::{Context, CudaError, Kernel};

/// One size of a linear layer's tiles.
pub(super) struct Tile {
    pub(super) rows: usize,
    pub(super) outputs: usize,
    pub(super) threads: u32,
    pub(super) shared_bytes: u32,
    /// Nanoseconds for each of a layer's inputs: of one block on every multiprocessor, and of each further one.
    /// Measured on an H200.
    cost: [f64; 2],
    linear: Kernel,
    convolution: Kernel,
    /// A convolution of `max(x, 0)`.
    of_positive: Kernel,
}

/// What [`Tile::new`] is told of a tile; see [`Tile`].
pub(super) struct TileKind {
    rows: usize,
    outputs: usize,
    threads: u32,
    stages: usize,
    cost: [f64; 2],
    /// Names of the kernels.
    linear: &'static str,
    convolution: &'static str,
    of_positive: &'static str,
}

/// For few outputs.
pub(super) const NARROW: TileKind = TileKind {
    rows: 128,
    outputs: 32,
    threads: 128,
    stages: 3,
    cost: [6.7, 4.4],
    linear: "ms_native_linear_narrow_f16",
    convolution: "ms_native_conv_narrow_f16",
    of_positive: "ms_native_conv_narrow_f16",
};

pub(super) const SMALL: TileKind = TileKind {
    rows: 64,
    outputs: 64,
    threads: 128,
    stages: 3,
    cost: [6.7, 4.4],
    linear: "ms_native_linear_small_f16",
    convolution: "ms_native_conv_small_f16",
    of_positive: "ms_native_conv_small_f16",
};

/// Only in code for compute capability 9.0.
pub(super) const WIDE: [TileKind; 2] = [
    TileKind {
        rows: 128,
        outputs: 128,
        threads: 256,
        stages: 4,
        cost: [8.2, 9.7],
        linear: "ms_native_linear_wide_128_f16",
        convolution: "ms_native_conv_wide_128_f16",
        of_positive: "ms_native_conv_wide_relu_128_f16",
    },
    TileKind {
        rows: 128,
        outputs: 64,
        threads: 256,
        stages: 4,
        cost: [7.4, 6.1],
        linear: "ms_native_linear_wide_64_f16",
        convolution: "ms_native_conv_wide_64_f16",
        of_positive: "ms_native_conv_wide_relu_64_f16",
    },
];

impl Tile {
    /// Values of the inputs in a stage, as in `linear.cu`.
    const DEPTH: usize = 64;

    pub(super) fn new(context: &Context, kind: &TileKind) -> Result<Self, CudaError> {
        let bytes = kind.stages * (kind.rows + kind.outputs) * Self::DEPTH * HALF;
        let tile = Self {
            rows: kind.rows,
            outputs: kind.outputs,
            threads: kind.threads,
            shared_bytes: bytes as u32,
            cost: kind.cost,
            linear: context.kernel(kind.linear)?,
            convolution: context.kernel(kind.convolution)?,
            of_positive: context.kernel(kind.of_positive)?,
        };
        for kernel in [&tile.linear, &tile.convolution, &tile.of_positive] {
            kernel.allow_shared_bytes(tile.shared_bytes)?;
        }
        Ok(tile)
    }

    /// About how long a layer takes, in nanoseconds.
    pub(super) fn time(&self, layer: &Linear, multiprocessors: u32) -> f64 {
        let blocks =
            layer.rows.div_ceil(self.rows) * layer.outputs.div_ceil(self.outputs) * layer.groups;
        let rounds = blocks.div_ceil(multiprocessors.max(1) as usize);
        let [first, further] = self.cost;
        layer.inputs as f64 * (first + further * (rounds.max(1) - 1) as f64)
    }

    pub(super) fn kernel(&self, layer: &Linear) -> &Kernel {
        match layer.form {
            Form::Convolution(_) if layer.flags.contains(Flags::RELU_INPUT) => &self.of_positive,
            Form::Convolution(_) => &self.convolution,
            Form::Rows | Form::Patches { .. } => &self.linear,
        }
    }
}
