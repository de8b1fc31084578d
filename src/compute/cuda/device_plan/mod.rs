//! Everything that a run on the GPU keeps there, laid out from the configuration before anything is
//! allocated.

mod lay_out;

pub use lay_out::{lay_out, slot_layout};

use super::DeviceInfo;
use super::global::GlobalCapacity;
use super::matching::MatchCounts;
use super::retrieval::RetrievalPlan;
use super::slots::SlotPlan;
use super::tracking::Outcome;
use crate::compute::plan::{
    DoesNotFit, Knob, MemoryPlan, Planned, PlannedArena, PlannedPinned, Saving, savings,
};
use crate::config::{Config, Loops};
use crate::image::Preprocessor;
use crate::image::encoding::Encoding;
use crate::inference::NetworkShape;

/// What a plan follows from.
#[derive(Clone, Copy)]
pub struct PlanInputs<'a> {
    /// Gates, modes, numbers of slots.
    pub config: &'a Config,
    /// What the network takes and gives.
    pub shape: &'a NetworkShape,
    /// The GPU.
    pub info: &'a DeviceInfo,
    /// From the camera's images to the network's.
    pub preprocessor: &'a Preprocessor,
    /// Of the camera's images.
    pub encoding: Encoding,
    /// Bytes of a row of them.
    pub stride: usize,
    /// Whether the camera's intrinsics are used.
    pub calibrated: bool,
    /// Whether the network runs on the host, so that everything is staged.
    pub network_on_host: bool,
    /// Bytes of device memory that a run of the network needs besides inputs, outputs and weights: tracking's
    /// and mapping's.
    pub network_workspace: [usize; 2],
    /// Words of the codebook, if there is one.
    pub words: Option<usize>,
}

impl PlanInputs<'_> {
    /// Edges that the network decodes together, at most; on the host one after the other.
    pub fn edges_at_once(&self) -> usize {
        match self.network_on_host {
            true => 1,
            false => self.config.memory.edge_batch.max(1),
        }
    }
}

/// One view's outputs as a network on the host gives them, in pinned memory.
pub struct HostView {
    /// `N × 3`
    pub points: PlannedPinned<f32>,
    /// `N`
    pub confidence: PlannedPinned<f32>,
    /// `N × D`
    pub descriptors: PlannedPinned<f32>,
    /// `N`
    pub descriptor_confidence: PlannedPinned<f32>,
}

/// What a network on the host needs.
pub struct HostNetworkPlan {
    /// `T × C` encoder tokens of both views.
    pub features: [PlannedPinned<f32>; 2],
    /// Outputs.
    pub views: [HostView; 2],
}

/// The network's inputs and outputs, for one thread.
pub struct NetworkPlan {
    /// `2 × T × C` encoder tokens of both views; for mapping of all pairs that are decoded together.
    pub features: Planned<f32>,
    /// Outputs, of one pair for tracking, of these pairs both ways for mapping; see
    /// [`super::sanitise::ViewBuffers`].
    pub views: [PlannedArena; 2],
    /// What a run needs besides them, if the network asks for any.
    pub workspace: Option<Planned<u8>>,
    /// Inputs and outputs on the host, if the network runs there.
    pub host: Option<HostNetworkPlan>,
}

/// What a pair of views needs from the network's outputs to a pose, for one thread.
pub struct PairPlan {
    /// See [`NetworkPlan`].
    pub network: NetworkPlan,
    /// See [`super::sanitise::Sanitiser`].
    pub sanitiser: PlannedArena,
    /// Pixels of each view that cannot be used.
    pub unusable: Planned<u32>,
    /// See [`super::matching::Matcher`].
    pub matcher: PlannedArena,
    /// Counts of each direction that is matched.
    pub counts: Planned<MatchCounts>,
    /// See [`super::tracking::PoseSolver`].
    pub solver: PlannedArena,
    /// Of each direction's solve.
    pub outcome: Planned<Outcome>,
    /// The same on the host.
    pub host_outcome: PlannedPinned<Outcome>,
}

/// The tracking thread's.
pub struct TrackingPlan {
    /// The camera's bytes.
    pub host_raw: PlannedPinned<u8>,
    /// The same on the device.
    pub raw: Planned<u8>,
    /// See [`super::preprocess::DevicePreprocessor`].
    pub preprocessor: PlannedArena,
    /// `H × W × 3`: the current frame.
    pub image: Planned<u8>,
    /// The current frame's on the host.
    pub host_image: PlannedPinned<u8>,
    /// `3 × H × W`: the network's input.
    pub planes: Planned<f32>,
    /// The frame with its keyframe.
    pub pair: PairPlan,
    /// [`PairPlan::unusable`] on the host.
    pub host_unusable: PlannedPinned<u32>,
    /// `N` matched pixels, the start of the next search.
    pub index: Planned<u32>,
    /// 1 if `index` holds anything.
    pub has_index: Planned<u32>,
    /// The same on the host.
    pub host_has_index: PlannedPinned<u32>,
    /// `N` flags of the matches.
    pub valid: Planned<u8>,
    /// `N` qualities of the matches.
    pub quality: Planned<f32>,
    /// `N` qualities past every gate.
    pub gated: Planned<f32>,
    /// Where the next solve starts from.
    pub pose: Planned<f64>,
    /// Where a keyframe's first solve starts from, on the host.
    pub host_identity: PlannedPinned<f64>,
    /// See [`super::fusion::Fusion`].
    pub fusion: PlannedArena,
    /// The active keyframe's pointmap; see [`super::fusion::FusedPointmap`].
    pub pointmap: PlannedArena,
}

