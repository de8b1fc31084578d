//! Device memory, pinned host memory, and the buffers that are carved from them.
//!
//! Nothing that was carved is given back before its memory goes, so nothing can be freed wrongly.

use super::argument::KernelArgument;
use super::error::{During, status};
use super::{Context, CudaError};
use cudarc::driver::{result, sys};
use half::{bf16, f16};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

static DEVICE_ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static PINNED_ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// Number of memory allocations requested from the driver by this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocations {
    /// Allocations of device memory.
    pub device: u64,
    /// Allocations of pinned host memory.
    pub pinned: u64,
}

/// The current counts; they must not grow after start-up.
pub fn allocations() -> Allocations {
    Allocations {
        device: DEVICE_ALLOCATIONS.load(Ordering::Relaxed),
        pinned: PINNED_ALLOCATIONS.load(Ordering::Relaxed),
    }
}

/// A type that can be stored in device memory.
///
/// # Safety
/// Every bit pattern must be valid, there must be no padding, and the layout must match the
/// kernels.
pub unsafe trait Element: Copy + Send + Sync + 'static {}

macro_rules! elements {
    ($($scalar:ty)*) => {$(
        // SAFETY: a scalar without invalid bit patterns, of the same layout on both sides.
        unsafe impl Element for $scalar {}
    )*};
}
elements!(u8 u16 u32 u64 i8 i16 i32 i64 f32 f64 f16 bf16);

// SAFETY: elements are contiguous without padding.
unsafe impl<T: Element, const N: usize> Element for [T; N] {}

/// A device address passed to a kernel as a `T*`.
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
    /// The null pointer, for optional kernel arguments.
    pub const NULL: Self = Self(0, PhantomData);
}

// SAFETY: a 64-bit address, the same as a pointer on the device.
unsafe impl<T> KernelArgument for DevicePointer<T> {}

/// A device memory allocation.
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
        // A failure cannot be reported here, and the memory goes with the context.
        let _ = self.context.synchronize();
        // SAFETY: `base` came from `malloc_sync`, no buffer is left, and no work is in progress.
        let _ = unsafe { result::free_sync(self.base) };
    }
}

/// `len` elements of device memory, which it keeps allocated.
pub struct DeviceBuffer<T> {
    pointer: sys::CUdeviceptr,
    len: usize,
    /// None on paper.
    memory: Option<Arc<DeviceMemory>>,
    element: PhantomData<fn() -> T>,
}

impl<T: Element> DeviceBuffer<T> {
    /// `len` elements, `offset` bytes from the start of `memory`. The caller is responsible for the
    /// layout.
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
            memory: Some(memory.clone()),
            element: PhantomData,
        })
    }

    /// A buffer that a plan notes: at the null address, which the driver refuses.
    pub(super) fn on_paper(len: usize) -> Self {
        Self {
            pointer: 0,
            len,
            memory: None,
            element: PhantomData,
        }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first element, for a kernel.
    pub fn pointer(&self) -> DevicePointer<T> {
        DevicePointer(self.pointer, PhantomData)
    }

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

    /// The elements in `range`, as a separate buffer in the same memory.
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

/// A borrowed slice of device memory, as taken by kernel wrappers. Copying it does not violate
/// aliasing rules, because only the device reads and writes it, in the order of work on streams.
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

#[cfg(test)]
impl<T> DeviceSlice<'_, T> {
    /// No elements, at the null address.
    pub(crate) const EMPTY: Self = Self {
        pointer: 0,
        len: 0,
        buffer: PhantomData,
    };
}

impl<'a, T: Element> From<&'a DeviceBuffer<T>> for DeviceSlice<'a, T> {
    fn from(buffer: &'a DeviceBuffer<T>) -> Self {
        buffer.all()
    }
}

impl<'a, T: Element> DeviceSlice<'a, T> {
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

    /// Address of the first element, for a kernel.
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

    /// Returns an error if there are fewer than `expected` elements.
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

    /// Returns an error unless it starts at a multiple of `bytes`; a slice of a buffer may not.
    pub fn aligned(self, what: &'static str, bytes: u64) -> Result<Self, CudaError> {
        if !self.pointer.is_multiple_of(bytes) {
            return Err(CudaError::Misaligned { what, bytes });
        }
        Ok(self)
    }

