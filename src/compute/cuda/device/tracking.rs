//! The tracking half: from camera image to pose without leaving the GPU.
//!
//! The work before the network (from upload to network input) and after it (from sanitising to fusion) is the same for
//! every frame, so each is captured once as a graph and launched as a whole. Everything that varies is in device memory:
//! the index map and its validity flag, the initial pose, the fused pointmap. The host waits once, for the outcome.

use super::camera::{CameraBuffers, CameraFormat};
use super::content;
use super::depth::FrameDepth;
use super::errors::unknown;
use super::frame::{Frame, FrameBuffers, FrameMask, between, events};
use super::hand_off::{HandOff, HandOffItem, Owner};
use super::images::Images;
use super::network::{Decoding, Network, NetworkBuffers};
use super::pair::{PairBuffers, PairModes};
use super::repeated::Repeated;
use super::stores::Stores;
use crate::compute::cuda::fusion::{ExportTask, FusedPointmap, UpdateTask};
use crate::compute::cuda::matching::{Gates, MatchTask, Start};
use crate::compute::cuda::slots::{CudaKeyframes, SlotView};
use crate::compute::cuda::tracking::{SolveTask, Unsolved};
use crate::compute::depth::moved::NextDepth;
use crate::compute::depth::{DepthScale, NoScale};
use crate::compute::device::{
    DeviceError, Fractions, FramePoints, Handle, LostReason, MemoryPool, Outcome, SeenFrame,
    Tracked, TrackingDevice,
};
use crate::compute::matching::Refinement;
use crate::compute::store::Lane;
use crate::config::DeviceConfig;
use crate::geometry::Sim3;
use crate::gpu::{CudaError, DeviceBuffer, DeviceSlice, Event, Floats, Stream};
use crate::image::Preprocessor;
use crate::image::encoding::RawImage;
use crate::inference::{Backend, NetworkShape};
use crate::time::{StageTimes, millis};
use std::sync::Arc;
use std::time::Instant;

/// Buffers of the tracking thread.
pub(super) struct TrackingBuffers {
    /// One for each image that can be on its way.
    pub(super) camera: Vec<CameraBuffers>,
    pub(super) network: NetworkBuffers,
    pub(super) pair: PairBuffers,
    pub(super) frame: FrameBuffers,
}

/// The tracking half.
pub(super) struct Tracking {
    config: Arc<DeviceConfig>,
    name: String,
    stream: Arc<Stream>,
    keyframes: Arc<CudaKeyframes>,
    hand_off: Arc<HandOff>,
    network: Network,
    images: Images,
    frame: Frame,
    /// Decoded from, to; for a network on the GPU.
    decoder: [Event; 2],
    /// Whether the frame before was tracked, so that this one most likely is.
    tracks: bool,
    /// Whether the current frame's pair is being decoded already.
    decodes: bool,
    /// The work after the network.
    work: Repeated,
    tracked: u32,
    times: StageTimes,
    /// Memory of the whole device.
    pub(super) memory: Vec<MemoryPool>,
}

impl Tracking {
    /// Sends tables and has the backend prepare its first runs; `preprocessor` is for images in `format`.
    pub(super) fn new(
        config: Arc<DeviceConfig>,
        stream: Arc<Stream>,
        stores: &Stores,
        backend: Box<dyn Backend>,
        buffers: TrackingBuffers,
        (preprocessor, format): (&Preprocessor, CameraFormat),
    ) -> Result<Self, DeviceError> {
        let context = stream.context();
        let mut network = Network::new(context, &stream, backend, buffers.network)?;
        let images = Images::new(&stream, buffers.camera, preprocessor, format)?;
        let decodings = [Decoding::Mono, Decoding::Pair];
        let (streams, planes) = images.inputs(&stream);
        network.warm_up(&stream, (&streams, &planes), &decodings)?;
        let modes = PairModes {
            // The index of an invalid pixel initialises its search in the next frame.
            refinement: Refinement::SingleAll,
            masks: config.tracking.masks,
            fusion: config.tracking.filtering_mode,
            score: config.tracking.filtering_score,
            measured_confidence: config.measured_confidence,
        };
        let shape = network.shape();
        let (pair, rays) = (buffers.pair, stores.rays.clone());
        let frame = Frame::new(&stream, pair, buffers.frame, shape, &modes, rays)?;
        let decoder = events(context)?;
        Ok(Self {
            config,
            name: context.info().name.clone(),
            keyframes: Arc::clone(&stores.keyframes),
            hand_off: Arc::clone(&stores.hand_off),
            network,
            images,
            frame,
            decoder,
            tracks: false,
            decodes: false,
            work: Repeated::new("a frame's work after the network"),
            tracked: 0,
            times: StageTimes::default(),
            memory: Vec::new(),
            stream,
        })
    }

