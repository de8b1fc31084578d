//! Relocation of dead rows.

use super::arguments::Pool;
use super::buffers::SplatBuffers;
use super::sort::{Scratch, Sorter};
use crate::compute::cuda::small;
use crate::compute::splat::constants::SCAN_TILE;
use crate::compute::splat::device::{RelocateRules, Relocated};
use crate::compute::splat::rng::Purpose;
use crate::gpu::{Context, CudaError, DeviceBuffer, DevicePointer, Grid, Kernel, Stream};

/// Threads of a block; must match `splat_relocate.cu`.
const THREADS: u32 = 256;
/// Threads that copy a row.
const WARP: usize = 32;

/// The kernels of relocation.
pub(super) struct Relocator {
    weigh: Kernel,
    dead: Kernel,
    draw: Kernel,
    share: Kernel,
    copy: Kernel,
    sorter: Sorter,
}

/// A pool's rows.
#[derive(Clone, Copy)]
struct Rows {
    pool: Pool,
    rest: u32,
    rows: u64,
}

impl Relocator {
    pub(super) fn new(context: &Context) -> Result<Self, CudaError> {
        Ok(Self {
            weigh: context.kernel("ms_splat_relocate_weigh")?,
            dead: context.kernel("ms_splat_relocate_dead")?,
            draw: context.kernel("ms_splat_relocate_draw")?,
            share: context.kernel("ms_splat_relocate_share")?,
            copy: context.kernel("ms_splat_relocate_copy")?,
            sorter: Sorter::new(context)?,
        })
    }

    /// Moves dead rows onto live ones and adds rows, each at most as many as a view's buffers hold. The statistics are
    /// used up; the caller clears them. Waits.
    pub(super) fn relocate(
        &self,
        stream: &Stream,
        b: &SplatBuffers,
        (pool, rest): (Pool, u32),
        (rows, capacity): (u64, u64),
        rules: &RelocateRules,
    ) -> Result<Relocated, CudaError> {
        let all = Rows { pool, rest, rows };
        let room = b.entries.keys[0].len().min(b.visible.row.len()) as u64;
        let unchanged = Relocated {
            moved: 0,
            added: 0,
            rows,
        };
        if rows == 0 {
            return Ok(unchanged);
        }
        let list = &b.visible.row;
        let scan = Scan::new(stream, b, rows)?;
        let arguments = (
            pool,
            rows,
            rules.logit_dead,
            small("dead rows", room as usize)?,
            scan.words,
            scan.ticket,
            scan.total,
            list.pointer(),
        );
        // SAFETY: the pool has `rows` rows, there is a word for each block, and the list has the room that it says.
        unsafe { (self.dead).launch(stream, Grid::blocks(scan.tiles, THREADS), arguments)? };
        let dead = scan.total(stream, b)?.min(room);
        let moved = self.fill(stream, b, all, (dead, Some(list)), rules, Purpose::Move)?;
        let grown = (rows as f64 * (1.0 + f64::from(rules.growth))).floor() as u64;
        let wanted = (grown.clamp(rows, capacity) - rows).min(room);
        let added = self.fill(stream, b, all, (wanted, None), rules, Purpose::Add)?;
        Ok(Relocated {
            moved,
            added,
            rows: rows + added,
        })
    }

    /// Fills slots with copies of rows drawn by their opacity. Returns how many: none if no row is alive.
    fn fill(
        &self,
        stream: &Stream,
        b: &SplatBuffers,
        Rows { pool, rest, rows }: Rows,
        (slots, list): (u64, Option<&DeviceBuffer<u32>>),
        rules: &RelocateRules,
        purpose: Purpose,
    ) -> Result<u64, CudaError> {
        if slots == 0 {
            return Ok(0);
        }
        let scan = Scan::new(stream, b, rows)?;
        let arguments = (
            pool,
            rows,
            rules.logit_dead,
            scan.words,
            scan.ticket,
            scan.total,
        );
        // SAFETY: the pool has `rows` rows, and there is a word for each block.
        unsafe { (self.weigh).launch(stream, Grid::blocks(scan.tiles, THREADS), arguments)? };
        let total = scan.total(stream, b)?;
        if total == 0 {
            return Ok(0);
        }
        let n = slots as usize;
        let count = small("slots of a relocation", n)?;
        let [keys, values] = [&b.entries.keys, &b.entries.values];
        let arguments = (
            pool,
            rows,
            total,
            rules.seed,
            rules.step,
            purpose as u32,
            count,
            keys[0].slice(0..n)?.pointer(),
            values[0].slice(0..n)?.pointer(),
        );
        // SAFETY: there is room for that many pairs.
        unsafe { (self.draw).launch(stream, Grid::over(n, THREADS), arguments)? };
        let bits = u64::BITS - rows.leading_zeros();
        let scratch = Scratch {
            words: &b.sort_words,
            counts: &b.sort_counts,
            ticket: &b.ticket,
        };
        let at = (self.sorter).sort(stream, &b.entries, n, bits, false, &scratch)?;
        let (sources, slots_of) = (keys[at].pointer(), values[at].pointer());
        let arguments = (pool, rest, sources, count);
        let list = list.map_or(DevicePointer::NULL, DeviceBuffer::pointer);
        // SAFETY: sources are live rows, slots dead ones or rows behind the last within the capacity.
        unsafe {
            (self.share).launch(stream, Grid::over(n, THREADS), arguments)?;
            let arguments = (pool, rest, sources, slots_of, count, list, rows);
            (self.copy).launch(stream, Grid::over(n * WARP, THREADS), arguments)?;
        }
        Ok(slots)
    }
}

/// A scan over rows, its scratch cleared.
struct Scan {
    tiles: u32,
    words: DevicePointer<u64>,
    ticket: DevicePointer<u32>,
    total: DevicePointer<u64>,
}

impl Scan {
    fn new(stream: &Stream, b: &SplatBuffers, rows: u64) -> Result<Self, CudaError> {
        let tiles = small("blocks of a scan", rows.div_ceil(SCAN_TILE) as usize)?;
        let words = b.words.slice(0..tiles as usize)?;
        stream.fill(words, 0)?;
        stream.fill(b.ticket.all(), 0)?;
        stream.fill(b.view_counts.slice(0..1)?, 0)?;
        Ok(Self {
            tiles,
            words: words.pointer(),
            ticket: b.ticket.pointer(),
            total: b.view_counts.pointer(),
        })
    }

    /// Waits.
    fn total(&self, stream: &Stream, b: &SplatBuffers) -> Result<u64, CudaError> {
        let mut total = [0];
        stream.read(b.view_counts.slice(0..1)?, &mut total)?;
        Ok(total[0])
    }
}
