//! The sizes of tiles of the kernels in `fed.cuh`, and which one suits a linear layer.

use super::name::{Name, name};
use super::operand::HALF;
use super::step::Linear;
use crate::gpu::TensorMap;

/// Rows that a warpgroup multiplies.
const ROWS_OF_GROUP: usize = 64;
/// Values of the inputs in a stage.
pub(super) const DEPTH: usize = TensorMap::BOX_WIDTH as usize;
/// Bytes of a stage's two barriers.
const BARRIERS: usize = 16;
/// Linear layers with fewer inputs take about as long with any tiles, and what counts is how soon the next launch
/// starts: they have the low ones of [`SIZES`], two of whose blocks fit on a multiprocessor, as long as there are up to
/// so many blocks for each, and otherwise the square ones.
const MIN_INPUTS_OF_LARGE: usize = 512;
const LOW: usize = 0;
const SQUARE: usize = 2;
const MAX_LOW_BLOCKS: usize = 3;
/// Linear layers with at least so many inputs and at most so many outputs are split, as their tiles are few.
const MIN_INPUTS_OF_SPLIT: usize = 2048;
const MAX_OUTPUTS_OF_SPLIT: usize = 1536;

/// Kernels of linear layers.
pub const SIZES: [Kind; 10] = [
    of_rows(name!("ms_native_fed_low_64"), (64, 64), 6, 1, 3500),
    of_rows(name!("ms_native_fed_64"), (128, 64), 8, 1, 3500),
    of_rows(name!("ms_native_fed_128"), (128, 128), 6, 1, 4500),
    of_rows(name!("ms_native_fed_144"), (128, 144), 6, 1, 6500),
    of_rows(name!("ms_native_fed_192"), (128, 192), 5, 1, 7000),
    of_rows(name!("ms_native_fed_tall_48"), (192, 48), 7, 1, 6000),
    of_rows(name!("ms_native_fed_tall_192"), (192, 192), 4, 1, 9000),
    of_rows(name!("ms_native_fed_tall_240"), (192, 240), 4, 1, 12_000),
    of_rows(name!("ms_native_fed_split"), (128, 96), 7, 2, 11_000),
    of_rows(name!("ms_native_fed_tall_split"), (192, 96), 5, 2, 11_000),
];

/// A kernel of `fed.cuh`: its tiles, and what it takes.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    pub name: Name,
    /// Rows and outputs of a tile.
    pub rows: usize,
    pub outputs: usize,
    pub stages: usize,
    /// Blocks of a cluster that take a part of the inputs each.
    pub parts: usize,
    /// For linear layers: cycles to start and to finish a tile.
    rest: usize,
}

const fn of_rows(
    name: Name,
    (rows, outputs): (usize, usize),
    stages: usize,
    parts: usize,
    rest: usize,
) -> Kind {
    Kind {
        rest,
        ..kind(name, rows, outputs, stages, parts)
    }
}

pub(super) const fn kind(
    name: Name,
    rows: usize,
    outputs: usize,
    stages: usize,
    parts: usize,
) -> Kind {
    Kind {
        name,
        rows,
        outputs,
        stages,
        parts,
        rest: 0,
    }
}

impl Kind {
    /// As in `fed.cuh`: with a warp that fetches, unless its registers are needed.
    pub fn threads(&self) -> u32 {
        let groups = self.rows / ROWS_OF_GROUP;
        let fetcher = groups < 3 || self.outputs <= 128;
        (groups * 128 + if fetcher { 32 } else { 0 }) as u32
    }

    pub fn shared_bytes(&self) -> u32 {
        let stage = (self.rows + self.outputs) * DEPTH * HALF + BARRIERS;
        // The bias; of halves, the other block's sums of half of the rows.
        let halves = (self.parts - 1) * self.rows / 2 * self.outputs;
        (self.stages * stage + (self.outputs + halves) * size_of::<f32>()) as u32
    }

    /// Blocks of a layer of rows.
    fn blocks(&self, layer: &Linear) -> usize {
        let tiles = layer.rows.div_ceil(self.rows) * layer.outputs.div_ceil(self.outputs);
        tiles * layer.groups * self.parts
    }

    /// About how long a layer of rows takes, in cycles.
    fn cycles(&self, layer: &Linear, multiprocessors: usize) -> usize {
        // Measured on an H200: between two stages.
        const STEP: usize = 140;
        let blocks = self.blocks(layer).div_ceil(multiprocessors);
        let steps = layer.inputs.div_ceil(DEPTH).div_ceil(self.parts);
        // The tensor cores compute 2048 products at once.
        let step = self.rows * self.outputs / 32 + STEP;
        blocks * (steps * step + self.rest)
    }
}

