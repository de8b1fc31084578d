//! The network on TensorRT: engines are built once from the same description that other runtimes
//! use, stored in a folder with a manifest each, and loaded if they match GPU, library and weights.
//!
//! Two libraries share this code: TensorRT-RTX (feature `tensorrt`; GeForce and RTX) and TensorRT
//! (feature `tensorrt-enterprise`; Jetson, data centre). Both are loaded at run time rather than
//! linked.

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
mod layers;
mod library;
#[cfg(feature = "cuda")]
mod loaded;
mod log;
mod manifest;
mod recipe;
mod store;
mod support;
mod target;
mod version;

#[cfg(feature = "cuda")]
pub use backend::TensorRtBackend;
pub use build::{Observer, Order, Silent, build};
pub use error::TensorRtError;
pub use gpu::target_here;
pub use inspect::{Inspected, inspect};
pub use layers::{KindSum, Layer, LayerKind, kinds};
pub use library::{FOLDER_VARIABLE, load};
#[cfg(feature = "cuda")]
pub use loaded::{LoadOptions, Loaded};
pub use manifest::{
    Builder, EngineFile, Manifest, NetworkSummary, Part, Wanted, Weights, WeightsFile,
};
pub use recipe::{Gpu, Prediction, Recipe, Step};
pub use store::{Found, Lock, Store};
pub use target::{Flavour, Target, list};
pub use version::Version;
