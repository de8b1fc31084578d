//! What memory a device will take, computed before any is taken.
//!
//! Whoever needs buffers asks a [`Part`] of the plan for them and gets handles: [`Planned`] (device
//! memory of its own), [`PlannedPinned`] (pinned host memory), [`PlannedArena`] (several buffers of
//! either, which are carved in the order of the list) and [`PlannedScratch`] (device memory that stages
//! of one [`Group`] use one after the other). A handle knows its place, so once the plan is allocated it
//! becomes a buffer without looking for anything. Handles cannot be copied: each buffer has one owner.
//!
//! The plan itself is arithmetic: it needs neither a GPU nor its driver.

// Only a device turns handles into memory.
#![cfg_attr(not(feature = "cuda"), allow(dead_code))]

mod advice;
mod show;

pub use advice::{DoesNotFit, Knob, Saving, savings};
pub use show::human;

use serde::Serialize;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

/// Buffers start at multiples of this many bytes: what the driver aligns allocations to, enough for
/// any vector access and a whole number of cache lines.
pub const ALIGNMENT: u64 = 256;

/// Whose memory it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// The tracking thread's.
    Tracking,
    /// The mapping thread's.
    Mapping,
    /// Keyframes' bulk.
    Keyframes,
    /// Matches of the graph's edges.
    Edges,
    /// Place recognition.
    Retrieval,
}

impl Group {
    const ALL: [Self; 5] = [
        Self::Tracking,
        Self::Mapping,
        Self::Keyframes,
        Self::Edges,
        Self::Retrieval,
    ];

    /// As it is printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tracking => "tracking",
            Self::Mapping => "mapping",
            Self::Keyframes => "keyframes",
            Self::Edges => "edges",
            Self::Retrieval => "retrieval",
        }
    }
}

/// Which memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// Of the device, for one purpose.
    Device,
    /// Of the device, shared with other stages of the group.
    Scratch,
    /// Of the host, pinned.
    Pinned,
}

/// One buffer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Request {
    /// Whose.
    pub group: Group,
    /// Dotted: who asked, and for what.
    pub name: String,
    /// Where.
    pub place: Place,
    /// Elements by dimension.
    pub shape: Vec<usize>,
    /// An element's type.
    #[serde(rename = "type")]
    pub element: &'static str,
    /// Bytes, without the gap to the next buffer.
    pub bytes: u64,
}

/// Device memory that was asked for.
#[derive(Debug)]
pub struct Planned<T>(Span<T>);

/// Pinned host memory that was asked for.
#[derive(Debug)]
pub struct PlannedPinned<T>(Span<T>);

/// A buffer of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    name: &'static str,
    shape: Vec<usize>,
    element: &'static str,
    size: usize,
}

impl Spec {
    /// `shape` elements of type `T`.
    pub fn of<T>(name: &'static str, shape: &[usize]) -> Self {
        Self {
            name,
            shape: shape.to_vec(),
            element: short_name::<T>(),
            size: size_of::<T>(),
        }
    }

    /// Elements; the most there are where they are beyond counting.
    fn len(&self) -> usize {
        let dimensions = self.shape.iter();
        dimensions.fold(1, |len: usize, &n| len.saturating_mul(n))
    }

    /// Bytes; the most there are where they are beyond counting.
    pub fn bytes(&self) -> u64 {
        (self.len() as u64).saturating_mul(self.size as u64)
    }
}

/// Bytes of an arena in which these buffers can be carved one after the other.
pub fn arena_bytes(buffers: &[Spec]) -> u64 {
    let mut extent = Extent::default();
    for spec in buffers {
        extent.add(spec.bytes());
    }
    extent.0
}

/// Memory for a list of buffers that was asked for; they are carved in the list's order.
#[derive(Debug)]
pub struct PlannedArena {
    span: Span<u8>,
    place: Place,
    buffers: Vec<(&'static str, u64)>,
}

impl PlannedArena {
    pub(super) fn span(&self) -> &Span<u8> {
        &self.span
    }

    pub(super) fn place(&self) -> Place {
        self.place
    }

    /// Names and bytes.
    pub(super) fn into_buffers(self) -> Vec<(&'static str, u64)> {
        self.buffers
    }
}

/// Scratch of a stage that was asked for.
#[derive(Debug)]
pub struct PlannedScratch<T> {
    span: Span<T>,
    stage: Stage,
}

/// Elements `offset / size_of::<T>() ..` of an arena.
#[derive(Debug)]
pub(super) struct Span<T> {
    /// Bytes before it.
    pub(super) offset: u64,
    /// Elements.
    pub(super) len: usize,
    /// Of the plan that it belongs to.
    pub(super) plan: PlanId,
    element: PhantomData<fn() -> T>,
}

/// Tells plans of this process apart: a handle means nothing to another plan's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PlanId(u64);

impl Default for PlanId {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A stage of a group; its scratch is valid while it runs, and then belongs to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage {
    pub(super) group: Group,
    number: u32,
}

impl<T> Planned<T> {
    pub(super) fn span(&self) -> &Span<T> {
        &self.0
    }
}

impl<T> PlannedPinned<T> {
    pub(super) fn span(&self) -> &Span<T> {
        &self.0
    }
}

impl<T> PlannedScratch<T> {
    pub(super) fn span(&self) -> &Span<T> {
        &self.span
    }

