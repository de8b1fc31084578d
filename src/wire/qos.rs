//! Quality of service of a topic.

/// Quality of service, limited to the policies in which the node's topics differ. History is always
/// keep-last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Qos {
    /// Whether lost messages are retransmitted.
    pub reliable: bool,
    /// Whether late joiners receive the last messages ("latched").
    pub transient_local: bool,
    /// Number of messages to keep.
    pub depth: usize,
}

impl Qos {
    /// rmw's sensor data profile with a history of `depth`.
    pub const fn sensor_data(depth: usize) -> Self {
        Self {
            reliable: false,
            transient_local: false,
            depth,
        }
    }

    /// Reliable delivery to current subscribers.
    pub const fn reliable(depth: usize) -> Self {
        Self {
            reliable: true,
            transient_local: false,
            depth,
        }
    }

    /// Reliable delivery, including the last `depth` messages for late joiners.
    pub const fn latched(depth: usize) -> Self {
        Self {
            reliable: true,
            transient_local: true,
            depth,
        }
    }
}
