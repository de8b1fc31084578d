//! Keyframe slots in device memory and pinned host memory, for [`KeyframeStore`].
//!
//! A lane's compute stream is the one on which its thread enqueues kernels. Copies to and from the
//! host run on a separate stream, after the marks that [`crate::compute::store`] requires, so that
//! moving a keyframe does not wait for everything the lane has enqueued. Leases must not be taken
//! or dropped while the lane's stream is capturing, because their marks are not part of a graph.

use crate::compute::store::{
    FloatFormat, KeyframeStore, Lane, Mark, Section, SlotDevice, SlotLayout,
};
use crate::gpu::plan::ALIGNMENT;
use crate::gpu::{
    Carver, Context, CudaError, DeviceBuffer, DeviceSlice, Element, Event, FloatBuffer, Floats,
    PinnedBuffer, Priority, Stream,
};
use half::f16;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// The store of a CUDA device.
pub type CudaKeyframes = KeyframeStore<CudaSlots>;

/// Number and layout of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotPlan {
    /// Contents of a slot.
    pub layout: SlotLayout,
    /// Number of slots in device memory.
    pub device_slots: usize,
    /// Number of slots in pinned host memory. With 0, no keyframe can leave the device.
    pub host_slots: usize,
}

impl SlotPlan {
    /// Device memory in bytes.
    pub fn device_bytes(&self) -> u64 {
        self.device_slots as u64 * self.layout.bytes as u64
    }

    /// Pinned host memory in bytes.
    pub fn pinned_bytes(&self) -> u64 {
        self.host_slots as u64 * self.layout.bytes as u64
    }
}

/// Number of elements from one slot to the next: sections have the alignment of buffers.
fn stride(section: Section, size: usize) -> usize {
    section.bytes.next_multiple_of(ALIGNMENT as usize) / size
}

/// The elements of a section in a slot.
fn range(slot: usize, section: Section, size: usize) -> Range<usize> {
    let start = slot * stride(section, size);
    start..start + section.bytes / size
}

/// A section of `slots` slots.
fn carve(
    c: &mut Carver<'_, '_>,
    name: &'static str,
    slots: usize,
    format: FloatFormat,
    section: Section,
) -> Result<FloatBuffer, CudaError> {
    let shape = [slots, stride(section, format.bytes())];
    FloatBuffer::carve(c, name, &shape, format == FloatFormat::F16)
}

/// A section of one slot.
fn of_slot(buffer: &FloatBuffer, slot: usize, section: Section) -> Result<Floats<'_>, CudaError> {
    let size = match buffer {
        FloatBuffer::F16(_) => size_of::<f16>(),
        FloatBuffer::F32(_) => size_of::<f32>(),
    };
    buffer.all().slice(range(slot, section, size))
}

/// Memory of [`CudaSlots`]: a section of every slot after the other, for each section, and the records on the
/// host.
pub struct SlotBuffers {
    plan: SlotPlan,
    images: DeviceBuffer<u8>,
    points: DeviceBuffer<f32>,
    confidences: FloatBuffer,
    tokens: FloatBuffer,
    records: PinnedBuffer<u8>,
}

impl SlotBuffers {
    /// Buffers for the slots of `plan`.
    pub fn carve(c: &mut Carver<'_, '_>, plan: SlotPlan) -> Result<Self, CudaError> {
        let (layout, n) = (&plan.layout, plan.device_slots);
        let (confidence, feature) = (layout.confidence_format, layout.feature_format);
        let points = stride(layout.points, size_of::<f32>());
        Ok(Self {
            images: c.device("images", &[n, stride(layout.image, 1)])?,
            points: c.device("points", &[n, points])?,
            confidences: carve(c, "confidences", n, confidence, layout.confidence)?,
            tokens: carve(c, "tokens", n, feature, layout.features)?,
            records: c.pinned("records", &[plan.host_slots, layout.bytes])?,
            plan,
        })
    }
}

/// Storage by section: each buffer holds that section of all slots.
struct Slots {
    images: DeviceBuffer<u8>,
    points: DeviceBuffer<f32>,
    confidences: FloatBuffer,
    tokens: FloatBuffer,
}

/// Consecutive records in pinned memory.
pub(super) struct Records {
    /// Start of the first record.
    start: *mut u8,
    bytes: usize,
    /// Held while a record is in use: one copy at a time, so it is never contended.
    locks: Vec<Mutex<()>>,
    /// Keeps the memory alive; not accessed otherwise.
    _memory: PinnedBuffer<u8>,
}

// SAFETY: the pinned buffer is owned by this struct and accessed only through `Records::with`,
// under the lock of the record.
unsafe impl Send for Records {}
// SAFETY: as above.
unsafe impl Sync for Records {}

