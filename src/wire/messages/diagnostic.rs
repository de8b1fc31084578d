//! diagnostic_msgs.

use super::{Header, messages};

/// No fault.
pub const OK: u8 = 0;
/// A condition that an operator should look at.
pub const WARN: u8 = 1;
/// A fault.
pub const ERROR: u8 = 2;

messages! {
    KeyValue = "diagnostic_msgs/msg/KeyValue" { key: String, value: String }
    DiagnosticStatus = "diagnostic_msgs/msg/DiagnosticStatus" ["byte OK=0", "byte WARN=1", "byte ERROR=2", "byte STALE=3"] {
        level: u8 as "byte",
        name: String,
        message: String,
        hardware_id: String,
        values: Vec<KeyValue>,
    }
    DiagnosticArray = "diagnostic_msgs/msg/DiagnosticArray" {
        header: Header,
        status: Vec<DiagnosticStatus>,
    }
}
