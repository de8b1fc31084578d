//! A furnished flat of three rooms, and a robot that drives in it: what its camera and its other sensors deliver, with
//! the truth. Everything is deterministic for a seed.
//!
//! The world's axes: x to the east, y to the north, z up; the floor is z = 0, the south-west corner the origin. Metres,
//! radians and nanoseconds.

mod follower;
mod plan;
mod render;
mod robot;
pub mod routes;
mod sensors;
mod simulation;
mod texture;
mod way;

pub use follower::{Follower, Leg};
pub use plan::{Block, Flat, GRID_HEIGHTS, ROBOT_HEIGHTS};
pub use render::{View, camera};
pub use robot::{Command, Limits, Place, RADIUS, Robot, base_from_camera};
pub use sensors::{DepthCamera, Gyro, Slip, WheelErrors, Wheels};
pub use simulation::{Period, STEP, Simulation};
pub use way::{is_clear, way};
