//! The algorithms on the CPU: matching, fusion, pose solvers, retrieval, the keyframe store.

mod fusion;
mod global;
mod matching;
mod retrieval;
mod splat;
mod store;
mod tracking;
