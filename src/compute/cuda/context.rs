//! Opening a GPU.

use super::error::During;
use super::kernel::Module;
use super::stream::{Event, Priority, Stream};
use super::{CudaError, embedded};
use cudarc::driver::sys::{self, CUdevice_attribute, CUresult};
use cudarc::driver::{CudaContext, DriverError, result};
use std::sync::Arc;

/// The first release with every function that is called here (`cuFuncGetParamInfo`).
const OLDEST_DRIVER: (u32, u32) = (12, 4);

/// What a GPU is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number, from 0.
    pub ordinal: usize,
    /// As the driver calls it.
    pub name: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Highest clock of the multiprocessors, kHz.
    pub clock_khz: u32,
    /// Bytes of L2 cache.
    pub l2_bytes: u64,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Shared memory that a block may have if it asks, bytes.
    pub shared_bytes: u32,
    /// Newest CUDA release that the driver supports.
    pub driver: (u32, u32),
    /// Whether the driver compiled the kernels from PTX, as the program holds no machine code for
    /// this GPU.
    pub from_ptx: bool,
}

/// An open GPU with the program's kernels loaded. A clone is another handle on the same.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    /// Dropped before the context that they live in.
    modules: Vec<Module>,
    info: DeviceInfo,
    driver: Arc<CudaContext>,
}

impl Context {
    /// Opens GPU `ordinal` (its primary context, which other libraries of this process share).
    pub fn open(ordinal: usize) -> Result<Self, CudaError> {
        // SAFETY: it only tries to load the driver's library, whose initialisers are safe to run.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoDriver);
        }
        let release = driver_release()?;
        check_release(release, embedded::RELEASE)?;
        match result::init() {
            Err(DriverError(CUresult::CUDA_ERROR_NO_DEVICE)) => return Err(CudaError::NoDevice),
            other => other.during("starting the driver")?,
        }
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
        // SAFETY: cudarc's own buffers, whose use from several streams these events would order, are
        // not used; streams are ordered by `Event`.
        unsafe { driver.disable_event_tracking() };
        let attribute = |which, what| {
            let value = driver.attribute(which).during(what)?;
            Ok(u32::try_from(value).unwrap_or(0))
        };
        use CUdevice_attribute as A;
        let mut info = DeviceInfo {
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
            from_ptx: false,
        };
        let mut modules = Vec::with_capacity(embedded::IMAGES.len());
        for &(name, image) in embedded::IMAGES {
            modules
                .push(Module::load(&driver, name, image).map_err(|error| explain(error, &info))?);
        }
        for module in &modules {
            info.from_ptx |= !module.is_machine_code(embedded::ARCHITECTURES)?;
        }
        if info.from_ptx {
            tracing::warn!(
                "no machine code for {} (compute capability {}.{}) in the program, which holds {}: \
                 the driver compiles the kernels from PTX, once, and keeps them in its cache",
                info.name,
                info.capability.0,
                info.capability.1,
                embedded::ARCHITECTURES.join(", ")
            );
        }
        Ok(Self(Arc::new(Inner {
            modules,
            info,
            driver,
        })))
    }

    /// What the GPU is.
    pub fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    /// A kernel by name. To be asked once, at start: what is found is loaded onto the GPU.
    pub fn kernel(&self, name: &'static str) -> Result<super::Kernel, CudaError> {
        for module in &self.0.modules {
            if let Some(function) = module.function(name)? {
                return super::Kernel::new(self, name, function);
            }
        }
        Err(CudaError::NoKernel { name: name.into() })
    }

    /// A new stream.
    pub fn stream(&self, priority: Priority) -> Result<Stream, CudaError> {
        Stream::new(self, priority)
    }

    /// A new event; `timed` for [`Event::milliseconds_until`].
    pub fn event(&self, timed: bool) -> Result<Event, CudaError> {
        Event::new(self, timed)
    }

    /// Bytes of device memory: free, in all.
    pub fn memory(&self) -> Result<(u64, u64), CudaError> {
        let (free, total) = self.driver().mem_get_info().during("asking free memory")?;
        Ok((free as u64, total as u64))
    }

    /// Waits for everything on every stream. Not while one of them captures.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.driver().synchronize().during("waiting for the GPU")
    }

    pub(super) fn driver(&self) -> &Arc<CudaContext> {
        &self.0.driver
    }

    /// Makes this the calling thread's context.
    pub(super) fn bind(&self) -> Result<(), CudaError> {
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

/// Whether a driver of release `found` loads the code of a compiler of release `built`: within a major
/// release, older drivers do.
fn check_release(found: (u32, u32), built: (u32, u32)) -> Result<(), CudaError> {
    let needed = OLDEST_DRIVER.max((built.0, 0));
    if found < needed {
        return Err(CudaError::OldDriver { found, needed });
    }
    Ok(())
}

/// Says what to do when a module does not suit the GPU.
fn explain(error: CudaError, info: &DeviceInfo) -> CudaError {
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
                built: embedded::ARCHITECTURES.join(", "),
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
            from_ptx: false,
        };
        let failed = |code| CudaError::Failed {
            doing: "loading the kernels",
            code: code as u32,
            status: String::new(),
        };
        let message = explain(failed(CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU), &info).to_string();
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
        assert_eq!(explain(other.clone(), &info), other);
        assert!(!other.is_device_lost());
        assert!(failed(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS).is_device_lost());
    }
}