    pub(super) fn stage(&self) -> Stage {
        self.stage
    }
}

/// Bytes of an arena that grows at its end.
#[derive(Debug, Clone, Copy, Default)]
struct Extent(u64);

impl Extent {
    /// Adds `bytes`; where they start. Beyond counting it stays at the most there is.
    fn add(&mut self, bytes: u64) -> u64 {
        let start = self.0.checked_next_multiple_of(ALIGNMENT);
        let start = start.unwrap_or(u64::MAX);
        self.0 = start.saturating_add(bytes);
        start
    }
}

/// The plan so far.
#[derive(Debug, Default)]
pub struct MemoryPlan {
    id: PlanId,
    requests: Vec<Request>,
    device: Extent,
    pinned: Extent,
    /// Most scratch of any stage, by group.
    scratch: [u64; Group::ALL.len()],
    stages: u32,
}

impl MemoryPlan {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// For the requests of `name` in `group`.
    pub fn part(&mut self, group: Group, name: &str) -> Part<'_> {
        Part {
            group,
            name: name.to_owned(),
            plan: self,
        }
    }

    pub(super) fn id(&self) -> PlanId {
        self.id
    }

    /// Every buffer, in the order asked for.
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// Bytes of scratch of a group: those of its most demanding stage.
    pub fn scratch_bytes(&self, group: Group) -> u64 {
        self.scratch[group as usize]
    }

    /// Bytes of the one device allocation: buffers, then each group's scratch.
    pub fn device_bytes(&self) -> u64 {
        self.scratch_offsets().1
    }

    /// Bytes of the one allocation of pinned host memory.
    pub fn pinned_bytes(&self) -> u64 {
        self.pinned.0
    }

    /// Where each group's scratch starts, and where the last one ends.
    fn scratch_offsets(&self) -> ([u64; Group::ALL.len()], u64) {
        let mut end = self.device;
        let offsets = self.scratch.map(|bytes| end.add(bytes));
        (offsets, end.0)
    }

    /// Where a group's scratch starts.
    pub(super) fn scratch_offset(&self, group: Group) -> u64 {
        self.scratch_offsets().0[group as usize]
    }
}

/// Where one subject asks for its buffers.
#[derive(Debug)]
pub struct Part<'a> {
    group: Group,
    name: String,
    plan: &'a mut MemoryPlan,
}

impl Part<'_> {
    /// A part of this part.
    pub fn part(&mut self, name: &str) -> Part<'_> {
        Part {
            group: self.group,
            name: format!("{}.{name}", self.name),
            plan: self.plan,
        }
    }

    /// Device memory of its own.
    pub fn device<T>(&mut self, name: &'static str, shape: &[usize]) -> Planned<T> {
        let (bytes, len) = self.note(Place::Device, &Spec::of::<T>(name, shape));
        Planned(Span {
            offset: self.plan.device.add(bytes),
            len,
            plan: self.plan.id,
            element: PhantomData,
        })
    }

    /// Pinned host memory.
    pub fn pinned<T>(&mut self, name: &'static str, shape: &[usize]) -> PlannedPinned<T> {
        let (bytes, len) = self.note(Place::Pinned, &Spec::of::<T>(name, shape));
        PlannedPinned(Span {
            offset: self.plan.pinned.add(bytes),
            len,
            plan: self.plan.id,
            element: PhantomData,
        })
    }

    /// Device memory for a list of buffers.
    pub fn device_arena(&mut self, buffers: &[Spec]) -> PlannedArena {
        self.arena(Place::Device, buffers)
    }

    /// Pinned host memory for a list of buffers.
    pub fn pinned_arena(&mut self, buffers: &[Spec]) -> PlannedArena {
        self.arena(Place::Pinned, buffers)
    }

    fn arena(&mut self, place: Place, buffers: &[Spec]) -> PlannedArena {
        let mut extent = Extent::default();
        let mut list = Vec::with_capacity(buffers.len());
        for spec in buffers {
            let (bytes, _) = self.note(place, spec);
            extent.add(bytes);
            list.push((spec.name, bytes));
        }
        let whole = match place {
            Place::Pinned => &mut self.plan.pinned,
            Place::Device | Place::Scratch => &mut self.plan.device,
        };
        PlannedArena {
            span: Span {
                offset: whole.add(extent.0),
                len: usize::try_from(extent.0).unwrap_or(usize::MAX),
                plan: self.plan.id,
                element: PhantomData,
            },
            place,
            buffers: list,
        }
    }

    /// A new stage with scratch; what is asked for here lasts while the stage runs.
    pub fn stage(&mut self, name: &str) -> StagePart<'_> {
        let stage = Stage {
            group: self.group,
            number: self.plan.stages,
        };
        self.plan.stages += 1;
        StagePart {
            stage,
            used: Extent::default(),
            part: self.part(name),
        }
    }

    fn note(&mut self, place: Place, spec: &Spec) -> (u64, usize) {
        self.plan.requests.push(Request {
            group: self.group,
            name: format!("{}.{}", self.name, spec.name),
            place,
            shape: spec.shape.clone(),
            element: spec.element,
            bytes: spec.bytes(),
        });
        (spec.bytes(), spec.len())
    }
}

