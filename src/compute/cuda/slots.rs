//! Keyframe slots in device memory and pinned host memory, for [`KeyframeStore`].
//!
//! A lane's compute stream is the one that its thread enqueues kernels on. Copies to and from the host run
//! on a stream of their own beside it, behind the marks that [`super::super::store`] says they must
//! follow, so a keyframe that moves does not wait for the whole of what the lane has enqueued. Leases
//! must not be taken or dropped while the lane's stream captures: their marks lie outside any graph.

use super::{
    Context, CudaError, DeviceArena, DeviceBuffer, DevicePointer, DeviceSlice, Element, Event,
    PinnedArena, PinnedBuffer, Priority, Stream,
};
use crate::compute::store::{
    FloatFormat, KeyframeStore, Lane, Mark, Section, SlotDevice, SlotLayout,
};
use half::f16;
use std::sync::{Arc, Mutex, PoisonError};

/// The store of a CUDA device.
pub type CudaKeyframes = KeyframeStore<CudaSlots>;

/// How many slots there are, and of what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotPlan {
    /// What a slot holds.
    pub layout: SlotLayout,
    /// Slots in device memory.
    pub device_slots: usize,
    /// Slots in pinned host memory. With none no keyframe can leave the device.
    pub host_slots: usize,
}

impl SlotPlan {
    /// Bytes of device memory.
    pub fn device_bytes(&self) -> u64 {
        self.device_slots as u64 * self.layout.bytes as u64
    }

    /// Bytes of pinned host memory.
    pub fn pinned_bytes(&self) -> u64 {
        self.host_slots as u64 * self.layout.bytes as u64
    }
}

/// Floats of one format or the other on the device.
#[derive(Clone, Copy)]
pub enum Floats<'a> {
    /// Half precision.
    F16(DeviceSlice<'a, f16>),
    /// Single precision.
    F32(DeviceSlice<'a, f32>),
}

impl Floats<'_> {
    /// Values.
    pub fn len(&self) -> usize {
        match self {
            Self::F16(v) => v.len(),
            Self::F32(v) => v.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// For kernels that take either: the pointer of the other format is null.
    pub fn pointers(&self) -> (DevicePointer<f16>, DevicePointer<f32>) {
        match self {
            Self::F16(v) => (v.pointer(), DevicePointer::NULL),
            Self::F32(v) => (DevicePointer::NULL, v.pointer()),
        }
    }
}

enum FloatBuffer {
    F16(DeviceBuffer<f16>),
    F32(DeviceBuffer<f32>),
}

impl FloatBuffer {
    fn carve(
        arena: &mut DeviceArena,
        name: &'static str,
        format: FloatFormat,
        section: Section,
    ) -> Result<Self, CudaError> {
        let len = section.bytes / format.bytes();
        Ok(match format {
            FloatFormat::F16 => Self::F16(arena.carve(name, len)?),
            FloatFormat::F32 => Self::F32(arena.carve(name, len)?),
        })
    }

    fn all(&self) -> Floats<'_> {
        match self {
            Self::F16(v) => Floats::F16(v.all()),
            Self::F32(v) => Floats::F32(v.all()),
        }
    }
}

struct Slot {
    image: DeviceBuffer<u8>,
    points: DeviceBuffer<f32>,
    confidence: FloatBuffer,
    features: FloatBuffer,
}

/// A keyframe's bulk on the device.
#[derive(Clone, Copy)]
pub struct SlotView<'a> {
    /// RGB, u8, `pixels × 3`.
    pub image: DeviceSlice<'a, u8>,
    /// Points in the keyframe's camera, `pixels × 3`.
    pub points: DeviceSlice<'a, f32>,
    /// Average confidences, `pixels`.
    pub confidence: Floats<'a>,
    /// Encoder tokens, `tokens × channels`.
    pub features: Floats<'a>,
}

struct LaneStreams {
    compute: Arc<Stream>,
    copy: Stream,
}

/// The slots, and the two lanes' streams.
pub struct CudaSlots {
    plan: SlotPlan,
    slots: Vec<Slot>,
    /// Each is used by one copy at a time, so its lock is never waited for.
    host: Vec<Mutex<PinnedBuffer<u8>>>,
    lanes: [LaneStreams; 2],
    marks: Vec<Event>,
}

impl CudaSlots {
    /// Carves the slots. `tracking` and `mapping` are the streams on which the lanes enqueue kernels.
    pub fn new(
        context: &Context,
        plan: SlotPlan,
        arena: &mut DeviceArena,
        pinned: &mut PinnedArena,
        tracking: Arc<Stream>,
        mapping: Arc<Stream>,
    ) -> Result<Self, CudaError> {
        let layout = plan.layout;
        let mut slots = Vec::with_capacity(plan.device_slots);
        for _ in 0..plan.device_slots {
            slots.push(Slot {
                image: arena.carve("keyframe images", layout.image.bytes)?,
                points: arena.carve("keyframe points", layout.points.bytes / size_of::<f32>())?,
                confidence: FloatBuffer::carve(
                    arena,
                    "keyframe confidences",
                    layout.confidence_format,
                    layout.confidence,
                )?,
                features: FloatBuffer::carve(
                    arena,
                    "keyframe tokens",
                    layout.feature_format,
                    layout.features,
                )?,
            });
        }
        let mut host = Vec::with_capacity(plan.host_slots);
        for _ in 0..plan.host_slots {
            host.push(Mutex::new(
                pinned.carve("keyframes in host memory", layout.bytes)?,
            ));
        }
        let marks = (0..plan.device_slots * Mark::PER_SLOT)
            .map(|_| context.event(false))
            .collect::<Result<_, _>>()?;
        let lane = |compute, priority| {
            let copy = context.stream(priority)?;
            Ok::<_, CudaError>(LaneStreams { compute, copy })
        };
        Ok(Self {
            plan,
            slots,
            host,
            lanes: [
                lane(tracking, Priority::High)?,
                lane(mapping, Priority::Low)?,
            ],
            marks,
        })
    }

