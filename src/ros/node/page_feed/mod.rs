//! How the node's threads fill the live page, with the feature `view`.

#[cfg(not(feature = "view"))]
mod absent;
#[cfg(feature = "view")]
mod present;

#[cfg(not(feature = "view"))]
pub use absent::PageFeed;
#[cfg(feature = "view")]
pub use present::PageFeed;
