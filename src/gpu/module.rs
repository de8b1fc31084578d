//! Fat binaries, embedded and loaded.

use super::CudaError;
use super::error::During;
use cudarc::driver::sys::{self, CUfunction_attribute, CUresult};
use cudarc::driver::{CudaContext, DriverError, result};
use std::ffi::CString;
use std::sync::Arc;

/// Fat binaries embedded in the program, to be loaded when a GPU is opened.
#[derive(Debug, Clone, Copy)]
pub struct KernelImages {
    pub(super) release: (u32, u32),
    pub(super) architectures: &'static [&'static str],
    pub(super) images: &'static [(&'static str, &'static [u8])],
}

impl KernelImages {
    /// No kernels: for libraries that bring their own and only need memory, streams and graphs.
    pub const NONE: Self = Self {
        release: (0, 0),
        architectures: &[],
        images: &[],
    };

    /// Fat binaries with their names; `release` is the compiler's release, `architectures` lists
    /// the targets: machine code (`sm_90`) and PTX (`compute_80`).
    ///
    /// # Safety
    /// Each image must be a complete fat binary, aligned to 16 bytes.
    pub const unsafe fn new(
        release: (u32, u32),
        architectures: &'static [&'static str],
        images: &'static [(&'static str, &'static [u8])],
    ) -> Self {
        Self {
            release,
            architectures,
            images,
        }
    }

    /// The targets: machine code (`sm_90`) and PTX (`compute_80`).
    pub const fn architectures(&self) -> &'static [&'static str] {
        self.architectures
    }
}

/// A loaded fat binary.
pub(super) struct Module {
    image: &'static [u8],
    handle: sys::CUmodule,
    driver: Arc<CudaContext>,
}

// SAFETY: a module is a handle; the driver's functions on it may be called from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// # Safety
    /// The image must be a complete fat binary, aligned to 16 bytes.
    pub(super) unsafe fn load(
        driver: &Arc<CudaContext>,
        (name, image): (&'static str, &'static [u8]),
    ) -> Result<Self, CudaError> {
        driver
            .bind_to_thread()
            .during("making the context current")?;
        tracing::debug!("loading kernels/{name}.cu, {} bytes", image.len());
        // SAFETY: the caller guarantees the image, which is never freed.
        let handle = unsafe { result::module::load_data(image.as_ptr().cast()) }
            .during("loading the kernels")?;
        Ok(Self {
            image,
            handle,
            driver: driver.clone(),
        })
    }

    /// Whether it was loaded from this image.
    pub(super) fn is(&self, (_, image): &(&'static str, &'static [u8])) -> bool {
        std::ptr::eq(self.image, *image)
    }

    /// The function of this name, if the module has it.
    pub(super) fn function(&self, name: &str) -> Result<Option<sys::CUfunction>, CudaError> {
        let no_kernel = |_| CudaError::NoKernel { name: name.into() };
        let c_name = CString::new(name).map_err(no_kernel)?;
        self.driver
            .bind_to_thread()
            .during("making the context current")?;
        // SAFETY: the module is loaded, and the name ends in a zero byte.
        match unsafe { result::module::get_function(self.handle, c_name) } {
            Err(DriverError(CUresult::CUDA_ERROR_NOT_FOUND)) => Ok(None),
            other => other.during("looking up a kernel").map(Some),
        }
    }

    /// Whether the driver used machine code for one of the `targets` instead of compiling PTX.
    pub(super) fn is_machine_code(&self, targets: &[&str]) -> Result<bool, CudaError> {
        let mut count = 0;
        // SAFETY: the module is loaded, and the call writes one integer.
        unsafe { sys::cuModuleGetFunctionCount(&mut count, self.handle) }
            .result()
            .during("counting kernels")?;
        if count == 0 {
            return Ok(true);
        }
        let mut function = std::ptr::null_mut();
        // SAFETY: the module has at least the one function that is written here.
        unsafe { sys::cuModuleEnumerateFunctions(&mut function, 1, self.handle) }
            .result()
            .during("listing kernels")?;
        // SAFETY: the function belongs to a module of this context.
        unsafe { sys::cuFuncLoad(function) }
            .result()
            .during("loading a kernel")?;
        let version = attribute(
            function,
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_BINARY_VERSION,
        )?;
        Ok(targets.contains(&format!("sm_{version}").as_str()))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // A failure cannot be reported here, and the memory goes with the context.
        let _ = self.driver.bind_to_thread();
        // SAFETY: kernels hold the context, and with it the module, so none is left.
        let _ = unsafe { result::module::unload(self.handle) };
    }
}

pub(super) fn attribute(
    function: sys::CUfunction,
    which: CUfunction_attribute,
) -> Result<i32, CudaError> {
    // SAFETY: the function belongs to a loaded module.
    unsafe { result::function::get_function_attribute(function, which) }
        .during("asking about a kernel")
}
