//! Depth of the current frame and of the active keyframe on the GPU (docs/algorithm.md, Metric scale).

use super::errors::NAME;
use crate::compute::cuda::depth::field::{DepthField, DepthFieldBuffers};
use crate::compute::cuda::depth::moved::{DepthMover, DepthMoverBuffers};
use crate::compute::cuda::depth::{DepthMeter, DepthMeterBuffers, Found, MeasureTask};
use crate::compute::cuda::fusion::{FusedPointmap, FusionDepth};
use crate::compute::cuda::tracking::MeasuredDepths;
use crate::compute::depth::moved::{Next, NextDepth};
use crate::compute::depth::{DepthScale, NoScale};
use crate::compute::device::DeviceError;
use crate::geometry::Intrinsics;
use crate::gpu::{Carver, CudaError, DeviceBuffer, DeviceSlice, Event, PinnedBuffer, Stream};
use crate::inference::{DeviceView, NetworkShape};

/// Memory of a [`FrameDepth`].
pub(super) struct FrameDepthBuffers {
    meter: DepthMeterBuffers,
    mover: DepthMoverBuffers,
    field: DepthFieldBuffers,
    host_newest: PinnedBuffer<f32>,
    newest: DeviceBuffer<f32>,
    frame: DeviceBuffer<f32>,
    used: DeviceBuffer<u32>,
    host_used: PinnedBuffer<u32>,
    keyframe: DeviceBuffer<f32>,
    keyframe_used: DeviceBuffer<u32>,
    found: DeviceBuffer<Found>,
    host_found: PinnedBuffer<Found>,
    of_keyframe: DeviceBuffer<Found>,
}

impl FrameDepthBuffers {
    pub(super) fn carve(c: &mut Carver<'_, '_>, shape: &NetworkShape) -> Result<Self, CudaError> {
        let (width, height) = (shape.width, shape.height);
        let image = [height, width];
        Ok(Self {
            meter: DepthMeterBuffers::carve(&mut c.part("meter"), width, height)?,
            mover: DepthMoverBuffers::carve(&mut c.part("mover"), width, height)?,
            field: DepthFieldBuffers::carve(&mut c.part("field"), width, height)?,
            host_newest: c.pinned("newest depth", &image)?,
            newest: c.device("newest depth", &image)?,
            frame: c.device("depth of the frame", &image)?,
            used: c.device("has depth", &[1])?,
            host_used: c.pinned("has depth", &[1])?,
            keyframe: c.device("depth of the keyframe", &image)?,
            keyframe_used: c.device("keyframe has depth", &[1])?,
            found: c.device("scale", &[1])?,
            host_found: c.pinned("scale", &[1])?,
            of_keyframe: c.device("scale of the keyframe", &[1])?,
        })
    }
}

/// The stream on which a frame's depth is prepared while the network runs on the tracking stream, and its pass measured
/// while that matches.
struct Beside {
    stream: Stream,
    /// Recorded on the tracking stream: it has no more use for the depth of the frame before.
    free: Event,
    /// Recorded on this stream: the depth is prepared.
    ready: Event,
    /// The same two within a frame's captured work.
    from: Event,
    done: Event,
}

impl Beside {
    /// Later work of this stream waits for what `stream` has so far.
    fn follow(&self, stream: &Stream) -> Result<(), CudaError> {
        stream.record(&self.from)?;
        self.stream.wait(&self.from)
    }

    /// Later work of `stream` waits for what this stream has so far.
    fn join(&self, stream: &Stream) -> Result<(), CudaError> {
        self.stream.record(&self.done)?;
        stream.wait(&self.done)
    }
}

/// The current frame's depth, which is not enqueued yet.
struct Waiting {
    depth: Next,
    /// Whether the frame before has averages of the newest measurement, to be carried in place of it.
    has_average: bool,
}

