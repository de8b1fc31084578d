//! The GPU against the CPU, and the GPU's memory, streams and graphs.
//!
//! One program for all subjects, so that it can be carried to a machine with a GPU and run there.
//! Without a GPU every test says so and passes, unless `MAST3R_REQUIRE_CUDA=1`.

mod cloud;
/// The room.
#[path = "../common/mod.rs"]
mod common;
mod convert;
mod fusion;
mod global;
mod global_support;
mod matching;
mod plan;
mod platform;
mod preprocess;
mod retrieval;
mod saved;
mod slam;
mod slots;
mod tracking;
/// The solvers' scenes.
#[path = "../tracking_common/mod.rs"]
mod tracking_common;

use mast3r_slam::compute::cuda::{Context, CudaError};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The GPU, for one test at a time: what a test counts or times is its own, and nobody waits for the
/// whole GPU while another records a graph.
struct Gpu(
    &'static Context,
    #[allow(dead_code)] MutexGuard<'static, ()>,
);

impl Deref for Gpu {
    type Target = Context;
    fn deref(&self) -> &Context {
        self.0
    }
}

/// The GPU; without one, says why.
fn cuda() -> Option<Gpu> {
    static OPENED: OnceLock<Result<Context, CudaError>> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    match OPENED.get_or_init(|| Context::open(0)) {
        Ok(context) => {
            // A test that failed leaves nothing behind that the next one would meet.
            let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
            Some(Gpu(context, turn))
        }
        Err(error) => {
            let required = std::env::var_os("MAST3R_REQUIRE_CUDA").is_some_and(|v| v == "1");
            assert!(!required, "MAST3R_REQUIRE_CUDA is set, but: {error}");
            eprintln!("skipped, no GPU: {error}");
            None
        }
    }
}

/// Counts the allocations of each thread.
struct Counting;

std::thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    // A thread that ends may still free and allocate; that is nobody's count.
    let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
}

/// Allocations of this thread so far.
fn host_allocations() -> usize {
    ALLOCATIONS.with(Cell::get)
}

// SAFETY: every call is passed on unchanged to the system's allocator; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: as above, and `ptr` came from `System` with this layout.
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `System` through `alloc` with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Fails with the first differences and their count.
fn assert_same<T: PartialEq + std::fmt::Debug>(what: &str, found: &[T], expected: &[T]) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    let differ: Vec<usize> = (0..found.len())
        .filter(|&i| found[i] != expected[i])
        .collect();
    let shown: Vec<String> = differ
        .iter()
        .take(8)
        .map(|&i| format!("[{i}] {:?} instead of {:?}", found[i], expected[i]))
        .collect();
    assert!(
        differ.is_empty(),
        "{what}: {} of {} differ: {}",
        differ.len(),
        found.len(),
        shown.join(", ")
    );
}

/// As [`assert_same`], of bits: NaN equals the same NaN, and 0 differs from −0.
fn assert_same_bits(what: &str, found: &[f32], expected: &[f32]) {
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    if bits(found) != bits(expected) {
        let show = |values: &[f32]| {
            values
                .iter()
                .map(|v| format!("{v:e} ({:08x})", v.to_bits()))
                .collect::<Vec<_>>()
        };
        assert_same(what, &show(found), &show(expected));
    }
}
