//! The tracking half: from the camera's bytes to a pose without leaving the GPU.
//!
//! What precedes the network, from the upload to its input, and what follows it, from sanitising to
//! fusion, are the same for every frame: each is captured once as a graph and launched as a whole. What differs lies in device memory: the index map and
//! whether it holds anything, the pose to start from, the fused pointmap. The host waits once, for
//! the outcome.

use super::camera::Camera;
use super::content;
use super::errors::unknown;
use super::exchange::{Exchange, Owner, Thing};
use super::network::{Decoding, Network};
use super::repeated::Repeated;
use crate::compute::cuda::convert::Convert;
use crate::compute::cuda::fusion::{ExportTask, FusedPointmap, Fusion, UpdateTask};
use crate::compute::cuda::matching::{Gates, MatchCounts, MatchTask, Matcher, Start};
use crate::compute::cuda::sanitise::Sanitiser;
use crate::compute::cuda::slots::{CudaKeyframes, Floats, SlotView};
use crate::compute::cuda::tracking::{
    CameraRays, Compared, Outcome as Solved, PoseSolver, SolveTask, Unsolved,
};
use crate::compute::cuda::{CudaError, DeviceBuffer, DeviceSlice, Event, PinnedBuffer, Stream};
use crate::compute::device::{
    DeviceError, Fractions, FramePoints, FrameTimes, LostReason, Outcome, Ticket, Tracked,
    TrackingDevice,
};
use crate::compute::store::Lane;
use crate::config::Config;
use crate::image::encoding::RawImage;
use crate::inference::NetworkShape;
use crate::time::millis;
use std::sync::Arc;
use std::time::Instant;

/// What a frame's graph reads and writes.
pub(super) struct Frame {
    pub(super) sanitiser: Sanitiser,
    pub(super) matcher: Matcher,
    pub(super) solver: PoseSolver,
    pub(super) fusion: Fusion,
    pub(super) convert: Convert,
    pub(super) rays: Option<Arc<CameraRays>>,
    /// The active keyframe's pointmap.
    pub(super) pointmap: FusedPointmap,
    pub(super) unusable: DeviceBuffer<u32>,
    pub(super) host_unusable: PinnedBuffer<u32>,
    pub(super) counts: DeviceBuffer<MatchCounts>,
    pub(super) index: DeviceBuffer<u32>,
    pub(super) has_index: DeviceBuffer<u32>,
    pub(super) host_has_index: PinnedBuffer<u32>,
    pub(super) valid: DeviceBuffer<u8>,
    pub(super) quality: DeviceBuffer<f32>,
    pub(super) gated: DeviceBuffer<f32>,
    pub(super) pose: DeviceBuffer<f64>,
    /// The pose that a keyframe's first frame starts from.
    pub(super) host_identity: PinnedBuffer<f64>,
    pub(super) outcome: DeviceBuffer<Solved>,
    pub(super) host_outcome: PinnedBuffer<Solved>,
    /// Start, matched, solved, fused.
    pub(super) marks: [Event; 4],
}

/// A frame's way to the network's outputs.
pub(super) struct Stages {
    /// Start, preprocessed.
    pub(super) camera: [Event; 2],
    /// Encoded from, to; for a network on the GPU.
    pub(super) encoder: [Event; 2],
    /// Decoded from, to; for a network on the GPU.
    pub(super) decoder: [Event; 2],
}

/// The tracking half.
pub(super) struct Tracking {
    config: Arc<Config>,
    name: String,
    stream: Arc<Stream>,
    keyframes: Arc<CudaKeyframes>,
    exchange: Arc<Exchange>,
    network: Network,
    camera: Camera,
    frame: Frame,
    stages: Stages,
    /// What follows the network.
    work: Repeated,
    tracked: u32,
    times: FrameTimes,
}

impl Tracking {
    #[allow(clippy::too_many_arguments)]
    pub(super) fn new(
        config: Arc<Config>,
        name: String,
        stream: Arc<Stream>,
        keyframes: Arc<CudaKeyframes>,
        exchange: Arc<Exchange>,
        network: Network,
        camera: Camera,
        frame: Frame,
        stages: Stages,
    ) -> Self {
        Self {
            config,
            name,
            stream,
            keyframes,
            exchange,
            network,
            camera,
            frame,
            stages,
            work: Repeated::new("a frame's work behind the network"),
            tracked: 0,
            times: FrameTimes::default(),
        }
    }