/// Depth images, one N-array of metres each, and the scale that they give.
pub(super) struct FrameDepth {
    beside: Beside,
    /// `None` once [`FrameDepth::prepare`] has enqueued it.
    waiting: Option<Waiting>,
    meter: DepthMeter,
    /// What the network's newest pass with depth got wrong beside its scale; `None` without a calibration.
    field: Option<DepthField>,
    pixels: usize,
    mover: DepthMover,
    /// The newest measurement.
    host_newest: PinnedBuffer<f32>,
    newest: DeviceBuffer<f32>,
    next: Next,
    /// Depth of the current frame, if `has_frame`.
    frame: DeviceBuffer<f32>,
    has_frame: bool,
    /// Whether that is the newest measurement, and not moved.
    is_newest: bool,
    /// `has_frame` for the captured work.
    used: DeviceBuffer<u32>,
    host_used: PinnedBuffer<u32>,
    /// Depth of the active keyframe, if `has_keyframe`.
    keyframe: DeviceBuffer<f32>,
    has_keyframe: bool,
    /// `has_keyframe` for the captured work: not 0.
    keyframe_used: DeviceBuffer<u32>,
    found: DeviceBuffer<Found>,
    host_found: PinnedBuffer<Found>,
    /// Whether `host_found` is about the current frame.
    measured: bool,
    of_keyframe: DeviceBuffer<Found>,
    width: usize,
}

impl FrameDepth {
    /// For images of this shape. With intrinsics, passes are corrected by a field, and points that agree with their depth
    /// get at least this confidence. Waits.
    pub(super) fn new(
        stream: &Stream,
        buffers: FrameDepthBuffers,
        shape: &NetworkShape,
        camera: Option<(&Intrinsics, f32)>,
    ) -> Result<Self, CudaError> {
        let context = stream.context();
        let (width, height) = (shape.width, shape.height);
        let mut host_used = buffers.host_used;
        host_used.fill(0);
        stream.write(&host_used, buffers.used.all())?;
        stream.fill(buffers.keyframe_used.all(), 0)?;
        for found in [&buffers.found, &buffers.of_keyframe] {
            stream.write(&[Found::unscaled()], found.all())?;
        }
        let of_field = buffers.field;
        let size = (width, height);
        let field = camera.map(|camera| DepthField::new(context, stream, of_field, size, camera));
        let beside = Beside {
            stream: context.stream(stream.priority())?,
            free: context.event(false)?,
            ready: context.event(false)?,
            from: context.event(false)?,
            done: context.event(false)?,
        };
        Ok(Self {
            beside,
            waiting: None,
            meter: DepthMeter::new(context, stream, buffers.meter, width, height)?,
            field: field.transpose()?,
            pixels: shape.pixels(),
            mover: DepthMover::new(context, buffers.mover, width, height)?,
            host_newest: buffers.host_newest,
            newest: buffers.newest,
            next: Next::None,
            frame: buffers.frame,
            has_frame: false,
            is_newest: false,
            used: buffers.used,
            host_used,
            keyframe: buffers.keyframe,
            has_keyframe: false,
            keyframe_used: buffers.keyframe_used,
            found: buffers.found,
            host_found: buffers.host_found,
            measured: false,
            of_keyframe: buffers.of_keyframe,
            width,
        })
    }

    /// Sets the depth of the next frame.
    pub(super) fn set_next(&mut self, depth: Option<NextDepth<'_>>) -> Result<(), DeviceError> {
        self.next = Next::None;
        self.next = match depth {
            None => return Ok(()),
            Some(NextDepth::Carried(motion)) => Next::Carried(motion),
            Some(NextDepth::Measured { metres, motion }) => {
                if metres.len() != self.pixels {
                    return Err(DeviceError::Content {
                        device: NAME,
                        what: "depth",
                        expected: self.pixels,
                        found: metres.len(),
                    });
                }
                // An earlier upload may still read the pinned memory.
                self.beside.stream.synchronize()?;
                self.host_newest.copy_from_slice(metres);
                Next::Measured(motion)
            }
        };
        Ok(())
    }

