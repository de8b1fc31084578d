//! The place database on the device, and queries.

use super::describe::Describer;
use super::{GROUPS, KEPT, MAX_HITS, PAIRS, RetrievalPlan};
use crate::gpu::Grid;
use crate::gpu::{Carver, Context, CudaError, DeviceBuffer, DeviceSlice, Kernel, Stream};

/// Keyframes per block in the scoring kernel.
const KEYFRAMES_PER_BLOCK: usize = 8;

/// Memory of a [`Database`]: words and bits by keyframe.
pub(super) struct DatabaseBuffers {
    words: DeviceBuffer<u32>,
    bits: DeviceBuffer<u32>,
    counts: DeviceBuffer<u32>,
    ids: DeviceBuffer<u32>,
    slots: DeviceBuffer<u32>,
    lookup: DeviceBuffer<u16>,
    sums: DeviceBuffer<i64>,
    keys: DeviceBuffer<u64>,
    hits: DeviceBuffer<[u32; 2]>,
}

impl DatabaseBuffers {
    pub fn carve(c: &mut Carver<'_, '_>, plan: &RetrievalPlan) -> Result<Self, CudaError> {
        let (n, stride) = (plan.keyframes, plan.stride());
        Ok(Self {
            words: c.device("database words", &[n, stride])?,
            bits: c.device("database bits", &[n, stride, plan.integers()])?,
            counts: c.device("database counts", &[n])?,
            ids: c.device("database ids", &[n])?,
            slots: c.device("database slots", &[1])?,
            lookup: c.device("database lookup", &[plan.words])?,
            sums: c.device("database sums", &[n])?,
            keys: c.device("database keys", &[n])?,
            hits: c.device("database hits", &[MAX_HITS])?,
        })
    }
}

/// The keyframes' words, and queries.
pub(super) struct Database {
    mark: Kernel,
    score: Kernel,
    best: Kernel,
    insert: Kernel,
    buffers: DatabaseBuffers,
}

impl Database {
    pub fn new(context: &Context, buffers: DatabaseBuffers) -> Result<Self, CudaError> {
        Ok(Self {
            mark: context.kernel("ms_retrieval_mark")?,
            score: context.kernel("ms_retrieval_score")?,
            best: context.kernel("ms_retrieval_best")?,
            insert: context.kernel("ms_retrieval_insert")?,
            buffers,
        })
    }

    pub fn sums(&self) -> DeviceSlice<'_, i64> {
        self.buffers.sums.all()
    }

    pub fn hits(&self) -> DeviceSlice<'_, [u32; 2]> {
        self.buffers.hits.all()
    }

    pub fn clear(&self, stream: &Stream) -> Result<(), CudaError> {
        stream.fill(self.buffers.counts.all(), 0)?;
        stream.fill(self.buffers.slots.all(), 0)?;
        stream.fill(self.buffers.lookup.all(), 0)?;
        stream.fill(self.buffers.sums.all(), 0)?;
        stream.fill(self.buffers.hits.all(), 0)
    }

    pub fn forget(&self, stream: &Stream, slot: u32) -> Result<(), CudaError> {
        let slot = slot as usize;
        stream.fill(self.buffers.counts.slice(slot..slot + 1)?, 0)
    }

    pub fn query(
        &self,
        plan: &RetrievalPlan,
        described: &Describer,
        stream: &Stream,
        k: usize,
        min_score: f32,
    ) -> Result<(), CudaError> {
        let capacity = plan.keyframes as u32;
        let words = described.buffers.groups.pointer();
        let status = described.buffers.status.pointer();
        // SAFETY: the buffers were carved for the sizes of the plan, which are those passed to the
        // kernels; the query's words are at the start of the groups.
        unsafe {
            self.mark.launch(
                stream,
                Grid::over(PAIRS, 256),
                (words, status, self.buffers.lookup.pointer()),
            )?;
            self.score.launch(
                stream,
                Grid::over(
                    plan.keyframes.next_multiple_of(KEYFRAMES_PER_BLOCK) * 32,
                    KEYFRAMES_PER_BLOCK as u32 * 32,
                ),
                (
                    self.buffers.words.pointer(),
                    self.buffers.bits.pointer(),
                    self.buffers.counts.pointer(),
                    self.buffers.ids.pointer(),
                    capacity,
                    plan.stride() as u32,
                    self.buffers.slots.pointer(),
                    self.buffers.lookup.pointer(),
                    described.buffers.query_bits.pointer(),
                    plan.dim as u32,
                    plan.integers() as u32,
                    min_score,
                    status,
                    self.buffers.sums.pointer(),
                    self.buffers.keys.pointer(),
                ),
            )?;
            self.best.launch(
                stream,
                Grid::blocks(1, 1024),
                (
                    self.buffers.keys.pointer(),
                    capacity,
                    self.buffers.slots.pointer(),
                    k.min(MAX_HITS) as u32,
                    words,
                    self.buffers.lookup.pointer(),
                    self.buffers.hits.pointer(),
                    status,
                ),
            )
        }
    }

    pub fn insert(
        &self,
        plan: &RetrievalPlan,
        described: &Describer,
        stream: &Stream,
        slot: u32,
        id: u32,
    ) -> Result<(), CudaError> {
        let stored = described.buffers.groups.slice(GROUPS..2 * GROUPS)?;
        // SAFETY: as above; the stored words are at the start of the second half of the groups.
        unsafe {
            self.insert.launch(
                stream,
                Grid::blocks(KEPT as u32, 128),
                (
                    stored.pointer(),
                    described.buffers.stored_bits.pointer(),
                    described.buffers.status.pointer(),
                    slot,
                    id,
                    plan.keyframes as u32,
                    plan.stride() as u32,
                    plan.integers() as u32,
                    self.buffers.words.pointer(),
                    self.buffers.bits.pointer(),
                    self.buffers.counts.pointer(),
                    self.buffers.ids.pointer(),
                    self.buffers.slots.pointer(),
                ),
            )
        }
    }
}
