//! Memory plan of a device, computed before any memory is allocated.
//!
//! A [`MemoryPlan`] is a ledger: it records the name, shape and type of each buffer and assigns its offset. The
//! `Carver` of the parent module fills it while handing out buffers, so a plan and the memory carved
//! according to it agree. Planning is pure arithmetic and needs neither a GPU nor its driver.

mod advice;
mod show;

pub use advice::{DoesNotFit, Knob, Saving, savings};
pub use show::human;

use serde::Serialize;

/// Alignment of buffers in bytes: that of the driver's allocations, sufficient for any vector
/// access and a whole number of cache lines.
pub const ALIGNMENT: u64 = 256;

/// Part of the program that a buffer belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// The tracking thread.
    Tracking,
    /// The mapping thread.
    Mapping,
    /// Bulk data of keyframes.
    Keyframes,
    /// Matches of the graph's edges.
    Edges,
    /// Place recognition.
    Retrieval,
    /// The network's runtime.
    Network,
    /// The map of Gaussians.
    Splat,
}

impl Group {
    const ALL: [Self; 7] = [
        Self::Tracking,
        Self::Mapping,
        Self::Keyframes,
        Self::Edges,
        Self::Retrieval,
        Self::Network,
        Self::Splat,
    ];

    /// The name used in output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tracking => "tracking",
            Self::Mapping => "mapping",
            Self::Keyframes => "keyframes",
            Self::Edges => "edges",
            Self::Retrieval => "retrieval",
            Self::Network => "network",
            Self::Splat => "splat",
        }
    }
}

/// Kind of memory that holds a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// The plan's device memory.
    Device,
    /// The plan's pinned host memory.
    Pinned,
    /// Device memory allocated elsewhere, outside of the plan's allocation.
    Elsewhere,
}

impl Place {
    /// The name used in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Pinned => "pinned",
            Self::Elsewhere => "elsewhere",
        }
    }
}

/// A planned buffer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Request {
    /// Part of the program.
    pub group: Group,
    /// Dotted name: the component, then the buffer.
    pub name: String,
    /// Kind of memory.
    pub place: Place,
    /// Number of elements per dimension.
    pub shape: Vec<usize>,
    #[serde(rename = "type")]
    pub element: &'static str,
    /// Size in bytes, without padding to the next buffer.
    pub bytes: u64,
}

/// Location of a buffer in its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Offset in bytes.
    pub offset: u64,
    /// Number of elements; saturates at the maximum.
    pub len: usize,
}

/// Size in bytes of a memory with consecutive buffers.
#[derive(Debug, Clone, Copy, Default)]
struct Extent(u64);

impl Extent {
    /// Adds `bytes` and returns their offset. Saturates at the maximum.
    fn add(&mut self, bytes: u64) -> u64 {
        let start = self.0.checked_next_multiple_of(ALIGNMENT);
        let start = start.unwrap_or(u64::MAX);
        self.0 = start.saturating_add(bytes);
        start
    }
}

/// The buffers recorded so far.
#[derive(Debug, Clone, Default)]
pub struct MemoryPlan {
    requests: Vec<Request>,
    device: Extent,
    pinned: Extent,
}

impl MemoryPlan {
    /// A plan without buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// All buffers in the order in which they were recorded.
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// Size of the device allocation in bytes.
    pub fn device_bytes(&self) -> u64 {
        self.device.0
    }

    /// Size of the pinned host allocation in bytes.
    pub fn pinned_bytes(&self) -> u64 {
        self.pinned.0
    }

    /// Size in bytes of the device memory allocated elsewhere.
    pub fn elsewhere_bytes(&self) -> u64 {
        let elsewhere = self.requests.iter().filter(|r| r.place == Place::Elsewhere);
        elsewhere.fold(0, |sum: u64, r| sum.saturating_add(r.bytes))
    }

    /// Bytes by part of the program and kind of memory, without padding.
    pub fn pools(&self) -> Vec<(Group, Place, u64)> {
        let of = |group: Group, place: Place| {
            let own = |r: &&Request| r.group == group && r.place == place;
            let bytes = self.requests.iter().filter(own).map(|r| r.bytes);
            (group, place, bytes.fold(0, u64::saturating_add))
        };
        let places = [Place::Device, Place::Pinned, Place::Elsewhere];
        let all = Group::ALL.into_iter();
        let all = all.flat_map(|group| places.map(|place| of(group, place)));
        all.filter(|(.., bytes)| *bytes > 0).collect()
    }

