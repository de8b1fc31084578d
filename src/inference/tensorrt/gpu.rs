//! Architecture of this machine's GPU.

use super::target::Target;

/// The architecture; `None` without a GPU, or if the program was built without CUDA and cannot
/// detect it.
#[cfg(feature = "cuda")]
pub fn target_here() -> Option<Target> {
    let (major, minor) = crate::gpu::compute_capability(0).ok()?;
    Some(Target::new(major, minor))
}

/// The architecture; `None` without a GPU, or if the program was built without CUDA and cannot
/// detect it.
#[cfg(not(feature = "cuda"))]
pub fn target_here() -> Option<Target> {
    None
}
