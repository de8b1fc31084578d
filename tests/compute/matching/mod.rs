//! Matching.

mod parity;
mod properties;
mod reference;
mod refinement;