    /// Adds the buffers of another plan, which have an allocation of their own.
    pub fn extend(&mut self, other: &Self) {
        self.requests.extend_from_slice(&other.requests);
        self.device.add(other.device.0);
        self.pinned.add(other.pinned.0);
    }

    /// Records a buffer of `shape` elements of type `T` after the previous ones of `place`.
    pub fn note<T>(&mut self, group: Group, name: String, place: Place, shape: &[usize]) -> Span {
        let len = shape.iter().fold(1, |len: usize, &n| len.saturating_mul(n));
        let bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
        self.requests.push(Request {
            group,
            name,
            place,
            shape: shape.to_vec(),
            element: short_name::<T>(),
            bytes,
        });
        let offset = match place {
            Place::Device => self.device.add(bytes),
            Place::Pinned => self.pinned.add(bytes),
            Place::Elsewhere => 0,
        };
        Span { offset, len }
    }
}

/// Short type name: `f32` for `f32`, `Counts` for `a::b::Counts`, `[f32; 3]` unchanged.
fn short_name<T>() -> &'static str {
    let name = std::any::type_name::<T>();
    if name.starts_with('[') {
        return name;
    }
    name.rsplit("::").next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_lie_aligned_one_after_the_other() {
        let mut plan = MemoryPlan::new();
        let group = Group::Tracking;
        let a = plan.note::<u8>(group, "frame.a".into(), Place::Device, &[3, 7]);
        let b = plan.note::<[f32; 3]>(group, "frame.inner.b".into(), Place::Device, &[10]);
        let c = plan.note::<f32>(group, "frame.c".into(), Place::Pinned, &[2, 2]);
        let d = plan.note::<u8>(Group::Network, "weights".into(), Place::Elsewhere, &[1000]);
        assert_eq!((a.offset, a.len), (0, 21));
        assert_eq!((b.offset, b.len), (256, 10));
        assert_eq!((c.offset, c.len), (0, 4));
        assert_eq!((d.offset, d.len), (0, 1000));
        // 256 + 120: no padding after the last buffer.
        assert_eq!((plan.device_bytes(), plan.pinned_bytes()), (376, 16));
        assert_eq!(plan.elsewhere_bytes(), 1000);
        assert_eq!(
            plan.pools(),
            [
                (Group::Tracking, Place::Device, 141),
                (Group::Tracking, Place::Pinned, 16),
                (Group::Network, Place::Elsewhere, 1000),
            ]
        );
        let listed: Vec<_> = plan
            .requests()
            .iter()
            .map(|r| (r.name.as_str(), r.element, r.bytes))
            .collect();
        assert_eq!(
            listed,
            [
                ("frame.a", "u8", 21),
                ("frame.inner.b", "[f32; 3]", 120),
                ("frame.c", "f32", 16),
                ("weights", "u8", 1000),
            ]
        );
    }

    #[test]
    fn a_plan_takes_up_another_one() {
        let note = |bytes: usize| {
            let mut plan = MemoryPlan::new();
            plan.note::<u8>(Group::Splat, "a".into(), Place::Device, &[bytes]);
            plan
        };
        let mut plan = note(10);
        plan.extend(&note(7));
        assert_eq!((plan.device_bytes(), plan.requests().len()), (256 + 7, 2));
        assert_eq!(plan.pools(), [(Group::Splat, Place::Device, 17)]);
    }

    #[test]
    fn what_cannot_be_counted_is_too_much_and_not_too_little() {
        let mut plan = MemoryPlan::new();
        let mut note = |shape: &[usize]| {
            plan.note::<u64>(Group::Edges, "huge".into(), Place::Device, shape);
            plan.device_bytes()
        };
        assert_eq!(note(&[usize::MAX, usize::MAX]), u64::MAX);
        assert_eq!(note(&[usize::MAX]), u64::MAX);
        note(&[0, usize::MAX]);
        assert_eq!(plan.requests()[2].bytes, 0);
    }
}
