//! From an image's tokens to its words and bits.

use super::super::slots::Floats;
use super::{
    Context, CudaError, DeviceArena, DeviceBuffer, GROUPS, KEPT, KEPT_PADDED, Kernel, NEAREST,
    NONE, PAIRS, PANEL, ROW_TILE, RetrievalPlan, Status, Stream,
};
use crate::compute::cuda::Grid;
use crate::compute::plan::Spec;
use crate::compute::retrieval::{BinaryWords, Codebook};

/// A network's whitening and words.
pub(super) struct Model {
    mean_high: DeviceBuffer<f32>,
    mean_low: DeviceBuffer<f32>,
    projection_high: DeviceBuffer<f32>,
    projection_low: DeviceBuffer<f32>,
    codebook: DeviceBuffer<f32>,
    half_norms: DeviceBuffer<f32>,
}

/// `v` as the sum of two f32, to 48 bits.
fn split(v: f64) -> (f32, f32) {
    let high = v as f32;
    (high, (v - f64::from(high)) as f32)
}

fn wrong(what: &'static str, expected: usize, found: usize) -> CudaError {
    CudaError::Length {
        what,
        expected,
        found,
    }
}

impl Model {
    pub fn buffers(plan: &RetrievalPlan) -> Vec<Spec> {
        let projection = [plan.padded_dim(), plan.padded_columns()];
        vec![
            Spec::of::<f32>("mean, high", &[plan.dim]),
            Spec::of::<f32>("mean, low", &[plan.dim]),
            Spec::of::<f32>("projection, high", &projection),
            Spec::of::<f32>("projection, low", &projection),
            Spec::of::<f32>("codebook", &[plan.panels(), plan.padded_dim(), PANEL]),
            Spec::of::<f32>("half norms", &[plan.panels() * PANEL]),
        ]
    }

    pub fn new(plan: &RetrievalPlan, arena: &mut DeviceArena) -> Result<Self, CudaError> {
        let projection = plan.padded_dim() * plan.padded_columns();
        Ok(Self {
            mean_high: arena.carve("mean, high", plan.dim)?,
            mean_low: arena.carve("mean, low", plan.dim)?,
            projection_high: arena.carve("projection, high", projection)?,
            projection_low: arena.carve("projection, low", projection)?,
            codebook: arena.carve("codebook", plan.panels() * plan.padded_dim() * PANEL)?,
            half_norms: arena.carve("half norms", plan.panels() * PANEL)?,
        })
    }

    pub fn load(
        &mut self,
        plan: &RetrievalPlan,
        stream: &Stream,
        mean: &[f64],
        projection: &[f64],
        codebook: &Codebook,
    ) -> Result<(), CudaError> {
        let dim = plan.dim;
        for (what, expected, found) in [
            ("components of the mean", dim, mean.len()),
            ("values of the projection", dim * dim, projection.len()),
            ("components of a centroid", dim, codebook.dim()),
            ("visual words", plan.words, codebook.words()),
        ] {
            if expected != found {
                return Err(wrong(what, expected, found));
            }
        }
        let (high, low): (Vec<f32>, Vec<f32>) = mean.iter().map(|&v| split(v)).unzip();
        stream.write(&high, self.mean_high.all())?;
        stream.write(&low, self.mean_low.all())?;

        let columns = plan.padded_columns();
        let mut parts = [vec![0.0; plan.padded_dim() * columns], Vec::new()];
        parts[1] = parts[0].clone();
        let [high, low] = &mut parts;
        let lines = high
            .chunks_exact_mut(columns)
            .zip(low.chunks_exact_mut(columns));
        for ((high, low), line) in lines.zip(projection.chunks_exact(dim)) {
            for ((high, low), &v) in high.iter_mut().zip(low).zip(line) {
                (*high, *low) = split(v);
            }
        }
        stream.write(high, self.projection_high.all())?;
        stream.write(low, self.projection_low.all())?;

        let size = plan.padded_dim() * PANEL;
        let mut panel = vec![0.0; size];
        let words: Vec<u32> = (0..plan.words as u32).collect();
        for (index, words) in words.chunks(PANEL).enumerate() {
            panel.fill(0.0);
            for (lane, &word) in words.iter().enumerate() {
                for (column, v) in panel.chunks_exact_mut(PANEL).zip(codebook.centroid(word)) {
                    column[lane] = v;
                }
            }
            let there = self.codebook.slice(index * size..(index + 1) * size)?;
            stream.write(&panel, there)?;
        }
        let mut half_norms = codebook.half_norms().to_vec();
        half_norms.resize(self.half_norms.len(), f32::INFINITY);
        stream.write(&half_norms, self.half_norms.all())
    }
}

