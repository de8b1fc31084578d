//! Carving of buffers, either to plan memory or from allocated memory.

use super::memory::{DeviceMemory, PinnedMemory};
use super::plan::{Group, MemoryPlan, Place, Span};
use super::{Context, CudaError, DeviceBuffer, Element, PinnedBuffer};
use std::sync::Arc;

/// A run through the functions that carve a program's buffers. Each requests its buffers from a [`Carver`],
/// once and in one place. The same functions run without memory to produce the [`MemoryPlan`], and then on the
/// memory allocated for this plan.
pub struct Carving<'p> {
    /// The buffers carved so far.
    carved: MemoryPlan,
    source: Source<'p>,
}

/// Source of the memory.
enum Source<'p> {
    /// No memory: buffers are only recorded.
    Paper,
    /// A separate allocation per buffer.
    Separate(Context),
    /// A single allocation, laid out by a plan.
    Planned {
        plan: &'p MemoryPlan,
        device: Arc<DeviceMemory>,
        pinned: Arc<PinnedMemory>,
    },
}

impl Carving<'static> {
    /// Only records the buffers: the returned ones have no memory, and pinned ones no elements.
    pub fn on_paper() -> Self {
        Self {
            carved: MemoryPlan::new(),
            source: Source::Paper,
        }
    }

    /// Allocates each buffer separately, for tests and benchmarks.
    pub fn separate(context: &Context) -> Self {
        Self {
            carved: MemoryPlan::new(),
            source: Source::Separate(context.clone()),
        }
    }
}

impl<'p> Carving<'p> {
    /// Allocates the memory of `plan`: one block of device memory and one of pinned host memory. Contents are
    /// undefined on the device, zero on the host.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::OutOfPinnedMemory`].
    pub fn planned(context: &Context, plan: &'p MemoryPlan) -> Result<Self, CudaError> {
        let device = DeviceMemory::new(context, "the memory plan", plan.device_bytes())?;
        Ok(Self {
            carved: MemoryPlan::new(),
            source: Source::Planned {
                plan,
                device: Arc::new(device),
                pinned: Arc::new(PinnedMemory::new(context, plan.pinned_bytes())?),
            },
        })
    }

    /// A carver for the buffers of component `name` in `group`.
    pub fn part(&mut self, group: Group, name: &str) -> Carver<'_, 'p> {
        Carver {
            group,
            name: name.to_owned(),
            carving: self,
        }
    }

    /// The carved buffers as a plan.
    pub fn into_plan(self) -> MemoryPlan {
        self.carved
    }

    /// Checks that all planned buffers have been carved.
    ///
    /// # Errors
    /// [`CudaError::Unplanned`] with the name of a missing buffer: a bug in this program.
    pub fn finish(self) -> Result<(), CudaError> {
        let Source::Planned { plan, .. } = self.source else {
            return Ok(());
        };
        let next = plan.requests().get(self.carved.requests().len());
        next.map_or(Ok(()), |next| {
            Err(CudaError::Unplanned {
                name: "nothing".into(),
                bytes: 0,
                planned: Some((next.name.clone(), next.bytes)),
            })
        })
    }

    /// Records a buffer, which must be the next one of the plan, if there is a plan.
    fn note<T>(
        &mut self,
        group: Group,
        name: String,
        place: Place,
        shape: &[usize],
    ) -> Result<Span, CudaError> {
        let span = self.carved.note::<T>(group, name, place, shape);
        if let Source::Planned { plan, .. } = &self.source {
            let carved = self.carved.requests();
            let planned = plan.requests().get(carved.len().saturating_sub(1));
            if let Some(found) = carved.last()
                && planned != Some(found)
            {
                return Err(CudaError::Unplanned {
                    name: found.name.clone(),
                    bytes: found.bytes,
                    planned: planned.map(|request| (request.name.clone(), request.bytes)),
                });
            }
        }
        Ok(span)
    }
}

/// Requests buffers for one component.
pub struct Carver<'a, 'p> {
    group: Group,
    /// Dotted name of the component.
    name: String,
    carving: &'a mut Carving<'p>,
}

impl<'p> Carver<'_, 'p> {
    /// A carver for a part of this component.
    pub fn part(&mut self, name: &str) -> Carver<'_, 'p> {
        Carver {
            group: self.group,
            name: format!("{}.{name}", self.name),
            carving: self.carving,
        }
    }

    /// A device buffer of `shape` elements.
    ///
    /// # Errors
    /// [`CudaError::Unplanned`] for a buffer that is not the next of the plan; without a plan
    /// [`CudaError::OutOfMemory`].
    pub fn device<T: Element>(
        &mut self,
        name: &'static str,
        shape: &[usize],
    ) -> Result<DeviceBuffer<T>, CudaError> {
        let full = format!("{}.{name}", self.name);
        let span = (self.carving).note::<T>(self.group, full, Place::Device, shape)?;
        match &self.carving.source {
            Source::Paper => Ok(DeviceBuffer::on_paper(span.len)),
            Source::Separate(context) => {
                let bytes = (span.len as u64).saturating_mul(size_of::<T>() as u64);
                let memory = Arc::new(DeviceMemory::new(context, name, bytes)?);
                DeviceBuffer::at(&memory, name, 0, span.len)
            }
            Source::Planned { device, .. } => DeviceBuffer::at(device, name, span.offset, span.len),
        }
    }

    /// A pinned host buffer of `shape` elements.
    ///
    /// # Errors
    /// See [`Carver::device`].
    pub fn pinned<T: Element>(
        &mut self,
        name: &'static str,
        shape: &[usize],
    ) -> Result<PinnedBuffer<T>, CudaError> {
        let full = format!("{}.{name}", self.name);
        let span = (self.carving).note::<T>(self.group, full, Place::Pinned, shape)?;
        match &self.carving.source {
            Source::Paper => Ok(PinnedBuffer::on_paper()),
            Source::Separate(context) => {
                let bytes = (span.len as u64).saturating_mul(size_of::<T>() as u64);
                let memory = Arc::new(PinnedMemory::new(context, bytes)?);
                PinnedBuffer::at(&memory, name, 0, span.len)
            }
            Source::Planned { pinned, .. } => PinnedBuffer::at(pinned, name, span.offset, span.len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_on_paper_are_noted_and_hold_nothing() {
        let mut carving = Carving::on_paper();
        let mut part = carving.part(Group::Tracking, "frame");
        let a = part.device::<f32>("a", &[3, 7]).expect("noted");
        let b = part.part("inner").pinned::<u64>("b", &[5]).expect("noted");
        assert_eq!((a.len(), b.len()), (21, 0));
        assert!(a.part(7..14).is_ok() && a.part(7..22).is_err());
        let plan = carving.into_plan();
        let names = plan.requests().iter().map(|r| (r.name.as_str(), r.bytes));
        let expected = [("frame.a", 84), ("frame.inner.b", 40)];
        assert!(names.eq(expected));
        assert_eq!((plan.device_bytes(), plan.pinned_bytes()), (84, 40));
    }
}
