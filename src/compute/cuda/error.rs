//! What can go wrong with a GPU.

use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;

/// Why the GPU cannot be used, or did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// No driver is installed.
    #[error(
        "no NVIDIA driver: its library (libcuda.so.1, on Windows nvcuda.dll) cannot be loaded; install the driver or run with --device cpu"
    )]
    NoDriver,
    /// The driver cannot load code of the compiler that built the kernels.
    #[error(
        "the NVIDIA driver is too old: it supports CUDA {}.{}, the program needs {}.{}; update the driver, or build with an older CUDA toolkit, or run with --device cpu",
        .found.0, .found.1, .needed.0, .needed.1
    )]
    OldDriver {
        /// Newest CUDA release that the driver supports.
        found: (u32, u32),
        /// The release that the program needs.
        needed: (u32, u32),
    },
    /// A driver, but no GPU that it knows.
    #[error(
        "the NVIDIA driver finds no GPU; check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or run with --device cpu"
    )]
    NoDevice,
    /// A number beyond the last GPU.
    #[error("there is no GPU {asked}: this machine has {count}, counted from 0")]
    NoSuchDevice {
        /// As asked.
        asked: usize,
        /// GPUs of the machine.
        count: usize,
    },
    /// Neither machine code nor PTX suits this GPU.
    #[error(
        "the kernels were not built for this GPU: {device} has compute capability {}.{}, the program holds {built}; build it with MAST3R_CUDA_ARCHS=sm_{}{} or run with --device cpu",
        .capability.0, .capability.1, .capability.0, .capability.1
    )]
    Architecture {
        /// The GPU's name.
        device: String,
        /// Its compute capability.
        capability: (u32, u32),
        /// What was built.
        built: String,
    },
    /// The one device allocation does not fit.
    #[error("{what} needs {bytes} bytes; the GPU has {free} of its {total} bytes free")]
    OutOfMemory {
        /// What the memory is for.
        what: &'static str,
        /// Bytes asked for.
        bytes: u64,
        /// Bytes free.
        free: u64,
        /// Bytes in all.
        total: u64,
    },
    /// The one allocation of pinned host memory does not fit.
    #[error(
        "{bytes} bytes of pinned host memory cannot be had ({status}); lower the number of keyframes that move to host memory, or raise the limit on locked memory (ulimit -l)"
    )]
    OutOfPinnedMemory {
        /// Bytes asked for.
        bytes: u64,
        /// The driver's words.
        status: String,
    },
    /// More was carved than was planned.
    #[error("{name}: {bytes} bytes do not fit in the {left} bytes left of an arena of {total}")]
    ArenaFull {
        /// The buffer.
        name: &'static str,
        /// Its bytes; `u64::MAX` where they are beyond counting.
        bytes: u64,
        /// Bytes left.
        left: u64,
        /// Bytes of the arena.
        total: u64,
    },
    /// A part of a buffer that the buffer does not have, or buffers of different lengths.
    #[error("{what}: expected {expected} elements, found {found}")]
    Length {
        /// Which buffer.
        what: &'static str,
        /// Elements needed.
        expected: usize,
        /// Elements there are.
        found: usize,
    },
    /// A part of a buffer that a kernel cannot read in wide accesses.
    #[error("{what} must start at a multiple of {bytes} bytes")]
    Misaligned {
        /// Which buffer.
        what: &'static str,
        /// The multiple.
        bytes: u64,
    },
    /// Memory that the plan does not know: a defect of the program.
    #[error(
        "{name} of {bytes} bytes is not what the memory plan has next: {}",
        .planned.map_or_else(|| "nothing".to_owned(), |(name, bytes)| format!("{name} of {bytes} bytes"))
    )]
    Unplanned {
        /// The buffer.
        name: &'static str,
        /// Its bytes; `u64::MAX` where they are beyond counting.
        bytes: u64,
        /// Name and bytes of the planned one.
        planned: Option<(&'static str, u64)>,
    },
    /// Memory asked for with the handle of another plan.
    #[error("memory was asked for with the handle of another memory plan")]
    Plan,
    /// Scratch asked for by a stage whose it is not.
    #[error("scratch memory was asked for by a stage that it does not belong to")]
    Stage,
    /// A kernel that no fat binary has.
    #[error("there is no kernel {name} in the program")]
    NoKernel {
        /// As asked.
        name: String,
    },
    /// A launch whose arguments are not those of the kernel.
    #[error("{kernel} takes arguments of {expected:?} bytes, was given {found:?}")]
    Arguments {
        /// The kernel.
        kernel: &'static str,
        /// Bytes of each parameter.
        expected: Vec<usize>,
        /// Bytes of each argument.
        found: Vec<usize>,
    },
    /// A kernel that could not be launched.
    #[error("{kernel} could not be launched: {status}")]
    Launch {
        /// The kernel.
        kernel: &'static str,
        /// The driver's code.
        code: u32,
        /// The driver's words.
        status: String,
    },
    /// Any other call. Errors of kernels that ran earlier arrive here, too.
    #[error("CUDA failed while {doing}: {status}")]
    Failed {
        /// What was being done.
        doing: &'static str,
        /// The driver's code.
        code: u32,
        /// The driver's words.
        status: String,
    },
}

impl CudaError {
    /// Whether the context is lost with all that was on the GPU (the GPU fell off the bus, a kernel
    /// faulted): every later call fails, too.
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

/// Says what was being done when a driver call failed.
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
