//! GPU contexts.

use super::CudaError;
use super::error::During;
use super::module::{KernelImages, Module};
use cudarc::driver::sys::{self, CUdevice_attribute, CUresult};
use cudarc::driver::{CudaContext, DriverError, result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The first driver release with all functions in use (`cuFuncGetParamInfo`).
const OLDEST_DRIVER: (u32, u32) = (12, 4);

/// Properties of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Device number, from 0.
    pub ordinal: usize,
    /// Name reported by the driver.
    pub name: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Maximum clock rate of the multiprocessors in kHz.
    pub clock_khz: u32,
    /// Size of the L2 cache in bytes.
    pub l2_bytes: u64,
    /// Total device memory in bytes.
    pub memory_bytes: u64,
    /// Maximum shared memory per block (opt-in), in bytes.
    pub shared_bytes: u32,
    /// Newest CUDA release that the driver supports.
    pub driver: (u32, u32),
}

/// An open GPU. Within a process, all handles to a GPU share one context.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    /// Dropped before the context they belong to.
    modules: Mutex<Vec<Module>>,
    info: DeviceInfo,
    driver: Arc<CudaContext>,
}

impl Context {
    /// Opens GPU `ordinal` (its primary context, which other libraries in this process share) and
    /// loads those of `kernels` that are not loaded yet. If the GPU is open already, returns
    /// another handle to it.
    ///
    /// # Errors
    /// [`CudaError::NoDriver`], [`CudaError::OldDriver`], [`CudaError::NoDevice`],
    /// [`CudaError::NoSuchDevice`]; [`CudaError::Architecture`] if the kernels do not suit the GPU.
    pub fn open(ordinal: usize, kernels: &KernelImages) -> Result<Self, CudaError> {
        static OPEN: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|inner| inner.strong_count() > 0);
        let known = open.iter().filter_map(Weak::upgrade);
        let context = match { known }.find(|inner| inner.info.ordinal == ordinal) {
            Some(inner) => Self(inner),
            None => {
                let context = Self::start(ordinal)?;
                open.push(Arc::downgrade(&context.0));
                context
            }
        };
        context.load(kernels)?;
        Ok(context)
    }

    fn start(ordinal: usize) -> Result<Self, CudaError> {
        let release = start_driver()?;
        let count = result::device::get_count().during("counting the GPUs")?;
        let count = usize::try_from(count).unwrap_or(0);
        if count == 0 {
            return Err(CudaError::NoDevice);
        }
        if ordinal >= count {
            return Err(CudaError::NoSuchDevice {
                asked: ordinal,
                count,
            });
        }
        let driver = CudaContext::new(ordinal).during("opening the GPU")?;
        // SAFETY: the events would order accesses to cudarc's own buffers from several streams;
        // those buffers are not used, and streams are ordered by `Event`.
        unsafe { driver.disable_event_tracking() };
        let attribute = |which, what| {
            let value = driver.attribute(which).during(what)?;
            Ok(u32::try_from(value).unwrap_or(0))
        };
        use CUdevice_attribute as A;
        let info = DeviceInfo {
            ordinal,
            name: driver.name().during("asking the GPU's name")?,
            capability: (
                attribute(
                    A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                    "asking the compute capability",
                )?,
                attribute(
                    A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                    "asking the compute capability",
                )?,
            ),
            multiprocessors: attribute(
                A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                "counting multiprocessors",
            )?,
            clock_khz: attribute(A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE, "asking the clock")?,
            l2_bytes: u64::from(attribute(
                A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE,
                "asking the size of the L2 cache",
            )?),
            shared_bytes: attribute(
                A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                "asking the size of shared memory",
            )?,
            memory_bytes: driver
                .total_mem()
                .during("asking the size of the memory")?
                .try_into()
                .unwrap_or(u64::MAX),
            driver: release,
        };
        Ok(Self(Arc::new(Inner {
            modules: Mutex::new(Vec::new()),
            info,
            driver,
        })))
    }

    /// Loads the images that are not loaded yet.
    fn load(&self, kernels: &KernelImages) -> Result<(), CudaError> {
        let info = self.info();
        check_release(info.driver, kernels.release)?;
        let mut modules = self.modules();
        let mut from_ptx = false;
        for image in kernels.images {
            if modules.iter().any(|module| module.is(image)) {
                continue;
            }
            // SAFETY: the image belongs to a `KernelImages`, whose creator guaranteed its validity.
            let module = unsafe { Module::load(self.driver(), *image) };
            let module = module.map_err(|error| explain(error, info, kernels))?;
            from_ptx |= !module.is_machine_code(kernels.architectures)?;
            modules.push(module);
        }
        if from_ptx {
            tracing::warn!(
                "no machine code for {} (compute capability {}.{}) in the program, which holds {}: \
                 the driver compiles the kernels from PTX once and caches them",
                info.name,
                info.capability.0,
                info.capability.1,
                kernels.architectures.join(", ")
            );
        }
        Ok(())
    }

    fn modules(&self) -> MutexGuard<'_, Vec<Module>> {
        // A module is either in the list or not, so the list is valid even if the lock is poisoned.
        (self.0.modules.lock()).unwrap_or_else(PoisonError::into_inner)
    }

    pub fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    /// The function of a kernel.
    pub(super) fn function(&self, name: &'static str) -> Result<sys::CUfunction, CudaError> {
        for module in self.modules().iter() {
            if let Some(function) = module.function(name)? {
                return Ok(function);
            }
        }
        Err(CudaError::NoKernel { name: name.into() })
    }

    /// Free and total device memory in bytes.
    pub fn memory(&self) -> Result<(u64, u64), CudaError> {
        let (free, total) = self.driver().mem_get_info().during("asking free memory")?;
        Ok((free as u64, total as u64))
    }

    /// Gives back the memory for the stacks of all threads that the GPU can hold, 1 KB each unless this is called: 277 MB on
    /// an H200. The driver takes it again for kernels that need it, so this is for programs whose kernels do not.
    pub fn release_stacks(&self) -> Result<(), CudaError> {
        self.bind()?;
        // SAFETY: a context is current.
        unsafe { sys::cuCtxSetLimit(sys::CUlimit::CU_LIMIT_STACK_SIZE, 0) }
            .result()
            .during("giving back the threads' stacks")
    }

    /// Waits for all work on all streams. Must not be called while a stream is capturing.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.driver().synchronize().during("waiting for the GPU")
    }

    pub(super) fn driver(&self) -> &Arc<CudaContext> {
        &self.0.driver
    }

    /// Makes this the current context of the calling thread, as required by libraries.
    pub fn bind(&self) -> Result<(), CudaError> {
        self.driver()
            .bind_to_thread()
            .during("making the context current")
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Context").field(self.info()).finish()
    }
}