    /// Enqueues a frame's work after the network: the part that is captured.
    fn enqueue(&mut self) -> Result<(), CudaError> {
        let (stream, frame, config) = (&self.stream, &mut self.frame, &self.config);
        let (first, second) = (self.network.view(0), self.network.view(1));
        // SAFETY: the pinned memory is written before the frame's work is launched, and not touched
        // until the stream has been synchronised.
        unsafe { stream.upload(&frame.host_has_index, frame.has_index.all())? };
        stream.mark(&frame.marks[0])?;
        self.network.sanitise(stream, 0, 2)?;
        if let (Some(masker), Some(mask)) = (&frame.pair.masker, &frame.mask) {
            masker.hide(stream, first, mask.used())?;
            // A keyframe has no confidence where it was hidden, and gets none from frames where it is not.
            let of_keyframe = Floats::F32(frame.pointmap.confidence.all());
            masker.hide_as_in(stream, second, of_keyframe)?;
        }
        if let Some(depth) = &frame.depth {
            depth.measure(stream, first)?;
        }
        let gates = Gates {
            key_confidence: frame.pointmap.confidence.all(),
            key_count: frame.pointmap.count(),
            c_conf: config.tracking.c_conf,
            gated: frame.gated.all(),
        };
        let task = MatchTask {
            target: first,
            query: second,
            start: Start::Map {
                map: frame.index.all(),
                used: Some(frame.has_index.all()),
            },
            q_conf: config.tracking.q_conf,
            gates: Some(gates),
            index: frame.index.all(),
            valid: frame.valid.all(),
            quality: Floats::F32(frame.quality.all()),
            counts: frame.pair.counts.all(),
        };
        // The search needs only directions, and runs beside the measurement of their scale.
        let searched = (frame.pair.matcher).search(stream, &config.matching, &task)?;
        if let Some(depth) = &mut frame.depth {
            depth.apply(stream, first.points, Some(second.points))?;
        }
        let rounded = searched.round()?;
        if let Some(depth) = &frame.depth {
            depth.join(stream)?;
        }
        rounded.refine()?;
        if let Some(depth) = &frame.depth {
            depth.correct(stream, first)?;
        }
        stream.mark(&frame.marks[1])?;
        let task = SolveTask {
            frame_points: first.points,
            keyframe_points: frame.pointmap.points.all(),
            index: frame.index.all(),
            quality: Floats::F32(frame.gated.all()),
            min_quality: 0.0,
            counts: Some(frame.pair.counts.all()),
            compared: frame.pair.compared(),
            pose: Some(frame.pose.all()),
            outcome: frame.pair.outcome.all(),
            measured: frame.depth.as_ref().map(FrameDepth::of_both),
            min_fit: config.tracking.min_fit_frac as f32,
        };
        frame.pair.solver.enqueue(stream, &task, &config.tracking)?;
        stream.mark(&frame.marks[2])?;
        let task = UpdateTask {
            points: second.points,
            confidence: second.confidence,
            outcome: Some(frame.pair.outcome.all()),
            restart: false,
            depth: frame
                .depth
                .as_ref()
                .and_then(|depth| depth.of_fusion(frame.index.all(), frame.valid.all())),
        };
        frame.pair.fusion.update(stream, &frame.pointmap, &task)?;
        stream.mark(&frame.marks[3])?;
        // SAFETY: the stream is synchronised before the data is read.
        unsafe {
            stream.download(frame.pair.outcome.all(), &mut frame.pair.host_outcome)?;
            stream.download(self.network.unusable(), &mut frame.host_unusable)
        }
    }

    /// Runs a frame's work and waits for it.
    fn run(&mut self) -> Result<(), CudaError> {
        self.tracked = self.tracked.saturating_add(1);
        let stream = Arc::clone(&self.stream);
        let mut work = std::mem::take(&mut self.work);
        // SAFETY: everything the work accesses belongs to this half, or is pinned memory that is
        // not touched until the stream has been synchronised below.
        let enqueued = unsafe { work.enqueue(&stream, || self.enqueue()) };
        self.work = work;
        enqueued?;
        self.stream.synchronize()?;
        let [start, matched, solved, fused] = &self.frame.marks;
        self.times.matching += between(start, matched)?;
        self.times.tracking += between(matched, solved)?;
        self.times.fusion += between(solved, fused)?;
        self.network_times()
    }

