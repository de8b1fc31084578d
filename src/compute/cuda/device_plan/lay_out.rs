//! From the configuration to the plan.

use super::{
    DevicePlan, EdgesPlan, HostNetworkPlan, HostView, MappingPlan, NetworkPlan, PairPlan,
    PlacesPlan, PlanInputs, TrackingPlan,
};
use crate::compute::cuda::device;
use crate::compute::cuda::fusion::{FusedPointmap, Fusion};
use crate::compute::cuda::global::GlobalCapacity;
use crate::compute::cuda::matching::Matcher;
use crate::compute::cuda::preprocess::DevicePreprocessor;
use crate::compute::cuda::retrieval::{Retrieval, RetrievalPlan};
use crate::compute::cuda::sanitise::{Sanitiser, ViewBuffers};
use crate::compute::cuda::slots::{CudaSlots, SlotPlan};
use crate::compute::cuda::tracking::{CameraRays, PoseSolver};
use crate::compute::plan::{Group, MemoryPlan, Part};
use crate::compute::store::{FloatFormat, SlotLayout};
use crate::config::Loops;
use crate::image::ImageError;
use crate::inference::NetworkShape;

/// Bytes that a keyframe may take at 512×384; at other sizes in proportion to the pixels.
const SLOT_BYTES: u64 = 5_200_000;
const SLOT_PIXELS: u64 = 512 * 384;

/// Directions of an edge, and solves of one.
const WAYS: usize = 2;

/// Views of a pair.
const VIEWS: usize = 2;

/// Confidences in f16, and tokens in f32 where a slot then stays small enough (the mini model's), else
/// in f16.
pub fn slot_layout(shape: &NetworkShape) -> SlotLayout {
    let of = |features| {
        let (n, tokens) = (shape.pixels(), shape.tokens);
        SlotLayout::new(n, tokens, shape.feature_dim, FloatFormat::F16, features)
    };
    let wide = of(FloatFormat::F32);
    if wide.bytes as u64 * SLOT_PIXELS <= SLOT_BYTES * shape.pixels() as u64 {
        wide
    } else {
        of(FloatFormat::F16)
    }
}

/// Lays a run's memory out.
///
/// # Errors
/// [`ImageError`] if the encoding does not fit the camera's images.
pub fn lay_out(inputs: &PlanInputs<'_>) -> Result<DevicePlan, ImageError> {
    let mut memory = MemoryPlan::new();
    let tracking = tracking(&mut memory, inputs)?;
    let (config, shape) = (inputs.config, inputs.shape);
    let slots = SlotPlan {
        layout: slot_layout(shape),
        device_slots: config.memory.keyframe_slots,
        host_slots: config.memory.host_slots,
    };
    let mut part = memory.part(Group::Keyframes, "slots");
    let device_slots = part.device_arena(&CudaSlots::device_buffers(&slots));
    let host_slots = part.pinned_arena(&CudaSlots::pinned_buffers(&slots));

    let (edges, n) = (config.memory.edges, shape.pixels());
    let mut part = memory.part(Group::Edges, "slots");
    let of_edges = EdgesPlan {
        device: part.device_arena(&device::edge_device_buffers(edges, n)),
        host: part.pinned_arena(&device::edge_pinned_buffers(n)),
    };
    let mut part = memory.part(Group::Keyframes, "on their way");
    let exchange = part.device_arena(&device::exchange_buffers(n));
    let mut part = memory.part(Group::Tracking, "camera");
    let rays = CameraRays::buffers(shape.width, shape.height);
    let rays = (inputs.calibrated).then(|| part.device_arena(&rays));

    let capacity = GlobalCapacity {
        pixels: n,
        keyframes: config.memory.keyframe_slots,
        edges,
    };
    let mut part = memory.part(Group::Mapping, "edge");
    let [_, workspace] = inputs.network_workspace;
    let pair = pair(&mut part, inputs, (WAYS, inputs.edges_at_once()), workspace);
    let host_counts = part.pinned("match counts", &[WAYS]);
    let fusion = part
        .part("fusion")
        .device_arena(&Fusion::buffers(n, device::CONSTRAINING));
    let mut part = memory.part(Group::Mapping, "solve");
    let mapping = MappingPlan {
        pair,
        host_counts,
        fusion,
        capacity,
        solver: part.device_arena(&capacity.device_buffers()),
        host_solver: part.pinned_arena(&capacity.pinned_buffers()),
    };

    let places = inputs.words.filter(|_| config.loops == Loops::On);
    let places = places.map(|words| {
        let sizes = RetrievalPlan {
            tokens: shape.tokens,
            dim: shape.feature_dim,
            words,
            keyframes: config.memory.places,
        };
        let mut part = memory.part(Group::Retrieval, "places");
        PlacesPlan {
            device: part.device_arena(&Retrieval::device_buffers(&sizes)),
            host: part.pinned_arena(&Retrieval::pinned_buffers()),
            sizes,
        }
    });
    Ok(DevicePlan {
        memory,
        tracking,
        mapping,
        slots,
        device_slots,
        host_slots,
        edges: of_edges,
        exchange,
        rays,
        places,
    })
}

