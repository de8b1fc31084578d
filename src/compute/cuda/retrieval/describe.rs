//! Computes the words and bits of an image from its tokens.

use super::{GROUPS, KEPT, KEPT_PADDED, NEAREST, PAIRS, PANEL, ROW_TILE, RetrievalPlan, Status};
use crate::compute::retrieval::Codebook;
use crate::gpu::Grid;
use crate::gpu::{Carver, Context, CudaError, DeviceBuffer, Floats, Kernel, Stream};

/// Whitening and visual words of a network.
pub(super) struct Model {
    mean_high: DeviceBuffer<f32>,
    mean_low: DeviceBuffer<f32>,
    projection_high: DeviceBuffer<f32>,
    projection_low: DeviceBuffer<f32>,
    codebook: DeviceBuffer<f32>,
    half_norms: DeviceBuffer<f32>,
}

/// Splits `v` into the sum of two f32, accurate to 48 bits.
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
    pub fn carve(c: &mut Carver<'_, '_>, plan: &RetrievalPlan) -> Result<Self, CudaError> {
        let projection = [plan.padded_dim(), plan.padded_columns()];
        let panels = plan.panels();
        Ok(Self {
            mean_high: c.device("mean, high", &[plan.dim])?,
            mean_low: c.device("mean, low", &[plan.dim])?,
            projection_high: c.device("projection, high", &projection)?,
            projection_low: c.device("projection, low", &projection)?,
            codebook: c.device("codebook", &[panels, plan.padded_dim(), PANEL])?,
            half_norms: c.device("half norms", &[panels * PANEL])?,
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

/// Memory of a [`Describer`]: an image's description and the steps to it. An image that cannot be described has
/// no tokens and no words.
pub struct DescriberBuffers {
    centred_high: DeviceBuffer<f32>,
    centred_low: DeviceBuffer<f32>,
    /// Whitened tokens, `T × C`.
    pub whitened: DeviceBuffer<f32>,
    squares: DeviceBuffer<u64>,
    /// The tokens in use, ascending, then `u32::MAX`.
    pub kept: DeviceBuffer<u32>,
    rows: DeviceBuffer<f32>,
    candidates: DeviceBuffer<[u32; 2]>,
    /// The nearest words of each token in use, five each, `u32::MAX` where there are fewer.
    pub words: DeviceBuffer<u32>,
    /// These words' ranks ([`crate::compute::retrieval::Nearest::rank`]).
    pub ranks: DeviceBuffer<f32>,
    /// Two groupings of features by word, of a query and of what is stored; each begins with its words.
    pub groups: DeviceBuffer<u32>,
    /// The query's bits, for each of its words.
    pub query_bits: DeviceBuffer<u32>,
    /// The stored bits, for each of their words.
    pub stored_bits: DeviceBuffer<u32>,
    /// `Status` of `retrieval.cuh`: among others the tokens in use, the query's words and the stored words, at 3,
    /// 4 and 5.
    pub status: DeviceBuffer<Status>,
}

impl DescriberBuffers {
    pub(super) fn carve(c: &mut Carver<'_, '_>, plan: &RetrievalPlan) -> Result<Self, CudaError> {
        let centred = [plan.padded_dim(), plan.padded_tokens()];
        let candidates = [plan.panels(), KEPT_PADDED, NEAREST];
        Ok(Self {
            centred_high: c.device("centred, high", &centred)?,
            centred_low: c.device("centred, low", &centred)?,
            whitened: c.device("whitened", &[plan.tokens, plan.dim])?,
            squares: c.device("norms", &[plan.tokens])?,
            kept: c.device("kept", &[KEPT_PADDED])?,
            rows: c.device("rows", &[plan.padded_dim(), KEPT_PADDED])?,
            candidates: c.device("candidates", &candidates)?,
            words: c.device("nearest", &[PAIRS])?,
            ranks: c.device("ranks", &[PAIRS])?,
            groups: c.device("groups", &[2, GROUPS])?,
            query_bits: c.device("query bits", &[PAIRS, plan.integers()])?,
            stored_bits: c.device("stored bits", &[KEPT, plan.integers()])?,
            status: c.device("status", &[1])?,
        })
    }
}

/// The kernels that describe an image.
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
    pub buffers: DescriberBuffers,
}

/// A two-dimensional grid.
fn plane(x: usize, y: usize, threads: (u32, u32, u32)) -> Grid {
    let blocks = |n: usize| u32::try_from(n.max(1)).unwrap_or(u32::MAX);
    Grid {
        blocks: (blocks(x), blocks(y), 1),
        threads,
        shared_bytes: 0,
    }
}

impl Describer {
    pub fn new(context: &Context, buffers: DescriberBuffers) -> Result<Self, CudaError> {
        let kernel = |name| context.kernel(name);
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
            buffers,
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
        // SAFETY: the length of the tokens was checked, everything else was carved for the sizes of
        // the plan, which are those passed to the kernels.
        unsafe {
            self.whiten(plan, model, stream, tokens)?;
            self.assign(plan, model, stream)
        }
    }

    /// # Safety
    /// `tokens` must have the length given by the plan.
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
        let status = self.buffers.status.pointer();
        let (half_features, features) = tokens.pointers();
        // SAFETY: guaranteed by the caller.
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
                    self.buffers.centred_high.pointer(),
                    self.buffers.centred_low.pointer(),
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
                    self.buffers.centred_high.pointer(),
                    self.buffers.centred_low.pointer(),
                    model.projection_high.pointer(),
                    model.projection_low.pointer(),
                    self.buffers.whitened.pointer(),
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
                (
                    self.buffers.whitened.pointer(),
                    count,
                    dim,
                    self.buffers.squares.pointer(),
                ),
            )?;
            self.select.launch(
                stream,
                Grid::blocks(1, 1024),
                (
                    self.buffers.squares.pointer(),
                    count,
                    KEPT as u32,
                    self.buffers.kept.pointer(),
                    status,
                ),
            )?;
            self.gather.launch(
                stream,
                plane(KEPT_PADDED / 32, plan.padded_dim().div_ceil(32), (32, 8, 1)),
                (
                    self.buffers.whitened.pointer(),
                    self.buffers.kept.pointer(),
                    self.buffers.rows.pointer(),
                    dim,
                    padded_dim,
                ),
            )
        }
    }

    /// # Safety
    /// [`Describer::whiten`] must have been enqueued.
    unsafe fn assign(
        &self,
        plan: &RetrievalPlan,
        model: &Model,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        let (dim, padded_dim) = (plan.dim as u32, plan.padded_dim() as u32);
        let status = self.buffers.status.pointer();
        // SAFETY: guaranteed by the caller.
        unsafe {
            self.assign.launch(
                stream,
                plane(KEPT_PADDED / ROW_TILE, plan.panels(), (256, 1, 1)),
                (
                    self.buffers.rows.pointer(),
                    model.codebook.pointer(),
                    model.half_norms.pointer(),
                    padded_dim,
                    status,
                    self.buffers.candidates.pointer(),
                ),
            )?;
            self.nearest.launch(
                stream,
                Grid::blocks(KEPT as u32, 128),
                (
                    self.buffers.candidates.pointer(),
                    plan.panels() as u32,
                    status,
                    self.buffers.words.pointer(),
                    self.buffers.ranks.pointer(),
                ),
            )?;
            self.group.launch(
                stream,
                Grid::blocks(2, 512),
                (
                    self.buffers.words.pointer(),
                    self.buffers.groups.pointer(),
                    status,
                ),
            )?;
            self.residuals.launch(
                stream,
                plane(PAIRS, 2, (256, 1, 1)),
                (
                    self.buffers.whitened.pointer(),
                    self.buffers.kept.pointer(),
                    model.codebook.pointer(),
                    self.buffers.groups.pointer(),
                    status,
                    dim,
                    padded_dim,
                    plan.integers() as u32,
                    self.buffers.query_bits.pointer(),
                    self.buffers.stored_bits.pointer(),
                ),
            )
        }
    }
}
