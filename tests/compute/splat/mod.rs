//! The Gaussian map on the CPU.
#![allow(
    clippy::needless_range_loop,
    reason = "several planes are read at one row or axis"
)]

pub mod common;
mod gradients;
mod optimise;
mod refine;
mod render;
mod training;
