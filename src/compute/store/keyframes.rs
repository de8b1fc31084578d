//! The keyframe store: leases and transfers.

use super::table::{Entry, Table};
use super::{
    Access, Counts, Lane, Mark, Place, SlotDevice, SpillError, SpillFile, StoreError, Touch,
};
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Options of a store.
#[derive(Debug, Clone, Default)]
pub struct StoreOptions {
    /// Number of keyframes for which tables are allocated in advance.
    pub keyframes: usize,
    /// Directory of the spill file for keyframes that fit neither the device nor host memory;
    /// `None` disables it.
    pub directory: Option<PathBuf>,
}

/// Bulk data of keyframes on device, host and disk. See [`super`].
pub struct KeyframeStore<D: SlotDevice> {
    table: Mutex<Table>,
    /// Signals that a copy has ended.
    changed: Condvar,
    file: Option<SpillFile>,
    device: D,
}

/// Access to a keyframe's slot for work enqueued on the lane's stream while the lease lives.
pub struct Lease<'a, D: SlotDevice> {
    store: &'a KeyframeStore<D>,
    id: u32,
    slot: u32,
    lane: Lane,
    access: Access,
}

type Guard<'a> = MutexGuard<'a, Table>;

/// Slots reserved by a call and not yet used. The lock is released while slots are reserved only
/// during a copy: before waiting, a call returns them. Hence, when no copy is in progress, no other
/// call holds reserved slots, and a call that finds no free slot knows that there is none.
#[derive(Default)]
struct Aside {
    device: Option<u32>,
    host: Option<u32>,
}

impl Aside {
    fn give_back(&mut self, table: &mut Table) {
        if let Some(slot) = self.device.take() {
            table.give_device_slot(slot);
        }
        if let Some(slot) = self.host.take() {
            table.give_host_slot(slot);
        }
    }
}

type Failed<D> = StoreError<<D as SlotDevice>::Error>;

impl<D: SlotDevice> KeyframeStore<D> {
    /// Creates an empty store over the slots of `device`.
    ///
    /// # Errors
    /// [`SpillError`] if the file cannot be created in the directory.
    pub fn new(device: D, options: &StoreOptions) -> Result<Self, SpillError> {
        let file = options
            .directory
            .as_deref()
            .map(|directory| SpillFile::new(directory, device.record_bytes()))
            .transpose()?;
        Ok(Self::with_file(device, options.keyframes, file))
    }

    /// Like [`KeyframeStore::new`], with an existing file or none.
    pub fn with_file(device: D, keyframes: usize, file: Option<SpillFile>) -> Self {
        let table = Table::new(device.device_slots(), device.host_slots(), keyframes);
        Self {
            table: Mutex::new(table),
            changed: Condvar::new(),
            file,
            device,
        }
    }

    pub fn device(&self) -> &D {
        &self.device
    }

    /// Number of keyframes.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Statistics so far.
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Current location of a keyframe; the other thread may move it at any time.
    pub fn place(&self, id: u32) -> Option<Place> {
        self.lock().get(id).map(|entry| entry.place)
    }

