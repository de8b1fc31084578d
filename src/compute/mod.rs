//! Per-pixel and per-edge algorithms. The implementations in this module are for the CPU and are
//! the reference for other devices; SLAM accesses either through [`device`].

pub mod cancel;
pub mod coverage;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod depth;
pub mod device;
pub mod fusion;
pub mod global;
pub mod mask;
pub mod matching;
pub mod pose_solver;
pub mod residual;
pub mod retrieval;
pub mod splat;
pub mod spread;
pub mod store;
