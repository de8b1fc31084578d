//! Sorting of 32-bit keys with values on the device.

use super::buffers::{DIGITS, Pair, SORT_TILE};
use crate::compute::cuda::small;
use crate::gpu::{Context, CudaError, DeviceBuffer, DevicePointer, Grid, Kernel, Stream};

/// Threads of a block; must match `splat_sort.cu`.
const THREADS: u32 = 256;
/// Blocks that count digits.
const COUNTERS: usize = 1024;
/// Bits of a digit.
const DIGIT_BITS: u32 = 8;

/// Stable radix sort.
pub(super) struct Sorter {
    count: Kernel,
    pass: Kernel,
}

/// Scratch of a sort.
pub(super) struct Scratch<'a> {
    pub(super) words: &'a DeviceBuffer<u32>,
    pub(super) counts: &'a DeviceBuffer<u32>,
    pub(super) ticket: &'a DeviceBuffer<u32>,
}

impl Sorter {
    pub(super) fn new(context: &Context) -> Result<Self, CudaError> {
        Ok(Self {
            count: context.kernel("ms_splat_sort_count")?,
            pass: context.kernel("ms_splat_sort_pass")?,
        })
    }

    /// Sorts the first `n` pairs by the lower `bits` bits of the keys, which are in the first array. With `places` the
    /// values are the places of the keys, else those in the first array. Returns which array holds the result.
    pub(super) fn sort(
        &self,
        stream: &Stream,
        pair: &Pair,
        n: usize,
        bits: u32,
        places: bool,
        scratch: &Scratch<'_>,
    ) -> Result<usize, CudaError> {
        let passes = bits.clamp(1, 32).div_ceil(DIGIT_BITS);
        let result = passes as usize % 2;
        if n == 0 {
            return Ok(result);
        }
        let tiles = n.div_ceil(SORT_TILE);
        for side in 0..2 {
            pair.keys[side].all().at_least("keys of a sort", n)?;
            pair.values[side].all().at_least("values of a sort", n)?;
        }
        let words = scratch.words.slice(0..tiles * DIGITS)?;
        let counts = scratch.counts.all();
        let counts = counts.at_least("digits of a sort", passes as usize * DIGITS)?;
        let count = small("keys of a sort", n)?;
        stream.fill(counts, 0)?;
        let arguments = (pair.keys[0].pointer(), count, passes, counts.pointer());
        let grid = Grid::blocks(tiles.min(COUNTERS) as u32, THREADS);
        // SAFETY: the lengths were checked above.
        unsafe { self.count.launch(stream, grid, arguments)? };
        for pass in 0..passes {
            let (from, to) = (pass as usize % 2, 1 - pass as usize % 2);
            let values = match places && pass == 0 {
                true => DevicePointer::NULL,
                false => pair.values[from].pointer(),
            };
            stream.fill(words, 0)?;
            stream.fill(scratch.ticket.all(), 0)?;
            let arguments = (
                pair.keys[from].pointer(),
                values,
                pair.keys[to].pointer(),
                pair.values[to].pointer(),
                count,
                pass,
                counts.pointer(),
                words.pointer(),
                scratch.ticket.pointer(),
            );
            let grid = Grid::blocks(small("blocks of a sort", tiles)?, THREADS);
            // SAFETY: the lengths were checked above.
            unsafe { self.pass.launch(stream, grid, arguments)? };
        }
        Ok(result)
    }
}
