//! The network on TensorRT: engines are built once from the same description that every runtime gets, kept in a
//! folder with a manifest each, and loaded when one fits the GPU, the library and the weights.
//!
//! Two libraries share this code: TensorRT-RTX (feature `tensorrt`; GeForce and RTX) and TensorRT (feature
//! `tensorrt-enterprise`; Jetson, data centre). Neither is linked: they are loaded when they are asked for.

#[cfg(feature = "cuda")]
mod backend;
mod build;
mod error;
#[cfg(feature = "cuda")]
mod execution;
mod gpu;
mod inspect;
#[cfg(all(feature = "cuda", not(feature = "tensorrt-enterprise")))]
mod kernels;
mod library;
#[cfg(feature = "cuda")]
mod loaded;
mod log;
mod manifest;
mod recipe;
mod store;
mod target;

#[cfg(feature = "cuda")]
pub use backend::TensorRtBackend;
pub use build::{Observer, Order, Silent, build};
pub use error::TensorRtError;
pub use gpu::target_here;
pub use inspect::{Inspected, inspect};
pub use library::{FOLDER_VARIABLE, Version, load};
#[cfg(feature = "cuda")]
pub use loaded::{LoadOptions, Loaded};
pub use manifest::{
    Builder, EngineFile, Manifest, NetworkSummary, Part, Wanted, Weights, WeightsFile,
};
pub use recipe::{Gpu, Prediction, Recipe, Step};
pub use store::{Found, Lock, Store};
pub use target::{Flavour, Target, list};