/// Compute capability of GPU `ordinal`, without opening it.
///
/// # Errors
/// See [`Context::open`].
pub fn compute_capability(ordinal: usize) -> Result<(u32, u32), CudaError> {
    const DOING: &str = "asking the compute capability";
    start_driver()?;
    let ordinal = i32::try_from(ordinal).unwrap_or(i32::MAX);
    let device = result::device::get(ordinal).during("looking for the GPU")?;
    use CUdevice_attribute as A;
    let attribute = |which| {
        // SAFETY: the driver returned the device.
        let value = unsafe { result::device::get_attribute(device, which) }.during(DOING)?;
        Ok(u32::try_from(value).unwrap_or(0))
    };
    Ok((
        attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    ))
}

/// Loads and initialises the driver; returns its release.
fn start_driver() -> Result<(u32, u32), CudaError> {
    // SAFETY: the call only tries to load the driver library, whose initialisers are safe to run.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoDriver);
    }
    let release = driver_release()?;
    check_release(release, (0, 0))?;
    match result::init() {
        Err(DriverError(CUresult::CUDA_ERROR_NO_DEVICE)) => Err(CudaError::NoDevice),
        other => other.during("starting the driver").map(|()| release),
    }
}

/// The newest CUDA release that the installed driver supports.
fn driver_release() -> Result<(u32, u32), CudaError> {
    let mut version = 0;
    // SAFETY: the library is present, and the call writes one integer.
    unsafe { sys::cuDriverGetVersion(&mut version) }
        .result()
        .during("asking the driver's version")?;
    let version = u32::try_from(version).unwrap_or(0);
    Ok((version / 1000, version % 1000 / 10))
}

/// Whether a driver of release `found` can load code from a compiler of release `built`: within a
/// major release, older drivers can.
fn check_release(found: (u32, u32), built: (u32, u32)) -> Result<(), CudaError> {
    let needed = OLDEST_DRIVER.max((built.0, 0));
    if found < needed {
        return Err(CudaError::OldDriver { found, needed });
    }
    Ok(())
}

/// Adds advice to the error if a module does not suit the GPU.
fn explain(error: CudaError, info: &DeviceInfo, kernels: &KernelImages) -> CudaError {
    const UNSUITABLE: [CUresult; 3] = [
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU,
        CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
        CUresult::CUDA_ERROR_INVALID_PTX,
    ];
    match error {
        CudaError::Failed { code, .. } if UNSUITABLE.iter().any(|&c| c as u32 == code) => {
            CudaError::Architecture {
                device: info.name.clone(),
                capability: info.capability,
                built: kernels.architectures.join(", "),
            }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_must_know_the_compiler_s_major_release() {
        for (found, built, needed) in [
            ((13, 0), (13, 0), None),
            ((13, 0), (13, 2), None),
            ((14, 0), (13, 0), None),
            ((12, 9), (13, 0), Some((13, 0))),
            ((12, 6), (12, 6), None),
            ((12, 3), (12, 6), Some((12, 4))),
            ((0, 0), (13, 0), Some((13, 0))),
        ] {
            let expected =
                needed.map_or(Ok(()), |needed| Err(CudaError::OldDriver { found, needed }));
            assert_eq!(check_release(found, built), expected);
        }
        let message = check_release((12, 8), (13, 0)).unwrap_err().to_string();
        for part in ["12.8", "13.0", "update the driver", "--device cpu"] {
            assert!(message.contains(part), "{part:?} is not in {message}");
        }
    }

    #[test]
    fn a_gpu_without_code_is_told_apart_from_other_failures() {
        let info = DeviceInfo {
            ordinal: 0,
            name: "GeForce RTX 2080".into(),
            capability: (7, 5),
            multiprocessors: 46,
            clock_khz: 0,
            l2_bytes: 0,
            memory_bytes: 0,
            shared_bytes: 0,
            driver: (13, 0),
        };
        let failed = |code| CudaError::Failed {
            doing: "loading the kernels",
            code: code as u32,
            status: String::new(),
        };
        // SAFETY: there are no images.
        let kernels = unsafe { KernelImages::new((13, 0), &["sm_87", "compute_80"], &[]) };
        let refused = failed(CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
        let message = explain(refused, &info, &kernels).to_string();
        for part in [
            "GeForce RTX 2080",
            "7.5",
            "sm_",
            "MAST3R_CUDA_ARCHS=sm_75",
            "--device cpu",
        ] {
            assert!(message.contains(part), "{part:?} is not in {message}");
        }
        let other = failed(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!(explain(other.clone(), &info, &kernels), other);
        assert!(!other.is_device_lost());
        assert!(failed(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS).is_device_lost());
    }
}
