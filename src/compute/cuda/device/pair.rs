//! Stages from the network's outputs for a pair of views to a pose, used by tracking and by mapping.

use crate::compute::cuda::convert::Convert;
use crate::compute::cuda::fusion::{Fusion, FusionBuffers};
use crate::compute::cuda::mask::Masker;
use crate::compute::cuda::matching::{MatchCounts, Matcher, MatcherBuffers};
use crate::compute::cuda::tracking::{
    CameraRays, Compared, Outcome, PoseSolver, PoseSolverBuffers,
};
use crate::compute::matching::Refinement;
use crate::config::{FilteringMode, FilteringScore};
use crate::gpu::{Carver, Context, CudaError, DeviceBuffer, DeviceInfo, PinnedBuffer, Stream};
use crate::inference::NetworkShape;
use std::sync::Arc;

/// Number of directions in which mapping decodes and matches a pair.
pub(super) const WAYS: usize = 2;

/// The mapping half only moves points onto their rays, for which any mode works; this one needs no
/// memory.
pub(super) const CONSTRAINING: FilteringMode = FilteringMode::Recent;

/// Memory of [`Pair`].
pub(super) struct PairBuffers {
    matcher: MatcherBuffers,
    counts: DeviceBuffer<MatchCounts>,
    solver: PoseSolverBuffers,
    outcome: DeviceBuffer<Outcome>,
    host_outcome: PinnedBuffer<Outcome>,
}

impl PairBuffers {
    /// Buffers for matching `batch` pairs in `ways` directions each.
    pub(super) fn carve(
        c: &mut Carver<'_, '_>,
        shape: &NetworkShape,
        info: &DeviceInfo,
        [ways, batch]: [usize; 2],
    ) -> Result<Self, CudaError> {
        let (width, height, dim) = (shape.width, shape.height, shape.descriptor_dim);
        Ok(Self {
            matcher: MatcherBuffers::carve(&mut c.part("matcher"), width, height, dim)?,
            counts: c.device("match counts", &[ways * batch])?,
            solver: PoseSolverBuffers::carve(&mut c.part("pose solver"), info, shape.pixels())?,
            outcome: c.device("outcome", &[ways])?,
            host_outcome: c.pinned("outcome", &[ways])?,
        })
    }
}

/// Modes that differ between tracking and mapping.
pub(super) struct PairModes {
    pub(super) refinement: Refinement,
    /// Whether pixels can be hidden.
    pub(super) masks: bool,
    pub(super) fusion: FilteringMode,
    pub(super) score: FilteringScore,
    /// Minimum confidence of points that agree with measured depth.
    pub(super) measured_confidence: f32,
}

/// The stages and their outputs.
pub(super) struct Pair {
    /// `None` without `tracking.masks`.
    pub(super) masker: Option<Masker>,
    pub(super) matcher: Matcher,
    pub(super) solver: PoseSolver,
    pub(super) fusion: Fusion,
    pub(super) convert: Convert,
    pub(super) rays: Option<Arc<CameraRays>>,
    /// One per direction of each pair.
    pub(super) counts: DeviceBuffer<MatchCounts>,
    /// One per direction.
    pub(super) outcome: DeviceBuffer<Outcome>,
    pub(super) host_outcome: PinnedBuffer<Outcome>,
}

impl Pair {
    pub(super) fn new(
        stream: &Stream,
        buffers: PairBuffers,
        fusion: FusionBuffers,
        shape: &NetworkShape,
        modes: &PairModes,
        rays: Option<Arc<CameraRays>>,
    ) -> Result<Self, CudaError> {
        let context: &Context = stream.context();
        let (n, dim) = (shape.pixels(), shape.descriptor_dim);
        let (width, height) = (shape.width, shape.height);
        Ok(Self {
            masker: (modes.masks)
                .then(|| Masker::new(context, n, shape.descriptor_dim))
                .transpose()?,
            matcher: Matcher::new(
                context,
                buffers.matcher,
                width,
                height,
                dim,
                modes.refinement,
            )?,
            solver: PoseSolver::new(context, stream, buffers.solver, n)?,
            fusion: Fusion::new(context, fusion, n, modes.fusion, modes.score)?,
            convert: Convert::new(context)?,
            rays,
            counts: buffers.counts,
            outcome: buffers.outcome,
            host_outcome: buffers.host_outcome,
        })
    }

    /// Calibrated, both pointmaps' points count as on their pixels' rays.
    pub(super) fn compared(&self) -> Compared<'_> {
        (self.rays.as_deref()).map_or(Compared::Rays, Compared::Pixels)
    }
}
