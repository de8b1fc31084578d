//! Device memory and pinned host memory: one allocation each, from which buffers are carved.
//!
//! Nothing that was carved is given back before the arena goes, so nothing can be freed wrongly.

use super::cursor::{Cursor, check_span};
use super::error::{During, status};
use super::{Context, CudaError};
pub(super) use crate::compute::plan::ALIGNMENT;
use cudarc::driver::{result, sys};
use half::f16;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

static DEVICE_ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static PINNED_ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// How often this process asked the driver for memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocations {
    /// Allocations of device memory.
    pub device: u64,
    /// Allocations of pinned host memory.
    pub pinned: u64,
}

/// The count so far; after start it must not grow.
pub fn allocations() -> Allocations {
    Allocations {
        device: DEVICE_ALLOCATIONS.load(Ordering::Relaxed),
        pinned: PINNED_ALLOCATIONS.load(Ordering::Relaxed),
    }
}

/// A value that may lie in device memory.
///
/// # Safety
/// Any bit pattern is a value, there is no padding, and the layout is that of the kernels.
pub unsafe trait Element: Copy + Send + Sync + 'static {}

macro_rules! elements {
    ($($scalar:ty)*) => {$(
        // SAFETY: a scalar without invalid bit patterns, of the same layout on both sides.
        unsafe impl Element for $scalar {}
    )*};
}
elements!(u8 u16 u32 u64 i8 i16 i32 i64 f32 f64 f16);

// SAFETY: elements follow each other without padding.
unsafe impl<T: Element, const N: usize> Element for [T; N] {}

/// An address on the device, as an argument of a kernel: a `T*`.
#[derive(Debug)]
#[repr(transparent)]
pub struct DevicePointer<T>(sys::CUdeviceptr, PhantomData<fn() -> T>);

impl<T> Clone for DevicePointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DevicePointer<T> {}

impl<T> DevicePointer<T> {
    /// The null pointer, for kernels with an optional argument.
    pub const NULL: Self = Self(0, PhantomData);
}

// SAFETY: one 64-bit address, as a pointer on the device.
unsafe impl<T> super::KernelArgument for DevicePointer<T> {}

/// One allocation of device memory.
pub(super) struct DeviceMemory {
    base: sys::CUdeviceptr,
    bytes: u64,
    context: Context,
}

impl DeviceMemory {
    pub(super) fn new(
        context: &Context,
        what: &'static str,
        bytes: u64,
    ) -> Result<Self, CudaError> {
        context.bind()?;
        let size = usize::try_from(bytes.max(1)).unwrap_or(usize::MAX);
        // SAFETY: the context is current; the memory is released once, when this is dropped.
        match unsafe { result::malloc_sync(size) } {
            Ok(base) => {
                DEVICE_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
                Ok(Self {
                    base,
                    bytes,
                    context: context.clone(),
                })
            }
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                let (free, total) = context.memory()?;
                Err(CudaError::OutOfMemory {
                    what,
                    bytes,
                    free,
                    total,
                })
            }
            Err(error) => Err(error).during("allocating device memory"),
        }
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // Nobody is left to be told of a failure, and the memory goes with the context.
        let _ = self.context.synchronize();
        // SAFETY: `base` came from `malloc_sync`, no buffer is left, and no work is under way.
        let _ = unsafe { result::free_sync(self.base) };
    }
}

/// One allocation of device memory that buffers are carved from, one after the other.
pub struct DeviceArena {
    memory: Arc<DeviceMemory>,
    cursor: Cursor,
}

impl DeviceArena {
    /// Allocates `bytes`. `what` it is for is said if it does not fit. The contents are undefined.
    pub fn new(context: &Context, what: &'static str, bytes: u64) -> Result<Self, CudaError> {
        Ok(Self {
            memory: Arc::new(DeviceMemory::new(context, what, bytes)?),
            cursor: Cursor::free(bytes),
        })
    }

