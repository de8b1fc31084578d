//! Floats on the device, in single or in half precision.

use super::{Carver, CudaError, DeviceBuffer, DevicePointer, DeviceSlice, Stream};
use half::f16;
use std::ops::Range;

/// Floats on the device, in either format.
#[derive(Debug, Clone, Copy)]
pub enum Floats<'a> {
    /// Half precision.
    F16(DeviceSlice<'a, f16>),
    /// Single precision.
    F32(DeviceSlice<'a, f32>),
}

impl<'a> From<DeviceSlice<'a, f32>> for Floats<'a> {
    fn from(slice: DeviceSlice<'a, f32>) -> Self {
        Self::F32(slice)
    }
}

impl<'a> From<DeviceSlice<'a, f16>> for Floats<'a> {
    fn from(slice: DeviceSlice<'a, f16>) -> Self {
        Self::F16(slice)
    }
}

impl Floats<'_> {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::F16(v) => v.len(),
            Self::F32(v) => v.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns `self` if it has at least `n` values; `what` is used in the error.
    pub fn at_least(self, what: &'static str, n: usize) -> Result<Self, CudaError> {
        match self.len() >= n {
            true => Ok(self),
            false => Err(CudaError::Length {
                what,
                expected: n,
                found: self.len(),
            }),
        }
    }

    /// The values in `range`.
    pub fn slice(self, range: Range<usize>) -> Result<Self, CudaError> {
        Ok(match self {
            Self::F16(v) => Self::F16(v.slice(range)?),
            Self::F32(v) => Self::F32(v.slice(range)?),
        })
    }

    /// Device address, for libraries.
    pub fn address(&self) -> u64 {
        match self {
            Self::F16(v) => v.address(),
            Self::F32(v) => v.address(),
        }
    }

    /// Pointers for kernels that accept either format: the other pointer is null.
    pub fn pointers(&self) -> (DevicePointer<f16>, DevicePointer<f32>) {
        match self {
            Self::F16(v) => (v.pointer(), DevicePointer::NULL),
            Self::F32(v) => (DevicePointer::NULL, v.pointer()),
        }
    }
}

/// A buffer of floats in either format.
pub enum FloatBuffer {
    /// Half precision.
    F16(DeviceBuffer<f16>),
    /// Single precision.
    F32(DeviceBuffer<f32>),
}

impl FloatBuffer {
    /// A buffer of `shape` elements, in half precision if `half`.
    ///
    /// # Errors
    /// As [`Carver::device`].
    pub fn carve(
        c: &mut Carver<'_, '_>,
        name: &'static str,
        shape: &[usize],
        half: bool,
    ) -> Result<Self, CudaError> {
        Ok(match half {
            true => Self::F16(c.device(name, shape)?),
            false => Self::F32(c.device(name, shape)?),
        })
    }

    /// All elements.
    pub fn all(&self) -> Floats<'_> {
        match self {
            Self::F16(v) => Floats::F16(v.all()),
            Self::F32(v) => Floats::F32(v.all()),
        }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.all().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Enqueues filling it with zeros.
    ///
    /// # Errors
    /// See [`Stream::fill`].
    pub fn clear(&self, stream: &Stream) -> Result<(), CudaError> {
        match self {
            Self::F16(v) => stream.fill(v.all(), 0),
            Self::F32(v) => stream.fill(v.all(), 0),
        }
    }

    /// Enqueues copying the elements in `from` to those in `to`, which do not overlap.
    ///
    /// # Errors
    /// See [`Stream::copy`].
    pub fn copy_within(
        &self,
        stream: &Stream,
        from: Range<usize>,
        to: Range<usize>,
    ) -> Result<(), CudaError> {
        match self {
            Self::F16(v) => stream.copy(v.slice(from)?, v.slice(to)?),
            Self::F32(v) => stream.copy(v.slice(from)?, v.slice(to)?),
        }
    }

    /// The elements in `range`, as a separate buffer in the same memory.
    pub fn part(&self, range: Range<usize>) -> Result<Self, CudaError> {
        Ok(match self {
            Self::F16(v) => Self::F16(v.part(range)?),
            Self::F32(v) => Self::F32(v.part(range)?),
        })
    }
}