impl Records {
    pub(super) fn new(mut memory: PinnedBuffer<u8>, bytes: usize) -> Self {
        Self {
            start: memory.as_mut_ptr(),
            bytes,
            locks: (0..memory.len() / bytes.max(1))
                .map(|_| Mutex::new(()))
                .collect(),
            _memory: memory,
        }
    }

    /// Calls `with` with exclusive access to a record's bytes.
    pub(super) fn with<R>(
        &self,
        record: u32,
        with: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, CudaError> {
        let record = record as usize;
        let lock = self.locks.get(record).ok_or(CudaError::Length {
            what: "host slots",
            expected: record.saturating_add(1),
            found: self.locks.len(),
        })?;
        let _held = lock.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: there is a lock for each complete record of the memory, so this one lies inside
        // it; records do not overlap, and the lock is held as long as the slice lives.
        let bytes = unsafe {
            let start = self.start.add(record * self.bytes);
            std::slice::from_raw_parts_mut(start, self.bytes)
        };
        Ok(with(bytes))
    }
}

/// A keyframe's bulk data on the device.
#[derive(Clone, Copy)]
pub struct SlotView<'a> {
    /// RGB, u8, `pixels × 3`.
    pub image: DeviceSlice<'a, u8>,
    /// Points in the keyframe's camera frame, `pixels × 3`.
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

/// The slots, and the streams of both lanes.
pub struct CudaSlots {
    plan: SlotPlan,
    slots: Slots,
    records: Records,
    lanes: [LaneStreams; 2],
    marks: Vec<Event>,
}

impl CudaSlots {
    /// The slots of `buffers`. `tracking` and `mapping` are the streams on which the lanes enqueue kernels.
    pub fn new(
        context: &Context,
        buffers: SlotBuffers,
        tracking: Arc<Stream>,
        mapping: Arc<Stream>,
    ) -> Result<Self, CudaError> {
        let SlotBuffers {
            plan,
            images,
            points,
            confidences,
            tokens,
            records,
        } = buffers;
        let slots = Slots {
            images,
            points,
            confidences,
            tokens,
        };
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
            records: Records::new(records, plan.layout.bytes),
            lanes: [
                lane(tracking, Priority::High)?,
                lane(mapping, Priority::Low)?,
            ],
            marks,
        })
    }

    pub fn plan(&self) -> &SlotPlan {
        &self.plan
    }

    /// The contents of a slot. Without a lease on the slot, they may belong to another keyframe or
    /// be undefined; see [`CudaKeyframes`].
    pub fn slot(&self, slot: u32) -> Result<SlotView<'_>, CudaError> {
        let (layout, slot) = (&self.plan.layout, slot as usize);
        if slot >= self.plan.device_slots {
            return Err(CudaError::Length {
                what: "keyframe slots",
                expected: slot.saturating_add(1),
                found: self.plan.device_slots,
            });
        }
        let Slots {
            images,
            points,
            confidences,
            tokens,
        } = &self.slots;
        Ok(SlotView {
            image: images.slice(range(slot, layout.image, 1))?,
            points: points.slice(range(slot, layout.points, size_of::<f32>()))?,
            confidence: of_slot(confidences, slot, layout.confidence)?,
            features: of_slot(tokens, slot, layout.features)?,
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

    /// Copies between a device slot and a host slot on the lane's copy stream, and waits for
    /// completion.
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
        let layout = &self.plan.layout;
        self.records.with(host, |record| {
            let mut copies = Copies {
                stream,
                record,
                direction,
            };
            let enqueued = copies
                .part(view.image, layout.image)
                .and_then(|()| copies.part(view.points, layout.points))
                .and_then(|()| copies.floats(view.confidence, layout.confidence))
                .and_then(|()| copies.floats(view.features, layout.features));
            // Also after an error: the enqueued work uses the record.
            stream.synchronize()?;
            enqueued
        })?
    }
}

#[derive(Clone, Copy)]
pub(super) enum Direction {
    ToHost,
    ToDevice,
}

/// Copies the parts of one record.
pub(super) struct Copies<'a> {
    pub(super) stream: &'a Stream,
    pub(super) record: &'a mut [u8],
    pub(super) direction: Direction,
}

impl Copies<'_> {
    pub(super) fn part<T: Element>(
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
        // SAFETY: any bit pattern is a valid element, and all bytes of an element are initialised.
        let (before, values, behind) = unsafe { bytes.align_to_mut::<T>() };
        if !before.is_empty() || !behind.is_empty() {
            return Err(wrong);
        }
        // SAFETY: the record is pinned memory, held until the stream has been synchronised.
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
        self.plan.device_slots
    }

    fn host_slots(&self) -> usize {
        self.records.locks.len()
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
        // The store only names host slots that there are.
        let _ = self.records.with(host, with);
    }
}
