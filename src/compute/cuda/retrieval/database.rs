//! The keyframes' words on the device, and queries.

use super::describe::Describer;
use super::{
    Context, CudaError, DeviceArena, DeviceBuffer, GROUPS, KEPT, Kernel, MAX_HITS, PAIRS,
    RetrievalPlan, Stream,
};
use crate::compute::cuda::Grid;
use crate::compute::plan::Spec;

/// Keyframes of a block in the kernel that scores.
const KEYFRAMES_PER_BLOCK: usize = 8;

/// Words and bits by keyframe.
pub(super) struct Database {
    mark: Kernel,
    score: Kernel,
    best: Kernel,
    insert: Kernel,
    words: DeviceBuffer<u32>,
    bits: DeviceBuffer<u32>,
    counts: DeviceBuffer<u32>,
    ids: DeviceBuffer<u32>,
    slots: DeviceBuffer<u32>,
    lookup: DeviceBuffer<u16>,
    pub sums: DeviceBuffer<i64>,
    keys: DeviceBuffer<u64>,
    pub hits: DeviceBuffer<[u32; 2]>,
}

impl Database {
    pub fn buffers(plan: &RetrievalPlan) -> Vec<Spec> {
        let (n, stride) = (plan.keyframes, plan.stride());
        vec![
            Spec::of::<u32>("database words", &[n, stride]),
            Spec::of::<u32>("database bits", &[n, stride, plan.integers()]),
            Spec::of::<u32>("database counts", &[n]),
            Spec::of::<u32>("database ids", &[n]),
            Spec::of::<u32>("database slots", &[1]),
            Spec::of::<u16>("database lookup", &[plan.words]),
            Spec::of::<i64>("database sums", &[n]),
            Spec::of::<u64>("database keys", &[n]),
            Spec::of::<[u32; 2]>("database hits", &[MAX_HITS]),
        ]
    }

    pub fn new(
        context: &Context,
        plan: &RetrievalPlan,
        arena: &mut DeviceArena,
    ) -> Result<Self, CudaError> {
        let stored = plan.keyframes * plan.stride();
        Ok(Self {
            mark: context.kernel("ms_retrieval_mark")?,
            score: context.kernel("ms_retrieval_score")?,
            best: context.kernel("ms_retrieval_best")?,
            insert: context.kernel("ms_retrieval_insert")?,
            words: arena.carve("database words", stored)?,
            bits: arena.carve("database bits", stored * plan.integers())?,
            counts: arena.carve("database counts", plan.keyframes)?,
            ids: arena.carve("database ids", plan.keyframes)?,
            slots: arena.carve("database slots", 1)?,
            lookup: arena.carve("database lookup", plan.words)?,
            sums: arena.carve("database sums", plan.keyframes)?,
            keys: arena.carve("database keys", plan.keyframes)?,
            hits: arena.carve("database hits", MAX_HITS)?,
        })
    }

    pub fn clear(&self, stream: &Stream) -> Result<(), CudaError> {
        stream.fill(self.counts.all(), 0)?;
        stream.fill(self.slots.all(), 0)?;
        stream.fill(self.lookup.all(), 0)?;
        stream.fill(self.sums.all(), 0)?;
        stream.fill(self.hits.all(), 0)
    }

    pub fn forget(&self, stream: &Stream, slot: u32) -> Result<(), CudaError> {
        let slot = slot as usize;
        stream.fill(self.counts.slice(slot..slot + 1)?, 0)
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
        let words = described.groups.pointer();
        let status = described.status.pointer();
        // SAFETY: the buffers were carved for the numbers of the plan, which are those that the kernels get;
        // the query's words begin the groups.
        unsafe {
            self.mark.launch(
                stream,
                Grid::over(PAIRS, 256),
                (words, status, self.lookup.pointer()),
            )?;
            self.score.launch(
                stream,
                Grid::over(
                    plan.keyframes.next_multiple_of(KEYFRAMES_PER_BLOCK) * 32,
                    KEYFRAMES_PER_BLOCK as u32 * 32,
                ),
                (
                    self.words.pointer(),
                    self.bits.pointer(),
                    self.counts.pointer(),
                    self.ids.pointer(),
                    capacity,
                    plan.stride() as u32,
                    self.slots.pointer(),
                    self.lookup.pointer(),
                    described.query_bits.pointer(),
                    plan.dim as u32,
                    plan.integers() as u32,
                    min_score,
                    status,
                    self.sums.pointer(),
                    self.keys.pointer(),
                ),
            )?;
            self.best.launch(
                stream,
                Grid::blocks(1, 1024),
                (
                    self.keys.pointer(),
                    capacity,
                    self.slots.pointer(),
                    k.min(MAX_HITS) as u32,
                    words,
                    self.lookup.pointer(),
                    self.hits.pointer(),
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
        let stored = described.groups.slice(GROUPS..2 * GROUPS)?;
        // SAFETY: as above; the stored words begin the second half of the groups.
        unsafe {
            self.insert.launch(
                stream,
                Grid::blocks(KEPT as u32, 128),
                (
                    stored.pointer(),
                    described.stored_bits.pointer(),
                    described.status.pointer(),
                    slot,
                    id,
                    plan.keyframes as u32,
                    plan.stride() as u32,
                    plan.integers() as u32,
                    self.words.pointer(),
                    self.bits.pointer(),
                    self.counts.pointer(),
                    self.ids.pointer(),
                    self.slots.pointer(),
                ),
            )
        }
    }
}