/// Where a stage asks for scratch.
#[derive(Debug)]
pub struct StagePart<'a> {
    stage: Stage,
    used: Extent,
    part: Part<'a>,
}

impl StagePart<'_> {
    /// What a lease of this stage's scratch is asked for with.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Device memory while the stage runs.
    pub fn scratch<T>(&mut self, name: &'static str, shape: &[usize]) -> PlannedScratch<T> {
        let (bytes, len) = self.part.note(Place::Scratch, &Spec::of::<T>(name, shape));
        let offset = self.used.add(bytes);
        let most = &mut self.part.plan.scratch[self.stage.group as usize];
        *most = (*most).max(self.used.0);
        PlannedScratch {
            span: Span {
                offset,
                len,
                plan: self.part.plan.id,
                element: PhantomData,
            },
            stage: self.stage,
        }
    }
}

/// `f32` of `f32`, `Counts` of `a::b::Counts`, `[f32; 3]` of itself.
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
        let mut part = plan.part(Group::Tracking, "frame");
        let a = part.device::<u8>("a", &[3, 7]);
        let b = part.part("inner").device::<[f32; 3]>("b", &[10]);
        let c = part.pinned::<f32>("c", &[2, 2]);
        assert_eq!((a.span().offset, a.span().len), (0, 21));
        assert_eq!((b.span().offset, b.span().len), (256, 10));
        assert_eq!((c.span().offset, c.span().len), (0, 4));
        assert_eq!((plan.device_bytes(), plan.pinned_bytes()), (512, 16));
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
                ("frame.c", "f32", 16)
            ]
        );
    }

    #[test]
    fn a_list_of_buffers_is_one_piece_of_memory() {
        let mut plan = MemoryPlan::new();
        let mut part = plan.part(Group::Mapping, "solver");
        part.device::<u8>("before", &[1]);
        let list = [
            Spec::of::<u8>("a", &[300]),
            Spec::of::<f64>("b", &[7, 7]),
            Spec::of::<f32>("c", &[0]),
        ];
        let arena = part.device_arena(&list);
        assert_eq!(arena_bytes(&list), 1024);
        let after = part.device::<u8>("after", &[1]);
        // 300 up to 512, 392 up to 1024 (where the empty one starts).
        assert_eq!((arena.span().offset, arena.span().len), (256, 1024));
        assert_eq!(after.span().offset, 1280);
        assert_eq!(arena.into_buffers(), [("a", 300), ("b", 392), ("c", 0)]);
        let host = part.pinned_arena(&[Spec::of::<u32>("d", &[5])]);
        assert_eq!((host.span().offset, host.place()), (0, Place::Pinned));
        assert_eq!(plan.pinned_bytes(), 20);
        assert_eq!(plan.requests().len(), 6);
        assert_eq!(plan.requests()[2].name, "solver.b");
    }

    #[test]
    fn scratch_is_as_large_as_the_largest_stage_of_each_group() {
        let mut plan = MemoryPlan::new();
        plan.part(Group::Mapping, "x").device::<u8>("kept", &[1000]);
        for (group, stages) in [
            (Group::Tracking, [[100, 300], [600, 1]]),
            (Group::Mapping, [[5, 5], [1, 1]]),
        ] {
            for sizes in stages {
                let mut part = plan.part(group, "y");
                let mut stage = part.stage("stage");
                let handles = sizes.map(|bytes| stage.scratch::<u8>("s", &[bytes]));
                // Each stage starts anew, and its buffers do not overlap.
                assert_eq!(handles[0].span().offset, 0);
                assert_eq!(
                    handles[1].span().offset,
                    (sizes[0] as u64).next_multiple_of(256)
                );
                assert_eq!(handles[0].stage(), handles[1].stage());
            }
        }
        // 256 + 300; 768 + 1; 256 + 5.
        assert_eq!(plan.scratch_bytes(Group::Tracking), 769);
        assert_eq!(plan.scratch_bytes(Group::Mapping), 261);
        assert_eq!(plan.scratch_offset(Group::Tracking), 1024);
        assert_eq!(plan.scratch_offset(Group::Mapping), 2048);
        assert_eq!(plan.device_bytes(), 2048 + 512);
    }

    #[test]
    fn what_cannot_be_counted_is_too_much_and_not_too_little() {
        let mut plan = MemoryPlan::new();
        let mut part = plan.part(Group::Edges, "huge");
        part.device::<u64>("a", &[usize::MAX, usize::MAX]);
        part.device::<u64>("b", &[usize::MAX]);
        assert_eq!(plan.device_bytes(), u64::MAX);
        part = plan.part(Group::Edges, "empty");
        part.device::<u64>("c", &[0, usize::MAX]);
        assert_eq!(plan.requests()[2].bytes, 0);
    }
}
