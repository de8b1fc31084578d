//! The GPU of this machine, as far as engines care.

use super::target::Target;

/// Its architecture; none if there is no GPU, or a program without CUDA that cannot see it.
#[cfg(feature = "cuda")]
pub fn target_here() -> Option<Target> {
    use cudarc::driver::{result, sys};
    // SAFETY: it only tries to load the driver's library, whose initialisers are safe to run.
    if !unsafe { sys::is_culib_present() } {
        return None;
    }
    result::init().ok()?;
    let device = result::device::get(0).ok()?;
    let attribute = |which| {
        // SAFETY: the device was given by the driver.
        let value = unsafe { result::device::get_attribute(device, which) };
        value.ok().and_then(|value| u32::try_from(value).ok())
    };
    use sys::CUdevice_attribute as A;
    Some(Target::new(
        attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    ))
}

/// Its architecture; none if there is no GPU, or a program without CUDA that cannot see it.
#[cfg(not(feature = "cuda"))]
pub fn target_here() -> Option<Target> {
    None
}
