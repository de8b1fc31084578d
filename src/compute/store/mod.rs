//! Storage of keyframes' bulk data: a fixed number of device slots, a fixed number of host slots,
//! and a file.
//!
//! The pose of a keyframe is stored in the graph; its bulk data (image, points, confidences,
//! tokens; see [`SlotLayout`]) is one fixed-size record. [`KeyframeStore`] grants leases on device
//! slots. If no slot is free, the record of the least useful keyframe moves to a host slot, and if
//! those are full, the least useful of them moves to the file. Records return bit for bit on
//! demand. Only the file grows; the numbers of slots and host slots are fixed.
//!
//! **Least useful** is the least recently used keyframe that is not leased. A lease for an edge, a
//! candidate or an optimisation window counts as use ([`Touch::Use`]); a pass over the whole graph
//! does not ([`Touch::Pass`]), because a pass over more keyframes than there are slots would evict
//! each keyframe just before its turn. With `Pass`, it streams through one slot and leaves the
//! others in place.
//!
//! **Two threads** use the store, each with its own stream ([`Lane`]). A lease orders device work:
//! a reader's stream waits for the slot's last writer, and a writer's stream also for its last
//! readers, for whichever keyframe they accessed the slot. Marks belong to slots rather than
//! keyframes, so that a slot's next tenant cannot overtake its previous one. Copies to and from the
//! host also wait for those marks, and are complete before the new location becomes visible. No
//! lock is held during a copy. Calls never wait for a lease: a keyframe that the other thread is
//! writing yields [`StoreError::Busy`]. Calls wait only for copies in progress, which always end.
//!
//! **Failures are recoverable**: if the file cannot store a record (disk full, permission denied),
//! the keyframe stays in place, and the call that needed room returns the reason. The store is
//! unchanged and the call can be repeated.

mod file;
mod keyframes;
mod layout;
mod table;

pub use file::{SpillError, SpillFile};
pub use keyframes::{KeyframeStore, Lease, StoreOptions};
pub use layout::{FloatFormat, Section, SlotLayout};
pub use table::{Counts, Place};

/// A thread and its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lane {
    /// The tracking thread.
    Tracking,
    /// The mapping thread.
    Mapping,
}

impl Lane {
    pub const ALL: [Self; 2] = [Self::Tracking, Self::Mapping];

    /// 0 or 1.
    pub fn index(self) -> usize {
        self as usize
    }
}

/// Kind of access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

/// Whether a lease counts as use of its keyframe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    /// Counts as use.
    Use,
    /// Part of a pass over all keyframes; does not count as use.
    Pass,
}

/// A point in a lane's work, recorded by [`SlotDevice::record`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mark {
    /// The last write to a slot.
    Written(u32),
    /// The last read of a slot on a lane.
    Read(u32, Lane),
}

impl Mark {
    /// Number of marks per slot.
    pub const PER_SLOT: usize = 3;

    /// Index below `PER_SLOT` times the number of slots.
    pub fn index(self) -> usize {
        match self {
            Self::Written(slot) => slot as usize * Self::PER_SLOT,
            Self::Read(slot, lane) => slot as usize * Self::PER_SLOT + 1 + lane.index(),
        }
    }

    /// All accesses that must end before a slot is overwritten.
    fn all(slot: u32) -> [Self; 3] {
        [
            Self::Written(slot),
            Self::Read(slot, Lane::Tracking),
            Self::Read(slot, Lane::Mapping),
        ]
    }
}

/// The memory managed by a [`KeyframeStore`]: slots, and the streams that use them.
///
/// The store guarantees that a slot or host slot takes part in at most one copy at a time, and in
/// none while it is leased.
pub trait SlotDevice: Send + Sync {
    type Error: std::error::Error + Clone + Send + Sync + 'static;

    /// Number of slots on the device.
    fn device_slots(&self) -> usize;

    /// Number of slots in host memory.
    fn host_slots(&self) -> usize;

    /// Size of a record in bytes, the same in device slots, host slots and file.
    fn record_bytes(&self) -> usize;

    /// Records the lane's work so far under `mark`.
    fn record(&self, lane: Lane, mark: Mark) -> Result<(), Self::Error>;

    /// Makes later work of the lane wait for the work last recorded under `mark`, if any.
    fn wait(&self, lane: Lane, mark: Mark) -> Result<(), Self::Error>;

    /// Copies a device slot to a host slot after the work recorded under `after`; returns when
    /// done.
    fn save(&self, lane: Lane, after: &[Mark], slot: u32, host: u32) -> Result<(), Self::Error>;

    /// Copies a host slot to a device slot after the work recorded under `after`; returns when
    /// done.
    fn load(&self, lane: Lane, after: &[Mark], host: u32, slot: u32) -> Result<(), Self::Error>;

    /// Gives `with` mutable access to the bytes of a host slot.
    fn with_host(&self, host: u32, with: &mut dyn FnMut(&mut [u8]));
}

/// Keyframe store error.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError<E: std::error::Error + 'static> {
    /// The keyframe is not in the store.
    #[error("keyframe {id} is not in the store")]
    Unknown { id: u32 },
    /// The keyframe is already in the store.
    #[error("keyframe {id} is in the store already")]
    Duplicate { id: u32 },
    /// More slots are needed at once than exist.
    #[error(
        "all {slots} keyframe slots are in use at the same time: configure more slots, or solve over fewer keyframes at once"
    )]
    AllInUse { slots: usize },
    /// The other thread holds a conflicting lease.
    #[error("keyframe {id} is in use by the other thread")]
    Busy { id: u32 },
    /// Host slots are full and the file cannot be used. The keyframe to be moved stays in place.
    #[error("the keyframe slots are full, and no keyframe can be moved out: {source}")]
    NoRoom { source: SpillError },
    /// The record cannot be read back. The keyframe stays in the store.
    #[error("keyframe {id} cannot be read back: {source}")]
    Unreadable { id: u32, source: SpillError },
    /// The device failed.
    #[error(transparent)]
    Device(E),
}