    /// Device address, for libraries.
    pub fn address(&self) -> sys::CUdeviceptr {
        self.pointer
    }
}

/// An allocation of pinned host memory.
pub(super) struct PinnedMemory {
    base: *mut u8,
    bytes: u64,
    context: Context,
}

// SAFETY: an address of memory that belongs to the process; access is governed by the buffers,
// which are carved without overlap.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    pub(super) fn new(context: &Context, bytes: u64) -> Result<Self, CudaError> {
        context.bind()?;
        let size = usize::try_from(bytes.max(1)).unwrap_or(usize::MAX);
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the context is current; the memory is released once, on drop.
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
        // SAFETY: `size` bytes were just allocated at this address and are not shared yet.
        unsafe { memory.base.write_bytes(0, size) };
        Ok(memory)
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        // A copy to or from it may still be running.
        let _ = self.context.synchronize();
        // SAFETY: `base` came from `malloc_host`, and no buffer is left.
        let _ = unsafe { result::free_host(self.base.cast()) };
    }
}

/// `len` elements of pinned host memory, which it keeps allocated: copies to and from the device run at full
/// speed and asynchronously. To the host it is a slice, zero at first.
pub struct PinnedBuffer<T> {
    pointer: *mut T,
    len: usize,
    /// None on paper.
    memory: Option<Arc<PinnedMemory>>,
}

impl<T: Element> PinnedBuffer<T> {
    /// `len` elements, `offset` bytes from the start of `memory`. The caller is responsible for the
    /// layout and hands out each part once.
    pub(super) fn at(
        memory: &Arc<PinnedMemory>,
        name: &'static str,
        offset: u64,
        len: usize,
    ) -> Result<Self, CudaError> {
        check_span::<T>(name, offset, len, memory.bytes)?;
        // SAFETY: `offset` is inside the arena or at its end, and fits the address space.
        let pointer = unsafe { memory.base.add(offset as usize) };
        Ok(Self {
            pointer: pointer.cast(),
            len,
            memory: Some(memory.clone()),
        })
    }

    /// A buffer that a plan notes: without elements.
    pub(super) fn on_paper() -> Self {
        Self {
            pointer: std::ptr::NonNull::dangling().as_ptr(),
            len: 0,
            memory: None,
        }
    }

    /// Address for kernels. Data they write is visible to the host once their stream has been
    /// synchronised, and must not be read before.
    pub fn on_device(&self) -> Result<DevicePointer<T>, CudaError> {
        let Some(memory) = &self.memory else {
            return Ok(DevicePointer::NULL);
        };
        memory.context.bind()?;
        let mut address = 0;
        // SAFETY: the pointer refers to memory that the driver allocated for device access and that
        // is still alive; the call writes one address.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&mut address, self.pointer.cast(), 0) }
            .result()
            .during("asking where the GPU finds pinned memory")?;
        Ok(DevicePointer(address, PhantomData))
    }
}

// SAFETY: this buffer is the only owner of its part of the memory, like a `Box<[T]>`.
unsafe impl<T: Element> Send for PinnedBuffer<T> {}
// SAFETY: as above.
unsafe impl<T: Element> Sync for PinnedBuffer<T> {}

impl<T: Element> std::ops::Deref for PinnedBuffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements, aligned (the plan's ALIGNMENT; dangling if none) and initialised (zero at first, and any bits
        // are an element); the borrow of `self` keeps writers away, and those who let the device
        // write guaranteed that the elements are not accessed meanwhile.
        unsafe { std::slice::from_raw_parts(self.pointer, self.len) }
    }
}

impl<T: Element> std::ops::DerefMut for PinnedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, with an exclusive borrow.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.len) }
    }
}

/// Refuses `len` elements at `offset` that do not end within `total` bytes.
fn check_span<T>(name: &'static str, offset: u64, len: usize, total: u64) -> Result<(), CudaError> {
    let bytes = (len as u64).checked_mul(size_of::<T>() as u64);
    match bytes.and_then(|bytes| offset.checked_add(bytes)) {
        Some(end) if end <= total => Ok(()),
        _ => Err(CudaError::ArenaFull {
            name,
            bytes: bytes.unwrap_or(u64::MAX),
            left: total.saturating_sub(offset),
            total,
        }),
    }
}
