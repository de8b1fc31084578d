//! Where keyframes' bulky parts live: a fixed number of device slots, a fixed number of host slots, a
//! file.
//!
//! A keyframe's pose stays with the graph; its bulk (image, points, confidences, tokens; see
//! [`SlotLayout`]) is one record of fixed size. [`KeyframeStore`] gives out leases on device slots.
//! When it needs a slot and none is free, the least useful keyframe's record moves to a host slot,
//! and when those are full, the least useful of them moves on to the file. It comes back, bit for
//! bit, when somebody asks for it. Neither slots nor host slots are ever added; only the file grows.
//!
//! **Least useful** is the least recently used of those that are neither active nor leased. A lease
//! for an edge, a candidate or a window of a solve counts as use ([`Touch::Use`]); a pass over the
//! whole graph does not ([`Touch::Pass`]), or else a pass over more keyframes than there are slots
//! would throw out each of them just before its turn. With it, such a pass streams through one slot
//! and finds the others where they were.
//!
//! **Two threads** use it, each with a stream of its own ([`Lane`]). A lease orders device work: a
//! reader's stream waits for the slot's last writer, a writer's stream also for its last readers,
//! whoever's bulk that was. The marks belong to slots, not keyframes, so that a slot's next tenant
//! cannot overtake its last one. Copies to and from the host wait for those marks, too, and are
//! complete before anybody learns of the new place. No lock is held during a copy. Nobody waits for
//! a lease: a keyframe that the other thread writes is [`StoreError::Busy`]. What is waited for is
//! another thread's copy under way, which ends by itself.
//!
//! **Nothing fatal**: if the file cannot take a record (disk full, permission), the keyframe stays
//! where it is, and the call that needed room says why. The store is as it was and can be asked again.

mod file;
mod keyframes;
mod layout;
mod table;

pub use file::{SpillError, SpillFile};
pub use keyframes::{KeyframeStore, Lease, StoreOptions};
pub use layout::{FloatFormat, Section, SlotLayout};
pub use table::{Counts, Place};

/// A thread with its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lane {
    /// The tracking thread.
    Tracking,
    /// The mapping thread.
    Mapping,
}

impl Lane {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Tracking, Self::Mapping];

    /// 0 or 1.
    pub fn index(self) -> usize {
        self as usize
    }
}

/// What a lease is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The slot is only read.
    Read,
    /// The slot is written.
    Write,
}

/// Whether a lease says that its keyframe is useful.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    /// It was wanted for its own sake.
    Use,
    /// It is one of all.
    Pass,
}

/// A point in a lane's work, noted by [`SlotDevice::record`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mark {
    /// Of a slot's last writer.
    Written(u32),
    /// Of a slot's last reader on a lane.
    Read(u32, Lane),
}

impl Mark {
    /// Marks of a slot.
    pub const PER_SLOT: usize = 3;

    /// A number below `PER_SLOT` times the number of slots.
    pub fn index(self) -> usize {
        match self {
            Self::Written(slot) => slot as usize * Self::PER_SLOT,
            Self::Read(slot, lane) => slot as usize * Self::PER_SLOT + 1 + lane.index(),
        }
    }

    /// What must be done before a slot's bulk may be overwritten.
    fn all(slot: u32) -> [Self; 3] {
        [
            Self::Written(slot),
            Self::Read(slot, Lane::Tracking),
            Self::Read(slot, Lane::Mapping),
        ]
    }
}

/// The memory that a [`KeyframeStore`] rules: slots, and streams that use them.
///
/// The store makes sure that a slot or host slot is in at most one copy at a time, and in none while
/// it is leased.
pub trait SlotDevice: Send + Sync {
    /// What can go wrong.
    type Error: std::error::Error + Clone + Send + Sync + 'static;

    /// Slots on the device.
    fn device_slots(&self) -> usize;

    /// Slots in host memory.
    fn host_slots(&self) -> usize;

    /// Bytes of a record, the same in slots, host slots and file.
    fn record_bytes(&self) -> usize;

    /// Notes the lane's work so far.
    fn record(&self, lane: Lane, mark: Mark) -> Result<(), Self::Error>;

    /// Later work of the lane waits for what was last noted under `mark`, if anything was.
    fn wait(&self, lane: Lane, mark: Mark) -> Result<(), Self::Error>;

    /// Copies a slot to a host slot, after what is noted under `after`; returns when it is done.
    fn save(&self, lane: Lane, after: &[Mark], slot: u32, host: u32) -> Result<(), Self::Error>;

    /// Copies a host slot to a slot, after what is noted under `after`; returns when it is done.
    fn load(&self, lane: Lane, after: &[Mark], host: u32, slot: u32) -> Result<(), Self::Error>;

    /// Lets `with` see and change a host slot's bytes.
    fn with_host(&self, host: u32, with: &mut dyn FnMut(&mut [u8]));
}

/// Why a keyframe's bulk cannot be had.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError<E: std::error::Error + 'static> {
    /// No such keyframe.
    #[error("keyframe {id} is not in the store")]
    Unknown {
        /// Its id.
        id: u32,
    },
    /// It is there already.
    #[error("keyframe {id} is in the store already")]
    Duplicate {
        /// Its id.
        id: u32,
    },
    /// Too few slots for what is used at once.
    #[error(
        "all {slots} keyframe slots are in use at the same time: give the device more of them, or solve over fewer keyframes at once"
    )]
    AllInUse {
        /// Device slots.
        slots: usize,
    },
    /// The other thread holds it.
    #[error("keyframe {id} is in use by the other thread")]
    Busy {
        /// Its id.
        id: u32,
    },
    /// Host slots are full and the file cannot help. The keyframe that was to move is still where it was.
    #[error("the keyframe slots are full, and none can move on: {source}")]
    NoRoom {
        /// Why the file took no record.
        source: SpillError,
    },
    /// The file did not give a record back. The keyframe is still there.
    #[error("keyframe {id} cannot be brought back: {source}")]
    Unreadable {
        /// Its id.
        id: u32,
        /// Why.
        source: SpillError,
    },
    /// The device failed.
    #[error(transparent)]
    Device(E),
}
