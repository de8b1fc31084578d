//! The backends whose libraries are loaded at run time.

#[cfg(feature = "onnxruntime")]
mod fp8;
#[cfg(feature = "onnxruntime")]
mod onnxruntime;
#[cfg(feature = "tensorrt")]
mod tensorrt;