    /// Allocates a slot for a new keyframe, leased for writing.
    pub fn insert(&self, lane: Lane, id: u32) -> Result<Lease<'_, D>, Failed<D>> {
        let mut aside = Aside::default();
        let mut guard = self.lock();
        let result = loop {
            // Another thread may have inserted the same keyframe while this one was moving one out.
            if guard.get(id).is_some() {
                break Err(StoreError::Duplicate { id });
            }
            if let Some(slot) = aside.device.take() {
                guard.insert(id, slot);
                let lease = self.begin(&mut guard, lane, id, slot, Access::Write, Touch::Use);
                if lease.is_err() {
                    guard.remove(id);
                }
                break lease;
            }
            let freed;
            (guard, freed) = self.free_slot(guard, lane, None, &mut aside);
            if let Err(error) = freed {
                break Err(error);
            }
        };
        aside.give_back(&mut guard);
        result
    }

    /// Leases a keyframe, bringing it back to the device if necessary.
    pub fn lease(
        &self,
        lane: Lane,
        id: u32,
        access: Access,
        touch: Touch,
    ) -> Result<Lease<'_, D>, Failed<D>> {
        let mut aside = Aside::default();
        let (mut guard, result) = self.bring(self.lock(), lane, id, access, touch, &mut aside);
        aside.give_back(&mut guard);
        result
    }

    /// Leases all of `ids`, in order. Keyframes on the device are leased first, so that those
    /// brought back take the slots of keyframes not in `ids`; leasing in sequence could evict the
    /// next one each time.
    pub fn lease_all(
        &self,
        lane: Lane,
        ids: &[u32],
        access: Access,
        touch: Touch,
    ) -> Result<Vec<Lease<'_, D>>, Failed<D>> {
        let mut leases: Vec<Option<Lease<'_, D>>> = ids.iter().map(|_| None).collect();
        for resident in [true, false] {
            for (lease, &id) in leases.iter_mut().zip(ids) {
                let there = || matches!(self.place(id), Some(Place::Device(_)));
                if lease.is_none() && (!resident || there()) {
                    *lease = Some(self.lease(lane, id, access, touch)?);
                }
            }
        }
        Ok(leases.into_iter().flatten().collect())
    }

    /// Leases for reading, with [`Touch::Use`].
    pub fn read(&self, lane: Lane, id: u32) -> Result<Lease<'_, D>, Failed<D>> {
        self.lease(lane, id, Access::Read, Touch::Use)
    }

    /// Leases for writing, with [`Touch::Use`].
    pub fn write(&self, lane: Lane, id: u32) -> Result<Lease<'_, D>, Failed<D>> {
        self.lease(lane, id, Access::Write, Touch::Use)
    }

    /// Evicts keyframes until `slots` device slots and one host slot are free, so that the next
    /// [`KeyframeStore::insert`] by the tracking thread and the next eviction find one immediately.
    /// The mapping thread calls this after its work. Returns the number of free slots, which is
    /// smaller if the rest is in use.
    pub fn prepare(&self, lane: Lane, slots: usize) -> Result<usize, Failed<D>> {
        let mut aside = Aside::default();
        let mut guard = self.lock();
        let result = loop {
            let free = guard.free_device_slots();
            if free >= slots {
                break Ok(free);
            }
            let moved;
            (guard, moved) = self.vacate(guard, lane, None, &mut aside);
            if let Some(slot) = aside.device.take() {
                guard.give_device_slot(slot);
            }
            match moved {
                Ok(true) => {}
                Ok(false) => break Ok(guard.free_device_slots()),
                Err(error) => break Err(error),
            }
        };
        if result.is_ok() && aside.host.is_none() && self.file.is_some() {
            // Without a free host slot, the next eviction has to make room itself and reports
            // failure.
            (guard, _) = self.host_slot(guard, None, &mut aside);
        }
        aside.give_back(&mut guard);
        result
    }

    /// Removes a keyframe; returns whether it was present.
    pub fn remove(&self, id: u32) -> Result<bool, Failed<D>> {
        let mut guard = self.lock();
        while guard.get(id).is_some_and(|entry| entry.moving) {
            guard = self.wait(guard, &mut Aside::default());
        }
        if guard.get(id).is_none() {
            return Ok(false);
        }
        if guard.remove(id) {
            Ok(true)
        } else {
            Err(StoreError::Busy { id })
        }
    }

    /// Removes all keyframes; stops at one that is leased.
    pub fn clear(&self) -> Result<(), Failed<D>> {
        loop {
            let next = self.lock().ids().next();
            match next {
                Some(id) => self.remove(id)?,
                None => return Ok(()),
            };
        }
    }

    fn lock(&self) -> Guard<'_> {
        // The table's methods do not panic, so it is consistent even if the lock is poisoned.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a copy ends.
    fn wait<'a>(&'a self, mut guard: Guard<'a>, aside: &mut Aside) -> Guard<'a> {
        aside.give_back(&mut guard);
        self.changed
            .wait(guard)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies keyframe `id` without holding the lock; if the copy succeeds, its location becomes
    /// `place`.
    fn copy<'a, E>(
        &'a self,
        mut guard: Guard<'a>,
        id: u32,
        place: Place,
        copy: impl FnOnce() -> Result<(), E>,
    ) -> (Guard<'a>, Result<(), E>) {
        guard.begin_move(id);
        drop(guard);
        let done = copy();
        let mut guard = self.lock();
        guard.end_move(id, done.is_ok().then_some(place));
        self.changed.notify_all();
        (guard, done)
    }

    /// Reserves a free slot, evicting a keyframe if necessary.
    fn free_slot<'a>(
        &'a self,
        mut guard: Guard<'a>,
        lane: Lane,
        keep: Option<u32>,
        aside: &mut Aside,
    ) -> (Guard<'a>, Result<(), Failed<D>>) {
        aside.device = guard.take_device_slot();
        if aside.device.is_some() {
            return (guard, Ok(()));
        }
        let moved;
        (guard, moved) = self.vacate(guard, lane, keep, aside);
        let slots = self.device.device_slots();
        let result = match moved {
            Ok(true) => Ok(()),
            Ok(false) => Err(StoreError::AllInUse { slots }),
            Err(error) => Err(error),
        };
        (guard, result)
    }

    /// Evicts the least useful keyframe and reserves its slot; `false` if all are in use. `keep`
    /// moves from host memory to the file only as a last resort.
    fn vacate<'a>(
        &'a self,
        mut guard: Guard<'a>,
        lane: Lane,
        keep: Option<u32>,
        aside: &mut Aside,
    ) -> (Guard<'a>, Result<bool, Failed<D>>) {
        loop {
            let Some((id, clean)) = guard.device_victim() else {
                if guard.copies == 0 {
                    return (guard, Ok(false));
                }
                // A copy in progress may free a slot.
                guard = self.wait(guard, aside);
                aside.device = guard.take_device_slot();
                if aside.device.is_some() {
                    return (guard, Ok(true));
                }
                continue;
            };
            if clean {
                aside.device = guard.drop_to_file(id);
                return (guard, Ok(true));
            }
            let Some(to) = aside.host.take() else {
                let taken;
                (guard, taken) = self.host_slot(guard, keep, aside);
                if let Err(error) = taken {
                    // A keyframe with a clean record can still be dropped without a copy.
                    let Some(id) = guard.clean_victim() else {
                        return (guard, Err(error));
                    };
                    aside.device = guard.drop_to_file(id);
                    return (guard, Ok(true));
                }
                // The lock may have been released meanwhile: select the victim again.
                continue;
            };
            let Some(Place::Device(slot)) = guard.get(id).map(|entry| entry.place) else {
                // The victim is on the device.
                aside.host = Some(to);
                return (guard, Ok(false));
            };
            let saved;
            (guard, saved) = self.copy(guard, id, Place::Host(to), || {
                self.device.save(lane, &[Mark::Written(slot)], slot, to)
            });
            if let Err(error) = saved {
                guard.give_host_slot(to);
                return (guard, Err(StoreError::Device(error)));
            }
            guard.counts.evicted += 1;
            aside.device = Some(slot);
            return (guard, Ok(true));
        }
    }

    /// Reserves a free host slot, writing the least useful keyframe in host memory to the file if
    /// necessary, `keep` last.
    fn host_slot<'a>(
        &'a self,
        mut guard: Guard<'a>,
        keep: Option<u32>,
        aside: &mut Aside,
    ) -> (Guard<'a>, Result<(), Failed<D>>) {
        loop {
            aside.host = guard.take_host_slot();
            if aside.host.is_some() {
                return (guard, Ok(()));
            }
            let victim = guard
                .host_victim(keep)
                .and_then(|id| guard.get(id).map(|entry| (id, entry.place)));
            let Some((id, Place::Host(slot))) = victim else {
                if guard.copies > 0 {
                    // A copy in progress will free a host slot or make a keyframe movable.
                    guard = self.wait(guard, aside);
                    continue;
                }
                let source = SpillError::NoFile;
                return (guard, Err(StoreError::NoRoom { source }));
            };
            let Some(file) = &self.file else {
                let source = SpillError::NoFile;
                return (guard, Err(StoreError::NoRoom { source }));
            };
            // The lock is released. Slots reserved here are not part of this copy, but other calls
            // that find none see a copy in progress and wait for its end.
            let number = guard.record_for(id);
            let mut sum = None;
            let written;
            (guard, written) = self.copy(guard, id, Place::File(number), || {
                let mut result = Ok(());
                self.device.with_host(slot, &mut |bytes| {
                    result = file.write(number, bytes).map(|s| sum = Some(s));
                });
                result
            });
            guard.written(id, number, sum);
            return match written {
                Ok(()) => {
                    guard.counts.spilled += 1;
                    aside.host = Some(slot);
                    (guard, Ok(()))
                }
                Err(source) => {
                    guard.counts.refused += 1;
                    (guard, Err(StoreError::NoRoom { source }))
                }
            };
        }
    }

    /// Brings a keyframe to the device and leases it.
    fn bring<'a>(
        &'a self,
        mut guard: Guard<'a>,
        lane: Lane,
        id: u32,
        access: Access,
        touch: Touch,
        aside: &mut Aside,
    ) -> (Guard<'a>, Result<Lease<'a, D>, Failed<D>>) {
        loop {
            let Some(Entry { place, moving, .. }) = guard.get(id) else {
                return (guard, Err(StoreError::Unknown { id }));
            };
            if *moving {
                guard = self.wait(guard, aside);
                continue;
            }
            let place = *place;
            if let Place::Device(slot) = place {
                let lease = self.begin(&mut guard, lane, id, slot, access, touch);
                return (guard, lease);
            }
            let Some(slot) = aside.device else {
                let freed;
                (guard, freed) = self.free_slot(guard, lane, Some(id), aside);
                if let Err(error) = freed {
                    return (guard, Err(error));
                }
                // The keyframe may have moved while the lock was released; look it up again.
                continue;
            };
            let after = Mark::all(slot);
            let to = Place::Device(slot);
            if let Place::Host(from) = place {
                let loaded;
                (guard, loaded) =
                    self.copy(guard, id, to, || self.device.load(lane, &after, from, slot));
                if let Err(error) = loaded {
                    return (guard, Err(StoreError::Device(error)));
                }
                aside.device = None;
                guard.give_host_slot(from);
                guard.counts.from_host += 1;
                continue;
            }
            let Some(host) = aside.host else {
                let taken;
                (guard, taken) = self.host_slot(guard, Some(id), aside);
                if let Err(error) = taken {
                    return (guard, Err(error));
                }
                continue;
            };
            let record = guard.get(id).and_then(Entry::record);
            let (Some(file), Some(record)) = (&self.file, record) else {
                // A keyframe in the file always has a record.
                return (guard, Err(StoreError::Unknown { id }));
            };
            let loaded;
            (guard, loaded) = self.copy(guard, id, to, || {
                let mut result = Ok(());
                self.device.with_host(host, &mut |bytes| {
                    result = file.read(record.number, record.sum, bytes);
                });
                result.map_err(|source| StoreError::Unreadable { id, source })?;
                self.device
                    .load(lane, &after, host, slot)
                    .map_err(StoreError::Device)
            });
            if let Err(error) = loaded {
                return (guard, Err(error));
            }
            aside.device = None;
            guard.counts.from_file += 1;
        }
    }

    /// Makes the lane's stream wait for preceding accesses, and grants a lease.
    fn begin<'a>(
        &'a self,
        guard: &mut Guard<'_>,
        lane: Lane,
        id: u32,
        slot: u32,
        access: Access,
        touch: Touch,
    ) -> Result<Lease<'a, D>, Failed<D>> {
        if !guard.may_lease(id, lane, access) {
            return Err(StoreError::Busy { id });
        }
        let after = Mark::all(slot);
        let after = match access {
            Access::Read => &after[..1],
            Access::Write => &after[..],
        };
        for &mark in after {
            self.device.wait(lane, mark).map_err(StoreError::Device)?;
        }
        guard.lease(id, lane, access, touch);
        Ok(Lease {
            store: self,
            id,
            slot,
            lane,
            access,
        })
    }

    fn end(&self, lease: &Lease<'_, D>) {
        let mark = match lease.access {
            Access::Read => Mark::Read(lease.slot, lease.lane),
            Access::Write => Mark::Written(lease.slot),
        };
        let mut guard = self.lock();
        let noted = self.device.record(lease.lane, mark);
        guard.end_lease(lease.id, lease.lane, lease.access);
        if let Err(error) = noted {
            // Recording a mark fails only if the device is lost, and then every later call fails by
            // itself.
            tracing::error!("keyframe {}: {error}", lease.id);
        }
        self.changed.notify_all();
    }
}

impl<D: SlotDevice> Lease<'_, D> {
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The slot, which does not change during the lease.
    pub fn slot(&self) -> u32 {
        self.slot
    }
}

impl<D: SlotDevice> Drop for Lease<'_, D> {
    fn drop(&mut self) {
        self.store.end(self);
    }
}
