//! Comparing trajectories with the truth.

mod agrees_with_evo;
mod bad_input;