    /// Puts one frame's work, behind the network, on the stream: what is captured.
    fn enqueue(&mut self) -> Result<(), CudaError> {
        let (stream, frame, config) = (&self.stream, &mut self.frame, &self.config);
        let (first, second) = (self.network.view(0), self.network.view(1));
        // SAFETY: pinned memory that is written before the frame's work is launched and left alone until
        // it was waited for.
        unsafe { stream.upload(&frame.host_has_index, frame.has_index.all())? };
        stream.mark(&frame.marks[0])?;
        frame
            .sanitiser
            .enqueue(stream, first, Some(second), frame.unusable.all())?;
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
            quality: frame.quality.all(),
            counts: frame.counts.all(),
        };
        frame.matcher.enqueue(stream, &config.matching, &task)?;
        stream.mark(&frame.marks[1])?;
        let task = SolveTask {
            frame_points: first.points,
            keyframe_points: frame.pointmap.points.all(),
            index: frame.index.all(),
            quality: frame.gated.all(),
            min_quality: 0.0,
            counts: Some(frame.counts.all()),
            compared: compared(frame.rays.as_deref()),
            pose: Some(frame.pose.all()),
            outcome: frame.outcome.all(),
        };
        frame.solver.enqueue(stream, &task, &config.tracking)?;
        stream.mark(&frame.marks[2])?;
        let task = UpdateTask {
            points: second.points,
            confidence: second.confidence,
            outcome: Some(frame.outcome.all()),
            restart: false,
        };
        frame.fusion.update(stream, &frame.pointmap, &task)?;
        stream.mark(&frame.marks[3])?;
        // SAFETY: waited for before anybody looks.
        unsafe {
            stream.download(frame.outcome.all(), &mut frame.host_outcome)?;
            stream.download(frame.unusable.all(), &mut frame.host_unusable)
        }
    }

    /// Runs one frame's work and waits for it.
    fn run(&mut self) -> Result<(), CudaError> {
        self.tracked = self.tracked.saturating_add(1);
        let stream = Arc::clone(&self.stream);
        let mut work = std::mem::take(&mut self.work);
        // SAFETY: all that the work touches belongs to this half, or is pinned memory that it leaves
        // alone until the stream was waited for, below.
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

    /// Reads the stages before [`Tracking::run`]'s off, once the stream was waited for.
    fn network_times(&mut self) -> Result<(), CudaError> {
        let Stages {
            camera,
            encoder,
            decoder,
        } = &self.stages;
        self.times.preprocess = between(&camera[0], &camera[1])?;
        if !self.network.is_on_host() {
            self.times.encode = between(&encoder[0], &encoder[1])?;
            self.times.decode += between(&decoder[0], &decoder[1])?;
        }
        Ok(())
    }

    fn decode(&mut self, decoding: Decoding) -> Result<(), DeviceError> {
        let start = Instant::now();
        self.stream.record(&self.stages.decoder[0])?;
        self.network.decode(&self.stream, decoding)?;
        self.stream.record(&self.stages.decoder[1])?;
        if self.network.is_on_host() {
            self.times.decode += millis(start);
        }
        Ok(())
    }

    /// The pose is the identity and the index map holds nothing: the next frame is the first one
    /// tracked against a keyframe.
    fn forget(&mut self) -> Result<(), CudaError> {
        let frame = &mut self.frame;
        frame.host_has_index.fill(0);
        // SAFETY: this pinned memory never changes.
        unsafe { self.stream.upload(&frame.host_identity, frame.pose.all()) }
    }

    /// The pointmap becomes the first estimate of the current frame's own view.
    fn restart(&mut self) -> Result<(), CudaError> {
        let view = self.network.view(0);
        let task = UpdateTask {
            points: view.points,
            confidence: view.confidence,
            outcome: None,
            restart: true,
        };
        let frame = &self.frame;
        frame.fusion.update(&self.stream, &frame.pointmap, &task)
    }

    /// Writes the current frame and the pointmap into a slot of the store; its key.
    fn store(&self) -> Result<u32, DeviceError> {
        let key = self.exchange.new_key();
        let lease = self.keyframes.insert(Lane::Tracking, key)?;
        let slot = self.keyframes.device().slot(lease.slot())?;
        let written = self.fill(&slot);
        drop(lease);
        if let Err(error) = written {
            super::exchange::remove(&self.keyframes, key);
            return Err(error.into());
        }
        Ok(key)
    }

    fn fill(&self, slot: &SlotView<'_>) -> Result<(), CudaError> {
        let (stream, frame) = (&self.stream, &self.frame);
        stream.copy(self.camera.image.all(), slot.image)?;
        let (confidence, half_confidence) = match slot.confidence {
            Floats::F32(v) => (Some(v), None),
            Floats::F16(v) => (None, Some(v)),
        };
        let task = ExportTask {
            rays: frame.rays.as_deref(),
            points: slot.points,
            confidence,
            half_confidence,
        };
        frame.fusion.export(stream, &frame.pointmap, &task)?;
        let tokens = self.network.features(0);
        match slot.features {
            Floats::F32(v) => stream.copy(tokens, v),
            Floats::F16(v) => frame.convert.narrow(stream, tokens, v),
        }
    }

    /// Puts the pointmap down as it is.
    fn put_pointmap(&self, key: Option<u32>) -> Result<Ticket, DeviceError> {
        let (number, parcel) = self.exchange.take_parcel()?;
        let (stream, frame) = (&self.stream, &self.frame);
        let task = ExportTask {
            rays: None,
            points: parcel.points.all(),
            confidence: Some(parcel.confidence.all()),
            half_confidence: Some(parcel.half_confidence.all()),
        };
        let done = parcel
            .before_writing(stream)
            .and_then(|()| frame.fusion.export(stream, &frame.pointmap, &task))
            .and_then(|()| parcel.after_writing(stream));
        if let Err(error) = done {
            self.exchange.give_back(number);
            return Err(error.into());
        }
        let thing = Thing {
            key,
            parcel: Some(number),
        };
        Ok(self.exchange.put(thing, Owner::Ticket))
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
        self.times = FrameTimes::default();
        let (camera, stages) = (&mut self.camera, &self.stages);
        camera.check(image)?;
        // The image before has been preprocessed, unless its frame failed.
        stages.camera[1].synchronize()?;
        camera.take(image);
        // SAFETY: the image is next written after the preprocessing was waited for, above.
        unsafe { camera.enqueue(&self.stream, &stages.camera)? };
        let start = Instant::now();
        self.stream.record(&stages.encoder[0])?;
        self.network.encode(
            &self.stream,
            camera.image.all(),
            camera.planes.all(),
            &mut camera.host_image,
        )?;
        self.stream.record(&stages.encoder[1])?;
        if self.network.is_on_host() {
            self.times.encode = millis(start);
        }
        Ok(())
    }

    fn mono(&mut self) -> Result<usize, DeviceError> {
        self.decode(Decoding::Mono)?;
        let frame = &mut self.frame;
        let view = self.network.view(0);
        frame
            .sanitiser
            .enqueue(&self.stream, view, None, frame.unusable.all())?;
        // Of the one view.
        let mut unusable = [0];
        self.stream
            .read(frame.unusable.slice(0..1)?, &mut unusable)?;
        self.network_times()?;
        let [unusable] = unusable.map(|n| n as usize);
        Ok(self.network.shape().pixels().saturating_sub(unusable))
    }

    fn track(&mut self) -> Result<Outcome, DeviceError> {
        self.decode(Decoding::Pair)?;
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
        let Some(solved) = frame.host_outcome.first() else {
            return Err(unknown("outcome of frame", self.tracked));
        };
        let n = pixels as f32;
        let counts = &solved.counts;
        let fractions = Fractions {
            geometric: counts.valid as f32 / n,
            used: counts.used as f32 / n,
            good: counts.good as f32 / n,
            unique: counts.unique as f32 / n,
        };
        let reason = match solved.solution(pixels) {
            Ok(solution) => {
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

    fn start_keyframe(&mut self) -> Result<Ticket, DeviceError> {
        self.restart()?;
        self.forget()?;
        self.network.keep(&self.stream)?;
        let key = Some(self.store()?);
        let thing = Thing { key, parcel: None };
        Ok(self.exchange.put(thing, Owner::Ticket))
    }

    fn put_down_frame(&mut self) -> Result<Ticket, DeviceError> {
        self.restart()?;
        let key = self.store()?;
        let ticket = self.put_pointmap(Some(key));
        if ticket.is_err() {
            super::exchange::remove(&self.keyframes, key);
        }
        ticket
    }

    fn resume_keyframe(&mut self, ticket: &Ticket) -> Result<(), DeviceError> {
        let thing = self.exchange.get(ticket)?;
        let (Some(key), Some(parcel)) = (thing.key, thing.parcel) else {
            return Err(unknown("frame under ticket", ticket.number()));
        };
        let parcel = self.exchange.parcel(parcel)?;
        let task = UpdateTask {
            points: parcel.points.all(),
            confidence: parcel.confidence.all(),
            outcome: None,
            restart: true,
        };
        let frame = &self.frame;
        // A keyframe that the mapping half lent was written on its stream.
        parcel.before_reading(&self.stream)?;
        frame.fusion.update(&self.stream, &frame.pointmap, &task)?;
        parcel.after_reading(&self.stream)?;
        {
            let lease = self.keyframes.read(Lane::Tracking, key)?;
            let slot = self.keyframes.device().slot(lease.slot())?;
            let tokens: DeviceSlice<'_, f32> = self.network.features(1);
            match slot.features {
                Floats::F32(v) => self.stream.copy(v, tokens)?,
                Floats::F16(v) => frame.convert.widen(&self.stream, v, tokens)?,
            }
        }
        self.network.fetch(&self.stream, 1)?;
        self.forget()?;
        Ok(())
    }

    fn put_down_pointmap(&mut self) -> Result<Ticket, DeviceError> {
        self.put_pointmap(None)
    }

    fn read_frame(&mut self, dst: &mut FramePoints) -> Result<(), DeviceError> {
        let view = self.network.view(0);
        content::read(&self.stream, view.points, &mut dst.points)?;
        content::read(&self.stream, view.confidence, &mut dst.confidence)?;
        Ok(())
    }

    fn self_test(&mut self) -> Result<(), DeviceError> {
        Ok(self.network.self_test()?)
    }

    fn times(&self) -> FrameTimes {
        self.times
    }
}

/// Calibrated, both pointmaps' points count as on their pixels' rays.
pub(super) fn compared(rays: Option<&CameraRays>) -> Compared<'_> {
    rays.map_or(Compared::Rays, Compared::Pixels)
}

/// Milliseconds from one event to another, both over.
fn between(start: &Event, end: &Event) -> Result<f64, CudaError> {
    Ok(f64::from(start.milliseconds_until(end)?))
}
