//! All GPU buffers of a run. The same code runs without memory, for the plan, and on allocated memory.

use super::camera::CameraBuffers;
use super::edges::EdgeBuffers;
use super::frame::FrameBuffers;
use super::hand_off::HandOffBuffers;
use super::inputs::PlanInputs;
use super::mapping::MappingBuffers;
use super::network::{NetworkBuffers, NetworkSizes};
use super::pair::{CONSTRAINING, PairBuffers, WAYS};
use super::stores::StoreBuffers;
use super::tracking::TrackingBuffers;
use crate::compute::cuda::coverage::CoverageBuffers;
use crate::compute::cuda::depth::pointmap::PointmapMoverBuffers;
use crate::compute::cuda::fusion::FusionBuffers;
use crate::compute::cuda::global::{GlobalBuffers, GlobalCapacity};
use crate::compute::cuda::preprocess::PreprocessError;
use crate::compute::cuda::retrieval::RetrievalBuffers;
use crate::compute::cuda::slots::SlotBuffers;
use crate::compute::cuda::spread::SpreadBuffers;
use crate::compute::cuda::tracking::CameraRaysBuffers;
use crate::gpu::plan::Group;
use crate::gpu::{Carver, Carving, CudaError};

/// All buffers of a run.
pub(super) struct Buffers {
    pub(super) tracking: TrackingBuffers,
    pub(super) stores: StoreBuffers,
    pub(super) mapping: MappingBuffers,
    pub(super) places: Option<RetrievalBuffers>,
}

impl Buffers {
    pub(super) fn carve(
        carving: &mut Carving<'_>,
        inputs: &PlanInputs<'_>,
    ) -> Result<Self, PreprocessError> {
        Ok(Self {
            tracking: TrackingBuffers::carve(carving, inputs)?,
            stores: StoreBuffers::carve(carving, inputs)?,
            mapping: mapping(carving, inputs)?,
            places: match inputs.places() {
                Some(plan) => {
                    let mut part = carving.part(Group::Retrieval, "places");
                    Some(RetrievalBuffers::carve(&mut part, plan)?)
                }
                None => None,
            },
        })
    }
}

impl TrackingBuffers {
    fn carve(carving: &mut Carving<'_>, inputs: &PlanInputs<'_>) -> Result<Self, PreprocessError> {
        let mut camera = |name| {
            let mut part = carving.part(Group::Tracking, name);
            CameraBuffers::carve(&mut part, inputs.preprocessor, inputs.camera, inputs.shape)
        };
        let camera = match inputs.encoder_workspace {
            None => vec![camera("camera")?],
            Some(_) => vec![camera("camera")?, camera("camera, ahead")?],
        };
        let mut part = carving.part(Group::Tracking, "frame");
        let [workspace, _] = inputs.network_workspace;
        let (network, pair) = network_and_pair(
            &mut part,
            inputs,
            [1, 1],
            workspace,
            inputs.encoder_workspace,
        )?;
        let mut part = carving.part(Group::Tracking, "keyframe");
        Ok(Self {
            camera,
            network,
            pair,
            frame: FrameBuffers::carve(&mut part, inputs.shape, inputs.config)?,
        })
    }
}

impl StoreBuffers {
    fn carve(carving: &mut Carving<'_>, inputs: &PlanInputs<'_>) -> Result<Self, CudaError> {
        let (shape, pixels) = (inputs.shape, inputs.shape.pixels());
        let mut part = carving.part(Group::Keyframes, "slots");
        let slots = SlotBuffers::carve(&mut part, inputs.slots())?;
        let mut part = carving.part(Group::Edges, "slots");
        let edges = EdgeBuffers::carve(&mut part, inputs.config.memory.edges, pixels)?;
        let mut part = carving.part(Group::Keyframes, "on their way");
        let hand_off = HandOffBuffers::carve(&mut part, pixels, inputs.config.depth)?;
        let mut part = carving.part(Group::Tracking, "camera");
        let rays = match inputs.calibrated {
            true => Some(CameraRaysBuffers::carve(
                &mut part,
                shape.width,
                shape.height,
            )?),
            false => None,
        };
        Ok(Self {
            slots,
            edges,
            hand_off,
            rays,
        })
    }
}

fn mapping(
    carving: &mut Carving<'_>,
    inputs: &PlanInputs<'_>,
) -> Result<MappingBuffers, CudaError> {
    let (config, pixels) = (inputs.config, inputs.shape.pixels());
    let mut part = carving.part(Group::Mapping, "edge");
    let [_, workspace] = inputs.network_workspace;
    let sizes = [WAYS, inputs.edges_at_once()];
    let (network, pair) = network_and_pair(&mut part, inputs, sizes, workspace, None)?;
    let host_counts = part.pinned("match counts", &[sizes[0] * sizes[1]])?;
    let valid = part.device("valid", &[pixels])?;
    let fusion = FusionBuffers::carve(&mut part.part("fusion"), pixels, CONSTRAINING)?;
    let capacity = GlobalCapacity {
        pixels,
        keyframes: config.memory.keyframe_slots,
        edges: config.memory.edges,
    };
    let coverage = CoverageBuffers::carve(&mut carving.part(Group::Mapping, "coverage"), pixels)?;
    let spread = SpreadBuffers::carve(&mut carving.part(Group::Mapping, "spread"))?;
    let mover = (config.depth && inputs.calibrated).then(|| {
        let mut part = carving.part(Group::Mapping, "moved pointmap");
        PointmapMoverBuffers::carve(&mut part, inputs.shape.width, inputs.shape.height)
    });
    let mut part = carving.part(Group::Mapping, "solve");
    Ok(MappingBuffers {
        network,
        pair,
        host_counts,
        valid,
        fusion,
        coverage,
        spread,
        solver: GlobalBuffers::carve(&mut part, capacity)?,
        mover: mover.transpose()?,
    })
}

/// Buffers from the network's input to a pose, for a pair in `ways` directions, of which the network decodes
/// `batch` at once.
fn network_and_pair(
    part: &mut Carver<'_, '_>,
    inputs: &PlanInputs<'_>,
    [ways, batch]: [usize; 2],
    workspace: usize,
    encoder_workspace: Option<usize>,
) -> Result<(NetworkBuffers, PairBuffers), CudaError> {
    let sizes = NetworkSizes {
        shape: inputs.shape,
        ways,
        batch,
        workspace,
        encoder_workspace,
        half_tokens: inputs.half_tokens,
        on_host: inputs.network_on_host,
    };
    let network = NetworkBuffers::carve(part, &sizes)?;
    let pair = PairBuffers::carve(part, inputs.shape, inputs.info, [ways, batch])?;
    Ok((network, pair))
}