    /// Reads the times of the stages before [`Tracking::run`], after the stream has been
    /// synchronised.
    fn network_times(&mut self) -> Result<(), CudaError> {
        let passage = self.images.current();
        let [started, preprocessed] = &passage.preprocessing;
        self.times.preprocess = between(started, preprocessed)?;
        if !self.network.is_on_host() {
            let ([from, to], [start, end]) = (&passage.encoding, &self.decoder);
            self.times.encode = between(from, to)?;
            self.times.decode += between(start, end)?;
        }
        Ok(())
    }

    fn decode(&mut self, decoding: Decoding) -> Result<(), DeviceError> {
        let start = Instant::now();
        self.stream.record(&self.decoder[0])?;
        self.network.decode(&self.stream, decoding)?;
        self.stream.record(&self.decoder[1])?;
        if let Some(depth) = &mut self.frame.depth {
            depth.prepare(&self.stream)?;
        }
        if self.network.is_on_host() {
            self.times.decode += millis(start);
        }
        Ok(())
    }

    /// Resets the pose to the identity and invalidates the index map: the next frame is the first
    /// one tracked against a keyframe.
    fn forget(&mut self) -> Result<(), CudaError> {
        let frame = &mut self.frame;
        frame.host_has_index.fill(0);
        // SAFETY: this pinned memory never changes.
        unsafe { self.stream.upload(&frame.host_identity, frame.pose.all()) }
    }

    /// Restarts a pointmap with the current frame's own view as first estimate.
    fn restart(&self, pointmap: &FusedPointmap) -> Result<(), CudaError> {
        let view = self.network.view(0);
        let task = UpdateTask {
            points: view.points,
            confidence: view.confidence,
            outcome: None,
            restart: true,
            depth: None,
        };
        let fusion = &self.frame.pair.fusion;
        fusion.update(&self.stream, pointmap, &task)
    }

    /// Writes the current frame and a pointmap to a slot of the store; returns its key.
    fn store(&self, pointmap: &FusedPointmap) -> Result<u32, DeviceError> {
        let key = self.hand_off.new_key();
        let lease = self.keyframes.insert(Lane::Tracking, key)?;
        let slot = self.keyframes.device().slot(lease.slot())?;
        let written = self.fill(&slot, pointmap);
        drop(lease);
        if let Err(error) = written {
            super::hand_off::remove(&self.keyframes, key);
            return Err(error.into());
        }
        Ok(key)
    }

    fn fill(&self, slot: &SlotView<'_>, pointmap: &FusedPointmap) -> Result<(), CudaError> {
        let (stream, frame) = (&self.stream, &self.frame);
        stream.copy(self.images.current().camera.image.all(), slot.image)?;
        let (confidence, half_confidence) = match slot.confidence {
            Floats::F32(v) => (Some(v), None),
            Floats::F16(v) => (None, Some(v)),
        };
        let task = ExportTask {
            rays: frame.pair.rays.as_deref(),
            points: slot.points,
            confidence,
            half_confidence,
        };
        frame.pair.fusion.export(stream, pointmap, &task)?;
        let tokens = self.network.features(0);
        frame.pair.convert.copy(stream, tokens, slot.features)
    }

    /// Hands off a pointmap, and the depth of its frame.
    fn put_pointmap(
        &self,
        pointmap: &FusedPointmap,
        key: Option<u32>,
        depth: Option<DeviceSlice<'_, f32>>,
    ) -> Result<Handle, DeviceError> {
        let (number, buffer) = self.hand_off.take_buffer()?;
        let (stream, frame) = (&self.stream, &self.frame);
        let task = ExportTask {
            rays: None,
            points: buffer.points.all(),
            confidence: Some(buffer.confidence.all()),
            half_confidence: Some(buffer.half_confidence.all()),
        };
        let done = buffer
            .before_writing(stream)
            .and_then(|()| frame.pair.fusion.export(stream, pointmap, &task))
            .and_then(|()| match (depth, &buffer.depth) {
                (Some(depth), Some(dst)) => stream.copy(depth, dst.all()),
                _ => Ok(()),
            })
            .and_then(|()| buffer.after_writing(stream));
        if let Err(error) = done {
            self.hand_off.give_back(number);
            return Err(error.into());
        }
        let item = HandOffItem {
            key,
            buffer: Some(number),
            has_depth: depth.is_some(),
        };
        Ok(self.hand_off.put(item, Owner::Handle))
    }
}