/// What a description consists of, on the host.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceDescription {
    /// Whitened tokens, `T × C`.
    pub whitened: Vec<f32>,
    /// The tokens in use, ascending; none if the image cannot be described.
    pub kept: Vec<u32>,
    /// Their nearest words, five each, `u32::MAX` where there are fewer.
    pub nearest: Vec<u32>,
    /// The words' ranks ([`crate::compute::retrieval::Nearest::rank`]).
    pub ranks: Vec<f32>,
    /// Features in their five nearest words.
    pub query: BinaryWords,
    /// Features in their nearest word.
    pub stored: BinaryWords,
}

/// The kernels that describe an image, and what they leave.
pub(super) struct Describer {
    begin: Kernel,
    centre: Kernel,
    whiten: Kernel,
    norms: Kernel,
    select: Kernel,
    gather: Kernel,
    assign: Kernel,
    nearest: Kernel,
    group: Kernel,
    residuals: Kernel,
    centred_high: DeviceBuffer<f32>,
    centred_low: DeviceBuffer<f32>,
    whitened: DeviceBuffer<f32>,
    squares: DeviceBuffer<u64>,
    kept: DeviceBuffer<u32>,
    rows: DeviceBuffer<f32>,
    candidates: DeviceBuffer<[u32; 2]>,
    words: DeviceBuffer<u32>,
    ranks: DeviceBuffer<f32>,
    pub groups: DeviceBuffer<u32>,
    pub query_bits: DeviceBuffer<u32>,
    pub stored_bits: DeviceBuffer<u32>,
    pub status: DeviceBuffer<Status>,
}

/// A grid of two dimensions.
fn plane(x: usize, y: usize, threads: (u32, u32, u32)) -> Grid {
    let blocks = |n: usize| u32::try_from(n.max(1)).unwrap_or(u32::MAX);
    Grid {
        blocks: (blocks(x), blocks(y), 1),
        threads,
        shared_bytes: 0,
    }
}

impl Describer {
    pub fn buffers(plan: &RetrievalPlan) -> Vec<Spec> {
        let centred = [plan.padded_dim(), plan.padded_tokens()];
        let candidates = [plan.panels(), KEPT_PADDED, NEAREST];
        vec![
            Spec::of::<f32>("centred, high", &centred),
            Spec::of::<f32>("centred, low", &centred),
            Spec::of::<f32>("whitened", &[plan.tokens, plan.dim]),
            Spec::of::<u64>("norms", &[plan.tokens]),
            Spec::of::<u32>("kept", &[KEPT_PADDED]),
            Spec::of::<f32>("rows", &[plan.padded_dim(), KEPT_PADDED]),
            Spec::of::<[u32; 2]>("candidates", &candidates),
            Spec::of::<u32>("nearest", &[PAIRS]),
            Spec::of::<f32>("ranks", &[PAIRS]),
            Spec::of::<u32>("groups", &[2, GROUPS]),
            Spec::of::<u32>("query bits", &[PAIRS, plan.integers()]),
            Spec::of::<u32>("stored bits", &[KEPT, plan.integers()]),
            Spec::of::<Status>("status", &[1]),
        ]
    }

