//! The node's live page and metrics, with the feature `view`.

#[cfg(not(feature = "view"))]
mod absent;
#[cfg(feature = "view")]
mod present;

#[cfg(not(feature = "view"))]
pub use absent::{NodeDoor, NodeView};
#[cfg(feature = "view")]
pub use present::{NodeDoor, NodeView};
