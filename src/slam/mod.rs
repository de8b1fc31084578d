//! The SLAM system: tracker, keyframes, factor graph, retrieval, relocalisation, state machine.

mod graph;
mod keyframe;
mod mapper;
mod mapping;
mod places;
pub mod retrieval;
mod system;
mod tracker;
pub mod window;

pub use keyframe::PoseTable;
pub use mapper::MappingCounts;
pub use system::{FrameInput, Pace, SlamError, System};
pub use tracker::LostReason;
