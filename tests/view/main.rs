//! The live page and the metrics: over real HTTP, in a real browser, during real runs.

mod client;
mod endpoints;
mod limits;
mod pages;
mod report;
mod rules;
mod soak;
mod splats;
mod walk;
