//! ROS 2 wire formats: message types, CDR, graph names, quality of service. Independent of nodes,
//! middleware and files.

pub mod cdr;
mod definition;
pub mod messages;
pub mod names;
mod payload;
mod qos;

pub use definition::definition;
pub use payload::Payload;
pub use qos::Qos;
