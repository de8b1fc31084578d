//! nav_msgs.

use super::geometry::{PoseStamped, PoseWithCovariance, TwistWithCovariance};
use super::{Header, messages};

messages! {
    Odometry = "nav_msgs/msg/Odometry" {
        header: Header,
        child_frame_id: String,
        pose: PoseWithCovariance,
        twist: TwistWithCovariance,
    }
    Path = "nav_msgs/msg/Path" { header: Header, poses: Vec<PoseStamped> }
}