    /// The next frame becomes the current one. [`FrameDepth::prepare`] has to follow before its depth is used.
    pub(super) fn advance(&mut self, stream: &Stream) -> Result<(), CudaError> {
        let depth = std::mem::take(&mut self.next);
        let has_average = self.is_newest && self.is_usable();
        self.has_frame = !matches!(depth, Next::None);
        self.is_newest = matches!(depth, Next::Measured(None));
        self.measured = false;
        self.waiting = Some(Waiting { depth, has_average });
        stream.record(&self.beside.free)
    }

    /// Enqueues what the current frame's depth still needs, beside the work that `stream` has. Later work of `stream`
    /// waits for it.
    pub(super) fn prepare(&mut self, stream: &Stream) -> Result<(), CudaError> {
        let Some(Waiting { depth, has_average }) = self.waiting.take() else {
            return Ok(());
        };
        let beside = &self.beside.stream;
        beside.wait(&self.beside.free)?;
        if let Next::Measured(_) = depth {
            // SAFETY: `set_next` waits for this upload before it writes the pinned memory again.
            unsafe { beside.upload(&self.host_newest, self.newest.all())? };
        }
        let (newest, frame) = (self.newest.all(), self.frame.all());
        // An average is carried further than the noise of single pixels.
        if has_average && matches!(depth, Next::Carried(_)) {
            beside.copy(frame, newest)?;
        }
        match &depth {
            Next::None => {}
            Next::Measured(None) => beside.copy(newest, frame)?,
            Next::Measured(Some(motion)) | Next::Carried(motion) => {
                self.mover.run(beside, newest, motion, frame)?;
            }
        }
        let used = u32::from(self.has_frame);
        if self.host_used.first() != Some(&used) {
            // An earlier upload may still read the pinned memory.
            beside.synchronize()?;
            self.host_used.fill(used);
            // SAFETY: this pinned memory is written only above, after the stream has been synchronised.
            unsafe { beside.upload(&self.host_used, self.used.all())? };
        }
        beside.record(&self.beside.ready)?;
        stream.wait(&self.beside.ready)
    }

    /// Enqueues the measurement of a pass, whose view of the current frame this is, beside later work of `stream`. Until
    /// [`FrameDepth::join`] that must not change the view.
    pub(super) fn measure(&self, stream: &Stream, frame: DeviceView<'_>) -> Result<(), CudaError> {
        self.beside.follow(stream)?;
        let task = MeasureTask {
            points: frame.points,
            confidence: frame.confidence,
            metres: self.frame.all(),
            used: Some(self.used.all()),
            found: self.found.all(),
        };
        (self.meter).measure(&self.beside.stream, &task, self.field.as_ref())
    }

    /// Enqueues applying the scale and field of [`FrameDepth::measure`] to the points of all views, after the work that
    /// `stream` has and beside later work, which must not use the points until [`FrameDepth::join`]. Without depth that
    /// can be used, the newest ones before are taken.
    pub(super) fn apply(
        &mut self,
        stream: &Stream,
        points: DeviceSlice<'_, f32>,
        other: Option<DeviceSlice<'_, f32>>,
    ) -> Result<(), CudaError> {
        self.beside.follow(stream)?;
        let (beside, found) = (&self.beside.stream, self.found.all());
        match &self.field {
            Some(field) => field.apply(beside, points, other, found)?,
            None => self.meter.rescale(beside, points, other, found)?,
        }
        // SAFETY: the tracking stream, which waits for this one, is synchronised before the data is read.
        unsafe { beside.download(found, &mut self.host_found) }
    }

    /// Later work of `stream` waits for the points in metres.
    pub(super) fn join(&self, stream: &Stream) -> Result<(), CudaError> {
        self.beside.join(stream)
    }

    /// Enqueues all of this for a pass with a single view.
    pub(super) fn scale_single(
        &mut self,
        stream: &Stream,
        view: DeviceView<'_>,
    ) -> Result<(), CudaError> {
        self.measure(stream, view)?;
        self.apply(stream, view.points, None)?;
        self.join(stream)?;
        self.correct(stream, view)
    }

