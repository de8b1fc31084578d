//! An allocator that counts, for tests of what must not allocate:
//! `#[global_allocator] static COUNTING: Counting = Counting;`

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering::Relaxed};

/// The system's allocator, which counts what it is asked for.
pub struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static LIVE: AtomicIsize = AtomicIsize::new(0);
static PEAK: AtomicIsize = AtomicIsize::new(0);

std::thread_local! {
    static OF_THREAD: Cell<usize> = const { Cell::new(0) };
}

/// Allocations and reallocations of the process so far.
pub fn allocations() -> usize {
    ALLOCATIONS.load(Relaxed)
}

/// Allocations and reallocations of the calling thread so far.
pub fn thread_allocations() -> usize {
    OF_THREAD.with(Cell::get)
}

/// Bytes in use.
pub fn live() -> isize {
    LIVE.load(Relaxed)
}

/// Runs `work` and returns the largest number of bytes in use during it, beyond those in use before.
pub fn peak(work: impl FnOnce()) -> isize {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    work();
    PEAK.load(Relaxed) - before
}

fn count(bytes: isize) {
    ALLOCATIONS.fetch_add(1, Relaxed);
    // A thread that ends may still allocate, when its counter is gone.
    let _ = OF_THREAD.try_with(|n| n.set(n.get() + 1));
    let live = LIVE.fetch_add(bytes, Relaxed) + bytes;
    PEAK.fetch_max(live, Relaxed);
}

// SAFETY: every call is passed on unchanged to the system's allocator; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size as isize - layout.size() as isize);
        // SAFETY: as above, and `ptr` came from `System` with this layout.
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as isize, Relaxed);
        // SAFETY: `ptr` came from `System` through `alloc` with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}
