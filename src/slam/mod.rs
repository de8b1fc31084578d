//! The SLAM system: keyframes, factor graph, relocalisation, state machine. What is large, and all that
//! is done with it, is behind [`crate::compute::device`].

mod keyframe;
mod live;
mod mapper;
mod mapping;
mod system;
pub mod window;

pub use keyframe::PoseTable;
pub use mapper::MappingCounts;
pub use system::{FrameInput, Pace, SlamError, System};
