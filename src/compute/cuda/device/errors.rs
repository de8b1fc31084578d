//! Conversion of GPU errors to device errors.

use crate::compute::cuda::global::GlobalError;
use crate::compute::cuda::preprocess::PreprocessError;
use crate::compute::device::DeviceError;
use crate::compute::store::{SpillError, StoreError};
use crate::gpu::CudaError;
use crate::gpu::plan::DoesNotFit;

/// Name used in messages.
pub(super) const NAME: &str = "the GPU";

impl From<CudaError> for DeviceError {
    fn from(error: CudaError) -> Self {
        let lost = error.is_device_lost();
        let (device, cause) = (NAME, error.into());
        match lost {
            true => Self::Lost { device, cause },
            false => Self::Failed { device, cause },
        }
    }
}

impl From<StoreError<CudaError>> for DeviceError {
    fn from(error: StoreError<CudaError>) -> Self {
        match error {
            StoreError::Device(error) => error.into(),
            error => failed(error),
        }
    }
}

impl From<SpillError> for DeviceError {
    fn from(error: SpillError) -> Self {
        failed(error)
    }
}

impl From<DoesNotFit> for DeviceError {
    fn from(error: DoesNotFit) -> Self {
        failed(error)
    }
}

impl From<PreprocessError> for DeviceError {
    fn from(error: PreprocessError) -> Self {
        match error {
            PreprocessError::Image(error) => error.into(),
            PreprocessError::Cuda(error) => error.into(),
        }
    }
}

/// Numerical errors must be handled by the caller first.
impl From<GlobalError> for DeviceError {
    fn from(error: GlobalError) -> Self {
        match error {
            GlobalError::Cuda(error) => error.into(),
            error => failed(error),
        }
    }
}

pub(super) fn failed(cause: impl std::error::Error + Send + Sync + 'static) -> DeviceError {
    DeviceError::Failed {
        device: NAME,
        cause: Box::new(cause),
    }
}

pub(super) fn unknown(what: &'static str, id: u32) -> DeviceError {
    let device = NAME;
    DeviceError::Unknown { device, what, id }
}