fn tracking(memory: &mut MemoryPlan, inputs: &PlanInputs<'_>) -> Result<TrackingPlan, ImageError> {
    let (config, shape) = (inputs.config, inputs.shape);
    let (width, height, n) = (shape.width, shape.height, shape.pixels());
    let (raw_width, raw_height) = inputs.preprocessor.input_size();
    let raw = inputs
        .encoding
        .bytes(raw_width, raw_height, inputs.stride)?;
    let mode = config.tracking.filtering_mode;

    let mut part = memory.part(Group::Tracking, "camera");
    let (host_raw, raw) = (
        part.pinned("raw image", &[raw]),
        part.device("raw image", &[raw]),
    );
    let buffers = DevicePreprocessor::buffers(inputs.preprocessor);
    let preprocessor = part.device_arena(&buffers);
    let shape_of_image = [height, width, 3];
    let image = part.device("image", &shape_of_image);
    let host_image = part.pinned("image", &shape_of_image);
    let planes = part.device("network input", &[3, height, width]);

    let mut part = memory.part(Group::Tracking, "frame");
    let [workspace, _] = inputs.network_workspace;
    let pair = pair(&mut part, inputs, (1, 1), workspace);
    let mut part = memory.part(Group::Tracking, "keyframe");
    Ok(TrackingPlan {
        host_raw,
        raw,
        preprocessor,
        image,
        host_image,
        planes,
        pair,
        host_unusable: part.pinned("unusable pixels", &[VIEWS]),
        index: part.device("index", &[n]),
        has_index: part.device("has index", &[1]),
        host_has_index: part.pinned("has index", &[1]),
        valid: part.device("valid", &[n]),
        quality: part.device("quality", &[n]),
        gated: part.device("gated qualities", &[n]),
        pose: part.device("pose", &[8]),
        host_identity: part.pinned("identity", &[8]),
        fusion: part.part("fusion").device_arena(&Fusion::buffers(n, mode)),
        pointmap: part
            .part("pointmap")
            .device_arena(&FusedPointmap::buffers(n)),
    })
}

/// What `ways` ways of a pair need, of which the network decodes `batch` together in a workspace of so many bytes.
fn pair(
    part: &mut Part<'_>,
    inputs: &PlanInputs<'_>,
    (ways, batch): (usize, usize),
    workspace: usize,
) -> PairPlan {
    let shape = inputs.shape;
    let (n, dim) = (shape.pixels(), shape.descriptor_dim);
    let tokens = [shape.tokens, shape.feature_dim];
    let names = ["view 1", "view 2"];
    let network = NetworkPlan {
        features: part.device("tokens", &[VIEWS * batch, shape.tokens, shape.feature_dim]),
        views: names.map(|view| {
            let buffers = ViewBuffers::buffers(batch * ways * n, dim);
            part.part(view).device_arena(&buffers)
        }),
        workspace: (workspace > 0).then(|| part.device("network workspace", &[workspace])),
        host: (inputs.network_on_host).then(|| HostNetworkPlan {
            features: names.map(|view| part.part(view).pinned("tokens", &tokens)),
            views: names.map(|view| {
                let mut part = part.part(view);
                HostView {
                    points: part.pinned("points", &[n, 3]),
                    confidence: part.pinned("confidences", &[n]),
                    descriptors: part.pinned("descriptors", &[n, dim]),
                    descriptor_confidence: part.pinned("descriptor confidences", &[n]),
                }
            }),
        }),
    };
    PairPlan {
        network,
        sanitiser: part.part("sanitiser").device_arena(&Sanitiser::buffers()),
        unusable: part.device("unusable pixels", &[VIEWS]),
        matcher: part.part("matcher").device_arena(&Matcher::buffers(
            shape.width,
            shape.height,
            dim,
        )),
        counts: part.device("match counts", &[ways]),
        solver: part
            .part("pose solver")
            .device_arena(&PoseSolver::buffers(inputs.info, n)),
        outcome: part.device("outcome", &[ways]),
        host_outcome: part.pinned("outcome", &[ways]),
    }
}
