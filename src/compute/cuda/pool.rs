//! A memory plan made real: one device allocation and one of pinned host memory.

use super::memory::{DeviceMemory, PinnedMemory};
use super::{
    Context, CudaError, DeviceArena, DeviceBuffer, DeviceSlice, Element, PinnedArena, PinnedBuffer,
};
use crate::compute::plan::{
    Group, MemoryPlan, Place, PlanId, Planned, PlannedArena, PlannedPinned, PlannedScratch, Stage,
};
use std::sync::Arc;

/// All memory of a run. Handles of the plan become buffers, each once.
pub struct Pool {
    plan: PlanId,
    device: Arc<DeviceMemory>,
    pinned: Arc<PinnedMemory>,
    scratch: Vec<Scratch>,
}

impl Pool {
    /// Allocates what `plan` says. Contents are undefined on the device, zero on the host.
    pub fn new(context: &Context, plan: &MemoryPlan) -> Result<Self, CudaError> {
        let device = DeviceMemory::new(context, "the memory plan", plan.device_bytes())?;
        let device = Arc::new(device);
        let groups = plan.requests().iter().map(|request| request.group);
        let mut scratch: Vec<Scratch> = Vec::new();
        for group in groups {
            if scratch.iter().all(|region| region.group != group) {
                scratch.push(Scratch {
                    plan: plan.id(),
                    group,
                    memory: device.clone(),
                    offset: plan.scratch_offset(group),
                    bytes: plan.scratch_bytes(group),
                });
            }
        }
        Ok(Self {
            plan: plan.id(),
            device,
            pinned: Arc::new(PinnedMemory::new(context, plan.pinned_bytes())?),
            scratch,
        })
    }

    /// The buffer that a handle stands for.
    ///
    /// # Errors
    /// [`CudaError::Plan`] for a handle of another plan, [`CudaError::ArenaFull`] for one that was asked
    /// for after the pool was made.
    pub fn device<T: Element>(&self, planned: Planned<T>) -> Result<DeviceBuffer<T>, CudaError> {
        let span = planned.span();
        check(self.plan, span.plan)?;
        DeviceBuffer::at(&self.device, "a planned buffer", span.offset, span.len)
    }

    /// The buffer that a handle stands for.
    ///
    /// # Errors
    /// [`CudaError::Plan`] for a handle of another plan, [`CudaError::ArenaFull`] for one that was asked
    /// for after the pool was made.
    pub fn pinned<T: Element>(
        &self,
        planned: PlannedPinned<T>,
    ) -> Result<PinnedBuffer<T>, CudaError> {
        let span = planned.span();
        check(self.plan, span.plan)?;
        PinnedBuffer::at(&self.pinned, "a planned buffer", span.offset, span.len)
    }

    /// The device memory of a list of buffers, to be carved in the list's order.
    ///
    /// # Errors
    /// [`CudaError::Plan`] for a handle of another plan or of pinned memory, [`CudaError::ArenaFull`] for one
    /// that was asked for after the pool was made.
    pub fn device_arena(&self, planned: PlannedArena) -> Result<DeviceArena, CudaError> {
        let (offset, len) = self.place(&planned, Place::Device)?;
        // Checks that it lies within the memory.
        DeviceBuffer::<u8>::at(&self.device, "a planned arena", offset, len)?;
        let buffers = planned.into_buffers();
        Ok(DeviceArena::planned(
            &self.device,
            offset,
            len as u64,
            buffers,
        ))
    }

    /// The pinned memory of a list of buffers, to be carved in the list's order.
    ///
    /// # Errors
    /// As [`Pool::device_arena`].
    pub fn pinned_arena(&self, planned: PlannedArena) -> Result<PinnedArena, CudaError> {
        let (offset, len) = self.place(&planned, Place::Pinned)?;
        // Checks that it lies within the memory.
        PinnedBuffer::<u8>::at(&self.pinned, "a planned arena", offset, len)?;
        let buffers = planned.into_buffers();
        Ok(PinnedArena::planned(
            &self.pinned,
            offset,
            len as u64,
            buffers,
        ))
    }

    fn place(&self, planned: &PlannedArena, place: Place) -> Result<(u64, usize), CudaError> {
        let span = planned.span();
        check(self.plan, span.plan)?;
        if planned.place() != place {
            return Err(CudaError::Plan);
        }
        Ok((span.offset, span.len))
    }

    /// The scratch of a group, for the thread that runs its stages; to be had once.
    pub fn scratch(&mut self, group: Group) -> Option<Scratch> {
        let at = self.scratch.iter().position(|s| s.group == group)?;
        Some(self.scratch.swap_remove(at))
    }
}

/// Device memory that the stages of a group use one after the other.
///
/// A lease borrows all of it, so the compiler refuses a second one while anything of the first is
/// in use:
///
/// ```compile_fail,E0499
/// # use mast3r_slam::compute::cuda::{CudaError, Scratch};
/// # use mast3r_slam::compute::plan::{PlannedScratch, Stage};
/// fn overlap(
///     scratch: &mut Scratch,
///     (first, rays): (Stage, &PlannedScratch<f32>),
///     (second, sums): (Stage, &PlannedScratch<f32>),
/// ) -> Result<usize, CudaError> {
///     let one = scratch.lease(first)?;
///     let rays = one.slice(rays)?;
///     let two = scratch.lease(second)?; // the same memory
///     let sums = two.slice(sums)?;
///     Ok(rays.len() + sums.len())
/// }
/// ```
///
/// On the device the leases of one stream follow each other: what the first stage enqueued has run
/// before the second one's work starts.
pub struct Scratch {
    plan: PlanId,
    group: Group,
    memory: Arc<DeviceMemory>,
    offset: u64,
    bytes: u64,
}

impl Scratch {
    /// All of it, for one stage.
    ///
    /// # Errors
    /// [`CudaError::Stage`] for a stage of another group.
    pub fn lease(&mut self, stage: Stage) -> Result<Lease<'_>, CudaError> {
        if stage.group != self.group {
            return Err(CudaError::Stage);
        }
        Ok(Lease {
            scratch: self,
            stage,
        })
    }
}

/// A stage's scratch while it enqueues its work.
pub struct Lease<'a> {
    scratch: &'a mut Scratch,
    stage: Stage,
}

impl Lease<'_> {
    /// The memory that a handle stands for. Its contents are whatever another stage left.
    ///
    /// # Errors
    /// [`CudaError::Stage`] for a handle of another stage.
    pub fn slice<T: Element>(
        &self,
        planned: &PlannedScratch<T>,
    ) -> Result<DeviceSlice<'_, T>, CudaError> {
        check(self.scratch.plan, planned.span().plan)?;
        if planned.stage() != self.stage {
            return Err(CudaError::Stage);
        }
        let Scratch {
            memory,
            offset,
            bytes,
            ..
        } = &*self.scratch;
        let span = planned.span();
        DeviceSlice::within(memory, *offset..offset + bytes, span.offset, span.len)
    }
}

/// A handle's place is one in the memory of its own plan.
fn check(pool: PlanId, handle: PlanId) -> Result<(), CudaError> {
    if pool == handle {
        Ok(())
    } else {
        Err(CudaError::Plan)
    }
}
