//! The global solver.

mod factors;
mod solver;
mod window;
