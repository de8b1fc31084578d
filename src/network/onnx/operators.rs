//! The operators that a model may use.

/// Version of the ONNX operator set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperatorSet {
    pub(super) opset: i64,
    /// The IR version that belongs to the operator set.
    pub(super) ir_version: i64,
}

/// The first operator set with `Gelu`; supported by every runtime in use.
pub const WITH_GELU: OperatorSet = OperatorSet {
    opset: 20,
    ir_version: 9,
};
/// The first operator set with `Attention` and `RotaryEmbedding`.
pub const WITH_ATTENTION: OperatorSet = OperatorSet {
    opset: 23,
    ir_version: 11,
};

/// Domain of ONNX Runtime's own operators.
pub(super) const CONTRIB: &str = "com.microsoft";
