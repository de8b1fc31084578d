//! What is on its way from tracking to mapping, in device memory.

use super::errors::unknown;
use crate::compute::cuda::slots::CudaKeyframes;
use crate::compute::cuda::{Context, CudaError, DeviceArena, DeviceBuffer, Event, Stream};
use crate::compute::device::{self, DeviceError, Ticket};
use crate::compute::plan::Spec;
use half::f16;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Pointmaps that may be on their way at once; policy's queue is shorter.
const PLACES: usize = device::HAND_OVERS;

/// A pointmap on its way.
pub(super) struct Parcel {
    /// `N × 3`.
    pub(super) points: DeviceBuffer<f32>,
    /// `N` average confidences.
    pub(super) confidence: DeviceBuffer<f32>,
    /// The same as slots have them.
    pub(super) half_confidence: DeviceBuffer<f16>,
    /// It has been put down.
    written: Event,
    /// It has been taken.
    read: Event,
}

impl Parcel {
    /// Later work of the stream may overwrite it.
    pub(super) fn before_writing(&self, stream: &Stream) -> Result<(), CudaError> {
        stream.wait(&self.read)
    }

    /// The stream has written it.
    pub(super) fn after_writing(&self, stream: &Stream) -> Result<(), CudaError> {
        stream.record(&self.written)
    }

    /// Later work of the stream may read it.
    pub(super) fn before_reading(&self, stream: &Stream) -> Result<(), CudaError> {
        stream.wait(&self.written)
    }

    /// The stream has read it.
    pub(super) fn after_reading(&self, stream: &Stream) -> Result<(), CudaError> {
        stream.record(&self.read)
    }
}

/// What a ticket stands for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Thing {
    /// The key of its bulk in the store.
    pub(super) key: Option<u32>,
    /// The parcel with its pointmap.
    pub(super) parcel: Option<usize>,
}

#[derive(Default)]
struct State {
    things: Vec<Option<(Thing, Owner)>>,
    /// Parcels that nobody uses.
    free: Vec<usize>,
    next_key: u32,
}

/// Who removes a thing's bulk from the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// The ticket, unless the mapping half accepts it.
    Ticket,
    /// The mapping half.
    Mapping,
}

/// Things by ticket number.
pub(super) struct Exchange {
    parcels: Vec<Parcel>,
    state: Mutex<State>,
    keyframes: Arc<CudaKeyframes>,
}

impl Exchange {
    /// What [`Exchange::new`] carves, in order.
    pub(super) fn buffers(pixels: usize) -> Vec<Spec> {
        let one = [
            Spec::of::<f32>("points", &[pixels, 3]),
            Spec::of::<f32>("confidences", &[pixels]),
            Spec::of::<f16>("confidences in f16", &[pixels]),
        ];
        (0..PLACES).flat_map(|_| one.clone()).collect()
    }

    pub(super) fn new(
        context: &Context,
        arena: &mut DeviceArena,
        pixels: usize,
        keyframes: Arc<CudaKeyframes>,
    ) -> Result<Self, CudaError> {
        let parcel = |_| {
            Ok::<_, CudaError>(Parcel {
                points: arena.carve("points", 3 * pixels)?,
                confidence: arena.carve("confidences", pixels)?,
                half_confidence: arena.carve("confidences in f16", pixels)?,
                written: context.event(false)?,
                read: context.event(false)?,
            })
        };
        let parcels = (0..PLACES).map(parcel).collect::<Result<Vec<_>, _>>()?;
        let state = State {
            things: Vec::with_capacity(2 * PLACES),
            free: (0..PLACES).rev().collect(),
            next_key: 0,
        };
        Ok(Self {
            parcels,
            state: Mutex::new(state),
            keyframes,
        })
    }

    /// A key for the store that no keyframe had before.
    pub(super) fn new_key(&self) -> u32 {
        let mut state = self.lock();
        let key = state.next_key;
        state.next_key = key.wrapping_add(1);
        key
    }

    /// A parcel that nobody uses; [`Exchange::put`] it down or [`Exchange::give_back`].
    pub(super) fn take_parcel(&self) -> Result<(usize, &Parcel), DeviceError> {
        let free = self.lock().free.pop();
        let found = free.and_then(|k| Some((k, self.parcels.get(k)?)));
        found.ok_or(unknown(
            "free place for a pointmap beside the",
            PLACES as u32,
        ))
    }

    /// A parcel that was not put down after all.
    pub(super) fn give_back(&self, parcel: usize) {
        self.lock().free.push(parcel);
    }

    /// A parcel of a ticket.
    pub(super) fn parcel(&self, parcel: usize) -> Result<&Parcel, DeviceError> {
        let found = self.parcels.get(parcel);
        found.ok_or(unknown("pointmap", parcel as u32))
    }

    /// Puts a thing down whose bulk is `owner`'s.
    pub(super) fn put(self: &Arc<Self>, thing: Thing, owner: Owner) -> Ticket {
        let mut state = self.lock();
        let entry = Some((thing, owner));
        let number = match state.things.iter().position(Option::is_none) {
            Some(number) => {
                state.things[number] = entry;
                number
            }
            None => {
                state.things.push(entry);
                state.things.len() - 1
            }
        };
        // As many as may be on their way, which is a handful.
        Ticket::new(number as u32, Arc::clone(self) as Arc<dyn device::Exchange>)
    }

    /// What `ticket` stands for.
    pub(super) fn get(&self, ticket: &Ticket) -> Result<Thing, DeviceError> {
        let number = ticket.number();
        let state = self.lock();
        let entry = state.things.get(number as usize).copied().flatten();
        let (thing, _) = entry.ok_or(unknown("ticket", number))?;
        Ok(thing)
    }

    /// The bulk of `ticket` belongs to the mapping half from now on; its key.
    pub(super) fn accept(&self, ticket: &Ticket) -> Result<u32, DeviceError> {
        let number = ticket.number();
        let mut state = self.lock();
        let entry = state.things.get_mut(number as usize);
        let found = entry.and_then(Option::as_mut).and_then(|(thing, owner)| {
            let key = thing.key?;
            *owner = Owner::Mapping;
            Some(key)
        });
        found.ok_or(unknown("frame under ticket", number))
    }

    /// Nothing here can panic halfway, so a poisoned lock still guards whole things.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl device::Exchange for Exchange {
    fn discard(&self, number: u32) {
        let key = {
            let mut state = self.lock();
            let entry = state.things.get_mut(number as usize);
            let Some((thing, owner)) = entry.and_then(Option::take) else {
                return;
            };
            state.free.extend(thing.parcel);
            thing.key.filter(|_| owner == Owner::Ticket)
        };
        if let Some(key) = key {
            remove(&self.keyframes, key);
        }
    }
}

/// Forgets a keyframe's bulk. It can only fail for one that the other thread is at work with, which
/// nobody forgets.
pub(super) fn remove(keyframes: &CudaKeyframes, key: u32) {
    if let Err(error) = keyframes.remove(key) {
        tracing::error!("a keyframe's slot stays taken: {error}");
    }
}