    /// Takes note that the work with [`FrameDepth::measure`] has ended, with outputs of the network that could be used.
    pub(super) fn measured(&mut self) {
        self.measured = self.has_frame;
    }

    /// See [`TrackingDevice::depth_found`](crate::compute::device::TrackingDevice::depth_found).
    pub(super) fn found(&self) -> Option<Result<DepthScale, NoScale>> {
        let found = self.host_found.first().filter(|_| self.measured)?;
        Some(found.scale(self.pixels))
    }

    /// The depths of the current frame and of the active keyframe, and whether they count.
    pub(super) fn of_both(&self) -> MeasuredDepths<'_> {
        MeasuredDepths {
            frame: self.frame.all(),
            keyframe: self.keyframe.all(),
            of_frame: self.found.all(),
            of_keyframe: self.keyframe_used.all(),
        }
    }

    /// Enqueues bringing the points of the current frame's own view, after [`FrameDepth::join`], nearer to its depth.
    pub(super) fn correct(&self, stream: &Stream, view: DeviceView<'_>) -> Result<(), CudaError> {
        let Some(field) = &self.field else {
            return Ok(());
        };
        let (metres, found) = (self.frame.all(), self.found.all());
        field.approach(stream, view.points, Some(view.confidence), metres, found)
    }

    /// The depths that bring the active keyframe's points nearer to themselves as they are fused, by these matches;
    /// `None` without a field.
    pub(super) fn of_fusion<'a>(
        &'a self,
        index: DeviceSlice<'a, u32>,
        valid: DeviceSlice<'a, u8>,
    ) -> Option<FusionDepth<'a>> {
        self.field.as_ref().map(|_| FusionDepth {
            measured: self.of_both(),
            index,
            valid,
            width: self.width,
        })
    }

    /// Whether the current frame has a depth that gives its pass a scale.
    fn is_usable(&self) -> bool {
        matches!(self.found(), Some(Ok(_)))
    }

    /// The current frame's depth, if it has one that can be used.
    pub(super) fn of_frame(&self) -> Option<DeviceSlice<'_, f32>> {
        self.is_usable().then(|| self.frame.all())
    }

    /// Makes the current frame's depth that of the active keyframe.
    pub(super) fn start_keyframe(&mut self, stream: &Stream) -> Result<(), CudaError> {
        self.set_has_keyframe(stream, self.is_usable())?;
        match self.has_keyframe {
            true => stream.copy(self.frame.all(), self.keyframe.all()),
            false => Ok(()),
        }
    }

    fn set_has_keyframe(&mut self, stream: &Stream, has: bool) -> Result<(), CudaError> {
        self.has_keyframe = has;
        stream.fill(self.keyframe_used.all(), u8::from(has))
    }

    /// Makes `depth` that of the active keyframe.
    pub(super) fn restart(
        &mut self,
        stream: &Stream,
        depth: Option<DeviceSlice<'_, f32>>,
    ) -> Result<(), CudaError> {
        self.set_has_keyframe(stream, depth.is_some())?;
        depth.map_or(Ok(()), |depth| stream.copy(depth, self.keyframe.all()))
    }

    /// The scale of the active keyframe's pointmap; waits.
    pub(super) fn scale_of_keyframe(
        &mut self,
        stream: &Stream,
        map: &FusedPointmap,
    ) -> Result<Option<DepthScale>, CudaError> {
        if !self.has_keyframe {
            return Ok(None);
        }
        let task = MeasureTask {
            points: map.points.all(),
            confidence: map.confidence.all(),
            metres: self.keyframe.all(),
            used: None,
            found: self.of_keyframe.all(),
        };
        self.meter.measure(stream, &task, None)?;
        let mut found = [Found::default()];
        stream.read(self.of_keyframe.all(), &mut found)?;
        Ok(found.first().and_then(|f| f.scale(self.pixels).ok()))
    }
}
