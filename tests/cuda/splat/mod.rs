//! The Gaussian map on the GPU against that on the CPU.

mod common;
mod rows;
mod train;
