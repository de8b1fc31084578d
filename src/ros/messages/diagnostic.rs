//! diagnostic_msgs.

use super::{Header, messages};

/// All is well.
pub const OK: u8 = 0;
/// Something deserves a look.
pub const WARN: u8 = 1;
/// Something is broken.
pub const ERROR: u8 = 2;

messages! {
    KeyValue = "diagnostic_msgs/msg/KeyValue" { key: String, value: String }
    DiagnosticStatus = "diagnostic_msgs/msg/DiagnosticStatus" {
        level: u8,
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