impl TrackingDevice for Tracking {
    fn describe(&self) -> String {
        format!("{}, the rest on {}", self.network.name(), self.name)
    }

    fn shape(&self) -> &NetworkShape {
        self.network.shape()
    }

    fn encode(&mut self, image: &RawImage<'_>) -> Result<(), DeviceError> {
        self.times = StageTimes::default();
        self.decodes = false;
        let start = Instant::now();
        self.images.take(&self.stream, &mut self.network, image)?;
        if let Some(depth) = &mut self.frame.depth {
            depth.advance(&self.stream)?;
        }
        if self.network.is_on_host() {
            self.times.encode = millis(start);
        }
        Ok(())
    }

    fn expect(&mut self, image: &RawImage<'_>) -> Result<(), DeviceError> {
        if !self.network.encodes_beside() {
            return Ok(());
        }
        // The GPU has this to do while the host copies the image.
        if self.tracks {
            self.decode(Decoding::Pair)?;
            self.decodes = true;
        }
        self.images.expect(&mut self.network, image)
    }

    fn set_mask(&mut self, used: &[u8]) -> Result<(), DeviceError> {
        match &mut self.frame.mask {
            Some(mask) => mask.set(&self.stream, used),
            None => Err(DeviceError::NoMasks),
        }
    }

    fn set_depth(&mut self, next: Option<NextDepth<'_>>) -> Result<(), DeviceError> {
        let depth = self.frame.depth.as_mut().ok_or(DeviceError::NoDepth)?;
        depth.set_next(next)
    }

    fn depth_found(&self) -> Option<Result<DepthScale, NoScale>> {
        self.frame.depth.as_ref()?.found()
    }

    fn keyframe_scale(&mut self) -> Result<Option<DepthScale>, DeviceError> {
        let frame = &mut self.frame;
        let Some(depth) = &mut frame.depth else {
            return Ok(None);
        };
        Ok(depth.scale_of_keyframe(&self.stream, &frame.pointmap)?)
    }

    fn decode_single(&mut self) -> Result<usize, DeviceError> {
        self.decodes = false;
        self.decode(Decoding::Mono)?;
        let frame = &mut self.frame;
        let view = self.network.view(0);
        self.network.sanitise(&self.stream, 0, 1)?;
        if let (Some(masker), Some(mask)) = (&frame.pair.masker, &frame.mask) {
            masker.hide(&self.stream, view, mask.used())?;
        }
        if let Some(depth) = &mut frame.depth {
            depth.scale_single(&self.stream, view)?;
        }
        let visible = frame.mask.as_ref().map(FrameMask::visible);
        // Count of the only view.
        let mut unusable = [0];
        self.stream
            .read(self.network.unusable().slice(0..1)?, &mut unusable)?;
        if let Some(depth) = &mut frame.depth {
            depth.measured();
        }
        self.network_times()?;
        let [unusable] = unusable.map(|n| n as usize);
        let pixels = self.network.shape().pixels();
        let usable = pixels.saturating_sub(unusable);
        Ok(visible.map_or(usable, |visible| usable.min(visible)))
    }

    fn start_at(&mut self, keyframe_from_frame: &Sim3) -> Result<(), DeviceError> {
        let frame = &mut self.frame;
        let pose = keyframe_from_frame.to_array();
        frame.host_start.copy_from_slice(&pose);
        // SAFETY: the stream is synchronised at the end of each frame's work, before the next pose is written.
        unsafe { self.stream.upload(&frame.host_start, frame.pose.all())? };
        Ok(())
    }

    fn track(&mut self) -> Result<Outcome, DeviceError> {
        if !std::mem::take(&mut self.decodes) {
            self.decode(Decoding::Pair)?;
        }
        self.tracks = false;
        self.run()?;
        let pixels = self.network.shape().pixels();
        let frame = &mut self.frame;
        let blind = frame.host_unusable.iter().any(|&n| n as usize == pixels);
        if blind {
            frame.host_has_index.fill(0);
            return Ok(Outcome::Lost {
                reason: LostReason::UnusableOutput(pixels),
                match_fraction: 0.0,
            });
        }
        frame.host_has_index.fill(1);
        if let Some(depth) = &mut frame.depth {
            depth.measured();
        }
        let Some(solved) = frame.pair.host_outcome.first() else {
            return Err(unknown("outcome of frame", self.tracked));
        };
        // Fractions of what can be seen: a robot's body in the image makes no frame worse.
        let visible = frame.mask.as_ref().map_or(pixels, FrameMask::visible);
        let n = visible.max(1) as f32;
        let counts = &solved.counts;
        let fractions = Fractions {
            geometric: counts.valid as f32 / n,
            used: counts.used as f32 / n,
            good: counts.good as f32 / n,
            unique: counts.unique as f32 / n,
        };
        let reason = match solved.solution(pixels) {
            Ok(solution) => {
                self.tracks = true;
                return Ok(Outcome::Tracked(Tracked {
                    keyframe_from_frame: solution.keyframe_from_frame,
                    fractions,
                    iterations: solution.iterations,
                    fit: (&solution).into(),
                }));
            }
            Err(Unsolved::FewMatches { used }) => LostReason::FewMatches {
                found: used,
                needed: self.config.tracking.min_match_frac,
                geometric: fractions.geometric,
            },
            Err(Unsolved::Solver(error)) => LostReason::Solver(error),
        };
        Ok(Outcome::Lost {
            reason,
            match_fraction: fractions.used,
        })
    }

