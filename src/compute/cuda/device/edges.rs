//! Storage of edge matches: in device memory while there is room, then in a file.

use crate::compute::cuda::global::DeviceMatches;
use crate::compute::cuda::slots::{Copies, Direction, Records};
use crate::compute::store::{KeyframeStore, Lane, Mark, Section, SlotDevice};
use crate::gpu::{Carver, Context, CudaError, DeviceBuffer, Event, PinnedBuffer, Priority, Stream};
use half::f16;
use std::sync::Arc;

/// The edge store, which assigns its own numbers.
pub(super) type CudaEdges = KeyframeStore<EdgeSlots>;

/// Edges in pinned host memory, in transit to or from the file.
const HOST_SLOTS: usize = 8;

/// Directions per edge.
const WAYS: usize = 2;

/// Alignment of the parts of a record in bytes.
const ALIGNMENT: usize = 256;

/// An edge's matches.
#[derive(Clone, Copy)]
pub(super) struct EdgeView<'a> {
    /// Matches of the pixels of j.
    pub(super) i_from_j: DeviceMatches<'a>,
    /// Matches of the pixels of i.
    pub(super) j_from_i: DeviceMatches<'a>,
}

/// Memory of [`EdgeSlots`].
pub(super) struct EdgeBuffers {
    edges: usize,
    pixels: usize,
    index: DeviceBuffer<u32>,
    quality: DeviceBuffer<f16>,
    records: PinnedBuffer<u8>,
}

impl EdgeBuffers {
    /// Buffers for the matches of `edges` edges at `pixels` pixels per image, and for those being written to a file.
    pub(super) fn carve(
        c: &mut Carver<'_, '_>,
        edges: usize,
        pixels: usize,
    ) -> Result<Self, CudaError> {
        let shape = [edges, WAYS, pixels];
        Ok(Self {
            index: c.device("matches", &shape)?,
            quality: c.device("match qualities", &shape)?,
            records: c.pinned("records", &[HOST_SLOTS, layout(pixels).1])?,
            edges,
            pixels,
        })
    }
}

/// Slots for edges of images of one size, and the stream that copies them.
pub(super) struct EdgeSlots {
    edges: usize,
    pixels: usize,
    index: DeviceBuffer<u32>,
    quality: DeviceBuffer<f16>,
    records: Records,
    compute: Arc<Stream>,
    copy: Stream,
    marks: Vec<Event>,
}

/// Sections of one direction in a record.
struct Sections {
    index: Section,
    quality: Section,
}

/// The sections of both directions, and the size of a record in bytes.
fn layout(pixels: usize) -> ([Sections; WAYS], usize) {
    let mut end = 0;
    let mut next = |bytes: usize| {
        let section = Section { offset: end, bytes };
        end = (end + bytes).next_multiple_of(ALIGNMENT);
        section
    };
    let mut sections = || Sections {
        index: next(4 * pixels),
        quality: next(2 * pixels),
    };
    let both = [sections(), sections()];
    (both, end)
}

impl EdgeSlots {
    /// The slots of `buffers`; `compute` is the stream on which the mapping thread enqueues kernels.
    pub(super) fn new(
        context: &Context,
        buffers: EdgeBuffers,
        compute: Arc<Stream>,
    ) -> Result<Self, CudaError> {
        let EdgeBuffers {
            edges,
            pixels,
            index,
            quality,
            records,
        } = buffers;
        Ok(Self {
            edges,
            pixels,
            index,
            quality,
            records: Records::new(records, layout(pixels).1),
            compute,
            copy: context.stream(Priority::Low)?,
            marks: (0..edges * Mark::PER_SLOT)
                .map(|_| context.event(false))
                .collect::<Result<_, _>>()?,
        })
    }

    /// The matches in a slot. Without a lease on the slot, they may belong to another edge or be
    /// undefined.
    pub(super) fn slot(&self, slot: u32) -> Result<EdgeView<'_>, CudaError> {
        let way = |k: usize| {
            let start = (slot as usize * WAYS + k) * self.pixels;
            let range = start..start + self.pixels;
            Ok::<_, CudaError>(DeviceMatches {
                index: self.index.slice(range.clone())?,
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

    /// Copies between a device slot and a host slot, and waits for completion.
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
                copies.part(way.quality, to.quality)
            });
            // Also after an error: the enqueued work uses the record.
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
        // The store only passes valid host slots.
        let _ = self.records.with(host, with);
    }
}
