//! Refinement within the pool.

use super::arguments::Pool;
use super::buffers::{BINS, SplatBuffers};
use crate::compute::cuda::small;
use crate::compute::splat::SplatError;
use crate::compute::splat::constants::SCAN_TILE;
use crate::compute::splat::device::{Counters, RefineRules};
use crate::gpu::{Context, CudaError, Grid, Kernel, Stream};

/// Threads of a block; must match `splat_refine.cu`.
const THREADS: u32 = 256;
/// Blocks for each multiprocessor where a block takes many rows.
const WAVES: u32 = 8;
/// Passes of the selection of rows that may grow.
const PASSES: u32 = 6;
/// Words of the counters: holes, duplicates, splits, both of the second pass, rows still to choose, cut, ticket.
type Words = [u64; 8];
/// The upper half of the last word, which no kernel changes.
const CANARY: u64 = (Counters::CANARY as u64) << 32;

/// The kernels of refinement.
pub(super) struct Refiner {
    count: Kernel,
    histogram: Kernel,
    pick: Kernel,
    number: Kernel,
    apply: Kernel,
    close: Kernel,
    blocks: u32,
}

/// A gradient and a row: rows with a larger gradient may grow, or this one and at most this row.
fn cut(key: u32, row: u32) -> u64 {
    u64::from(row) << 32 | u64::from(key)
}

impl Refiner {
    pub(super) fn new(context: &Context) -> Result<Self, CudaError> {
        Ok(Self {
            count: context.kernel("ms_splat_refine_count")?,
            histogram: context.kernel("ms_splat_refine_histogram")?,
            pick: context.kernel("ms_splat_refine_pick")?,
            number: context.kernel("ms_splat_refine_number")?,
            apply: context.kernel("ms_splat_refine_apply")?,
            close: context.kernel("ms_splat_refine_close")?,
            blocks: context.info().multiprocessors.max(1) * WAVES,
        })
    }

    /// What a refinement would do. The map is as it was; the cut is on the device. Waits.
    fn prepare(
        &self,
        stream: &Stream,
        b: &SplatBuffers,
        (pool, rows, capacity): (Pool, u64, u64),
        rules: &RefineRules,
    ) -> Result<Counters, SplatError> {
        let grid = Grid::blocks(self.blocks, THREADS);
        let counters = b.counters.pointer();
        let mut words: Words = [0, 0, 0, 0, 0, 0, cut(0, u32::MAX), CANARY];
        stream.write(&words, b.counters.all())?;
        // SAFETY: the pool has `rows` rows; the counters are eight words.
        unsafe { (self.count).launch(stream, grid, (pool, rows, *rules, counters))? };
        stream.read(b.counters.all(), &mut words)?;
        let [holes, duplicates, splits, ..] = words;
        expect("the counters' canary", CANARY >> 32, words[7] >> 32)?;
        let extras = duplicates + splits;
        expect("rows counted", 0, (holes + extras).saturating_sub(rows))?;
        let granted = extras.min(capacity - rows + holes);
        let mut cutoff = 0;
        if granted == 0 && extras > 0 {
            words[6] = cut(u32::MAX, 0);
            cutoff = u64::MAX;
            stream.write(&words, b.counters.all())?;
        } else if granted < extras {
            words[5] = granted;
            words[6] = cut(0, 0);
            stream.write(&words, b.counters.all())?;
            let bins = b.bins.all().at_least("bins", BINS)?.pointer();
            stream.fill(b.bins.all(), 0)?;
            for pass in 0..PASSES {
                let arguments = (pool, rows, *rules, pass, counters, bins);
                // SAFETY: as above, and there are as many bins as the kernel expects.
                unsafe {
                    self.histogram.launch(stream, grid, arguments)?;
                    let arguments = (pass, counters, bins);
                    (self.pick).launch(stream, Grid::blocks(1, THREADS), arguments)?;
                }
            }
            stream.read(b.counters.all(), &mut words)?;
            let (key, row) = (words[6] as u32, (words[6] >> 32) as u32);
            cutoff = u64::from(key) << 32 | u64::from(u32::MAX - row);
        }
        Ok(Counters {
            version: Counters::VERSION,
            canary: Counters::CANARY,
            rows,
            holes,
            extras,
            granted,
            after: rows - holes + granted,
            cutoff,
            epoch: 0,
        })
    }

    /// Refines `rows` rows of a pool with room for `capacity`. The statistics are used up; the caller clears them.
    /// Waits.
    ///
    /// # Errors
    /// [`SplatError::Corrupt`] if both passes disagree; parameters are untouched then.
    pub(super) fn refine(
        &self,
        stream: &Stream,
        b: &SplatBuffers,
        (pool, rest): (Pool, u32),
        (rows, capacity): (u64, u64),
        rules: &RefineRules,
    ) -> Result<Counters, SplatError> {
        let tiles = small("blocks of a scan", rows.div_ceil(SCAN_TILE) as usize)?;
        let counters = self.prepare(stream, b, (pool, rows, capacity), rules)?;
        if tiles == 0 {
            return Ok(counters);
        }
        let on_device = b.counters.pointer();
        let (holes, granted) = (counters.holes, counters.granted);
        let words = b.words.slice(0..tiles as usize)?;
        stream.fill(words, 0)?;
        let grid = Grid::blocks(self.blocks, THREADS);
        // SAFETY: the pool has `rows` rows and room for `capacity`, and there is a word for each block of the scan.
        unsafe {
            let arguments = (pool, rows, *rules, words.pointer(), on_device);
            (self.number).launch(stream, Grid::blocks(tiles, THREADS), arguments)?;
            let arguments = (
                pool, rest, rows, holes, granted, capacity, *rules, on_device,
            );
            self.apply.launch(stream, grid, arguments)?;
            if granted < holes {
                let arguments = (pool, rest, rows, holes, granted, on_device);
                self.close.launch(stream, grid, arguments)?;
            }
        }
        let mut found: Words = [0; 8];
        stream.read(b.counters.all(), &mut found)?;
        expect("pruned rows of a refinement", holes, found[3])?;
        expect("new rows of a refinement", granted, found[4])?;
        Ok(counters)
    }
}

fn expect(what: &'static str, expected: u64, found: u64) -> Result<(), SplatError> {
    if expected == found {
        return Ok(());
    }
    Err(SplatError::Corrupt {
        what,
        expected,
        found,
    })
}
