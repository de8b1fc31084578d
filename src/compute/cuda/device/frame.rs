//! What the tracking thread keeps of the current frame and the active keyframe on the GPU.

use super::depth::{FrameDepth, FrameDepthBuffers};
use super::errors::NAME;
use super::pair::{Pair, PairBuffers, PairModes};
use crate::compute::cuda::fusion::{FusedPointmap, FusionBuffers};
use crate::compute::cuda::tracking::CameraRays;
use crate::compute::device::DeviceError;
use crate::compute::mask;
use crate::config::DeviceConfig;
use crate::geometry::Sim3;
use crate::gpu::{
    Carver, Context, CudaError, DeviceBuffer, DeviceSlice, Event, PinnedBuffer, Stream,
};
use crate::inference::NetworkShape;
use std::sync::Arc;

/// Memory of a [`Frame`].
pub(super) struct FrameBuffers {
    host_unusable: PinnedBuffer<u32>,
    index: DeviceBuffer<u32>,
    has_index: DeviceBuffer<u32>,
    host_has_index: PinnedBuffer<u32>,
    valid: DeviceBuffer<u8>,
    quality: DeviceBuffer<f32>,
    gated: DeviceBuffer<f32>,
    pose: DeviceBuffer<f64>,
    host_identity: PinnedBuffer<f64>,
    host_start: PinnedBuffer<f64>,
    mask: Option<FrameMask>,
    depth: Option<FrameDepthBuffers>,
    fusion: FusionBuffers,
    pointmap: FusedPointmap,
    own: FusedPointmap,
}

/// The pixels of the current frame that are used: 1, or 0 for one that is hidden.
pub(super) struct FrameMask {
    host_used: PinnedBuffer<u8>,
    used: DeviceBuffer<u8>,
    /// Number of pixels that are not hidden.
    visible: usize,
}

impl FrameMask {
    fn carve(c: &mut Carver<'_, '_>, pixels: usize) -> Result<Self, CudaError> {
        Ok(Self {
            host_used: c.pinned("mask", &[pixels])?,
            used: c.device("mask", &[pixels])?,
            visible: pixels,
        })
    }

    /// The mask on the device.
    pub(super) fn used(&self) -> DeviceSlice<'_, u8> {
        self.used.all()
    }

    /// Number of pixels that are not hidden.
    pub(super) fn visible(&self) -> usize {
        self.visible
    }

    /// Shows every pixel, and waits.
    fn show_all(&mut self, stream: &Stream) -> Result<(), CudaError> {
        self.host_used.fill(1);
        stream.write(&self.host_used, self.used.all())
    }

    /// Hides the pixels that are 0 in `used`.
    pub(super) fn set(&mut self, stream: &Stream, used: &[u8]) -> Result<(), DeviceError> {
        mask::check(NAME, self.host_used.len(), used)?;
        // An earlier upload may still read the pinned memory.
        stream.synchronize()?;
        self.host_used.copy_from_slice(used);
        self.visible = mask::count(used);
        // SAFETY: this pinned memory is written only here, after the stream has been synchronised.
        Ok(unsafe { stream.upload(&self.host_used, self.used.all()) }?)
    }
}

impl FrameBuffers {
    pub(super) fn carve(
        c: &mut Carver<'_, '_>,
        shape: &NetworkShape,
        device: &DeviceConfig,
    ) -> Result<Self, CudaError> {
        let (pixels, config) = (shape.pixels(), &device.tracking);
        let mode = config.filtering_mode;
        Ok(Self {
            host_unusable: c.pinned("unusable pixels", &[2])?,
            index: c.device("index", &[pixels])?,
            has_index: c.device("has index", &[1])?,
            host_has_index: c.pinned("has index", &[1])?,
            valid: c.device("valid", &[pixels])?,
            quality: c.device("quality", &[pixels])?,
            gated: c.device("gated qualities", &[pixels])?,
            pose: c.device("pose", &[8])?,
            host_identity: c.pinned("identity", &[8])?,
            host_start: c.pinned("predicted pose", &[8])?,
            mask: config
                .masks
                .then(|| FrameMask::carve(c, pixels))
                .transpose()?,
            depth: device
                .depth
                .then(|| FrameDepthBuffers::carve(&mut c.part("depth"), shape))
                .transpose()?,
            fusion: FusionBuffers::carve(&mut c.part("fusion"), pixels, mode)?,
            pointmap: FusedPointmap::carve(&mut c.part("pointmap"), pixels)?,
            own: FusedPointmap::carve(&mut c.part("own pointmap"), pixels)?,
        })
    }
}

