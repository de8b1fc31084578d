//! A photorealistic map of 3D Gaussians: rows in a pool of fixed size, a renderer with gradients, Adam, and refinement
//! in place (docs/algorithm.md, Gaussian map). The CPU code here defines what is correct.

pub mod block;
pub mod camera;
pub mod constants;
pub mod device;
mod error;
pub mod layout;

pub use error::{Cause, SplatError};
