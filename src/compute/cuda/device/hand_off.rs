//! Items handed from tracking to mapping, in device memory.

use super::errors::unknown;
use crate::compute::cuda::slots::CudaKeyframes;
use crate::compute::device::{self, DeviceError, Handle};
use crate::gpu::{Carver, Context, CudaError, DeviceBuffer, Event, Stream};
use half::f16;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of pointmaps in transit; the queue of policy is shorter.
const PLACES: usize = device::HAND_OVERS;

/// A pointmap in transit.
pub(super) struct PointmapBuffer {
    /// `N × 3`.
    pub(super) points: DeviceBuffer<f32>,
    /// `N` average confidences.
    pub(super) confidence: DeviceBuffer<f32>,
    /// Confidences in the format of the slots.
    pub(super) half_confidence: DeviceBuffer<f16>,
    /// Depth of a frame that is handed off, metres; `None` without `depth.use`.
    pub(super) depth: Option<DeviceBuffer<f32>>,
    /// Recorded when the buffer has been written.
    written: Event,
    /// Recorded when the buffer has been read.
    read: Event,
}

impl PointmapBuffer {
    /// Makes later work of the stream wait until it may overwrite the buffer.
    pub(super) fn before_writing(&self, stream: &Stream) -> Result<(), CudaError> {
        stream.wait(&self.read)
    }

    /// Records that the stream has written the buffer.
    pub(super) fn after_writing(&self, stream: &Stream) -> Result<(), CudaError> {
        stream.record(&self.written)
    }

    /// Makes later work of the stream wait until it may read the buffer.
    pub(super) fn before_reading(&self, stream: &Stream) -> Result<(), CudaError> {
        stream.wait(&self.written)
    }

    /// Records that the stream has read the buffer.
    pub(super) fn after_reading(&self, stream: &Stream) -> Result<(), CudaError> {
        stream.record(&self.read)
    }
}

/// The item that a handle refers to.
#[derive(Debug, Clone, Copy)]
pub(super) struct HandOffItem {
    /// Key of its bulk data in the store.
    pub(super) key: Option<u32>,
    /// Index of the buffer with its pointmap.
    pub(super) buffer: Option<usize>,
    /// Whether the buffer holds the depth of a frame as well.
    pub(super) has_depth: bool,
}

#[derive(Default)]
struct State {
    items: Vec<Option<(HandOffItem, Owner)>>,
    /// Unused buffers.
    free: Vec<usize>,
    next_key: u32,
}

/// The owner that removes an item's bulk data from the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// The handle, unless the mapping half accepts it.
    Handle,
    /// The mapping half.
    Mapping,
}

/// Memory of one place.
struct PlaceBuffers {
    points: DeviceBuffer<f32>,
    confidence: DeviceBuffer<f32>,
    half_confidence: DeviceBuffer<f16>,
    depth: Option<DeviceBuffer<f32>>,
}

/// Memory of a [`HandOff`].
pub(super) struct HandOffBuffers(Vec<PlaceBuffers>);

impl HandOffBuffers {
    /// Buffers for pointmaps of `pixels` pixels, with `depth` for depth images as well.
    pub(super) fn carve(
        c: &mut Carver<'_, '_>,
        pixels: usize,
        depth: bool,
    ) -> Result<Self, CudaError> {
        let buffers = (0..PLACES).map(|_| {
            Ok(PlaceBuffers {
                points: c.device("points", &[pixels, 3])?,
                confidence: c.device("confidences", &[pixels])?,
                half_confidence: c.device("confidences in f16", &[pixels])?,
                depth: depth.then(|| c.device("depth", &[pixels])).transpose()?,
            })
        });
        Ok(Self(buffers.collect::<Result<_, CudaError>>()?))
    }
}

/// Items indexed by handle number.
pub(super) struct HandOff {
    buffers: Vec<PointmapBuffer>,
    state: Mutex<State>,
    keyframes: Arc<CudaKeyframes>,
}