/// Buffers that a frame's graph reads and writes.
pub(super) struct Frame {
    pub(super) pair: Pair,
    /// The active keyframe's pointmap.
    pub(super) pointmap: FusedPointmap,
    /// The current frame's own pointmap, while it is copied.
    pub(super) own: FusedPointmap,
    pub(super) host_unusable: PinnedBuffer<u32>,
    /// Matched pixels, where the next search starts.
    pub(super) index: DeviceBuffer<u32>,
    /// 1 if `index` holds anything.
    pub(super) has_index: DeviceBuffer<u32>,
    pub(super) host_has_index: PinnedBuffer<u32>,
    pub(super) valid: DeviceBuffer<u8>,
    pub(super) quality: DeviceBuffer<f32>,
    /// Qualities past every gate.
    pub(super) gated: DeviceBuffer<f32>,
    /// Initial pose of the next solve.
    pub(super) pose: DeviceBuffer<f64>,
    /// Initial pose for a keyframe's first frame.
    pub(super) host_identity: PinnedBuffer<f64>,
    /// Initial pose that a sensor predicts.
    pub(super) host_start: PinnedBuffer<f64>,
    pub(super) mask: Option<FrameMask>,
    /// `None` without `depth.use`.
    pub(super) depth: Option<FrameDepth>,
    /// Start, matched, solved, fused.
    pub(super) marks: [Event; 4],
}

impl Frame {
    pub(super) fn new(
        stream: &Stream,
        pair: PairBuffers,
        buffers: FrameBuffers,
        shape: &NetworkShape,
        modes: &PairModes,
        rays: Option<Arc<CameraRays>>,
    ) -> Result<Self, CudaError> {
        let mut host_identity = buffers.host_identity;
        host_identity.copy_from_slice(&Sim3::identity().to_array());
        let camera = rays.as_ref().map(|rays| rays.intrinsics);
        let pair = Pair::new(stream, pair, buffers.fusion, shape, modes, rays)?;
        buffers.pointmap.clear(stream)?;
        buffers.own.clear(stream)?;
        let mut mask = buffers.mask;
        if let Some(mask) = &mut mask {
            mask.show_all(stream)?;
        }
        let depth = buffers.depth;
        let camera = camera
            .as_ref()
            .map(|camera| (camera, modes.measured_confidence));
        let depth = depth.map(|depth| FrameDepth::new(stream, depth, shape, camera));
        Ok(Self {
            pair,
            pointmap: buffers.pointmap,
            own: buffers.own,
            host_unusable: buffers.host_unusable,
            index: buffers.index,
            has_index: buffers.has_index,
            host_has_index: buffers.host_has_index,
            valid: buffers.valid,
            quality: buffers.quality,
            gated: buffers.gated,
            pose: buffers.pose,
            host_identity,
            host_start: buffers.host_start,
            mask,
            depth: depth.transpose()?,
            marks: events(stream.context())?,
        })
    }
}

/// Events that are timed.
pub(super) fn events<const N: usize>(context: &Context) -> Result<[Event; N], CudaError> {
    let events = (0..N).map(|_| context.event(true));
    let events: Vec<Event> = events.collect::<Result<_, _>>()?;
    events
        .try_into()
        .map_err(|found: Vec<Event>| CudaError::Length {
            what: "events",
            expected: N,
            found: found.len(),
        })
}

/// Milliseconds between two completed events.
pub(super) fn between(start: &Event, end: &Event) -> Result<f64, CudaError> {
    Ok(f64::from(start.milliseconds_until(end)?))
}
