//! Who is where, and who goes next. Nothing here moves a byte.

use super::{Access, Lane, Touch};
use rustc_hash::FxHashMap;

/// Where a keyframe's bulk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In this slot on the device.
    Device(u32),
    /// In this host slot.
    Host(u32),
    /// In this record of the file.
    File(u32),
}

/// What the store has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records copied from a slot to a host slot.
    pub evicted: u64,
    /// Records that left a slot without a copy, as the file had them unchanged.
    pub dropped: u64,
    /// Records written from a host slot to the file.
    pub spilled: u64,
    /// Records that came back from a host slot.
    pub from_host: u64,
    /// Records that came back from the file.
    pub from_file: u64,
    /// Times that the file did not take a record.
    pub refused: u64,
}

/// Of a slot or host slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tenant {
    Nobody,
    /// Set aside for a keyframe that is about to come.
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
    /// Whether it is being copied. Its place is then still the old one.
    pub moving: bool,
    /// Leases by lane.
    readers: [u32; 2],
    writers: [u32; 2],
    last_use: u64,
    /// Its record in the file holds what the slot holds.
    clean: Option<Record>,
    /// A record that was its own once and is out of date.
    stale: Option<u32>,
}

impl Entry {
    fn is_leased(&self) -> bool {
        self.readers.iter().chain(&self.writers).any(|&n| n > 0)
    }

    /// The record, if the keyframe is in the file.
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
    active: Option<u32>,
    /// Threads that are copying.
    pub copies: u32,
    pub counts: Counts,
}

impl Table {
    /// With room for `keyframes` before anything has to grow.
    pub fn new(device: usize, host: usize, keyframes: usize) -> Self {
        let mut entries = FxHashMap::default();
        entries.reserve(keyframes);
        Self {
            entries,
            device: vec![Tenant::Nobody; device],
            host: vec![Tenant::Nobody; host],
            free_records: Vec::with_capacity(keyframes),
            records: 0,
            clock: 0,
            active: None,
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
        self.device.iter().filter(|t| **t == Tenant::Nobody).count()
    }

    pub fn set_active(&mut self, id: Option<u32>) {
        self.active = id;
    }

    /// Sets a free slot aside.
    pub fn take_device_slot(&mut self) -> Option<u32> {
        take(&mut self.device)
    }

    /// Sets a free host slot aside.
    pub fn take_host_slot(&mut self) -> Option<u32> {
        take(&mut self.host)
    }

    /// Frees a slot that was set aside.
    pub fn give_device_slot(&mut self, slot: u32) {
        set(&mut self.device, slot, Tenant::Nobody);
    }

    /// Frees a host slot that was set aside.
    pub fn give_host_slot(&mut self, slot: u32) {
        set(&mut self.host, slot, Tenant::Nobody);
    }

    /// The keyframe on the device that is least useful, and whether the file has it unchanged.
    pub fn device_victim(&self) -> Option<(u32, bool)> {
        self.least(&self.device, |id, _| self.active != Some(id))
            .map(|(id, entry)| (id, entry.clean.is_some()))
    }

    /// As [`Table::device_victim`], of those that the file has unchanged.
    pub fn clean_victim(&self) -> Option<u32> {
        self.least(&self.device, |id, entry| {
            entry.clean.is_some() && self.active != Some(id)
        })
        .map(|(id, _)| id)
    }

    /// The keyframe in host memory that is least useful; `keep` only if there is no other.
    pub fn host_victim(&self, keep: Option<u32>) -> Option<u32> {
        self.least(&self.host, |id, _| Some(id) != keep)
            .or_else(|| self.least(&self.host, |_, _| true))
            .map(|(id, _)| id)
    }

    fn least(
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

    /// A new keyframe in a slot that was set aside.
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

    /// Takes a keyframe out that is neither leased nor moving; whether it was.
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
        if self.active == Some(id) {
            self.active = None;
        }
        true
    }

    /// Marks the beginning of a copy.
    pub fn begin_move(&mut self, id: u32) {
        self.copies += 1;
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.moving = true;
        }
    }

    /// Marks the end of a copy: the keyframe is now at `place`, or where it was. The slot or host slot
    /// that it left stays set aside for who moved it.
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

    /// Moves a keyframe whose record is good to the file without a copy; its slot is then set aside.
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

    /// The record that a keyframe is to be written to: its old one or a new one.
    pub fn record_for(&mut self, id: u32) -> u32 {
        let own = self.entries.get_mut(&id).and_then(|e| e.stale.take());
        own.or_else(|| self.free_records.pop()).unwrap_or_else(|| {
            self.records += 1;
            self.records - 1
        })
    }

    /// What became of writing a keyframe to its record: the checksum, or nothing.
    pub fn written(&mut self, id: u32, number: u32, sum: Option<u64>) {
        match self.entries.get_mut(&id) {
            Some(entry) => match sum {
                Some(sum) => entry.clean = Some(Record { number, sum }),
                None => entry.stale = Some(number),
            },
            None => self.free_records.push(number),
        }
    }

    /// Whether a lease may be given now; it says nothing of the place.
    pub fn may_lease(&self, id: u32, lane: Lane, access: Access) -> bool {
        self.entries.get(&id).is_some_and(|entry| {
            let other = 1 - lane.index();
            entry.writers[other] == 0 && (access == Access::Read || entry.readers[other] == 0)
        })
    }

    /// Gives a lease. Writing makes the record in the file stale.
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

    /// Takes a lease back.
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
    let at = tenants.iter().position(|t| *t == Tenant::Nobody)?;
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
        // A pass does not make anybody useful.
        touch(&mut table, 1, Touch::Pass);
        assert_eq!(table.device_victim(), Some((1, false)));
        table.set_active(Some(1));
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
        // Another keyframe gets the record that has become free.
        table.insert(1, 0);
        assert_eq!(table.record_for(1), record);
    }
}