/// Which of [`SIZES`] a linear layer has: of those that suit it number `only`, or the one that is expected to be the
/// fastest.
pub(super) fn size(layer: &Linear, multiprocessors: usize, only: Option<usize>) -> usize {
    let split = layer.inputs >= MIN_INPUTS_OF_SPLIT && layer.outputs <= MAX_OUTPUTS_OF_SPLIT;
    let suits = |size: &usize| (SIZES[*size].parts > 1) == split;
    let mut suitable = (0..SIZES.len()).filter(suits);
    let size = match only {
        Some(only) => {
            let count = suitable.clone().count().max(1);
            suitable.nth(only % count)
        }
        None if layer.inputs < MIN_INPUTS_OF_LARGE => {
            return match SIZES[LOW].blocks(layer) <= MAX_LOW_BLOCKS * multiprocessors {
                true => LOW,
                false => SQUARE,
            };
        }
        None => suitable.min_by_key(|&size| SIZES[size].cycles(layer, multiprocessors)),
    };
    size.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{Linear, SIZES, name, size};
    use crate::inference::native::layout::{Layout, Rows};
    use crate::inference::native::operand::Operand;
    use crate::inference::native::weights::StoredLayer;

    fn linear(groups: usize, rows: usize, outputs: usize, inputs: usize) -> Linear {
        let a = Rows {
            at: Operand::None,
            stride: inputs,
            group: rows * inputs,
        };
        let layer = StoredLayer {
            weight: 0,
            scale: None,
            bias: 0,
            outputs,
            inputs,
        };
        Layout::linear(a, layer, rows, groups, Operand::None)
    }

    /// The official network's layers at 512 × 384 pixels, on the multiprocessors of an H200.
    #[test]
    fn tiles_of_large_layers_are_computed_in_one_round() {
        for (layer, name) in [
            (linear(1, 768, 3072, 1024), name!("ms_native_fed_144")),
            (linear(1, 768, 4096, 1024), name!("ms_native_fed_192")),
            (linear(1, 768, 1024, 4096), name!("ms_native_fed_split")),
            (linear(2, 768, 3840, 768), name!("ms_native_fed_tall_240")),
            (linear(2, 768, 3072, 768), name!("ms_native_fed_tall_192")),
            (linear(2, 768, 768, 3072), name!("ms_native_fed_tall_split")),
        ] {
            let kind = &SIZES[size(&layer, 132, None)];
            assert_eq!(kind.name, name);
            assert!(kind.blocks(&layer) <= 132, "{name:?}");
        }
    }

    /// The bundled network's layers at 512 × 384 pixels: of an image, of a pair, and of four edges both ways.
    #[test]
    fn layers_with_few_inputs_have_low_tiles_unless_they_have_many() {
        for (layer, name) in [
            (linear(1, 768, 192, 768), name!("ms_native_fed_low_64")),
            (linear(1, 768, 576, 192), name!("ms_native_fed_low_64")),
            (linear(1, 768, 192, 384), name!("ms_native_fed_low_64")),
            (linear(2, 768, 960, 192), name!("ms_native_fed_low_64")),
            (linear(2, 768, 6400, 240), name!("ms_native_fed_128")),
            (linear(2, 6144, 192, 192), name!("ms_native_fed_128")),
        ] {
            assert_eq!(SIZES[size(&layer, 132, None)].name, name);
        }
    }

    /// As many as an Orin has: more than three low blocks for each, and 88 blocks of 192 × 192 in six rounds.
    #[test]
    fn sixteen_multiprocessors_have_larger_tiles() {
        for (layer, name) in [
            (linear(1, 768, 192, 192), name!("ms_native_fed_low_64")),
            (linear(1, 768, 576, 192), name!("ms_native_fed_128")),
            (linear(2, 768, 192, 192), name!("ms_native_fed_128")),
            (linear(1, 768, 4096, 1024), name!("ms_native_fed_tall_192")),
        ] {
            assert_eq!(SIZES[size(&layer, 16, None)].name, name);
        }
    }

    /// Halves are added up at the end, which other inputs' order of adding is not.
    #[test]
    fn inputs_are_split_whatever_the_number_of_rows() {
        for (outputs, inputs, split) in [(768, 3072, true), (6400, 7168, false), (768, 768, false)]
        {
            for rows in [1, 15, 768, 1536, 6144, 100_000] {
                for only in [None, Some(0), Some(1), Some(7)] {
                    let kind = &SIZES[size(&linear(2, rows, outputs, inputs), 132, only)];
                    assert_eq!(kind.parts > 1, split, "{rows} x {outputs} x {inputs}");
                }
            }
        }
    }

    /// The hardware's limits: shared memory of a block, rows of a box.
    #[test]
    fn kernels_fit_a_multiprocessor() {
        for kind in SIZES {
            assert!(kind.shared_bytes() + 1024 <= 228 << 10, "{kind:?}");
            assert!(kind.rows <= 256 && kind.outputs <= 256, "{kind:?}");
            assert!(kind.threads() <= 1024, "{kind:?}");
        }
    }
}
