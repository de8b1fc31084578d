//! Monocular dense SLAM on top of the two-view network MASt3R: images in; a trajectory with
//! metric scale, keyframes and a dense coloured point cloud out.
//!
//! Layers, each knowing only those after it: [`cli`] → `ros` (with feature `dds` or `r2r`), [`source`], [`slam`], [`map`], [`eval`] →
//! [`compute`] → [`inference`], [`network`] → [`image`], [`geometry`], [`config`], [`time`],
//! [`files`]. Bags (feature `bags`) are read by [`source`] and written by `ros` through `bag`; both take from `ros` the
//! message types and how they are encoded, which know nothing of the rest.

#[cfg(feature = "bags")]
pub mod bag;
pub mod cli;
pub mod compute;
pub mod config;
pub mod eval;
pub mod files;
pub mod geometry;
pub mod image;
pub mod inference;
pub mod map;
pub mod network;
#[cfg(feature = "ros")]
pub mod ros;
pub mod slam;
pub mod source;
pub mod time;
