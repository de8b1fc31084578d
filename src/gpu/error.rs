//! GPU errors.

use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;

/// Error from using the GPU.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// No driver is installed.
    #[error(
        "no NVIDIA driver: its library (libcuda.so.1, on Windows nvcuda.dll) cannot be loaded; install the driver or run with --device cpu"
    )]
    NoDriver,
    /// The driver is too old for the compiler that built the kernels.
    #[error(
        "the NVIDIA driver is too old: it supports CUDA {}.{}, the program needs {}.{}; update the driver, or build with an older CUDA toolkit, or run with --device cpu",
        .found.0, .found.1, .needed.0, .needed.1
    )]
    OldDriver {
        found: (u32, u32),
        needed: (u32, u32),
    },
    /// The driver finds no GPU.
    #[error(
        "the NVIDIA driver finds no GPU; check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or run with --device cpu"
    )]
    NoDevice,
    /// The device number is too large.
    #[error("GPU {asked} does not exist: this machine has {count}, numbered from 0")]
    NoSuchDevice { asked: usize, count: usize },
    /// Neither machine code nor PTX suits this GPU.
    #[error(
        "the kernels were not built for this GPU: {device} has compute capability {}.{}, the program contains {built}; build it with MAST3R_CUDA_ARCHS=sm_{}{} or run with --device cpu",
        .capability.0, .capability.1, .capability.0, .capability.1
    )]
    Architecture {
        device: String,
        capability: (u32, u32),
        built: String,
    },
    /// The device allocation does not fit.
    #[error("{what} needs {bytes} bytes; the GPU has {free} of its {total} bytes free")]
    OutOfMemory {
        what: &'static str,
        bytes: u64,
        free: u64,
        total: u64,
    },
    /// The allocation of pinned host memory failed.
    #[error(
        "cannot allocate {bytes} bytes of pinned host memory ({status}); lower the number of keyframes that move to host memory, or raise the limit on locked memory (ulimit -l)"
    )]
    OutOfPinnedMemory { bytes: u64, status: String },
    /// An arena is too small for a buffer.
    #[error("{name}: {bytes} bytes do not fit in the {left} bytes left of an arena of {total}")]
    ArenaFull {
        name: &'static str,
        /// Its bytes; `u64::MAX` where they are beyond counting.
        bytes: u64,
        left: u64,
        total: u64,
    },
    /// A range outside a buffer, or buffers of different lengths.
    #[error("{what}: expected {expected} elements, found {found}")]
    Length {
        what: &'static str,
        expected: usize,
        found: usize,
    },
    /// A slice is not aligned for the kernel's wide accesses.
    #[error("{what} must start at a multiple of {bytes} bytes")]
    Misaligned { what: &'static str, bytes: u64 },
    /// The buffer is not the next one of the plan: a bug in this program.
    #[error(
        "{name} of {bytes} bytes does not match the next buffer of the memory plan: {}",
        .planned.as_ref().map_or_else(|| "nothing".to_owned(), |(name, bytes)| format!("{name} of {bytes} bytes"))
    )]
    Unplanned {
        name: String,
        bytes: u64,
        planned: Option<(String, u64)>,
    },
    /// No fat binary contains the kernel.
    #[error("the program does not contain the kernel {name}")]
    NoKernel { name: String },
    /// The arguments of a launch do not match the kernel.
    #[error("{kernel}: expected arguments of {expected:?} bytes, found {found:?}")]
    Arguments {
        kernel: &'static str,
        expected: Vec<usize>,
        found: Vec<usize>,
    },
    /// The kernel could not be launched.
    #[error("{kernel} could not be launched: {status}")]
    Launch {
        kernel: &'static str,
        code: u32,
        status: String,
    },
    /// Any other failed call, including asynchronous errors of earlier kernels.
    #[error("CUDA failed while {doing}: {status}")]
    Failed {
        doing: &'static str,
        code: u32,
        status: String,
    },
}

impl CudaError {
    /// Whether the context and all device memory are lost (the GPU dropped off the bus, or a kernel
    /// faulted), so that every later call fails too.
    pub fn is_device_lost(&self) -> bool {
        use CUresult as C;
        let (Self::Launch { code, .. } | Self::Failed { code, .. }) = self else {
            return false;
        };
        [
            C::CUDA_ERROR_DEINITIALIZED,
            C::CUDA_ERROR_CONTEXT_IS_DESTROYED,
            C::CUDA_ERROR_DEVICE_UNAVAILABLE,
            C::CUDA_ERROR_ECC_UNCORRECTABLE,
            C::CUDA_ERROR_NVLINK_UNCORRECTABLE,
            C::CUDA_ERROR_CONTAINED,
            C::CUDA_ERROR_ILLEGAL_ADDRESS,
            C::CUDA_ERROR_LAUNCH_TIMEOUT,
            C::CUDA_ERROR_ASSERT,
            C::CUDA_ERROR_HARDWARE_STACK_ERROR,
            C::CUDA_ERROR_ILLEGAL_INSTRUCTION,
            C::CUDA_ERROR_MISALIGNED_ADDRESS,
            C::CUDA_ERROR_INVALID_ADDRESS_SPACE,
            C::CUDA_ERROR_INVALID_PC,
            C::CUDA_ERROR_LAUNCH_FAILED,
            C::CUDA_ERROR_EXTERNAL_DEVICE,
            C::CUDA_ERROR_SYSTEM_NOT_READY,
            C::CUDA_ERROR_UNKNOWN,
        ]
        .iter()
        .any(|&lost| lost as u32 == *code)
    }
}

/// The driver's name for a status and its explanation.
pub(super) fn status(error: DriverError) -> String {
    let text = |found: Result<&std::ffi::CStr, DriverError>| {
        found.map_or(String::new(), |s| s.to_string_lossy().into_owned())
    };
    format!(
        "{} ({})",
        text(error.error_name()),
        text(error.error_string())
    )
}

/// Adds context to a failed driver call.
pub(super) trait During<T> {
    /// `doing` completes "CUDA failed while …".
    fn during(self, doing: &'static str) -> Result<T, CudaError>;
}

impl<T> During<T> for Result<T, DriverError> {
    fn during(self, doing: &'static str) -> Result<T, CudaError> {
        self.map_err(|error| CudaError::Failed {
            doing,
            code: error.0 as u32,
            status: status(error),
        })
    }
}
