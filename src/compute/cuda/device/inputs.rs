//! Quantities that determine the memory of a run on the GPU.

use super::camera::CameraFormat;
use crate::compute::cuda::retrieval::RetrievalPlan;
use crate::compute::cuda::slots::SlotPlan;
use crate::compute::device::Setup;
use crate::compute::store::{FloatFormat, SlotLayout};
use crate::config::{DeviceConfig, Loops};
use crate::gpu::DeviceInfo;
use crate::image::Preprocessor;
use crate::inference::{Backend, NetworkShape};

/// Maximum size of a keyframe at 512×384 in bytes; scaled with the number of pixels for other
/// sizes.
const SLOT_BYTES: u64 = 5_200_000;
const SLOT_PIXELS: u64 = 512 * 384;

/// Quantities that determine the memory of a run.
#[derive(Clone, Copy)]
pub struct PlanInputs<'a> {
    /// Configuration with modes and numbers of slots.
    pub config: &'a DeviceConfig,
    /// Sizes of the network's inputs and outputs.
    pub shape: &'a NetworkShape,
    /// Properties of the GPU.
    pub info: &'a DeviceInfo,
    /// Converts camera images to network images.
    pub preprocessor: &'a Preprocessor,
    /// Pixel format of the camera's images.
    pub camera: CameraFormat,
    /// Whether the camera's intrinsics are used.
    pub calibrated: bool,
    /// Whether the network runs on the host, with data staged through pinned memory.
    pub network_on_host: bool,
    /// Device memory in bytes that a run of the network needs in addition to inputs, outputs and
    /// weights, for tracking and for mapping.
    pub network_workspace: [usize; 2],
    /// The same for an encoder that runs beside, if there is one: the next image is then encoded while a frame is tracked.
    pub encoder_workspace: Option<usize>,
    /// Whether the network writes and reads tokens in half precision; keyframes then keep them so.
    pub half_tokens: bool,
    /// Maximum number of edges decoded as one batch.
    pub edge_batch: usize,
    /// Number of words in the codebook, if there is one.
    pub words: Option<usize>,
}

impl<'a> PlanInputs<'a> {
    /// Those of a device for images of these sizes, with the network of `backend`.
    pub(super) fn of(
        info: &'a DeviceInfo,
        backend: &mut dyn Backend,
        setup: &'a Setup,
        (shape, preprocessor, camera): (&'a NetworkShape, &'a Preprocessor, CameraFormat),
    ) -> Self {
        Self {
            config: &setup.config,
            shape,
            info,
            preprocessor,
            camera,
            calibrated: setup.intrinsics.is_some(),
            network_on_host: backend.device().is_none(),
            network_workspace: [0; 2],
            encoder_workspace: None,
            half_tokens: takes_half_tokens(backend),
            edge_batch: setup.config.memory.edge_batch.max(1),
            words: setup.places.as_ref().map(|model| model.words()),
        }
    }

    /// Maximum number of edges decoded as one batch; 1 on the host.
    pub(super) fn edges_at_once(&self) -> usize {
        match self.network_on_host {
            true => 1,
            false => self.edge_batch.max(1),
        }
    }

    /// Slots of the keyframes.
    pub fn slots(&self) -> SlotPlan {
        SlotPlan {
            layout: slot_layout(self.shape, self.half_tokens),
            device_slots: self.config.memory.keyframe_slots,
            host_slots: self.config.memory.host_slots,
        }
    }

    /// Plan of place recognition, if enabled.
    pub(super) fn places(&self) -> Option<RetrievalPlan> {
        let words = self.words.filter(|_| self.config.loops == Loops::On)?;
        Some(RetrievalPlan {
            tokens: self.shape.tokens,
            dim: self.shape.feature_dim,
            words,
            keyframes: self.config.memory.places,
        })
    }
}

/// Whether the network's tokens are in half precision.
fn takes_half_tokens(backend: &mut dyn Backend) -> bool {
    backend.device().is_some_and(|d| d.takes_half_tokens())
}

/// Confidences are stored in f16; tokens in f16 if the network writes them so, or if the slot would be
/// too large with f32 (it is not for the mini model).
pub fn slot_layout(shape: &NetworkShape, half_tokens: bool) -> SlotLayout {
    let of = |features| {
        let (n, tokens) = (shape.pixels(), shape.tokens);
        SlotLayout::new(n, tokens, shape.feature_dim, FloatFormat::F16, features)
    };
    let wide = of(FloatFormat::F32);
    if !half_tokens && wide.bytes as u64 * SLOT_PIXELS <= SLOT_BYTES * shape.pixels() as u64 {
        wide
    } else {
        of(FloatFormat::F16)
    }
}