    pub fn new(
        context: &Context,
        plan: &RetrievalPlan,
        arena: &mut DeviceArena,
    ) -> Result<Self, CudaError> {
        let kernel = |name| context.kernel(name);
        let centred = plan.padded_dim() * plan.padded_tokens();
        Ok(Self {
            begin: kernel("ms_retrieval_begin")?,
            centre: kernel("ms_retrieval_centre")?,
            whiten: kernel("ms_retrieval_whiten")?,
            norms: kernel("ms_retrieval_norms")?,
            select: kernel("ms_retrieval_select")?,
            gather: kernel("ms_retrieval_gather")?,
            assign: kernel("ms_retrieval_assign")?,
            nearest: kernel("ms_retrieval_nearest")?,
            group: kernel("ms_retrieval_group")?,
            residuals: kernel("ms_retrieval_residuals")?,
            centred_high: arena.carve("centred, high", centred)?,
            centred_low: arena.carve("centred, low", centred)?,
            whitened: arena.carve("whitened", plan.tokens * plan.dim)?,
            squares: arena.carve("norms", plan.tokens)?,
            kept: arena.carve("kept", KEPT_PADDED)?,
            rows: arena.carve("rows", plan.padded_dim() * KEPT_PADDED)?,
            candidates: arena.carve("candidates", plan.panels() * KEPT_PADDED * NEAREST)?,
            words: arena.carve("nearest", PAIRS)?,
            ranks: arena.carve("ranks", PAIRS)?,
            groups: arena.carve("groups", 2 * GROUPS)?,
            query_bits: arena.carve("query bits", PAIRS * plan.integers())?,
            stored_bits: arena.carve("stored bits", KEPT * plan.integers())?,
            status: arena.carve("status", 1)?,
        })
    }

    pub fn run(
        &self,
        plan: &RetrievalPlan,
        model: &Model,
        stream: &Stream,
        tokens: Floats<'_>,
    ) -> Result<(), CudaError> {
        let expected = plan.tokens * plan.dim;
        if tokens.len() != expected {
            return Err(wrong("values of encoder tokens", expected, tokens.len()));
        }
        // SAFETY: the tokens were measured, everything else was carved for the numbers of the plan, which are
        // those that the kernels get.
        unsafe {
            self.whiten(plan, model, stream, tokens)?;
            self.assign(plan, model, stream)
        }
    }

    /// # Safety
    /// `tokens` are the plan's.
    unsafe fn whiten(
        &self,
        plan: &RetrievalPlan,
        model: &Model,
        stream: &Stream,
        tokens: Floats<'_>,
    ) -> Result<(), CudaError> {
        let (count, padded_tokens) = (plan.tokens as u32, plan.padded_tokens() as u32);
        let (dim, padded_dim) = (plan.dim as u32, plan.padded_dim() as u32);
        let rows = plan.padded_tokens() / 32;
        let status = self.status.pointer();
        let (half_features, features) = tokens.pointers();
        // SAFETY: the caller's promise.
        unsafe {
            self.begin.launch(stream, Grid::blocks(1, 32), (status,))?;
            self.centre.launch(
                stream,
                plane(rows, plan.padded_dim().div_ceil(32), (32, 8, 1)),
                (
                    half_features,
                    features,
                    model.mean_high.pointer(),
                    model.mean_low.pointer(),
                    self.centred_high.pointer(),
                    self.centred_low.pointer(),
                    count,
                    padded_tokens,
                    dim,
                    padded_dim,
                    status,
                ),
            )?;
            self.whiten.launch(
                stream,
                plane(rows, plan.padded_columns() / 64, (128, 1, 1)),
                (
                    self.centred_high.pointer(),
                    self.centred_low.pointer(),
                    model.projection_high.pointer(),
                    model.projection_low.pointer(),
                    self.whitened.pointer(),
                    count,
                    padded_tokens,
                    dim,
                    padded_dim,
                    plan.padded_columns() as u32,
                    status,
                ),
            )?;
            self.norms.launch(
                stream,
                plane(rows, 1, (128, 1, 1)),
                (self.whitened.pointer(), count, dim, self.squares.pointer()),
            )?;
            self.select.launch(
                stream,
                Grid::blocks(1, 1024),
                (
                    self.squares.pointer(),
                    count,
                    KEPT as u32,
                    self.kept.pointer(),
                    status,
                ),
            )?;
            self.gather.launch(
                stream,
                plane(KEPT_PADDED / 32, plan.padded_dim().div_ceil(32), (32, 8, 1)),
                (
                    self.whitened.pointer(),
                    self.kept.pointer(),
                    self.rows.pointer(),
                    dim,
                    padded_dim,
                ),
            )
        }
    }

