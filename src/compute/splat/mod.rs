//! A photorealistic map of 3D Gaussians: rows in a pool of fixed size, a renderer with gradients, Adam, and refinement
//! in place (docs/algorithm.md, Gaussian map). The CPU code here defines what is correct.

mod adam;
mod anchors;
pub mod blend;
pub mod block;
pub mod budget;
pub mod camera;
pub mod constants;
mod cpu;
pub mod device;
mod error;
pub mod layout;
pub mod loss;
pub mod pose;
mod projection;
pub mod refine;
pub mod relocate;
pub mod rng;
pub mod row;
pub mod schedule;
pub mod seed;
pub mod sh;
pub mod store;
pub mod synthetic;
pub mod trainer;

pub use cpu::CpuSplat;
pub use error::{Cause, SplatError};
