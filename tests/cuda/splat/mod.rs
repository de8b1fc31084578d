//! The Gaussian map on the GPU against that on the CPU.

mod common;
mod full;
mod rows;
mod train;
