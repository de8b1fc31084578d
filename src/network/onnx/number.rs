//! The numbers of a tensor.

use super::proto::data_type;

/// Element type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    /// binary32
    F32,
    /// binary16
    F16,
    /// The upper half of binary32.
    BF16,
    /// FP8 (E4M3): only between quantisation and dequantisation.
    F8,
    /// 64-bit integers: shapes, axes, sizes.
    I64,
}

impl Number {
    pub(super) fn data_type(self) -> i32 {
        match self {
            Self::F32 => data_type::FLOAT,
            Self::F16 => data_type::FLOAT16,
            Self::BF16 => data_type::BFLOAT16,
            Self::F8 => data_type::FLOAT8E4M3FN,
            Self::I64 => data_type::INT64,
        }
    }
}