    fn start_keyframe(&mut self) -> Result<Handle, DeviceError> {
        self.restart(&self.frame.pointmap)?;
        self.forget()?;
        self.network.keep(&self.stream)?;
        if let Some(depth) = &mut self.frame.depth {
            depth.start_keyframe(&self.stream)?;
        }
        let key = Some(self.store(&self.frame.pointmap)?);
        let item = HandOffItem {
            key,
            buffer: None,
            has_depth: false,
        };
        Ok(self.hand_off.put(item, Owner::Handle))
    }

    fn stash_frame(&mut self) -> Result<Handle, DeviceError> {
        let pointmap = &self.frame.own;
        self.restart(pointmap)?;
        let key = self.store(pointmap)?;
        let depth = self.frame.depth.as_ref().and_then(FrameDepth::of_frame);
        let handle = self.put_pointmap(pointmap, Some(key), depth);
        if handle.is_err() {
            super::hand_off::remove(&self.keyframes, key);
        }
        handle
    }

    fn track_against(&mut self, handle: &Handle) -> Result<(), DeviceError> {
        self.decodes = false;
        let item = self.hand_off.get(handle)?;
        let (Some(key), Some(buffer)) = (item.key, item.buffer) else {
            return Err(unknown("frame under handle", handle.number()));
        };
        let buffer = self.hand_off.buffer(buffer)?;
        let task = UpdateTask {
            points: buffer.points.all(),
            confidence: buffer.confidence.all(),
            outcome: None,
            restart: true,
            depth: None,
        };
        let frame = &self.frame;
        // A keyframe lent by the mapping half was written on that half's stream.
        buffer.before_reading(&self.stream)?;
        frame
            .pair
            .fusion
            .update(&self.stream, &frame.pointmap, &task)?;
        let of_buffer = buffer.depth.as_ref().filter(|_| item.has_depth);
        if let Some(depth) = &mut self.frame.depth {
            depth.restart(&self.stream, of_buffer.map(DeviceBuffer::all))?;
        }
        buffer.after_reading(&self.stream)?;
        let frame = &self.frame;
        {
            let lease = self.keyframes.read(Lane::Tracking, key)?;
            let slot = self.keyframes.device().slot(lease.slot())?;
            let tokens = self.network.features(1);
            let convert = &frame.pair.convert;
            convert.copy(&self.stream, slot.features, tokens)?;
        }
        self.network.fetch(&self.stream, 1)?;
        self.forget()?;
        Ok(())
    }

    fn stash_pointmap(&mut self) -> Result<Handle, DeviceError> {
        self.put_pointmap(&self.frame.pointmap, None, None)
    }

    fn read_frame(&mut self, dst: &mut FramePoints) -> Result<(), DeviceError> {
        let view = self.network.view(0);
        content::read(&self.stream, view.points, &mut dst.points)?;
        content::read(&self.stream, view.confidence, &mut dst.confidence)?;
        Ok(())
    }

    fn read_seen(&mut self, dst: &mut SeenFrame) -> Result<(), DeviceError> {
        let image = self.images.current().camera.image.all();
        content::read(&self.stream, image, &mut dst.image)?;
        content::read(&self.stream, self.frame.index.all(), &mut dst.index)?;
        content::read(&self.stream, self.frame.gated.all(), &mut dst.quality)?;
        Ok(())
    }

    fn memory(&self) -> Vec<MemoryPool> {
        self.memory.clone()
    }

    fn self_test(&mut self) -> Result<(), DeviceError> {
        Ok(self.network.self_test()?)
    }

    fn times(&self) -> StageTimes {
        self.times
    }
}
