//! Message types that the node sends and receives, as serde structs with the CDR layout of the ROS
//! interface packages. Field names, order and meaning are those of ROS.

pub mod diagnostic;
mod field;
pub mod geometry;
pub mod lifecycle;
pub mod nav;
pub mod parameter;
pub mod sensor;
pub mod visualization;

use crate::time::Stamp;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::Payload;
use super::cdr::{self, CdrError};

/// A type of a ROS interface package.
pub trait Message {
    /// `package/msg/Type`; for parts of services, `package/srv/Type_Request`.
    const TYPE: &'static str;

    /// The text of its `.msg` file, without comments and without the types in it.
    fn own_definition() -> Definition
    where
        Self: Sized;

    /// Its CDR.
    fn encode(&self) -> Result<Bytes, CdrError>
    where
        Self: Serialize + Sized,
    {
        cdr::encode(Self::TYPE, self, 256)
    }

    /// Decodes `payload`; the message may borrow from it.
    fn decode<'de>(payload: &'de Payload) -> Result<Self, CdrError>
    where
        Self: Deserialize<'de> + Sized,
    {
        cdr::decode(Self::TYPE, payload)
    }
}

/// `package/Type` from `package/msg/Type`, as `.msg` files name types.
pub(super) fn short_name(full: &str) -> String {
    full.replacen("/msg/", "/", 1)
}

/// The definition of one type, without those of its parts.
#[derive(Debug, Clone)]
pub struct Definition {
    /// `package/Type`.
    pub name: String,
    /// A line for each constant and each field, as in the `.msg` file.
    pub text: String,
    /// The message types of its fields, in their order.
    pub parts: Vec<fn() -> Definition>,
}

/// Declares message types: the structures that are serialised, and the text of their `.msg` files. A field may have a
/// default (`w: f64 = "1"`), another name in ROS (`kind as "type"`) and another type's name (`level: u8 as "byte"`); constants of the type stand in brackets.
macro_rules! messages {
    ($(
        $(#[$doc:meta])*
        $name:ident $(<$life:lifetime>)? = $type:literal $([$($constant:literal),* $(,)?])? {
            $($(#[$attribute:meta])* $field:ident $(as $ros:literal)?: $kind:ty $(as $spelling:literal)? $(= $default:literal)?),* $(,)?
        }
    )*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        #[allow(missing_docs)]
        pub struct $name $(<$life>)? { $($(#[$attribute])* pub $field: $kind),* }

        impl $(<$life>)? $crate::wire::messages::Message for $name $(<$life>)? {
            const TYPE: &'static str = $type;

            fn own_definition() -> $crate::wire::messages::Definition {
                use $crate::wire::messages::field::Field;
                let lines = [
                    $($($constant.to_owned(),)*)?
                    $([
                        [<$kind as Field>::spelling().as_str() $(, $spelling)?].last().copied().unwrap_or_default(),
                        [stringify!($field) $(, $ros)?].last().copied().unwrap_or_default(),
                        $($default)?
                    ].join(" "),)*
                ];
                let parts = [$(<$kind as Field>::part()),*];
                $crate::wire::messages::Definition {
                    name: $crate::wire::messages::short_name($type),
                    text: lines.map(|line| line + "\n").concat(),
                    parts: parts.into_iter().flatten().collect(),
                }
            }
        }

        impl $(<$life>)? $crate::wire::messages::field::Field for $name $(<$life>)? {
            fn spelling() -> String {
                $crate::wire::messages::short_name($type)
            }

            fn part() -> Option<fn() -> $crate::wire::messages::Definition> {
                Some(<Self as $crate::wire::messages::Message>::own_definition)
            }
        }
    )*};
}
pub(crate) use messages;

messages! {
    /// Time since the epoch of its clock.
    Time = "builtin_interfaces/msg/Time" { sec: i32, nanosec: u32 }
    /// A length of time.
    Duration = "builtin_interfaces/msg/Duration" { sec: i32, nanosec: u32 }
    /// Stamp and coordinate frame.
    Header = "std_msgs/msg/Header" { stamp: Time, frame_id: String }
    /// A colour with components from 0 to 1.
    ColorRgba = "std_msgs/msg/ColorRGBA" { r: f32, g: f32, b: f32, a: f32 }
    /// Simulated time.
    Clock = "rosgraph_msgs/msg/Clock" { clock: Time }
    /// Trigger request. (Empty structs have one byte in ROS.)
    TriggerRequest = "std_srvs/srv/Trigger_Request" { structure_needs_at_least_one_member: u8 }
    /// Trigger response.
    TriggerResponse = "std_srvs/srv/Trigger_Response" { success: bool, message: String }
}

impl From<Stamp> for Time {
    /// Clamped to the range of the message (1901 to 2038).
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
    pub fn new(stamp: Stamp, frame_id: &str) -> Self {
        Self {
            stamp: stamp.into(),
            frame_id: frame_id.to_owned(),
        }
    }
}
