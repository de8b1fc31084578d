//! The message types that the node sends and receives, as serde structures whose CDR is that of the ROS
//! interface packages. Field names, order and meaning are theirs.

pub mod diagnostic;
pub mod geometry;
pub mod lifecycle;
pub mod nav;
pub mod parameter;
pub mod sensor;
pub mod visualization;

use crate::time::Stamp;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::cdr::{self, CdrError};
use super::middleware::Payload;

/// A type of a ROS interface package.
pub trait Message {
    /// `package/msg/Type`; for parts of services `package/srv/Type_Request`.
    const TYPE: &'static str;

    /// Its CDR.
    fn encode(&self) -> Result<Bytes, CdrError>
    where
        Self: Serialize + Sized,
    {
        cdr::encode(Self::TYPE, self, 256)
    }

    /// The message that `payload` holds.
    fn decode<'de>(payload: &'de Payload) -> Result<Self, CdrError>
    where
        Self: Deserialize<'de> + Sized,
    {
        cdr::decode(Self::TYPE, payload)
    }
}

/// Declares message types.
macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident = $type:literal { $($field:ident: $kind:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        #[allow(missing_docs)]
        pub struct $name { $(pub $field: $kind),* }

        impl $crate::ros::messages::Message for $name {
            const TYPE: &'static str = $type;
        }
    )*};
}
pub(crate) use messages;

messages! {
    /// A time since the epoch of its clock.
    Time = "builtin_interfaces/msg/Time" { sec: i32, nanosec: u32 }
    /// A length of time.
    Duration = "builtin_interfaces/msg/Duration" { sec: i32, nanosec: u32 }
    /// When and in which frame.
    Header = "std_msgs/msg/Header" { stamp: Time, frame_id: String }
    /// A colour, each part from 0 to 1.
    ColorRgba = "std_msgs/msg/ColorRGBA" { r: f32, g: f32, b: f32, a: f32 }
    /// The simulated time.
    Clock = "rosgraph_msgs/msg/Clock" { clock: Time }
    /// Asks for something to be done. (Empty structures have one byte in ROS.)
    TriggerRequest = "std_srvs/srv/Trigger_Request" { structure_needs_at_least_one_member: u8 }
    /// Whether it was done.
    TriggerResponse = "std_srvs/srv/Trigger_Response" { success: bool, message: String }
}

impl From<Stamp> for Time {
    /// Clamped to what the message holds (1901 to 2038).
    fn from(stamp: Stamp) -> Self {
        const SECOND: i64 = 1_000_000_000;
        let sec = stamp.nanos.div_euclid(SECOND);
        Self {
            sec: sec.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32,
            nanosec: stamp.nanos.rem_euclid(SECOND) as u32,
        }
    }
}

impl From<&Time> for Stamp {
    fn from(time: &Time) -> Self {
        Self {
            nanos: i64::from(time.sec) * 1_000_000_000 + i64::from(time.nanosec),
        }
    }
}

impl Header {
    /// From its parts.
    pub fn new(stamp: Stamp, frame_id: &str) -> Self {
        Self {
            stamp: stamp.into(),
            frame_id: frame_id.to_owned(),
        }
    }
}
