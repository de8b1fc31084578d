//! Bookkeeping of locations and eviction order. This module moves no data.

use super::{Access, Lane, Touch};
use rustc_hash::FxHashMap;

/// Location of a keyframe's bulk data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Slot on the device.
    Device(u32),
    /// Slot in host memory.
    Host(u32),
    /// Record in the file.
    File(u32),
}

/// Statistics of the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records copied from a device slot to a host slot.
    pub evicted: u64,
    /// Records dropped from a slot without a copy because the file holds an identical one.
    pub dropped: u64,
    /// Records written from a host slot to the file.
    pub spilled: u64,
    /// Records brought back from a host slot.
    pub from_host: u64,
    /// Records brought back from the file.
    pub from_file: u64,
    /// Number of failed writes to the file.
    pub refused: u64,
}

/// Occupancy of a device or host slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tenant {
    Free,
    /// Reserved for a keyframe that is about to arrive.
    Taken,
    Keyframe(u32),
}

/// A keyframe's record in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    pub number: u32,
    pub sum: u64,
}

#[derive(Debug)]
pub struct Entry {
    pub place: Place,
    /// Whether it is being copied; `place` is then still the old one.
    pub moving: bool,
    /// Number of leases by lane.
    readers: [u32; 2],
    writers: [u32; 2],
    last_use: u64,
    /// Record in the file that is identical to the slot.
    clean: Option<Record>,
    /// An outdated record of its own, which can be reused.
    stale: Option<u32>,
}

impl Entry {
    fn is_leased(&self) -> bool {
        self.readers.iter().chain(&self.writers).any(|&n| n > 0)
    }

    /// The record, if the file holds an identical one.
    pub fn record(&self) -> Option<Record> {
        self.clean
    }
}

/// The state of a store.
#[derive(Debug)]
pub struct Table {
    entries: FxHashMap<u32, Entry>,
    device: Vec<Tenant>,
    host: Vec<Tenant>,
    free_records: Vec<u32>,
    records: u32,
    clock: u64,
    /// Number of copies in progress.
    pub copies: u32,
    pub counts: Counts,
}

impl Table {
    /// A table with capacity for `keyframes` entries before it has to grow.
    pub fn new(device: usize, host: usize, keyframes: usize) -> Self {
        let mut entries = FxHashMap::default();
        entries.reserve(keyframes);
        Self {
            entries,
            device: vec![Tenant::Free; device],
            host: vec![Tenant::Free; host],
            free_records: Vec::with_capacity(keyframes),
            records: 0,
            clock: 0,
            copies: 0,
            counts: Counts::default(),
        }
    }

    pub fn get(&self, id: u32) -> Option<&Entry> {
        self.entries.get(&id)
    }

    pub fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.entries.keys().copied()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn free_device_slots(&self) -> usize {
        self.device.iter().filter(|t| **t == Tenant::Free).count()
    }

    /// Reserves a free slot.
    pub fn take_device_slot(&mut self) -> Option<u32> {
        take(&mut self.device)
    }

    /// Reserves a free host slot.
    pub fn take_host_slot(&mut self) -> Option<u32> {
        take(&mut self.host)
    }

    /// Releases a reserved slot.
    pub fn give_device_slot(&mut self, slot: u32) {
        set(&mut self.device, slot, Tenant::Free);
    }

    /// Releases a reserved host slot.
    pub fn give_host_slot(&mut self, slot: u32) {
        set(&mut self.host, slot, Tenant::Free);
    }

    /// The least useful keyframe on the device, and whether the file holds an identical record.
    pub fn device_victim(&self) -> Option<(u32, bool)> {
        self.least_recent(&self.device, |_, _| true)
            .map(|(id, entry)| (id, entry.clean.is_some()))
    }

    /// The least useful keyframe on the device with an identical record in the file.
    pub fn clean_victim(&self) -> Option<u32> {
        self.least_recent(&self.device, |_, entry| entry.clean.is_some())
            .map(|(id, _)| id)
    }

    /// The least useful keyframe in host memory; `keep` only if there is no other.
    pub fn host_victim(&self, keep: Option<u32>) -> Option<u32> {
        self.least_recent(&self.host, |id, _| Some(id) != keep)
            .or_else(|| self.least_recent(&self.host, |_, _| true))
            .map(|(id, _)| id)
    }

