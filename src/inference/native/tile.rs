//! The sizes of tiles that linear layers and convolutions are cut into, and which one suits a layer.

use super::name::{Name, name};
use super::operand::HALF;
use super::step::{Flags, Form, Linear};
use crate::gpu::{Context, CudaError, Grid, Half, Kernel};

/// A block of a kernel, which computes a tile.
#[derive(Debug, Clone, Copy)]
pub struct Block {
    pub rows: usize,
    pub outputs: usize,
    pub threads: u32,
    pub shared_bytes: u32,
}

impl Block {
    /// The blocks of a layer.
    pub(super) fn grid(&self, layer: &Linear) -> Grid {
        Grid {
            blocks: (
                layer.rows.div_ceil(self.rows) as u32,
                layer.outputs.div_ceil(self.outputs) as u32,
                layer.groups as u32,
            ),
            threads: (self.threads, 1, 1),
            shared_bytes: self.shared_bytes,
        }
    }
}

/// One size of a linear layer's tiles.
pub(super) struct Tile {
    pub(super) block: Block,
    /// Nanoseconds for each of a layer's inputs: of one block on every multiprocessor, and of each further one.
    /// Measured on an H200.
    cost: [f64; 2],
    linear: Kernel,
    convolution: Kernel,
    /// A convolution of `max(x, 0)`.
    of_positive: Kernel,
}

/// What [`Tile::new`] is told of a tile; see [`Tile`].
pub struct TileKind {
    rows: usize,
    outputs: usize,
    threads: u32,
    stages: usize,
    cost: [f64; 2],
    /// Names of the kernels.
    linear: Name,
    convolution: Name,
    of_positive: Name,
}

/// For few outputs.
pub const NARROW: TileKind = TileKind {
    rows: 128,
    outputs: 32,
    threads: 128,
    stages: 3,
    cost: [6.7, 4.4],
    linear: name!("ms_native_linear_narrow"),
    convolution: name!("ms_native_conv_narrow"),
    of_positive: name!("ms_native_conv_narrow"),
};

pub const SMALL: TileKind = TileKind {
    rows: 64,
    outputs: 64,
    threads: 128,
    stages: 3,
    cost: [6.7, 4.4],
    linear: name!("ms_native_linear_small"),
    convolution: name!("ms_native_conv_small"),
    of_positive: name!("ms_native_conv_small"),
};

/// Only in code for compute capability 9.0.
pub const WIDE: [TileKind; 2] = [
    TileKind {
        rows: 128,
        outputs: 128,
        threads: 256,
        stages: 4,
        cost: [8.2, 9.7],
        linear: name!("ms_native_linear_wide_128"),
        convolution: name!("ms_native_conv_wide_128"),
        of_positive: name!("ms_native_conv_wide_relu_128"),
    },
    TileKind {
        rows: 128,
        outputs: 64,
        threads: 256,
        stages: 4,
        cost: [7.4, 6.1],
        linear: name!("ms_native_linear_wide_64"),
        convolution: name!("ms_native_conv_wide_64"),
        of_positive: name!("ms_native_conv_wide_relu_64"),
    },
];

/// Values of the inputs in a stage, as in `linear.cu`.
const DEPTH: usize = 64;

impl TileKind {
    pub const fn block(&self) -> Block {
        Block {
            rows: self.rows,
            outputs: self.outputs,
            threads: self.threads,
            shared_bytes: (self.stages * (self.rows + self.outputs) * DEPTH * HALF) as u32,
        }
    }

    /// The kernel of linear layers.
    pub const fn linear(&self) -> Name {
        self.linear
    }

    /// Names of the kernels, some of them twice.
    #[cfg(test)]
    pub(super) const fn kernels(&self) -> [Name; 3] {
        [self.linear, self.convolution, self.of_positive]
    }
}

/// The kernel of linear layers whose weights are E4M3 numbers with a factor for each output.
pub struct Quantised {
    pub(super) kernel: Kernel,
}

impl Quantised {
    pub const NAME: &str = "ms_native_linear_small_e4m3";
    /// Two bytes for each value of the inputs, one for each weight, in four stages.
    pub const BLOCK: Block = Block {
        rows: 64,
        outputs: 64,
        threads: 128,
        shared_bytes: (4 * (2 * 64 + 64) * DEPTH) as u32,
    };

    pub(super) fn new(context: &Context) -> Result<Self, CudaError> {
        let kernel = context.kernel(Self::NAME)?;
        kernel.allow_shared_bytes(Self::BLOCK.shared_bytes)?;
        Ok(Self { kernel })
    }
}

impl Tile {
    pub(super) fn new(context: &Context, half: Half, kind: &TileKind) -> Result<Self, CudaError> {
        let tile = Self {
            block: kind.block(),
            cost: kind.cost,
            linear: context.kernel(kind.linear.of(half))?,
            convolution: context.kernel(kind.convolution.of(half))?,
            of_positive: context.kernel(kind.of_positive.of(half))?,
        };
        for kernel in [&tile.linear, &tile.convolution, &tile.of_positive] {
            kernel.allow_shared_bytes(tile.block.shared_bytes)?;
        }
        Ok(tile)
    }

    /// About how long a layer takes, in nanoseconds.
    pub(super) fn time(&self, layer: &Linear, multiprocessors: u32) -> f64 {
        let Block { rows, outputs, .. } = self.block;
        let blocks = layer.rows.div_ceil(rows) * layer.outputs.div_ceil(outputs) * layer.groups;
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
