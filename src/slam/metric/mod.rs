//! Metres: what sensors say about the scale of the map and about motions in it.

pub mod depth;
pub mod depth_ends;
pub mod depth_moment;
pub mod depth_motion;
pub mod depth_offset;
mod depth_planes;
mod depth_surface;
pub mod depth_timer;
mod directions;
mod doubt;
pub mod gravity;
pub mod gyro;
pub mod gyro_calibration;
pub mod gyro_mount;
pub mod gyroscope;
pub mod keyframe_depth;
pub mod motion;
pub mod motions;
pub mod mount;
mod path;
pub mod robust;
pub mod scale;
pub mod slip;
mod steps;
pub mod tracked_scale;
pub mod wheels;

#[cfg(test)]
mod depth_room;
#[cfg(test)]
mod drive;
