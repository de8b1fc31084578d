//! Matches of the graph's edges: in device memory while there is room, then in a file.

use crate::compute::cuda::global::DeviceMatches;
use crate::compute::cuda::slots::{Copies, Direction, Records};
use crate::compute::cuda::{
    Context, CudaError, DeviceArena, DeviceBuffer, Event, PinnedArena, Priority, Stream,
};
use crate::compute::plan::Spec;
use crate::compute::store::{KeyframeStore, Lane, Mark, Section, SlotDevice};
use std::sync::Arc;

/// The store of the edges; they have their own numbers there.
pub(super) type CudaEdges = KeyframeStore<EdgeSlots>;

/// Edges in pinned host memory, on their way to the file or back.
const HOST_SLOTS: usize = 8;

/// Directions of an edge.
const WAYS: usize = 2;

/// Parts of a record start at multiples of this many bytes.
const ALIGNMENT: usize = 256;

/// An edge's matches.
#[derive(Clone, Copy)]
pub(super) struct EdgeView<'a> {
    /// Of the pixels of j.
    pub(super) i_from_j: DeviceMatches<'a>,
    /// Of the pixels of i.
    pub(super) j_from_i: DeviceMatches<'a>,
}

/// Slots for edges of images of one size, and the stream that copies them.
pub(super) struct EdgeSlots {
    edges: usize,
    pixels: usize,
    index: DeviceBuffer<u32>,
    valid: DeviceBuffer<u8>,
    quality: DeviceBuffer<f32>,
    records: Records,
    compute: Arc<Stream>,
    copy: Stream,
    marks: Vec<Event>,
}

/// Where one direction's parts lie in a record.
struct Sections {
    index: Section,
    quality: Section,
    valid: Section,
}

/// The sections of both directions, and the bytes of a record.
fn layout(pixels: usize) -> ([Sections; WAYS], usize) {
    let mut end = 0;
    let mut next = |bytes: usize| {
        let section = Section { offset: end, bytes };
        end = (end + bytes).next_multiple_of(ALIGNMENT);
        section
    };
    let mut sections = || Sections {
        index: next(4 * pixels),
        quality: next(4 * pixels),
        valid: next(pixels),
    };
    let both = [sections(), sections()];
    (both, end)
}

impl EdgeSlots {
    /// What [`EdgeSlots::new`] carves from device memory, in order.
    pub(super) fn device_buffers(edges: usize, pixels: usize) -> Vec<Spec> {
        let shape = [edges, WAYS, pixels];
        vec![
            Spec::of::<u32>("matches", &shape),
            Spec::of::<u8>("match flags", &shape),
            Spec::of::<f32>("match qualities", &shape),
        ]
    }

    /// What [`EdgeSlots::new`] carves from pinned memory, in order.
    pub(super) fn pinned_buffers(pixels: usize) -> Vec<Spec> {
        vec![Spec::of::<u8>("records", &[HOST_SLOTS, layout(pixels).1])]
    }

    /// Carves the slots; `compute` is the stream on which the mapping thread enqueues kernels.
    pub(super) fn new(
        context: &Context,
        arena: &mut DeviceArena,
        pinned: &mut PinnedArena,
        edges: usize,
        pixels: usize,
        compute: Arc<Stream>,
    ) -> Result<Self, CudaError> {
        let all = edges * WAYS * pixels;
        let (_, bytes) = layout(pixels);
        Ok(Self {
            edges,
            pixels,
            index: arena.carve("matches", all)?,
            valid: arena.carve("match flags", all)?,
            quality: arena.carve("match qualities", all)?,
            records: Records::new(pinned.carve("records", HOST_SLOTS * bytes)?, bytes),
            compute,
            copy: context.stream(Priority::Low)?,
            marks: (0..edges * Mark::PER_SLOT)
                .map(|_| context.event(false))
                .collect::<Result<_, _>>()?,
        })
    }

    /// A slot's matches. Who has no lease on the slot reads another edge's or none.
    pub(super) fn slot(&self, slot: u32) -> Result<EdgeView<'_>, CudaError> {
        let way = |k: usize| {
            let start = (slot as usize * WAYS + k) * self.pixels;
            let range = start..start + self.pixels;
            Ok::<_, CudaError>(DeviceMatches {
                index: self.index.slice(range.clone())?,
                valid: self.valid.slice(range.clone())?,
                quality: self.quality.slice(range)?,
            })
        };
        Ok(EdgeView {
            i_from_j: way(0)?,
            j_from_i: way(1)?,
        })
    }

    fn mark(&self, mark: Mark) -> Result<&Event, CudaError> {
        self.marks.get(mark.index()).ok_or(CudaError::Length {
            what: "marks of edge slots",
            expected: mark.index() + 1,
            found: self.marks.len(),
        })
    }

    /// Copies between a slot and a host slot and waits for it.
    fn copy(
        &self,
        after: &[Mark],
        slot: u32,
        host: u32,
        direction: Direction,
    ) -> Result<(), CudaError> {
        for &mark in after {
            self.copy.wait(self.mark(mark)?)?;
        }
        let edge = self.slot(slot)?;
        let (sections, _) = layout(self.pixels);
        self.records.with(host, |record| {
            let mut copies = Copies {
                stream: &self.copy,
                record,
                direction,
            };
            let ways = [edge.i_from_j, edge.j_from_i];
            let enqueued = ways.iter().zip(&sections).try_for_each(|(way, to)| {
                copies.part(way.index, to.index)?;
                copies.part(way.quality, to.quality)?;
                copies.part(way.valid, to.valid)
            });
            // Also after an error: what was enqueued uses the record.
            self.copy.synchronize()?;
            enqueued
        })?
    }
}

impl SlotDevice for EdgeSlots {
    type Error = CudaError;

    fn device_slots(&self) -> usize {
        self.edges
    }

    fn host_slots(&self) -> usize {
        HOST_SLOTS
    }

    fn record_bytes(&self) -> usize {
        layout(self.pixels).1
    }

    fn record(&self, _: Lane, mark: Mark) -> Result<(), CudaError> {
        self.compute.record(self.mark(mark)?)
    }

    fn wait(&self, _: Lane, mark: Mark) -> Result<(), CudaError> {
        self.compute.wait(self.mark(mark)?)
    }

    fn save(&self, _: Lane, after: &[Mark], slot: u32, host: u32) -> Result<(), CudaError> {
        self.copy(after, slot, host, Direction::ToHost)
    }

    fn load(&self, _: Lane, after: &[Mark], host: u32, slot: u32) -> Result<(), CudaError> {
        self.copy(after, slot, host, Direction::ToDevice)
    }

    fn with_host(&self, host: u32, with: &mut dyn FnMut(&mut [u8])) {
        // The store only names host slots that there are.
        let _ = self.records.with(host, with);
    }
}