    /// How it was set up.
    pub fn plan(&self) -> &SlotPlan {
        &self.plan
    }

    /// A slot's parts. Who has no lease on the slot reads another keyframe's bulk or none; see
    /// [`CudaKeyframes`].
    pub fn slot(&self, slot: u32) -> Result<SlotView<'_>, CudaError> {
        let found = self.slots.get(slot as usize).ok_or(CudaError::Length {
            what: "keyframe slots",
            expected: slot as usize + 1,
            found: self.slots.len(),
        })?;
        Ok(SlotView {
            image: found.image.all(),
            points: found.points.all(),
            confidence: found.confidence.all(),
            features: found.features.all(),
        })
    }

    /// The stream on which a lane enqueues kernels.
    pub fn stream(&self, lane: Lane) -> &Stream {
        &self.lanes[lane.index()].compute
    }

    fn mark(&self, mark: Mark) -> Result<&Event, CudaError> {
        self.marks.get(mark.index()).ok_or(CudaError::Length {
            what: "marks of keyframe slots",
            expected: mark.index() + 1,
            found: self.marks.len(),
        })
    }

    /// Copies between a slot and a host slot on the lane's copy stream and waits for it.
    fn copy(
        &self,
        lane: Lane,
        after: &[Mark],
        slot: u32,
        host: u32,
        direction: Direction,
    ) -> Result<(), CudaError> {
        let stream = &self.lanes[lane.index()].copy;
        for &mark in after {
            stream.wait(self.mark(mark)?)?;
        }
        let view = self.slot(slot)?;
        let mut host = self
            .host_slot(host)?
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let layout = &self.plan.layout;
        let mut copies = Copies {
            stream,
            record: &mut host[..],
            direction,
        };
        let enqueued = copies
            .part(view.image, layout.image)
            .and_then(|()| copies.part(view.points, layout.points))
            .and_then(|()| copies.floats(view.confidence, layout.confidence))
            .and_then(|()| copies.floats(view.features, layout.features));
        // Also after an error: what was enqueued uses the host slot.
        stream.synchronize()?;
        enqueued
    }

    fn host_slot(&self, host: u32) -> Result<&Mutex<PinnedBuffer<u8>>, CudaError> {
        self.host.get(host as usize).ok_or(CudaError::Length {
            what: "host slots",
            expected: host as usize + 1,
            found: self.host.len(),
        })
    }
}

#[derive(Clone, Copy)]
enum Direction {
    ToHost,
    ToDevice,
}

/// Copies of the parts of one record.
struct Copies<'a> {
    stream: &'a Stream,
    record: &'a mut [u8],
    direction: Direction,
}

impl Copies<'_> {
    fn part<T: Element>(
        &mut self,
        device: DeviceSlice<'_, T>,
        section: Section,
    ) -> Result<(), CudaError> {
        let wrong = CudaError::Length {
            what: "part of a keyframe's record",
            expected: device.bytes(),
            found: section.bytes,
        };
        let range = section.offset..section.offset + section.bytes;
        let Some(bytes) = self.record.get_mut(range) else {
            return Err(wrong);
        };
        // SAFETY: any bits are an element, and an element's bytes are all initialised.
        let (before, values, behind) = unsafe { bytes.align_to_mut::<T>() };
        if !before.is_empty() || !behind.is_empty() {
            return Err(wrong);
        }
        // SAFETY: the record is pinned memory whose lock is held until the stream has been waited for.
        unsafe {
            match self.direction {
                Direction::ToHost => self.stream.download(device, values),
                Direction::ToDevice => self.stream.upload(values, device),
            }
        }
    }

    fn floats(&mut self, device: Floats<'_>, section: Section) -> Result<(), CudaError> {
        match device {
            Floats::F16(values) => self.part(values, section),
            Floats::F32(values) => self.part(values, section),
        }
    }
}

impl SlotDevice for CudaSlots {
    type Error = CudaError;

    fn device_slots(&self) -> usize {
        self.slots.len()
    }

    fn host_slots(&self) -> usize {
        self.host.len()
    }

    fn record_bytes(&self) -> usize {
        self.plan.layout.bytes
    }

    fn record(&self, lane: Lane, mark: Mark) -> Result<(), CudaError> {
        self.lanes[lane.index()].compute.record(self.mark(mark)?)
    }

    fn wait(&self, lane: Lane, mark: Mark) -> Result<(), CudaError> {
        self.lanes[lane.index()].compute.wait(self.mark(mark)?)
    }

    fn save(&self, lane: Lane, after: &[Mark], slot: u32, host: u32) -> Result<(), CudaError> {
        self.copy(lane, after, slot, host, Direction::ToHost)
    }

    fn load(&self, lane: Lane, after: &[Mark], host: u32, slot: u32) -> Result<(), CudaError> {
        self.copy(lane, after, slot, host, Direction::ToDevice)
    }

    fn with_host(&self, host: u32, with: &mut dyn FnMut(&mut [u8])) {
        if let Ok(host) = self.host_slot(host) {
            with(&mut host.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}
