//! Descriptions of arrays for the tensor memory accelerator (compute capability 9.0 and newer).

use super::argument::KernelArgument;
use super::error::During;
use super::{Context, CudaError};
use cudarc::driver::sys::{
    self, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave,
    CUtensorMapL2promotion, CUtensorMapSwizzle,
};

/// Bytes of a 16-bit number.
const HALF: u64 = 2;

/// Kinds of 16-bit floating point numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// binary16: ten bits of mantissa, up to 65504.
    F16,
    /// bfloat16: seven bits of mantissa, and the range of binary32.
    Bf16,
}

/// An array of 16-bit numbers in device memory and the box of it that a kernel copies to shared memory at once: a
/// `CUtensorMap` with swizzled rows of 128 bytes, and zeros outside the array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct TensorMap([u64; 16]);

// SAFETY: the driver's description of an array, which kernels take as it is.
unsafe impl KernelArgument for TensorMap {}

impl TensorMap {
    /// Values in a row of a box: 128 bytes.
    pub const BOX_WIDTH: u32 = 64;

    /// An array of `half`s at `address` with `extents` values along each axis, the contiguous one first; `strides`: values from
    /// element to element along the other axes. A box is [`TensorMap::BOX_WIDTH`] values by `rows`, by one element of
    /// any further axis; with four axes it is `rows[0]` by `rows[1]`.
    ///
    /// # Errors
    /// From the driver, for an address or a stride that is not a multiple of 16 bytes, or a box of more than 256 rows.
    pub fn new<const AXES: usize>(
        context: &Context,
        half: Half,
        address: u64,
        extents: [usize; AXES],
        strides: [usize; AXES],
        rows: [u32; 2],
    ) -> Result<Self, CudaError> {
        const { assert!(AXES >= 2 && AXES <= 5) };
        context.bind()?;
        let extents = extents.map(|n| n as u64);
        // The driver takes no stride of the contiguous axis.
        let strides = strides.map(|n| n as u64 * HALF);
        let mut boxes = [1; AXES];
        boxes[0] = Self::BOX_WIDTH;
        for (to, rows) in boxes[1..].iter_mut().zip(rows) {
            *to = rows;
        }
        let steps = [1; AXES];
        let mut made = sys::CUtensorMap_st { opaque: [0; 16] };
        // SAFETY: each array has as many elements as there are axes (one less for the strides); the driver keeps the
        // address and reads nothing there.
        unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut made,
                match half {
                    Half::F16 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                    Half::Bf16 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                },
                AXES as u32,
                address as *mut _,
                extents.as_ptr(),
                strides[1..].as_ptr(),
                boxes.as_ptr(),
                steps.as_ptr(),
                CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        }
        .result()
        .during("describing an array for the tensor memory accelerator")?;
        Ok(Self(made.opaque))
    }
}