    fn least_recent(
        &self,
        tenants: &[Tenant],
        fits: impl Fn(u32, &Entry) -> bool,
    ) -> Option<(u32, &Entry)> {
        tenants
            .iter()
            .filter_map(|tenant| match *tenant {
                Tenant::Keyframe(id) => Some((id, self.entries.get(&id)?)),
                _ => None,
            })
            .filter(|(id, entry)| !entry.moving && !entry.is_leased() && fits(*id, entry))
            .min_by_key(|(id, entry)| (entry.last_use, *id))
    }

    /// Inserts a new keyframe in a reserved slot.
    pub fn insert(&mut self, id: u32, slot: u32) {
        set(&mut self.device, slot, Tenant::Keyframe(id));
        self.clock += 1;
        self.entries.insert(
            id,
            Entry {
                place: Place::Device(slot),
                moving: false,
                readers: [0; 2],
                writers: [0; 2],
                last_use: self.clock,
                clean: None,
                stale: None,
            },
        );
    }

    /// Removes a keyframe that is neither leased nor moving; returns whether it was removed.
    pub fn remove(&mut self, id: u32) -> bool {
        if self.entries.get(&id).is_none_or(Entry::is_leased) {
            return false;
        }
        let Some(entry) = self.entries.remove(&id) else {
            return false;
        };
        match entry.place {
            Place::Device(slot) => self.give_device_slot(slot),
            Place::Host(slot) => self.give_host_slot(slot),
            Place::File(_) => {}
        }
        let record = entry.clean.map(|r| r.number).or(entry.stale);
        self.free_records.extend(record);
        true
    }

    /// Marks the start of a copy.
    pub fn begin_move(&mut self, id: u32) {
        self.copies += 1;
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.moving = true;
        }
    }

    /// Marks the end of a copy: the keyframe is now at `place`, or still at its old location. The
    /// slot that it left stays reserved for the caller.
    pub fn end_move(&mut self, id: u32, place: Option<Place>) {
        self.copies -= 1;
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        entry.moving = false;
        let Some(place) = place else { return };
        let left = std::mem::replace(&mut entry.place, place);
        match left {
            Place::Device(slot) => set(&mut self.device, slot, Tenant::Taken),
            Place::Host(slot) => set(&mut self.host, slot, Tenant::Taken),
            Place::File(_) => {}
        }
        match place {
            Place::Device(slot) => set(&mut self.device, slot, Tenant::Keyframe(id)),
            Place::Host(slot) => set(&mut self.host, slot, Tenant::Keyframe(id)),
            Place::File(_) => {}
        }
    }

    /// Moves a keyframe with a clean record to the file without a copy; its slot is then reserved.
    pub fn drop_to_file(&mut self, id: u32) -> Option<u32> {
        let entry = self.entries.get_mut(&id)?;
        let (Place::Device(slot), Some(record)) = (entry.place, entry.clean) else {
            return None;
        };
        entry.place = Place::File(record.number);
        set(&mut self.device, slot, Tenant::Taken);
        self.counts.dropped += 1;
        Some(slot)
    }

    /// The record to write a keyframe to: its old one or a new one.
    pub fn record_for(&mut self, id: u32) -> u32 {
        let own = self.entries.get_mut(&id).and_then(|e| e.stale.take());
        own.or_else(|| self.free_records.pop()).unwrap_or_else(|| {
            self.records += 1;
            self.records - 1
        })
    }

    /// Records the result of writing a keyframe to its record: the checksum, or `None` on failure.
    pub fn written(&mut self, id: u32, number: u32, sum: Option<u64>) {
        match self.entries.get_mut(&id) {
            Some(entry) => match sum {
                Some(sum) => entry.clean = Some(Record { number, sum }),
                None => entry.stale = Some(number),
            },
            None => self.free_records.push(number),
        }
    }

    /// Whether a lease may be granted now, regardless of location.
    pub fn may_lease(&self, id: u32, lane: Lane, access: Access) -> bool {
        self.entries.get(&id).is_some_and(|entry| {
            let other = 1 - lane.index();
            entry.writers[other] == 0 && (access == Access::Read || entry.readers[other] == 0)
        })
    }

    /// Grants a lease. Writing makes the record in the file stale.
    pub fn lease(&mut self, id: u32, lane: Lane, access: Access, touch: Touch) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        match access {
            Access::Read => entry.readers[lane.index()] += 1,
            Access::Write => {
                entry.writers[lane.index()] += 1;
                if let Some(record) = entry.clean.take() {
                    entry.stale = Some(record.number);
                }
            }
        }
        if touch == Touch::Use {
            self.clock += 1;
            entry.last_use = self.clock;
        }
    }

    /// Ends a lease.
    pub fn end_lease(&mut self, id: u32, lane: Lane, access: Access) {
        if let Some(entry) = self.entries.get_mut(&id) {
            let count = match access {
                Access::Read => &mut entry.readers[lane.index()],
                Access::Write => &mut entry.writers[lane.index()],
            };
            *count = count.saturating_sub(1);
        }
    }
}

