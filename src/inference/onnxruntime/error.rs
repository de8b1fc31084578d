//! Errors of this runtime.

use crate::inference::InferenceError;

/// The runtime's name in messages.
pub(super) const RUNTIME: &str = "ONNX Runtime";

/// The runtime failed while `doing`.
pub(super) fn failure(doing: &'static str, error: impl std::fmt::Display) -> InferenceError {
    InferenceError::Runtime {
        runtime: RUNTIME,
        doing,
        message: error.to_string(),
    }
}
