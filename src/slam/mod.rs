//! The SLAM system: keyframes, factor graph, relocalisation, state machine. What is large, and all that
//! is done with it, is behind [`crate::compute::device`].

mod history;
mod keyframe;
mod live;
mod localise;
mod mapper;
mod mapping;
mod poses;
mod records;
mod saved;
mod system;
mod uncertainty;
pub mod window;

pub use keyframe::PoseTable;
pub use mapper::MappingCounts;
pub use saved::{LabelMaker, MapLabel, OnSaved, SavedMap, SavedMapError};
pub use system::{FrameInput, Pace, SlamError, System};
pub use uncertainty::Covariance6;