    /// A part of `memory` for buffers that were planned: others are refused.
    pub(super) fn planned(
        memory: &Arc<DeviceMemory>,
        offset: u64,
        bytes: u64,
        buffers: Vec<(&'static str, u64)>,
    ) -> Self {
        Self {
            memory: memory.clone(),
            cursor: Cursor::planned(offset, bytes, buffers),
        }
    }

    /// The next `len` elements.
    pub fn carve<T: Element>(
        &mut self,
        name: &'static str,
        len: usize,
    ) -> Result<DeviceBuffer<T>, CudaError> {
        let offset = self.cursor.carve(name, len, size_of::<T>())?;
        DeviceBuffer::at(&self.memory, name, offset, len)
    }

    /// Bytes carved so far, and bytes in all.
    pub fn used(&self) -> (u64, u64) {
        self.cursor.used()
    }
}

/// `len` elements of device memory. It keeps its arena alive.
pub struct DeviceBuffer<T> {
    pointer: sys::CUdeviceptr,
    len: usize,
    memory: Arc<DeviceMemory>,
    element: PhantomData<fn() -> T>,
}

impl<T: Element> DeviceBuffer<T> {
    /// `len` elements, `offset` bytes from the start of `memory`. The caller has planned what lies
    /// where.
    pub(super) fn at(
        memory: &Arc<DeviceMemory>,
        name: &'static str,
        offset: u64,
        len: usize,
    ) -> Result<Self, CudaError> {
        check_span::<T>(name, offset, len, memory.bytes)?;
        Ok(Self {
            pointer: memory.base + offset,
            len,
            memory: memory.clone(),
            element: PhantomData,
        })
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first element's address, for a kernel.
    pub fn pointer(&self) -> DevicePointer<T> {
        DevicePointer(self.pointer, PhantomData)
    }

    /// All of it.
    pub fn all(&self) -> DeviceSlice<'_, T> {
        DeviceSlice {
            pointer: self.pointer,
            len: self.len,
            buffer: PhantomData,
        }
    }

    /// The elements in `range`.
    pub fn slice(&self, range: Range<usize>) -> Result<DeviceSlice<'_, T>, CudaError> {
        self.all().slice(range)
    }

    /// The elements in `range`, as a buffer of its own on the same memory.
    pub fn part(&self, range: Range<usize>) -> Result<Self, CudaError> {
        let slice = self.slice(range)?;
        Ok(Self {
            pointer: slice.pointer,
            len: slice.len,
            memory: self.memory.clone(),
            element: PhantomData,
        })
    }
}

/// A borrowed part of device memory, which is what kernels' wrappers take. As the device reads and
/// writes it, a copy of the slice is no second `&mut`: the order of work on streams decides.
#[derive(Debug)]
pub struct DeviceSlice<'a, T> {
    pointer: sys::CUdeviceptr,
    len: usize,
    buffer: PhantomData<&'a T>,
}

impl<T> Clone for DeviceSlice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DeviceSlice<'_, T> {}

impl<T: Element> DeviceSlice<'static, T> {
    /// Memory that is somebody else's, such as another library's.
    ///
    /// # Safety
    /// `len` elements of device memory, aligned for `T`, lie at `address` as long as anything uses the
    /// slice.
    pub unsafe fn foreign(address: u64, len: usize) -> Self {
        Self {
            pointer: address,
            len,
            buffer: PhantomData,
        }
    }
}

impl<'a, T: Element> From<&'a DeviceBuffer<T>> for DeviceSlice<'a, T> {
    fn from(buffer: &'a DeviceBuffer<T>) -> Self {
        buffer.all()
    }
}

impl<'a, T: Element> DeviceSlice<'a, T> {
    /// `len` elements, `offset` bytes from the start of a region of `memory`.
    pub(super) fn within(
        memory: &'a DeviceMemory,
        region: Range<u64>,
        offset: u64,
        len: usize,
    ) -> Result<Self, CudaError> {
        let bytes = region.end.min(memory.bytes).saturating_sub(region.start);
        check_span::<T>("scratch of a stage", offset, len, bytes)?;
        Ok(Self {
            pointer: memory.base + region.start + offset,
            len,
            buffer: PhantomData,
        })
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// The first element's address, for a kernel.
    pub fn pointer(&self) -> DevicePointer<T> {
        DevicePointer(self.pointer, PhantomData)
    }

    /// The elements in `range`.
    pub fn slice(self, range: Range<usize>) -> Result<Self, CudaError> {
        if range.start > range.end || range.end > self.len {
            return Err(CudaError::Length {
                what: "part of a device buffer",
                expected: range.end.max(range.start),
                found: self.len,
            });
        }
        Ok(Self {
            pointer: self.pointer + (range.start * size_of::<T>()) as u64,
            len: range.end - range.start,
            buffer: PhantomData,
        })
    }

    /// Says so if there are fewer than `expected` elements.
    pub fn at_least(self, what: &'static str, expected: usize) -> Result<Self, CudaError> {
        if self.len < expected {
            return Err(CudaError::Length {
                what,
                expected,
                found: self.len,
            });
        }
        Ok(self)
    }

    /// Says so if it does not start at a multiple of `bytes`, as a part of a buffer may not.
    pub fn aligned(self, what: &'static str, bytes: u64) -> Result<Self, CudaError> {
        if !self.pointer.is_multiple_of(bytes) {
            return Err(CudaError::Misaligned { what, bytes });
        }
        Ok(self)
    }

    /// Where it begins on the device, for libraries that work there.
    pub fn address(&self) -> sys::CUdeviceptr {
        self.pointer
    }
}

/// One allocation of pinned host memory.
pub(super) struct PinnedMemory {
    base: *mut u8,
    bytes: u64,
    context: Context,
}

// SAFETY: an address of memory that belongs to the process; what is done with it is up to the
// buffers, which are carved without overlap.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    pub(super) fn new(context: &Context, bytes: u64) -> Result<Self, CudaError> {
        context.bind()?;
        let size = usize::try_from(bytes.max(1)).unwrap_or(usize::MAX);
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the context is current; the memory is released once, when this is dropped.
        let base = unsafe { result::malloc_host(size, flags) }.map_err(|error| {
            CudaError::OutOfPinnedMemory {
                bytes,
                status: status(error),
            }
        })?;
        PINNED_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        let memory = Self {
            base: base.cast(),
            bytes,
            context: context.clone(),
        };
        // SAFETY: `size` bytes were just allocated there, and nobody else knows of them.
        unsafe { memory.base.write_bytes(0, size) };
        Ok(memory)
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        // A copy to or from it may still run.
        let _ = self.context.synchronize();
        // SAFETY: `base` came from `malloc_host`, and no buffer is left.
        let _ = unsafe { result::free_host(self.base.cast()) };
    }
}

