//! Checkpoints, the network's structure, and the CPU backend that runs it.

mod dune;
mod golden;
mod pickle;
mod pth;
mod refusals;
mod structure;
