//! The algorithms of [`super`] on NVIDIA GPUs: one module per kernel, and [`device`], which
//! combines them.

use crate::gpu::{CudaError, KernelImages};

pub mod convert;
pub mod coverage;
pub mod depth;
pub mod device;
pub mod fusion;
pub mod global;
pub mod mask;
pub mod matching;
pub mod preprocess;
pub mod retrieval;
pub mod sanitise;
pub mod slots;
pub mod splat;
pub mod spread;
pub mod tracking;

/// The kernels of this module, for [`Context::open`](crate::gpu::Context::open).
// SAFETY: the build wrote each image as a complete fat binary and aligned it to 16 bytes.
pub static KERNELS: KernelImages =
    unsafe { KernelImages::new(embedded::RELEASE, embedded::ARCHITECTURES, embedded::IMAGES) };

/// Checks that a number fits 32 bits for a kernel argument.
fn small(what: &'static str, number: usize) -> Result<u32, CudaError> {
    u32::try_from(number).map_err(|_| CudaError::Length {
        what,
        expected: u32::MAX as usize,
        found: number,
    })
}

/// The fat binaries built from `kernels/*.cu`.
mod embedded {
    /// The driver reads a fat binary in place, as 8-byte words.
    #[repr(C, align(16))]
    struct Aligned<T>(T);

    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}