/// One allocation of host memory that copies to and from the device run at full speed with, and
/// asynchronously. Its contents are zero at first.
pub struct PinnedArena {
    memory: Arc<PinnedMemory>,
    cursor: Cursor,
}

impl PinnedArena {
    /// Allocates `bytes`.
    pub fn new(context: &Context, bytes: u64) -> Result<Self, CudaError> {
        Ok(Self {
            memory: Arc::new(PinnedMemory::new(context, bytes)?),
            cursor: Cursor::free(bytes),
        })
    }

    /// A part of `memory`, which nobody else has, for buffers that were planned: others are refused.
    pub(super) fn planned(
        memory: &Arc<PinnedMemory>,
        offset: u64,
        bytes: u64,
        buffers: Vec<(&'static str, u64)>,
    ) -> Self {
        Self {
            memory: memory.clone(),
            cursor: Cursor::planned(offset, bytes, buffers),
        }
    }

    /// The next `len` elements.
    pub fn carve<T: Element>(
        &mut self,
        name: &'static str,
        len: usize,
    ) -> Result<PinnedBuffer<T>, CudaError> {
        let offset = self.cursor.carve(name, len, size_of::<T>())?;
        PinnedBuffer::at(&self.memory, name, offset, len)
    }

    /// Bytes carved so far, and bytes in all.
    pub fn used(&self) -> (u64, u64) {
        self.cursor.used()
    }
}

/// `len` elements of pinned host memory, a slice to the host. It keeps its arena alive.
pub struct PinnedBuffer<T> {
    pointer: *mut T,
    len: usize,
    memory: Arc<PinnedMemory>,
}

impl<T: Element> PinnedBuffer<T> {
    /// `len` elements, `offset` bytes from the start of `memory`. The caller has planned what lies
    /// where, and gives each part away once.
    pub(super) fn at(
        memory: &Arc<PinnedMemory>,
        name: &'static str,
        offset: u64,
        len: usize,
    ) -> Result<Self, CudaError> {
        check_span::<T>(name, offset, len, memory.bytes)?;
        // SAFETY: so `offset` is within the arena, or at its end, and fits the address space.
        let pointer = unsafe { memory.base.add(offset as usize) };
        Ok(Self {
            pointer: pointer.cast(),
            len,
            memory: memory.clone(),
        })
    }

    /// Where kernels find it. What they write is there for the host when their stream has been waited for; until
    /// then nobody looks at it.
    pub(super) fn on_device(&self) -> Result<DevicePointer<T>, CudaError> {
        self.memory.context.bind()?;
        let mut address = 0;
        // SAFETY: the pointer is to memory that the driver gave out for devices, too, and is still there; the
        // call writes one address.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&mut address, self.pointer.cast(), 0) }
            .result()
            .during("asking where the GPU finds pinned memory")?;
        Ok(DevicePointer(address, PhantomData))
    }
}

// SAFETY: the buffer is the only one with its part of the memory, as a `Box<[T]>` is.
unsafe impl<T: Element> Send for PinnedBuffer<T> {}
// SAFETY: as above.
unsafe impl<T: Element> Sync for PinnedBuffer<T> {}

impl<T: Element> std::ops::Deref for PinnedBuffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements, aligned (ALIGNMENT) and initialised (zero at first, and any bits
        // are an element); the borrow of `self` keeps writers away, and those who let the device
        // write promised that nobody looks meanwhile.
        unsafe { std::slice::from_raw_parts(self.pointer, self.len) }
    }
}

impl<T: Element> std::ops::DerefMut for PinnedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.len) }
    }
}
