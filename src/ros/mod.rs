//! The ROS 2 node: images from topics in; transforms, odometry, clouds and diagnostics out.
//!
//! [`node`] is the node itself and accesses ROS only through the trait [`middleware::Middleware`],
//! which has two implementations: [`dds`] speaks DDS directly and needs no ROS installation;
//! [`r2r`] uses rcl and the RMW of a sourced ROS 2. Both share the serde message types and CDR
//! encoding.

pub mod args;
pub mod buffers;
#[cfg(feature = "dds")]
pub mod dds;
pub mod middleware;
pub mod node;
pub mod priority;
#[cfg(feature = "r2r")]
pub mod r2r;
#[cfg(feature = "bags")]
pub mod recording;
#[cfg(feature = "bags")]
pub mod tap;
