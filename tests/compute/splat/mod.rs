//! The Gaussian map on the CPU.

pub mod common;
mod gradients;
mod optimise;
mod refine;
mod render;
mod training;
