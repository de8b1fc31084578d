//! The ROS 2 node: images from topics in; transforms, odometry, clouds and diagnostics out.
//!
//! [`node`] is the node itself and knows of the outside world only the trait [`middleware::Middleware`].
//! Behind it stands one of two clients: [`dds`], which speaks DDS itself and needs no ROS installation,
//! or [`r2r`], which goes through rcl and the RMW of a sourced ROS 2. Messages are the same serde types
//! and the same CDR bytes for both.

pub mod args;
pub mod camera;
pub mod cdr;
#[cfg(feature = "dds")]
pub mod dds;
pub mod images;
pub mod messages;
pub mod middleware;
pub mod names;
pub mod node;
pub mod priority;
#[cfg(feature = "r2r")]
pub mod r2r;
#[cfg(feature = "bags")]
pub mod tee;
