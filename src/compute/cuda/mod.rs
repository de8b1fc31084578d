//! The CUDA device: context, kernels, streams, graphs and memory. The subjects' own modules hold a
//! kernel each for what [`super`] defines on the CPU.
//!
//! * [`Context`] opens a GPU and holds the kernels that the build embedded.
//! * [`Pool`] is all memory of a run, one allocation on the device and one of pinned host memory, made from a
//!   [`MemoryPlan`](super::plan::MemoryPlan); [`DeviceBuffer`], [`PinnedBuffer`] and [`Scratch`] are
//!   its parts, and nothing is allocated after it. [`DeviceArena`] and [`PinnedArena`] serve whoever has no plan.
//! * [`Stream`] orders work; [`Graph`] is recorded work that is launched as a whole.
//!
//! Launches and copies return at once. Work of one stream runs in order; [`Event`] orders streams.

mod context;
mod cursor;
mod error;
mod kernel;
mod memory;
mod pool;
mod stream;

pub mod cloud;
pub mod convert;
pub mod device;
pub mod device_plan;
pub mod fusion;
pub mod global;
pub mod matching;
pub mod preprocess;
pub mod retrieval;
pub mod sanitise;
pub mod slots;
pub mod tracking;

pub use context::{Context, DeviceInfo};
pub use error::CudaError;
pub use kernel::{Arguments, Grid, Kernel, KernelArgument};
pub use memory::{
    Allocations, DeviceArena, DeviceBuffer, DevicePointer, DeviceSlice, Element, PinnedArena,
    PinnedBuffer, allocations,
};
pub use pool::{Lease, Pool, Scratch};
pub use stream::{Event, Graph, Priority, Stream};

/// A number that kernels take as 32 bits.
fn small(what: &'static str, number: usize) -> Result<u32, CudaError> {
    u32::try_from(number).map_err(|_| CudaError::Length {
        what,
        expected: u32::MAX as usize,
        found: number,
    })
}

/// What the build embedded.
mod embedded {
    /// The driver reads a fat binary in place, as 8-byte words.
    #[repr(C, align(16))]
    struct Aligned<T>(T);

    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}
