//! Place recognition on the device: what [`crate::compute::retrieval`] does on the CPU (spec 7).
//!
//! [`Retrieval::describe`] and [`Retrieval::query`] enqueue; [`Retrieval::hits`] waits and tells; then
//! [`Retrieval::insert`] remembers the image that was described last. Given the same features the
//! whitened ones differ from the CPU's, which computes in f64, in the last bit of few; given the same
//! whitened features everything else is the same, bit for bit (ranks: on CPUs with fused
//! multiply-adds), on every run.
//!
//! `describe` and `query` can be captured: nothing that they enqueue changes from call to call but
//! what lies in device memory. [`Retrieval::insert`] names a place in the database and is enqueued afresh.

mod database;
mod describe;

use super::{
    Context, CudaError, DeviceArena, DeviceBuffer, Kernel, PinnedArena, PinnedBuffer, Stream,
};
use crate::compute::plan::Spec;
use crate::compute::retrieval::Codebook;
use database::Database;
use describe::{Describer, Model};
use std::collections::HashMap;

pub use crate::compute::retrieval::Hit as PlaceHit;
pub use describe::DeviceDescription;

/// Most features of an image that are used, padded to whole tiles; as in `retrieval.cuh`.
const KEPT: usize = 300;
const KEPT_PADDED: usize = 320;
/// Words that a feature of a query belongs to.
const NEAREST: usize = 5;
/// Words of a panel of the codebook.
const PANEL: usize = 256;
/// Components that are loaded at once.
const STEP: usize = 16;
/// Most pairs of word and feature.
const PAIRS: usize = KEPT * NEAREST;
/// Integers of one grouping of features by word.
const GROUPS: usize = 3 * PAIRS + 1;
/// Features of a tile in the search for words.
const ROW_TILE: usize = 64;

/// Most hits of a query.
pub const MAX_HITS: usize = 32;

/// Largest dimension: keeps sums of `C³` over all words of an image within 64 bits.
const MAX_DIM: usize = 1 << 14;
/// Most words: a word and a feature share 32 bits, and the last value means none.
const MAX_WORDS: usize = (1 << 23) - 1;

/// Sizes of place recognition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetrievalPlan {
    /// Tokens of an image, `T`.
    pub tokens: usize,
    /// Components of a token, `C`.
    pub dim: usize,
    /// Visual words, `K`.
    pub words: usize,
    /// Most keyframes in the database.
    pub keyframes: usize,
}

impl RetrievalPlan {
    fn padded_dim(&self) -> usize {
        self.dim.next_multiple_of(STEP)
    }

    fn padded_tokens(&self) -> usize {
        self.tokens.next_multiple_of(32)
    }

    fn padded_columns(&self) -> usize {
        self.dim.next_multiple_of(64)
    }

    fn panels(&self) -> usize {
        self.words.div_ceil(PANEL)
    }

    /// 32-bit integers of a word's bits.
    fn integers(&self) -> usize {
        2 * self.dim.div_ceil(64)
    }

    /// Words that a keyframe can have in the database.
    fn stride(&self) -> usize {
        self.tokens.min(KEPT)
    }

    fn check(&self) -> Result<(), CudaError> {
        for (what, found, limit) in [
            ("components of a token", self.dim, MAX_DIM),
            ("visual words", self.words, MAX_WORDS),
            ("tokens of an image", self.tokens, 1 << 20),
            ("keyframes of the database", self.keyframes, 1 << 24),
        ] {
            if found == 0 || found > limit {
                return Err(CudaError::Length {
                    what,
                    expected: limit,
                    found,
                });
            }
        }
        Ok(())
    }
}

/// Why a place is not recognised.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// The network's features hold NaN or infinity.
    #[error("feature {row} of the image is not finite: the network's output is unusable")]
    NotFinite {
        /// The first such row.
        row: usize,
    },
    /// The network's features are all zero.
    #[error("the image's features are all zero: the network did not run")]
    AllZero,
    /// The keyframe is already in the database.
    #[error("keyframe {id} is already in the retrieval database")]
    Duplicate {
        /// Its id.
        id: u32,
    },
    /// The database has its planned number of keyframes.
    #[error("the retrieval database is full: it was planned for {capacity} keyframes")]
    Full {
        /// Keyframes that it was planned for.
        capacity: usize,
    },
    /// The device failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// `Status` in `retrieval.cuh`.
type Status = [u32; 7];
const NONE: u32 = u32::MAX;

/// Whitening, words and the keyframes' descriptions on the device.
pub struct Retrieval {
    plan: RetrievalPlan,
    model: Model,
    describer: Describer,
    database: Database,
    /// Places by keyframe, and free ones, the next last.
    slots: HashMap<u32, u32>,
    free: Vec<u32>,
    status: PinnedBuffer<Status>,
    found: PinnedBuffer<[u32; 2]>,
}

impl Retrieval {
    /// Buffers on the device, in the order in which they are carved.
    pub fn device_buffers(plan: &RetrievalPlan) -> Vec<Spec> {
        let mut all = Model::buffers(plan);
        all.extend(Describer::buffers(plan));
        all.extend(Database::buffers(plan));
        all
    }

    /// Pinned buffers, in the order in which they are carved.
    pub fn pinned_buffers() -> Vec<Spec> {
        vec![
            Spec::of::<Status>("status", &[1]),
            Spec::of::<[u32; 2]>("hits", &[MAX_HITS]),
        ]
    }

