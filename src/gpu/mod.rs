//! CUDA run time: contexts, memory, streams, graphs and kernels. This layer is independent of what
//! is computed; its users pass their [`KernelImages`] to [`Context::open`].
//!
//! * [`Context`] is an open GPU with its kernels loaded.
//! * [`Carving`] is all memory of a run, one allocation on the device and one of pinned host memory, made from a
//!   [`MemoryPlan`](plan::MemoryPlan); [`DeviceBuffer`] and [`PinnedBuffer`] are its parts, and nothing is
//!   allocated after it.
//! * [`Stream`] orders work; [`Graph`] is recorded work launched as a whole.
//!
//! Launches and copies return immediately. Work in one stream runs in order; [`Event`] orders
//! streams.
//!
//! [`plan`] is arithmetic and needs neither a GPU nor the feature `cuda`.

#[cfg(feature = "cuda")]
mod argument;
#[cfg(feature = "cuda")]
mod carver;
#[cfg(feature = "cuda")]
mod context;
#[cfg(feature = "cuda")]
mod error;
#[cfg(feature = "cuda")]
mod floats;
#[cfg(feature = "cuda")]
mod kernel;
#[cfg(feature = "cuda")]
mod memory;
#[cfg(feature = "cuda")]
mod module;
pub mod plan;
#[cfg(feature = "cuda")]
mod stream;
#[cfg(feature = "cuda")]
mod tensor_map;

#[cfg(feature = "cuda")]
pub use self::{
    argument::{Arguments, KernelArgument},
    carver::{Carver, Carving},
    context::{Context, DeviceInfo, compute_capability},
    error::CudaError,
    floats::{FloatBuffer, Floats},
    kernel::{Extras, Grid, Kernel},
    memory::{
        Allocations, DeviceBuffer, DevicePointer, DeviceSlice, Element, PinnedBuffer, allocations,
    },
    module::KernelImages,
    stream::{Event, Graph, Priority, Stream},
    tensor_map::{Half, TensorMap},
};
