//! Place recognition on the device, equivalent to [`crate::compute::retrieval`] (docs/algorithm.md,
//! Place recognition).
//!
//! [`Retrieval::describe`] and [`Retrieval::query`] enqueue; [`Retrieval::hits`] waits and returns
//! the result; then [`Retrieval::insert`] adds the image described last. Whitened features differ
//! from the CPU's, which are computed in f64, in the last bit of a few values; given the same
//! whitened features, everything else is bit-identical on every run (ranks: on CPUs with fused
//! multiply-add).
//!
//! `describe` and `query` can be captured: everything they enqueue is constant except for the
//! contents of device memory. [`Retrieval::insert`] refers to a position in the database and must
//! be enqueued each time.

mod database;
mod describe;

use crate::compute::retrieval::Codebook;
use crate::gpu::{Carver, Context, CudaError, DeviceSlice, PinnedBuffer, Stream};
use database::{Database, DatabaseBuffers};
use describe::{Describer, Model};
use std::collections::HashMap;

use crate::compute::retrieval::Hit;
pub use describe::DescriberBuffers;

/// Maximum number of features used per image, and the number padded to whole tiles; must match
/// `retrieval.cuh`.
const KEPT: usize = 300;
const KEPT_PADDED: usize = 320;
/// Words assigned to each feature of a query.
const NEAREST: usize = 5;
/// Words per panel of the codebook.
const PANEL: usize = 256;
/// Components loaded at a time.
const STEP: usize = 16;
/// Maximum number of pairs of word and feature.
const PAIRS: usize = KEPT * NEAREST;
/// Integers per grouping of features by word.
const GROUPS: usize = 3 * PAIRS + 1;
/// Features per tile in the word search.
const ROW_TILE: usize = 64;

/// Maximum number of hits per query.
pub const MAX_HITS: usize = 32;

/// Maximum dimension: keeps sums of `C³` over all words of an image within 64 bits.
const MAX_DIM: usize = 1 << 14;
/// Maximum number of words: a word and a feature share 32 bits, and the last value is reserved for
/// "none".
const MAX_WORDS: usize = (1 << 23) - 1;

/// Sizes of place recognition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetrievalPlan {
    /// Tokens per image, `T`.
    pub tokens: usize,
    /// Components per token, `C`.
    pub dim: usize,
    /// Number of visual words, `K`.
    pub words: usize,
    /// Maximum number of keyframes in the database.
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

    /// 32-bit integers per word.
    fn integers(&self) -> usize {
        2 * self.dim.div_ceil(64)
    }

    /// Maximum number of words per keyframe in the database.
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

/// Error from place recognition on the device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// The network's features contain NaN or infinity.
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
    Duplicate { id: u32 },
    /// The database has its planned number of keyframes.
    #[error("the retrieval database is full: it was planned for {capacity} keyframes")]
    Full { capacity: usize },
    /// The device failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// `Status` in `retrieval.cuh`.
type Status = [u32; 7];
const NONE: u32 = u32::MAX;

/// Memory of a [`Retrieval`].
pub struct RetrievalBuffers {
    plan: RetrievalPlan,
    model: Model,
    describer: DescriberBuffers,
    database: DatabaseBuffers,
    status: PinnedBuffer<Status>,
    found: PinnedBuffer<[u32; 2]>,
}

impl RetrievalBuffers {
    /// Buffers for the database of `plan`.
    ///
    /// # Errors
    /// [`CudaError::Length`] for sizes that the kernels cannot count.
    pub fn carve(c: &mut Carver<'_, '_>, plan: RetrievalPlan) -> Result<Self, CudaError> {
        plan.check()?;
        Ok(Self {
            model: Model::carve(c, &plan)?,
            describer: DescriberBuffers::carve(c, &plan)?,
            database: DatabaseBuffers::carve(c, &plan)?,
            status: c.pinned("status", &[1])?,
            found: c.pinned("hits", &[MAX_HITS])?,
            plan,
        })
    }
}