fn take(tenants: &mut [Tenant]) -> Option<u32> {
    let at = tenants.iter().position(|t| *t == Tenant::Free)?;
    tenants[at] = Tenant::Taken;
    Some(at as u32)
}

fn set(tenants: &mut [Tenant], slot: u32, tenant: Tenant) {
    if let Some(place) = tenants.get_mut(slot as usize) {
        *place = tenant;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(slots: usize) -> Table {
        let mut table = Table::new(slots, 1, slots);
        for id in 0..slots as u32 {
            let slot = table.take_device_slot().unwrap();
            table.insert(id, slot);
        }
        table
    }

    fn touch(table: &mut Table, id: u32, touch: Touch) {
        table.lease(id, Lane::Mapping, Access::Read, touch);
        table.end_lease(id, Lane::Mapping, Access::Read);
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut table = full(4);
        assert_eq!(table.device_victim(), Some((0, false)));
        touch(&mut table, 0, Touch::Use);
        assert_eq!(table.device_victim(), Some((1, false)));
        // A pass does not count as use.
        touch(&mut table, 1, Touch::Pass);
        assert_eq!(table.device_victim(), Some((1, false)));
        table.lease(1, Lane::Tracking, Access::Read, Touch::Pass);
        assert_eq!(table.device_victim(), Some((2, false)));
        table.lease(2, Lane::Tracking, Access::Read, Touch::Pass);
        assert_eq!(table.device_victim(), Some((3, false)));
        table.begin_move(3);
        assert_eq!(table.device_victim(), Some((0, false)));
        table.lease(0, Lane::Tracking, Access::Write, Touch::Use);
        assert_eq!(table.device_victim(), None);
    }

    #[test]
    fn writers_keep_the_other_lane_out() {
        let mut table = full(1);
        let (t, m) = (Lane::Tracking, Lane::Mapping);
        let (r, w) = (Access::Read, Access::Write);
        let may = |table: &Table| {
            [(t, r), (t, w), (m, r), (m, w)].map(|(lane, access)| table.may_lease(0, lane, access))
        };
        assert_eq!(may(&table), [true; 4]);
        table.lease(0, t, r, Touch::Use);
        assert_eq!(may(&table), [true, true, true, false]);
        table.lease(0, t, w, Touch::Use);
        assert_eq!(may(&table), [true, true, false, false]);
        table.end_lease(0, t, w);
        table.lease(0, m, r, Touch::Use);
        assert_eq!(may(&table), [true, false, true, false]);
        assert!(!table.remove(0), "it is leased");
        table.end_lease(0, m, r);
        table.end_lease(0, t, r);
        assert!(table.remove(0));
        assert!(!table.remove(0));
        assert_eq!(table.free_device_slots(), 1);
    }

    #[test]
    fn a_record_is_kept_while_it_is_good_and_used_again_when_not() {
        let mut table = full(1);
        let record = table.record_for(0);
        table.written(0, record, Some(7));
        assert_eq!(table.clean_victim(), Some(0));
        assert_eq!(table.drop_to_file(0), Some(0));
        assert_eq!(table.get(0).map(|e| e.place), Some(Place::File(record)));
        table.begin_move(0);
        table.end_move(0, Some(Place::Device(0)));
        table.lease(0, Lane::Mapping, Access::Write, Touch::Use);
        table.end_lease(0, Lane::Mapping, Access::Write);
        assert_eq!(table.clean_victim(), None);
        assert_eq!(table.record_for(0), record);
        table.written(0, record, None);
        assert!(table.remove(0));
        // Another keyframe receives the freed record.
        table.insert(1, 0);
        assert_eq!(table.record_for(1), record);
    }
}
