//! Data shared by tracking and mapping: keyframes, edges, hand-off buffers and the camera's rays.

use super::edges::{CudaEdges, EdgeBuffers, EdgeSlots};
use super::hand_off::{HandOff, HandOffBuffers};
use crate::compute::cuda::slots::{CudaKeyframes, CudaSlots, SlotBuffers};
use crate::compute::cuda::tracking::{CameraRays, CameraRaysBuffers};
use crate::compute::device::DeviceError;
use crate::compute::store::{KeyframeStore, StoreOptions};
use crate::geometry::Intrinsics;
use crate::gpu::Stream;
use crate::inference::NetworkShape;
use std::path::PathBuf;
use std::sync::Arc;

/// Number of keyframes and edges before their tables grow.
const KEYFRAMES: usize = 4096;

/// Buffers of both threads.
pub(super) struct StoreBuffers {
    pub(super) slots: SlotBuffers,
    pub(super) edges: EdgeBuffers,
    pub(super) hand_off: HandOffBuffers,
    /// `None` if uncalibrated.
    pub(super) rays: Option<CameraRaysBuffers>,
}

/// Data shared by tracking and mapping.
pub(super) struct Stores {
    pub(super) keyframes: Arc<CudaKeyframes>,
    pub(super) edges: Arc<CudaEdges>,
    pub(super) hand_off: Arc<HandOff>,
    /// `None` if uncalibrated.
    pub(super) rays: Option<Arc<CameraRays>>,
}

impl Stores {
    /// `high` and `low` are the streams of tracking and mapping; keyframes that fit neither the GPU nor host memory go to `directory`.
    pub(super) fn new(
        buffers: StoreBuffers,
        [high, low]: [&Arc<Stream>; 2],
        shape: &NetworkShape,
        intrinsics: Option<Intrinsics>,
        directory: Option<PathBuf>,
    ) -> Result<Self, DeviceError> {
        let context = high.context();
        let options = StoreOptions {
            keyframes: KEYFRAMES,
            directory,
        };
        let slots = CudaSlots::new(context, buffers.slots, Arc::clone(high), Arc::clone(low))?;
        let keyframes = Arc::new(KeyframeStore::new(slots, &options)?);
        let hand_off = HandOff::new(context, buffers.hand_off, Arc::clone(&keyframes))?;
        let rays = match (buffers.rays, intrinsics) {
            (Some(buffers), Some(k)) => {
                let rays = CameraRays::new(low, buffers, k, shape.width, shape.height)?;
                Some(Arc::new(rays))
            }
            _ => None,
        };
        let edges = EdgeSlots::new(context, buffers.edges, Arc::clone(low))?;
        Ok(Self {
            keyframes,
            edges: Arc::new(KeyframeStore::new(edges, &options)?),
            hand_off: Arc::new(hand_off),
            rays,
        })
    }
}