/// Matches of the graph's edges; see [`super::device`].
pub struct EdgesPlan {
    /// On the device.
    pub device: PlannedArena,
    /// In pinned memory, on their way to a file.
    pub host: PlannedArena,
}

/// The mapping thread's.
pub struct MappingPlan {
    /// Two keyframes.
    pub pair: PairPlan,
    /// [`PairPlan::counts`] on the host.
    pub host_counts: PlannedPinned<MatchCounts>,
    /// See [`super::fusion::Fusion`].
    pub fusion: PlannedArena,
    /// The largest solve that needs no parts.
    pub capacity: GlobalCapacity,
    /// See [`super::global::DeviceGlobalSolver`].
    pub solver: PlannedArena,
    /// The same in pinned memory.
    pub host_solver: PlannedArena,
}

/// A run's memory.
pub struct DevicePlan {
    /// All of it.
    pub memory: MemoryPlan,
    /// The tracking thread's.
    pub tracking: TrackingPlan,
    /// The mapping thread's.
    pub mapping: MappingPlan,
    /// How keyframes lie in their slots, and how many slots there are.
    pub slots: SlotPlan,
    /// The slots; see [`super::slots::CudaSlots`].
    pub device_slots: PlannedArena,
    /// The slots in host memory.
    pub host_slots: PlannedArena,
    /// Matches.
    pub edges: EdgesPlan,
    /// Pointmaps on their way from tracking to mapping; see [`super::device`].
    pub exchange: PlannedArena,
    /// See [`super::tracking::CameraRays`]; calibrated only.
    pub rays: Option<PlannedArena>,
    /// Place recognition, if there is a codebook.
    pub places: Option<PlacesPlan>,
}

/// Place recognition.
pub struct PlacesPlan {
    /// Its sizes.
    pub sizes: RetrievalPlan,
    /// See [`super::retrieval::Retrieval`].
    pub device: PlannedArena,
    /// The same in pinned memory.
    pub host: PlannedArena,
}

impl DevicePlan {
    /// Refuses a plan that takes more device memory than there is, and says what to lower. `bytes` is
    /// the size of the plan of another configuration.
    pub fn fit(
        &self,
        config: &Config,
        available: u64,
        bytes: impl Fn(&Config) -> u64,
    ) -> Result<(), DoesNotFit> {
        let needed = self.memory.device_bytes();
        if needed <= available {
            return Ok(());
        }
        Err(DoesNotFit {
            needed,
            available,
            savings: lower(config, bytes),
        })
    }
}

/// What can be lowered, and what that saves.
pub fn lower(config: &Config, bytes: impl Fn(&Config) -> u64) -> Vec<Saving> {
    savings(config, KNOBS, bytes)
}

/// Parameters of the configuration that the plan's size follows from.
const KNOBS: &[Knob<Config>] = &[
    Knob {
        parameter: "memory.keyframe_slots",
        value: |c| c.memory.keyframe_slots.to_string(),
        lower: |c| halve(&mut c.memory.keyframe_slots, 8),
    },
    Knob {
        parameter: "memory.edges",
        value: |c| c.memory.edges.to_string(),
        lower: |c| halve(&mut c.memory.edges, 16),
    },
    Knob {
        parameter: "memory.edge_batch",
        value: |c| c.memory.edge_batch.to_string(),
        lower: |c| halve(&mut c.memory.edge_batch, 1),
    },
    Knob {
        parameter: "memory.places",
        value: |c| c.memory.places.to_string(),
        lower: |c| halve(&mut c.memory.places, 64),
    },
    Knob {
        parameter: "network.size",
        value: |c| c.network.size.to_string(),
        lower: |c| halve(&mut c.network.size, 128),
    },
    Knob {
        parameter: "loops",
        value: |c| match c.loops {
            Loops::On => "on".into(),
            Loops::Off => "off".into(),
        },
        lower: |c| std::mem::replace(&mut c.loops, Loops::Off) == Loops::On,
    },
];

/// Halves, as long as `least` is left; whether it did.
fn halve(value: &mut usize, least: usize) -> bool {
    let half = *value / 2;
    let enough = half >= least;
    if enough {
        *value = half;
    }
    enough
}