    /// Carves the buffers. [`Retrieval::load`] and [`Retrieval::clear`] come next.
    pub fn new(
        context: &Context,
        plan: RetrievalPlan,
        arena: &mut DeviceArena,
        pinned: &mut PinnedArena,
    ) -> Result<Self, CudaError> {
        plan.check()?;
        Ok(Self {
            plan,
            model: Model::new(&plan, arena)?,
            describer: Describer::new(context, &plan, arena)?,
            database: Database::new(context, &plan, arena)?,
            slots: HashMap::with_capacity(plan.keyframes),
            free: Vec::with_capacity(plan.keyframes),
            status: pinned.carve("status", 1)?,
            found: pinned.carve("hits", MAX_HITS)?,
        })
    }

    /// Brings whitening and words to the device: a mean (`C`), a projection (`C × C`, multiplies from
    /// the right) and the codebook. At start: it allocates and waits.
    pub fn load(
        &mut self,
        stream: &Stream,
        mean: &[f64],
        projection: &[f64],
        codebook: &Codebook,
    ) -> Result<(), CudaError> {
        self.model
            .load(&self.plan, stream, mean, projection, codebook)
    }

    /// Forgets every keyframe.
    pub fn clear(&mut self, stream: &Stream) -> Result<(), CudaError> {
        self.slots.clear();
        self.free.clear();
        self.free.extend((0..self.plan.keyframes as u32).rev());
        self.database.clear(stream)
    }

    /// Keyframes in the database.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Whether a keyframe is in the database.
    pub fn contains(&self, id: u32) -> bool {
        self.slots.contains_key(&id)
    }

    /// Describes an image by its encoder tokens, `T × C` in row-major order. Enqueues.
    pub fn describe(
        &self,
        stream: &Stream,
        tokens: super::slots::Floats<'_>,
    ) -> Result<(), CudaError> {
        self.describer.run(&self.plan, &self.model, stream, tokens)
    }

    /// Asks for the at most `k` (at most [`MAX_HITS`]) keyframes that look most like the image described
    /// last and score more than `min_score`. Enqueues; [`Retrieval::hits`] has the answer.
    pub fn query(&mut self, stream: &Stream, k: usize, min_score: f32) -> Result<(), CudaError> {
        let described = &self.describer;
        self.database
            .query(&self.plan, described, stream, k, min_score)?;
        // SAFETY: both pinned buffers are this struct's; `hits` waits for the stream before it looks.
        unsafe {
            stream.download(described.status.all(), &mut self.status)?;
            stream.download(self.database.hits.all(), &mut self.found)
        }
    }

    /// Waits for the query enqueued last and puts its hits into `hits`, best first, of equal scores the
    /// lower id first. `hits` is replaced.
    pub fn hits(&mut self, stream: &Stream, hits: &mut Vec<PlaceHit>) -> Result<(), PlaceError> {
        hits.clear();
        stream.synchronize()?;
        let status = self.status.first().copied().unwrap_or_default();
        let [feature_row, whitened_row, nonzero, _, _, _, count] = status;
        if feature_row != NONE {
            let row = feature_row as usize;
            return Err(PlaceError::NotFinite { row });
        }
        if nonzero == 0 {
            return Err(PlaceError::AllZero);
        }
        if whitened_row != NONE {
            let row = whitened_row as usize;
            return Err(PlaceError::NotFinite { row });
        }
        hits.extend(self.found.iter().take(count as usize).map(|hit| PlaceHit {
            id: hit[0],
            score: f32::from_bits(hit[1]),
        }));
        Ok(())
    }

    /// Remembers the image described last as keyframe `id`. Enqueues.
    pub fn insert(&mut self, stream: &Stream, id: u32) -> Result<(), PlaceError> {
        if self.contains(id) {
            return Err(PlaceError::Duplicate { id });
        }
        let Some(&slot) = self.free.last() else {
            let capacity = self.plan.keyframes;
            return Err(PlaceError::Full { capacity });
        };
        self.database
            .insert(&self.plan, &self.describer, stream, slot, id)?;
        self.free.pop();
        self.slots.insert(id, slot);
        Ok(())
    }

    /// Forgets a keyframe; whether it was there. Enqueues.
    pub fn remove(&mut self, stream: &Stream, id: u32) -> Result<bool, CudaError> {
        let Some(&slot) = self.slots.get(&id) else {
            return Ok(false);
        };
        self.database.forget(stream, slot)?;
        self.slots.remove(&id);
        self.free.push(slot);
        Ok(true)
    }

    /// All of the description made last, for tests and reports. Waits.
    pub fn read_description(&self, stream: &Stream) -> Result<DeviceDescription, CudaError> {
        self.describer.read(&self.plan, stream)
    }

    /// The sums of `(C − 2·Hamming)³` of the last query by keyframe id, ascending, for tests and reports.
    /// Waits.
    pub fn read_sums(&self, stream: &Stream) -> Result<Vec<(u32, i64)>, CudaError> {
        let sums = stream.read_vec(self.database.sums.all())?;
        let mut all: Vec<(u32, i64)> = self
            .slots
            .iter()
            .filter_map(|(&id, &slot)| Some((id, *sums.get(slot as usize)?)))
            .collect();
        all.sort_unstable();
        Ok(all)
    }
}