impl HandOff {
    pub(super) fn new(
        context: &Context,
        buffers: HandOffBuffers,
        keyframes: Arc<CudaKeyframes>,
    ) -> Result<Self, CudaError> {
        let buffer = |place: PlaceBuffers| {
            Ok::<_, CudaError>(PointmapBuffer {
                points: place.points,
                confidence: place.confidence,
                half_confidence: place.half_confidence,
                depth: place.depth,
                written: context.event(false)?,
                read: context.event(false)?,
            })
        };
        let buffers = buffers.0.into_iter().map(buffer);
        let buffers = buffers.collect::<Result<Vec<_>, _>>()?;
        let state = State {
            items: Vec::with_capacity(2 * PLACES),
            free: (0..PLACES).rev().collect(),
            next_key: 0,
        };
        Ok(Self {
            buffers,
            state: Mutex::new(state),
            keyframes,
        })
    }

    /// A new, unique key for the store.
    pub(super) fn new_key(&self) -> u32 {
        let mut state = self.lock();
        let key = state.next_key;
        state.next_key = key.wrapping_add(1);
        key
    }

    /// Takes an unused buffer, to be passed to [`HandOff::put`] or [`HandOff::give_back`].
    pub(super) fn take_buffer(&self) -> Result<(usize, &PointmapBuffer), DeviceError> {
        let free = self.lock().free.pop();
        let found = free.and_then(|k| Some((k, self.buffers.get(k)?)));
        found.ok_or(unknown(
            "free place for a pointmap beside the",
            PLACES as u32,
        ))
    }

    /// Returns a buffer that was not handed off.
    pub(super) fn give_back(&self, buffer: usize) {
        self.lock().free.push(buffer);
    }

    /// The buffer of a handle.
    pub(super) fn buffer(&self, buffer: usize) -> Result<&PointmapBuffer, DeviceError> {
        let found = self.buffers.get(buffer);
        found.ok_or(unknown("pointmap", buffer as u32))
    }

    /// Stores an item, with `owner` responsible for its bulk data; returns its handle.
    pub(super) fn put(self: &Arc<Self>, item: HandOffItem, owner: Owner) -> Handle {
        let mut state = self.lock();
        let entry = Some((item, owner));
        let number = match state.items.iter().position(Option::is_none) {
            Some(number) => {
                state.items[number] = entry;
                number
            }
            None => {
                state.items.push(entry);
                state.items.len() - 1
            }
        };
        // Bounded by the number of items in transit, which is small.
        Handle::new(number as u32, Arc::clone(self) as Arc<dyn device::HandOff>)
    }

    /// The item that `handle` refers to.
    pub(super) fn get(&self, handle: &Handle) -> Result<HandOffItem, DeviceError> {
        let number = handle.number();
        let state = self.lock();
        let entry = state.items.get(number as usize).copied().flatten();
        let (item, _) = entry.ok_or(unknown("handle", number))?;
        Ok(item)
    }

    /// Transfers the bulk data of `handle` to the mapping half; returns its key.
    pub(super) fn accept(&self, handle: &Handle) -> Result<u32, DeviceError> {
        let number = handle.number();
        let mut state = self.lock();
        let entry = state.items.get_mut(number as usize);
        let found = entry.and_then(Option::as_mut).and_then(|(item, owner)| {
            let key = item.key?;
            *owner = Owner::Mapping;
            Some(key)
        });
        found.ok_or(unknown("frame under handle", number))
    }

    /// No code under the lock can panic halfway, so the items are valid even if the lock is
    /// poisoned.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl device::HandOff for HandOff {
    fn discard(&self, number: u32) {
        let key = {
            let mut state = self.lock();
            let entry = state.items.get_mut(number as usize);
            let Some((item, owner)) = entry.and_then(Option::take) else {
                return;
            };
            state.free.extend(item.buffer);
            item.key.filter(|_| owner == Owner::Handle)
        };
        if let Some(key) = key {
            remove(&self.keyframes, key);
        }
    }
}

/// Removes a keyframe's bulk data. This can only fail if the other thread is using it, and such
/// keyframes are never removed.
pub(super) fn remove(keyframes: &CudaKeyframes, key: u32) {
    if let Err(error) = keyframes.remove(key) {
        tracing::error!("cannot free a keyframe's slot: {error}");
    }
}
