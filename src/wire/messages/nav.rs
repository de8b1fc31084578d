//! nav_msgs, and the update of a grid from map_msgs.

use super::geometry::{Pose, PoseStamped, PoseWithCovariance, TwistWithCovariance};
use super::{Header, Time, messages};

messages! {
    Odometry = "nav_msgs/msg/Odometry" {
        header: Header,
        child_frame_id: String,
        pose: PoseWithCovariance,
        twist: TwistWithCovariance,
    }
    Path = "nav_msgs/msg/Path" { header: Header, poses: Vec<PoseStamped> }
    MapMetaData = "nav_msgs/msg/MapMetaData" {
        map_load_time: Time,
        resolution: f32,
        width: u32,
        height: u32,
        origin: Pose,
    }
    /// Cells row after row from the origin: -1 unknown, 0 free to 100 occupied.
    OccupancyGrid = "nav_msgs/msg/OccupancyGrid" { header: Header, info: MapMetaData, data: Vec<i8> }
    /// New values for a rectangle of cells of a grid.
    OccupancyGridUpdate = "map_msgs/msg/OccupancyGridUpdate" {
        header: Header,
        x: i32,
        y: i32,
        width: u32,
        height: u32,
        data: Vec<i8>,
    }
}
