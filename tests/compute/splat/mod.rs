//! The Gaussian map on the CPU.

pub mod common;
mod gradients;
mod refine;
mod render;
