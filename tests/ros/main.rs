//! The ROS 2 node, its messages, and bags.

#[cfg(feature = "bags")]
mod bags;
#[cfg(feature = "dds")]
mod dds;
mod depth;
mod faults;
#[cfg(feature = "bags")]
mod incidents;
#[cfg(feature = "dds")]
mod lanes;
mod masks;
mod messages;
mod motion;
mod node;
mod outputs;
#[cfg(feature = "dds")]
mod run;
#[cfg(all(feature = "dds", target_os = "linux"))]
mod service;
mod services;
mod support;
mod transforms;
#[cfg(feature = "view")]
mod view;
