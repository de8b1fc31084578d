//! Weights with a name: a table of known ones, the folder that keeps fetched ones, and fetching.

mod cache;
mod catalogue;
mod error;
mod fetch;

pub use cache::{VARIABLE, folder, locate};
pub use catalogue::{CATALOGUE, Entry, KnownFile, Origin, named};
pub use error::WeightsError;
pub use fetch::{Client, Outcome, Wanted, Watch};