    /// # Safety
    /// [`Describer::whiten`] was enqueued.
    unsafe fn assign(
        &self,
        plan: &RetrievalPlan,
        model: &Model,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        let (dim, padded_dim) = (plan.dim as u32, plan.padded_dim() as u32);
        let status = self.status.pointer();
        // SAFETY: the caller's promise.
        unsafe {
            self.assign.launch(
                stream,
                plane(KEPT_PADDED / ROW_TILE, plan.panels(), (256, 1, 1)),
                (
                    self.rows.pointer(),
                    model.codebook.pointer(),
                    model.half_norms.pointer(),
                    padded_dim,
                    status,
                    self.candidates.pointer(),
                ),
            )?;
            self.nearest.launch(
                stream,
                Grid::blocks(KEPT as u32, 128),
                (
                    self.candidates.pointer(),
                    plan.panels() as u32,
                    status,
                    self.words.pointer(),
                    self.ranks.pointer(),
                ),
            )?;
            self.group.launch(
                stream,
                Grid::blocks(2, 512),
                (self.words.pointer(), self.groups.pointer(), status),
            )?;
            self.residuals.launch(
                stream,
                plane(PAIRS, 2, (256, 1, 1)),
                (
                    self.whitened.pointer(),
                    self.kept.pointer(),
                    model.codebook.pointer(),
                    self.groups.pointer(),
                    status,
                    dim,
                    padded_dim,
                    plan.integers() as u32,
                    self.query_bits.pointer(),
                    self.stored_bits.pointer(),
                ),
            )
        }
    }

    pub fn read(
        &self,
        plan: &RetrievalPlan,
        stream: &Stream,
    ) -> Result<DeviceDescription, CudaError> {
        let [status] = stream.read_vec(self.status.all())?[..] else {
            return Err(wrong("status", 1, self.status.len()));
        };
        let [_, _, _, kept, query, stored, _] = status.map(|n| n as usize);
        let integers = plan.integers();
        let words = |at: usize, count: usize, bits: &DeviceBuffer<u32>| {
            let bits = stream.read_vec(bits.slice(0..count * integers)?)?;
            Ok::<_, CudaError>(BinaryWords {
                words: stream.read_vec(self.groups.slice(at..at + count)?)?,
                bits: bits
                    .chunks_exact(2)
                    .map(|b| u64::from(b[0]) | u64::from(b[1]) << 32)
                    .collect(),
            })
        };
        let mut all = stream.read_vec(self.kept.all())?;
        all.retain(|&row| row != NONE);
        Ok(DeviceDescription {
            whitened: stream.read_vec(self.whitened.all())?,
            kept: all,
            nearest: stream.read_vec(self.words.slice(0..kept * NEAREST)?)?,
            ranks: stream.read_vec(self.ranks.slice(0..kept * NEAREST)?)?,
            query: words(0, query, &self.query_bits)?,
            stored: words(GROUPS, stored, &self.stored_bits)?,
        })
    }
}
