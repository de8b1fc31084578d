//! Every per-pixel and per-edge algorithm. The implementations here are for the CPU and define the
//! right answer for any other device; [`device`] is what SLAM sees of either.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod device;
pub mod fusion;
pub mod global;
pub mod matching;
pub mod plan;
pub mod residual;
pub mod retrieval;
pub mod stop;
pub mod store;
pub mod tracking;