/// Whitening, words and the keyframes' descriptions on the device.
pub struct Retrieval {
    plan: RetrievalPlan,
    model: Model,
    describer: Describer,
    database: Database,
    /// Database positions by keyframe, and free ones; the last is used next.
    slots: HashMap<u32, u32>,
    free: Vec<u32>,
    status: PinnedBuffer<Status>,
    found: PinnedBuffer<[u32; 2]>,
}

impl Retrieval {
    /// [`Retrieval::load`] and [`Retrieval::clear`] come next.
    pub fn new(context: &Context, buffers: RetrievalBuffers) -> Result<Self, CudaError> {
        let plan = buffers.plan;
        Ok(Self {
            plan,
            model: buffers.model,
            describer: Describer::new(context, buffers.describer)?,
            database: Database::new(context, buffers.database)?,
            slots: HashMap::with_capacity(plan.keyframes),
            free: Vec::with_capacity(plan.keyframes),
            status: buffers.status,
            found: buffers.found,
        })
    }

    /// Uploads whitening and words: a mean (`C`), a projection (`C × C`, applied from the right)
    /// and the codebook. For start-up: allocates and waits.
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

    /// Removes all keyframes.
    pub fn clear(&mut self, stream: &Stream) -> Result<(), CudaError> {
        self.slots.clear();
        self.free.clear();
        self.free.extend((0..self.plan.keyframes as u32).rev());
        self.database.clear(stream)
    }

    /// Number of keyframes in the database.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The place of a keyframe in the database, if it is there.
    pub fn place(&self, id: u32) -> Option<usize> {
        self.slots.get(&id).map(|&slot| slot as usize)
    }

    /// The keyframe with the lowest id, if there is any.
    pub fn oldest(&self) -> Option<u32> {
        self.slots.keys().min().copied()
    }

    /// The description made last, on the device.
    pub fn description(&self) -> &DescriberBuffers {
        &self.describer.buffers
    }

    /// The last query's sum of `(C − 2·Hamming)³` for each place of the database.
    pub fn sums(&self) -> DeviceSlice<'_, i64> {
        self.database.sums()
    }

    /// Describes an image by its encoder tokens, `T × C` in row-major order. Enqueues.
    pub fn describe(
        &self,
        stream: &Stream,
        tokens: crate::gpu::Floats<'_>,
    ) -> Result<(), CudaError> {
        self.describer.run(&self.plan, &self.model, stream, tokens)
    }

    /// Searches for up to `k` (at most [`MAX_HITS`]) keyframes most similar to the image described
    /// last, with scores above `min_score`. Enqueues; [`Retrieval::hits`] returns the result.
    pub fn query(&mut self, stream: &Stream, k: usize, min_score: f32) -> Result<(), CudaError> {
        let described = &self.describer;
        self.database
            .query(&self.plan, described, stream, k, min_score)?;
        // SAFETY: both pinned buffers belong to this struct; `hits` synchronises the stream before
        // reading them.
        unsafe {
            stream.download(described.buffers.status.all(), &mut self.status)?;
            stream.download(self.database.hits(), &mut self.found)
        }
    }

    /// Waits for the query enqueued last and puts its hits into `hits`, best first, of equal scores the
    /// lower id first. `hits` is replaced.
    pub fn hits(&mut self, stream: &Stream, hits: &mut Vec<Hit>) -> Result<(), PlaceError> {
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
        hits.extend(self.found.iter().take(count as usize).map(|hit| Hit {
            id: hit[0],
            score: f32::from_bits(hit[1]),
        }));
        Ok(())
    }

    /// Adds the image described last as keyframe `id`. Enqueues.
    pub fn insert(&mut self, stream: &Stream, id: u32) -> Result<(), PlaceError> {
        if self.slots.contains_key(&id) {
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

    /// Removes a keyframe; returns whether it was present. Enqueues.
    pub fn remove(&mut self, stream: &Stream, id: u32) -> Result<bool, CudaError> {
        let Some(&slot) = self.slots.get(&id) else {
            return Ok(false);
        };
        self.database.forget(stream, slot)?;
        self.slots.remove(&id);
        self.free.push(slot);
        Ok(true)
    }
}
