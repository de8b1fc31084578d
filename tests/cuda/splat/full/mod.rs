//! Maps of full size: up to 49 million rows. Each test says how much memory of the GPU it needs, and prints what it
//! measured; times are printed only, as they depend on what else runs.

mod capacity;
mod counts;
mod cycles;
mod fixture;
mod large;
mod million;
mod relocate;
mod render;
mod repeat;
mod split;
